"""Checks of a model's inputs: names, shapes and values."""

import difflib
from typing import Any, Mapping

import numpy as np
import tensorflow as tf

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
    "tok_start_to_orig_index", "tok_end_to_orig_index", "token_is_max_context"))


@tf.autograph.experimental.do_not_convert
def checked(features: Any, config: AlbertConfig, beside: frozenset[str] = BESIDE
            ) -> dict[str, Any]:
    """Returns a model's features by the names that it reads.

    Raises InputError for unknown or missing inputs, for wrong shapes, and for values
    out of range, if they are known before the graph runs. `beside` names features that
    are allowed but not read.
    """
    if not isinstance(features, Mapping) or features.get("input_ids") is None:
        raise InputError("a model takes a dict of input_ids, input_mask and segment_ids; "
                         "tokenizer(texts) returns such a dict.")
    of_heads = {each.name: each for kind in Head.kinds.values()
                for each in kind.reads_also}
    # One segment is that of both texts (Embeddings.segments).
    limits = {"input_ids": config.vocab_size, "input_mask": 2,
              "segment_ids": max(config.type_vocab_size, 2),
              **{name: each.limit for name, each in of_heads.items()}}
    inputs: dict[str, Any] = {}
    for key, value in features.items():
        name = ALSO_CALLED.get(key, key)
        if name not in limits and name not in beside:
            near = difflib.get_close_matches(str(key), [*limits, *ALSO_CALLED], 1)
            raise InputError(f"a model has no input '{key}'; did you mean "
                             f"{', '.join(near or INPUTS)}?")
        if value is None:
            continue
        if name in inputs:
            raise InputError(f"two of the inputs are the same input, {name}; give only "
                             "one of them.")
        inputs[name] = _numbers(name, value, limits[name]) if name in limits else value
    _check_shapes({name: inputs[name] for name in inputs if name in INPUTS or (
        name in of_heads and of_heads[name].size is None)}, config)
    return inputs


def _numbers(name: str, value: Any, limit: int) -> Any:
    """Returns a feature after checking its values: whole numbers, and below `limit` if
    that is not 0."""
    array = value
    try:
        if isinstance(value, (list, tuple, str, bytes, int, float)):
            array = value = np.array(value)
        elif isinstance(value, tf.RaggedTensor):
            raise ValueError
        elif isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            array = value.numpy()
    except ValueError:
        raise InputError(f"{name} is ragged, its sequences have different lengths; pad "
                         "them to one, as tokenizer(texts) does.") from None
    except NotImplementedError:  # The list holds symbolic tensors.
        return value
    if not isinstance(array, np.ndarray):
        return value
    if not array.size and name == "input_ids":
        raise InputError("input_ids is empty; give at least one sequence with at least "
                         "one token.")
    if array.dtype.kind not in "iubf" or (
            array.dtype.kind == "f" and np.any(array != np.floor(array))):
        raise InputError(f"{name} must hold whole numbers, but holds "
                         f"{array.ravel()[0]!r}; tokenizer(texts) converts texts to ids.")
    if limit and array.size and not 0 <= array.min() <= array.max() < limit:
        worst = array.max() if array.max() >= limit else array.min()
        raise InputError(f"{name} holds {worst}, which is not in 0..{limit - 1}, the range "
                         "of the model's config; check that the batch was created with "
                         "the model's vocabulary.")
    return value


def _check_shapes(inputs: Mapping[str, Any], config: AlbertConfig) -> None:
    """Raises InputError if the shapes of inputs with a number for each token differ or
    are too long for the model."""
    # Keras placeholders also have a `shape`.
    shapes = {name: tf.TensorShape(value.shape) for name, value in inputs.items()
              if hasattr(value, "shape")}
    shape, most = shapes.get("input_ids"), config.max_position_embeddings
    if shape is None or shape.rank is None:
        return
    if shape.rank < 2:
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
