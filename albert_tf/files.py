"""Files and folders on this machine and in object stores, and globs of them.

    with files.open_binary("s3://bucket/a.txt") as stream:
        stream.read()

An output appears whole or not at all: it has a temporary name, which contains
".incomplete", and is renamed at the end. If a process is killed, the next run replaces
what is left there.
"""

import contextlib
import csv
import glob
import hashlib
import importlib.util
import io
import os
import pathlib
import re
import shutil
import types
from typing import Any, BinaryIO, Iterable, Iterator, Mapping

from albert_tf.errors import InputError, Interruption, is_of_library, reading, reason_of

StrPath = str | os.PathLike[str]  # what public functions take as a path
INCOMPLETE = ".incomplete"
_STEP = 4 << 20  # bytes to read at a time
_POINTER = b"version https://git-lfs.github.com/spec/"
_SHARD = re.compile(r"(.*-)\d{5}(-of-(\d{5}).*)")
_unless_missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)


# ---- file systems ----------------------------------------------------------


# What fsspec's methods do for local paths: its import takes a tenth of a second.
_THIS_MACHINE = types.SimpleNamespace(
    open=open, makedirs=os.makedirs, _strip_protocol=str,
    info=lambda path: {"size": os.stat(path).st_size,
                       "type": "directory" if os.path.isdir(path) else "file"},
    ls=lambda path, detail: [os.path.join(path, name) for name in os.listdir(path)],
    # "**" matches the folders on the way to files, too.
    glob=lambda path, detail: {match: {"type": "file"} for match in glob.glob(
        path, recursive=True) if not ("**" in path and os.path.isdir(match))},
    mv=lambda source, target, recursive: os.replace(source, target),
    rm=lambda path, recursive: (
        shutil.rmtree if os.path.isdir(path) else os.remove)(path))


def expanded(path: StrPath) -> str:
    """Returns a path in which ~/ at the beginning is the user's folder."""
    path = os.fspath(path)
    return os.path.expanduser(path) if path.startswith("~/") else path


def is_remote(path: str) -> bool:
    """Returns whether `path` has a scheme, as in gs://bucket/file."""
    return "://" in os.fspath(path)


def _of_tensorflow() -> Any:
    """Returns fsspec's methods for whole paths by TensorFlow's own file systems. They
    reach gs:// on a machine with TensorFlow, such as a TPU's, that lacks gcsfs."""
    import tensorflow as tf
    from fsspec.spec import AbstractBufferedFile

    gfile = tf.io.gfile

    def info(path: str) -> dict[str, Any]:
        if not gfile.exists(path):
            raise FileNotFoundError(path)
        stat = gfile.stat(path)
        return {"size": stat.length, "type": "directory" if stat.is_directory else "file"}

    def cat_file(path: str, start: int, end: int) -> bytes:
        with gfile.GFile(path, "rb") as stream:
            stream.seek(start)
            return stream.read(end - start)

    def open(path: str, mode: str) -> Any:
        if mode == "rb":
            return AbstractBufferedFile(system, path, size=gfile.stat(path).length)
        stream = gfile.GFile(path, mode)
        stream.write(b"")  # A file is created when it is first written to.
        return stream

    system = types.SimpleNamespace(
        open=open, makedirs=lambda path, exist_ok: gfile.makedirs(path),
        _strip_protocol=str, info=info, cat_file=cat_file,
        ls=lambda path, detail: [gfile.join(path, name) for name in (
            gfile.listdir(path) if gfile.isdir(path) else ())],
        # Asking which matches are folders would take a request for each.
        glob=lambda path, detail: {match: {"type": "file"} for match in gfile.glob(path)},
        mv=lambda source, target, recursive: gfile.rename(source, target, overwrite=True),
        rm=lambda path, recursive: gfile.exists(path) and (
            gfile.rmtree if gfile.isdir(path) else gfile.remove)(path))
    return system


def _in_tensorflow(path: str) -> bool:
    """Returns whether TensorFlow, which this loads, has the scheme of a path."""
    if not importlib.util.find_spec("tensorflow"):
        return False
    import tensorflow as tf

    return path.partition("://")[0] in tf.io.gfile.get_registered_schemes()


