"""Keeps the log lines of TensorFlow's C++ code out of the output.

TF_CPP_MIN_LOG_LEVEL does not reach all of them: some libraries log while they are
loaded, and XLA logs with Abseil, which has a level of its own. A user who wants to see
them sets TF_CPP_MIN_LOG_LEVEL to 0, 1 or 2; then nothing is changed here.
"""

import contextlib
import ctypes
import faulthandler
import glob
import importlib.abc
import importlib.util
import mmap
import os
import re
import sys
from typing import Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_FATAL = 3
# Abseil's function as compilers name it, with the version that is a part of the name.
_SET_LEVEL = re.compile(
    rb"_ZN4absl\d+lts_\d+14SetMinLogLevelENS0_18LogSeverityAtLeastE")

_stderr = 2


def stderr() -> int:
    """Returns the descriptor of the standard error, also while lines are dropped."""
    return _stderr


def use() -> None:
    """Silences TensorFlow when it is imported, unless the environment asks for lines.

    The sentences of errors are not lost: they are raised as exceptions.
    """
    if os.environ.setdefault(LEVEL, str(_FATAL)) == str(_FATAL) and (
            "tensorflow" not in sys.modules):
        sys.meta_path.insert(0, _Quietly())


class _Quietly(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as usual, and lets its loader run without the standard error."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:  # The caller may only ask whether TensorFlow is installed.
            sys.meta_path.insert(0, self)
        loader = spec and spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def run_quietly(module):
            del loader.exec_module
            sys.meta_path.remove(self)
            with _dropped():
                run(module)
            with contextlib.suppress(OSError, AttributeError):  # not on this system
                _set_level(os.path.dirname(module.__file__))

        loader.exec_module = run_quietly
        return spec


@contextlib.contextmanager
def _dropped() -> Iterator[None]:
    """Drops what is written to descriptor 2."""
    global _stderr
    if sys.stderr:
        sys.stderr.flush()
    try:
        _stderr = os.dup(2)
    except OSError:  # The process has no standard error.
        yield
        return
    # TensorFlow aborts on processors that it is not built for. The reason is dropped,
    # but not the place.
    shows_aborts = not faulthandler.is_enabled()
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        if shows_aborts:
            faulthandler.enable(_stderr)
        yield
    finally:
        if shows_aborts:
            faulthandler.disable()
        if sys.stderr:
            sys.stderr.flush()
        os.dup2(_stderr, 2)
        os.close(_stderr)
        _stderr = 2


def _set_level(folder: str) -> None:
    """Sets Abseil's level in TensorFlow's library to fatal errors."""
    for path in glob.glob(os.path.join(folder, "libtensorflow_framework.*")):
        with open(path, "rb") as file, mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            name = _SET_LEVEL.search(content)
            if name:
                ctypes.CDLL(path)[name[0].decode()](_FATAL)
