"""Functions that a run calls with its metrics and checkpoints.

    def log(event):
        print(event.step, event.split, event.metrics, event.checkpoint)

    run = Run(task, config, options, batches, optimizer, callbacks=[log])

TensorBoard's files are written by such a function, too. hooks.Callbacks calls them.
"""

import contextlib
import inspect
import os
from typing import Any, Callable, Iterable, NamedTuple, Optional

from albert_tf.errors import InputError


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


def checked_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Returns callbacks as a tuple. Raises InputError unless they are a list of
    functions of one argument: the first event may come after an hour."""
    try:
        functions = tuple(callbacks)
        for function in functions:
            with contextlib.suppress(ValueError):  # Some functions of C: no signature.
                inspect.signature(function).bind(None)
    except TypeError as error:
        raise InputError("callbacks must be a list of functions of one argument "
                         f"({error}).") from error
    return functions


def name_of(callback: Any) -> str:
    """Returns the name of a function, or of the class of another object."""
    function = getattr(callback, "func", callback)  # That of a functools.partial.
    return getattr(function, "__name__", type(function).__name__)


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
