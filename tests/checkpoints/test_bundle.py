"""TensorFlow's checkpoint files, read by NumPy alone.

    python -m pytest tests/checkpoints/test_bundle.py
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import bundle
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.errors import InputError

ARRAYS = {
    "bert/a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bert/a/adam_m": np.ones([], np.float64), "bert/empty": np.zeros([0, 3], "f"),
    "global_step": np.array(7, np.int64), "half": np.arange(3, dtype=np.float16),
    **{f"many/{i}": np.full([i], i, np.int32) for i in range(40)}}


@pytest.fixture(name="prefix")
def _prefix(tmp_path):
    return str(tmp_path / "model.ckpt")


def test_reads_what_tensorflow_wrote(prefix):
    half = tf.constant([1.5, -3.0, 2**100], tf.bfloat16).numpy()
    bundle.write(prefix, {name: Tensor.of(array) for name, array in (
        *ARRAYS.items(), ("bfloat16", half))})
    tensors = bundle.read(prefix)
    assert tensors["bfloat16"].dtype == "bfloat16"
    assert tensors.pop("bfloat16").read().dtype == "float32"
    assert set(tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name].read(), array)


@pytest.mark.parametrize("place", [0, 100])
def test_a_damaged_graph_of_objects_is_named(place, tmp_path):
    inner = tf.Module()
    inner.kernel = tf.Variable([1.0, 2.0], name="bert/kernel")
    path = tf.train.Checkpoint(model=inner).save(str(tmp_path / "ckpt"))
    data = tmp_path / "ckpt-1.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    graph = content.index(bundle.read(path)[bundle.OBJECT_GRAPH].read().item())
    content[graph - 5 + place:graph + place] = b"\0" * 5
    data.write_bytes(bytes(content))
    with pytest.raises(InputError, match="_CHECKPOINTABLE_OBJECT_GRAPH"):
        bundle.by_names(path)


@pytest.mark.parametrize("damage, words", [
    (lambda index, data: index.write_bytes(index.read_bytes()[:-9]), "not the index"),
    (lambda index, data: index.write_bytes(b"x" + index.read_bytes()[1:]),
     "a block has a wrong checksum"),
    (lambda index, data: data.write_bytes(data.read_bytes()[:-1]), "wrong checksum"),
    (lambda index, data: data.unlink(), "data-00000-of-00001: "),
    (lambda index, data: data.write_bytes(b"x" + data.read_bytes()[1:]),
     "wrong checksum")], ids=["cut", "changed", "short", "gone", "flipped"])
def test_damage_is_named(damage, words, prefix, tmp_path):
    bundle.write(prefix, {"bert/a": Tensor.of(ARRAYS["bert/a"])})
    damage(tmp_path / "model.ckpt.index", tmp_path / "model.ckpt.data-00000-of-00001")
    with pytest.raises(InputError, match=words):
        bundle.read(prefix)["bert/a"].read()
