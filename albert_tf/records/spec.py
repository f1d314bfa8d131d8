"""Records: one feature specification that writes, checks and parses examples.

A record is a serialized tf.train.Example. Writing and checking need no
TensorFlow, because data creation runs in many processes that should start fast;
only `FeatureSpec.parse` and `explain_read_error` load it, when called. The
files that hold the records are read and written in `record_files`.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy as np
from google.protobuf import message

from albert_tf.errors import InputError
from albert_tf.records.example_message import Example
from albert_tf.records.tfrecord import FileInfo, RecordWriter, read_records, scan

__all__ = [
    "Feature", "FeatureSpec", "FileInfo", "RecordWriter", "check_files",
    "explain_read_error", "pretraining_spec", "read_records", "scan",
]

_SCAN_THREADS = 8
_DTYPES = {"int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}
_LISTS = {"int64": "int64_list", "float32": "float_list"}


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
      name: its name on disk.
      dtype: "int64" or "float32", as on disk.
      shape: of one example, without the batch; () is a single value. The last
        dimension may be None: it then differs from example to example.
      set_by: the option that sets its length, named in error messages.
      limit: int64 values must be at least 0 and below it; 0 sets no limit.
      limited_by: the option that sets the limit, named in error messages.
      parsed_name: its name after parsing; "" means `name`.
      parsed: False for a feature that is written but not needed in training;
        records without it are accepted.
      pad_value: fills up examples that are shorter than others of a batch.
    """

    name: str
    dtype: str
    shape: tuple[Optional[int], ...]
    set_by: str = ""
    parsed_name: str = ""
    parsed: bool = True
    limit: int = 0
    limited_by: str = ""
    pad_value: int = 0

    def __post_init__(self):
        if None in self.shape[:-1]:
            raise ValueError(f"feature {self.name}: only the last dimension of "
                             f"{self.shape} may be None.")
        if self.dtype not in _DTYPES:
            raise ValueError(
                f"feature {self.name}: dtype {self.dtype!r} is not one of "
                f"{', '.join(_DTYPES)}.")

    @property
    def is_variable(self) -> bool:
        """Whether its length differs from example to example."""
        return self.shape[-1:] == (None,)

    @property
    def num_values(self) -> int:
        """Values of an example; a variable feature has a multiple of this."""
        return math.prod(d for d in self.shape if d is not None)

    def fits(self, num_values: int) -> bool:
        """Whether an example may have so many values."""
        if self.is_variable:
            return num_values % self.num_values == 0
        return num_values == self.num_values

    def check_fits(self, num_values: int) -> None:
        """Raises ValueError if an example may not have so many values."""
        if not self.fits(num_values):
            multiple = "a multiple of " if self.is_variable else ""
            raise ValueError(f"feature {self.name} has {num_values} values instead of "
                             f"{multiple}{self.num_values}.")


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The features of a record, in one place for writing and for parsing."""

    features: tuple[Feature, ...]

    def __post_init__(self):
        for names in ([f.name for f in self.features],
                      [f.parsed_name or f.name for f in self.features]):
            if len(set(names)) != len(names):
                raise ValueError(f"a feature name occurs twice in {names}.")

    def check_names(self, values: Mapping[str, Any]) -> None:
        """Raises ValueError if the keys are not exactly the features' names."""
        expected = {f.name for f in self.features}
        if values.keys() != expected:
            raise ValueError(
                f"features do not match the specification: unknown "
                f"{sorted(values.keys() - expected)}, missing "
                f"{sorted(expected - values.keys())}.")

    def serialize(self, values: Mapping[str, Any]) -> bytes:
        """A serialized tf.train.Example with features in the order of their names.

        Args:
          values: name on disk → sequence or array with exactly as many values as
            the specification says; int64 features take no floats. Features of
            several dimensions also take rows of equal length.

        Raises:
          ValueError: for an unknown or missing feature, a wrong number of
            values, or values of the wrong type.
        """
        self.check_names(values)
        example = Example()
        entries = example.features.feature
        for feature in self.features:
            given = _flat(feature, values[feature.name])
            feature.check_fits(len(given))
            try:
                kind = getattr(entries[feature.name], _LISTS[feature.dtype])
                kind.value.extend(given)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"feature {feature.name} does not hold {feature.dtype} values: "
                    f"{error}.") from error
        # Sorted by name: equal examples give equal bytes.
        return example.SerializeToString(deterministic=True)

    def parse_numpy(self, serialized: bytes, where: str = "record") -> dict:
        """Features of one record as NumPy arrays, by their names on disk.

        Args:
          serialized: one tf.train.Example.
          where: file and record, to begin an error message with.

        Returns:
          name → int64 or float32 array of the feature's shape. Features that
          are not in the specification are ignored; one with parsed=False is
          left out where the record lacks it.

        Raises:
          InputError: if the bytes are no tf.train.Example, or a feature is
            missing, of the wrong type, of the wrong length or has a value outside
            its limits; names them all.
        """
        try:
            found = Example.FromString(serialized).features.feature
        except message.DecodeError as error:
            raise InputError(
                f"{where}: the content is not a tf.train.Example; give files "
                "written by create_pretraining_data.") from error
        arrays, missing, mistyped, lengths = {}, [], [], {}
        for feature in self.features:
            if feature.name not in found:
                if feature.parsed:
                    missing.append(feature.name)
                continue
            kind = found[feature.name].WhichOneof("kind")
            if kind != _LISTS[feature.dtype]:
                mistyped.append(f"{feature.name} holds {kind or 'nothing'} instead of "
                                f"{_LISTS[feature.dtype]}")
                continue
            values = getattr(found[feature.name], kind).value
            if not feature.fits(len(values)):
                key = (len(values), feature.set_by, feature.num_values,
                       feature.is_variable)
                lengths.setdefault(key, []).append(feature.name)
                continue
            arrays[feature.name] = np.array(values, _DTYPES[feature.dtype]).reshape(
                [-1 if d is None else d for d in feature.shape])
        problems = ([f"it has no feature {', '.join(missing)}"] if missing else [])
        problems += mistyped + [
            _length_problem(names, *key) for key, names in lengths.items()]
        problems += [_limit_problem(f, arrays[f.name]) for f in self.features
                     if f.name in arrays and not _within(f, arrays[f.name])]
        if problems:
            raise InputError(f"{where}: {'; '.join(problems)}.")
        return arrays

    def parse(self, serialized):
        """Features as tensors, by their names in the model; loads TensorFlow.

        Args:
          serialized: string tensor, [] for one record or [B] for a batch.

        Returns:
          name → tensor of the feature's shape, behind [B] for a batch; int64
          becomes int32, which is what accelerators take. While running, a record
          that does not fit raises tf.errors.InvalidArgumentError, which
          `explain_read_error` turns into a message.

        Raises:
          ValueError: if a feature is of variable length; feature_files reads those.
        """
        import tensorflow as tf

        variable = [f.name for f in self.features if f.parsed and f.is_variable]
        if variable:
            raise ValueError(f"feature_files reads {', '.join(variable)}, not parse.")
        serialized = tf.convert_to_tensor(serialized)
        parsers = {
            f.name: tf.io.FixedLenFeature(f.shape, tf.dtypes.as_dtype(f.dtype))
            for f in self.features if f.parsed}
        parse = (tf.io.parse_single_example if serialized.shape.rank == 0
                 else tf.io.parse_example)
        tensors = parse(serialized, parsers)
        # A device may read past the end of an embedding table in silence.
        checks = [tf.debugging.Assert(
            tf.reduce_all((tensors[f.name] >= 0) & (tensors[f.name] < f.limit)),
            [f"Feature: {f.name} has a value outside 0..{f.limit - 1}"])
            for f in self.features if f.parsed and f.limit]
        with tf.control_dependencies([check for check in checks if check is not None]):
            tensors = {name: tf.identity(value) for name, value in tensors.items()}
        return {
            f.parsed_name or f.name: (tf.cast(tensors[f.name], tf.int32)
                                      if f.dtype == "int64" else tensors[f.name])
            for f in self.features if f.parsed}


