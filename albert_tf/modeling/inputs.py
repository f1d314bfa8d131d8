"""Checks of a model's inputs: names, shapes and values."""

import difflib
from typing import Any, Mapping, Sequence

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
    if not isinstance(features, Mapping):
        raise InputError(
            f"a model takes a dict of input_ids, input_mask and segment_ids, not a "
            f"{type(features).__name__}; tokenizer(texts) returns such a dict.")
    of_heads = {each.name: each for kind in Head.kinds.values()
                for each in kind.reads_also}
    inputs: dict[str, Any] = {}
    for key, value in features.items():
        name = ALSO_CALLED.get(key, key)
        if name in inputs or (name != key and features.get(name) is not None):
            raise InputError(f"{key} and {name} are the same input; give only one.")
        if name not in INPUTS and name not in of_heads and name not in beside:
            near = difflib.get_close_matches(
                str(name), [*INPUTS, *of_heads, *ALSO_CALLED], 1)
            raise InputError(
                f"a model has no input '{key}'"
                + (f"; did you mean {near[0]}?" if near else
                   f"; it takes {', '.join(INPUTS)}."))
        if value is not None:
            inputs[name] = value
    if "input_ids" not in inputs:
        raise InputError("the model's inputs have no input_ids; tokenizer(texts) "
                         "returns them.")
    limits = {"input_ids": (config.vocab_size, "vocab_size"), "input_mask": (2, ""),
              # One segment is that of both texts (Embeddings.segments).
              "segment_ids": (max(config.type_vocab_size, 2), "type_vocab_size"),
              **{name: (each.limit, "") for name, each in of_heads.items()}}
    for name, limit in limits.items():
        if name in inputs:
            inputs[name] = _numbers(name, inputs[name], *limit)
    _check_shapes(inputs, config, (*INPUTS, *(
        name for name, each in of_heads.items() if each.size is None)))
    return inputs


def _numbers(name: str, value: Any, limit: int, limited_by: str) -> Any:
    """Returns a feature after checking its values: whole numbers, and below `limit` if
    that is not 0. `limited_by` names the field of the config that sets the limit."""
    if isinstance(value, tf.RaggedTensor):
        raise InputError(f"{name} is ragged; pad it: {name}.to_tensor().")
    array = value
    if isinstance(value, (list, tuple, str, bytes, int, float)):
        try:
            array = value = np.array(value)
        except ValueError:
            raise InputError(
                f"{name} holds sequences of different lengths; pad them to one length, "
                "as tokenizer(texts) does.") from None
        except NotImplementedError:  # The list holds symbolic tensors.
            return value
    elif isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        array = value.numpy()
    if not isinstance(array, np.ndarray):
        return value
    if not array.size and name == "input_ids":
        raise InputError("input_ids is empty; give at least one sequence with at least "
                         "one token.")
    if array.dtype.kind not in "iubf" or (
            array.dtype.kind == "f" and np.any(array != np.floor(array))):
        raise InputError(f"{name} must hold whole numbers, but holds "
                         f"{array.ravel()[0]!r}" + (
                             "; tokenizer(texts) converts texts to ids."
                             if array.dtype.kind in "USO" else "."))
    if limit and array.size and not 0 <= array.min() <= array.max() < limit:
        worst = array.max() if array.max() >= limit else array.min()
        raise InputError(
            f"{name} holds {worst}, which is not in 0..{limit - 1}"
            + (f", the range of the config's {limited_by}; check that the batch was "
               "created with the model's vocabulary." if limited_by else "."))
    return value


def _check_shapes(inputs: Mapping[str, Any], config: AlbertConfig,
                  of_tokens: Sequence[str]) -> None:
    """Raises InputError if the inputs' shapes differ or are too long for the model."""
    # Keras placeholders also have a `shape`.
    shapes = {name: tf.TensorShape(inputs[name].shape) for name in of_tokens
              if hasattr(inputs.get(name), "shape")}
    shape = shapes.get("input_ids")
    if shape is None or shape.rank is None:
        return
    if shape.rank < 2:
        raise InputError(
            f"input_ids has the shape {shape.as_list()}, but must be [batch, tokens]; "
            "put a single sequence into a list.")
    if (shape[-1] or 0) > config.max_position_embeddings:
        raise InputError(
            f"a sequence of {shape[-1]} tokens is longer than the config's "
            f"max_position_embeddings {config.max_position_embeddings}; truncate it: "
            f"tokenizer(texts, max_length={config.max_position_embeddings}).")
    for name, other in shapes.items():
        # A single row would otherwise be broadcast silently.
        if not shape.is_compatible_with(other):
            raise InputError(
                f"{name} has the shape {other.as_list()}, but input_ids has "
                f"{shape.as_list()}; they must be the same.")
