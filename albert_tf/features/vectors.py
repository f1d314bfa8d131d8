"""Computes the vectors of texts: the pooled output, the mean over tokens or the vector
of each token, after any layer.

    texts ─► sequences ─► batches of similar length ─► hidden states ─► vectors

Shapes: B texts, S tokens of the longest, H hidden.
"""

import dataclasses
from typing import Any, Optional, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.sentence_transformers import (
    EMBEDDING, PIECES, POOLED, Dense, Normalize, Sentence)
from albert_tf.finetuning.answer import Answering, answers
from albert_tf.text.inputs import Input

_SENTENCE = "sentence_embedding"  # sentence-transformers' name of its vector
_ACTIVATIONS = {
    "Tanh": tf.tanh, "ReLU": tf.nn.relu, "Sigmoid": tf.sigmoid, "Identity": tf.identity,
    "GELU": lambda values: tf.nn.gelu(values, approximate=False)}


class Vectors(Answering):
    """Turns a text or pair into vectors: the pooled output and the mean over tokens or,
    for a folder of sentence-transformers, the vector that the folder defines. The
    vectors of windows are averaged."""

    def __init__(self, model, head=None):
        super().__init__(model, head)
        self.sentence = model.sentence
        # The graph may divide its vectors by their length, without a folder that says so.
        self.averages = bool(self.sentence) or not {EMBEDDING, _SENTENCE} & set(
            self._engine.outputs if self._engine else ())

    def outputs(self, features):
        return self.of_exchanged(self.exchanged(features), features)

    def exchanged(self, features):
        """Computes `last_hidden_state` [B, S, H], `pooler_output` [B, H] if there is a
        pooler, and sentence-transformers' `sentence_embedding` [B, D] if the model's
        folder defines it."""
        found = self.bert(features, computation=self.computation)
        hidden = tf.cast(found["sequence_output"], tf.float32)
        outputs = {"last_hidden_state": hidden}
        if self.sentence:
            outputs[_SENTENCE] = embedding(hidden, features["input_mask"], self.sentence)
        if "pooled_output" in found:
            outputs["pooler_output"] = found["pooled_output"]
        return outputs

    def of_exchanged(self, exchanged, batch):
        if _SENTENCE in exchanged:
            return {EMBEDDING: exchanged[_SENTENCE]}
        return of(exchanged["last_hidden_state"], exchanged.get("pooler_output"),
                  batch["input_mask"], self.sentence)

    def mean(self, outputs):
        vectors = dict(super().mean(outputs))
        if EMBEDDING in vectors and isinstance(
                (self.sentence.layers or (None,))[-1], Normalize):
            vectors[EMBEDDING] /= np.maximum(np.linalg.norm(
                vectors[EMBEDDING], axis=-1, keepdims=True), 1e-12)
        return vectors

    def answer(self, outputs):
        return {name: outputs[name].tolist() for name in sorted(outputs, reverse=True)}


class Features(Vectors):
    """Turns texts or pairs into the vectors that extract.Options name, whose defaults
    must be filled in (Options.of)."""

    def __init__(self, loaded: Checkpoint, options: Any):
        super().__init__(loaded)
        self.options, self.max_length = options, options.max_seq_length
        self.texts = self.cut = 0  # How many were read, and how many of them were cut.
        self.averages = PIECES not in options.pooling
        self.computation = dataclasses.replace(
            self.computation, passes=max(1, *options.layers))

    def rows(self, inputs: Sequence[Input]) -> list[dict[str, Any]]:
        """Returns the kept fields and the vectors of each input."""
        requests = [self.request(each.given, 1, self.options.windows) for each in inputs]
        rows = []
        for each, request, vectors in zip(
                inputs, requests, answers(requests, self.options.batch_size)):
            row = dict(each.kept)
            for kind in self.options.pooling:
                if kind == PIECES:  # Not with windows, of which there may be several.
                    ids = request.sequences[0]["input_ids"]
                    row[PIECES] = self.tokenizer.convert_ids_to_tokens(ids)
                    row["piece_vectors"] = vectors[PIECES][:len(ids)].copy()
                else:
                    row[kind] = np.array(vectors[kind])
            if self.options.truncated:
                row["truncated"] = request.cut > 0
            rows.append(row)
        self.texts += len(rows)
        self.cut += sum(request.cut > 0 for request in requests)
        return rows

    def tell_cut(self) -> None:
        if self.cut:
            logging.warning("%s", self.cut_note(self.cut, self.texts))

    def answer(self, outputs):
        return outputs

    def outputs(self, features):
        found = self.bert(features, computation=self.computation)
        # A layer may consist of several blocks.
        inner, vectors = self.config.inner_group_num, []
        states = [self.bert.encoder.enter(found["embedding_output"]),
                  *found["encoder_outputs"][inner - 1::inner]]
        for number in self.options.layers:
            hidden = tf.cast(states[number], tf.float32)
            pooled = self.bert.pooler(hidden[:, 0]) if (
                POOLED in self.options.pooling) else None
            vectors.append(of(hidden, pooled, features["input_mask"], self.sentence,
                              self.options.pooling))
        return vectors[0] if len(vectors) == 1 else {
            kind: tf.stack([each[kind] for each in vectors], axis=-2)
            for kind in self.options.pooling}


# ---- one vector from those of the tokens -----------------------------------


def of(hidden: tf.Tensor, pooled: Optional[tf.Tensor], mask: tf.Tensor,
       sentence: Optional[Sentence] = None, pooling: Sequence[str] = ()
       ) -> dict[str, tf.Tensor]:
    """Returns the vectors of `pooling` (extract.Options) from hidden states and
    the pooler's output; by default `embedding`, the vector that a folder of
    sentence-transformers defines, else `mean`, and `pooled` if there is a pooler."""
    hidden = tf.cast(hidden, tf.float32)
    pooling = pooling or ([EMBEDDING] if sentence else
                          ["mean", *[POOLED] * (pooled is not None)])
    return {kind: pooled if kind == POOLED else embedding(hidden, mask, sentence)
            if kind == EMBEDDING else pool(kind, hidden, mask) for kind in pooling}


def pool(mode: str, hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Pools hidden states: float32 [B, S, H], int [B, S], 1 for tokens → [B, H]. `mode`
    is one of sentence_transformers.POOLING, or PIECES: [B, S, H]. Values at padding have
    no effect."""
    # expand_dims: TFLite cannot convert [..., tf.newaxis] of lengths that vary.
    is_token = tf.expand_dims(tf.cast(mask, tf.bool), -1)  # [B, S, 1]
    if mode == "cls":
        return hidden[:, 0]
    if mode == "lasttoken":
        counts = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        return tf.gather(hidden, tf.maximum(counts - 1, 0), batch_dims=1)
    if mode == PIECES:
        return tf.where(is_token, hidden, 0.0)
    if mode == "max":
        return tf.reduce_max(tf.where(is_token, hidden, hidden.dtype.min), axis=1)
    weights = tf.cast(is_token, tf.float32)
    if mode == "weightedmean":
        weights *= tf.cumsum(weights, axis=1)
    total = tf.reduce_sum(weights, axis=1)
    tokens = tf.where(is_token, hidden * weights, 0.0)
    return tf.math.divide_no_nan(
        tf.reduce_sum(tokens, axis=1),
        tf.sqrt(total) if mode == "mean_sqrt_len_tokens" else total)


def embedding(hidden: tf.Tensor, mask: tf.Tensor, sentence: Sentence) -> tf.Tensor:
    """Applies all modules of a folder of sentence-transformers; shapes as in `pool`."""
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
