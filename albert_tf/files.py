"""Files by name: globs, text with line numbers, writing under a temporary name.

Local paths go through Python's own functions; paths with a scheme, such as
`gs://bucket/file`, through `tf.io.gfile`, imported only then: work on local files never
loads TensorFlow.
"""

import bz2
import contextlib
import csv
import errno
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import socket
import time
import zlib
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional

from absl import logging

from albert_tf.errors import InputError, Interruption

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# What reading raises when a file is damaged, cut short or on a failing disk.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Compressed bytes that are decompressed at a time: zstd makes at most 128 KiB of
# 4 bytes, so that a hostile file gives no more than 32 MiB at once.
_ZSTD_STEP = 1024
_DIGEST_STEP = 4 << 20
_MOST_COMMAS = 32  # in one name, quotes apart
# Errors of names that stand for no file: among them those that no file can have.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
# What no text holds, and how JSON may say it all the same.
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
_NO_CHARACTER_ESCAPED = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
# Ends the names of files that are being written: machine, process, a random number.
_INCOMPLETE = re.compile(r"\.incomplete-(?:(\d{5})(\d{10})\d{8}|\d{1,15})")
# After so long without a change a file of another machine's process is a leftover.
_LEFTOVER_SECONDS = 7 * 86400


def is_remote(path: str) -> bool:
    """Whether `path` has a scheme, as in gs://bucket/file."""
    return "://" in os.fspath(path)


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
    path = os.fspath(path)
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
        try:
            os.remove(path)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise


def remove_folder(path: str) -> None:
    """Removes a folder with all that is in it; one that is not there is fine."""
    if is_remote(path):
        if _gfile().exists(path):
            _gfile().rmtree(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def split_names(text: str, is_name: Callable[[str], bool]) -> list[str]:
    """The names in a comma-separated string. Those with commas stand in double quotes,
    or are recognized by `is_name`, which says whether there is such a file."""
    if is_name(text):
        return [text]
    try:
        parts = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        parts = text.split(",")
    names: list[str] = []
    while parts:
        # The shortest name that is there; else what stands before the comma.
        taken = next((n for n in range(1, min(len(parts), _MOST_COMMAS) + 1)
                      if is_name(",".join(parts[:n]).strip())), 1)
        names.append(",".join(parts[:taken]).strip())
        del parts[:taken]
    return [name for name in names if name]


def _is_there(pattern: str) -> bool:
    return not is_remote(pattern) and (
        os.path.isfile(pattern) or bool(glob.glob(pattern, recursive=True)))


def _has_folder(path: str) -> bool:
    """Whether a comma stands in the name of a folder that is there, or of the file."""
    return "," in path and not is_remote(path) and (
        os.path.isfile(path) or "," in os.path.dirname(path)
        and os.path.isdir(os.path.dirname(path)))


def output_names(text: str) -> list[str]:
    """The outputs that a comma-separated string names; as split_names."""
    return split_names(text, _has_folder)


def expand_patterns(
        patterns: str | Iterable[str], flag: str, inside: str = "") -> list[str]:
    """Files that match globs, given as one comma-separated string (split_names) or
    several; `flag` is where they came from, for the error message. A folder stands for
    the files that match `inside` in it, if given.

    The paths come in the order of the patterns, sorted within each, each path once.
    """
    if isinstance(patterns, str):
        patterns = split_names(patterns, _is_there)
    elif isinstance(patterns, os.PathLike):
        patterns = [patterns]
    patterns = [p.strip() for p in map(os.fspath, patterns) if p.strip()]
    if not patterns:
        raise InputError(f"{flag} names no file: give one or more paths or globs.")
    paths: dict[str, None] = {}
    for pattern in patterns:
        if inside and not is_remote(pattern) and os.path.isdir(pattern):
            pattern = os.path.join(glob.escape(pattern), inside)
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
                if is_binary(line):
                    raise binary(path, number)
                yield number, line if keep_ends else line.rstrip("\r\n")
                if number % 256 == 0:
                    before, told = told, stream.tell()
                    on_bytes(told - before)
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, error.start + 1, error.reason) from error
        except READ_ERRORS as error:
            raise damaged(path, number, error) from error
        on_bytes(stream.tell() - told)


def parse_json(text: str, path: str, advice: str = "", line: int = 0,
               cleaned: bool = False) -> Any:
    """The value of a JSON text: of a file, or of its line of this number from 1;
    `advice` says what to do where it is damaged. Escapes of what is no character, NUL
    and half a surrogate pair, are refused unless what reads it is `cleaned` of them."""
    where = f"{path}, line {line}" if line else path
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        wrong = (f"{error.msg}, character {error.colno}" if text.strip()
                 else "it is empty")
        raise InputError(f"{path}, line {line or error.lineno}: not JSON ({wrong})"
                         f"{advice and '; '}{advice}.") from error
    except (RecursionError, ValueError) as error:
        wrong = ("lists or objects nested thousands deep"
                 if isinstance(error, RecursionError)
                 else "a number of thousands of digits")  # Python reads 4,300.
        raise InputError(f"{where}: not JSON that can be read ({wrong})"
                         f"{advice and '; '}{advice}.") from error
    if not cleaned and _NO_CHARACTER_ESCAPED.search(text):
        wrong = next(filter(None, map(_NO_CHARACTER.search, _strings(value))), None)
        if wrong:
            raise InputError(
                f"{where}: a text in it holds \\u{ord(wrong[0]):04x}, which is no "
                "character (NUL, or half of a pair); take it out.")
    return value


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys too."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def read_json(path: str, advice: str = "") -> Any:
    """The value in a JSON file; `advice` says what to do where it is damaged."""
    return parse_json("\n".join(line for _, line in read_lines(path)), path, advice)


