"""Every exported form of a classifier: size, load time, first answer, time a request,
accuracy, in one table.

    python -m benchmarks.exported_forms --model=runs/sst-2 \
        --data=glue/SST-2/dev.tsv --output=forms.json

The model itself (its folder, TensorFlow) and ONNX Runtime and TFLite in each precision
answer through albert_tf.load(...).predict. Requests of one text go to the forms in
turns, so that all see the same machine; load and first answer are a new process's,
imports not counted. The machine should be idle. Forms whose packages are missing are
left out.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from albert_tf import files
from albert_tf.errors import InputError
from benchmarks import benchmark_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Folder of a model of classes.", required=True)
flags.DEFINE_string("data", os.path.join(
    benchmark_flags.DATA, "glue", "SST-2", "dev.tsv"),
                    "Texts and labels, a tab between; the first line is a heading.")
flags.DEFINE_integer("num_requests", 64, "Texts that are timed one by one.",
                     lower_bound=1)
flags.DEFINE_integer("num_rounds", 3, "Processes for each form's first answer, and "
                     "rounds of requests.", lower_bound=1)
benchmark_flags.define_output_flag()
_FIRST = """
import sys, time
import albert_tf, tensorflow
if sys.argv[1] == "onnx":
    import onnxruntime
start = time.perf_counter()
model = albert_tf.load(sys.argv[2])
loaded = time.perf_counter()
model.predict("A fine film.")
print(loaded - start, time.perf_counter() - loaded)
"""


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        return next((line.partition(":")[2].strip() for line in stream
                     if line.startswith("model name")), "")


def _export(loaded, folder):
    """Form → (engine, folder, bytes of what engines load)."""
    from albert_tf.serving import portable

    found = {"model": ("", FLAGS.model, sum(
        files.size(os.path.join(FLAGS.model, name)) for name in files.names_in(
            FLAGS.model) if name.startswith("model.ckpt-best")))}
    for form, precision in itertools.product(portable.FILES, portable.PRECISIONS):
        to = os.path.join(folder, f"{form}_{precision}")
        try:
            portable.export(loaded, "classify", to, form, precision)
        except InputError as error:
            print(f"{form} is left out: {error}")
            continue
        found[f"{form}, {precision}"] = form, to, files.size(
            os.path.join(to, portable.FILES[form]))
    return found


def _first_answer(form, folder):
    """Seconds to load and to the first answer after that, in a new process."""
    done = subprocess.run([sys.executable, "-c", _FIRST, form, folder], check=True,
                          capture_output=True, text=True, cwd=benchmark_flags.ROOT)
    return tuple(map(float, done.stdout.split()[-2:]))


def _probabilities(answers):
    return [value for answer in answers for value in answer["probabilities"]]


def main(argv):
    del argv
    import albert_tf

    benchmark_flags.make_output_folder()
    rows = [line.split("\t") for _, line in files.read_lines(FLAGS.data)][1:]
    texts, labels = [row[0] for row in rows], [row[1] for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        forms = _export(albert_tf.load(FLAGS.model), folder)
        first = {name: [] for name in forms}
        for _ in range(FLAGS.num_rounds):
            for name, (form, where, _) in forms.items():
                first[name].append(_first_answer(form, where))
        models = {name: albert_tf.load(where) for name, (_, where, _) in forms.items()}
        answers = {name: model.predict(texts) for name, model in models.items()}
        times = {name: [] for name in forms}
        for _ in range(FLAGS.num_rounds):
            for text in texts[:FLAGS.num_requests]:
                for name, model in models.items():
                    start = time.perf_counter()
                    model.predict(text)
                    times[name].append(time.perf_counter() - start)
    found = {name: {
        "megabytes": size / 1e6,
        "load_seconds": statistics.median(each[0] for each in first[name]),
        "first_answer_seconds": statistics.median(each[1] for each in first[name]),
        "request_milliseconds": 1e3 * statistics.median(times[name]),
        "accuracy": statistics.fmean(
            answer["label"] == label for answer, label in zip(answers[name], labels)),
        "farthest_probability": max(
            abs(one - other) for one, other in zip(
                _probabilities(answers[name]), _probabilities(answers["model"]))),
    } for name, (_, _, size) in forms.items()}
    print(f"{len(texts)} texts; {_processor()}, {os.cpu_count()} cores\n")
    print("| form | MB | load, s | first answer, s | a request, ms | accuracy | "
          "farthest probability |\n|" + " --- |" * 7)
    for name, row in found.items():
        print(f"| {name} | {row['megabytes']:.1f} | {row['load_seconds']:.2f} | "
              f"{row['first_answer_seconds']:.2f} | "
              f"{row['request_milliseconds']:.1f} | {row['accuracy']:.2%} | "
              f"{row['farthest_probability']:.1e} |")
    benchmark_flags.write_output({
        **benchmark_flags.machine(), "processor": _processor(),
        "data": os.path.basename(FLAGS.data),
        "texts": len(texts), "forms": found, "seconds": times})


if __name__ == "__main__":
    app.run(main)
