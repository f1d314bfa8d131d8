"""How every script runs: a wrong input ends it with one sentence, a signal in silence.

TensorFlow is not imported here, so that the scripts that create data start without it.
"""

import logging as pylogging
import os
import sys
from typing import Callable, Sequence

from absl import app, logging

from albert_tf.errors import InputError, Stopped


def run(main: Callable[[Sequence[str]], None], takes_words: bool = False) -> None:
    """Runs a script's `main` after parsing the flags.

    An InputError ends the program with its sentence on stderr, without a traceback, and
    exit status 1; so does, unless `takes_words`, a word on the command line that is no
    flag, which absl would pass on silently. Stopped ends it with the status that shells
    give a program which a signal ended.
    """

    def guarded(argv):
        try:
            if len(argv) > 1 and not takes_words:
                raise InputError(
                    f"'{argv[1]}' is not a flag: flags are written --name=value, "
                    "and a value with spaces in quotes.")
            main(argv)
        except InputError as error:
            print(f"{argv[0]}: {error}", file=sys.stderr)
            sys.exit(1)
        except Stopped as stop:
            sys.exit(128 + stop.signal_number)

    # TensorFlow's C++ log complains of missing GPUs; its errors come as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.set_verbosity(logging.INFO)
    logging.get_absl_handler().addFilter(_is_ours)
    app.run(guarded)


def _is_ours(record) -> bool:
    """Whether a log line is this project's, or a warning; libraries chatter."""
    return (record.levelno > pylogging.INFO
            or f"{os.sep}site-packages{os.sep}" not in record.pathname)