@contextlib.contextmanager
def _system(path: str) -> Iterator[tuple[Any, str]]:
    """Yields the file system of a path, with fsspec's methods, and the path with the
    user's folder in it. TensorFlow's client of a store takes the place of a driver that
    is not installed. Any error is an Interruption, as each store has its own classes."""
    path, system, hint = expanded(path), _THIS_MACHINE, ""
    if is_remote(path):
        import fsspec

        hint = "; check the name, the network and the credentials"
        try:
            # Other processes write to the store, so no listing of it is kept.
            system = fsspec.url_to_fs(path, use_listings_cache=False)[0]
        except (ImportError, ValueError) as error:
            if not _in_tensorflow(path):
                raise InputError(
                    f"{path}: {error} (docs/INSTALL.md, Object stores).") from error
            system = _of_tensorflow()
    try:
        yield system, path
    except InputError:
        raise
    except Exception as error:
        raise Interruption(f"{path.replace(INCOMPLETE, '')}: "
                           f"{reason_of(error).rstrip('.')}{hint}.") from error


def _info(path: str) -> dict[str, Any]:
    """Returns fsspec's description of a path; empty if it does not exist. (Its method
    `exists` is also False if a store cannot be reached.)"""
    with _system(path) as (system, path), _unless_missing:
        return system.info(path)
    return {}


# ---- reading ---------------------------------------------------------------


def is_stream(path: str) -> bool:
    """Returns whether a path is the standard input, a pipe or a device, which can be
    read only once."""
    return path == "-" or os.path.exists(path) and not (
        os.path.isfile(path) or os.path.isdir(path))


def shown(path: str) -> str:
    return "the standard input" if path == "-" else os.fspath(path)


def open_binary(path: str, mode: str = "rb", once: bool = False) -> BinaryIO:
    """Opens a file, which the caller must close; what `is_stream` only with `once`."""
    if once and path == "-":
        return open(0, "rb", closefd=False)
    with _system(path) as (system, path):
        if mode != "rb":
            return system.open(path, mode)
        if not once:
            _check_regular(path)
        if system.info(path)["type"] == "directory":
            raise IsADirectoryError("Is a directory")
        stream: Any = system.open(path, mode)
        if is_remote(path):
            return io.BufferedReader(stream, _STEP)
        if stream.peek(1).startswith(_POINTER):
            raise InputError(f"{path} is a pointer of Git LFS, not the file itself; run "
                             "`git lfs pull` in its folder.")
        return stream


def _check_regular(path: str) -> None:
    if is_stream(path):
        raise InputError(f"{path} is a pipe or a device, which cannot be read twice or "
                         "replaced; give a file.")


def exists(path: str) -> bool:
    return bool(_info(path))


def is_folder(path: str) -> bool:
    return _info(path).get("type") == "directory"


def names_in(folder: str) -> list[str]:
    """Returns the sorted names of entries in a folder; none if it does not exist."""
    paths: list[str] = []
    with _system(folder) as (system, folder), _unless_missing:
        paths = [path.rstrip("/") for path in system.ls(folder, detail=False)]
    # Some stores hold an object of the folder's own name.
    return sorted(os.path.basename(path) for path in paths
                  if not folder.rstrip("/").endswith(path))


def size(path: str) -> int:
    with _system(path) as (system, path):
        return system.info(path)["size"]


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


def expand_patterns(patterns: StrPath, flag: str) -> list[str]:
    """Returns the files that match globs, in the order of the patterns, sorted within
    each, and once. Raises InputError, which names `flag`, if one matches no file."""
    return [path for paths in expand_each(patterns, flag).values() for path in paths]


def expand_each(patterns: StrPath, flag: str) -> dict[str, list[str]]:
    """Returns the files that match globs by glob, without the files of earlier ones.
    `patterns` is the name of a file, or a comma-separated string (split_names)."""
    name = os.fspath(patterns)
    paths: dict[str, list[str]] = {}
    there: set[str] = set()
    for pattern in dict.fromkeys([name] if exists(name) else split_names(name)):
        matches = _matches(pattern, flag)
        paths[pattern] = sorted(matches - there)
        there |= matches
    if not paths:
        raise InputError(f"{flag} names no file; give one or more paths or globs.")
    return paths


