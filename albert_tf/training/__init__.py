"""Training: losses, optimizer, the step on every replica, and the loop that saves,
evaluates and resumes."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.training.batches import Batches as Batches
    from albert_tf.training.loop import Run as Run, Stopped as Stopped
    from albert_tf.training.options import (
        RunOptions as RunOptions, StepOptions as StepOptions)
else:
    __getattr__, __dir__ = lazily(__name__, {
        "loop": "Run Stopped",
        "options": "RunOptions StepOptions",
        "batches": "Batches",
    })
