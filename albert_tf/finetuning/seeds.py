"""Several runs of a task, each with its own seed, and the best of them.

    <output_dir>/seed-12345/          a run: checkpoints, options.json, metrics.jsonl
    <output_dir>/seeds.json           every run; median, best and spread
    <output_dir>/model.ckpt-best      the checkpoint of the best run

Evaluation, prediction, export and resumption from output_dir therefore use the best
run. The same command again continues where it was stopped, and keeps finished runs.
"""

import dataclasses
import gc
import os
import statistics
from typing import Any

from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, claim_run_folder, copy_whole, find_checkpoint, holds_checkpoint)
from albert_tf.errors import DivergenceError, InputError, reading
from albert_tf.finetuning import model_folder

SEEDS_FILE = "seeds.json"


def check_folder(folder: str, several: bool) -> None:
    """Raises InputError if a folder has one run and not several, or the reverse."""
    there = files.exists(os.path.join(folder, SEEDS_FILE))
    if there != several and (there or holds_checkpoint(folder)):
        raise InputError(
            f"{folder} has {'the runs of several seeds' * there}"
            f"{'the model of a single run' * several}; train with --num_seeds as before, "
            "or choose a different --output_dir.")


def train_all(course: Any) -> None:
    """Trains a course.Course with every seed. A finished run with other data is refused:
    scores on different sets would be compared."""
    from albert_tf.training import run_folder

    settings, metric = course.settings, course.task.main_metric
    folder, known, chosen = settings.run.output_dir, {}, []
    path = os.path.join(folder, SEEDS_FILE)
    if files.exists(path):
        with reading(path):
            known = {run["name"]: run for run in text_files.read_object(path)["runs"]}
    for index in range(settings.num_seeds):
        seed = settings.run.step.random_seed + index
        name = f"seed-{seed}"
        part = dataclasses.replace(course, settings=dataclasses.replace(
            settings, do_predict=False, export_dir="", run=dataclasses.replace(
                settings.run, output_dir=os.path.join(folder, name),
                step=dataclasses.replace(
                    settings.run.step, random_seed=seed % 2**31))))
        if name in known:
            check_same(part)
            logging.info("%s is finished already.", name)
        else:
            logging.info("Training %s.", name)
            known[name] = {"name": name, "seed": seed % 2**31,
                           "learning_rate": settings.learning_rate, **_train(part)}
        # Runs of an earlier command with more seeds stay in the file.
        text_files.write_json(path, {"metric": metric, "runs": list(known.values())})
        chosen.append(known[name])
    scored = [run for run in chosen if metric in run["metrics"]]
    if not scored:
        raise InputError(
            f"all {len(chosen)} runs failed, the last one because "
            f"{chosen[-1]['failure']} Train with a lower --learning_rate, a longer "
            "warm-up or a larger batch.")
    values = [run["metrics"][metric] for run in scored]
    best = scored[values.index(max(values))]["name"]
    summary = {
        "metric": metric, "seeds": len(chosen),
        "without_result": len(chosen) - len(scored),
        "median": statistics.median(values), "best": max(values), "lowest": min(values),
        "standard_deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "best_run": best}
    source = os.path.join(folder, best)
    files.copy(os.path.join(source, run_folder.OPTIONS_FILE),
               os.path.join(folder, run_folder.OPTIONS_FILE))
    copy_whole(find_checkpoint(os.path.join(source, BEST_CHECKPOINT)),
               os.path.join(folder, BEST_CHECKPOINT))
    text_files.write_json(path, {**summary, "runs": list(known.values())})
    logging.info("Of all seeds (%s has each run): %s.", path, ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in summary.items()))


def _train(course: Any) -> dict[str, Any]:
    """Trains one run; returns its last step, its metrics, and what is wrong with it."""
    import tf_keras

    from albert_tf.training import run_folder

    folder = course.settings.run.output_dir
    # Clears the memory and the names of the previous run. This must happen outside the
    # strategy's scope, which it would clear, too.
    tf_keras.backend.clear_session()
    gc.collect()
    files.make_directory(folder)
    claim_run_folder(folder)
    with run_folder.held(folder, course.strategy):
        model_folder.keep(folder, course.settings.kept, course.settings.vocabulary)
        try:
            with course.strategy.scope():
                failure = course.run()
        except DivergenceError as error:
            logging.warning("%s failed: %s", folder, error)
            return {"step": None, "metrics": {}, "failure": str(error)}
    results = text_files.read_object(os.path.join(folder, run_folder.RESULTS_FILE))
    return {"step": results.pop("step"), "metrics": results, "failure": failure}


def check_same(course: Any, advice: str = "") -> None:
    """Raises InputError if the run in a course's folder was trained with different
    options, or was trained or evaluated on different data."""
    from albert_tf.training import run_folder
    from albert_tf.training.log import evaluations

    settings, now = course.settings, course.evaluation_set
    folder = settings.run.output_dir
    changes = run_folder.changed_options(folder, {
        **settings.run.kept(), **course.options(),
        "num_replicas": course.strategy.num_replicas_in_sync})
    before = [row["set"] for row in evaluations(folder) if row.get("set")][-1:]
    if before and now and run_folder.different(before[0], now):
        changes["evaluation_set"] = before[0], now
    for name, (old, new) in changes.items():
        raise InputError(
            f"{folder} is of a different {name}: it was {old!r}, and is {new!r} now. "
            f"Choose a different --output_dir, or give the same value{advice}.")
