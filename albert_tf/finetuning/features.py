"""The features of examples: computed on all cores, saved to a file, loaded into memory.

The file `<path>.fingerprint.json` beside the TFRecords holds everything that they
depend on and a digest of their content. They are reused only if both match.
"""

import hashlib
import inspect
import json
import os
import types
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import parallel
from albert_tf.errors import InputError
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.jobs.progress import Progress
from albert_tf.records import tfrecord
from albert_tf.records.spec import FeatureSpec


# Starting processes takes longer than computing this many examples.
_FEW_EXAMPLES = 1000
_LARGEST_CHUNK = 256

Function = Callable[[Any], list[dict]]


# ---- making them -----------------------------------------------------------


def featurize_all(
        examples: Sequence, function: Function, *, what: str, num_workers: int = 0
) -> Iterator[list[dict[str, np.ndarray]]]:
    """Applies a function to every example, in parallel if there are enough of them.

    The results, as arrays, come in the order of the examples for any number of
    processes. With several processes, a script needs `if __name__ == "__main__"`.

    Args:
      examples: the examples, which can be pickled.
      function: example → its features, one dict for each of its records. Can be
        pickled; each process receives it once, with all it holds (the tokenizer).
      what: the set's name, for messages ("train").
      num_workers: number of processes; 0: one per CPU core. A small set is processed
        in this process.
    """
    workers = parallel.num_processes(num_workers)
    if len(examples) < _FEW_EXAMPLES:
        workers = 1
    else:
        logging.info("Computing the features of %s: %s examples, %d process%s.", what,
                     f"{len(examples):,}", workers, "es" * (workers > 1))
    size = 1 if workers == 1 else max(
        1, min(_LARGEST_CHUNK, len(examples) // (8 * workers)))
    chunks = (examples[at:at + size] for at in range(0, len(examples), size))
    progress = Progress(f"features of {what}", "examples", len(examples))
    with parallel.WorkerPool(_Featurize(function), workers) as pool:
        for results in pool.in_order(chunks, f"features of {what}"):
            for result in results:
                yield result
                progress.add(1)


class _Featurize:
    """Applies the function to a chunk of examples. It is a class of this module so that
    the processes import the module when they start."""

    def __init__(self, function: Function):
        self._function = function

    def __call__(self, chunk: Sequence) -> list[list[dict[str, np.ndarray]]]:
        # Arrays are faster to transfer between processes than lists.
        return [[{name: np.asarray(values) for name, values in features.items()}
                 for features in self._function(example)] for example in chunk]


# ---- keeping them ----------------------------------------------------------


def fingerprint_parts(digests: Mapping[str, str], modules: Sequence[types.ModuleType],
                      **settings: Any) -> dict[str, Any]:
    """Returns everything that features depend on, as JSON values.

    Args:
      digests: name of an input ("train data", "vocabulary") → digest of its content.
      modules: the modules that compute the features, whose source code is included.
      **settings: values of flags and versions of libraries.
    """
    return _as_json({
        "files": digests,
        "code": {module.__name__: hashlib.sha256(
            inspect.getsource(module).encode()).hexdigest() for module in modules},
        "settings": settings})


def _as_json(value: Any) -> Any:
    """Returns a value as JSON would read it back: tuples become lists."""
    return json.loads(json.dumps(value))


def load_or_create(path: str, spec: FeatureSpec, parts: Mapping[str, Any],
                   create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    """Returns the features from a file if they are up to date; else computes and
    writes them.

    They are up to date if the fingerprint has equal parts and the same specification,
    and every record is as it was written. Several processes may write the same path:
    each file appears whole, and features that do not match their fingerprint are
    computed again.

    Args:
      path: the TFRecord file; local or remote.
      spec: the features of a record.
      parts: from fingerprint_parts.
      create: computes the features, one dict per record; called only if needed.
    """
    wanted = _as_json({**parts, "records": {
        f.name: [f.dtype, f.shape, f.limit, f.parsed] for f in spec.features}})
    stored = _read_fingerprint(path)
    changes = _changes(stored["parts"], wanted) if stored else []
    if changes:
        logging.info("%s: the features are computed again, because %s.", path,
                     "; ".join(changes))
    elif stored:
        try:
            table = _load(path, spec, stored)
            logging.info("Reusing the features of %d records in %s.",
                         table.num_rows, path)
            return table
        except InputError as error:
            logging.warning("The features are computed again: %s", error)
    return _create(path, spec, wanted, create)


def check_own(path: str, flag: str) -> None:
    """Raises InputError if a file exists and holds no features, which would overwrite
    it. `flag` is the flag that names the file, "" for none."""
    if files.exists(path) and not files.exists(fingerprint_path(path)):
        raise InputError(
            f"{flag}{'=' * bool(flag)}{path} was not written by this script, which "
            "would overwrite it with features; " + (
                "choose a different name, or leave the flag out." if flag
                else "move it away, or give a different --cached_dir."))


def fingerprint_path(path: str) -> str:
    """Returns the path of the fingerprint of a file of features."""
    return f"{path}.fingerprint.json"


def _read_fingerprint(path: str) -> Optional[dict[str, Any]]:
    """Returns the fingerprint of an existing file, or None if it has no valid one."""
    sidecar = fingerprint_path(path)
    if not files.exists(path):
        return None
    if not files.exists(sidecar):
        logging.warning("%s has no fingerprint: the features are computed again.", path)
        return None
    try:
        stored = text_files.read_json(sidecar)
        return {"parts": dict(stored["parts"]), "sha256": stored["sha256"],
                "num_records": stored["num_records"]}
    except (InputError, ValueError, KeyError, TypeError) as error:
        logging.warning("%s is damaged (%r): the features are computed again.", sidecar,
                        error)
        return None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the differences between two fingerprints, in words."""
    if old == new:
        return []
    changes = []
    for group in sorted(old.keys() | new.keys()):
        before, after = ({} if not isinstance(parts.get(group), dict) else parts[group]
                         for parts in (old, new))
        for name in sorted(before.keys() | after.keys()):
            was, now = (json.dumps(side[name]) if name in side else "unset"
                        for side in (before, after))
            if was != now:
                changes.append({
                    "files": f"the content of {name} changed",
                    "code": f"the code of {name} changed",
                }.get(group, f"{name} was {was} and is {now} now"))
    return changes or ["its fingerprint has a different format"]


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
            f"{path} has {table.num_rows} records, which do not match the "
            f"{stored['num_records']} records of its fingerprint.")
    return table


def _create(path: str, spec: FeatureSpec, parts: Mapping[str, Any],
            create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    if files.is_folder(path):
        raise InputError(f"{path}: cannot be written: Is a directory.")
    digest = hashlib.sha256()
    # Several processes may write the same file. The fingerprint gets its name first: a
    # file without one is not a file of features.
    with files.staged(fingerprint_path(path), path,
                      end=f"{files.INCOMPLETE}-{os.urandom(4).hex()}") as (sidecar, staged):
        with tfrecord.RecordWriter(staged) as writer:
            def write(record: bytes) -> None:
                writer.write(record)
                digest.update(record)

            table = FeatureTable.from_values(
                spec, create(), f"{path}, record", write)
            if not table.num_rows:
                raise InputError(f"{path}: there is no example to compute features "
                                 "from; check the input.")
        files.write(sidecar, (json.dumps({
            "parts": parts, "num_records": table.num_rows,
            "sha256": digest.hexdigest()}, indent=1) + "\n").encode())
    logging.info("Wrote the features of %d records to %s.", table.num_rows, path)
    return table
