"""Reads and writes other projects' files of tensors: .safetensors, HDF5 (Keras), and
PyTorch's files, which are read without PyTorch and without running code in them.
"""

import collections
import functools
import io
import os
import pickle
import zipfile
from typing import Any, BinaryIO, Callable, Mapping

import ml_dtypes
import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import Tensor, in_file
from albert_tf.errors import InputError, reading

# ---- safetensors -----------------------------------------------------------

# Names of types in safetensors → NumPy's, if an ALBERT may have them.
_SAFETENSORS_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_safetensors(path: str) -> dict[str, Tensor]:
    """Returns the tensors of a .safetensors file by name, read when asked for."""
    import safetensors

    files.check_local(path)
    with reading(path):
        # Mapped into memory, each page that was read would count as memory in use.
        stream = safetensors.safe_open(path, framework="np", backend="pread")
        slices = {name: stream.get_slice(name) for name in stream.keys()}
        return {name: in_file(
            path, part.get_shape(), functools.partial(stream.get_tensor, name),
            _SAFETENSORS_TYPES.get(part.get_dtype(), part.get_dtype()))
                for name, part in slices.items()}


def write_safetensors(path: str, tensors: Mapping[str, Tensor], dtype: str) -> None:
    """Writes a .safetensors file whose numbers have the type `dtype`."""
    import safetensors.numpy

    safetensors.numpy.save_file({
        name: np.ascontiguousarray(
            tensor.read(), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for name, tensor in sorted(tensors.items())}, path, metadata={"format": "pt"})
    # The package makes the file readable only for its owner.
    os.chmod(path, os.stat(os.path.dirname(path)).st_mode & 0o666)


# ---- HDF5 ------------------------------------------------------------------


def read_h5(path: str) -> dict[str, Tensor]:
    """Returns the datasets of an HDF5 file of Keras weights by their paths."""
    import h5py

    files.check_local(path)
    found: dict[str, Tensor] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item)
            # Keras writes bfloat16 as two bytes without a type.
            if item.attrs.get("dtype") == "bfloat16":
                array = array.view(ml_dtypes.bfloat16).astype(np.float32)
            # Early versions of Keras 3 have a different name for the first part.
            found[name.replace("_layer_checkpoint_dependencies/", "layers/", 1)] = (
                Tensor.of(array))

    with reading(path), h5py.File(path, "r") as stream:
        stream.visititems(add)
    return found


def write_h5(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Writes an HDF5 file with a dataset for each tensor."""
    import h5py

    # In memory first: HDF5 ends the process if the disk is full.
    content = io.BytesIO()
    with h5py.File(content, "w") as stream:
        for name, tensor in tensors.items():
            stream.create_dataset(name, data=tensor.read())
    files.write(path, content.getvalue())


# ---- PyTorch ---------------------------------------------------------------

# A file is a pickle, which names classes and functions to call. Only those that make
# tensors are allowed here, and functions of our own take their place. There are two
# kinds: zip archives (PyTorch 1.6 and later), and several pickles, then the numbers.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# PyTorch's class of the numbers → NumPy's type.
_STORAGES = {name: np.dtype(dtype) for name, dtype in {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2",
    "BFloat16Storage": ml_dtypes.bfloat16, "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?"}.items()}


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...],
             stride: tuple[int, ...], *rest: Any) -> Tensor:
    """Makes a tensor from its storage, as torch._utils._rebuild_tensor_v2 does."""
    del rest
    size = tuple(size)

    def read() -> np.ndarray:
        numbers = storage.read()
        # NumPy refuses a damaged size, which would read outside of the numbers.
        return np.ascontiguousarray(np.ndarray(
            size, numbers.dtype, numbers, offset * numbers.itemsize,
            [step * numbers.itemsize for step in stride]))

    return Tensor(size, read, storage.dtype)


_ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
    ("torch", "Size"): tuple,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}


# Python's own unpickler, not C's, which takes 16 GB for one damaged number.
class _Unpickler(pickle._Unpickler):
    def __init__(self, stream: BinaryIO, path: str, read: Callable[[str], bytes]):
        super().__init__(stream, encoding="utf-8")
        self._path, self._read = path, read
        self.dtypes: dict[str, np.dtype] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise InputError(
                f"{self._path}: asks for {module}.{name}, which could run any code; it "
                "was not run. Give a file of weights alone, as save_pretrained and "
                "torch.save(model.state_dict(), ...) write it.")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, count = pid[:5]
        self.dtypes[str(key)] = dtype
        return Tensor((count,), lambda: np.frombuffer(self._read(str(key)), dtype),
                      dtype.name)


def read_torch(path: str) -> dict[str, Tensor]:
    """Returns the tensors of a PyTorch file, which may hold nothing else, by name.

        read_torch("albert/pytorch_model.bin")["albert.pooler.bias"].read()
    """
    def read_stored(name: str) -> bytes:
        with files.open_binary(path) as again, zipfile.ZipFile(again) as archive:
            return archive.read(name)

    with files.open_binary(path) as stream, reading(path):
        if zipfile.is_zipfile(stream):
            name = next(name for name in zipfile.ZipFile(stream).namelist()
                        if os.path.basename(name) == "data.pkl")
            data = name.removesuffix(".pkl")
            state = _Unpickler(io.BytesIO(read_stored(name)), path,
                               lambda key: read_stored(f"{data}/{key}")).load()
        else:
            stream.seek(0)
            state = _legacy(path, stream)
        state = state.get("state_dict", state)
        return {name: in_file(path, tensor.shape, tensor.read, tensor.dtype)
                for name, tensor in state.items()
                if isinstance(name, str) and isinstance(tensor, Tensor)}


def _legacy(path: str, stream: BinaryIO) -> Any:
    """Reads an older file: magic number, version, the machine's sizes, the object, the
    keys of its numbers, and for each key the count and the numbers."""
    places: dict[str, tuple[int, int]] = {}

    def read_numbers(key: str) -> bytes:
        with files.open_binary(path) as again:
            again.seek(places[key][0])
            return again.read(places[key][1])

    header, unpickler, keys = (_Unpickler(stream, path, read_numbers) for _ in range(3))
    if [header.load() for _ in range(3)][0] != _LEGACY_MAGIC:
        raise ValueError("no magic number")
    state = unpickler.load()
    for key in keys.load():
        count = int.from_bytes(stream.read(8), "little")
        size = count * unpickler.dtypes[str(key)].itemsize
        places[str(key)] = stream.tell(), size
        stream.seek(size, 1)
    return state
