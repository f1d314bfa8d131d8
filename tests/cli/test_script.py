"""script.run: how a process ends, by itself and by Ctrl-C or SIGTERM, and what it prints."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from tests.checkpoints.test_convert import stored
from tests.helpers import ROOT, run_python

# What TensorFlow's iterators do when they are dropped at the end.
DROPPED = """
import atexit, types

class Waits:
    def __del__(self, write=os.write):  # Python 3.13 takes modules apart before.
        write(1, b"dropped\\n")

sys.modules["tensorflow"] = types.ModuleType("tensorflow")
waits = Waits()
atexit.register(print, "tidied up")
"""


@pytest.mark.parametrize("end, status, at_once", [
    ("pass", 0, True), ("sys.exit('no')", 1, True), ("1 / 0", 1, False)])
def test_it_ends_without_waiting_for_what_is_dropped(end, status, at_once, program):
    # A worker of a cluster ends in order.
    for worker in {False, at_once}:
        done = program(f"print('worked')\n{end}", DROPPED,
                       env={"TF_CONFIG": "{}"} if worker else {})
        assert done.returncode == status
        assert done.stdout == "worked\ntidied up\n" + "dropped\n" * (
            worker or not at_once)


@pytest.mark.parametrize("command, status", [
    ("try.py | head -c 5", 0), ("try.py >&-", 0),
    (f"{ROOT}/serve.py --help | true", 0)])
def test_an_output_that_nobody_reads_is_no_error(command, status, write, tmp_path):
    write("for _ in range(1000):\n    print('word ' * 1000)")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {command}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")


def test_an_output_without_room_is_one_sentence(program):
    done = program("sys.stdout = Full()\nprint('word')", """
class Full:
    closed = False
    def write(self, text): raise OSError(28, "No space left on device")
    def flush(self): pass
    def fileno(self): return 1
""")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "try.py: the output cannot be written: No space left on device" in done.stderr


def test_output_is_utf8_and_pictures_are_files_whatever_the_surroundings(program):
    backend = "module://only_in_notebooks"
    done = program(
        "import matplotlib\nprint(argv[1], matplotlib.get_backend())",
        f"assert os.environ['MPLBACKEND'] == '{backend}'", words=["schön 中"],
        encoding="utf-8", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii",
                               "PYTHONUTF8": "0", "MPLBACKEND": backend})
    assert (done.returncode, done.stdout.lower()) == (0, "schön 中 agg\n"), done.stderr


# ---- Ctrl-C and SIGTERM ----------------------------------------------------

KILL = "os.kill(os.getpid(), signal.SIG{})"
TRIED = "try:\n    {}\nexcept BaseException as error:\n    "
MOMENTS = {  # what runs in main and before it; whether main tidies up
    "in main": ("{}", "", True),
    "made another exception": (TRIED + "raise RuntimeError('library') from error", "", True),
    "swallowed": (TRIED + "pass", "", True),
    "while TensorFlow loads": ("import slow", "", False),
    "before main": ("pass", "script.take_signals()\n{}", False)}


@pytest.mark.parametrize("moment, name, number", [
    *((moment, "INT", 2) for moment in MOMENTS), ("in main", "TERM", 15)])
def test_a_signal_ends_a_script_in_a_sentence(moment, name, number, program):
    kill = KILL.format(name)
    main, before, tidies = MOMENTS[moment]
    main = main.format(kill).replace("\n", "\n    ")
    done = program(
        f"try:\n    {main}\nfinally:\n    print('tidied up')", before.format(kill),
        f"import os, signal\n{TRIED.format(kill)}pass\nprint('loaded')\n")
    assert done.returncode == 128 + number
    assert re.fullmatch(r"try\.py: stopped by (Ctrl-C|SIGTERM).*\.\n", done.stderr)
    assert done.stdout == "tidied up\n" * tidies


def test_second_signal_ends_a_script_that_computes_in_c(program):
    """There Python runs no handler: the main thread sleeps and takes no signals."""
    begin = time.monotonic()
    done = program("""threading.Thread(target=twice, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
ctypes.CDLL(None).sleep(60)""", """
import ctypes, threading, time
def twice():
    for seconds in (0.2, 2.2):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)
""")
    assert time.monotonic() - begin < 50 and done.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C.*\.\n", done.stderr)


def test_every_script_takes_signals_before_it_loads_anything():
    for path in ROOT.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        imports = [line for line in lines if re.match("(from|import) [a-z_]+[ .]", line)
                   and " import " in line or line.startswith("import ")]
        assert imports[0].startswith("from albert_tf.cli import script  #"), path
    done = run_python("-X", "importtime", "-c", "from albert_tf.cli import script",
                      check=True)
    assert not {"absl", "numpy", "tensorflow"} & {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


POOL = """
from albert_tf.jobs.parallel import WorkerPool
from slow import Slow
def results(items):
    with WorkerPool(Slow(), 2) as pool:
        yield from pool.in_order(items, "sleeping")
sys.modules["tensorflow"] = None  # as in scripts that end at once
"""


def test_ctrl_c_while_results_of_workers_are_used(program):
    """The generator that holds the pool is suspended, so that it does not end it."""
    done = program(
        "lazily = results([0, 0, 600, 600, 600])\nfor _ in lazily:\n    "
        + KILL.format("INT"), POOL,
        "import time\nclass Slow:\n    def __call__(self, item):\n"
        "        time.sleep(item)\n", timeout=100)
    assert done.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C\.\n", done.stderr)


def test_ctrl_c_while_workers_load_their_modules_prints_no_traceback(write, tmp_path):
    """From a terminal it goes to the whole group of processes."""
    path, seen = write(
        "os.environ['SLOW'] = '1'\nlist(results([1, 2]))", POOL,
        "import os, pathlib, time\nif 'SLOW' in os.environ:\n"
        "    pathlib.Path(os.environ['SEEN']).touch()\n    time.sleep(5)\n"
        "class Slow:\n    def __call__(self, item):\n        return item\n"
    ), tmp_path / "seen"
    with subprocess.Popen(
            [sys.executable, path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            text=True, start_new_session=True, env={
                **os.environ, "PYTHONPATH": str(ROOT), "SEEN": str(seen)}) as run:
        while not seen.exists():
            assert run.poll() is None
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert run.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C.*\.\n", errors)


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
    assert len(text.splitlines()) < 120
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
     "install --no-deps tf-models-official==2."),
    ("export_model", "--model={data}/model --export_dir={data}/new --noexport_text",
     "tensorflow tf_keras", "this needs tensorflow, which is not installed; run pip "
     "install '.[train]'"),
    ("prepare_corpus", "--input_file={data}/x.parquet --output_file={data}/new", "pyarrow",
     "this needs pyarrow, which is not installed; run pip install '.[parquet]'")])
def test_a_package_that_is_not_installed_is_named_with_its_command(
        script, words, blocked, sentence, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    (tmp_path / "x.parquet").touch()
    stored(tmp_path / "model", AlbertConfig(
        vocab_size=30, embedding_size=4, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=8), {})
    done = run_python(f"{script}.py", *words.format(data=tmp_path).split(), env={
        "PYTHONPATH": str(tmp_path), "BLOCKED": blocked})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{script}.py: {sentence}")


def test_one_line_installs_all_that_training_lacks(monkeypatch):
    names = ("tensorflow", "tf_keras", "official", "orbit")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"tensorflow, .* pip install '.\[train\]' && pip "
                       r"install --no-deps tf-models-official==2[.\d]+ \("):
        script.check_packages(*names)