def read_object(path: str, advice: str = "") -> dict[str, Any]:
    """The JSON object in a file; `advice` says what to do where it is damaged."""
    value = read_json(path, advice)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object{advice and '; '}{advice}.")
    return value


def is_binary(line: str) -> bool:
    """Whether a line has NUL for more than a quarter of its characters: UTF-16 without
    a byte-order mark has one for every other, and is valid UTF-8."""
    return "\0" in line and line.count("\0") > max(15, len(line) / 4)


def binary(path: str, line: int) -> InputError:
    """The error for a file that is no text."""
    return InputError(
        f"{path}, line {line}: looks binary, as it holds control characters; give "
        "files of UTF-8 text (compressed ones with names in "
        f"{', '.join(COMPRESSED)}; UTF-16 converted with iconv).")


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


def unfinished_name(path: str) -> str:
    """A new name to write a file or folder under until it is whole; remove_leftovers
    finds it where this process is killed."""
    # Processes of several hosts may share a folder and have the same id.
    return (f"{os.fspath(path).rstrip('/')}.incomplete-{_this_machine()}{os.getpid():010d}"
            f"{int.from_bytes(os.urandom(3), 'big'):08d}")


def _this_machine() -> str:
    """Five digits that stand for the machine, or the container: process ids are its."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return f"{zlib.crc32(f'{socket.gethostname()} {processes}'.encode()) % 100000:05d}"


def remove_leftovers(folder: str, of: Optional[Iterable[str]] = None) -> None:
    """Removes what killed processes left unfinished in a local folder: of the outputs
    of these names, or of all."""
    names = None if of is None else set(of)
    for name in [] if is_remote(folder) else names_in(folder):
        mark = _INCOMPLETE.search(name)
        path = os.path.join(folder, name)
        if mark and (names is None or name[:mark.start()] in names) and not _is_alive(
                mark, path):
            logging.info("Removing %s, left by a run that was killed.", path)
            (remove_folder if is_folder(path) else remove)(path)


def _is_alive(mark: re.Match, path: str) -> bool:
    """Whether the process that writes an unfinished file may still be there."""
    machine, process = mark.groups()
    try:
        if machine != _this_machine():
            return time.time() - os.path.getmtime(path) < _LEFTOVER_SECONDS
        os.kill(int(process), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # Another user's process, or a file that cannot be looked at: it
        return True  # stays.
    return True


def prepare_outputs(outputs: Mapping[str, Iterable[str]],
                    inputs: Mapping[str, Iterable[str]]) -> None:
    """Checks, before any work, that files can be written and none is an input, or
    another output, by any of its names: a relative path, a symbolic or a hard link.
    Removes what killed runs left of them.

        prepare_outputs({"--output_file": ["train.txt"]}, {"--input_file": paths})

    Both are flag → the paths that it stands for, also those derived from it; an input
    that is a folder stands for all files in it.
    """
    known: dict[Any, tuple[str, str]] = {}
    folders: dict[str, list[str]] = {}
    for flag, paths in outputs.items():
        for path in paths:
            _check_file_name(path, flag)
            for key in _identities(path):
                other, _ = known.setdefault(key, (flag, path))
                if other != flag:
                    raise InputError(
                        f"{flag}={path} is also {other}: give each a name of its own.")
            folders.setdefault(os.path.dirname(path) or ".", []).append(
                os.path.basename(path))
    for flag, paths in inputs.items():
        for path in paths:
            for key in _written_over(known, path):
                raise InputError(
                    "{}: {} is also an input ({} {}) and would be written over; "
                    "write somewhere else.".format(*known[key], flag, path))
    for folder, names in folders.items():
        remove_leftovers(folder, names)


def _check_file_name(path: str, flag: str) -> None:
    if is_remote(path):
        return
    if os.path.basename(path) in ("", ".", "..") or os.path.isdir(path):
        raise InputError(
            f"{flag}: {path or 'an empty name'} is a folder; give a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{flag}: {path} is not a file but a device or a pipe, which "
                         "cannot be renamed when it is whole; give a file.")


def _written_over(outputs: Iterable[Any], path: str) -> Iterator[Any]:
    """Of the identities of outputs those of an input, or of files in it."""
    if os.path.isdir(path):
        folder = os.path.join(os.path.realpath(path), "")
        return (key for key in outputs
                if str(key).startswith(folder) and os.path.isfile(key))
    return (key for key in _identities(path) if key in outputs)


def _identities(path: str) -> Iterator[Any]:
    """What a path has in common with other names of the same file."""
    if is_remote(path) and not path.startswith("file://"):
        yield path
        return
    path = path.removeprefix("file://")
    yield os.path.realpath(path)
    with contextlib.suppress(OSError, ValueError):
        found = os.stat(path)
        yield found.st_dev, found.st_ino


@contextlib.contextmanager
def staged(*paths: str) -> Iterator[list[str]]:
    """Temporary names for files or folders, which get their own names all at the end.

        with files.staged(path, f"{path}.json") as (records, summary):
            ...  # write both

    They are renamed in the order of `paths`. If the block raises, what it wrote is
    removed, and whatever stood at `paths` stays as it was.
    """
    for path in paths:
        make_directory(os.path.dirname(os.fspath(path).rstrip("/")) or ".", path)
    temporary = list(map(unfinished_name, paths))
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
