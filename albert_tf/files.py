"""Files by name: globs, text with line numbers, writing under a temporary name.

Local paths go through Python's own functions; paths with a scheme, such as
`gs://bucket/file`, through `tf.io.gfile`, imported only then: work on local files never
loads TensorFlow.
"""

import bz2
import contextlib
import errno
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import zlib
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Optional

from albert_tf.errors import InputError, Interruption

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# What reading raises when a file is damaged, cut short or on a failing disk.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Compressed bytes that are decompressed at a time: zstd makes at most 128 KiB of
# 4 bytes, so that a hostile file gives no more than 32 MiB at once.
_ZSTD_STEP = 1024
_DIGEST_STEP = 4 << 20


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
    """Opens a local or remote file; the caller closes it."""
    try:
        return _gfile().GFile(path, mode) if is_remote(path) else open(path, mode)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be opened: {error.strerror or error}.") from error


def decompressed(path: str, stream: BinaryIO) -> BinaryIO:
    """The content of an open file, decompressed if its name ends in COMPRESSED;
    otherwise `stream` itself.

    `stream` stays open when the result is closed. Reading raises one of READ_ERRORS
    where the file is damaged.
    """
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=stream)
    if path.endswith(".bz2"):
        return bz2.BZ2File(stream)
    if path.endswith(".xz"):
        return lzma.LZMAFile(stream)
    if path.endswith(".zst"):
        return io.BufferedReader(_ZstdReader(path, stream), 1 << 17)
    return stream


class _ZstdReader(io.RawIOBase):
    """Decompresses Zstandard frames, and notices when the last one is cut short, which
    the package's own stream readers take for complete."""

    def __init__(self, path: str, stream: BinaryIO):
        super().__init__()
        try:
            import zstandard
        except ImportError as error:
            raise InputError(
                f"{path}: reading .zst files needs the package zstandard; install "
                "it, or decompress the file.") from error
        self._package, self._stream = zstandard, stream
        self._frame = None  # The decompressor of the frame that has begun.
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._held:
            data = self._stream.read(_ZSTD_STEP)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last Zstandard frame has no end")
                return 0
            self._held = memoryview(self._decompress(data))
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        parts = []
        while data:
            if self._frame is None:
                self._frame = self._package.ZstdDecompressor().decompressobj()
            try:
                parts.append(self._frame.decompress(data))
            except self._package.ZstdError as error:
                raise OSError(str(error)) from error
            data = b""
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
        return b"".join(parts)


def exists(path: str) -> bool:
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def names_in(folder: str) -> list[str]:
    """Names of what lies in a folder, sorted; none if it is not there."""
    if not is_folder(folder):
        return []
    return sorted(_gfile().listdir(folder) if is_remote(folder) else os.listdir(folder))


def size(path: str) -> int:
    """Size of a file in bytes."""
    if is_remote(path):
        with _remote_errors(path):
            return _gfile().stat(path).length
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}.") from error


def total_size(paths: Iterable[str]) -> Optional[int]:
    """Bytes of some files together; None if one is remote, where asking takes time."""
    paths = list(paths)
    return None if any(map(is_remote, paths)) else sum(map(size, paths))


def sha256(path: str) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open_binary(path) as stream:
        while chunk := stream.read(_DIGEST_STEP):
            digest.update(chunk)
    return digest.hexdigest()


