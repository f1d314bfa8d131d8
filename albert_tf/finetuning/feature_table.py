"""The features of a data set in memory: one column per feature, without padding."""

import functools
import itertools
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union

import numpy as np

from albert_tf.errors import InputError
from albert_tf.records.spec import Feature, FeatureSpec

_ROWS_AT_ONCE = 1000
_DTYPES = {"int64": np.int64, "float32": np.float32}
_INT32 = np.iinfo(np.int32)


class Ragged:
    """A column whose rows differ in length.

    Attributes:
      values: the values of all rows, concatenated, [sum of sizes].
      offsets: the position in `values` where row n begins; entry n + 1 is where it
        ends; int64 [N + 1].
      row_shape: the shape of one row, such as (None,) or (4, None).
    """

    def __init__(self, values: np.ndarray, offsets: np.ndarray,
                 row_shape: Sequence[int | None]):
        self.values, self.offsets = values, offsets
        self.row_shape = tuple(row_shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Returns row `row` in its own shape, such as [len] or [4, len]."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        values = self.values[self.offsets[row]:self.offsets[row + 1]]
        return values.reshape([-1 if d is None else d for d in self.row_shape])

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def width(self) -> int:
        """The number of values per unit of length: 1 for (None,), 4 for (4, None)."""
        return int(np.prod(self.row_shape[:-1], dtype=np.int64))

    @property
    def lengths(self) -> np.ndarray:
        """The last dimension of each row, int64 [N]."""
        return np.diff(self.offsets) // self.width


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
    def from_values(cls, spec: FeatureSpec, examples: Iterable[Mapping[str, Any]],
                    where: str = "example",
                    write: Callable[[bytes], Any] = lambda record: None
                    ) -> "FeatureTable":
        """Returns a table of featurized examples; does not need TensorFlow.

        Args:
          spec: the specification of the features.
          examples: name on disk → values, as FeatureSpec.serialize takes them.
          where: begins error messages, before the example's number from 1.
          write: receives each example as a record.
        """
        def columns(batch):
            records = [spec.serialize(values) for values in batch]
            for record in records:
                write(record)
            rows = {f.name: [np.asarray(values[f.name], _DTYPES[f.dtype]).ravel()
                             for values in batch] for f in spec.features}
            return records, [(np.concatenate(arrays), np.array([*map(len, arrays)]))
                             for arrays in rows.values()]

        return cls._of_batches(spec, examples, where, columns)

    @classmethod
    def from_records(cls, spec: FeatureSpec, records: Iterable[bytes],
                     where: str = "record") -> "FeatureTable":
        """Returns a table of serialized tf.train.Examples; imports TensorFlow.

        Args:
          spec: the specification of the features, all of which each record must have.
          records: the serialized examples.
          where: begins error messages, before the record's number from 1.
        """
        return cls._of_batches(
            spec, records, where, lambda batch: (batch, _parse(spec, batch)))

    @classmethod
    def _of_batches(cls, spec: FeatureSpec, source: Iterable, where: str,
                    columns: Callable[[list], tuple[list[bytes], Any]]
                    ) -> "FeatureTable":
        """Builds a table in batches of _ROWS_AT_ONCE items of `source`.

        `columns` takes such a batch and returns its records and, for every feature,
        (values, number of values of each row), or None if they cannot be parsed.
        """
        source = iter(source)
        parts: list[list] = [[] for _ in spec.features]
        dtypes = [np.int32 if f.dtype == "int64" else np.float32
                  for f in spec.features]
        done = 0
        while batch := list(itertools.islice(source, _ROWS_AT_ONCE)):
            records, arrays = columns(batch)
            if arrays is None or not _fit(spec, arrays):
                _explain(spec, records, where, done)
            for part, dtype, (values, sizes) in zip(parts, dtypes, arrays):
                part.append((values.astype(dtype, copy=False), sizes))
            done += len(batch)
        table = {}
        for feature, dtype, part in zip(spec.features, dtypes, parts):
            values = np.concatenate(
                [np.zeros(0, dtype), *(values for values, _ in part)])
            if feature.is_variable:
                offsets = np.cumsum(np.concatenate(
                    [np.zeros(1, np.int64), *(sizes for _, sizes in part)]))
                table[feature.name] = Ragged(values, offsets, feature.shape)
            else:
                table[feature.name] = values.reshape([done, *feature.shape])
        return cls(spec, table)

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


def _parse(spec: FeatureSpec, batch: list[bytes]):
    """Returns (values, number of values of each record) for every feature, or None if
    TensorFlow cannot parse a record."""
    import tensorflow as tf

    parsers = {
        f.name: tf.io.RaggedFeature(tf.dtypes.as_dtype(f.dtype),
                                    row_splits_dtype=tf.int64)
        for f in spec.features}
    try:
        with tf.device("CPU:0"):
            parsed = tf.io.parse_example(batch, parsers)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        return None
    return [(parsed[f.name].values.numpy(), np.diff(parsed[f.name].row_splits.numpy()))
            for f in spec.features]


def _explain(spec: FeatureSpec, records: list[bytes], where: str, done: int) -> None:
    """Raises InputError for the first record that is wrong."""
    for number, data in enumerate(records, done + 1):
        _check_record(spec, spec.parse_numpy(data, f"{where} {number}"),
                      f"{where} {number}")
    raise AssertionError("Valid records were refused.")


def _in_batches(feature: Feature) -> bool:
    return feature.parsed and feature.is_variable


def _fit(spec: FeatureSpec, columns: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Returns whether all records are valid, with the same checks as _check_record."""
    lengths = [sizes // f.num_values for f, (_, sizes) in zip(spec.features, columns)
               if _in_batches(f)]
    return (all((length == lengths[0]).all() and length.all() for length in lengths)
            and all(np.all(f.fits(sizes)) and f.within_limit(values)
                    and _in_32_bits(values)
                    for f, (values, sizes) in zip(spec.features, columns)))


def _in_32_bits(values: np.ndarray) -> bool:
    return values.dtype.kind == "f" or (
        values.min(initial=0) >= _INT32.min and values.max(initial=0) <= _INT32.max)


def _check_record(spec: FeatureSpec, arrays: Mapping[str, np.ndarray],
                  where: str) -> None:
    """Raises InputError for the faults that parse_numpy does not look for."""
    missing = [f.name for f in spec.features if f.name not in arrays]
    if missing:
        raise InputError(f"{where}: it has no feature {', '.join(missing)}.")
    lengths = {f.name: arrays[f.name].shape[-1] for f in spec.features
               if _in_batches(f)}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise InputError(
            f"{where}: the features must have the same length, at least 1, but their "
            "lengths are "
            f"{', '.join(f'{name} {length}' for name, length in lengths.items())}.")
    for name, array in arrays.items():
        if not _in_32_bits(array):
            raise InputError(f"{where}: {name} has a value that needs more than 32 "
                             "bits; use smaller numbers.")
