"""The quickstart on a text of its own, from its command to its table."""

import random

import pytest

from tests.helpers import run_python


def _text(num_documents: int) -> str:
    """Documents of simple sentences, every one different."""
    draw = random.Random(1)
    nouns = "layer model piece sentence corpus letter river garden house tree".split()
    verbs = "shares reads follows keeps finds crosses covers".split()
    blocks = []
    for _ in range(num_documents):
        blocks.append(" ".join(
            f"The {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)} "
            f"near the {draw.choice(nouns)} number {draw.randrange(10000)}."
            for _ in range(draw.randrange(4, 9))))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.slow
def test_quickstart_on_one_file_of_text(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text(_text(400), encoding="utf-8")
    output = tmp_path / "out"
    command = ["quickstart.py", f"--text={text}", f"--output_dir={output}",
               "--num_train_steps=16"]
    run = run_python(*command)
    assert run.returncode == 0, run.stderr[-2000:]
    for row in ("masked-LM accuracy", "guessing the most frequent token",
                "sentence-order accuracy", "steps/s", "parameters", "Next steps"):
        assert row in run.stdout
    assert (output / "model" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "model" / "model.ckpt-best.index").exists()

    again = run_python(*command)
    assert again.returncode == 1 and "an earlier quickstart; remove" in again.stderr
