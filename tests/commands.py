"""Runs a script many times in one process, since loading TensorFlow takes seconds.

    python -m tests.commands run_pretraining < commands.json > results.json

Takes a list of lists of arguments and gives, for each, a dict: `status`, what the
script wrote to `stderr`, its `log`, and whether TensorFlow was `loaded` by then.
["copy", folder, new folder] copies a folder as it is then; ["stop", file, seconds,
arguments...] sends SIGTERM so long after the file was written next. No curves are
drawn, which takes a second each time; tests of others see to them.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback

from absl import flags
from absl.testing import flagsaver

from albert_tf.cli import flags as cli_flags
from albert_tf.training import log as run_log

run_log.draw_curves = lambda *args: None


def _written(path):
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def _stop(path, seconds, before):
    while _written(path) == before:
        time.sleep(0.01)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)


def run(module, arguments):
    if arguments[:1] == ["copy"]:
        shutil.copytree(*arguments[1:])
        return dict(status=0, stderr="", log="", loaded=True)
    if arguments[:1] == ["stop"]:
        _, path, seconds, *arguments = arguments
        # Where no run takes the signal, this process must not end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(
            target=_stop, args=(path, seconds, _written(path)), daemon=True).start()
    log, stderr, status = io.StringIO(), io.StringIO(), 0
    handler = logging.StreamHandler(log)
    logging.getLogger("absl").addHandler(handler)
    try:
        with flagsaver.flagsaver(), contextlib.redirect_stderr(stderr):
            argv = flags.FLAGS([f"{module.__name__}.py", *arguments])
            # absl parses the flags only once in a process.
            cli_flags.app.run = lambda main: main(argv)
            cli_flags.run(module.main)
    except flags.Error as error:
        status, _ = 1, stderr.write(f"FATAL Flags parsing error: {error}\n")
    except SystemExit as error:
        status = error.code
    except BaseException:  # A test shows it.
        status, _ = "traceback", stderr.write(traceback.format_exc())
    logging.getLogger("absl").removeHandler(handler)
    return dict(status=status, stderr=stderr.getvalue(), log=log.getvalue(),
                loaded="tensorflow" in sys.modules)


def main():
    module = importlib.import_module(sys.argv[1])
    commands = json.load(sys.stdin)
    with contextlib.redirect_stdout(io.StringIO()):
        results = [run(module, arguments) for arguments in commands]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
