"""Files in object stores and on other servers: paths with a scheme, as in gs://bucket/a.

    with stores.of("s3://bucket/a.txt").open("s3://bucket/a.txt", "rb") as stream:
        stream.read()

TensorFlow's own file systems are used where TensorFlow is loaded and has the scheme, and
otherwise those of the package `fsspec` with its drivers. If the driver is missing,
TensorFlow is loaded for the schemes that it has. Both packages are imported for the first
such path, so that work on local files loads neither.
"""

import contextlib
import importlib.util
import io
import logging
import os
import re
import sys
from typing import Any, BinaryIO, Iterator

from albert_tf.errors import InputError, Interruption, reason_of

# Scheme → the package that fsspec needs for it, and the extra in pyproject.toml.
_GCS, _S3, _AZURE = ("gcsfs", "gcs"), ("s3fs", "s3"), ("adlfs", "azure")
_DRIVERS = {"gs": _GCS, "gcs": _GCS, "s3": _S3, "s3a": _S3, "abfs": _AZURE,
            "abfss": _AZURE, "az": _AZURE, "hdfs": ("pyarrow", "hdfs")}
# Schemes of stores with folders that must be made. In other stores a folder is the
# beginning of a name, and making one could make a bucket.
_WITH_FOLDERS = {"hdfs", "webhdfs", "file", "local", "sftp", "ssh", "ftp", "smb", "ram"}
_BUFFER = 1 << 20
# Loggers that report where credentials were found, and each connection.
_TALKATIVE = ("botocore", "aiobotocore", "azure")


def is_remote(path: str) -> bool:
    """Returns whether `path` has a scheme, as in gs://bucket/file."""
    return "://" in os.fspath(path)


def scheme_of(path: str) -> str:
    return os.fspath(path).partition("://")[0]


def of(path: str) -> "_TensorFlow | _Fsspec":
    """Returns the store of a path. Raises InputError, which says what to install, if
    there is none for its scheme, and if it cannot be reached."""
    scheme = scheme_of(path)
    package, extra = _DRIVERS.get(scheme, ("", ""))
    if "tensorflow" in sys.modules and is_in_tensorflow(path):
        return _TensorFlow(scheme)
    if _is_installed("fsspec") and _is_installed(package or "fsspec"):
        import fsspec

        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        if scheme in fsspec.available_protocols():
            with _errors(path):
                # Lists of files may be outdated, as other processes write there.
                return _Fsspec(scheme, fsspec.url_to_fs(
                    path, use_listings_cache=False)[0])
    if is_in_tensorflow(path):
        return _TensorFlow(scheme)
    if package:
        raise InputError(
            f"{path}: {scheme}:// needs the package {package}; run pip install "
            f"'albert_tf[{extra}]', or pip install fsspec {package}.")
    raise InputError(
        f"{path}: the scheme {scheme}:// is not known" + (
            "" if _is_installed("fsspec") else " without the package fsspec")
        + "; give a local path, gs://, s3://, abfs:// or hdfs://, or install the package "
        "with its driver for fsspec.")


def is_in_tensorflow(path: str) -> bool:
    """Returns whether TensorFlow, which this loads, has the scheme of a path."""
    if not _is_installed("tensorflow"):
        return False
    import tensorflow as tf

    return scheme_of(path) in tf.io.gfile.get_registered_schemes()


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def _errors(path: str, done: str = "reached") -> Iterator[None]:
    """Turns errors into InputErrors that name `path`. Each store and each of the
    packages below it has its own classes of errors."""
    try:
        yield
    except InputError:
        raise
    except ImportError as error:  # fsspec's own message says what to install.
        raise InputError(f"{path}: {error}.") from error
    except Exception as error:
        reason = ("it does not exist" if isinstance(error, FileNotFoundError) else
                  getattr(error, "strerror", None) or reason_of(error)).rstrip(".")
        if re.search("libjvm|libhdfs", reason):
            reason += " (hdfs:// needs Java, Hadoop's client, and CLASSPATH set for it)"
        raise (InputError if done == "reached" else Interruption)(
            f"{path} cannot be {done}: {reason}; check the name, the network and the "
            "credentials.") from error


class Store:
    """The base of both kinds of stores. `albert_tf.files` explains the operations. Errors
    are InputErrors, those of writing Interruptions.

    Attributes:
      has_folders: whether folders must be made before files are written in them.
    """

    def __init__(self, scheme: str):
        self.has_folders = scheme in _WITH_FOLDERS

    def open(self, path: str, mode: str) -> BinaryIO:
        """Opens a file with the mode "rb", "wb" or "ab"."""
        with _errors(path, "reached" if mode == "rb" else "written"):
            if mode == "rb" and self._is_folder(path):
                raise InputError(f"{path} is a folder; give a file.")
            stream = _Stream(path, mode, self._open(path, mode))
        return io.BufferedReader(stream, _BUFFER) if mode == "rb" else (
            io.BufferedWriter(stream, _BUFFER))


