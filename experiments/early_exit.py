"""Measures the speed and the scores of exported models with early exit, at several
thresholds, against the same models without it.

    python -m experiments.early_exit --models=runs/sst-2,runs/mrpc,runs/chnsenticorp \
        --titles=SST-2,MRPC,ChnSentiCorp --output=early_exit.json \
        --picture=docs/early_exit.png

Each folder comes from run_classifier.py --early_exit --do_eval: early_exit.json holds the
curves, eval_predictions the evaluation set. Each model is exported with token ids as
input. The export then answers one sequence at a time, and all sequences in batches of 32
ordered by length. The thresholds take turns, so that all run under the same conditions;
times are medians of --num_rounds. The machine should be idle. The thresholds are the
cheapest without loss of score, the cheapest that loses at most half a point, and one that
no answer reaches.

--shape=base also times a model of that size with random weights on the sequences of the
first folder. Its threshold is set so that the sequences take half of the passes on
average. This shows the saving for a model whose passes dominate the time; it has no
meaningful scores.
"""

import os
import statistics
import tempfile
import time

import numpy as np
from absl import app, flags

from albert_tf import text_files
from albert_tf.finetuning import early_exit
from albert_tf.finetuning.classification import glue
from benchmarks import benchmark_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("models", None, "Model folders with early exit.", required=True)
flags.DEFINE_list("titles", None, "Names of the tasks; default: the folder names.")
flags.DEFINE_integer("num_requests", 64, "Number of sequences to time one by one.",
                     lower_bound=1)
flags.DEFINE_integer("num_rounds", 5, "Number of rounds; times are their medians.",
                     lower_bound=1)
flags.DEFINE_string("picture", "", "PNG file to write: score against mean passes.")
flags.DEFINE_string("shape", "",
                    "Model size, such as base, to time with random weights.")
benchmark_flags.define_output_flag()


def _evaluation_set(folder):
    """Returns texts, second texts (or None) and labels of the evaluation set."""
    path = os.path.join(folder, "eval_predictions", "predictions.tsv")
    header, *rows = (line.split("\t") for _, line in text_files.read_lines(path))
    columns = list(zip(*rows))
    # The columns have the user's names: id, text, perhaps a second text, prediction,
    # ..., label.
    return columns[1], columns[2] if header[2] != "prediction" else None, columns[-1]


def _thresholds(curve, metric):
    """Returns name → threshold; None stands for answers without early exit."""
    def cheapest(loss):
        return min((point for point in curve
                    if point[metric] >= curve[-1][metric] - loss - 1e-9),
                   key=lambda point: point["passes"])["threshold"]

    return {"ordinary": None, "no exit": 1.0, "no loss": cheapest(0.0),
            "half a point": cheapest(early_exit.LOSS)}


def _scores(loaded, metric, labels, logits):
    names = list(loaded.labels)
    found, known = np.argmax(logits, axis=-1), [names.index(each) for each in labels]
    task = glue.TASKS.get(str(loaded.settings["task"]))
    if task:
        return task.metrics_of(found, np.array(known))[metric]
    from albert_tf.finetuning import metrics

    return metrics.compute(metric, found, known)


def _measure(folder):
    import albert_tf

    kept = text_files.read_object(os.path.join(folder, "early_exit.json"))
    loaded, (texts, pairs, labels) = albert_tf.load(folder), _evaluation_set(folder)
    length = loaded.settings["flags"]["max_seq_length"]
    rows = [loaded.tokenizer.features(text, pair, length) for text, pair in zip(
        texts, pairs or [None] * len(texts))]
    ways = _thresholds(kept["curves"]["confidence"], kept["metric"])
    some = FLAGS.num_requests
    answers, seconds = _timed(loaded.model, loaded.labels, rows, lambda asked: ways)
    passes = loaded.config.num_hidden_layers
    return {"metric": kept["metric"], "curves": kept["curves"], "sequences": len(rows),
            "pieces": float(np.mean([len(row["input_ids"]) for row in rows])),
            "hidden_size": loaded.config.hidden_size, "passes": passes, "ways": {
        way: {"threshold": threshold,
              "passes": float(np.mean(answers[way, 32].get("passes", passes))),
              "score": _scores(
                  loaded, kept["metric"], labels, answers[way, 32]["logits"]),
              # How much batched answers differ from answers one by one.
              "other_passes": int(np.sum(
                  np.array(answers[way, 32].get("passes", [0] * len(rows)))[:some]
                  != answers[way, 1].get("passes", [0] * len(rows[:some])))),
              "farthest_logit": float(np.max(np.abs(
                  np.array(answers[way, 32]["logits"])[:some]
                  - answers[way, 1]["logits"]))), **seconds[way]}
        for way, threshold in ways.items()}}, rows


