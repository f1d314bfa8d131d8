"""The features of examples: computed on all cores, saved to a file, loaded into memory.

The file `<name>-<digest>.npz` holds the arrays of a FeatureTable. The digest is that
of all that they are made of, so that a change of it gives a file of its own.
"""

import functools
import glob
import hashlib
import itertools
import json
import os
import types
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError, reading
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import Progress
from albert_tf.records.spec import FeatureSpec

# Starting processes takes longer than computing this many examples.
_FEW_EXAMPLES = 1000
_LARGEST_CHUNK = 256
_DIGITS = 16  # of a digest in a file's name
_ROWS_AT_ONCE = 1000
_DTYPES = {"int64": np.int32, "float32": np.float32}

Function = Callable[[Any], list[dict]]


class Ragged(Sequence):
    """A column whose rows differ in length.

    `values` are those of all rows, concatenated. Row n begins at offsets[n] and ends at
    offsets[n + 1], int64 [N + 1]; its shape is `row_shape`, (None,) or (4, None).
    """

    def __init__(self, values: np.ndarray, offsets: np.ndarray,
                 row_shape: Sequence[int | None]):
        self.values, self.offsets = values, offsets
        self.row_shape = [-1 if size is None else size for size in row_shape]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row):
        begin, end = self.offsets[:-1][row], self.offsets[1:][row]
        return self.values[begin:end].reshape(self.row_shape)


