"""Training: losses, optimizer, the step on every replica, and the loop that saves,
evaluates and resumes."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "loop": "Run Stopped",
    "options": "RunOptions StepOptions",
    "batches": "Batches",
})