def _matches(pattern: str, flag: str) -> set[str]:
    """Returns the files that match a glob, of which there is one at least, and all shards
    of a set, such as "train-00000-of-00002"."""
    if _info(pattern).get("type") == "file":
        return {expanded(pattern)}
    with _system(pattern) as (system, place):
        # Paths lack what comes before the store's own name, such as the scheme.
        own = system._strip_protocol(place)
        before = (place.removesuffix(own) if place.endswith(own)
                  else f"{place.partition('://')[0]}://")
        matches = {before + path for path, info in system.glob(place, detail=True).items()
                   if info["type"] != "directory"}
    if not matches:
        raise InputError(f"{flag}: no file matches '{pattern}'; check the path. Quote "
                         "globs for the shell, and a name with a comma by double quotes.")
    for begin, end, count in {
            match.groups() for match in map(_SHARD.fullmatch, matches) if match}:
        for number in range(int(count)):
            path = f"{begin}{number:05d}{end}"
            if path not in matches and not exists(path):
                raise InputError(f"{flag}: '{pattern}' matches shards of which {path} is "
                                 "missing; restore it, or list the files to use.")
    return matches


# ---- writing ---------------------------------------------------------------


def target_of(path: str) -> str:
    """Returns the one name of a file, to which `path` may also be a link. Raises
    InputError for pipes and devices, which cannot be replaced by a file."""
    path = expanded(path).removeprefix("file://").rstrip("/")
    _check_regular(path)
    return path if is_remote(path) else os.path.realpath(path)


def rename(source: str, target: str) -> None:
    """Renames a file or folder, and replaces an existing file."""
    with _system(target) as (system, _):
        system.mv(source, target_of(target), recursive=is_folder(source))


def copy(source: str, target: str) -> None:
    """Copies a file, so that an incomplete `target` never exists."""
    with open_binary(source) as reader, atomic_write(target) as writer:
        shutil.copyfileobj(reader, writer, _STEP)


def remove(path: str) -> None:
    """Removes a file, or a folder with its content, if it exists."""
    with _system(path) as (system, path), _unless_missing:
        system.rm(path, recursive=True)


@contextlib.contextmanager
def staged(*paths: str, shared: bool = False) -> Iterator[list[str]]:
    """Yields temporary names for files or folders, which are renamed at the end, in the
    order of `paths`.

        with files.staged(path, f"{path}.json") as (records, summary):
            ...  # write both

    If the block raises, existing files at `paths` are unchanged. If a path is a link, the
    file that it leads to is replaced. If several processes may write the same output at
    the same time, it is `shared`: each has temporary names of its own.
    """
    end = INCOMPLETE + f"-{os.urandom(4).hex()}" * shared
    paths = tuple(map(target_of, paths))
    temporary = [path + end for path in paths]
    try:
        for path, whole in zip(paths, temporary):
            make_directory(os.path.dirname(path))
            remove(whole)  # what a killed process left
        yield temporary
        for path, whole in zip(paths, temporary):
            rename(whole, path)
    except BaseException as error:
        for whole in temporary:
            with contextlib.suppress(InputError):  # A store is out of reach.
                remove(whole)
        if not isinstance(error, OSError) and not is_of_library(error):
            raise
        raise Interruption(f"{', '.join(paths)}: cannot be written: {reason_of(error)}."
                           .replace(INCOMPLETE, "")) from error


@contextlib.contextmanager
def atomic_write(path: str, shared: bool = False) -> Iterator[BinaryIO]:
    """Opens `path` to write bytes; with `staged`, so it is complete or not there."""
    with staged(path, shared=shared) as (whole,), open_binary(whole, "wb") as stream:
        yield stream
        if not is_remote(whole) and not stream.closed and not os.path.samestat(
                os.fstat(stream.fileno()), os.stat(whole)):
            raise Interruption(f"{path}: another process writes it, too; wait for it, or "
                               "give a different name.")