class FeatureTable:
    """The features of a set in memory, without padding; row n is record n.

    Attributes:
      spec: the specification of the features.
      arrays: as in a file: name on disk → the rows, or those of a variable feature
        concatenated, and "name.offsets" → where each of these begins.
      columns: name on disk → array [N, ...], or Ragged for a variable feature;
        int32 or float32.
      lengths: the last dimension of each row's input_ids, int64 [N]. All other
        variable features that go into batches have the same lengths.
      num_rows: N.
    """

    def __init__(self, spec: FeatureSpec, arrays: Mapping[str, np.ndarray]):
        self.spec, self.arrays = spec, arrays
        self.columns: dict[str, np.ndarray | Ragged] = {
            f.name: Ragged(arrays[f.name], arrays[f"{f.name}.offsets"], f.shape)
            if f.is_variable else arrays[f.name].reshape([-1, *f.shape])
            for f in spec.features}
        self.num_rows = len(self.columns["input_ids"])
        [size] = [f.num_values for f in spec.features if f.name == "input_ids"]
        self.lengths = np.diff(arrays["input_ids.offsets"]) // size

    @classmethod
    def from_values(cls, spec: FeatureSpec, examples: Iterable[Mapping[str, Any]]
                    ) -> "FeatureTable":
        """Returns a table of featurized examples: name on disk → values of exactly the
        features in the specification. Raises InputError for ids out of range."""
        examples, arrays, lengths = iter(examples), {}, []
        parts: dict[str, list] = {
            f.name: [(np.zeros(0, _DTYPES[f.dtype]), [])] for f in spec.features}
        while batch := list(itertools.islice(examples, _ROWS_AT_ONCE)):
            for f in spec.features:
                rows = [np.asarray(values[f.name], _DTYPES[f.dtype]).ravel()
                        for values in batch]
                parts[f.name].append((np.concatenate(rows), [*map(len, rows)]))
        for f in spec.features:
            values, counts = zip(*parts.pop(f.name))
            arrays[f.name] = np.concatenate(values)
            sizes = np.concatenate(counts).astype(np.int64)
            if not np.all(f.fits(sizes)):
                raise ValueError(f"{f.name} does not have the shape {f.shape}")
            if excess := f.excess(arrays[f.name]):
                raise InputError(f"the features: {excess}.")
            if f.is_variable:
                arrays[f"{f.name}.offsets"] = np.cumsum(np.append(0, sizes))
                if f.parsed:
                    lengths.append(sizes // f.num_values)
        if not all((each == lengths[0]).all() and each.all() for each in lengths):
            raise ValueError("the features of a sequence differ in length, or are empty")
        return cls(spec, arrays)

    @functools.cached_property
    def tensors(self) -> dict[str, Any]:
        """The columns of the parsed features as eager tensors in the host's memory:
        name on disk → [N, ...], or ragged [N · sequences of an example, (tokens)]."""
        import tensorflow as tf

        with tf.device("CPU:0"):
            return {
                f.name: tf.RaggedTensor.from_row_lengths(column.values, np.repeat(
                    np.diff(column.offsets) // f.num_values, f.num_values), validate=False)
                if isinstance(column, Ragged) else tf.constant(column)
                for f in self.spec.features if f.parsed
                for column in [self.columns[f.name]]}


def featurize_all(
        examples: Sequence, function: Function, *, what: str, num_workers: int = 0
) -> Iterator[list[dict[str, np.ndarray]]]:
    """Applies a function, which returns one dict for each record, to every example, in
    parallel if there are enough of them. Each process receives it once, with all it holds
    (the tokenizer). The results, as arrays, come in the order of the examples for any
    number of processes; 0 is one per CPU core. `what` names the set in messages. With
    several processes, a script needs `if __name__ == "__main__"`."""
    workers, size = num_workers or parallel.num_cores(), 1
    if len(examples) < _FEW_EXAMPLES:
        workers = 1
    else:
        logging.info("Computing the features of %s: %s examples, %d process%s.", what,
                     f"{len(examples):,}", workers, "es" * (workers > 1))
    if workers > 1:
        size = max(1, min(_LARGEST_CHUNK, len(examples) // (8 * workers)))
    chunks = (examples[at:at + size] for at in range(0, len(examples), size))
    progress = Progress(f"features of {what}", "examples", len(examples))
    with parallel.WorkerPool(functools.partial(_featurized, function), workers) as pool:
        for results in pool.in_order(chunks, f"features of {what}"):
            for result in results:
                yield result
                progress.add(1)


def _featurized(function: Function, chunk: Sequence
                ) -> list[list[dict[str, np.ndarray]]]:
    # Arrays are faster to transfer between processes than lists.
    return [[{name: np.asarray(values) for name, values in features.items()}
             for features in function(example)] for example in chunk]


def digest_of(code: Iterable[str], spec: FeatureSpec, **made_of: Any) -> str:
    """Returns the digest of all that features are made of: the modules in the folders
    `code`, the features of a record, and JSON values, such as flags and digests."""
    modules = [files.sha256(path) for folder in code
               for path in sorted(glob.glob(os.path.join(folder, "*.py")))]
    shapes = [[f.name, f.dtype, f.shape, f.limit, f.parsed] for f in spec.features]
    return hashlib.sha256(json.dumps(
        [modules, shapes, made_of], sort_keys=True).encode()).hexdigest()[:_DIGITS]


def load_or_create(path: str, spec: FeatureSpec,
                   create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    """Returns the features in a file; if there is none, computes them with `create`, one
    dict per record, and writes it. Several processes may: the file appears whole."""
    if files.exists(path):
        with files.open_binary(path) as stream, reading(path):
            table = FeatureTable(spec, dict(np.load(stream)))
        logging.info("Reusing the features of %d records in %s.", table.num_rows, path)
        return table
    table = FeatureTable.from_values(spec, create())
    if not table.num_rows:
        raise InputError(f"{path}: there is no example to compute features from; check "
                         "the input.")
    with files.atomic_write(path, shared=True) as stream:
        # TensorFlow's files of a store have no position, and do not count bytes.
        np.savez(types.SimpleNamespace(
            read=None, flush=stream.flush,
            write=lambda data: stream.write(data) or len(data)), **table.arrays)
    logging.info("Wrote the features of %d records to %s.", table.num_rows, path)
    return table
