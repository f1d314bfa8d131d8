r"""Measures the speed and memory of creating pretraining data.

    python -m benchmarks.data_creation --output=benchmarks/results/data_creation.json

create_pretraining_data.py runs with one and with two workers on corpora of several sizes.
A corpus consists of documents of the real text in random order, repeated as needed. The
whole command is measured, Python's start included: seconds, CPU seconds of all processes,
and the largest resident memory of any process and of all together, read from /proc ten
times per second (so this needs Linux). On the smallest corpus `--reproduce_release`, which
creates exactly the original's records, is measured too. A plot is drawn beside the output.
"""

import os
import random
import subprocess
import sys
import tempfile
import time

from absl import flags, logging

from albert_tf import pictures, text_files
from albert_tf.cli import script
from albert_tf.pretraining_data.summary import summary_path
from benchmarks import benchmark_flags
from benchmarks.benchmark_flags import DATA, ROOT

FLAGS = flags.FLAGS

flags.DEFINE_string("text", os.path.join(DATA, "wiki_en", "train.txt"),
                    "Text to build the corpora from.")
benchmark_flags.define_spm_model_flag()
flags.DEFINE_list("megabytes", ["1", "16", "256"], "Sizes of the corpora in MB.")
flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers.")
flags.DEFINE_integer("max_seq_length", 512, "Tokens in a sequence.")
flags.DEFINE_integer("max_predictions_per_seq", 77, "Maximum number of masked tokens.")
flags.DEFINE_integer("dupe_factor", 5, "Number of times each document is used.")
benchmark_flags.define_output_flag()

# The original TF1 code on this kind of machine: 1.5 MB of the same text, equal settings.
RELEASE_INSTANCES_PER_CPU_SECOND = 123
_SECONDS_BETWEEN_LOOKS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def write_corpus(path: str, documents: list[str], megabytes: float, seed: int) -> int:
    """Writes documents in random order until the size is reached; returns the bytes."""
    shuffled = random.Random(seed)
    written = 0
    with open(path, "w", encoding="utf-8") as stream:
        while True:
            for document in shuffled.sample(documents, len(documents)):
                written += len(document.encode()) + 2
                stream.write(f"{document}\n\n")
                if written >= megabytes * 1e6:
                    return written


class ProcessTree:
    """CPU seconds and memory of a command and all processes that it starts.

    Attributes:
      cpu: process → CPU seconds, as last seen.
      largest: maximum resident bytes of a single process.
      together: maximum resident bytes of all at one time; shared pages count in each.
    """

    def __init__(self, session: int):
        self._session = session
        self.cpu: dict[int, float] = {}
        self.largest = self.together = 0

    def look(self) -> None:
        """Reads /proc once."""
        together = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8") as stream:
                    fields = stream.read().rpartition(")")[2].split()
                if int(fields[3]) != self._session:
                    continue
                self.cpu[int(name)] = (int(fields[11]) + int(fields[12])) / _TICKS
                resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            except (FileNotFoundError, ProcessLookupError):
                continue  # The process has just ended.
            self.largest = max(self.largest, resident)
            together += resident
        self.together = max(self.together, together)


def measure(text: str, workers: int, folder: str, *more: str) -> dict:
    """Runs the script once on a text and returns its cost."""
    output = os.path.join(folder, "data.tfrecord")
    command = [
        sys.executable, os.path.join(ROOT, "create_pretraining_data.py"),
        f"--input_file={text}", f"--output_file={output}",
        f"--spm_model_file={FLAGS.spm_model_file}",
        f"--max_seq_length={FLAGS.max_seq_length}",
        f"--max_predictions_per_seq={FLAGS.max_predictions_per_seq}",
        f"--dupe_factor={FLAGS.dupe_factor}", f"--num_workers={workers}", *more]
    begin = time.monotonic()
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(command, start_new_session=True, stderr=log)
        tree = ProcessTree(process.pid)
        while process.poll() is None:
            tree.look()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    seconds = time.monotonic() - begin
    if process.returncode:
        with open(os.path.join(folder, "log"), encoding="utf-8") as log:
            raise SystemExit(log.read()[-2000:])
    found = {
        "workers": workers, "text_bytes": os.path.getsize(text),
        "instances": text_files.read_object(summary_path(output))["instances"],
        "seconds": seconds,
        "cpu_seconds": sum(tree.cpu.values()),
        "largest_process_mb": tree.largest / 1e6, "together_mb": tree.together / 1e6}
    os.remove(output)
    return found


def print_results(results: list[dict]) -> None:
    print(f"\n{'text':>8} {'workers':>8} {'instances':>10} {'seconds':>8} {'MB/s':>7} "
          f"{'CPU s':>7} {'instances/CPU s':>16} {'vs release':>11} "
          f"{'largest MB':>11} {'all MB':>7}")
    for row in results:
        rate = row["instances"] / row["cpu_seconds"]
        print(f"{row['text_bytes'] / 1e6:6.0f}MB {row['workers']:>8} "
              f"{row['instances']:>10,} {row['seconds']:8.1f} "
              f"{row['text_bytes'] / 1e6 / row['seconds']:7.2f} "
              f"{row['cpu_seconds']:7.1f} {rate:16,.0f} "
              f"{rate / RELEASE_INSTANCES_PER_CPU_SECOND:10.0f}x "
              f"{row['largest_process_mb']:11.0f} {row['together_mb']:7.0f}"
              + ("  --reproduce_release" if row.get("reproduce_release") else ""))


def draw(results: list[dict], path: str) -> None:
    """Draws time and memory over the size of the text."""
    figure = pictures.figure(10, 4)
    time_axes, memory_axes = figure.subplots(1, 2)
    for workers in sorted({row["workers"] for row in results}):
        rows = [row for row in results
                if row["workers"] == workers and not row.get("reproduce_release")]
        sizes = [row["text_bytes"] / 1e6 for row in rows]
        label = f"{workers} worker{'s' if workers > 1 else ''}"
        time_axes.plot(sizes, [row["seconds"] for row in rows], "o-", label=label)
        memory_axes.plot(sizes, [row["largest_process_mb"] for row in rows], "o-",
                         label=label)
    for axes, name in ((time_axes, "seconds"),
                       (memory_axes, "largest process, resident MB")):
        axes.set_xscale("log")
        axes.set_xlabel("text, MB")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.legend()
    time_axes.set_yscale("log")
    time_axes.set_title("Time")
    memory_axes.set_ylim(0, 1100)
    memory_axes.axhline(1000, color="gray", linestyle="--", linewidth=1)
    memory_axes.set_title("Memory (limit 1 GB a process)")
    pictures.save(figure, path)


def main(_):
    benchmark_flags.make_output_folder()
    with open(FLAGS.text, encoding="utf-8") as stream:
        documents = [d.strip("\n") for d in stream.read().split("\n\n") if d.strip()]
    sizes = sorted(map(float, FLAGS.megabytes))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "corpus.txt")
        for size in sizes:
            write_corpus(text, documents, size, seed=int(size))
            for workers in map(int, FLAGS.workers):
                results.append(measure(text, workers, folder))
                logging.info("%s", results[-1])
            if size == sizes[0]:
                results.append({**measure(text, 1, folder, "--reproduce_release"),
                                "reproduce_release": True})
    print_results(results)
    benchmark_flags.write_output(results)
    if FLAGS.output:
        draw(results, f"{os.path.splitext(FLAGS.output)[0]}.png")


if __name__ == "__main__":
    script.run(main)
