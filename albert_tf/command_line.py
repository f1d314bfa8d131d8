"""What the scripts share: running `main`, and flags turned into option objects.

Only the scripts and this module know absl flags. TensorFlow is not imported
here, so that the scripts that create data start without it.
"""

import sys
from typing import Callable, Sequence

from absl import app, logging

from albert_tf.errors import InputError


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a script's `main` after parsing the flags.

    An InputError ends the program with its sentence on stderr, without a
    traceback, and exit status 1; so does a word on the command line that is
    no flag, which absl would hand over in silence.
    """

    def guarded(argv):
        try:
            if len(argv) > 1:
                raise InputError(
                    f"'{argv[1]}' is not a flag: flags are written --name=value, "
                    "and a value with spaces in quotes.")
            main(argv)
        except InputError as error:
            print(f"{argv[0]}: {error}", file=sys.stderr)
            sys.exit(1)

    logging.set_verbosity(logging.INFO)
    app.run(guarded)
