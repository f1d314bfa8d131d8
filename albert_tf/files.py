"""Operations on files and folders: globs, sizes, writing under a temporary name.

Local paths use Python's own functions, and paths with a scheme, such as
`gs://bucket/file`, those of `albert_tf.stores`.
"""

import contextlib
import csv
import errno
import glob
import hashlib
import os
import re
import shutil
import socket
import time
import zlib
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional

from absl import logging

from albert_tf import stores
from albert_tf.errors import InputError, Interruption
from albert_tf.stores import is_remote

_DIGEST_STEP = 4 << 20
_MOST_WHOLE_BYTES = 1 << 30
_MOST_COMMAS = 32  # in one name without quotes
# Errors for names of files that do not exist, including names that no file can have.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
# The end of names of files that are being written: machine, process, random number.
_INCOMPLETE = re.compile(r"\.incomplete-(?:(\d{5})(\d{10})\d{8}|\d{1,15})")
# A file from a different machine's process is a leftover if it is older than this.
_LEFTOVER_SECONDS = 7 * 86400
_PROBE = ".writable"  # the name of a file that is written to see whether one can be
# Folders of devices and processes, in which no file can be replaced, but /dev/shm.
_SYSTEM_FOLDERS = ("/dev", "/proc", "/sys")
_SHARED_MEMORY = "/dev/shm"
_MOST_LINKS = 40  # as Linux
_PIPE = ("is a pipe or a device, which may have no end and cannot be read again; write "
         "its content to a file, and give that.")
_SHARD = re.compile(r"(.*-)(\d{5})(-of-(\d{5}).*)")


def open_binary(path: str, mode: str = "rb") -> BinaryIO:
    """Opens a local or remote file, which the caller must close. Raises InputError for
    what cannot be opened, and for pipes and devices, which may have no end."""
    if mode == "rb" and _is_endless(path):
        raise InputError(f"{path} {_PIPE}")
    if is_remote(path):
        return stores.of(path).open(path, mode)
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give a file.")
    with _errors(path, "opened"):
        return open(path, mode)


