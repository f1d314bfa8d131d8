"""The quickstart on a text of its own, from its command to its table."""

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
