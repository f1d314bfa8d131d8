"""The files in a run's output_dir: the checkpoint that the run starts from, leftovers
of a killed run, and the options. The folder may be remote, such as gs://bucket/folder.
"""

import contextlib
import json
import os
import re
from typing import Any, Mapping

import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import work_folder
from albert_tf.checkpoints.checkpoint import check_finite
from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, EARLIER, STATE_FILE, checkpoint_of,
    chosen_checkpoint, damage_explained, holds_checkpoint)
from albert_tf.checkpoints.restore import restore_tf1, write_config
from albert_tf.errors import InputError
from albert_tf.training import devices
from albert_tf.training.input_pipeline import num_streams

OPTIONS_FILE = "options.json"
RESULTS_FILE = "eval_results.json"

# Temporary names under which files are written before they are renamed.
_UNFINISHED = re.compile(
    re.escape(CHECKPOINT_NAME) + r"-(\d+|best)_temp\d*(/|\.index|\.data-.*|_temp.*)?"
    r"|" + STATE_FILE + r"\.tmp.*"
    r"|.*\.(json|jsonl|png|index|data-\d+-of-\d+|tf_record)"
    r"\.incomplete(-[0-9a-f]{8})?")

# Options that do not change the weights, but only logs, checkpoints, evaluation,
# memory.
_NO_EFFECT = frozenset((
    "output_dir", "eval_batch_size", "eval_input_files", "max_eval_steps",
    "iterations_per_loop", "save_checkpoints_steps", "keep_checkpoint_max",
    "allow_partial_init", "from_scratch", "early_stopping", "recompute", "metric",
    "gradient_accumulation_steps", "id_column", "temperature"))
_STEP = "step/.ATTRIBUTES/VARIABLE_VALUE"


# ---- checkpoints -----------------------------------------------------------


def step_of(path: str) -> int:
    """Returns the step of a checkpoint, from its content if its name has none."""
    number = path.rsplit("-", 1)[-1]
    if number.isdecimal():
        return int(number)
    with damage_explained(path):
        reader = tf.train.load_checkpoint(path)
        if not reader.has_tensor(_STEP):
            raise InputError(
                f"{path}: this checkpoint holds no step, as no training run saved it; "
                "give it as --init_checkpoint to start from its weights.")
        return int(reader.get_tensor(_STEP))


def restore(checkpoint: tf.train.Checkpoint, path: str, resume: bool = True) -> None:
    """Restores everything that `checkpoint` holds but the state of loss scaling, if the
    run did not use float16 before. With `resume`, later checkpoints continue the file's
    count of saves; the best checkpoint has no such count."""
    scaling = getattr(checkpoint, "loss_scaling", None)
    try:
        with damage_explained(path):
            if scaling and not any(name.startswith("loss_scaling/")
                                   for name, _ in tf.train.list_variables(path)):
                logging.info("%s holds no loss_scaling, which therefore starts from "
                             "its initial state.", path)
                # Removed while restoring, which would fail, and put back below.
                del checkpoint.loss_scaling
            status = checkpoint.restore(path) if resume else checkpoint.read(path)
            status.assert_existing_objects_matched()
            # Evaluation ignores the optimizer's variables; TensorFlow must not warn
            # about each of them.
            status.expect_partial()
    finally:
        if scaling:
            checkpoint.loss_scaling = scaling
    optimizer = getattr(checkpoint, "optimizer", None)
    for variable in (*checkpoint.model.weights, *(
            optimizer.variables if optimizer else ())):
        check_finite(path, variable.name.removesuffix(":0"), EARLIER,
                     variable.numpy())


def different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the names whose values in a file differ from those of now."""
    now = json.loads(json.dumps(now))
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def held(output_dir: str, strategy: tf.distribute.Strategy
         ) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the chief keeps other runs out of the folder."""
    return work_folder.hold(output_dir, "--output_dir") if devices.is_chief(
        strategy) else contextlib.nullcontext()


def remove_unfinished(output_dir: str) -> None:
    """Removes what a killed run was writing."""
    for name in files.names_in(output_dir):
        if _UNFINISHED.fullmatch(name):
            path = os.path.join(output_dir, name)
            logging.info("Removing %s, an unfinished file of a killed run.", path)
            files.remove(path)


