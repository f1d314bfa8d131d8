"""Vectors of a text from those of its pieces.

Shapes: B texts, S pieces of the longest, H hidden.
"""

from typing import Any, Mapping, Optional

import tensorflow as tf

from albert_tf.checkpoints.sentence_transformers import Dense, Sentence
from albert_tf.finetuning.answer import Answering

_ACTIVATIONS = {
    "Tanh": tf.tanh, "ReLU": tf.nn.relu, "Sigmoid": tf.sigmoid, "Identity": tf.identity,
    "GELU": lambda values: tf.nn.gelu(values, approximate=False)}


class Vectors(Answering):
    """A text or pair as vectors: the pooled output and the mean over tokens; of a
    folder of sentence-transformers the one that it defines."""

    def __init__(self, model, head=None):
        super().__init__(model, head)
        self.sentence = model.sentence

    def outputs(self, features):
        return of(self.bert(features, computation=self.computation,
                            padding_is_read=False), features["input_mask"], self.sentence)

    def answer(self, outputs):
        return {name: outputs[name].tolist() for name in sorted(outputs, reverse=True)}


def of(found: Mapping[str, Any], mask: tf.Tensor, sentence: Optional[Sentence] = None
       ) -> dict[str, tf.Tensor]:
    """What a model answers of its outputs: `embedding`, the vector that a folder of
    sentence-transformers defines, else `mean`, and `pooled` if there is a pooler."""
    hidden = tf.cast(found["sequence_output"], tf.float32)
    if sentence:
        return {"embedding": embedding(hidden, mask, sentence)}
    return {"mean": pool("mean", hidden, mask)} | (
        {"pooled": found["pooled_output"]} if "pooled_output" in found else {})


def pool(mode: str, hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """float [B, S, H], int [B, S], 1 for pieces → [B, H]; `mode` is one of
    sentence_transformers.POOLING. Padding may hold anything."""
    is_piece = tf.cast(mask, tf.bool)
    if mode == "cls":
        return hidden[:, 0]
    if mode == "max":
        return tf.reduce_max(tf.where(tf.expand_dims(is_piece, -1), hidden,
                                      hidden.dtype.min), axis=1)
    counts = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
    if mode == "lasttoken":
        return tf.gather(hidden, tf.maximum(counts - 1, 0), batch_dims=1)
    pieces = tf.where(tf.expand_dims(is_piece, -1), hidden, 0.0)
    if mode == "weightedmean":
        weights = tf.cumsum(tf.cast(is_piece, tf.float32), axis=1)
        weights = tf.where(is_piece, weights, 0.0)[..., tf.newaxis]
        return tf.math.divide_no_nan(tf.reduce_sum(pieces * weights, axis=1),
                                     tf.reduce_sum(weights, axis=1))
    total = tf.cast(counts, tf.float32)[:, tf.newaxis]
    return tf.math.divide_no_nan(
        tf.reduce_sum(pieces, axis=1),
        tf.sqrt(total) if mode == "mean_sqrt_len_tokens" else total)


def embedding(hidden: tf.Tensor, mask: tf.Tensor, sentence: Sentence) -> tf.Tensor:
    """As `pool`, all of a folder's modules."""
    vector = tf.concat([pool(mode, hidden, mask) for mode in sentence.pooling], axis=-1)
    for layer in sentence.layers:
        if isinstance(layer, Dense):
            vector = vector @ layer.kernel.read()
            if layer.bias is not None:
                vector += layer.bias.read()
            vector = _ACTIVATIONS[layer.activation](vector)
        else:
            length = tf.norm(vector, axis=-1, keepdims=True)
            vector /= tf.maximum(length, 1e-12)
    return vector
