r"""Measures the speed and memory of creating pretraining data.

    python -m benchmarks.data_creation --output=benchmarks/results/data_creation.json

create_pretraining_data.py runs with one and with two workers on corpora of several sizes.
A corpus consists of documents of the real text in random order, repeated as needed. The
whole command is measured, Python's start included: seconds, CPU seconds of all processes
and the largest resident memory of any process (of Linux). On the smallest corpus
`--reproduce_release`, which creates exactly the original's records, is measured too.
"""

import os
import random
import subprocess
import sys
import tempfile
import time

from absl import flags, logging

from albert_tf import text_files
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
# Runs a command; prints the CPU seconds of all its processes and the most memory of one.
# Workers may end after the script, so they become this process's children, which it awaits.
_COUNTED = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
status = subprocess.call(sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(status)
"""


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


def measure(text: str, workers: int, folder: str, *more: str) -> dict:
    """Runs the script once on a text and returns its cost."""
    output = os.path.join(folder, "data.tfrecord")
    command = [
        sys.executable, "-c", _COUNTED,
        sys.executable, os.path.join(ROOT, "create_pretraining_data.py"),
        f"--input_file={text}", f"--output_file={output}",
        f"--spm_model_file={FLAGS.spm_model_file}",
        f"--max_seq_length={FLAGS.max_seq_length}",
        f"--max_predictions_per_seq={FLAGS.max_predictions_per_seq}",
        f"--dupe_factor={FLAGS.dupe_factor}", f"--num_workers={workers}", *more]
    begin = time.monotonic()
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.run(
            command, stderr=log, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - begin
    if process.returncode:
        with open(os.path.join(folder, "log"), encoding="utf-8") as log:
            raise SystemExit(log.read()[-2000:])
    cpu_seconds, kilobytes = map(float, process.stdout.split()[-2:])
    found = {
        "workers": workers, "text_bytes": os.path.getsize(text),
        "instances": text_files.read_object(summary_path(output))["instances"],
        "seconds": seconds,
        "cpu_seconds": cpu_seconds, "largest_process_mb": kilobytes * 1024 / 1e6}
    os.remove(output)
    return found


def print_results(results: list[dict]) -> None:
    print("| text, MB | workers | instances | seconds | instances per CPU second "
          "| largest process, MB |\n|" + " --- |" * 6)
    for row in results:
        exact = ", --reproduce_release" if row.get("reproduce_release") else ""
        print(f"| {row['text_bytes'] / 1e6:.0f}{exact} | {row['workers']} "
              f"| {row['instances']:,} | {row['seconds']:.1f} "
              f"| {row['instances'] / row['cpu_seconds']:,.0f} "
              f"| {row['largest_process_mb']:.0f} |")
    print(f"The original TF1 code writes {RELEASE_INSTANCES_PER_CPU_SECOND} instances per "
          "CPU second.")


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


if __name__ == "__main__":
    script.run(main)
