"""Compares all exported forms of a model: size, load time, first answer, latency, score.

    python -m benchmarks.exported_forms --model=runs/sst-2 --task=sst-2 \
        --output=forms.json

The model folder itself (TensorFlow) and ONNX Runtime, OpenVINO and TFLite in each precision
answer through albert_tf.load(...).predict. SavedModels answer through their signature for
text. The forms take turns with requests of one text, so that all run under the same
conditions. Load time and first answer exclude imports. The machine should be idle. Forms
whose packages are missing are left out.
"""

import itertools
import os
import statistics
import tempfile
import time
from typing import Any, Callable

from absl import app, flags

from albert_tf import files
from albert_tf.checkpoints import huggingface
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, runs

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Model folder, fine-tuned on the task.", required=True)
flags.DEFINE_enum("task", "sst-2", ["sst-2", "mrpc", "squad"], "Task of the model.")
flags.DEFINE_string("data_dir", benchmark_flags.DATA,
                    "Data folder with glue and squad/dev-v1.1.json.")
flags.DEFINE_integer("num_examples", 2000, "Number of development examples, at equal "
                     "distances, for the score.", lower_bound=1)
flags.DEFINE_integer("num_requests", 64, "Number of examples to time one by one.",
                     lower_bound=1)
flags.DEFINE_integer("num_rounds", 3, "Number of rounds of requests.", lower_bound=1)
benchmark_flags.define_output_flag()


def _read() -> tuple[list[dict[str, str]], Callable[[list[dict[str, Any]]], float]]:
    """Returns inputs of `predict`, and a function that scores answers from 0 to 1."""
    from albert_tf.finetuning.classification import glue
    from albert_tf.finetuning.squad import task as squad, scoring

    def some(examples):
        count = min(FLAGS.num_examples, len(examples))
        return [examples[i * len(examples) // count] for i in range(count)]

    if FLAGS.task == "squad":
        read = squad.SquadTask(must_score=True).read(
            os.path.join(FLAGS.data_dir, "squad", "dev-v1.1.json"))
        examples = some(read.examples)

        def f1(answers):
            texts = {one.qas_id: found["answer"]
                     for one, found in zip(examples, answers)}
            return statistics.fmean(outcome.f1 for outcome in scoring.question_outcomes(
                examples, texts, False).values())

        return [{"question": one.question_text, "passage": one.paragraph_text}
                for one in examples], f1
    examples = some(glue.TASKS[FLAGS.task].read(
        os.path.join(FLAGS.data_dir, "glue"), "dev").examples)
    return [{"text": one.text_a} | ({"text_pair": one.text_b} if one.text_b else {})
            for one in examples], lambda answers: statistics.fmean(
                found["label"] == one.label for one, found in zip(examples, answers))


class _SavedModel:
    """A SavedModel for text, called as by a program without this project."""

    def __init__(self, folder):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  # Registers the model's operations.

        self._model = tf.saved_model.load(folder)
        self._call = self._model.signatures["serving_default"]
        self._constant = tf.constant

    def predict(self, inputs):
        answers = []
        for start in range(0, len(inputs), 32):
            part = inputs[start:start + 32]
            found = self._call(**{
                name: self._constant([each[name] for each in part]) for name in part[0]})
            columns = {name: value.numpy() for name, value in found.items()}
            answers += [{name: value[i].decode() if isinstance(value[i], bytes)
                         else value[i].tolist() for name, value in columns.items()}
                        for i in range(len(part))]
        return answers


def _bytes_of(folder: str, start: str = "") -> int:
    return sum(files.size(os.path.join(where, name)) for where, _, names in os.walk(
        folder) for name in names if name.startswith(start))


def _export(model, folder):
    """Exports all forms: name → (engine, folder, bytes that the engine loads)."""
    from albert_tf.serving import portable, runtimes

    found = {"model": ("", FLAGS.model, _bytes_of(FLAGS.model, "model.ckpt-best"))}
    for dtype in ("float32", "bfloat16"):
        to = os.path.join(folder, f"saved_model_{dtype}")
        runs.run_script("export_model.py", model=FLAGS.model, export_dir=to, dtype=dtype)
        found[f"SavedModel, {dtype}"] = "saved_model", to, _bytes_of(to)
    for form, precision in itertools.product(runtimes.FORMS, huggingface.GRAPH_NAMES):
        to = os.path.join(folder, f"{form}_{precision}")
        if precision not in runtimes.FORMS[form].precisions:
            continue
        try:
            portable.export(model, next(iter(model.tasks())), to, form, precision)
        except InputError as error:
            print(f"Leaving out {form}: {error}")
            continue
        found[f"{form}, {precision}"] = form, to, files.size(
            os.path.join(to, runtimes.graph_name(form, precision)))
    return found


def _numbers(answers):
    """Returns the probabilities of classes, or the scores of answers. A SavedModel gives
    the probabilities in the order of the labels."""
    found = []
    for answer in answers:
        values = answer.get("probabilities", [answer.get("score", 0.0)])
        found += values.values() if isinstance(values, dict) else values
    return found


def _said(answers):
    return [answer.get("label", answer.get("answer")) for answer in answers]


def main(argv):
    del argv
    import albert_tf

    benchmark_flags.make_output_folder()
    inputs, score = _read()
    with tempfile.TemporaryDirectory() as folder:
        forms = _export(albert_tf.load(FLAGS.model), folder)
        models, first = {}, {}
        for name, (form, where, _) in forms.items():
            start = time.perf_counter()
            models[name] = (_SavedModel(where) if form == "saved_model"
                            else albert_tf.load(where))
            done = time.perf_counter()
            models[name].predict(inputs[:1])
            first[name] = done - start, time.perf_counter() - done
        answers = {name: model.predict(inputs) for name, model in models.items()}
        times = {name: [] for name in forms}
        for _ in range(FLAGS.num_rounds):
            for given in inputs[:FLAGS.num_requests]:
                for name, model in models.items():
                    time.sleep(0.1)  # The threads of the previous form spin for a while.
                    start = time.perf_counter()
                    model.predict([given])
                    times[name].append(time.perf_counter() - start)

    found = {name: {
        "megabytes": size / 1e6,
        "load_seconds": first[name][0], "first_answer_seconds": first[name][1],
        "request_milliseconds": 1e3 * statistics.median(times[name]),
        "score": score(answers[name]),
        "others_said": sum(one != other for one, other in zip(
            _said(answers[name]), _said(answers["model"]))),
        "farthest": max(abs(one - other) for one, other in zip(
            _numbers(answers[name]), _numbers(answers["model"]))),
    } for name, (_, _, size) in forms.items()}
    print(f"{len(inputs)} of {FLAGS.task}; "
          f"{benchmark_flags.processor()}, {os.cpu_count()} cores\n")
    print("| form | MB | load, s | first answer, s | a request, ms | score | other "
          "answers | farthest |\n|" + " --- |" * 8)
    for name, row in found.items():
        print(f"| {name} | {row['megabytes']:.1f} | {row['load_seconds']:.2f} | "
              f"{row['first_answer_seconds']:.2f} | "
              f"{row['request_milliseconds']:.1f} | {row['score']:.2%} | "
              f"{row['others_said']} | {row['farthest']:.1e} |")
    benchmark_flags.write_output({
        **benchmark_flags.machine(), "task": FLAGS.task,
        "examples": len(inputs), "forms": found, "seconds": times})


if __name__ == "__main__":
    app.run(main)
