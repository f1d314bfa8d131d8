"""The features of a record: one specification to write, check and parse it.

A record is a serialized tf.train.Example (encode). Only parsing loads TensorFlow, because
data creation runs in many processes that must start fast.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature in a record.

        Feature("input_ids", "int64", (None,), limit=30000, limited_by="vocab_size")
    """

    name: str  # on disk
    dtype: str  # "int64" or "float32", as on disk
    # The shape in one example, without the batch; () is a single value. The last
    # dimension may be None, if it differs between examples.
    shape: tuple[Optional[int], ...]
    set_by: str = ""  # the option that sets its length, for errors
    parsed_name: str = ""  # its name after parsing, if that differs
    parsed: bool = True  # False: it is written, but not read, and records may lack it
    limit: int = 0  # int64 values must be at least 0 and below it; 0 sets no limit
    limited_by: str = ""  # the option that sets the limit, for errors
    pad_value: int = 0  # fills up examples that are shorter than others in a batch

    @property
    def is_variable(self) -> bool:
        """Whether its length differs between examples."""
        return self.shape[-1:] == (None,)

    @property
    def num_values(self) -> int:
        """The number of values in an example; a variable feature has a multiple of it."""
        return math.prod(d for d in self.shape if d is not None)

    def fits(self, num_values: int | np.ndarray) -> bool | np.ndarray:
        """Returns whether an example, or each of many, may have this many values."""
        return (num_values % self.num_values == 0 if self.is_variable
                else num_values == self.num_values)

    def excess(self, values: np.ndarray) -> str:
        """Returns what is wrong if not all values are in 0..limit-1, or ""."""
        low, high = values.min(initial=0), values.max(initial=0)
        if not self.limit or 0 <= low and high < self.limit:
            return ""
        says = f", as {self.limited_by} says; create the data again, or change the config"
        return (f"{self.name} holds {high if high >= self.limit else low}, which is not in "
                f"0..{self.limit - 1}{says * bool(self.limited_by)}")


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The features of a record.

        spec = FeatureSpec((Feature("ids", "int64", (2,)),))
        [record] = encode.serialize(spec, {"ids": [[5, 6]]})
        spec.parse_numpy(record)  # {"ids": array([5, 6])}
    """

    features: tuple[Feature, ...]

    def parse_numpy(self, serialized: bytes, where: str = "record") -> dict:
        """Parses one record: name on disk → NumPy array of the feature's shape. One with
        parsed=False is left out if the record lacks it. `where` is the record's file and
        number."""
        from google.protobuf import message
        from tensorflow.core.example.example_pb2 import Example

        try:
            entries = Example.FromString(serialized).features.feature
        except message.DecodeError as error:
            raise InputError(
                f"{where}: the content is not a tf.train.Example; give files "
                "written by create_pretraining_data.py.") from error
        arrays: dict[str, np.ndarray] = {}
        for feature in self.features:
            if feature.name not in entries and not feature.parsed:
                continue
            kind = "int64_list" if feature.dtype == "int64" else "float_list"
            values = getattr(entries[feature.name], kind).value
            if (entries[feature.name].WhichOneof("kind") != kind
                    or not feature.fits(len(values))):
                raise InputError(
                    f"{where}: {feature.name} has {len(values)} {feature.dtype} values "
                    f"instead of {feature.num_values}" + (
                        f"; set {feature.set_by} to {len(values)}, or create the data "
                        "again." if feature.set_by and values else "."))
            array = arrays[feature.name] = np.array(
                values, feature.dtype).reshape(
                    [-1 if d is None else d for d in feature.shape])
            if excess := feature.excess(array):
                raise InputError(f"{where}: {excess}.")
        return arrays

    def parse(self, serialized):
        """Parses records into tensors, by their names in the model; loads TensorFlow.

        `serialized` is a string tensor, [] for one record or [B] for a batch. The
        results have the features' shapes, after [B] for a batch. int64 becomes int32,
        which accelerators prefer. For a record that does not fit see
        `checks.explain_read_error`.
        """
        import tensorflow as tf

        features = [f for f in self.features if f.parsed]
        tensors = tf.io.parse_example(serialized, {
            f.name: tf.io.FixedLenFeature(f.shape, tf.dtypes.as_dtype(f.dtype))
            for f in features})
        # A device may read past the end of an embedding table without an error.
        checks = [tf.debugging.Assert(
            tf.reduce_all((tensors[f.name] >= 0) & (tensors[f.name] < f.limit)),
            [f"Feature: {f.name} has a value outside 0..{f.limit - 1}"])
            for f in features if f.limit]
        with tf.control_dependencies(list(filter(None, checks))):
            tensors = {name: tf.identity(value) for name, value in tensors.items()}
        return {
            f.parsed_name or f.name: (tf.cast(tensors[f.name], tf.int32)
                                      if f.dtype == "int64" else tensors[f.name])
            for f in features}


def model_inputs(shape: tuple, vocab_size: int, type_vocab_size: int, set_by: str = ""
                 ) -> tuple[Feature, ...]:
    """Returns the features that every model reads, with the original names.

    If vocab_size or type_vocab_size is 0, those ids are not checked. Where sequences are
    stored without padding, the last dimension of `shape` is None.
    """
    return (Feature("input_ids", "int64", shape, set_by, limit=vocab_size,
                    limited_by="vocab_size"),
            Feature("input_mask", "int64", shape, set_by, limit=2),
            # A model with one segment reads both texts of a pair in it.
            Feature("segment_ids", "int64", shape, set_by,
                    limit=type_vocab_size and max(type_vocab_size, 2),
                    limited_by="type_vocab_size"))


def pretraining_spec(
        max_seq_length: int, max_predictions_per_seq: int, vocab_size: int = 0,
        type_vocab_size: int = 0) -> FeatureSpec:
    """Returns the specification of pretraining records: sequences [S], predictions [P],
    which are twice as many as requested with do_permutation."""
    def predictions(name, dtype, **kwargs):
        return Feature(name, dtype, (max_predictions_per_seq,),
                       "max_predictions_per_seq", **kwargs)

    return FeatureSpec((
        *model_inputs((max_seq_length,), vocab_size, type_vocab_size, "max_seq_length"),
        # Only masking during training reads where words start (unmasked_spec).
        Feature("token_boundary", "int64", (max_seq_length,), "max_seq_length",
                parsed=False),
        predictions("masked_lm_positions", "int64", limit=max_seq_length),
        predictions("masked_lm_ids", "int64", limit=vocab_size,
                    limited_by="vocab_size"),
        predictions("masked_lm_weights", "float32"),
        # The name on disk is BERT's, where the label means whether the second segment
        # follows the first, which its topic reveals. In ALBERT it means which one comes
        # first (section 3.1): 1 = the segments were swapped.
        Feature("next_sentence_labels", "int64", (1,),
                parsed_name="sentence_order_labels", limit=2),
    ))
