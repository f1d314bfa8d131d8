"""TFRecord files: written, read, scanned; damage is named with file and record.

    python -m pytest tests/records/test_tfrecord.py
"""

import gzip
import struct

import pytest

from albert_tf.errors import InputError
from albert_tf.records import tfrecord
from albert_tf.records.tfrecord import FileInfo, read_records, scan
from tests.records.examples import SPEC, example, flip, frame_size
from tests.helpers import serialized


def test_tensorflow_reads_our_files(path):
    import tensorflow as tf

    ours = list(read_records(str(path)))
    assert ours == [serialized(SPEC, example(n)) for n in range(5)]
    assert ours == list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def test_we_read_tensorflows_files(tmp_path):
    import tensorflow as tf

    path = str(tmp_path / "tf.tfrecord")
    contents = [b"", b"one", b"x" * 100_000]
    with tf.io.TFRecordWriter(path) as writer:
        for content in contents:
            writer.write(content)
    assert list(read_records(path)) == contents
    assert scan(path).num_records == 3


def test_scan_counts(path, monkeypatch):
    assert scan(str(path)) == FileInfo(str(path), 5, path.stat().st_size)
    monkeypatch.setattr(tfrecord, "OFFSETS_EVERY", 2)
    found = scan(str(path))
    assert found.offsets == (0, 2 * frame_size(path), 4 * frame_size(path))
    assert found.near(3) == (2 * frame_size(path), 1)
    assert found.near(4) == (4 * frame_size(path), 0)


@pytest.mark.parametrize("length", [1 << 60, (1 << 64) - 1, 1 << 21])
def test_a_length_beyond_the_file_takes_no_memory(path, length):
    """Its checksum is right, and other fields of a file may lie there."""
    packed = struct.pack("<Q", length)
    path.write_bytes(path.read_bytes() + packed + tfrecord.masked_crc(packed) + b"abc")
    refused(path, "record 6: cut off")


# Damage.


def refused(path, named, *functions):
    for function in functions or (scan, read_records):
        with pytest.raises(InputError, match=f"^{path}.*{named}"):
            list(function(str(path)))


@pytest.mark.parametrize("record", [1, 2, 5])
def test_truncation(path, record):
    frame, content = frame_size(path), path.read_bytes()
    for place in (5, 20, frame - 1):  # In the header, the content, and the checksum.
        path.write_bytes(content[:(record - 1) * frame + place])
        refused(path, f"record {record}: cut off")


def test_damage(path):
    whole = path.read_bytes()
    flip(path, 2 * frame_size(path) + 1)
    refused(path, "record 3:")
    path.write_bytes(whole)
    flip(path, 3 * frame_size(path) + 40)
    assert scan(str(path)).num_records == 5  # looks at headers only
    refused(path, "record 4:", read_records)


@pytest.mark.parametrize("content, named", [
    (b"", "record 1: cut off"), (b"short\n", "record 1"),
    (b"A text of some length.\n" * 9, "record 1"),
    (gzip.compress(b"x" * 99, mtime=0), "compressed")])
def test_other_files(tmp_path, content, named):
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    refused(path, named)
    refused(tmp_path / "nowhere", "")
