"""What a data set will take, said before it is made."""

import contextlib
import dataclasses
import re
import shutil

import pytest

from albert_tf.jobs import parallel
from albert_tf.errors import InputError
from albert_tf.pretraining_data import checks, local, release
from albert_tf.pretraining_data.options import DataOptions, InstanceOptions

SENTENCE = "The {} saw a small mouse near the old house and ran away.\n"


def options_of(tmp_path, **more):
    path = tmp_path / "text.txt"
    path.write_text("".join(
        SENTENCE.format("cat dog man fox".split()[i % 4]) + "\n" * (i % 30 == 29)
        for i in range(3000)))
    return DataOptions((str(path),), (str(tmp_path / "new" / "out"),), InstanceOptions(
        max_seq_length=64), **more)


def test_the_estimate_is_near_what_is_made(tmp_path, tokenizer, caplog):
    options = options_of(tmp_path, dupe_factor=2)
    made = local.create(options, tokenizer, num_workers=1)["instances"]
    size = (tmp_path / "new" / "out").stat().st_size
    instances, megabytes = re.search(
        r"will be about ([\d,]+) instances, ([\d.]+) MB", caplog.text).groups()
    assert float(instances.replace(",", "")) == pytest.approx(made, rel=0.25)
    assert float(megabytes) * 1e6 == pytest.approx(size, rel=0.25)


def test_what_the_disk_has_not_got_is_refused(tmp_path, tokenizer, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        checks.shutil, "disk_usage", lambda folder: usage._replace(free=500_000))
    with pytest.raises(InputError, match=r"[23]\d.* MB .*/new.* 500 kB "):
        local.create(options_of(tmp_path), tokenizer)
    assert not (tmp_path / "new" / "out").exists()


@pytest.mark.parametrize("disk, fits", [(1, False), (2, True)])
def test_a_different_disk_for_unfinished_work_needs_no_room_for_outputs(
        tmp_path, tokenizer, monkeypatch, disk, fits):
    """The records take 1.22 MB."""
    monkeypatch.setattr(checks, "_disk", lambda folder: (
        (disk, 2_100_000) if folder.endswith("work") else (1, 1_500_000)))
    options = options_of(tmp_path, dupe_factor=2)
    with contextlib.nullcontext() if fits else pytest.raises(InputError, match="disk"):
        local.create(options, tokenizer, num_workers=1, work_dir=str(tmp_path / "work"))


def test_files_without_text_do_not_make_the_estimate_zero(tmp_path, tokenizer, caplog):
    options = options_of(tmp_path, dupe_factor=2)
    blank = [tmp_path / name for name in "ab"]
    for path in blank:
        path.write_text("\n\n")
    made = local.create(dataclasses.replace(
        options, input_files=(*map(str, blank), *options.input_files)), tokenizer)
    instances = re.search(r"about ([\d,]+) instances", caplog.text)[1]
    assert int(instances.replace(",", "")) == pytest.approx(made["instances"], rel=0.25)


def test_a_text_without_pairs_may_be_one_document(tmp_path, tokenizer, caplog):
    options = options_of(tmp_path)
    (tmp_path / "text.txt").write_text(SENTENCE * 9)
    for objective, warned in (("none", False), ("order", True)):
        local.create(dataclasses.replace(options, instances=InstanceOptions(
            max_seq_length=64, sentence_objective=objective)), tokenizer)
        assert ("one document" in caplog.text) == warned


def test_what_memory_has_not_got_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(parallel, "available_memory", lambda: 1_000_000)
    with pytest.raises(InputError, match="--reproduce_release .* 1 MB "):
        release.create(options_of(tmp_path), tokenizer)


def test_a_table_is_not_text(tmp_path, tokenizer):
    options = options_of(tmp_path)
    table = str(tmp_path / "x.parquet")
    shutil.copy(options.input_files[0], table)
    with pytest.raises(InputError, match="--input_file: .*x.parquet .*prepare_corpus.py"):
        checks.check(dataclasses.replace(options, input_files=(table,)), tokenizer)


@pytest.mark.parametrize("single, warned", [
    ("random", "of the instances have label 1"),
    ("skip", "of the tokens are left out by --single_segment=skip")])
def test_a_paragraph_a_line_is_reported(tmp_path, tokenizer, caplog, single, warned):
    """Chunks of one line are frequent, though no line is longer than a sequence."""
    options = options_of(tmp_path, dupe_factor=2)
    options = dataclasses.replace(options, instances=InstanceOptions(
        max_seq_length=64, single_segment=single))
    short, long = SENTENCE.format("cat").strip(), (
        SENTENCE.format("old dog").strip() + " ") * 3
    (tmp_path / "text.txt").write_text(
        "".join(f"{short}\n{short}\n\n{long}\n\n{long}\n\n" for _ in range(80)))
    local.create(options, tokenizer, num_workers=1)
    assert "In the records" in caplog.text and warned in caplog.text


def test_lines_longer_than_a_sequence_are_reported(tmp_path, tokenizer, caplog):
    options = options_of(tmp_path)
    line = " ".join(["the old mouse ran near a house"] * 20)
    (tmp_path / "text.txt").write_text(f"{line}\n{line}\n{line}\n\n" * 20)
    made = local.create(options, tokenizer, num_workers=1)
    assert made["label_1_share"] == 1  # As in the original implementation.
    cut = made["pieces_cut_off"] / (made["pieces_cut_off"] + made["pieces_in_instances"])
    assert f"100.0% of the instances have label 1, and {cut:.1%} of the tokens" in (
        caplog.text)
