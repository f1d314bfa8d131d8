"""Where a run starts, in this order, each with a line on the log:

  1. the latest checkpoint of its own output_dir, at its exact step, or the one that
     resume_from names;
  2. the weights of init_checkpoint, at step 0;
  3. random weights, at step 0, where the options allow it.

Evaluation and prediction alone take the best or the latest checkpoint of
output_dir, else the weights of init_checkpoint. `run` is a loop.Run.
"""

import os
from typing import Callable, Optional

import tensorflow as tf
from absl import logging

from albert_tf.checkpoints.files import (
    BEST_CHECKPOINT, checkpoint_of, chosen_checkpoint)
from albert_tf.checkpoints.restore import restore_tf1, write_config
from albert_tf.errors import InputError
from albert_tf.training import devices, run_folder
from albert_tf.training.options import RunOptions


def load_to_train(run) -> None:
    """Loads the weights to train from."""
    options = run.options
    latest = _checkpoint(options, best=False)
    devices.check_same_start(
        run.strategy, run_folder.step_of(latest) if latest else 0)
    if latest:
        # First of all: a config of another shape explains what follows.
        _keep_config(run)
        # A run that was not in float16 until now has no such state.
        run_folder.restore(run.checkpoint, latest, may_lack=("loss_scaling",),
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
    """Loads the weights to evaluate or predict with: output_dir's best checkpoint
    before its latest if `best`. The run's optimizer, if any, stays as it is."""
    output_dir = run.options.output_dir
    path = _checkpoint(run.options, best)
    if path:
        _keep_config(run)
        weights = tf.train.Checkpoint(model=run.task.model, step=run.step)
        run_folder.restore(weights, path, resume=False)
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
