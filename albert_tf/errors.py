"""The exceptions that end a script with a sentence and no traceback.

One rule holds in the whole package, and stands here alone: whatever a user can mend
raises `InputError` with one sentence that names the file, line, flag or value and says
what to do. Functions have no "Raises" section for it. Anything else that is raised, an
AssertionError or a KeyError, is a mistake of this package.
"""


class InputError(ValueError):
    """A wrong flag, file, line or value.

        raise InputError(f"{path}, line {number}: no label; give one of 0 and 1.")

    Scripts print the sentence without a traceback and exit with status 1 (`cli.script`).
    """


class Interruption(InputError):
    """Disk space or memory ran out: finished work is kept, and the run can resume."""


class DivergenceError(InputError):
    """A model that does not learn: the loss, the gradient or the outputs are no longer
    finite, or the predictions are those of chance."""


class Stopped(KeyboardInterrupt):
    """A signal asked the script to end; what it has finished is kept."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number
