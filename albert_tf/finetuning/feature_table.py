"""The features of a data set in memory: one column per feature, without padding."""

import functools
import itertools
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

import numpy as np

from albert_tf.errors import InputError
from albert_tf.records.spec import FeatureSpec, excess

_ROWS_AT_ONCE = 1000
_DTYPES = {"int64": np.int32, "float32": np.float32}


class Ragged:
    """A column whose rows differ in length.

    `values` are those of all rows, concatenated. Row n begins at offsets[n] and ends at
    offsets[n + 1], int64 [N + 1]; its shape is `row_shape`, (None,) or (4, None).
    """

    def __init__(self, values: np.ndarray, offsets: np.ndarray,
                 row_shape: Sequence[int | None]):
        self.values, self.offsets = values, offsets
        self.row_shape = tuple(row_shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Returns row `row` in its own shape, such as [len] or [4, len]."""
        begin, end = self.offsets[:-1][row], self.offsets[1:][row]
        return self.values[begin:end].reshape(
            [-1 if size is None else size for size in self.row_shape])

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """The last dimension of each row, int64 [N]."""
        return np.diff(self.offsets) // int(
            np.prod(self.row_shape[:-1], dtype=np.int64))


Column = Union[np.ndarray, Ragged]


class FeatureTable:
    """All examples of a data set; row n is record n.

    Attributes:
      spec: the specification of the features.
      columns: name on disk → array [N, ...], or Ragged for a variable feature;
        int32 or float32.
      lengths: the last dimension of each row's input_ids, int64 [N]. All other
        variable features that go into batches have the same lengths.
      num_rows: N.
    """

    def __init__(self, spec: FeatureSpec, columns: Mapping[str, Column]):
        self.spec = spec
        self.columns = dict(columns)
        self.num_rows = len(self.columns["input_ids"])
        self.lengths: np.ndarray = self.columns["input_ids"].lengths

    @classmethod
    def from_values(cls, spec: FeatureSpec, examples: Iterable[Mapping[str, Any]]
                    ) -> "FeatureTable":
        """Returns a table of featurized examples: name on disk → values of exactly the
        features in the specification. Raises InputError for ids out of range."""
        examples = iter(examples)
        parts: dict[str, list] = {f.name: [] for f in spec.features}
        while batch := list(itertools.islice(examples, _ROWS_AT_ONCE)):
            for f in spec.features:
                rows = [np.asarray(values[f.name], _DTYPES[f.dtype]).ravel()
                        for values in batch]
                parts[f.name].append((np.concatenate(rows), [*map(len, rows)]))
        arrays, lengths = {}, []
        for f in spec.features:
            values, counts = zip(
                (np.zeros(0, _DTYPES[f.dtype]), []), *parts.pop(f.name))
            arrays[f.name] = np.concatenate(values)
            sizes = np.concatenate(counts).astype(np.int64)
            if not np.all(f.fits(sizes)):
                raise ValueError(f"{f.name} does not have the shape {f.shape}")
            if not f.within_limit(arrays[f.name]):
                raise InputError(f"the features: {excess(f, arrays[f.name])}.")
            if f.is_variable:
                arrays[_offsets(f.name)] = np.cumsum(np.append(0, sizes))
                if f.parsed:
                    lengths.append(sizes // f.num_values)
        if not all((each == lengths[0]).all() and each.all() for each in lengths):
            raise ValueError(
                "the features of a sequence differ in length, or are empty")
        return cls.of_arrays(spec, arrays)

    @classmethod
    def of_arrays(cls, spec: FeatureSpec, arrays: Mapping[str, np.ndarray]
                  ) -> "FeatureTable":
        """Returns the table that `arrays` gave."""
        return cls(spec, {
            f.name: Ragged(arrays[f.name], arrays[_offsets(f.name)], f.shape)
            if f.is_variable else arrays[f.name].reshape([-1, *f.shape])
            for f in spec.features})

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the columns as arrays by name."""
        ragged = {name: column for name, column in self.columns.items()
                  if isinstance(column, Ragged)}
        return {**self.columns, **{name: column.values for name, column in ragged.items()},
                **{_offsets(name): column.offsets for name, column in ragged.items()}}

    @functools.cached_property
    def tensors(self) -> dict[str, Any]:
        """The columns of the parsed features as eager tensors in the host's memory:
        name on disk → [N, ...], or (values, offsets) for a variable feature."""
        import tensorflow as tf

        with tf.device("CPU:0"):
            return {
                f.name: ((tf.constant(column.values), tf.constant(column.offsets))
                         if isinstance(column, Ragged) else tf.constant(column))
                for f in self.spec.features if f.parsed
                for column in [self.columns[f.name]]}


def _offsets(name: str) -> str:
    return f"{name}.offsets"
