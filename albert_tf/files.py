"""Files by name: globs, text with line numbers, writing under a temporary name.

Local paths go through Python's own functions; paths with a scheme, such as
`gs://bucket/file`, through `tf.io.gfile`, which is imported only then, so that
work on local files never loads TensorFlow.
"""

import contextlib
import glob
import gzip
import os
import shutil
import zlib
from typing import BinaryIO, Iterable, Iterator

from albert_tf.errors import InputError


def is_remote(path: str) -> bool:
    """Whether `path` has a scheme, as in gs://bucket/file."""
    return "://" in path


def _gfile():
    import tensorflow as tf

    return tf.io.gfile


@contextlib.contextmanager
def _remote_errors(what: str) -> Iterator[None]:
    """Turns the errors of tf.io.gfile at first contact into one sentence."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise InputError(
            f"{what} cannot be reached: {error.message.splitlines()[0]}; check the "
            "name, the network and the credentials.") from error


def open_binary(path: str, mode: str = "rb") -> BinaryIO:
    """Opens a local or remote file; the caller closes it.

    Raises:
      InputError: if the file cannot be opened.
    """
    try:
        return _gfile().GFile(path, mode) if is_remote(path) else open(path, mode)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be opened: {error.strerror or error}.") from error


def exists(path: str) -> bool:
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def rename(source: str, target: str) -> None:
    """Renames a file; an existing target is replaced."""
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def copy(source: str, target: str) -> None:
    """Copies a file whole, so that `target` never exists half-written."""
    with open_binary(source) as reader, atomic_write(target) as writer:
        shutil.copyfileobj(reader, writer)


def remove(path: str) -> None:
    """Removes a file; one that is not there is fine."""
    if is_remote(path):
        if _gfile().exists(path):
            _gfile().remove(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def expand_patterns(patterns: str | Iterable[str], flag: str) -> list[str]:
    """Files that match comma-separated globs.

    Args:
      patterns: globs, as one comma-separated string or as several strings.
      flag: the flag they came from, for the error message ("--input_file").

    Returns:
      The paths in the order of the patterns, sorted within each pattern, each
      path once.

    Raises:
      InputError: if a pattern matches no file, or none is given.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    patterns = [p.strip() for p in patterns if p.strip()]
    if not patterns:
        raise InputError(f"{flag} names no file: give one or more paths or globs.")
    paths: dict[str, None] = {}
    for pattern in patterns:
        if is_remote(pattern):
            with _remote_errors(f"{flag}: {pattern}"):
                matches = _gfile().glob(pattern)
        else:
            matches = [pattern] if os.path.isfile(pattern) else glob.glob(
                pattern, recursive=True)
            matches = [m for m in matches if os.path.isfile(m)]
        if not matches:
            raise InputError(
                f"{flag}: no file matches '{pattern}'; check the path and quote "
                "the pattern so that the shell does not expand it.")
        paths.update(dict.fromkeys(sorted(matches)))
    return list(paths)


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 text file with their numbers, starting at 1.

    A byte-order mark at the start is dropped, and so is each line's end
    ("\\n" or "\\r\\n"). A file whose name ends in .gz is decompressed.

    Raises:
      InputError: if a line is not UTF-8; names the file and the line; or if a
        compressed file is damaged.
    """
    number = 0
    with open_binary(path) as stream:
        if path.endswith(".gz"):
            stream = gzip.GzipFile(fileobj=stream)
        try:
            for number, raw in enumerate(stream, 1):
                line = raw.decode("utf-8")
                if number == 1:
                    line = line.removeprefix("\ufeff")
                yield number, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {number}: byte {error.start + 1} is not UTF-8 "
                f"({error.reason}); convert the file to UTF-8, for example "
                "with iconv.") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path}, after line {number}: cannot be read on ({error}); the "
                "file is damaged or cut short.") from error


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[BinaryIO]:
    """Opens `path` for writing bytes under a temporary name, renamed at the end.

    If the block raises, the temporary file is removed and whatever stood at
    `path` stays as it was.

    Raises:
      InputError: if the file cannot be created or written.
    """
    temporary = f"{path}.incomplete-{os.getpid()}"
    make_directory(os.path.dirname(path) or ".", path)
    stream = open_binary(temporary, "wb")
    try:
        yield stream
        stream.close()
        rename(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            stream.close()
        remove(temporary)
        if isinstance(error, OSError):
            raise InputError(
                f"{path}: cannot be written: {error.strerror or error}.") from error
        raise


def make_directory(path: str, what: str) -> None:
    """Makes a directory and its parents, and checks that files can be made in it.

    Args:
      path: the directory.
      what: what wants it, for the error message ("--output_dir").

    Raises:
      InputError: if it cannot be made or written.
    """
    if is_remote(path):
        with _remote_errors(f"{what}: the folder {path}"):
            _gfile().makedirs(path)
        return
    try:
        os.makedirs(path, exist_ok=True)
        probe = os.path.join(path, f".writable-{os.getpid()}")
        with open(probe, "wb"):
            pass
        os.remove(probe)
    except OSError as error:
        raise InputError(
            f"{what}: the folder {path} cannot be written: "
            f"{error.strerror or error}; choose another or change its "
            "permissions.") from error
