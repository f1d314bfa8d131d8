"""Runs a script: a wrong input, Ctrl-C or SIGTERM ends it with one sentence.

A script imports this module before anything else. Other modules take seconds to load,
and a Ctrl-C in that time would print a traceback of 10 to 30 lines; modules written in
C++ swallow a KeyboardInterrupt or turn it into a different error. Until the script's
main runs, the handler therefore ends the process itself (os._exit). Only the standard
library is imported here.
"""

import atexit
import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
import time
from typing import Any, Callable, Mapping, Sequence

from albert_tf.errors import (
    ONE_CTRL_C, InputError, Stopped, WorkerEnded, is_of_library, reason_of)

typed_as: dict[str, str] = {}  # script → how it is started, for --help
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_watching = False  # whether the thread of _watch runs
_working = False  # whether main runs, so that there may be something to clean up
_keeps = True  # whether an interrupted run leaves something finished
_received: int | None = None
_worker_ended = False  # another one, of a cluster
_since = 0.0


# ---- signals ---------------------------------------------------------------


def take_signals() -> None:
    """Installs handlers for SIGINT and SIGTERM, unless they have one or are ignored."""
    for number in _NAMES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(number, _handle)


def _watch() -> None:
    """Starts a thread that ends the program at a second signal. Python's own handlers
    wait until the main thread has left C++ code, such as a long step of TensorFlow."""
    global _watching
    if _watching:
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    except ValueError:  # not the main thread
        os.close(read)
        os.close(write)
        return
    if hasattr(os, "register_at_fork"):
        # Signals of a forked process are its own.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_end_at_second, args=(read,), daemon=True).start()
    _watching = True


def _end_at_second(read: int) -> None:
    first = None
    while received := os.read(read, 1):
        number, now = received[0], time.monotonic()
        if number not in _NAMES or not _working:
            first = None
        elif first is None:
            first = now
        elif now - first >= ONE_CTRL_C:
            _say(number, flush=False)
            os._exit(128 + number)


def _say(number: int, flush: bool = True) -> None:
    """Writes the sentence directly to stderr, without Python's buffers."""
    if flush:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
    line = f"{os.path.basename(sys.argv[0])}: stopped by {_NAMES[number]}" + (
        "; what is finished is kept." if _working and _keeps else ".")
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _handle(number, frame):
    global _received, _since
    if _received is not None and time.monotonic() - _since < ONE_CTRL_C:
        return
    # An exception does not pass through all code that is being imported, such as C++.
    if _received is not None or not _working or _is_importing(frame):
        _say(number)
        os._exit(128 + number)
    _received, _since = number, time.monotonic()
    raise Stopped(number)


def _is_importing(frame) -> bool:
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_INSTALLED = os.path.join(_PACKAGE, "scripts")
# The folder of the scripts: a wheel has them in the package, a clone beside it.
FOLDER = _INSTALLED if os.path.isdir(_INSTALLED) else os.path.dirname(_PACKAGE)

_main = getattr(sys.modules["__main__"], "__file__", None)
if _main and os.path.dirname(os.path.realpath(_main)) == FOLDER:
    take_signals()


# ---- the program -----------------------------------------------------------