def _flat(feature: Feature, given: Any) -> Sequence:
    """An example's values of a feature, one after the other."""
    if len(feature.shape) > 1 and len(given) and not np.isscalar(given[0]):
        given = np.array(given, object)  # floats are not taken for integers
        if given.ndim != len(feature.shape) or any(
                d not in (None, n) for d, n in zip(feature.shape, given.shape)):
            raise ValueError(
                f"feature {feature.name} has the shape {given.shape} instead of "
                f"{feature.shape}, in rows of one length.")
    # Python numbers go into a protobuf list faster than NumPy's.
    return given.ravel().tolist() if isinstance(given, np.ndarray) else given


def _length_problem(names, found, set_by, expected, multiple) -> str:
    if multiple:
        return (f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {found} "
                f"values, which is not a multiple of {expected}")
    says = f"{set_by} says" if set_by else "there should be"
    advice = (f" (set {set_by} to {found}, or create the data again)"
              if set_by and found else "")
    return (f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {found} "
            f"values where {says} {expected}{advice}")


def _within(feature: Feature, values: np.ndarray) -> bool:
    return not feature.limit or (values.min(initial=0) >= 0
                                 and values.max(initial=0) < feature.limit)


def _limit_problem(feature: Feature, values: np.ndarray) -> str:
    worst = values.max() if values.max() >= feature.limit else values.min()
    says = (f", as {feature.limited_by} {feature.limit} says"
            if feature.limited_by else "")
    return (f"{feature.name} holds {worst}, which is not in 0..{feature.limit - 1}"
            + says
            + ("; create the data with the model's vocabulary, or change the config"
               if feature.limited_by == "vocab_size" else ""))