# ---- where a run starts ----------------------------------------------------


def load(run, best: bool = False, to_train: bool = False) -> None:
    """Loads the weights of a loop.Run: the first of these that exists. Logs which one.

      1. a checkpoint in output_dir: the one that resume_from names, else the `best` or
         the latest, `to_train` with the optimizer's state;
      2. the weights of init_checkpoint, at step 0, with a head if nothing is trained;
      3. to train, random weights, at step 0, if the options allow them.
    """
    options = run.options
    path = (chosen_checkpoint(options.output_dir, options.resume_from)
            if options.resume_from else
            checkpoint_of(options.output_dir, best, to_train))
    if to_train:
        devices.check_same_start(
            run.strategy, step_of(path) if path else 0, run.evaluation_set)
    # A failed start must not tie the folder to its config, but a config with different
    # shapes explains later errors.
    if path and run.chief:
        write_config(options.output_dir, run.config)
    if path and to_train:
        restore(run.checkpoint, path, resume=os.path.basename(path) != BEST_CHECKPOINT)
        logging.info("Resuming at step %d from %s.%s", run.current_step, path,
                     " Leave --resume_from out once this run has saved a checkpoint."
                     if options.resume_from else "")
    elif path:
        restore(tf.train.Checkpoint(model=run.task.model, step=run.step), path, False)
        logging.info("Using %s, step %d.", path, run.current_step)
    elif options.init_checkpoint:
        restore_tf1(
            run.task.model, options.init_checkpoint,
            allow_partial=options.allow_partial_init,
            init_from_group0=options.init_from_group0, labels=run.task.labels,
            may_be_new=run.task.may_be_new if to_train else lambda name: False)
        logging.info("Starting at step 0 from the weights of %s.",
                     options.init_checkpoint)
    elif to_train and options.from_scratch:
        logging.info(
            "Starting at step 0 from random weights: %s holds no checkpoint and "
            "no init_checkpoint is given.", options.output_dir)
    else:
        raise InputError(
            f"there is no model to use: {options.output_dir} holds no checkpoint; give "
            "--init_checkpoint or an --output_dir with one, or --from_scratch to train "
            "from random weights.")
    if run.chief:
        write_config(options.output_dir, run.config)


# ---- options ---------------------------------------------------------------


def keep_options(output_dir: str, options: Mapping[str, Any], resumed: bool) -> None:
    """Writes the options of a new run; warns of changed options if it is resumed."""
    path = os.path.join(output_dir, OPTIONS_FILE)
    if not (resumed and files.exists(path)):
        text_files.write_json(path, options)
        return
    for name, (old, new) in changed_options(output_dir, options).items():
        logging.warning(
            "%s was %.100s when this run started and is %.100s now: the result will "
            "match neither; choose a different --output_dir to train from the start.",
            name, json.dumps(old), json.dumps(new))


def changed_options(
        output_dir: str, options: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the options that change the result and differ from the run's start: name
    → (value at the start, value now), with None for a missing value."""
    old, new = _kept_options(output_dir), json.loads(json.dumps(options))
    no_effect = _NO_EFFECT
    if new.get("replica_gradients") != "sum":
        no_effect |= {"num_replicas"}
    return {name: (old.get(name), new.get(name))
            for name in (different(old, new) if old else ()) if name not in no_effect}


def _kept_options(output_dir: str) -> dict[str, Any]:
    path = os.path.join(output_dir, OPTIONS_FILE)
    return text_files.read_object(
        path, "remove the file to continue without comparing the options"
        ) if files.exists(path) else {}


def streams(output_dir: str, num_records: int, batch_size: int) -> int:
    """Returns the number of streams into which the training records are split: the same
    as in the folder's run so far, if it has started."""
    count = _kept_options(output_dir).get("streams") if (
        holds_checkpoint(output_dir)) else None
    fits = type(count) is int and 0 < count <= num_records and batch_size % count == 0
    return count if fits else num_streams(num_records, batch_size)
