"""TensorFlow's own file systems with fsspec's methods. They reach gs:// on a machine with
TensorFlow, such as a TPU's, that lacks fsspec's driver gcsfs (albert_tf.files)."""

from typing import Any

import tensorflow as tf
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

_gfile = tf.io.gfile


class TensorFlowFiles(AbstractFileSystem):
    """The methods that albert_tf.files uses, for whole paths with their scheme."""

    _strip_protocol = str

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if not _gfile.exists(path):
            raise FileNotFoundError(path)
        stat = _gfile.stat(path)
        return {"size": stat.length, "type": "directory" if stat.is_directory else "file"}

    def ls(self, path: str, **options: Any) -> list[str]:
        return [_gfile.join(path, name) for name in _gfile.listdir(path)]

    def glob(self, path: str, **options: Any) -> dict[str, dict[str, str]]:
        # Asking which matches are folders would take a request for each.
        return {found: {"type": "file"} for found in _gfile.glob(path)}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return AbstractBufferedFile(self, path, size=_gfile.stat(path).length)
        stream = _gfile.GFile(path, mode)
        stream.write(b"")  # A file is created when it is first written to.
        return stream

    def cat_file(self, path: str, start: int = 0, end: int = 0, **options: Any) -> bytes:
        with _gfile.GFile(path, "rb") as stream:
            stream.seek(start)
            return stream.read(end - start)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        _gfile.rename(path1, path2, overwrite=True)

    def rm(self, path: str, **options: Any) -> None:
        if _gfile.exists(path):
            (_gfile.rmtree if _gfile.isdir(path) else _gfile.remove)(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        _gfile.makedirs(path)
