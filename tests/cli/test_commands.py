"""`albert`: the scripts as subcommands."""

import re

import pytest

from albert_tf.cli import commands
from tests.helpers import ROOT, run_python


def test_every_script_is_a_command():
    scripts = [script for script, _ in commands.COMMANDS.values()]
    assert sorted(scripts) == [path.stem for path in sorted(ROOT.glob("*.py"))]
    assert all(commands.find(script) for script in scripts)
    assert commands.find("count-parameters") == "count_parameters"
    assert commands.find("run_squad.py") == "squad"


def test_help_fits_a_screen_and_names_every_command():
    text = commands.help_text()
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert re.findall(r"^(?:[A-Z][\w-]+| ) +(\w+)  ", text, re.M) == [*commands.COMMANDS]


@pytest.mark.parametrize("word, named", [
    ("", "albert --help"), ("clasify", "'clasify' is not a command. Write"),
    ("--model=base", "--model=base.* albert COMMAND")])
def test_other_words_get_a_sentence(word, named):
    done = run_python("-m", "albert_tf", *filter(None, [word]))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(f"albert: .*{named}", done.stderr)


def test_a_command_does_what_its_script_does():
    command = run_python("-m", "albert_tf", "count-parameters", "--help")
    script = run_python("count_parameters.py", "--help")
    assert (command.returncode, command.stderr) == (script.returncode, script.stderr)
    assert (command.returncode, command.stderr) == (0, "")
    assert command.stdout == script.stdout.replace(
        "python count_parameters.py", "albert count_parameters")
    assert "  --model:\n" in command.stdout


def test_albert_itself_answers():
    assert run_python("-m", "albert_tf", "--help").stdout == commands.help_text() + "\n"


RUN = """
import sys
from albert_tf.cli import commands, script
script.FOLDER = {folder!r}
sys.argv = ["somewhere/albert", "serve", "--port=1"]
commands.main()
"""
SCRIPT = """
from albert_tf.cli import script
import multiprocessing, os, signal, sys
from absl import flags
flags.DEFINE_integer("port", 0, "Port.")
{before}
def port():
    return __name__

def main(argv):
    assert flags.FLAGS.port == 1
    {main}

if __name__ == "__main__":
    script.run(main)
"""


@pytest.mark.parametrize("before, main, status, output, error", [
    ("os.kill(os.getpid(), signal.SIGINT)", "pass", 130, "",
     "albert serve: stopped by Ctrl-C.\n"),
    # A process that the script starts imports its file.
    ("", "print(multiprocessing.get_context('spawn').Pool(1).apply(port)); sys.exit(3)",
     3, "__mp_main__\n", "")])
def test_statuses_and_signals_are_those_of_the_script(
        before, main, status, output, error, tmp_path):
    (tmp_path / "serve.py").write_text(SCRIPT.format(before=before, main=main))
    path = tmp_path / "run.py"
    path.write_text(RUN.format(folder=str(tmp_path)))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout, done.stderr) == (status, output, error)
