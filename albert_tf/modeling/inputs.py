"""What a model is given: its names, shapes and values, checked where they enter."""

import difflib
from typing import Any, Mapping

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

# Other libraries' names of what is the same.
ALSO_CALLED = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
_OF_PIECES = ("input_ids", "input_mask", "segment_ids", "p_mask")
_READ = (*_OF_PIECES, "masked_lm_positions", "start_positions")
# What stands beside them in records, for masking, losses and answers.
BESIDE = frozenset((
    "token_boundary", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels",
    "sentence_order_labels", "label_ids", "labelled", "example_weights",
    "example_index", "end_positions", "is_impossible", "unique_ids", "paragraph_len",
    "tok_start_to_orig_index", "tok_end_to_orig_index", "token_is_max_context"))


@tf.autograph.experimental.do_not_convert
def checked(features: Any, config: AlbertConfig, beside: frozenset[str] = BESIDE
            ) -> dict[str, Any]:
    """A model's features by the names that it reads; InputError where it has not such,
    or where the values, if they are known before the graph runs, cannot be.

    `beside` are names that the model may be given and does not read.
    """
    if not isinstance(features, Mapping):
        raise InputError(
            f"a model takes a dict of input_ids, input_mask and segment_ids, not a "
            f"{type(features).__name__}; tokenizer(texts) makes one.")
    found: dict[str, Any] = {}
    for given, value in features.items():
        name = ALSO_CALLED.get(given, given)
        if name in found or (name != given and features.get(name) is not None):
            raise InputError(f"{given} and {name} are the same input; give one.")
        if name not in _READ and name not in beside:
            near = difflib.get_close_matches(str(name), [*_READ, *ALSO_CALLED], 1)
            raise InputError(
                f"a model has no input '{given}'"
                + (f"; did you mean {near[0]}?" if near else
                   f"; it takes {', '.join(_OF_PIECES[:3])}."))
        if value is not None:
            found[name] = value
    if "input_ids" not in found:
        raise InputError("the model's inputs have no input_ids; tokenizer(texts) makes "
                         "them.")
    limits = {"input_ids": (config.vocab_size, "vocab_size"), "input_mask": (2, ""),
              "segment_ids": (config.type_vocab_size, "type_vocab_size"),
              "p_mask": (2, "")}
    for name in _READ:
        if name in found:
            found[name] = _numbers(name, found[name], *limits.get(name, (0, "")))
    _check_shapes(found, config)
    return found


def _numbers(name: str, value: Any, limit: int, limited_by: str) -> Any:
    """A feature, its values checked to be below `limit` if it is not 0."""
    if isinstance(value, tf.RaggedTensor):
        raise InputError(f"{name} is ragged; pad it: {name}.to_tensor().")
    array = value
    if isinstance(value, (list, tuple, str, bytes, int, float)):
        try:
            array = value = np.array(value)
        except ValueError:
            raise InputError(
                f"{name} holds sequences of different lengths; pad them to one, as "
                "tokenizer(texts) does.") from None
        except NotImplementedError:  # A list of tensors whose values come later.
            return value
    elif isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        array = value.numpy()
    if not isinstance(array, np.ndarray):
        return value
    if not array.size and name == "input_ids":
        raise InputError("input_ids is empty; a batch has one sequence or more, and "
                         "each one piece or more.")
    if array.dtype.kind not in "iubf" or (
            array.dtype.kind == "f" and np.any(array != np.floor(array))):
        raise InputError(f"{name} must be whole numbers, but holds "
                         f"{array.ravel()[0]!r}" + (
                             "; tokenizer(texts) makes them of texts."
                             if array.dtype.kind in "USO" else "."))
    if limit and array.size and not 0 <= array.min() <= array.max() < limit:
        worst = array.max() if array.max() >= limit else array.min()
        raise InputError(
            f"{name} holds {worst}, which is not in 0..{limit - 1}"
            + (f", as the config's {limited_by} {limit} says; check that the batch was "
               "made with the model's vocabulary." if limited_by else "."))
    return value


def _check_shapes(found: Mapping[str, Any], config: AlbertConfig) -> None:
    # Placeholders of Keras, too, have a `shape`.
    shapes = {name: tf.TensorShape(found[name].shape) for name in _OF_PIECES
              if hasattr(found.get(name), "shape")}
    shape = shapes.get("input_ids")
    if shape is None or shape.rank is None:
        return
    if shape.rank < 2:
        raise InputError(
            f"input_ids has the shape {shape.as_list()}, but must be [batch, pieces]; "
            "put a single sequence into a list.")
    if (shape[-1] or 0) > config.max_position_embeddings:
        raise InputError(
            f"a sequence of {shape[-1]} pieces is longer than the config's "
            f"max_position_embeddings {config.max_position_embeddings}; cut it: "
            f"tokenizer(texts, max_length={config.max_position_embeddings}).")
    for name, other in shapes.items():
        # One sequence too few would be broadcast silently.
        if not shape.is_compatible_with(other):
            raise InputError(
                f"{name} has the shape {other.as_list()}, but input_ids has "
                f"{shape.as_list()}; they must be the same.")
