"""What lies in a run's output_dir: checkpoints, of which one is where the run starts,
leftovers of a kill, the options.

All of it goes through tf.io.gfile, so that the folder may be gs://bucket/folder.
"""

import contextlib
import json
import math
import os
import re
from typing import Any, Callable, Mapping, Optional, Sequence

import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import locks
from albert_tf.checkpoints.checkpoint import check_finite
from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, STATE_FILE, checkpoint_of, chosen_checkpoint,
    damage_explained, earlier_hint, holds_checkpoint)
from albert_tf.checkpoints.restore import restore_tf1, write_config
from albert_tf.errors import InputError
from albert_tf.training import devices
from albert_tf.training.input_pipeline import num_streams
from albert_tf.training.log import METRICS_FILE
from albert_tf.training.options import RunOptions

BEST_FILE = "best_metric.json"
OPTIONS_FILE = "options.json"
RESULTS_FILE = "eval_results.json"

# Names under which files are written before they get their own.
_UNFINISHED = re.compile(
    re.escape(CHECKPOINT_NAME) + r"-.*_temp.*"
    r"|" + STATE_FILE + r"\.tmp.*"
    r"|" + re.escape(BEST_FILE) + r"\.tmp.*"
    r"|.*\.(json|jsonl|png)\.incomplete-\d+")

# Options that leave the weights of a step as they are: of logs, checkpoints and
# evaluation.
_NO_EFFECT = frozenset((
    "output_dir", "eval_batch_size", "eval_input_files", "max_eval_steps",
    "iterations_per_loop", "save_checkpoints_steps", "keep_checkpoint_max",
    "allow_partial_init", "from_scratch", "early_stopping", "recompute",
    "gradient_accumulation_steps"))
_STEP = "step/.ATTRIBUTES/VARIABLE_VALUE"
_SHOWN_LENGTH = 100  # characters of a value in a message


# ---- checkpoints -----------------------------------------------------------


def step_of(path: str) -> int:
    """The step in a checkpoint's name; of the best, in its content."""
    number = path.rsplit("-", 1)[-1]
    if number.isdecimal():
        return int(number)
    with damage_explained(path, advice=lambda: earlier_hint(path) + "copy it again"):
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(_STEP):
            raise InputError(
                f"{path}: holds no step, so no run saved it; give it as "
                "--init_checkpoint to start from its weights.")
        return int(reader.get_tensor(_STEP))


def restore(checkpoint: tf.train.Checkpoint, path: str, resume: bool = True,
            may_lack: Sequence[str] = ()) -> None:
    """Restores everything that `checkpoint` holds.

    With `resume` more checkpoints will follow and continue the file's count of them;
    the best checkpoint has no such count. `may_lack` are parts of `checkpoint` that stay
    as they are where the file has none of them.
    """
    def advice():
        rest = (f"remove {path}.*, whose place the latest takes"
                if os.path.basename(path) == BEST_CHECKPOINT
                else "move the folder away to start anew")
        return earlier_hint(path) + rest

    left_out = {}
    try:
        with damage_explained(path, advice=advice):
            for name in may_lack:
                if hasattr(checkpoint, name) and not _holds(path, name):
                    logging.info("%s holds no %s, which starts anew.", path, name)
                    # Comes back below, where nothing is waiting for it.
                    left_out[name] = getattr(checkpoint, name)
                    delattr(checkpoint, name)
            status = checkpoint.restore(path) if resume else checkpoint.read(path)
            status.assert_existing_objects_matched()
            # Evaluation alone has no use for the optimizer's part, nor for a line on
            # each variable of it.
            status.expect_partial()
    finally:
        for name, part in left_out.items():
            setattr(checkpoint, name, part)
    optimizer = getattr(checkpoint, "optimizer", None)
    check_finite(path, (
        (variable.name.removesuffix(":0"), variable.numpy()) for variable in (
            *checkpoint.model.weights, *(optimizer.variables if optimizer else ()))),
                 advice())


def _holds(path: str, part: str) -> bool:
    """Whether a checkpoint holds variables of a part of tf.train.Checkpoint."""
    return any(name.startswith(f"{part}/") for name, _ in tf.train.list_variables(path))


def check_best(output_dir: str) -> None:
    """Refuses a damaged file of the best metric so far, which orbit reads."""
    path = os.path.join(output_dir, BEST_FILE)
    advice = f"write the best value in {METRICS_FILE} beside it into it"
    if files.exists(path):
        value = text_files.read_json(path, advice)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise InputError(f"{path}: not a number; {advice}.")


def held(output_dir: str, strategy: tf.distribute.Strategy
         ) -> contextlib.AbstractContextManager[None]:
    """Keeps other runs out of the folder while this one trains, a with-block; of several
    workers the chief does."""
    if not devices.is_chief(strategy):
        return contextlib.nullcontext()
    return locks.hold(output_dir, "--output_dir")


def remove_unfinished(output_dir: str) -> None:
    """Removes what a run that was killed while writing left behind."""
    for name in tf.io.gfile.listdir(output_dir):
        name = name.rstrip("/")
        if _UNFINISHED.fullmatch(name):
            path = os.path.join(output_dir, name)
            logging.info("Removing %s, left by a run that was killed.", path)
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)


