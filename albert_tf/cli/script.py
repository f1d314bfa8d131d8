"""Runs a script: a wrong input, Ctrl-C or SIGTERM ends it with one sentence.

A script imports this module before anything else, and it only the standard library:
other modules take seconds to load, in which a Ctrl-C would print a traceback, and C++
swallows a KeyboardInterrupt or turns it into a different error. Until the script's main
runs, the handler therefore ends the process itself (os._exit).
"""

import atexit
import contextlib
import errno
import gc
import importlib.util
import io
import logging
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from typing import Callable, Sequence

from albert_tf.errors import (
    ONE_CTRL_C, InputError, Stopped, WorkerEnded, is_of_library, reason_of)

# TensorFlow would also load Keras 3, which takes two seconds.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
typed_as: dict[str, str] = {}  # script → its command, if `albert` started it
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_working = False  # whether main runs, so that there may be something to clean up
_received: int | None = None  # the first signal in main


# ---- signals ---------------------------------------------------------------


def take_signals() -> None:
    """Installs handlers for SIGINT and SIGTERM, unless they have one or are ignored."""
    for number in _NAMES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handle)


def _handle(number, frame):
    global _received
    # An exception does not pass through all code that is being imported, such as C++.
    if not _working or _received is None and any(
            each.f_code.co_filename == "<frozen importlib._bootstrap>"
            for each, _ in traceback.walk_stack(frame)):
        os._exit(_say(number))
    if _received is None:
        _received = number
        raise Stopped(number)


def _watch(signals: int) -> None:
    """Ends the program at a second signal, in a thread: Python's own handlers wait until
    the main thread has left C++ code, such as a long step of TensorFlow."""
    since = None
    while number := os.read(signals, 1):
        if number[0] in _NAMES and _working:
            since = since or time.monotonic()
            if time.monotonic() - since >= ONE_CTRL_C:
                os._exit(_say(number[0], flush=False))


def started_as() -> str:
    """Returns how the script was started, for messages."""
    file = os.path.basename(sys.argv[0])
    return typed_as.get(file.removesuffix(".py"), file)


def _say(number: int, flush: bool = True) -> int:
    """Writes the sentence directly to stderr, without Python's buffers; returns the
    status."""
    if flush:
        with contextlib.suppress(Exception):
            print(end="", flush=True)
    line = f"{started_as()}: stopped by {_NAMES[number]}.\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
    return 128 + number


_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_INSTALLED = os.path.join(_PACKAGE, "scripts")
# The folder of the scripts: a wheel has them in the package, a clone beside it.
FOLDER = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_PACKAGE)

_main = getattr(sys.modules["__main__"], "__file__", None)
if _main and os.path.dirname(os.path.realpath(_main)) == FOLDER:
    take_signals()


# ---- the program -----------------------------------------------------------


def run(main: Callable[[Sequence[str]], None], takes_words: bool = False,
        first_flags: str = "") -> None:
    """Runs a script's `main` after parsing the flags, and ends the program.
    `first_flags` are the names of the flags that people need first: --help describes
    these and names the others.

    An InputError ends the program with its sentence on stderr, without a traceback, and
    exit status 1. So does a wrong flag, and a word on the command line that is not a
    flag, unless the script `takes_words`. A signal ends it with the exit status that
    shells use for it; a second signal ends it at once.
    """
    global _working, _received
    from absl import flags

    from albert_tf.cli import define

    take_signals()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()
    _set_up()
    status, worker_ended = None, False
    _working, _received = True, None
    try:
        if _HELP & {*sys.argv}:
            flags.FLAGS.mark_as_parsed()
            print(_help(first_flags.split(), "--helpfull" in sys.argv))
        else:
            words = flags.FLAGS(sys.argv)
            if words[1:] and not takes_words:
                raise InputError(
                    f"'{words[1]}' is not a flag. Write flags as --name=value, and put "
                    "values with spaces in quotes.")
            define.check_values()
            # In an ASCII locale, each byte of a UTF-8 text arrives as a surrogate.
            main([words[0], *(word.encode("utf-8", "surrogateescape").decode(
                "utf-8", "replace") for word in words[1:])])
        # A library may have swallowed the exception, so that main went on.
        if _received is not None:
            raise Stopped(_received)
        print(end="", flush=True)
    except BaseException as error:
        # A library may have replaced the exception that the signal raised.
        number = getattr(error, "signal_number", _received)
        explained = _explained(error)
        worker_ended = isinstance(error, WorkerEnded)
        if number is not None:
            status = _say(number)
        elif isinstance(error, SystemExit):
            status = error.code
        elif isinstance(explained, InputError):
            print(f"{started_as()}: {explained}", file=sys.stderr)
            status = explained.exit_status
        elif explained:
            raise
    finally:
        _working = False
    # Python would destroy TensorFlow's objects one by one and wait for the threads of its
    # pipelines, for seconds, or up to a minute on a busy machine. Workers of a cluster
    # end in order, unless one is lost, so that none believes another to be.
    if main.__module__ == "__main__" and "tensorflow" in sys.modules and (
            "TF_CONFIG" not in os.environ or worker_ended):
        if isinstance(status, str):
            print(status, file=sys.stderr)
        atexit._run_exitfuncs()
        print(end="", flush=True)
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(bool(status)))
    sys.exit(status)