def _timed(model, labels, rows, ways_of):
    """Returns (name, batch size) → answers, and name → seconds."""
    from albert_tf.serving import export, saved_model

    with tempfile.TemporaryDirectory() as at:
        export.export(model, model.heads["classification"], os.path.join(at, "model"), labels)
        asked = saved_model.Server(os.path.join(at, "model"))
    ways, some = ways_of(asked), rows[:FLAGS.num_requests]
    answers = {(way, size): asked.predict(of, size, exit_threshold=threshold)
               for of, size in ((rows, 32), (some, 1))
               for way, threshold in ways.items()}
    seconds = {way: {"request_seconds": [], "batches_seconds": []} for way in ways}
    for _ in range(FLAGS.num_rounds):
        for row in some:
            for way, threshold in ways.items():
                start = time.perf_counter()
                asked.predict([row], exit_threshold=threshold)
                seconds[way]["request_seconds"].append(time.perf_counter() - start)
        for way, threshold in ways.items():
            start = time.perf_counter()
            asked.predict(rows, exit_threshold=threshold)
            seconds[way]["batches_seconds"].append(time.perf_counter() - start)
    return answers, {way: {kind: statistics.median(values)
                           for kind, values in found.items()}
                     for way, found in seconds.items()}


def _measure_shape(rows):
    """Times a model of --shape with random weights that takes half of its passes."""
    from albert_tf.config import AlbertConfig
    from albert_tf.finetuning.classification.head import Classification
    from albert_tf.modeling.models import AlbertForTask

    config = AlbertConfig.named(FLAGS.shape)
    half = config.num_hidden_layers / 2

    def ways_of(asked):
        low, high = 0.5, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            passes = asked.predict(rows[:64], exit_threshold=middle)["passes"]
            low, high = (middle, high) if np.mean(passes) < half else (low, middle)
        return {"ordinary": None, "no exit": 1.0, "half of the passes": high}

    answers, seconds = _timed(
        AlbertForTask(config, Classification(2, exit_weight=1.0)), ["0", "1"], rows,
        ways_of)
    for way, found in seconds.items():
        found["passes"] = float(np.mean(
            answers[way, 32].get("passes", config.num_hidden_layers)))
        print(f"| {FLAGS.shape} | {way} | {found['passes']:.2f} | "
              f"{1e3 * found['request_seconds']:.1f} | {found['batches_seconds']:.2f} |")
    return seconds


def main(argv):
    del argv
    benchmark_flags.make_output_folder()
    titles = FLAGS.titles or [os.path.basename(os.path.normpath(folder))
                              for folder in FLAGS.models]
    found, rows = {}, []
    for title, folder in zip(titles, FLAGS.models):
        found[title], own = _measure(folder)
        rows = rows or own
    shape = {"shape": {FLAGS.shape: _measure_shape(rows)}} if FLAGS.shape else {}
    print("| task | threshold | mean passes | score | a request, ms | faster | "
          "all in batches of 32, s | faster | passes, farthest logit from one by one |"
          "\n|" + " --- |" * 9)
    for title, measured in found.items():
        whole = measured["ways"]["ordinary"]
        for way, row in measured["ways"].items():
            threshold = "" if row["threshold"] is None else f" ({row['threshold']:g})"
            print(f"| {title} | {way}{threshold} | {row['passes']:.2f} of "
                  f"{measured['passes']} | {row['score']:.2%} | "
                  + " | ".join(
                      f"{scale * row[kind]:.{digits}f} | {whole[kind] / row[kind]:.2f}×"
                      for kind, scale, digits in (("request_seconds", 1e3, 1),
                                                  ("batches_seconds", 1, 3)))
                  + f" | {row['other_passes']} differ, {row['farthest_logit']:.0e} |")
    if FLAGS.picture:
        early_exit.draw({title: (measured["curves"], measured["metric"])
                         for title, measured in found.items()}, FLAGS.picture)
    benchmark_flags.write_output({**benchmark_flags.machine(), "tasks": found, **shape})


if __name__ == "__main__":
    app.run(main)
