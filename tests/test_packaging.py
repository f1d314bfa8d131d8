"""`pip install .`: the package alone, which needs no TensorFlow for data creation.

    python -m pytest tests/test_packaging.py -m 'long or slow'
"""

import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

import albert_tf
from tests.helpers import ROOT

def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_sources(folder):
    """Copies the files that a package is built from; building leaves traces."""
    folder.mkdir()
    for path in (*ROOT.glob("*.py"), *(ROOT / name for name in (
            "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "tests"))):
        run("cp", "-r", str(path), str(folder))
    shutil.copytree(ROOT / "albert_tf", folder / "albert_tf",
                    ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def create_data(folder, *flags):
    """Creates data with the command that is installed; returns the log."""
    (folder / "text.txt").write_text(
        "One sentence here.\nAnother sentence there.\n\nA second text.\nIt has two.\n")
    (folder / "vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\nsentence\n.\n")
    done = subprocess.run(
        [folder / "venv/bin/albert", "create_pretraining_data", "--input_file=text.txt",
         "--output_file=data.tfrecord", "--vocab_file=vocab.txt", "--max_seq_length=16",
         "--max_predictions_per_seq=3", *flags], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "data.tfrecord").stat().st_size > 0
    return done.stderr


@pytest.mark.long
def test_wheel_has_the_command_and_the_scripts(tmp_path):
    """Built without a network, by way of a source distribution. The bare environment
    finds the packages that the wheel asks for in that of the tests."""
    run(sys.executable, "-c", "import setuptools.build_meta as build, sys\n"
        "build.build_sdist(sys.argv[1])", tmp_path, cwd=copy_sources(tmp_path / "source"))
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as files:
        assert not any("/tests/" in name for name in files.getnames())
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
        "--wheel-dir", tmp_path, source)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted([
        "albert_tf/py.typed",
        *(f"albert_tf/scripts/{path.name}" for path in ROOT.glob("*.py")),
        *(str(path.relative_to(ROOT)) for path in (ROOT / "albert_tf").rglob("*.py"))])

    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (pathlib.Path(site.strip()) / "tests.pth").write_text(
        sysconfig.get_path("purelib") + "\n")

    def albert(*words, status=0):
        done = subprocess.run([tmp_path / "venv/bin/albert", *words], cwd=tmp_path,
                              capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert run(python, "-m", "albert_tf", "--help", cwd=tmp_path) == albert("--help")
    assert albert("--version").strip() == albert_tf.__version__
    assert "11,683,584" in albert("count_parameters", "--model=base")
    assert "--init_checkpoint:" in albert("classify", "--help")
    assert "'srve' is not a command" in albert("srve", status=1)
    assert re.search(r"Wrote .*data\.tfrecord", create_data(tmp_path, "--num_workers=2"))


def test_packages_are_listed():
    listed = re.search(r"^packages = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(
        encoding="utf-8"), re.M | re.S)[1]
    folders = {".".join(path.parent.relative_to(ROOT).parts)
               for path in (ROOT / "albert_tf").rglob("__init__.py")}
    assert set(re.findall(r'"([\w.]+)"', listed)) == folders | {"albert_tf.scripts"}


@pytest.mark.slow
def test_installed_package_tokenizes_and_creates_data(tmp_path):
    """Downloads what pyproject.toml asks for; builds from a copy, without traces."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", copy_sources(tmp_path / "source"))
    run(python, "-c", "import albert_tf.pretraining_data.local\n"
        "import albert_tf.text.prepare, albert_tf.tokenization.train_sentencepiece",
        cwd=tmp_path)
    create_data(tmp_path, "--num_workers=1")


def test_python_versions_are_the_same_everywhere():
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in (
        "pyproject.toml", "Makefile", "README.md", "requirements.txt")}
    assert ">=3.11,<3.15" in texts["pyproject.toml"]
    assert re.findall(r"Python :: (3\.\d+)", texts["pyproject.toml"]) == [
        f"3.{minor}" for minor in range(11, 15)]
    assert re.findall(r'"(3\.\d+)"', (ROOT / ".github/workflows/tests.yml").read_text(
        encoding="utf-8")) == [f"3.{minor}" for minor in range(11, 14)]
    assert "<= (3, 13)" in texts["Makefile"]
    assert "Python 3.11 to 3.13" in texts["README.md"]
    assert "Python 3.11 to 3.13" in texts["requirements.txt"]
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)


def test_the_image_copies_what_its_context_has():
    copied = re.findall(r"^COPY (\S+) ", (ROOT / "Dockerfile").read_text(encoding="utf-8"),
                        re.M)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    assert sorted(copied) == re.findall(r"^!(.*)", ignored, re.M)
    assert all((ROOT / name).exists() for name in copied)
