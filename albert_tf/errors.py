"""The exceptions that end a script with a message instead of a traceback.

One rule holds in the whole package: a problem that a user can fix raises `InputError`.
Its message names the file, line, flag or value and says what to do. Functions need no
"Raises" section for it. Any other exception, such as an AssertionError or a KeyError,
is a bug in this package. What a library says of a file that it cannot read becomes an
InputError in `reading`.
"""

import contextlib
import re
from typing import Iterator

# Packages with errors of their own for a damaged file or for a store out of reach. Rust's
# panics (pyo3_runtime), as in the tokenizers library, are no subclass of Exception.
_LIBRARIES = frozenset((
    "_lzma", "adlfs", "aiohttp", "azure", "backports", "botocore", "compression", "gcsfs",
    "google", "h5py", "json", "pyarrow", "pyo3_runtime", "s3fs", "safetensors",
    "tensorflow", "zipfile", "zlib"))


class InputError(ValueError):
    """An error in a flag, file, line or value that the user can fix. Scripts print its
    message without a traceback and exit with its `exit_status` (`cli.script`).

        raise InputError(f"{path}, line {number}: no label; give one of 0 and 1.")
    """

    exit_status = 1


class Interruption(InputError):
    """An error for lack of disk space or memory, or of a file system; finished work is
    kept, and the run can be resumed."""


class WorkerEnded(Interruption):
    """An error for a run on several machines of which another one has ended. The status
    is that of a run stopped by SIGTERM, as this one can be resumed, too."""

    exit_status = 128 + 15


class DivergenceError(InputError):
    """An error for a model that does not learn: loss, gradient or outputs are NaN or
    infinite, or predictions are at chance."""


# One Ctrl-C may send several signals, from the terminal and from a parent process such
# as quickstart.py. Later ones, after this many seconds, are a second request to end.
ONE_CTRL_C = 2.0


class Stopped(KeyboardInterrupt):
    """A signal that ends the script; finished work is kept."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns the errors of reading a file into an Interruption, if the system raises them,
    or an InputError: of a file that is damaged, a reader may raise any error.

        with reading(path), open(path) as stream:
            return json.load(stream)  # "a.json: the file is damaged, cut short or of ..."
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_of_library(error):
            raise
        reason = reason_of(error).rstrip(".")
        if getattr(error, "strerror", None):
            raise Interruption(f"{path}: {reason}.") from error
        raise InputError(f"{path}: the file is damaged, cut short or of a different kind "
                         f"({reason}); copy or download it again.") from error


def is_of_library(error: BaseException) -> bool:
    """Returns whether an error is from a library that reads files or reaches stores."""
    return type(error).__module__.partition(".")[0] in _LIBRARIES


def reason_of(error: BaseException) -> str:
    """Returns the first line of an error from TensorFlow or a different library, without
    the names of TensorFlow's operations and of temporary files."""
    text = getattr(error, "strerror", None) or (
        "No such file or directory" if isinstance(error, FileNotFoundError) else
        str(getattr(error, "message", error)).strip() or type(error).__name__)
    text = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]", "", text.splitlines()[0])
    return re.sub(r"_temp\d*(_temp)?(/part[^;:\s]*|\.\w+[^;:\s]*)?|\.incomplete"
                  r"(/variables/variables_temp/[^;:\s]*)?", "", text)
