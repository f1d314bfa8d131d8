"""What a data set will take, said before it is made."""

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
    made = local.create(options, tokenizer, num_workers=1, picture=False)["instances"]
    size = (tmp_path / "new" / "out").stat().st_size
    encoder = local.PieceEncoder(tokenizer)
    found = checks.estimate(options, encoder, (tmp_path / "text.txt").stat().st_size)
    assert found.instances == pytest.approx(made, rel=0.25)
    assert found.record_bytes == pytest.approx(size, rel=0.25)
    assert "The records will be about" in caplog.text


def test_what_the_disk_has_not_got_is_refused(tmp_path, tokenizer, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        checks.shutil, "disk_usage", lambda folder: usage._replace(free=500_000))
    with pytest.raises(InputError, match=r"need [23]\d.* MB of disk .*/new.* has 500 kB "
                                         "free; make room, .*smaller --dupe_factor"):
        local.create(options_of(tmp_path), tokenizer)
    assert not (tmp_path / "new" / "out").exists()


def test_what_memory_has_not_got_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(parallel, "available_memory", lambda: 1_000_000)
    with pytest.raises(InputError, match="--reproduce_release holds everything in memory: .* "
                                         "but 1 MB are free; leave the flag out"):
        release.create(options_of(tmp_path), tokenizer)
