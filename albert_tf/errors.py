"""The exceptions for what a user can mend."""


class InputError(ValueError):
    """A wrong flag, file, line or value.

    The message is one sentence for the person at the terminal: it names the
    file, line, flag or value and says what to do. Scripts print it without a
    traceback and exit with status 1.
    """


class Interruption(InputError):
    """Room or memory gave out; what is finished is good, and a run may go on with it.

    As an InputError it ends a script with its sentence.
    """
