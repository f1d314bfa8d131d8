"""How every script runs: a wrong input, Ctrl-C or SIGTERM ends it with one sentence.

TensorFlow is not imported here, so that the scripts that create data start without it.
"""

# First, so that a signal while the rest is imported ends in a sentence too.
from albert_tf.cli import signals

import atexit
import logging as pylogging
import os
import sys
from typing import Any, Callable, Sequence

from absl import app, logging

from albert_tf.errors import InputError


def run(main: Callable[[Sequence[str]], None], takes_words: bool = False) -> None:
    """Runs a script's `main` after parsing the flags.

    An InputError ends the program with its sentence on stderr, without a traceback, and
    exit status 1; so does, unless `takes_words`, a word on the command line that is no
    flag, which absl would pass on silently. A signal ends it with the status that shells
    give a program which a signal ended (`signals`).
    """
    signals.install()

    def guarded(argv):
        signals.working, signals.received = True, None
        try:
            if len(argv) > 1 and not takes_words:
                raise InputError(
                    f"'{argv[1]}' is not a flag: flags are written --name=value, "
                    "and a value with spaces in quotes.")
            main(argv)
        except BaseException as error:
            # Libraries may make another exception of the signal's.
            number = getattr(error, "signal_number", signals.received)
            if number is not None:
                signals.say(number)
                sys.exit(128 + number)
            if not isinstance(error, InputError):
                raise
            print(f"{argv[0]}: {error}", file=sys.stderr)
            sys.exit(1)
        finally:
            signals.working = False

    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().addFilter(_is_ours)
    try:
        app.run(guarded)
    except SystemExit as end:
        if (main.__module__ == "__main__" and "tensorflow" in sys.modules
                and "TF_CONFIG" not in os.environ):
            _end_now(end.code)
        raise


def _end_now(code: Any) -> None:
    """Ends the process when all is written and what `atexit` has to do is done.

    Python would take TensorFlow's objects apart one by one, and wait for the threads of
    its pipelines: seconds, on a busy machine up to a minute. The workers of a cluster
    end in order, so that none of them takes another for lost.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


def _is_ours(record) -> bool:
    """Whether a log line is this project's, or a warning; libraries chatter."""
    return (record.levelno > pylogging.INFO
            or f"{os.sep}site-packages{os.sep}" not in record.pathname)
