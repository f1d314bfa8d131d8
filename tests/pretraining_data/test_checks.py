"""Text that gives poor data: warnings, and what is refused."""

import dataclasses

import pytest

from albert_tf.errors import InputError
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.job_options import DataOptions
from albert_tf.pretraining_data.options import InstanceOptions

SENTENCE = "The {} saw a small mouse near the old house and ran away.\n"


def options_of(tmp_path, **more):
    path = tmp_path / "text.txt"
    path.write_text("".join(
        SENTENCE.format("cat dog man fox".split()[i % 4]) + "\n" * (i % 30 == 29)
        for i in range(3000)))
    return DataOptions((str(path),), (str(tmp_path / "new" / "out"),), InstanceOptions(
        max_seq_length=64), **more)


@pytest.mark.parametrize("single", ["random", "skip"])
def test_a_paragraph_a_line_is_reported(tmp_path, tokenizer, caplog, single):
    """Chunks of one line are frequent, though no line is longer than a sequence."""
    options = options_of(tmp_path, dupe_factor=2)
    options = dataclasses.replace(options, instances=InstanceOptions(
        max_seq_length=64, single_segment=single))
    short, long = SENTENCE.format("cat").strip(), (
        SENTENCE.format("old dog").strip() + " ") * 3
    (tmp_path / "text.txt").write_text(
        "".join(f"{short}\n{short}\n\n{long}\n\n{long}\n\n" for _ in range(80)))
    local.create(options, tokenizer, num_workers=1)
    assert "In the records" in caplog.text and f"--single_segment={single}" in caplog.text


def test_lines_longer_than_a_sequence_are_reported(tmp_path, tokenizer, caplog):
    options = options_of(tmp_path)
    line = " ".join(["the old mouse ran near a house"] * 20)
    (tmp_path / "text.txt").write_text(f"{line}\n{line}\n{line}\n\n" * 20)
    made = local.create(options, tokenizer, num_workers=1)
    assert made["label_1_share"] == 1  # As in the original implementation.
    cut = made["pieces_cut_off"] / (made["pieces_cut_off"] + made["pieces_in_instances"])
    assert f"100.0% of the instances have label 1, and {cut:.1%} of the tokens" in (
        caplog.text)


@pytest.mark.parametrize("name, content", [
    ("a.jsonl", b'{"text": "One."}\n'), ("a.json.gz", b""), ("a.parquet", b"PAR1"),
    ("old_mac.txt", b"One.\rTwo.\r\rThree.\r")])
def test_what_has_not_one_sentence_per_line_is_refused(
        tmp_path, tokenizer, name, content):
    (tmp_path / name).write_bytes(content)
    options = dataclasses.replace(
        options_of(tmp_path), input_files=(str(tmp_path / name),))
    with pytest.raises(InputError, match=f"--input_file.*{name}.*prepare_corpus.py"):
        local.create(options, tokenizer, num_workers=1)
    assert not (tmp_path / "new").exists()
