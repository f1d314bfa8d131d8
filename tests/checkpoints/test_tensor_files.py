"""TensorFlow's checkpoint files, read by NumPy alone, and PyTorch's files, without PyTorch
and without running what they ask for.

The fixtures were written by PyTorch 2.13, one of them in the format before 1.6.
"""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import bundle, tensor_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.errors import InputError
from tests.helpers import FIXTURES

EXPECTED = {"a": np.arange(6).reshape(2, 3), "a_t": np.arange(6).reshape(2, 3).T,
            "half": [1.5, -2.0], "bf": [1.5, -2.0], "ids": [[0, 1, 2, 3]], "p": [9.0]}


@pytest.mark.parametrize("name", ["before_1_6.bin", "since_1_6.bin"])
def test_tensors_of_both_kinds_of_file(name):
    found = tensor_files.read_torch(str(FIXTURES / "interop" / name))
    assert set(found) == set(EXPECTED)
    for key, value in EXPECTED.items():
        assert found[key].shape == np.shape(value)
        np.testing.assert_array_equal(found[key].read(), value)


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_that_calls_os_system_is_refused_and_not_run(archive, tmp_path):
    content = pickle.dumps({"a": Evil(tmp_path / "marker")})
    path = tmp_path / "pytorch_model.bin"
    if archive:
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("archive/data.pkl", content)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"asks for (posix|nt)\.system.*it was not run"):
        tensor_files.read_torch(str(path))
    assert not (tmp_path / "marker").exists()


def archive(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps(content))
    return stream.getvalue()


@pytest.mark.parametrize("content, named", [
    *((f"c{module}\n{name}\n.".encode(), rf"{module}\.{name}") for module, name in (
        ("builtins", "eval"), ("torch", "load"))),
    (archive([1]), "no attribute"), (archive({"state_dict": [1]}), "no attribute"),
    # The list is remembered as number 2^30, which would fill the memory.
    (b"\x80\x02]r\xff\xff\xff\x3f.", "damaged")])
def test_what_is_no_dictionary_of_tensors_is_refused(content, named, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"pytorch_model.bin.*{named}"):
        tensor_files.read_torch(str(path))


@pytest.mark.parametrize("name", ["before_1_6.bin", "since_1_6.bin"])
def test_damage_ends_in_a_sentence(name, tmp_path):
    """Every byte changed in turn, every end cut: InputError, or numbers."""
    content = (FIXTURES / "interop" / name).read_bytes()
    path = tmp_path / "pytorch_model.bin"
    random = np.random.default_rng(0)
    damaged = [content[:cut] for cut in range(0, len(content), 59)]
    for place in random.integers(0, len(content), 150):
        changed = bytearray(content)
        changed[place] ^= int(random.integers(1, 256))
        damaged.append(bytes(changed))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            for tensor in tensor_files.read_torch(str(path)).values():
                tensor.read()
        except InputError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 50


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path):
    resource = pytest.importorskip("resource")
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(InputError, match="File too large"):
            tensor_files.write_h5(
                str(tmp_path / "a.h5"), {"a": Tensor.of(np.zeros(5000, np.float32))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


# ---- TensorFlow's ---------------------------------------------------------------

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
    (lambda index, data: data.write_bytes(data.read_bytes()[:-1]), "ends before"),
    (lambda index, data: data.unlink(), "data-00000-of-00001: "),
    (lambda index, data: data.write_bytes(b"x" + data.read_bytes()[1:]),
     "wrong checksum")], ids=["cut", "changed", "short", "gone", "flipped"])
def test_damage_is_named(damage, words, prefix, tmp_path):
    bundle.write(prefix, {"bert/a": Tensor.of(ARRAYS["bert/a"])})
    damage(tmp_path / "model.ckpt.index", tmp_path / "model.ckpt.data-00000-of-00001")
    with pytest.raises(InputError, match=words):
        bundle.read(prefix)["bert/a"].read()
