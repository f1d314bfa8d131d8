"""`pip install .`: the package alone, which needs no TensorFlow for data creation.

    python -m pytest tests/test_packaging.py -m slow
"""

import subprocess
import sys
import venv

import pytest

import albert_tf
from tests.helpers import ROOT

LIGHT = """
import sys
import albert_tf
import albert_tf.pretraining_data.local, albert_tf.pretraining_data.release
import albert_tf.text.prepare, albert_tf.tokenization.train_sentencepiece
assert albert_tf.__file__.startswith(sys.prefix), albert_tf.__file__
assert albert_tf.tokenization.FullTokenizer
assert "tensorflow" not in sys.modules
print(albert_tf.__version__)
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_installed_package_tokenizes_and_creates_data(tmp_path):
    """Downloads what pyproject.toml asks for; builds from a copy, without traces."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    source = tmp_path / "source"
    source.mkdir()
    for name in ("albert_tf", "pyproject.toml", "README.md", "LICENSE"):
        run("cp", "-r", str(ROOT / name), str(source))
    run(python, "-m", "pip", "install", "--quiet", str(source))
    assert run(python, "-c", LIGHT, cwd=tmp_path).strip() == albert_tf.__version__
    (tmp_path / "text.txt").write_text("One sentence here.\nAnother sentence there.\n\n"
                                       "A second text.\nIt has two sentences.\n")
    (tmp_path / "vocab.txt").write_text("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "sentence", "."]) + "\n")
    run(python, ROOT / "create_pretraining_data.py", "--input_file=text.txt",
        "--output_file=data.tfrecord", "--vocab_file=vocab.txt", "--max_seq_length=16",
        "--max_predictions_per_seq=3", "--num_workers=1", cwd=tmp_path)
    assert (tmp_path / "data.tfrecord").stat().st_size > 0


def test_python_versions_are_the_same_everywhere():
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in (
        "pyproject.toml", "Makefile", "README.md", "requirements.txt")}
    assert ">=3.10,<3.14" in texts["pyproject.toml"]
    assert "<= (3, 13)" in texts["Makefile"]
    assert "Python 3.10 to 3.13" in texts["README.md"]
    assert "Python 3.10 to 3.13" in texts["requirements.txt"]
    assert (3, 10) <= sys.version_info[:2] <= (3, 13)