def run(main: Callable[[Sequence[str]], None], takes_words: bool = False,
        first_flags: str = "", keeps: bool = True) -> None:
    """Runs a script's `main` after parsing the flags. `first_flags` are the names of
    the flags that people need first: --help describes these and names the others.
    `keeps` says whether something finished is left if the run is interrupted.

    An InputError ends the program with its sentence on stderr, without a traceback, and
    exit status 1. So does a word on the command line that is not a flag, which absl
    would pass on silently, unless the script `takes_words`. A signal ends it with the
    exit status that shells use for it; a second signal ends it at once. """
    from logging import Formatter

    from absl import app, logging

    take_signals()
    _watch()
    # Scripts draw files alone; Jupyter names a backend here that only notebooks have.
    os.environ["MPLBACKEND"] = "agg"
    for stream in (sys.stdout, sys.stderr):  # UTF-8, whatever the locale.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def guarded(argv):
        global _working, _keeps, _received, _worker_ended
        _working, _keeps, _received, _worker_ended = True, keeps, None, False
        try:
            if len(argv) > 1 and not takes_words:
                raise InputError(
                    f"'{argv[1]}' is not a flag. Write flags as --name=value, and put "
                    "values with spaces in quotes.")
            from albert_tf.cli import checks

            checks.check_values()
            # In an ASCII locale, each byte of a UTF-8 text arrives as a surrogate.
            main([argv[0], *(word.encode("utf-8", "surrogateescape").decode(
                "utf-8", "replace") for word in argv[1:])])
            # A library may have swallowed the exception, so that main went on.
            if _received is not None:
                raise Stopped(_received)
            if sys.stdout:
                sys.stdout.flush()
        except BaseException as error:
            if isinstance(error, OSError) and _output_failed(argv[0], error):
                return
            # A library may have replaced the exception that the signal raised.
            number = getattr(error, "signal_number", _received)
            if number is not None:
                _say(number)
                sys.exit(128 + number)
            if isinstance(error, ImportError):
                error = _not_installed(error.name or "", error=error) or error
            # TensorFlow's errors are explained where they arise; others are bugs.
            if is_of_library(error) and "tensorflow" not in type(error).__module__:
                error = InputError(reason_of(error))
            if not isinstance(error, InputError):
                raise error
            _worker_ended = isinstance(error, WorkerEnded)
            print(f"{argv[0]}: {error}", file=sys.stderr)
            sys.exit(error.exit_status)
        finally:
            _working = False

    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().addFilter(_is_ours)
    # Time, level and text, without absl's number of the thread and line of the code.
    logging.get_absl_handler().setFormatter(Formatter(
        "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    asked = {*sys.argv[1:]} & {
        "--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}
    try:
        try:
            if asked:
                print(_help(first_flags.split(), "--helpfull" in asked))
                sys.exit()
            app.run(guarded, flags_parser=_parsed)
        except SystemExit:
            if sys.stdout:
                sys.stdout.flush()
            raise
    except SystemExit as end:
        if (main.__module__ == "__main__" and "tensorflow" in sys.modules
                and ("TF_CONFIG" not in os.environ or _worker_ended)):
            _end_now(end.code)
        raise
    except OSError as error:  # of --help, which is printed before main
        if not _output_failed(sys.argv[0], error):
            raise


def _output_failed(name: str, error: OSError) -> bool:
    """Returns whether the reader of the standard output has ended, such as `| head`,
    which is no error. Ends the program with a sentence if the disk is full."""
    ended = isinstance(error, BrokenPipeError) and _reader_has_ended()
    if not ended and error.errno != errno.ENOSPC:
        return False
    # What is left in the buffer would fail again at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not ended:
        print(f"{name}: the output cannot be written: {error.strerror}; make room, and "
              "start again.", file=sys.stderr)
        sys.exit(1)
    return True


def _reader_has_ended() -> bool:
    import select

    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


# Package or its module → how it is installed. Modules import these when they are used.
_EXTRA = f"pip install '{'albert_tf' if FOLDER == _INSTALLED else '.'}[%s]'"
_TRAIN = _EXTRA % "train"
# Every version of it requires one TensorFlow, and packages that are not used.
_TF_MODELS = "pip install --no-deps 'tf-models-official==2.%d.*'"
_PACKAGES = {
    "tensorflow": ("TensorFlow", _TRAIN), "tf_keras": ("tf_keras", _TRAIN),
    "tensorflow_text": ("tensorflow-text", _TRAIN), "tensorboard": ("tensorboard", _TRAIN),
    "sklearn": ("scikit-learn", _TRAIN), "scipy": ("SciPy", _TRAIN),
    "openvino": ("OpenVINO", _EXTRA % "openvino"),
    "onnxruntime": ("ONNX Runtime", _EXTRA % "onnx"),
    "aiohttp": ("aiohttp", _EXTRA % "serve"),
    "prometheus_client": ("prometheus_client", _EXTRA % "serve"),
    "official": ("tf-models-official", _TF_MODELS),
    "orbit": ("tf-models-official", _TF_MODELS)}


def check_packages(*names: str) -> None:
    """Raises InputError if one of these packages, which the light installation lacks,
    is not installed. Nothing is imported."""
    import importlib.util

    missing = [name for name in names if name not in sys.modules
               and not importlib.util.find_spec(name)]
    if missing:
        raise _not_installed(*missing)


def _not_installed(*modules: str, error: Exception | None = None) -> InputError | None:
    """Returns the error for packages that cannot be imported; None for modules that are
    not of a package that users choose to install."""
    from importlib import metadata

    names = [name for name in (module.partition(".")[0] for module in modules)
             if name in _PACKAGES]
    if not names:
        return None
    try:
        minor = int(metadata.version("tensorflow").split(".")[1])
    except metadata.PackageNotFoundError:
        minor = 20
    title = _PACKAGES[names[0]][0]
    command = " && ".join(dict.fromkeys(_PACKAGES[name][1] for name in names))
    command = command.replace("%d", str(min(minor, 20)))  # TensorFlow 2.21 takes 2.20
    reason = "is not installed" if error is None or isinstance(
        error, ModuleNotFoundError) else f"cannot be imported ({error})"
    return InputError(f"this needs {title}, which {reason}; run {command} "
                      "(docs/INSTALL.md).")


def _end_now(code: Any) -> None:
    """Ends the process after the functions of `atexit`, with all output written.

    Python would destroy TensorFlow's objects one by one and wait for the threads of its
    pipelines, for seconds, or up to a minute on a busy machine. Workers of a cluster
    use this only after one is lost: otherwise they end in order, so that no worker
    believes another to be lost.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


def _is_ours(record) -> bool:
    """Returns whether a log line comes from this project or is at least a warning."""
    import logging

    return (record.levelno > logging.INFO
            or f"{os.sep}site-packages{os.sep}" not in record.pathname
            or os.path.realpath(record.pathname).startswith(_PACKAGE + os.sep))


def use_recipe(name: str, values: Mapping[str, Any], source: str, into: Any = None
               ) -> None:
    """Sets flags that were not given to the values of a recipe, and logs them."""
    from absl import flags, logging

    into = flags.FLAGS if into is None else into
    logging.info("Using the settings of the recipe %s (source: %s).", name,
                 source)
    taken = {flag: value for flag, value in values.items()
             if not into[flag].present}
    for flag, value in taken.items():
        into[flag].value = value
    if taken:
        logging.info("The recipe sets %s.", ", ".join(
            f"--{flag}={into[flag].value}" for flag in sorted(taken)))
    others = [f"--{flag}={into[flag].value} (the recipe: {value})"
              for flag, value in sorted(values.items())
              if into[flag].value != value]
    if others:
        # In Python every argument would be such a flag.
        (logging.warning if into is flags.FLAGS else logging.info)(
            "Only a part of the recipe %s is used, because flags override it: %s. Leave "
            "them out to use the whole recipe.", name, ", ".join(others))


# ---- --help ----------------------------------------------------------------


def _parsed(argv: Sequence[str]) -> Sequence[str]:
    """Parses the flags; ends the program with a sentence if they are wrong."""
    from absl import flags

    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        missing = [f"--{name} is missing. {flags.FLAGS[name].help}" for name in re.findall(
            r"flag --(\w+)=None: Flag --\1 must have a value", str(error))]
        print(f"{argv[0]}: {' '.join(missing) or error} --help lists the flags.",
              file=sys.stderr)
        sys.exit(1)


def _help(first: Sequence[str], full: bool) -> str:
    """Returns the text of --help: describes the flags `first`, by default all, in this
    order, and names the script's others, which --helpfull describes, too."""
    from absl import flags

    def describe(name):
        flag = flags.FLAGS[name]
        # The largest integer and the largest number stand for no bound.
        bounds = re.sub(r"in the range \[([\d.]+), (?:2147483647|1e\+38)\]",
                        r"of at least \1", flag.parser.syntactic_help)
        default = flag.default_as_str and (
            "default: " + flag.default_as_str.strip("'"))
        notes = "; ".join(filter(None, (bounds, default)))
        return flags.text_wrap(
            f"--{'[no]' * flag.boolean}{name}: "
            f"{flag.help}{f' ({notes})' * bool(notes)}",
            indent="      ", firstline_indent="  ")

    about = re.sub(r"python (\w+)\.py", lambda script: typed_as.get(
        script[1], script[0]), sys.modules["__main__"].__doc__ or "")
    names = sorted({
        flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])})
    first = first or names
    left = [name for name in names if name not in first]
    parts = [about, "Flags:", *map(describe, first)]
    if left:
        parts += ["", "Further flags:", *map(describe, left)] if full else [
            "", f"{len(left)} further flags, which --helpfull describes:",
            flags.text_wrap(", ".join(f"--{name}" for name in left), indent="  ")]
    if full:
        parts += ["", "Flags of absl: --verbosity, --logtostderr, --flagfile and so on; "
                  "see its documentation."]
    return "\n".join(parts)
