"""Features of fine-tuning: made once, kept in a file, loaded into memory.

Beside the TFRecords stands `<path>.fingerprint.json` with everything that they
depend on and a digest of their content. They are reused only if both match.
"""

import hashlib
import inspect
import json
import types
import uuid
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.records import tfrecord
from albert_tf.records.spec import FeatureSpec


def fingerprint_parts(paths: Mapping[str, str], modules: Sequence[types.ModuleType],
                      **settings: Any) -> dict[str, Any]:
    """Everything that features depend on, as JSON values.

    Args:
      paths: what a file is ("train data", "vocabulary") → its path. The content
        counts, not the path.
      modules: the code that makes the features; its source counts.
      **settings: values of flags, versions of libraries; any JSON values.

    Raises:
      InputError: if a file cannot be read.
    """
    return _as_json({
        "files": {what: files.sha256(path) for what, path in paths.items()},
        "code": {module.__name__: hashlib.sha256(
            inspect.getsource(module).encode()).hexdigest() for module in modules},
        "settings": settings})


def _as_json(value: Any) -> Any:
    """As it will be read back: tuples become lists."""
    return json.loads(json.dumps(value))


def load_or_create(path: str, spec: FeatureSpec, parts: Mapping[str, Any],
                   create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    """The features of a file if it holds what it should, else made anew and written.

    A file is not trusted because it exists: the fingerprint must hold equal parts
    and the same specification, and every record must be as it was written. Several
    processes may write the same path: each file appears whole, and one that does
    not go with its fingerprint is made anew.

    Args:
      path: TFRecords; local or remote.
      spec: the features of a record.
      parts: from fingerprint_parts.
      create: makes the features, a dict per record; called only if needed.

    Returns:
      The features of all records, in the order of `create`.

    Raises:
      InputError: if `create` makes no record, or none can be written; or what
        `create` raises.
    """
    wanted = _as_json({**parts, "records": {
        f.name: [f.dtype, f.shape, f.limit, f.parsed] for f in spec.features}})
    stored = _read_fingerprint(path)
    if stored is not None:
        changes = _changes(stored["parts"], wanted)
        if not changes:
            try:
                table = _load(path, spec, stored)
            except InputError as error:
                logging.warning("The features are made anew: %s", error)
            else:
                logging.info("Reusing the features of %d records in %s.",
                             table.num_rows, path)
                return table
        else:
            logging.info("%s: the features are made anew, because %s.", path,
                         "; ".join(changes))
    return _create(path, spec, wanted, create)


def fingerprint_path(path: str) -> str:
    """Where the fingerprint of a file of features stands."""
    return f"{path}.fingerprint.json"


def _read_fingerprint(path: str) -> dict[str, Any] | None:
    """The fingerprint of an existing file, or None if there is none to rely on."""
    sidecar = fingerprint_path(path)
    if not files.exists(path):
        return None
    if not files.exists(sidecar):
        logging.warning("%s has no fingerprint: the features are made anew.", path)
        return None
    try:
        with files.open_binary(sidecar) as stream:
            stored = json.loads(stream.read())
        if not isinstance(stored["parts"], dict):
            raise ValueError("no parts")
        return {key: stored[key] for key in ("parts", "num_records", "sha256")}
    except (ValueError, KeyError, TypeError) as error:
        logging.warning("%s is damaged (%r): the features are made anew.", sidecar,
                        error)
        return None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words."""
    if old == new:
        return []
    changes = []
    for group in sorted(old.keys() | new.keys()):
        before, after = ({} if not isinstance(parts.get(group), dict) else parts[group]
                         for parts in (old, new))
        for name in sorted(before.keys() | after.keys()):
            was, now = (json.dumps(side[name]) if name in side else "unset"
                        for side in (before, after))
            if was == now:
                continue
            if group == "files":
                changes.append(f"the content of {name} changed")
            elif group == "code":
                changes.append(f"the code of {name} changed")
            else:
                changes.append(f"{name} was {was} and is {now} now")
    return changes or ["its fingerprint has another form"]


def _load(path: str, spec: FeatureSpec, stored: Mapping[str, Any]) -> FeatureTable:
    digest = hashlib.sha256()

    def digested() -> Iterator[bytes]:
        for data in tfrecord.read_records(path):
            digest.update(data)
            yield data

    table = FeatureTable.from_records(spec, digested(), f"{path}, record")
    if (table.num_rows, digest.hexdigest()) != (
            stored["num_records"], stored["sha256"]):
        raise InputError(
            f"{path} holds {table.num_rows} records that are not those of its "
            f"fingerprint ({stored['num_records']}).")
    return table


def _create(path: str, spec: FeatureSpec, parts: Mapping[str, Any],
            create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    digest = hashlib.sha256()
    # Processes of several hosts may share a folder and have the same id.
    staged = f"{path}.unfinished-{uuid.uuid4().hex[:12]}"
    try:
        with tfrecord.RecordWriter(staged) as writer:
            def written() -> Iterator[bytes]:
                for values in create():
                    data = spec.serialize(values)
                    writer.write(data)
                    digest.update(data)
                    yield data

            table = FeatureTable.from_records(spec, written(), f"{path}, record")
            if not table.num_rows:
                raise InputError(f"{path}: there is no example to make features of; "
                                 "check the input.")
        files.rename(staged, path)
        with files.atomic_write(staged) as stream:
            stream.write((json.dumps({
                "parts": parts, "num_records": table.num_rows,
                "sha256": digest.hexdigest()}, indent=1) + "\n").encode())
        files.rename(staged, fingerprint_path(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}.") from error
    finally:
        files.remove(staged)
    logging.info("Wrote the features of %d records to %s.", table.num_rows, path)
    return table