# ---- where a run starts ----------------------------------------------------


def load_to_train(run) -> None:
    """Loads the weights to train from, in this order, each with a line on the log:

      1. the latest checkpoint of its own output_dir, at its exact step, or the one that
         resume_from names;
      2. the weights of init_checkpoint, at step 0;
      3. random weights, at step 0, where the options allow it.

    `run` is a loop.Run.
    """
    options = run.options
    latest = _checkpoint(options, best=False)
    devices.check_same_start(
        run.strategy, step_of(latest) if latest else 0)
    if latest:
        # First of all: a config of another shape explains what follows.
        _keep_config(run)
        # A run that was not in float16 until now has no such state.
        restore(run.checkpoint, latest, may_lack=("loss_scaling",),
                           resume=os.path.basename(latest) != BEST_CHECKPOINT)
        logging.info("Resuming at step %d from %s.", run.current_step, latest)
        if options.resume_from:
            logging.info("Once it has saved, leave --resume_from out: the same command "
                         "with it would resume there again.")
    elif options.init_checkpoint:
        _initialize(run, run.task.may_be_new)
    elif options.from_scratch:
        logging.info(
            "Starting at step 0 from random weights: %s holds no checkpoint and "
            "no init_checkpoint is given.", options.output_dir)
    else:
        raise InputError(
            f"there is no model to start from: {options.output_dir} holds no "
            "checkpoint and no --init_checkpoint is given; give one, or "
            "--from_scratch to train from random weights.")
    # Not before: a start that failed must not tie the folder to its config.
    _keep_config(run)


def load_to_use(run, best: bool) -> None:
    """Loads the weights to evaluate or predict with: of output_dir's best checkpoint,
    if `best`, or its latest, else of init_checkpoint. The run's optimizer, if any, stays
    as it is."""
    output_dir = run.options.output_dir
    path = _checkpoint(run.options, best)
    if path:
        _keep_config(run)
        weights = tf.train.Checkpoint(model=run.task.model, step=run.step)
        restore(weights, path, resume=False)
        logging.info("Using %s, of step %d.", path, run.current_step)
    elif run.options.init_checkpoint:
        # All of it, the head too: nothing is trained here.
        _initialize(run, lambda name: False)
        _keep_config(run)
    else:
        raise InputError(
            f"there is no model to use: {output_dir} holds no checkpoint and no "
            "--init_checkpoint is given.")


def _checkpoint(options: RunOptions, best: bool) -> Optional[str]:
    if options.resume_from:
        return chosen_checkpoint(options.output_dir, options.resume_from)
    return checkpoint_of(options.output_dir, best)


def _initialize(run, may_be_new: Callable[[str], bool]) -> None:
    options = run.options
    restore_tf1(
        run.task.model, options.init_checkpoint,
        allow_partial=options.allow_partial_init,
        init_from_group0=options.init_from_group0, may_be_new=may_be_new)
    logging.info("Starting at step 0 from the weights of %s.", options.init_checkpoint)


def _keep_config(run) -> None:
    if run.chief:
        write_config(run.options.output_dir, run.config)


# ---- options ---------------------------------------------------------------


def keep_options(output_dir: str, options: Mapping[str, Any], resumed: bool) -> None:
    """Writes the options of a run that starts, and warns of changes in a later one."""
    path = os.path.join(output_dir, OPTIONS_FILE)
    if resumed and files.exists(path):
        warn_of_changes(changed_options(output_dir, options))
        return
    text_files.write_json(path, options)


def changed_options(
        output_dir: str, options: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that change the result and differ from those the run started with: name →
    value at the start and value now, None where it was or is not there.

    Empty if the folder holds no options.
    """
    old = kept_options(output_dir)
    if not old:
        return {}
    new = json.loads(json.dumps(options))
    no_effect = _NO_EFFECT
    if new.get("replica_gradients") != "sum":
        no_effect |= {"num_replicas"}
    return {name: (old.get(name), new.get(name)) for name in {**old, **new}
            if name not in no_effect and old.get(name) != new.get(name)}


def kept_options(output_dir: str) -> dict[str, Any]:
    """The options that the folder's run started with; none if it holds none."""
    path = os.path.join(output_dir, OPTIONS_FILE)
    return text_files.read_object(
        path, "remove the file to continue without comparing the options"
        ) if files.exists(path) else {}


def streams(output_dir: str, num_records: int, batch_size: int,
            num_processes: int) -> Optional[int]:
    """Into how many streams the training records are cut: as in the folder's run so far.

    None for a run of an earlier version in one process, which had one, and its options
    no such entry; had it several processes, each had an order of its own that cannot
    be continued, and the change is warned of as that of any option.
    """
    made = num_streams(num_records, batch_size)
    kept = holds_checkpoint(output_dir) and kept_options(output_dir)
    if not kept:
        return made
    if "streams" not in kept and num_processes == 1:
        return None
    count = kept.get("streams")
    fits = type(count) is int and count > 0 and batch_size % count == 0
    return count if fits else made


def warn_of_changes(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Logs a line for each option that differs from the run's start."""
    for name, (old, new) in changes.items():
        logging.warning(
            "%s was %s when this run started and is %s now: the result is that of "
            "neither.", name, _short(old), _short(new))


def _short(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value)
    return text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "..."