def pretraining_spec(
        max_seq_length: int, max_predictions_per_seq: int, vocab_size: int = 0,
        type_vocab_size: int = 0) -> FeatureSpec:
    """Records of pretraining, as the release's create_pretraining_data writes them.

    Its do_permutation writes twice as many prediction slots as it was asked for;
    give that doubled number here.

    Args:
      max_seq_length: S.
      max_predictions_per_seq: P.
      vocab_size: ids must be below it; 0 does not check.
      type_vocab_size: segment ids must be below it; 0 does not check.
    """
    vocabulary = dict(limit=vocab_size, limited_by="vocab_size")

    def tokens(name, **kwargs):  # [S]
        return Feature(name, "int64", (max_seq_length,), "max_seq_length", **kwargs)

    def predictions(name, dtype, **kwargs):  # [P]
        return Feature(name, dtype, (max_predictions_per_seq,),
                       "max_predictions_per_seq", **kwargs)

    return FeatureSpec((
        tokens("input_ids", **vocabulary),
        tokens("input_mask", limit=2),
        tokens("segment_ids", limit=type_vocab_size, limited_by="type_vocab_size"),
        # Only masking at training time would read it.
        tokens("token_boundary", parsed=False),
        predictions("masked_lm_positions", "int64", limit=max_seq_length),
        predictions("masked_lm_ids", "int64", **vocabulary),
        predictions("masked_lm_weights", "float32"),
        # The name on disk comes from BERT; what it holds is ALBERT's label:
        # 1 = the segments were swapped. From here on it is called that.
        Feature("next_sentence_labels", "int64", (1,),
                parsed_name="sentence_order_labels", limit=2),
    ))


def check_files(paths: Iterable[str], spec: FeatureSpec) -> list[FileInfo]:
    """Scans files and parses the first record of each, before any long work.

    Returns:
      One FileInfo per path, in order.

    Raises:
      InputError: names the first file that is damaged or does not fit `spec`.
    """
    def check(path):
        # The first record first: a file of the wrong kind is told at once.
        with contextlib.closing(read_records(path)) as records:
            spec.parse_numpy(next(records), f"{path}, record 1")
        return scan(path)

    with concurrent.futures.ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return list(pool.map(check, paths))


def explain_read_error(
        paths: Sequence[str], spec: FeatureSpec, error: Exception
) -> InputError | None:
    """Finds the record behind an error that tf.data raised while training.

    TensorFlow's message names no file. Reads `paths` whole, until the first
    record that is damaged or does not fit `spec`.

    Args:
      paths: the files that were being read.
      spec: the features that were being parsed.
      error: a tf.errors.OpError, or the UnicodeDecodeError that TensorFlow raises
        where its message quotes the bytes of a record that is not an example.

    Returns:
      An error that names file and record, to `raise ... from error`; None if
      `error` is not about reading records, or the files read well now.
    """
    import tensorflow as tf

    # InvalidArgumentError has many other causes; parse_example says one of these.
    parsing = (isinstance(error, tf.errors.InvalidArgumentError) and any(
        sign in str(error) for sign in ("Key: ", "Feature: ", "parse example")))
    if not parsing and not isinstance(error, (
            tf.errors.DataLossError, tf.errors.NotFoundError, UnicodeDecodeError)):
        return None
    for path in paths:
        try:
            for number, data in enumerate(read_records(path), 1):
                spec.parse_numpy(data, f"{path}, record {number}")
        except InputError as found:
            return found
    return None
