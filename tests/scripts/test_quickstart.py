"""The quickstart on a text of its own, from its command to its table; Python's prose."""

import json

import pytest

from tests.helpers import run_python
from tests.pretraining_data.data_creation import CORPUS


@pytest.mark.slow
def test_quickstart_on_one_file_of_text(tmp_path):
    text, output = tmp_path / "book.txt", tmp_path / "out"
    text.write_bytes(CORPUS)
    command = ["quickstart.py", f"--text={text}", f"--output_dir={output}",
               "--num_train_steps=16"]
    run = run_python(*command)
    assert run.returncode == 0, run.stderr[-2000:]
    for row in ("masked-LM accuracy", "without the context",
                "sentence-order accuracy", "steps/s", "parameters", "Next steps"):
        assert row in run.stdout
    assert (output / "model" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "model" / "model.ckpt-best.index").exists()

    again = run_python(*command)
    assert again.returncode == 1 and "an earlier quickstart; remove" in again.stderr


MODULE = '''"""Tools for mills that stand by rivers.

    code = indented(1)

The tools in :mod:`mill` grind ``corn`` and, *slowly*, also wheat [1]_. See the
list of all tools for more of this.

It is at `a place <https://example.org>`_ that is not kept as prose here.

* A bullet that goes on over two lines, and
  whose second line is kept.

Args:
  corn: The corn to grind in the mill.
"""

class Mill:
    def turn(self):
        """Turn the wheel until all corn is ground.

        Notes
        -----
        The stones of the mill wear down over the years.

        x = y + 1 is no prose and so it goes."""
'''


def test_python_prose(tmp_path):
    for folder in ("b", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mill.py").write_text(MODULE)
    run = run_python("-c", "import json, sys, quickstart\n"
                     "json.dump([*quickstart.python_documents(sys.argv[1])], sys.stdout)",
                     tmp_path)
    [found] = json.loads(run.stdout)
    assert found.split("\n") == [
        "Tools for mills that stand by rivers.",
        "The tools in mill grind corn and, slowly, also wheat. See the list of all "
        "tools for more of this.",
        "A bullet that goes on over two lines, and whose second line is kept.",
        "Turn the wheel until all corn is ground.",
        "The stones of the mill wear down over the years."]