def write(path: str, content: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(content)


# ---- checks before the work ------------------------------------------------


def prepare_outputs(outputs: Mapping[str, Iterable[str]],
                    inputs: Mapping[str, Iterable[str]]) -> None:
    """Raises InputError before any work if an output cannot be a file, its folder cannot
    be written, or it is also an input or a different output, also through links.

        prepare_outputs({"--output_file": ["train.txt"]}, {"--input_file": paths})

    A folder as an input means all files in it.
    """
    written: dict[str, tuple[str, str]] = {}  # path → flag, and the path as given
    for flag, paths in outputs.items():
        for path in paths:
            if not os.path.basename(path) or is_folder(path) or (
                    is_remote(path) and path.count("/") < 3):
                raise InputError(f"{flag}: {path or 'an empty name'} is a folder or a "
                                 "bucket; give a file in it.")
            other, _ = written.setdefault(target_of(path), (flag, path))
            if other != flag:
                raise InputError(
                    f"{flag}={path} is also {other}; give each a different name.")
    # A killed run's temporary file may match a glob, and is overwritten, too.
    replaced = {str(place): output for whole, output in written.items()
                for place in (whole + INCOMPLETE, *(
                    pathlib.Path(whole).parents if os.path.exists(whole) else ()))}
    for flag, paths in inputs.items():
        for path in paths:
            if output := (written | replaced).get(target_of(path)):
                raise InputError(
                    "{}: {} is also an input ({} {}) and would be overwritten; give a "
                    "different output.".format(*output, flag, path))
    for folder, flag in {os.path.dirname(whole): flag
                         for whole, (flag, _) in written.items()}.items():
        check_folder(folder, flag)


def check_new(path: str, flag: str) -> None:
    """Raises InputError if a file or folder exists, or cannot be made."""
    path = expanded(path).rstrip("/") or "/"
    if exists(path):
        raise InputError(f"{flag}={path} exists already; give a new name, or remove it.")
    check_folder(os.path.dirname(path) or ".", flag)


def make_directory(path: str) -> None:
    """Makes a directory and its parents, if they do not exist."""
    # Elsewhere a folder is the beginning of a name, and making one could make a bucket.
    if os.fspath(path).rpartition("://")[0] in (
            "", "hdfs", "webhdfs", "file", "sftp", "ssh", "ftp", "smb", "ram"):
        with _system(path) as (system, path):
            system.makedirs(path, exist_ok=True)


def check_folder(path: str, what: str) -> None:
    """Raises InputError, which names `what`, such as "--output_dir", if files cannot be
    written in a folder or, if it does not exist, where it would be made."""
    if is_remote(path):
        make_directory(path)
        probe = os.path.join(path, ".writable")
        open_binary(probe, "wb").close()
        remove(probe)  # Also if another worker has.
        return
    folder = pathlib.Path(os.path.abspath(expanded(path)))
    place = next(filter(os.path.lexists, (folder, *folder.parents)))
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        raise InputError(
            f"{what}: the folder {path} cannot be written; choose a different folder or "
            "change its permissions.")


def check_in_tensorflow(path: str, flag: str = "") -> None:
    """Raises InputError for a path that TensorFlow cannot read or, with the `flag` of an
    output folder, restore from and delete in: it takes names there for globs."""
    path, given = os.fspath(path), f"{flag}=" * bool(flag)
    if flag and (found := re.search(r"[*?\[\\]", path)):
        raise InputError(f"{given}{path}: TensorFlow takes names with {found[0]} for "
                         "patterns; choose a folder without *, ?, [ and \\ in its name.")
    if is_remote(path) and not _in_tensorflow(path):
        raise InputError(f"{given}{path}: TensorFlow does not reach this store; give a "
                         "local path or one on gs://.")


def check_local(path: str, flag: str = "") -> None:
    """Raises InputError for a path that a package, which needs a local file, cannot
    read or write."""
    if is_remote(path):
        raise InputError(f"{flag}{'=' * bool(flag)}{path}: files of this format are read "
                         "and written on this machine only; give a local path.")
    if os.path.isfile(path):
        open_binary(path).close()
