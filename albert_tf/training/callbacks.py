"""Functions that a run calls with its metrics and checkpoints.

    def log(event):
        print(event.step, event.split, event.metrics, event.checkpoint)

    run = Run(task, config, options, batches, optimizer, callbacks=[log])

TensorBoard's files are written by such a function, too.
"""

import importlib.util
import os
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional

from absl import logging

from albert_tf.errors import InputError, reason_of


class Event(NamedTuple):
    """The event that a callback gets.

    Attributes:
      step: the number of steps done.
      split: "train" after --iterations_per_loop steps; "eval" after a checkpoint was
        saved and evaluated.
      metrics: name → value: the means of these steps, or the results of the evaluation
        ({} if the run has no evaluation set). The names are those of metrics.jsonl,
        and "steps_per_second" for evaluations, too.
      checkpoint: the path of this step's checkpoint for "eval", else None. It stays
        until --keep_checkpoint_max newer ones are saved.
      output_dir: the folder of the run. Runs of several seeds have different ones.
    """

    step: int
    split: str
    metrics: dict[str, float]
    checkpoint: Optional[str]
    output_dir: str


Callback = Callable[[Event], Any]


class Callbacks:
    """Calls functions with events, after TensorBoard's.

    If one raises an exception, also by sys.exit(), the run is to stop as after SIGTERM:
    it saves a checkpoint of the last whole step, and no metrics are lost. The others
    still get the event.
    """

    def __init__(self, functions: Iterable[Callback], output_dir: str):
        self._functions, self._output_dir = [*functions], output_dir
        self._failure: Optional[tuple[str, int, BaseException]] = None
        if importlib.util.find_spec("tensorboard"):
            self._functions.insert(0, TensorBoard(f"{output_dir}/tensorboard"))
        else:
            logging.warning("No files for TensorBoard are written, because the package "
                            "tensorboard is not installed; metrics.jsonl has the values.")

    def call(self, step: int, split: str, metrics: Mapping[str, float],
             checkpoint: Optional[str] = None) -> bool:
        """Calls all functions; returns False if one failed."""
        for function in self._functions:
            try:
                function(Event(step, split, {
                    name: float(value) for name, value in metrics.items()},
                               checkpoint, self._output_dir))
            except BaseException as error:
                inner = getattr(function, "func", function)  # of functools.partial
                name = getattr(inner, "__name__", type(inner).__name__)
                self._failure = self._failure or (name, step, error)
        return self._failure is None

    def raise_failure(self, saved_step: int) -> None:
        """Raises InputError if a function failed, or what ended the program (SystemExit,
        KeyboardInterrupt); call it when the run is saved."""
        if not self._failure:
            return
        name, step, error = self._failure
        if not isinstance(error, Exception):
            logging.info("Stopped by the callback %s at step %d.", name, step)
            raise error
        raise InputError(
            f"the callback {name} failed at step {step} ({type(error).__name__}: "
            f"{reason_of(error).rstrip('.')}). {self._output_dir} has a checkpoint of "
            f"step {saved_step}; correct the function or leave it out, and start the "
            "run again to continue from there.") from error


class TensorBoard:
    """Writes metrics for TensorBoard, those of each split into a folder of its own.

        TensorBoard("runs/base/tensorboard")  # Writes .../train and .../eval.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        import tensorflow as tf

        if not event.metrics:
            return
        if event.split not in self._writers:
            self._writers[event.split] = tf.summary.create_file_writer(
                os.path.join(self._folder, event.split))
        writer = self._writers[event.split]
        with writer.as_default():
            for name, value in event.metrics.items():
                tf.summary.scalar(name, value, step=event.step)
        writer.flush()
