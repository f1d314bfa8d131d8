"""`albert`: the scripts as subcommands."""

import pathlib
import re

import pytest

from albert_tf.cli import commands
from albert_tf.errors import InputError
from tests.helpers import ROOT, run_python


def albert(*words, **options):
    return run_python("-m", "albert_tf", *words, **options)


def test_every_script_is_a_command():
    scripts = [script for script, _ in commands.COMMANDS.values()]
    assert sorted(scripts) == [path.stem for path in sorted(ROOT.glob("*.py"))]
    assert all(commands.find(script) for script in scripts)


def test_help_fits_a_screen_and_names_every_command():
    text = commands.help_text()
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert re.findall(r"^(?:[A-Z][\w-]+| ) +(\w+)  ", text, re.M) == [*commands.COMMANDS]


@pytest.mark.parametrize("words, name", [
    (("count_parameters",), "count_parameters"), (("run_squad",), "squad"),
    (("count-parameters",), "count_parameters"), (("run_squad.py",), "squad")])
def test_a_command_has_the_name_of_its_script_too(words, name):
    assert commands.find(*words) == name


@pytest.mark.parametrize("word, sentence", [
    ("", "which command?"), ("clasify", "'clasify' is not a command. Did you mean classify?"),
    ("run-tager.py", "Did you mean run_tagger?"), ("Predict", "Did you mean predict?"),
    ("xyzzy", "'xyzzy' is not a command. albert --help"),
    ("../serve", "'../serve' is not a command."),
    ("--model=base", "--model=base comes before the command.")])
def test_other_words_get_a_sentence(word, sentence):
    with pytest.raises(InputError) as error:
        commands._answer(word)
    assert sentence in str(error.value)
    assert "albert --help lists the commands." in str(error.value)


@pytest.mark.parametrize("word", ["--model=base", "--model=bas", "--help"])
def test_a_command_does_what_its_script_does(word):
    command = albert("count-parameters", word)
    script = run_python("count_parameters.py", word)
    assert command.returncode == script.returncode
    for stream in ("stdout", "stderr"):
        assert getattr(command, stream) == re.sub(
            r"(?m)(^|USAGE: )count_parameters\.py", r"\1albert count_parameters",
            getattr(script, stream))


def test_albert_itself_answers():
    for words, status in ((("--help",), 0), ((), 1), (("clasify",), 1)):
        done = albert(*words)
        assert done.returncode == status
        assert done.stdout == (commands.help_text() + "\n") * (not status)
        assert done.stderr.startswith("albert: ") == bool(status)


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
KILL = "os.kill(os.getpid(), signal.SIG{})"


@pytest.mark.parametrize("before, main, status, output, error", [
    ("", "sys.exit(3)", 3, "", ""),
    ("", KILL.format("INT"), 130, "",
     "albert serve: stopped by Ctrl-C; what is finished is kept.\n"),
    (KILL.format("INT"), "", 130, "", "albert serve: stopped by Ctrl-C.\n"),
    ("", "from albert_tf.errors import InputError; raise InputError('mend it')", 1, "",
     "albert serve: mend it\n"),
    # A process that the script starts imports its file.
    ("", "print(multiprocessing.get_context('spawn').Pool(1).apply(port))", 0,
     "__mp_main__\n", "")])
def test_statuses_and_signals_are_those_of_the_script(
        before, main, status, output, error, tmp_path):
    (tmp_path / "serve.py").write_text(SCRIPT.format(before=before, main=main or "pass"))
    path = tmp_path / "run.py"
    path.write_text(RUN.format(folder=str(tmp_path)))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout, done.stderr) == (status, output, error)


def test_scripts_are_found_beside_the_package():
    from albert_tf.cli import script

    assert pathlib.Path(script.FOLDER) == ROOT.resolve()
