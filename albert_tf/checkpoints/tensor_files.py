"""Reads and writes other projects' files of tensors: .safetensors, HDF5 (Keras), and
PyTorch's files, which are read without PyTorch and without running code in them.

Each tensor is read when it is asked for. The packages safetensors and h5py are imported
only when a file needs them.
"""

import collections
import contextlib
import dataclasses
import importlib
import io
import math
import os
import pickle
import pickletools
import zipfile
from typing import Any, BinaryIO, Callable, Iterator, Mapping

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints.bundle import Tensor, widened
from albert_tf.errors import InputError


def _package(name: str, suffix: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{suffix} files need the package {name}; run pip install "
                         f"{name}.") from error


# ---- safetensors -----------------------------------------------------------

# Names of types in safetensors → NumPy's; NumPy has no bfloat16.
_SAFETENSORS_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16",
                      "BF16": "bfloat16", "I64": "int64", "I32": "int32"}


def read_safetensors(path: str) -> dict[str, Tensor]:
    """Returns the tensors of a .safetensors file by name, read when asked for."""
    files.check_local(path)
    package = _package("safetensors", ".safetensors")

    def opened():
        # Mapped into memory, each page that was read would count as memory in use.
        return package.safe_open(path, framework="np", backend="pread")

    def tensor(name: str, kind: str, shape: tuple[int, ...]) -> Tensor:
        def read_tensor() -> np.ndarray:
            if kind == "BF16":
                return widened(_raw(path, name, "<u2")).reshape(shape)
            with opened() as stream:
                return stream.get_tensor(name)

        return Tensor(shape, read_tensor, _SAFETENSORS_TYPES.get(kind, kind))

    try:
        with opened() as stream:
            slices = {name: stream.get_slice(name) for name in stream.keys()}
            return {name: tensor(name, part.get_dtype(), tuple(part.get_shape()))
                    for name, part in slices.items()}
    except (package.SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a safetensors file, damaged or cut short ({error}); copy "
            "or download it again.") from error


def _raw(path: str, name: str, dtype: str) -> np.ndarray:
    """Returns a tensor's numbers as a type, from a file that was checked."""
    with files.open_binary(path) as stream:
        size = int.from_bytes(stream.read(8), "little")
        first, last = text_files.parse_json(
            stream.read(size).decode(), path)[name]["data_offsets"]
        stream.seek(8 + size + first)
        return np.frombuffer(stream.read(last - first), dtype)


def write_safetensors(path: str, tensors: Mapping[str, Tensor], dtype: str) -> None:
    """Writes a .safetensors file whose numbers have the type `dtype`."""
    package = _package("safetensors", ".safetensors")
    arrays = {name: _narrowed(tensors[name].read(), dtype) for name in sorted(tensors)}
    package.serialize_file(
        {name: package.TensorSpec(
            dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data,
            data_len=array.nbytes) for name, array in arrays.items()},
        path, metadata={"format": "pt"})
    # The package makes the file readable only for its owner.
    os.chmod(path, os.stat(os.path.dirname(path)).st_mode & 0o666)


