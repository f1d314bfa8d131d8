"""Runs a script's commands, each by its name, in one process: TensorFlow loads once.

    @pytest.fixture(scope="module", name="results")
    def _results(data):
        with run_commands("run_squad", {"trained": [...], "wrong": [...]},
                          light={"wrong"}) as results:
            yield results

`results["trained"]` is a dict: the `status`, what the script wrote to `stderr`, its
`log`, whether TensorFlow was `loaded`, and the text `files` in its --output_dir right
after it. `results.ok("trained")` is the same, and fails unless the status is 0. A command
runs when it is asked for; with it run, in the order of the dict, all those that share its
folders, so that tests find these alike in any order. No curves are drawn, which takes a
second each time.
"""

import contextlib
import importlib
import io
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).parent.parent
WRITTEN = ("--output_dir=", "--export_dir=", "--cached_dir=")


# ---- one command -----------------------------------------------------------


def arguments(data, name, flags):
    """A command line in the folder of the tests, {data}; None leaves a flag out, a list
    is a command of `run_commands`."""
    if isinstance(flags, dict):
        flags = [f"--{flag}={value}".removesuffix("=") for flag, value in {
            "output_dir": f"{{data}}/{name}", **flags}.items() if value is not None]
    return [word.replace("{data}", str(data)) for word in flags]


def start_program(args, **environment):
    """Python with these arguments, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *args], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, **environment})


def finish(process, status=0):
    """What a process wrote, once it has ended."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    assert "Traceback" not in output, output
    return output


def free_ports(count):
    """Ports of this machine that nobody uses."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
                for _ in range(count)]


def start_cluster(*programs):
    """One worker of a cluster for each of the programs."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(programs))]
    return [start_program(args, TF_CONFIG=json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}))
            for index, args in enumerate(programs)]


# ---- several, by name ------------------------------------------------------


class Commands:
    """What each of a script's commands gave, by its name.

    `commands` are name → arguments. ["copy", folder, new folder] copies a folder as it is
    then; ["stop", file, seconds, arguments...] sends SIGTERM so long after the file was
    written next. `light` are the names of commands that should not load TensorFlow, and
    run in a process that has not; `before` are functions called right before a command.
    """

    def __init__(self, script, commands, light=(), before=None):
        self._script, self._commands = script, commands
        self._light, self._before = frozenset(light), before or {}
        self._results, self._processes = {}, {}
        self._errors = tempfile.TemporaryFile()

    def __getitem__(self, name):
        if name not in self._results:
            for other in self._with_shared_folders(name):
                self._before.get(other, lambda: None)()
                self._results[other] = self._run(other)
        return self._results[name]

    def ok(self, name, status=0):
        result = self[name]
        assert result["status"] == status, result["stderr"] or result["log"]
        return result

    def refused(self, name, pattern, loaded=False):
        """Checks that a wrong input ended with one sentence, with TensorFlow or not."""
        result = self[name]
        assert result["status"] == 1, result["stderr"]
        [line] = [line for line in result["stderr"].splitlines()
                  if line.startswith(f"{self._script}.py: ")]
        assert re.search(pattern, line), line
        assert result["loaded"] == loaded, "TensorFlow"

    def run(self, arguments):
        """What a command gives that has no name."""
        return self._asked(False, list(map(str, arguments)))

    def run_all(self):
        for name in self._commands:
            self[name]

    def close(self):
        for process in self._processes.values():
            process.kill()  # An orderly end of TensorFlow takes seconds.
            process.communicate()

    def _with_shared_folders(self, name):
        """Names of the commands that name a folder which one of them writes."""
        words = {other: _paths(words) for other, words in self._commands.items()}
        written = {other: _written_by(arguments)
                   for other, arguments in self._commands.items()}
        found, new = set(), {name}
        while new:
            found |= new
            new = {other for other in words.keys() - found for one in found
                   if _touch(written[one], words[other])
                   or _touch(written[other], words[one])}
        return [other for other in self._commands if other in found]

    def _run(self, name):
        arguments = list(map(str, self._commands[name]))
        if arguments[:1] == ["copy"]:
            shutil.copytree(*arguments[1:])
            return dict(status=0, stderr="", log="", loaded=False, files={})
        light = name in self._light
        result = self._asked(light, arguments)
        if light and result["loaded"]:
            # The next one is judged by itself.
            self._processes.pop(light).kill()
        return {**result, "files": _text_files(arguments)}

    def _asked(self, light, arguments):
        if light not in self._processes:
            self._processes[light] = subprocess.Popen(
                [sys.executable, "-m", "tests.commands", self._script], cwd=ROOT,
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        process = self._processes[light]
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if answer:
            return json.loads(answer)
        del self._processes[light]
        self._errors.seek(0)
        return dict(status=f"crash ({process.wait()})", log="", loaded=not light,
                    stderr=self._errors.read().decode(errors="replace")[-3000:])


def run_commands(script, commands, light=(), before=None):
    return contextlib.closing(Commands(script, commands, light, before))


def _paths(arguments):
    """The paths that arguments name, and what links in such folders point to."""
    paths = [path for word in arguments
             for path in str(word).rpartition("=")[2].split(",") if "/" in path]
    return paths + [os.readlink(link) for path in paths if os.path.isdir(path)
                    for link in pathlib.Path(path).iterdir() if link.is_symlink()]


def _written_by(arguments):
    if arguments[:1] == ["copy"]:
        return [str(arguments[2])]
    return [word.partition("=")[2] for word in map(str, arguments)
            if word.startswith(WRITTEN)]


def _touch(folders, paths):
    return any(path == folder or path.startswith(folder + "/")
               for folder in folders for path in paths)


def _text_files(arguments):
    folder = dict(word.split("=", 1) for word in arguments if "=" in word).get(
        "--output_dir", "none")
    return {path.name: path.read_text(encoding="utf-8")
            for path in pathlib.Path(folder).glob("*")
            if path.suffix in (".json", ".tsv", ".txt")}


# ---- in the process that runs the commands ----------------------------------


def _written(path):
    return os.stat(path).st_mtime_ns if os.path.exists(path) else None


def _stop(path, seconds, before):
    while _written(path) == before:
        time.sleep(0.01)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)


def _run(module, arguments):
    # Not when run_commands is imported, for tests alone.
    from absl.testing import flagsaver

    from albert_tf.cli import script

    if arguments[:1] == ["stop"]:
        _, path, seconds, *arguments = arguments
        # Where no run takes the signal, this process must not end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=_stop, args=(path, float(seconds), _written(path)),
                         daemon=True).start()
    log, stderr, status = io.StringIO(), io.StringIO(), 0
    handler = logging.StreamHandler(log)
    logging.getLogger("absl").addHandler(handler)
    try:
        with flagsaver.flagsaver(), contextlib.redirect_stderr(stderr):
            sys.argv = [f"{module.__name__}.py", *arguments]
            script.run(module.main, takes_words=module.__name__ == "predict")
    except SystemExit as error:
        status = error.code or 0
    except BaseException:  # A test shows it.
        status, _ = "traceback", stderr.write(traceback.format_exc())
    logging.getLogger("absl").removeHandler(handler)
    return dict(status=status, stderr=stderr.getvalue(), log=log.getvalue(),
                loaded="tensorflow" in sys.modules)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a script prints is not an answer.
    module = importlib.import_module(sys.argv[1])
    from albert_tf.training import log as run_log

    run_log.draw_curves = lambda *args: None
    for line in sys.stdin:
        print(json.dumps(_run(module, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