class _Stream(io.RawIOBase):
    """An open file with the methods of Python's files, of which those of TensorFlow and
    of some drivers lack some."""

    def __init__(self, path: str, mode: str, stream: Any):
        super().__init__()
        self._path, self._reads, self._stream = path, mode == "rb", stream

    def readable(self) -> bool:
        return self._reads

    def seekable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return not self._reads

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with _errors(self._path):
            self._stream.seek(offset, whence)
            return self._stream.tell()

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        with _errors(self._path):
            content = self._stream.read(len(buffer))
        buffer[:len(content)] = content
        return len(content)

    def write(self, content: Any) -> int:
        with _errors(self._path, "written"):
            self._stream.write(bytes(content))
        return len(content)

    def close(self) -> None:
        if not self.closed:
            try:
                with _errors(self._path, "reached" if self._reads else "written"):
                    self._stream.close()
            finally:
                super().close()


class _TensorFlow(Store):
    """The file systems of TensorFlow."""

    def __init__(self, scheme: str):
        import tensorflow as tf

        super().__init__(scheme)
        self._gfile = tf.io.gfile

    def _is_folder(self, path):
        # This also finds what does not exist; reading would find it later, or never.
        return self._gfile.stat(path).is_directory

    def _open(self, path, mode):
        stream = self._gfile.GFile(path, mode)
        if mode != "rb":
            stream.write(b"")  # A file is created when it is first written to.
        return stream

    def exists(self, path):
        with _errors(path):
            return self._gfile.exists(path)

    def is_folder(self, path):
        # The first answer is also no if the store cannot be reached.
        return self._gfile.isdir(path) or self.exists(path) and self._gfile.isdir(path)

    def names_in(self, folder):
        with _errors(folder):
            return [name.rstrip("/") for name in self._gfile.listdir(folder)]

    def size(self, path):
        with _errors(path):
            return self._gfile.stat(path).length

    def modified(self, path):
        with _errors(path):
            return self._gfile.stat(path).mtime_nsec / 1e9

    def glob(self, pattern, what):
        with _errors(what):
            return self._gfile.glob(pattern)

    def rename(self, source, target):
        with _errors(target, "written"):
            self._gfile.rename(source, target, overwrite=True)

    def remove(self, path):
        with _errors(path, "removed"):
            if self._gfile.exists(path):
                self._gfile.remove(path)

    def remove_folder(self, path):
        with _errors(path, "removed"):
            if self._gfile.exists(path):
                self._gfile.rmtree(path)

    def make_folder(self, path, what):
        with _errors(what):
            self._gfile.makedirs(path)


class _Fsspec(Store):
    """A file system of fsspec."""

    def __init__(self, scheme: str, system: Any):
        super().__init__(scheme)
        self._system = system

    def _is_folder(self, path):
        """Returns whether an existing path is a folder; raises an error for others."""
        return self._system.info(path)["type"] == "directory"

    def _open(self, path, mode):
        return self._system.open(path, mode)

    def exists(self, path):
        with _errors(path), contextlib.suppress(FileNotFoundError):
            self._system.info(path)
            return True
        return False

    def is_folder(self, path):
        # The method isdir is false if the store cannot be reached.
        with _errors(path), contextlib.suppress(FileNotFoundError):
            return self._is_folder(path)
        return False

    def names_in(self, folder):
        with _errors(folder):
            whole = self._system._strip_protocol(folder).rstrip("/")
            paths = [path.rstrip("/") for path in self._system.ls(folder, detail=False)]
            # Some stores keep an object of the folder's own name.
            return [os.path.basename(path) for path in paths if path != whole]

    def size(self, path):
        with _errors(path):
            return self._system.size(path)

    def modified(self, path):
        with _errors(path):
            return self._system.modified(path).timestamp()

    def glob(self, pattern, what):
        with _errors(what):
            found = self._system.glob(pattern, detail=True)
            # What is before the store's own name for it: scheme, and maybe a host.
            own = self._system._strip_protocol(pattern)
            before = pattern[:len(pattern) - len(own)] if pattern.endswith(own) else None
            return [self._system.unstrip_protocol(path) if before is None else
                    before + path for path, info in found.items()
                    if info["type"] != "directory"]

    def rename(self, source, target):
        with _errors(target, "written"):
            self._system.mv(source, target)

    def remove(self, path):
        with _errors(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._system.rm(path)

    def remove_folder(self, path):
        with _errors(path, "removed"), contextlib.suppress(FileNotFoundError):
            self._system.rm(path, recursive=True)

    def make_folder(self, path, what):
        if self.has_folders:
            with _errors(what):
                self._system.makedirs(path, exist_ok=True)
