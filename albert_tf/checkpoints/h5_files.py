"""Files of Keras weights in HDF5, read and written by h5py."""

import contextlib
from typing import Any, Iterator

import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import Tensor, widened
from albert_tf.errors import InputError


def package():
    """h5py, imported late."""
    try:
        import h5py
    except ImportError as error:
        raise InputError(".h5 files need the package h5py: pip install h5py."
                         ) from error
    return h5py


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    library = package()
    if not files.exists(path):
        raise InputError(f"{path}: is not there; copy or download the whole folder.")
    try:
        with library.File(path, "r") as opened:
            yield opened
    except (OSError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: not a file of Keras weights, damaged or cut short "
                         f"({error}); copy or download it again.") from error


def read(path: str) -> dict[str, Tensor]:
    """The datasets of a file by their paths, read when asked for."""
    found: dict[str, Tensor] = {}

    def tensor(name, item):
        # Keras writes bfloat16 as two bytes without a type, and says so.
        is_bfloat16 = item.attrs.get("dtype") == "bfloat16"

        def read_tensor() -> np.ndarray:
            with _opened(path) as stream:
                array = np.asarray(stream[name])
            return widened(array.view("<u2")) if is_bfloat16 else array

        return Tensor(tuple(item.shape or ()), read_tensor,
                      "bfloat16" if is_bfloat16 else item.dtype.name)

    def visit(name, item):
        if isinstance(item, package().Dataset):
            if item.external or item.is_virtual:
                raise OSError(f"the numbers of {name} lie in another file")
            # Early versions of Keras 3 named the first part otherwise.
            known = name.replace("_layer_checkpoint_dependencies/", "layers/", 1)
            found[known] = tensor(name, item)

    with _opened(path) as stream:
        stream.visititems(visit)
    return found
