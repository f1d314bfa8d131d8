"""The one exception for mistakes in what a user gave."""


class InputError(ValueError):
    """A wrong flag, file, line or value.

    The message is one sentence for the person at the terminal: it names the
    file, line, flag or value and says what to do. Scripts print it without a
    traceback and exit with status 1.
    """
