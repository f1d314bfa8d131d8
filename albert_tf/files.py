"""Files and folders on this machine and in object stores, and globs of them.

    with files.open_binary("s3://bucket/a.txt") as stream:
        stream.read()

Local paths use Python's own functions. Paths with a scheme, such as gs://bucket/file,
use fsspec and its drivers. An output appears whole or not at all: it has a temporary
name, which contains ".incomplete", and is renamed at the end. If a process is killed,
the next run replaces what is left there.
"""

import contextlib
import csv
import errno
import glob
import hashlib
import importlib.util
import io
import os
import re
import shutil
from typing import Any, BinaryIO, Iterable, Iterator, Mapping, Optional

from albert_tf.errors import InputError, Interruption, is_of_library, reading, reason_of

StrPath = str | os.PathLike[str]  # what public functions take as a path
INCOMPLETE = ".incomplete"
STANDARD_INPUT = "-"
_STEP = 4 << 20  # bytes to read at a time
_POINTER = b"version https://git-lfs.github.com/spec/"
_SHARD = re.compile(r"(.*-)(\d{5})(-of-(\d{5}).*)")
# Schemes of stores with folders that must be made. In other stores a folder is the
# beginning of a name, and making one could make a bucket.
_WITH_FOLDERS = ("hdfs", "webhdfs", "file", "sftp", "ssh", "ftp", "smb", "ram")


# ---- stores ----------------------------------------------------------------


def expanded(path: StrPath) -> str:
    """Returns a path in which ~/ at the beginning is the user's folder."""
    path = os.fspath(path)
    return os.path.expanduser(path) if path.startswith("~/") else path


def is_remote(path: str) -> bool:
    """Returns whether `path` has a scheme, as in gs://bucket/file."""
    return "://" in os.fspath(path)


def _in_tensorflow(path: str) -> bool:
    """Returns whether TensorFlow, which this loads, has the scheme of a path."""
    if not importlib.util.find_spec("tensorflow"):
        return False
    import tensorflow as tf

    return path.partition("://")[0] in tf.io.gfile.get_registered_schemes()


@contextlib.contextmanager
def _store(path: str, raises: type[InputError] = InputError) -> Iterator[Any]:
    """Yields fsspec's file system for a remote path; TensorFlow's client of a store
    takes the place of a driver that is not installed. Any error is an InputError, as
    each store and each package below it has its own classes of errors."""
    import fsspec

    try:
        # Other processes write to the store, so no listing of it is kept.
        system: Any = fsspec.url_to_fs(path, use_listings_cache=False)[0]
    except (ImportError, ValueError) as error:
        if not _in_tensorflow(path):
            raise InputError(f"{path}: {error} (docs/INSTALL.md, Object stores).") from error
        from albert_tf.tensorflow_files import TensorFlowFiles

        system = TensorFlowFiles()
    try:
        yield system
    except InputError:
        raise
    except Exception as error:
        reason = ("it does not exist" if isinstance(error, FileNotFoundError) else
                  getattr(error, "strerror", None) or reason_of(error)).rstrip(".")
        raise raises(f"{path}: {reason}; check the name, the network and the "
                     "credentials.") from error


def _info(path: str) -> dict[str, Any]:
    """Returns fsspec's description of a remote path; empty if it does not exist.
    (Its method `exists` is also False if the store cannot be reached.)"""
    with _store(path) as system, contextlib.suppress(FileNotFoundError):
        return system.info(path)
    return {}


# ---- reading ---------------------------------------------------------------


def is_stream(path: str) -> bool:
    """Returns whether a path is the standard input, a pipe or a device, which can be
    read only once."""
    return path == STANDARD_INPUT or not is_remote(path) and os.path.exists(path) and not (
        os.path.isfile(path) or os.path.isdir(path))


def open_stream(path: str) -> io.BufferedReader:
    """Opens what `is_stream`."""
    with reading(shown(path)):
        return (open(0, "rb", closefd=False) if path == STANDARD_INPUT
                else open(path, "rb"))


def shown(path: str) -> str:
    """Returns a path for messages."""
    return "the standard input" if path == STANDARD_INPUT else os.fspath(path)


