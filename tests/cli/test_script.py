"""script.run: how a process ends that has TensorFlow."""

import os
import re
import subprocess
import sys

import pytest

from albert_tf.config import AlbertConfig
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
    ("pass", 0, True), ("sys.exit(3)", 3, True),
    ("from albert_tf.errors import InputError; raise InputError('mend it')", 1, True),
    ("sys.exit('no')", 1, True), ("1 / 0", 1, False)])
def test_it_ends_without_waiting_for_what_is_dropped(end, status, at_once, tmp_path):
    path = tmp_path / "try.py"
    path.write_text(SCRIPT.format(end=end))

    def run(**environment):
        return run_python(path, env={"PYTHONPATH": str(ROOT), **environment})

    done, worker = run(), run(TF_CONFIG="{}")
    assert done.returncode == worker.returncode == status
    assert done.stdout == "worked\ntidied up\n" + "dropped\n" * (not at_once)
    assert worker.stdout == "worked\ntidied up\ndropped\n"
    assert ("mend it" in done.stderr) == ("mend" in end)
    assert done.stderr == worker.stderr


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


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("end", ["| true", "| head -c 5", ">&-"])
def test_an_output_that_nobody_reads_is_no_error(end, count, tmp_path):
    (tmp_path / "try.py").write_text(OUTPUT.format(full=False, count=count))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} try.py {end}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["serve", "run_classifier"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_help_that_nobody_reads_is_no_error(name, unbuffered):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {name}.py --help | true; "
         "exit ${PIPESTATUS[0]}"], cwd=ROOT, text=True, capture_output=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, check=False)
    assert (done.returncode, done.stderr) == (1, "")  # absl's status of --help


def test_an_output_without_room_is_one_sentence(tmp_path):
    path = tmp_path / "try.py"
    path.write_text(OUTPUT.format(full=True, count=1))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "try.py: the output cannot be written: No space left on device" in done.stderr


# ---- --help ----------------------------------------------------------------


WITH_FIRST_FLAGS = [path for path in sorted(ROOT.glob("*.py"))
                    if "first_flags" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_FIRST_FLAGS, ids=lambda path: path.stem)
def test_help_describes_the_flags_needed_first_and_names_the_others(path):
    first = re.search(r"first_flags=\(([^)]*)\)", path.read_text(encoding="utf-8"))[1]
    first = "".join(re.findall(r'"([^"]*)"', first)).split()

    def shown(flag):
        text = run_python(path, flag).stdout
        head, _, rest = text.partition("urther flags")
        described = re.findall(r"^  --(?:\[no\])?(\w+):\s", head, re.M)
        assert described == first
        return text, rest

    (text, rest), (_, full) = shown("--help"), shown("--helpfull")
    named = re.findall(r"--(\w+)", rest.partition(":")[2])
    assert len(text.splitlines()) < 100
    assert len(named) > 10 and not {*named} & {*first}
    assert named == re.findall(r"^  --(?:\[no\])?(\w+):\s", full, re.M)


BLOCKED = """
import os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.parametrize("script, words", [
    ("run_classifier", "--task_name=cola --data_dir={data} --do_train --from_scratch "
     "--output_dir={data}/new --model=base --spm_model_file={data}/none"),
    ("run_pretraining", "--input_file={data}/x --output_dir={data}/new --model=base"),
    ("predict", "--model={data}/model text"),
    ("export_model", "--model={data}/model --export_dir={data}/new --noexport_text"),
    ("extract_features", "--model={data}/model --input_file={data}/text.txt"),
    ("analyze_layers", "--model={data}/model --input_file={data}/text.txt"),
    ("extend_vocabulary", "--init_checkpoint={data}/model --output_dir={data}/new "
     "--input_file={data}/text.txt --spm_model_file={data}/none"),
    ("convert_checkpoint", "--input=gs://bucket/m --output={data}/new --format=hf")])
def test_a_package_that_is_not_installed_is_named_with_its_command(
        script, words, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    (tmp_path / "text.txt").write_text("text\n")
    stored(tmp_path / "model", AlbertConfig(
        vocab_size=30, embedding_size=4, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=8), {})
    for blocked, sentence in (
            ("tensorflow tf_keras", "this needs TensorFlow, which is not installed; "
             "run pip install '.[train]'"),
            ("official orbit", "this needs tf-models-official, which is not installed; "
             "run pip install --no-deps tf-models-official==2.20.0")):
        if "official" in blocked and not script.startswith("run_"):
            continue
        done = run_python(f"{script}.py", *words.format(data=tmp_path).split(), env={
            "PYTHONPATH": str(tmp_path), "BLOCKED": blocked})
        assert done.returncode == 1
        [line] = done.stderr.splitlines()[-1:]
        assert line.startswith(f"{script}.py: {sentence}"), done.stderr
        assert "Traceback" not in done.stderr


def test_flags_come_from_a_file_and_later_ones_override_it(tmp_path):
    path = tmp_path / "run.flags"
    path.write_text("# half the width\n--model=base\n--config_overrides=embedding_size=64\n")

    def output(*words):
        done = run_python("count_parameters.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    narrow, wide = (output("--model=base", f"--config_overrides=embedding_size={size}")
                    for size in (64, 256))
    assert narrow != wide
    assert output(f"--flagfile={path}") == narrow
    assert output(f"--flagfile={path}", "--config_overrides=embedding_size=256") == wide