def _narrowed(array: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to a type, ties to even; returns bfloat16 as uint16."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(array, dtype)
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


# ---- HDF5 ------------------------------------------------------------------


@contextlib.contextmanager
def _opened_h5(path: str) -> Iterator[Any]:
    files.check_local(path)
    library = _package("h5py", ".h5")
    if not files.exists(path):
        raise InputError(f"{path} does not exist; copy or download the whole folder.")
    try:
        with library.File(path, "r") as opened:
            yield opened
    except (OSError, KeyError, RuntimeError) as error:
        raise InputError(f"{path} is not a file of Keras weights, damaged or cut short "
                         f"({error}); copy or download it again.") from error


def read_h5(path: str) -> dict[str, Tensor]:
    """Returns the datasets of an HDF5 file of Keras weights by their paths."""
    tensors: dict[str, Tensor] = {}

    def tensor(name, item):
        # Keras writes bfloat16 as two bytes without a type, and an attribute says so.
        is_bfloat16 = item.attrs.get("dtype") == "bfloat16"

        def read_tensor() -> np.ndarray:
            with _opened_h5(path) as stream:
                array = np.asarray(stream[name])
            return widened(array.view("<u2")) if is_bfloat16 else array

        return Tensor(tuple(item.shape or ()), read_tensor,
                      "bfloat16" if is_bfloat16 else item.dtype.name)

    def visit(name, item):
        if isinstance(item, _package("h5py", ".h5").Dataset):
            if item.external or item.is_virtual:
                raise OSError(f"the numbers of {name} lie in another file")
            # Early versions of Keras 3 have a different name for the first part.
            key = name.replace("_layer_checkpoint_dependencies/", "layers/", 1)
            tensors[key] = tensor(name, item)

    with _opened_h5(path) as stream:
        stream.visititems(visit)
    return tensors


def write_h5(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Writes an HDF5 file with a dataset for each tensor."""
    with _package("h5py", ".h5").File(path, "w") as stream:
        for name, tensor in tensors.items():
            stream.create_dataset(name, data=tensor.read())


# ---- PyTorch ---------------------------------------------------------------

# A file is a pickle, which names classes and functions to call. Only those that make
# tensors are allowed here, and functions of our own take their place; any other name
# is an error. There are two kinds of files: zip archives (PyTorch 1.6 and later), and
# older files of several pickles with the numbers after them.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# PyTorch's class of the numbers → NumPy's type; NumPy has no bfloat16.
_STORAGES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2",
             "BFloat16Storage": "bfloat16", "LongStorage": "<i8", "IntStorage": "<i4",
             "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
             "BoolStorage": "?"}


@dataclasses.dataclass(frozen=True)
class _Kind:
    name: str  # a key of _STORAGES


@dataclasses.dataclass(frozen=True)
class _Storage:
    kind: str
    key: str
    read: Callable[[str], bytes]  # takes the key

    def numbers(self) -> np.ndarray:
        raw, dtype = self.read(self.key), _STORAGES[self.kind]
        if dtype == "bfloat16":
            return widened(np.frombuffer(raw, "<u2"))
        return np.frombuffer(raw, dtype)


def _rebuild(storage: _Storage, offset: int, size: tuple[int, ...],
             stride: tuple[int, ...], *rest: Any) -> Tensor:
    """Makes a tensor from its storage, as torch._utils._rebuild_tensor_v2 does."""
    del rest
    size, stride = tuple(size), tuple(stride)

    def read() -> np.ndarray:
        numbers = storage.numbers()
        last = offset + sum((n - 1) * step for n, step in zip(size, stride))
        if 0 in size:
            return np.zeros(size, numbers.dtype)
        # A damaged size must not read outside of the numbers, nor repeat them until the
        # memory is full.
        if len(size) != len(stride) or min((offset, *size, *stride)) < 0 or (
                max(last + 1, math.prod(size)) > len(numbers)):
            raise ValueError("a tensor reaches beyond its numbers")
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(
            numbers[offset:], size, [step * numbers.itemsize for step in stride]))

    dtype = _STORAGES[storage.kind]
    return Tensor(size, read, dtype if dtype == "bfloat16" else np.dtype(dtype).name)


_ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
    ("torch", "Size"): tuple,
    **{("torch", name): _Kind(name) for name in _STORAGES},
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that only makes tensors."""

    def __init__(self, stream: BinaryIO, path: str, read: Callable[[str], bytes]):
        super().__init__(stream, encoding="utf-8")
        self._stream, self._path, self._read = stream, path, read
        self.storages: dict[str, tuple[str, int]] = {}

    def load(self) -> Any:
        """Returns the next object. A pickle numbers the objects that it remembers one
        by one; for a damaged number of 2^31 Python would take 16 GB."""
        begin = self._stream.tell()
        for count, (operation, number, _) in enumerate(
                pickletools.genops(self._stream)):
            if "PUT" in operation.name and int(number) > count:
                raise ValueError("it remembers more objects than it has")
        self._stream.seek(begin)
        return super().load()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise InputError(
                f"{self._path}: asks for {module}.{name}, which is not a tensor and "
                "could run any code; it was not run. Give a file that holds only "
                "weights, as torch.save(model.state_dict(), ...) or save_pretrained "
                "writes it.")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        what, kind, key, _, count = pid[:5]
        if what != "storage" or not isinstance(kind, _Kind):
            raise ValueError("a stored object is not a tensor")
        self.storages[str(key)] = kind.name, count
        return _Storage(kind.name, str(key), self._read)


def read_torch(path: str) -> dict[str, Tensor]:
    """Returns the tensors of a PyTorch file by name, read when asked for. Raises
    InputError if the file is damaged or holds anything but tensors.

        read_torch("albert/pytorch_model.bin")["albert.pooler.bias"].read()
    """
    with files.open_binary(path) as stream:
        is_archive = zipfile.is_zipfile(stream)
        stream.seek(0)
        try:
            state = _archive(path, stream) if is_archive else _legacy(path, stream)
            state = state.get("state_dict", state) if isinstance(state, dict) else state
            if not isinstance(state, dict):
                raise TypeError("the stored object is not a dictionary")
        except InputError:
            raise
        except Exception as error:  # A damaged archive or pickle can raise any error.
            raise InputError(
                f"{path} is not a file of PyTorch weights, damaged or cut short "
                f"({str(error) or type(error).__name__}); copy or download it again."
            ) from error
    return {name: _explained(path, name, tensor) for name, tensor in state.items()
            if isinstance(name, str) and isinstance(tensor, Tensor)}


def _explained(path: str, name: str, tensor: Tensor) -> Tensor:
    """Returns the tensor; any error when reading it becomes an InputError."""
    def read_tensor() -> np.ndarray:
        try:
            return tensor.read()
        except Exception as error:
            raise InputError(f"{path}: the tensor {name} is damaged or cut short "
                             f"({error}); copy or download it again.") from error

    return dataclasses.replace(tensor, read=read_tensor)


def _archive(path: str, stream: BinaryIO) -> Any:
    with zipfile.ZipFile(stream) as archive:
        pickle_name = [name for name in archive.namelist()
                       if name.rpartition("/")[2] == "data.pkl"][0]
        content = _read_stored(path, archive, pickle_name)
    folder = pickle_name.removesuffix("data.pkl")

    def read_numbers(key: str) -> bytes:
        with files.open_binary(path) as again, zipfile.ZipFile(again) as archive:
            return _read_stored(path, archive, f"{folder}data/{key}")

    return _Unpickler(io.BytesIO(content), path, read_numbers).load()


def _read_stored(path: str, archive: zipfile.ZipFile, name: str) -> bytes:
    """Reads a member of an archive. PyTorch does not compress members; one that is
    larger than the archive could fill the memory."""
    if archive.getinfo(name).file_size > files.size(path):
        raise ValueError(f"{name} claims to be larger than the file")
    return archive.read(name)


def _legacy(path: str, stream: BinaryIO) -> Any:
    """Reads an older file: magic number, version, the machine's sizes, the object, the
    keys of its numbers, and for each key the count and the numbers."""
    places: dict[str, tuple[int, int]] = {}

    def read_numbers(key: str) -> bytes:
        place, size = places[key]
        with files.open_binary(path) as again:
            again.seek(place)
            return again.read(size)

    header = [_Unpickler(stream, path, read_numbers).load() for _ in range(3)]
    if header[0] != _LEGACY_MAGIC:
        raise ValueError("no magic number")
    unpickler = _Unpickler(stream, path, read_numbers)
    state = unpickler.load()
    for key in _Unpickler(stream, path, read_numbers).load():
        kind, _ = unpickler.storages[str(key)]
        count = int.from_bytes(stream.read(8), "little")
        dtype = _STORAGES[kind]
        size = count * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
        places[str(key)] = stream.tell(), size
        if stream.seek(size, 1) > files.size(path):
            raise EOFError("the numbers end early")
    return state
