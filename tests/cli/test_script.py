"""script.run: how a process ends that has TensorFlow."""

import os
import re
import subprocess
import sys

import pytest

from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from tests.checkpoints.test_convert import stored
from tests.helpers import ROOT, run_python

# What TensorFlow's iterators do when they are dropped at the end.
SCRIPT = """
from albert_tf.cli import script
import atexit, os, sys, types

class Waits:
    def __del__(self, write=os.write):  # Python 3.13 takes modules apart before.
        write(1, b"dropped\\n")

sys.modules["tensorflow"] = types.ModuleType("tensorflow")
waits = Waits()
atexit.register(print, "tidied up")

def main(argv):
    print("worked")
    {end}

if __name__ == "__main__":
    script.run(main)
"""


@pytest.mark.parametrize("end, status, at_once", [
    ("pass", 0, True), ("sys.exit('no')", 1, True), ("1 / 0", 1, False)])
def test_it_ends_without_waiting_for_what_is_dropped(end, status, at_once, tmp_path):
    path = tmp_path / "try.py"
    path.write_text(SCRIPT.format(end=end))
    # A worker of a cluster ends in order.
    for worker in {False, at_once}:
        done = run_python(path, env={
            "PYTHONPATH": str(ROOT), **({"TF_CONFIG": "{}"} if worker else {})})
        assert done.returncode == status
        assert done.stdout == "worked\ntidied up\n" + "dropped\n" * (
            worker or not at_once)


OUTPUT = """
from albert_tf.cli import script
import sys

class Full:
    closed = False
    def write(self, text): raise OSError(28, "No space left on device")
    def flush(self): pass
    def fileno(self): return 1

def main(argv):
    if {full}:
        sys.stdout = Full()
    for _ in range({count}):
        print("word " * 1000)

if __name__ == "__main__":
    script.run(main)
"""


@pytest.mark.parametrize("command, status", [
    ("try.py | head -c 5", 0), ("try.py >&-", 0),
    (f"{ROOT}/serve.py --help | true", 0)])
def test_an_output_that_nobody_reads_is_no_error(command, status, tmp_path):
    (tmp_path / "try.py").write_text(OUTPUT.format(full=False, count=1000))
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {command}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")


def test_an_output_without_room_is_one_sentence(tmp_path):
    path = tmp_path / "try.py"
    path.write_text(OUTPUT.format(full=True, count=1))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "try.py: the output cannot be written: No space left on device" in done.stderr


SURROUNDINGS = """
from albert_tf.cli import script
import os

def main(argv):
    import matplotlib
    print(argv[1], matplotlib.get_backend())

assert os.environ["MPLBACKEND"] == "module://only_in_notebooks"
script.run(main, takes_words=True)
"""


def test_output_is_utf8_and_pictures_are_files_whatever_the_surroundings(tmp_path):
    path = tmp_path / "try.py"
    path.write_text(SURROUNDINGS)
    done = run_python(path, "schön 中", encoding="utf-8", env={
        "PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0", "MPLBACKEND": "module://only_in_notebooks"})
    assert (done.returncode, done.stdout.lower()) == (0, "schön 中 agg\n"), done.stderr


# ---- --help ----------------------------------------------------------------


@pytest.mark.parametrize("words, missing", [
    (("predict.py", "a text"), "predict.py: --model is missing. Folder of the model"),
    (("-m", "albert_tf", "export", "x"), "albert export: --model is missing.* --export_dir"),
    (("count_parameters.py", "--modle=base"), "count_parameters.py: Unknown .*'modle'")])
def test_a_flag_that_is_missing_or_unknown_is_named(words, missing):
    done = run_python(*words)
    assert done.returncode == 1 and re.match(missing, done.stderr), done.stderr


@pytest.mark.parametrize("name", ["create_pretraining_data", "run_squad"])
def test_help_describes_the_flags_needed_first_and_names_the_others(name):
    first = "".join(re.findall(r'"([^"]*)"', (ROOT / f"{name}.py").read_text(
        encoding="utf-8").partition("first_flags=(")[2])).split()
    text, rest, full = "", "", ""
    for flag in ("--helpfull", "--help"):
        text, full = run_python(f"{name}.py", flag, check=True).stdout, rest
        head, _, rest = text.partition("urther flags")
        described = re.findall(r"^  --(?:\[no\])?(\w+):\s", head, re.M)
        assert described == (first or described)
    named = re.findall(r"--(\w+)", rest.partition(":")[2])
    assert len(text.splitlines()) < 100
    assert len(named) > 10 and not {*named} & {*described}
    assert named == re.findall(r"^  --(?:\[no\])?(\w+):\s", full, re.M)


BLOCKED = """
import os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.parametrize("script, words, blocked, sentence", [
    ("run_pretraining", "--input_file={data}/x --output_dir={data}/new --model=base",
     "official orbit", "this needs official, which is not installed; run pip "
     "install --no-deps 'tf-models-official==2."),
    ("export_model", "--model={data}/model --export_dir={data}/new --noexport_text",
     "tensorflow tf_keras", "this needs tensorflow, which is not installed; run pip "
     "install '.[train]'")])
def test_a_package_that_is_not_installed_is_named_with_its_command(
        script, words, blocked, sentence, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    stored(tmp_path / "model", AlbertConfig(
        vocab_size=30, embedding_size=4, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=8), {})
    done = run_python(f"{script}.py", *words.format(data=tmp_path).split(), env={
        "PYTHONPATH": str(tmp_path), "BLOCKED": blocked})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{script}.py: {sentence}")


@pytest.mark.parametrize("version, minor", [("2.21.1", 20), ("2.18.0", 18)])
def test_one_line_installs_all_that_training_lacks(version, minor, monkeypatch):
    names = ("tensorflow", "tf_keras", "official", "orbit")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(InputError, match=r"tensorflow, .* pip install '.\[train\]' && pip "
                       rf"install --no-deps 'tf-models-official==2.{minor}.\*' \("):
        script.check_packages(*names)