@contextlib.contextmanager
def _errors(path: str, done: str = "read") -> Iterator[None]:
    """Turns an OSError into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be {done}: {error.strerror or error}; check the path and "
            "its permissions.") from error


def _is_endless(path: str) -> bool:
    """Returns whether a path is a pipe, a device or a socket."""
    return not is_remote(path) and os.path.exists(path) and not (
        os.path.isfile(path) or os.path.isdir(path))


def exists(path: str) -> bool:
    return stores.of(path).exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    return stores.of(path).is_folder(path) if is_remote(path) else os.path.isdir(path)


def names_in(folder: str) -> list[str]:
    """Returns the sorted names of entries in a folder; none if it does not exist."""
    if not is_folder(folder):
        return []
    if is_remote(folder):
        return sorted(stores.of(folder).names_in(folder))
    with _errors(folder):
        return sorted(os.listdir(folder))


def size(path: str) -> int:
    """Returns the size of a file in bytes."""
    if is_remote(path):
        return stores.of(path).size(path)
    with _errors(path):
        return os.path.getsize(path)


def check_size(path: str) -> None:
    """Raises InputError if a local file is too large to be read as a whole, as JSON and
    vocabularies are."""
    if not is_remote(path) and os.path.isfile(path) and size(path) > _MOST_WHOLE_BYTES:
        raise InputError(
            f"{path} has {size(path):,} bytes; JSON files and vocabularies can have at "
            f"most {_MOST_WHOLE_BYTES:,}. Check the path.")


def total_size(paths: Iterable[str]) -> Optional[int]:
    """Returns the total size of files in bytes; None if one is remote, where this
    would be slow."""
    paths = list(paths)
    return None if any(map(is_remote, paths)) else sum(map(size, paths))


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    digest = hashlib.sha256()
    with open_binary(path) as stream:
        while chunk := stream.read(_DIGEST_STEP):
            digest.update(chunk)
    return digest.hexdigest()


def rename(source: str, target: str) -> None:
    """Renames a file, and replaces an existing target; see target_of for links."""
    if is_remote(source):
        stores.of(source).rename(source, target)
    else:
        os.replace(source, target_of(target))


def target_of(path: str, what: str = "") -> str:
    """Returns the path at which an output is written: that which a link leads to.

    Raises InputError, which names `what`, for links that lead nowhere, and in folders
    of devices and processes, whose files cannot be replaced by complete ones.
    """
    if is_remote(path):
        return path
    named, place = f"{what}: {path}" if what else path, os.fspath(path)
    for _ in range(_MOST_LINKS):
        whole = os.path.join(os.path.realpath(os.path.dirname(place)),
                             os.path.basename(place.rstrip("/")))
        if _is_in(whole, _SYSTEM_FOLDERS) and not _is_in(whole, (_SHARED_MEMORY,)):
            raise InputError(f"{named} is a device or belongs to a process, and cannot "
                             "be replaced by a complete file; give a file elsewhere.")
        if not os.path.islink(whole):
            return place
        place = os.path.join(os.path.dirname(whole), os.readlink(whole))
    raise InputError(f"{named} is a link that leads to itself; remove it, or give "
                     "a different name.")


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(os.path.join(path, "").startswith(os.path.join(folder, ""))
               for folder in folders)


def move(source: str, target: str) -> None:
    """Renames a file, or copies it if the target is on a different disk.

    Raises Interruption if the target cannot be written.
    """
    target = target_of(target)
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
    """Copies a file, so that an incomplete `target` never exists."""
    with open_binary(source) as reader, atomic_write(target) as writer:
        shutil.copyfileobj(reader, writer)


def link(source: str, target: str) -> None:
    """Gives a file a second name, or copies it where that is not possible. Replaces an
    existing target."""
    remove(target)
    try:
        if is_remote(source):
            return copy(source, target)
        os.link(source, target)
    except OSError:
        copy(source, target)


def remove(path: str) -> None:
    """Removes a file if it exists."""
    if is_remote(path):
        stores.of(path).remove(path)
    else:
        try:
            os.remove(path)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise


def remove_folder(path: str) -> None:
    """Removes a folder and its content if it exists."""
    if is_remote(path):
        stores.of(path).remove_folder(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def split_names(text: str, is_name: Callable[[str], bool]) -> list[str]:
    """Splits a comma-separated string into names.

    Names with commas must be in double quotes, or are recognized by `is_name`, which
    returns whether there is such a file.
    """
    if is_name(text):
        return [text]
    try:
        parts = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        parts = text.split(",")
    names: list[str] = []
    while parts:
        # Take the shortest name that exists, else the text before the comma.
        count = next((n for n in range(1, min(len(parts), _MOST_COMMAS) + 1)
                      if is_name(",".join(parts[:n]).strip())), 1)
        names.append(",".join(parts[:count]).strip())
        del parts[:count]
    return [name for name in names if name]


def _is_there(pattern: str) -> bool:
    return not is_remote(pattern) and (
        os.path.isfile(pattern) or bool(glob.glob(pattern, recursive=True)))


def _has_folder(path: str) -> bool:
    """Returns whether a comma is in the name of an existing folder or file."""
    return "," in path and not is_remote(path) and (
        os.path.isfile(path) or "," in os.path.dirname(path)
        and os.path.isdir(os.path.dirname(path)))


def output_names(text: str) -> list[str]:
    """Returns the outputs in a comma-separated string; see split_names."""
    return split_names(text, _has_folder)


def expand_patterns(
        patterns: str | Iterable[str], flag: str, inside: str = "",
        by_tensorflow: bool = False) -> list[str]:
    """Returns the files that match globs, given as one comma-separated string
    (split_names) or several.

    Paths are in the order of the patterns, sorted within each, and occur once. A folder
    means the files in it that match `inside`, if given. Raises InputError, which names
    `flag`, if a pattern matches no file, and with `by_tensorflow` if TensorFlow, which
    will read the files, does not have their scheme.
    """
    return [path for paths in expand_each(
        patterns, flag, inside, by_tensorflow).values() for path in paths]


def expand_each(
        patterns: str | Iterable[str], flag: str, inside: str = "",
        by_tensorflow: bool = False) -> dict[str, list[str]]:
    """Returns what expand_patterns does by pattern, without the files of earlier ones."""
    if isinstance(patterns, str):
        patterns = split_names(patterns, _is_there)
    elif isinstance(patterns, os.PathLike):
        patterns = [patterns]
    patterns = [p.strip() for p in map(os.fspath, patterns) if p.strip()]
    if not patterns:
        raise InputError(f"{flag} names no file; give one or more paths or globs.")
    paths: dict[str, list[str]] = {}
    there: set[str] = set()
    for pattern in dict.fromkeys(patterns):
        given = pattern
        if inside and not is_remote(pattern) and os.path.isdir(pattern):
            folder, pattern = pattern, os.path.join(glob.escape(pattern), inside)
            _report_others(folder, _matches(pattern, flag), inside)
        if is_remote(pattern):
            if by_tensorflow:
                check_in_tensorflow(pattern, flag)
            matches = stores.of(pattern).glob(pattern, f"{flag}: {pattern}")
        else:
            matches = [pattern] if os.path.isfile(pattern) else _matches(pattern, flag)
        if not matches:
            if is_folder(pattern):
                raise InputError(
                    f"{flag}: {pattern} is a folder; give the files in it, as in "
                    f"'{os.path.join(pattern, '*')}'.")
            raise InputError(
                f"{flag}: no file matches '{pattern}'; check the path and quote "
                "the pattern so that the shell does not expand it.")
        _check_shards(pattern, matches, flag)
        paths[given] = sorted({*matches} - there)
        there.update(matches)
    return paths


def shards(path: str, flag: str) -> list[str]:
    """Returns the files that a path stands for: itself, or what expand_patterns finds if
    it is a glob or several paths or globs, separated by commas."""
    path = os.fspath(path)
    if re.search(r"[*?\[,]", path) and (is_remote(path) or not os.path.exists(path)):
        return expand_patterns(path, flag)
    return [path]


def _matches(pattern: str, flag: str) -> list[str]:
    """Returns the local files that match a glob. Raises InputError if it matches
    anything else; "**" also matches the folders on the way to the files."""
    matches, walks = [], "**" in pattern and re.search(r"(^|/)\*+$", pattern)
    for path in glob.glob(pattern, recursive=True):
        if os.path.isfile(path):
            matches.append(path)
        elif _is_endless(path):
            raise InputError(f"{flag}: {path} {_PIPE}")
        elif os.path.isdir(path):
            if path != pattern and not walks:
                raise InputError(
                    f"{flag}: '{pattern}' matches the folder {path}; give a pattern "
                    "that matches files only, such as "
                    f"'{os.path.join(os.path.dirname(pattern), '**', '*')}' for the "
                    "files in all folders.")
        else:
            raise InputError(
                f"{flag}: {path} is a link " + (
                    "that leads to itself" if _is_loop(path) else
                    f"to {os.readlink(path)}, which does not exist")
                + "; restore the file, or remove the link.")
    return matches


def _report_others(folder: str, matches: Iterable[str], inside: str) -> None:
    """Warns of the files in a folder, except hidden ones, that are not read."""
    others = sorted({path for path in glob.glob(
        os.path.join(glob.escape(folder), "**", "*"), recursive=True)
        if not os.path.isdir(path)} - {*matches})
    if others:
        logging.warning("%d files in %s are not read, because they do not match '%s'; "
                        "the first is %s.", len(others), folder, inside, others[0])


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _check_shards(pattern: str, matches: Iterable[str], flag: str) -> None:
    """Raises InputError if a glob matches some shards of a set, such as
    "train-00000-of-00002", of which others do not exist."""
    there = {*matches}
    sets = {(match[1], match[3]): match for match in map(
        _SHARD.fullmatch, there - {pattern}) if match}
    for (begin, end), match in sorted(sets.items()):
        for number in range(int(match[4])):
            path = f"{begin}{number:05d}{end}"
            if path not in there and not exists(path):
                raise InputError(
                    f"{flag}: '{pattern}' matches {match[0]}, but {path} is missing; "
                    "restore that file, or list the files to use.")


def unfinished_name(path: str) -> str:
    """Returns a new name for a file or folder until it is complete; remove_leftovers
    finds it if this process is killed."""
    # Processes on several hosts may share a folder and have the same id.
    return (f"{os.fspath(path).rstrip('/')}.incomplete-"
            f"{_this_machine()}{os.getpid():010d}"
            f"{int.from_bytes(os.urandom(3), 'big'):08d}")


def _this_machine() -> str:
    """Returns five digits for the machine or container to which process ids belong."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return f"{zlib.crc32(f'{socket.gethostname()} {processes}'.encode()) % 100000:05d}"