def rename(source: str, target: str) -> None:
    """Renames a file; an existing target is replaced."""
    if is_remote(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def move(source: str, target: str) -> None:
    """Renames a file, or copies it whole where it goes to another disk."""
    try:
        if is_remote(source) == is_remote(target):
            return rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise Interruption(
                f"{target}: cannot be written: {error.strerror or error}; make room "
                "or change its permissions, and start again.") from error
    copy(source, target)
    remove(source)


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


def remove_folder(path: str) -> None:
    """Removes a folder with all that is in it; one that is not there is fine."""
    if is_remote(path):
        if _gfile().exists(path):
            _gfile().rmtree(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def expand_patterns(patterns: str | Iterable[str], flag: str) -> list[str]:
    """Files that match globs, given as one comma-separated string or several; `flag` is
    where they came from, for the error message.

    The paths come in the order of the patterns, sorted within each, each path once.
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
            if os.path.isdir(pattern):
                raise InputError(
                    f"{flag}: {pattern} is a folder; give the files in it, as in "
                    f"'{os.path.join(pattern, '*')}'.")
            raise InputError(
                f"{flag}: no file matches '{pattern}'; check the path and quote "
                "the pattern so that the shell does not expand it.")
        paths.update(dict.fromkeys(sorted(matches)))
    return list(paths)


def read_lines(path: str, on_bytes: Callable[[int], None] = lambda count: None,
               keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 text file, decompressed by its name, with their numbers from 1.

        for number, line in read_lines("wiki.txt.gz"):

    A byte-order mark at the start is dropped. `on_bytes` is called with the number of
    bytes of the file as it lies on disk that were read since the last call; `keep_ends`
    keeps the lines' "\\n" or "\\r\\n".
    """
    number, told = 0, 0
    with open_binary(path) as stream:
        try:
            for number, raw in enumerate(decompressed(path, stream), 1):
                line = raw.decode("utf-8")
                if number == 1:
                    line = line.removeprefix("\ufeff")
                yield number, line if keep_ends else line.rstrip("\r\n")
                if number % 256 == 0:
                    before, told = told, stream.tell()
                    on_bytes(told - before)
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, error.start + 1, error.reason) from error
        except READ_ERRORS as error:
            raise damaged(path, number, error) from error
        on_bytes(stream.tell() - told)


def read_json(path: str, advice: str = "") -> Any:
    """The value in a JSON file; `advice` says what to do where it is damaged."""
    try:
        return json.loads("\n".join(line for _, line in read_lines(path)))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON ({error.msg})"
                         f"{advice and '; '}{advice}.") from error


def read_object(path: str, advice: str = "") -> dict[str, Any]:
    """The JSON object in a file; `advice` says what to do where it is damaged."""
    value = read_json(path, advice)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object{advice and '; '}{advice}.")
    return value


def not_utf8(path: str, line: int, byte: int, reason: str) -> InputError:
    """The error for a file that is not UTF-8; line and byte count from 1."""
    return InputError(
        f"{path}, line {line}: byte {byte} is not UTF-8 ({reason}); convert the "
        "file to UTF-8, for example with iconv.")


def damaged(path: str, line: int, error: Exception) -> InputError:
    """The error for a file of which `line` lines could be read."""
    return InputError(
        f"{path}, after line {line}: cannot be read on ({error}); the file is "
        "damaged or cut short.")


@contextlib.contextmanager
def staged(*paths: str) -> Iterator[list[str]]:
    """Temporary names for files or folders, which get their own names all at the end.

        with files.staged(path, f"{path}.json") as (records, summary):
            ...  # write both

    They are renamed in the order of `paths`. If the block raises, what it wrote is
    removed, and whatever stood at `paths` stays as it was.
    """
    for path in paths:
        make_directory(os.path.dirname(path.rstrip("/")) or ".", path)
    # Processes of several hosts may share a folder and have the same id.
    mark = f"incomplete-{int.from_bytes(os.urandom(6), 'big')}"
    temporary = [f"{path.rstrip('/')}.{mark}" for path in paths]
    path = paths[0]
    try:
        yield temporary
        for path, whole in zip(paths, temporary):
            rename(whole, path)
    except OSError as error:
        raise Interruption(
            f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        for whole in temporary:
            (remove_folder if is_folder(whole) else remove)(whole)


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[BinaryIO]:
    """Opens `path` to write bytes as `staged` does: it appears whole or not at all."""
    with staged(path) as (temporary,):
        stream = open_binary(temporary, "wb")
        try:
            # TensorFlow makes a file when it is first written to.
            stream.write(b"")
            yield stream
        except BaseException:
            # Closing may fail as well, and the first error is the one to show.
            with contextlib.suppress(OSError):
                stream.close()
            raise
        stream.close()


def write(path: str, content: bytes) -> None:
    """Writes a small file, whole or not at all."""
    with atomic_write(path) as stream:
        stream.write(content)


def write_json(path: str, value: Any, **options: Any) -> None:
    """Writes a value as indented JSON as `write` does; `options` of json.dumps."""
    write(path, json.dumps(value, indent=2, **options).encode() + b"\n")


def make_directory(path: str, what: str) -> None:
    """Makes a directory and its parents, and checks that files can be made in it;
    `what` wants it, for the error message ("--output_dir")."""
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
