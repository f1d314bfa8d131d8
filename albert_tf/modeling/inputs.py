"""Checks of a model's inputs: names, shapes and values."""

from typing import Any, Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.head import INPUTS, Head

# Names of the same inputs in other libraries.
ALSO_CALLED = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
# Features that records hold besides those that heads read, for masking, losses and
# answers.
BESIDE = frozenset((
    "token_boundary", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels",
    "sentence_order_labels", "label_ids", "example_weights", "p_mask", "example_index",
    "start_positions", "end_positions", "is_impossible", "unique_ids", "paragraph_len",
    "tok_start_to_orig_index", "tok_end_to_orig_index", "token_is_max_context", "order"))


def checked(features: Any, config: AlbertConfig) -> dict[str, Any]:
    """Returns a model's features by the names that it reads, with all of INPUTS.

    Raises InputError for unknown or missing inputs, for wrong shapes, and for values
    out of range, if they are known before the graph runs.
    """
    if not isinstance(features, Mapping) or features.get("input_ids") is None:
        raise InputError(f"a model takes a dict of {', '.join(INPUTS)}; "
                         "tokenizer(texts) returns such a dict.")
    of_heads = [each for kind in Head.kinds.values() for each in kind.reads_also]
    # One segment is that of both texts (Embeddings.segments).
    limits = {"input_ids": config.vocab_size, "input_mask": 2,
              "segment_ids": max(config.type_vocab_size, 2),
              **{each.name: each.limit for each in of_heads}}
    inputs: dict[str, Any] = {}
    for key, value in features.items():
        name = ALSO_CALLED.get(key, key)
        if value is None:
            continue
        if name in inputs or name not in limits and name not in BESIDE:
            raise InputError(f"a model has no input '{key}', or the same input is given "
                             f"twice; it reads {', '.join((*limits, *ALSO_CALLED))}.")
        inputs[name] = _numbers(name, value, limits[name]) if name in limits else value
    # Inputs that are left out mean: no padding, and one segment.
    for name, like in (("input_mask", tf.ones_like), ("segment_ids", tf.zeros_like)):
        if name not in inputs:
            inputs[name] = like(inputs["input_ids"])
    # The inputs with a number for each token.
    shapes = {name: tf.TensorShape(inputs[name].shape) for name in (
        *INPUTS, *(each.name for each in of_heads if each.size is None))
              if name in inputs}
    shape, most = shapes["input_ids"], config.max_position_embeddings
    if shape.rank is not None and (shape.rank < 2 or 0 in shape.as_list()):
        raise InputError(
            f"input_ids has the shape {shape.as_list()}, but must be [batch, tokens]; "
            "put a single sequence into a list.")
    if (shape[-1] or 0) > most:
        raise InputError(
            f"a sequence of {shape[-1]} tokens is longer than the config's "
            f"max_position_embeddings {most}; truncate it: tokenizer(texts, "
            f"max_length={most}).")
    for name, other in shapes.items():
        # A single row would otherwise be broadcast silently.
        if not shape.is_compatible_with(other):
            raise InputError(f"{name} has the shape {other.as_list()}, but input_ids has "
                             f"{shape.as_list()}; they must be the same.")
    return inputs


def _numbers(name: str, value: Any, limit: int) -> Any:
    """Returns a feature as a tensor. If its values are known, they must be whole numbers
    and, unless `limit` is 0, below it."""
    if isinstance(value, tf_keras.__internal__.KerasTensor):
        return value
    try:
        value = tf.convert_to_tensor(value)
        known = tf.get_static_value(value)
    except (TypeError, ValueError):  # Its rows differ in length, for example.
        known = ""
    if known is None:
        return value
    array = np.asarray(known)
    if array.dtype.kind not in "iubf" or np.any(array != np.floor(array)):
        raise InputError(f"{name} must hold whole numbers, in sequences of one length; "
                         "tokenizer(texts) converts texts to ids and pads them.")
    outside = array[(array < 0) | (array >= limit)]
    if limit and outside.size:
        raise InputError(f"{name} holds {outside[0]}, which is not in 0..{limit - 1}, the "
                         "range of the model's config; check that the batch was created "
                         "with the model's vocabulary.")
    return value