def remove_leftovers(folder: str, of: Optional[Iterable[str]] = None) -> None:
    """Removes unfinished files that killed processes left in a folder, for the outputs
    with the names `of`, or for all."""
    names = None if of is None else set(of)
    for name in names_in(folder):
        mark = _INCOMPLETE.search(name)
        path = os.path.join(folder, name)
        if mark and (names is None or name[:mark.start()] in names) and not _is_alive(
                mark, path):
            try:
                (remove_folder if is_folder(path) else remove)(path)
                logging.info("Removed %s, which a killed run left.", path)
            except OSError as error:  # It may be a different user's.
                logging.warning("%s, which a killed run left, cannot be removed: %s.",
                                path, error.strerror or error)


def _is_alive(mark: re.Match, path: str) -> bool:
    """Returns whether the process that writes an unfinished file may still run."""
    machine, process = mark.groups()
    try:
        if machine != _this_machine():
            return time.time() - _modified(path) < _LEFTOVER_SECONDS
        os.kill(int(process), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # The process is a different user's, or the file is inaccessible.
        return True
    return True


def _modified(path: str) -> float:
    """Returns the time of the last change, or for a folder in a store, in which nothing
    tells that it is a leftover, the present."""
    if not is_remote(path):
        return os.path.getmtime(path)
    return time.time() if is_folder(path) else stores.of(path).modified(path)


def prepare_outputs(outputs: Mapping[str, Iterable[str]],
                    inputs: Mapping[str, Iterable[str]]) -> None:
    """Checks outputs before any work, and removes unfinished files of killed runs.

        prepare_outputs({"--output_file": ["train.txt"]}, {"--input_file": paths})

    Raises InputError if an output cannot be a file, its folder cannot be written, or it
    is also an input or a different output, by any of its names: a relative path, a
    symbolic or a hard link. Both arguments map flags to their paths, including those
    derived from them. A folder as an input means all files in it.
    """
    known: dict[Any, tuple[str, str]] = {}
    folders: dict[str, tuple[str, list[str]]] = {}
    for flag, paths in outputs.items():
        for path in paths:
            _check_file_name(path, flag)
            for key in _identities(path):
                other, _ = known.setdefault(key, (flag, path))
                if other != flag:
                    raise InputError(
                        f"{flag}={path} is also {other}; give each a different name.")
            folder, name = os.path.split(target_of(path))
            folders.setdefault(folder or ".", (flag, []))[1].append(name)
    for flag, paths in inputs.items():
        for path in paths:
            for key in _written_over(known, path):
                raise InputError(
                    "{}: {} is also an input ({} {}) and would be overwritten; give "
                    "a different output.".format(*known[key], flag, path))
    for folder, (flag, names) in folders.items():
        check_folder(folder, flag)
        remove_leftovers(folder, [*names, _PROBE])


def _check_file_name(path: str, flag: str) -> None:
    if is_remote(path):
        if path.endswith("/") or not re.search("://.*/", path):
            raise InputError(f"{flag}: {path} is a folder or a bucket; give a file in it.")
        return
    target_of(path, flag)
    if os.path.basename(path) in ("", ".", "..") or os.path.isdir(path):
        raise InputError(
            f"{flag}: {path or 'an empty name'} is a folder; give a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{flag}: {path} is not a file but a device or a pipe, which "
                         "cannot be renamed when it is complete; give a file.")


def _written_over(outputs: Iterable[Any], path: str) -> Iterator[Any]:
    """Returns those identities of outputs that belong to an input or to files in it."""
    if os.path.isdir(path):
        folder = os.path.join(os.path.realpath(path), "")
        return (key for key in outputs
                if str(key).startswith(folder) and os.path.isfile(key))
    return (key for key in _identities(path) if key in outputs)


def _identities(path: str) -> Iterator[Any]:
    """Yields keys that a path shares with other names of the same file."""
    if is_remote(path) and not path.startswith("file://"):
        yield path
        return
    path = path.removeprefix("file://")
    yield os.path.realpath(path)
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(path)
        yield status.st_dev, status.st_ino


@contextlib.contextmanager
def staged(*paths: str) -> Iterator[list[str]]:
    """Yields temporary names for files or folders, which are renamed at the end.

        with files.staged(path, f"{path}.json") as (records, summary):
            ...  # write both

    They are renamed in the order of `paths`. If the block raises, the temporary files
    are removed, and existing files at `paths` are unchanged. If a path is a link, the
    file that it leads to is replaced. An OSError becomes an Interruption.
    """
    paths = list(map(target_of, paths))
    for path in paths:
        make_directory(os.path.dirname(os.fspath(path).rstrip("/")) or ".", path)
    temporary = list(map(unfinished_name, paths))
    path = paths[0]
    try:
        yield temporary
        for path, whole in zip(paths, temporary):
            rename(whole, path)
    except BaseException as error:
        for whole in temporary:
            # A store that is out of reach is reported once.
            with contextlib.suppress(InputError):
                (remove_folder if is_folder(whole) else remove)(whole)
        if isinstance(error, OSError):
            raise Interruption(
                f"{path}: cannot be written: {error.strerror or error}.") from error
        raise


@contextlib.contextmanager
def new_folder(path: str, flag: str) -> Iterator[None]:
    """Reserves the name of a new folder, which the block writes with `staged`.

        with files.new_folder("exported", "--export_dir"):
            ...  # a second process that wants to write this folder is refused

    Raises InputError, before the block, if the folder exists or cannot be made, or if a
    different process on this machine is writing it. What a killed process left of it is
    removed. If the block fails, the folders above it that were made are removed.
    """
    path = os.fspath(path).rstrip("/") or "/"
    check_in_tensorflow(path, flag)
    if exists(path):
        raise InputError(f"{flag}={path} exists already; choose a new folder.")
    if is_remote(path):
        yield
        return
    target = target_of(path, flag)
    parent, name = os.path.split(os.path.abspath(target))
    made, above = [], parent
    while not os.path.lexists(above):
        made.append(above)
        above = os.path.dirname(above)
    make_directory(parent, flag)
    remove_leftovers(parent, [name])
    reserved = unfinished_name(target)
    try:
        os.mkdir(reserved)
        for other in names_in(parent):
            mark = _INCOMPLETE.search(other)
            if mark and other[:mark.start()] == name and (
                    mark[1] == _this_machine() and int(mark[2]) != os.getpid()):
                raise InputError(
                    f"{flag}={path}: process {int(mark[2])} is writing this folder; "
                    "wait for it, stop it, or choose a different folder.")
        yield
    finally:
        # Only empty folders are removed.
        for folder in (reserved, *made):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[BinaryIO]:
    """Opens `path` to write bytes; with `staged`, so it is complete or not there."""
    with staged(path) as (temporary,):
        stream = open_binary(temporary, "wb")
        try:
            yield stream
        except BaseException:
            # Closing may fail too, but the first error is the one to report.
            with contextlib.suppress(OSError, InputError):
                stream.close()
            raise
        stream.close()


def write(path: str, content: bytes) -> None:
    """Writes a small file, completely or not at all."""
    with atomic_write(path) as stream:
        stream.write(content)


def make_directory(path: str, what: str) -> None:
    """Makes a directory and its parents, and checks that files can be created in it.

    Raises InputError otherwise, which names `what`, for example "--output_dir".
    """
    if is_remote(path):
        return stores.of(path).make_folder(path, f"{what}: the folder {path}")
    with _writable(path, what):
        os.makedirs(path, exist_ok=True)
        _try_to_write(path)


def check_folder(path: str, what: str) -> None:
    """Raises the InputError of make_directory, but makes no folder. `path` or, if it
    does not exist, the folder in which it would be made must accept files."""
    if is_remote(path):
        place = probe = path
        try:
            store = stores.of(path)
            while store.has_folders and is_remote(os.path.dirname(place)) and (
                    not store.exists(place)):
                place = os.path.dirname(place)
            probe = unfinished_name(os.path.join(place, _PROBE))
            store.open(probe, "wb").close()
            store.remove(probe)
        except InputError as error:
            raise InputError(f"{what}: {error}".replace(probe, place)) from error
        return
    with _writable(path, what):
        place = os.path.abspath(path)
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        _try_to_write(place)


def check_in_tensorflow(path: str, flag: str = "") -> None:
    """Raises InputError for a path whose scheme TensorFlow does not have. For files that
    TensorFlow itself reads or writes, and for folders that are written as a whole."""
    if is_remote(path) and not stores.is_in_tensorflow(path):
        known = "" if stores.scheme_of(path) == "gs" else " or one on gs://"
        raise InputError(
            f"{flag}{'=' * bool(flag)}{path}: this needs TensorFlow's own file systems, "
            f"which do not have {stores.scheme_of(path)}:// here; give a local path"
            f"{known}, and copy the files from or to the store.")


def check_local(path: str, flag: str = "") -> None:
    """Raises InputError for a remote path. For files that other packages read or write
    by their names."""
    if is_remote(path):
        raise InputError(
            f"{flag}{'=' * bool(flag)}{path}: files of this format are read and written "
            "on this machine only; give a local path, and copy the whole folder from or "
            "to the store.")


def _try_to_write(folder: str) -> None:
    """Raises OSError if no file can be created in a folder."""
    probe = os.path.join(folder, f"{_PROBE}-{os.getpid()}")
    with open(probe, "wb"):
        pass
    os.remove(probe)


@contextlib.contextmanager
def _writable(path: str, what: str) -> Iterator[None]:
    """Turns an OSError into the InputError of make_directory."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what}: the folder {path} cannot be written: {error.strerror or error}; "
            "choose a different folder or change its permissions.") from error