def _set_up() -> None:
    """Sets how output, log and pictures are written, whatever the surroundings."""
    from absl import logging as absl_logging

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Loading TensorFlow makes a million objects, at which it would look again and again.
    gc.set_threshold(10_000)
    # Jupyter names a backend here that only notebooks have.
    os.environ["MPLBACKEND"] = "agg"
    absl_logging.use_absl_handler()
    absl_logging.set_verbosity(absl_logging.INFO)
    handler = absl_logging.get_absl_handler()
    # From libraries, only warnings.
    handler.addFilter(lambda record: (
        record.levelno > logging.INFO
        or f"{os.sep}site-packages{os.sep}" not in record.pathname
        or os.path.realpath(record.pathname).startswith(_PACKAGE + os.sep)))
    # Without absl's number of the thread and line of the code.
    handler.setFormatter(logging.Formatter(
        "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))


def _explained(error: BaseException) -> BaseException | None:
    """Returns the InputError for what a library or the surroundings say, and None if the
    reader of the standard output has ended, such as `| head`, which is no error."""
    from absl import flags

    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    ended = isinstance(error, BrokenPipeError)
    if ended and hasattr(select, "poll"):  # Not on Windows.
        poll = select.poll()
        poll.register(1, 0)
        ended = any(event & select.POLLERR for _, event in poll.poll(0))
    if full or ended:
        # What is left in the buffer would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return InputError(f"the output cannot be written: {error.strerror}; make room, "
                          "and start again.") if full else None
    if isinstance(error, flags.Error):
        missing = [f"--{name} is missing. {flags.FLAGS[name].help}" for name in re.findall(
            r"flag --(\w+)=None: Flag --\1 must have a value", str(error))]
        what = " ".join(missing) or str(error).rstrip(" ?.") + "."
        return InputError(f"{what} --help lists the flags.")
    if isinstance(error, ImportError):
        return _not_installed(
            [error.name or ""], "is not installed" if isinstance(
                error, ModuleNotFoundError) else f"cannot be imported ({error})") or error
    # TensorFlow's errors are explained where they arise; others are bugs.
    if is_of_library(error) and "tensorflow" not in type(error).__module__:
        return InputError(reason_of(error))
    return error


# ---- packages ----------------------------------------------------------------

# What pip installs, {} being this package → the modules that are imported when used.
_INSTALLED_BY = {
    "'{}[train]'": "tensorflow tf_keras tensorflow_text tensorboard sklearn scipy",
    "'{}[onnx]'": "onnxruntime", "'{}[openvino]'": "openvino",
    "'{}[serve]'": "aiohttp prometheus_client", "'{}[parquet]'": "pyarrow",
    "--no-deps tf-models-official==2.20.0": "official orbit"}


def check_packages(*names: str) -> None:
    """Raises InputError if one of these packages, which the light installation lacks,
    is not installed. Nothing is imported."""
    if missing := [name for name in names if name not in sys.modules
                   and not importlib.util.find_spec(name)]:
        raise _not_installed(missing)


def _not_installed(modules: Sequence[str], reason: str = "is not installed"
                   ) -> InputError | None:
    """Returns the error for packages that cannot be imported; None for modules that are
    not of a package that users choose to install."""
    names = [module.partition(".")[0] for module in modules]
    package = "albert_tf" if FOLDER == _INSTALLED else "."
    commands = [f"pip install {what.format(package)}"
                for what, known in _INSTALLED_BY.items() if {*names} & {*known.split()}]
    return InputError(f"this needs {names[0]}, which {reason}; run "
                      f"{' && '.join(commands)} (docs/INSTALL.md).") if commands else None


# ---- flags -------------------------------------------------------------------

_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}


def _help(first: Sequence[str], full: bool) -> str:
    """Returns the text of --help: describes the flags `first`, by default all, in this
    order, and names the script's others, which --helpfull describes, too."""
    from absl import flags

    def describe(name):
        alone = flags.FlagValues()
        alone[name] = flags.FLAGS[name]
        return alone.get_help("  ", include_special_flags=False)

    about = re.sub(r"python (\w+)\.py", lambda script: typed_as.get(
        script[1], script[0]), sys.modules["__main__"].__doc__ or "")
    names = sorted({
        flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])})
    first = first or names
    left = [name for name in names if name not in first]
    parts = [about, "Flags:", *map(describe, first)]
    if left and full:
        parts += ["", "Further flags:", *map(describe, left)]
    elif left:
        parts += ["", f"{len(left)} further flags, which --helpfull describes:",
                  flags.text_wrap(", ".join(f"--{name}" for name in left), indent="  ")]
    if full:
        parts += ["", "Flags of absl: --verbosity, --logtostderr, --flagfile and so on; "
                  "see its documentation."]
    return "\n".join(parts)