def open_binary(path: str, mode: str = "rb") -> BinaryIO:
    """Opens a local or remote file, which the caller must close. Raises InputError for
    what cannot be opened, and for pipes and devices, which cannot be read again."""
    if is_remote(path):
        with _store(path, InputError if mode == "rb" else Interruption) as system:
            if mode != "rb":
                return system.open(path, mode)
            if system.info(path)["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "Is a directory")
            return io.BufferedReader(system.open(path), _STEP)
    path = expanded(path)
    _check_regular(path)
    with reading(path if mode == "rb" else os.fspath(path).replace(INCOMPLETE, "")):
        stream: Any = open(path, mode)
        if mode == "rb" and stream.peek(1).startswith(_POINTER):
            stream.close()
            raise InputError(f"{path} is a pointer of Git LFS, not the file itself; run "
                             "`git lfs pull` in its folder.")
        return stream


def _check_regular(path: str) -> None:
    """Raises InputError for a local pipe, device or socket."""
    if is_stream(path) and path != STANDARD_INPUT:
        raise InputError(f"{path} is a pipe or a device, which cannot be read twice or "
                         "replaced; give a file.")


def exists(path: str) -> bool:
    return bool(_info(path)) if is_remote(path) else os.path.exists(expanded(path))


def is_folder(path: str) -> bool:
    return (_info(path).get("type") == "directory" if is_remote(path)
            else os.path.isdir(expanded(path)))


def names_in(folder: str) -> list[str]:
    """Returns the sorted names of entries in a folder; none if it does not exist."""
    if not is_folder(folder):
        return []
    if not is_remote(folder):
        with reading(folder):
            return sorted(os.listdir(expanded(folder)))
    with _store(folder) as system:
        whole = system._strip_protocol(folder).rstrip("/")
        paths = [path.rstrip("/") for path in system.ls(folder, detail=False)]
    # Some stores hold an object of the folder's own name.
    return sorted(os.path.basename(path) for path in paths if path != whole)


def size(path: str) -> int:
    """Returns the size of a file in bytes."""
    if not is_remote(path):
        with reading(path):
            return os.path.getsize(expanded(path))
    with _store(path) as system:
        return system.info(path)["size"]


def total_size(paths: Iterable[str]) -> Optional[int]:
    """Returns the total size of files in bytes; None if one is remote, where this
    would be slow."""
    paths = list(paths)
    return None if any(map(is_remote, paths)) else sum(map(size, paths))


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    with reading(path), open_binary(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ---- globs -----------------------------------------------------------------


def split_names(text: str) -> list[str]:
    """Splits a comma-separated string into names; those with commas must be in double
    quotes."""
    names = next(csv.reader(text.splitlines(), skipinitialspace=True), [])
    return [name.strip() for name in names if name.strip()]


def expand_patterns(patterns: str | Iterable[str], flag: str) -> list[str]:
    """Returns the files that match globs, given as one comma-separated string
    (split_names) or several.

    Paths are in the order of the patterns, sorted within each, and occur once. Raises
    InputError, which names `flag`, if a pattern matches no file.
    """
    return [path for paths in expand_each(patterns, flag).values() for path in paths]


def expand_each(patterns: str | Iterable[str], flag: str) -> dict[str, list[str]]:
    """Returns what expand_patterns does by pattern, without the files of earlier ones."""
    names = (split_names(patterns) if isinstance(patterns, str) else
             [patterns] if isinstance(patterns, os.PathLike) else patterns)
    paths: dict[str, list[str]] = {}
    there: set[str] = set()
    for pattern in dict.fromkeys(filter(None, map(str.strip, map(os.fspath, names)))):
        matches = _matches(pattern, flag)
        if not matches:
            hint = " A name with a comma must be in double quotes." * (
                isinstance(patterns, str) and "," in patterns)
            raise InputError(f"{flag}: no file matches '{pattern}'; check the path, and "
                             f"quote globs for the shell.{hint}")
        _check_shards(pattern, matches, flag)
        paths[pattern] = sorted({*matches} - there)
        there.update(matches)
    if not paths:
        raise InputError(f"{flag} names no file; give one or more paths or globs.")
    return paths


def _matches(pattern: str, flag: str) -> list[str]:
    """Returns the files that match a glob. Raises InputError if it matches anything else
    on this machine; "**" also matches the folders on the way to the files."""
    if is_remote(pattern):
        with _store(pattern) as system:
            found = system.glob(pattern, detail=True)
            # Paths lack what comes before the store's own name, such as the scheme.
            own = system._strip_protocol(pattern)
            before = pattern[:-len(own)] if pattern.endswith(own) else None
            return [system.unstrip_protocol(path) if before is None else before + path
                    for path, info in found.items() if info["type"] != "directory"]
    pattern = expanded(pattern)
    if os.path.isfile(pattern):
        return [pattern]
    paths = glob.glob(pattern, recursive=True)
    for path in paths:
        if not os.path.isfile(path) and not ("**" in pattern and os.path.isdir(path)):
            raise InputError(
                f"{flag}: {path} is not a file but a folder, a pipe or a link that leads "
                "nowhere; give a pattern that matches files only, such as "
                f"'{os.path.join(path, '*')}' for the files in a folder.")
    return list(filter(os.path.isfile, paths))


def _check_shards(pattern: str, matches: Iterable[str], flag: str) -> None:
    """Raises InputError if a glob matches some shards of a set, such as
    "train-00000-of-00002", of which others do not exist."""
    there = {*matches}
    for match in filter(None, map(_SHARD.fullmatch, sorted(there - {pattern}))):
        for number in range(int(match[4])):
            path = f"{match[1]}{number:05d}{match[3]}"
            if path not in there and not exists(path):
                raise InputError(
                    f"{flag}: '{pattern}' matches {match[0]}, but {path} is missing; "
                    "restore that file, or list the files to use.")
            there.add(path)


def shards(path: str, flag: str) -> list[str]:
    """Returns the files that a path stands for: itself, or what expand_patterns finds if
    it is a glob or several paths or globs, separated by commas."""
    path = os.fspath(path)
    if re.search(r"[*?\[,]", path) and (is_remote(path) or not os.path.exists(path)):
        return expand_patterns(path, flag)
    return [path]


# ---- writing ---------------------------------------------------------------


def target_of(path: str) -> str:
    """Returns the path at which an output is written: that which a link leads to.
    Raises InputError for pipes and devices, which cannot be replaced by a file."""
    path = expanded(path).rstrip("/")
    _check_regular(path)
    return os.path.realpath(path) if os.path.islink(path) else path


def rename(source: str, target: str) -> None:
    """Renames a file or folder, and replaces an existing file."""
    if is_remote(target):
        with _store(target, Interruption) as system:
            system.mv(source, target, recursive=is_folder(source))
    else:
        os.replace(source, target_of(target))


def copy(source: str, target: str) -> None:
    """Copies a file, so that an incomplete `target` never exists."""
    with open_binary(source) as reader, atomic_write(target) as writer:
        shutil.copyfileobj(reader, writer, _STEP)


def remove(path: str) -> None:
    """Removes a file if it exists."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not is_remote(path):
            return os.remove(expanded(path))
        with _store(path, Interruption) as system, contextlib.suppress(FileNotFoundError):
            system.rm(path)


def remove_folder(path: str) -> None:
    """Removes a folder and its content if it exists."""
    if not is_remote(path):
        return shutil.rmtree(path, ignore_errors=True)
    with _store(path, Interruption) as system, contextlib.suppress(FileNotFoundError):
        system.rm(path, recursive=True)


@contextlib.contextmanager
def staged(*paths: str, end: str = INCOMPLETE) -> Iterator[list[str]]:
    """Yields temporary names for files or folders, which are renamed at the end.

        with files.staged(path, f"{path}.json") as (records, summary):
            ...  # write both

    They are renamed in the order of `paths`. If the block raises, the temporary files
    are removed, and existing files at `paths` are unchanged. If a path is a link, the
    file that it leads to is replaced. An OSError becomes an Interruption. Processes that
    write the same output at the same time must give different ends of temporary names.
    """
    paths = tuple(map(target_of, paths))
    temporary = [path + end for path in paths]
    try:
        for path, whole in zip(paths, temporary):
            make_directory(os.path.dirname(path) or ".", path)
            _discard(whole)  # what a killed process left
        yield temporary
        for path, whole in zip(paths, temporary):
            rename(whole, path)
    except BaseException as error:
        for whole in temporary:
            with contextlib.suppress(InputError, OSError):  # A store is out of reach.
                _discard(whole)
        if not isinstance(error, OSError) and not is_of_library(error):
            raise
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise Interruption(
            f"{', '.join(paths)}: cannot be written: {reason}.") from error


def _discard(path: str) -> None:
    (remove_folder if is_folder(path) else remove)(path)


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[BinaryIO]:
    """Opens `path` to write bytes; with `staged`, so it is complete or not there."""
    with staged(path) as (whole,), open_binary(whole, "wb") as stream:
        yield stream
        if not is_remote(whole) and not stream.closed and not os.path.samestat(
                os.fstat(stream.fileno()), os.stat(whole)):
            raise Interruption(f"{path}: a different process writes it, too; wait for it, "
                               "stop it, or give a different name.")


def write(path: str, content: bytes) -> None:
    """Writes a small file, completely or not at all."""
    with atomic_write(path) as stream:
        stream.write(content)


# ---- checks before the work ------------------------------------------------


def prepare_outputs(outputs: Mapping[str, Iterable[str]],
                    inputs: Mapping[str, Iterable[str]]) -> None:
    """Checks outputs before any work.

        prepare_outputs({"--output_file": ["train.txt"]}, {"--input_file": paths})

    Raises InputError if an output cannot be a file, its folder cannot be written, or it
    is also an input or a different output, also through links. Both arguments map flags
    to their paths. A folder as an input means all files in it.
    """
    known: dict[str, tuple[str, str]] = {}
    for flag, paths in outputs.items():
        for path in paths:
            if os.path.basename(path) in ("", ".", "..") or os.path.isdir(path) or (
                    is_remote(path) and path.count("/") < 3):
                raise InputError(f"{flag}: {path or 'an empty name'} is a folder or a "
                                 "bucket; give a file in it.")
            other, _ = known.setdefault(_whole(target_of(path)), (flag, path))
            if other != flag:
                raise InputError(
                    f"{flag}={path} is also {other}; give each a different name.")
    for flag, paths in inputs.items():
        for path in paths:
            folder = os.path.join(_whole(path), "") if os.path.isdir(path) else None
            # A killed run's temporary file may match a glob, and is overwritten, too.
            for whole in known if folder else known.keys() & {
                    _whole(path), _whole(path).removesuffix(INCOMPLETE)}:
                if not folder or whole.startswith(folder) and os.path.isfile(whole):
                    raise InputError(
                        "{}: {} is also an input ({} {}) and would be overwritten; give "
                        "a different output.".format(*known[whole], flag, path))
    for folder, flag in {os.path.dirname(whole): flag
                         for whole, (flag, _) in known.items()}.items():
        check_folder(folder, flag)


def _whole(path: str) -> str:
    """Returns the one name of a file that `path` may also be a link to."""
    path = expanded(path).removeprefix("file://")
    return path if is_remote(path) else os.path.realpath(path)


def check_new(path: str, flag: str) -> None:
    """Raises InputError if a file or folder exists."""
    if exists(path):
        raise InputError(f"{flag}={path} exists already; give a new name, or remove it.")


def new_folder(path: str, flag: str) -> None:
    """Checks, before the work, the name of a folder that `staged` will write. Raises
    InputError if it exists or cannot be made."""
    path = expanded(path).rstrip("/") or "/"
    check_new(path, flag)
    check_folder(os.path.dirname(path) or ".", flag)
    if is_remote(path):
        remove_folder(path + INCOMPLETE)  # what a killed run left


def make_directory(path: str, what: str) -> None:
    """Makes a directory and its parents. Raises InputError, which names `what`, such as
    "--output_dir", if files cannot be written there."""
    if is_remote(path):
        if path.partition("://")[0] in _WITH_FOLDERS:
            with _store(path, Interruption) as system:
                system.makedirs(path, exist_ok=True)
        return
    path = expanded(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: the folder {path} cannot be written: {error.strerror}."
                         .replace(INCOMPLETE, "")) from error
    check_folder(path, what)


def check_folder(path: str, what: str) -> None:
    """Raises InputError, which names `what`, if files cannot be written in a folder or,
    if it does not exist, in the folder in which it would be made."""
    if is_remote(path):
        make_directory(path, what)
        probe = os.path.join(path, ".writable")
        with _store(path) as system:
            system.pipe_file(probe, b"")
            system.rm(probe)
        return
    if not is_writable(path):
        raise InputError(
            f"{what}: the folder {path} cannot be written; choose a different folder or "
            "change its permissions.".replace(INCOMPLETE, ""))


def is_writable(folder: str) -> bool:
    """Returns whether files can be written in a local folder or, if it does not exist,
    in the folder in which it would be made."""
    place = os.path.abspath(expanded(folder))
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def check_in_tensorflow(path: str, flag: str = "") -> None:
    """Raises InputError for a path that TensorFlow cannot read or, with the `flag` of an
    output folder, restore from and delete in: it takes names there for globs."""
    if flag and (found := re.search(r"[*?\[\\]", os.fspath(path))):
        raise InputError(f"{flag}={path}: TensorFlow takes names with {found[0]} for "
                         "patterns; choose a folder without *, ?, [ and \\ in its name.")
    if is_remote(path) and not _in_tensorflow(path):
        raise InputError(f"{flag}{'=' * bool(flag)}{path}: TensorFlow does not reach this "
                         "store; give a local path or one on gs://.")


def check_local(path: str, flag: str = "") -> None:
    """Raises InputError for a path that a package, which needs a local file, cannot
    read or write."""
    if is_remote(path):
        raise InputError(f"{flag}{'=' * bool(flag)}{path}: files of this format are read "
                         "and written on this machine only; give a local path.")
    if os.path.isfile(path):
        open_binary(path).close()
