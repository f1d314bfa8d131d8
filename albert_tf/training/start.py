"""Where a run starts, in this order, said aloud:

  1. the latest checkpoint of its own output_dir, at its exact step;
  2. the weights of init_checkpoint, at step 0;
  3. random weights, at step 0, where the options allow it.

Evaluation and prediction alone take the best or the latest checkpoint of
output_dir, else the weights of init_checkpoint.
"""

from typing import Callable

import tensorflow as tf
from absl import logging

from albert_tf.checkpoints.files import checkpoint_of
from albert_tf.checkpoints.tf1 import restore_tf1, write_config
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.training import distribution, run_folder
from albert_tf.training.options import RunOptions
from albert_tf.training.objectives import Task


class Start:
    """Loads the weights that a run starts with.

    Args:
      task: its model and the names that may be new to a checkpoint.
      config: the model's shape, kept beside the checkpoints.
      options: output_dir, init_checkpoint and what may differ.
      checkpoint: all that a run of training goes on with.
      step: steps done.
      chief: whether this process writes what there is one of.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 checkpoint: tf.train.Checkpoint, step: tf.Variable, chief: bool):
        self._task = task
        self._config = config
        self._options = options
        self._checkpoint = checkpoint
        self._step = step
        self._chief = chief

    def to_train(self) -> None:
        """Loads the weights to train from."""
        options = self._options
        latest = checkpoint_of(options.output_dir, best=False)
        distribution.check_same_start(
            tf.distribute.get_strategy(), run_folder.step_of(latest) if latest else 0)
        if latest:
            # First of all: a config of another shape explains what follows.
            self._keep_config()
            # A run that was not in float16 until now has no such state.
            run_folder.restore(self._checkpoint, latest, may_lack="loss_scaling")
            logging.info(
                "Going on at step %d from %s.", int(self._step.numpy()), latest)
        elif options.init_checkpoint:
            self._initialize(self._task.may_be_new)
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
        self._keep_config()

    def _initialize(self, may_be_new: Callable[[str], bool]) -> None:
        options = self._options
        restore_tf1(
            self._task.model, options.init_checkpoint,
            allow_partial=options.allow_partial_init,
            init_from_group0=options.init_from_group0, may_be_new=may_be_new)
        logging.info("Starting at step 0 from the weights of %s.",
                     options.init_checkpoint)

    def to_use(self, best: bool) -> None:
        """Loads the weights to evaluate or predict with.

        Args:
          best: whether output_dir's best checkpoint goes before its latest.

        Raises:
          InputError: if there is none, or it does not fit.
        """
        output_dir = self._options.output_dir
        path = checkpoint_of(output_dir, best)
        if path:
            self._keep_config()
            run_folder.restore(
                tf.train.Checkpoint(model=self._task.model, step=self._step), path,
                go_on=False)
            logging.info("Using %s, of step %d.", path, int(self._step.numpy()))
        elif self._options.init_checkpoint:
            # All of it, the head too: nothing is trained here.
            self._initialize(lambda name: False)
            self._keep_config()
        else:
            raise InputError(
                f"there is no model to use: {output_dir} holds no checkpoint and no "
                "--init_checkpoint is given.")

    def _keep_config(self) -> None:
        if self._chief:
            write_config(self._options.output_dir, self._config)
