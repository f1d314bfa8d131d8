"""The vectors of texts: pooled, means, of each token, after any layer.

    texts ─► sequences ─► batches of like length ─► hidden states ─► vectors

Shapes: B texts, S tokens of the longest, H hidden.
"""

from typing import Any, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import load as loading
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.checkpoints.sentence_transformers import POOLED, Dense, Sentence
from albert_tf.errors import InputError
from albert_tf.features.files import Row
from albert_tf.features.options import EMBEDDING, PIECES, Options
from albert_tf.modeling.encoder import Computation
from albert_tf.text.inputs import Input

_PIECE_VECTORS = "piece_vectors"
_ACTIVATIONS = {
    "Tanh": tf.tanh, "ReLU": tf.nn.relu, "Sigmoid": tf.sigmoid, "Identity": tf.identity,
    "GELU": lambda values: tf.nn.gelu(values, approximate=False)}


class TextModel:
    """Computes numbers for texts and pairs; a subclass defines which, in `outputs`."""

    names, optional = ("text", "text_pair"), ("text_pair",)
    inputs = ("input_ids", "input_mask", "segment_ids")

    def __init__(self, loaded: loading.Loaded, max_length: int):
        self.config, self.tokenizer = loaded.config, loaded.tokenizer
        self.bert = getattr(loaded.model, "bert", loaded.model)
        self.max_length = max_length
        # Sizes are unknown, so that the graph is made once for all lengths.
        self._function = tf.function(
            self.outputs, autograph=False, reduce_retracing=True, input_signature=[
                {name: tf.TensorSpec([None, None], np.int32, name)
                 for name in self.inputs}])

    def outputs(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raise NotImplementedError

    def encoded(self, features: Mapping[str, tf.Tensor], passes: Optional[int] = None):
        return self.bert(features, computation=Computation(
            skip_padding=True, passes=passes), padding_is_read=False)

    def compute(self, texts: Sequence[Mapping[str, Any]], batch_size: int
                ) -> list[tuple[list[int], dict[str, np.ndarray]]]:
        """The token ids and outputs of each text. Texts of like length share a batch,
        padded to the longest of them."""
        rows = [self.tokenizer.features(
            text["text"], text.get("text_pair"), self.max_length) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
        found: list[Any] = [None] * len(rows)
        for start in range(0, len(order), batch_size):
            batch = order[start:start + batch_size]
            outputs = self._outputs([rows[i] for i in batch])
            for place, i in enumerate(batch):
                found[i] = rows[i]["input_ids"], {
                    name: values[place] for name, values in outputs.items()}
        return found

    def _outputs(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, np.ndarray]:
        shape = len(rows), max(len(row["input_ids"]) for row in rows)
        batch = {name: np.full(shape, self.tokenizer.pad_id * (name == "input_ids"),
                               np.int32) for name in self.inputs}
        for name, values in batch.items():
            for to, row in zip(values, rows):
                to[:len(row[name])] = row[name]
        found = {name: value.numpy() for name, value in self._function(
            {name: tf.constant(value) for name, value in batch.items()}).items()}
        if not all(np.isfinite(value).all() for value in found.values()):
            raise InputError("the model gives numbers that are not finite: its weights "
                             "are damaged, or the training diverged.")
        return found


def load(model: str, options: Options, vocabulary: Optional[Vocabulary] = None
         ) -> "Features":
    """Loads the model of a folder; `options` are filled in (Options.of)."""
    return Features(loading.load(model, vocabulary=vocabulary), options)


class Features(TextModel):
    """Computes the vectors that options name."""

    def __init__(self, loaded: loading.Loaded, options: Options):
        super().__init__(loaded, options.max_seq_length)
        self.options, self.sentence = options, loaded.sentence

    def rows(self, inputs: Sequence[Input]) -> list[Row]:
        """What is kept of each input, and its vectors."""
        found = self.compute([each.given for each in inputs], self.options.batch_size)
        return [{**each.kept, **self._named(ids, outputs)}
                for each, (ids, outputs) in zip(inputs, found)]

    def _named(self, ids, outputs):
        found = {}
        for kind in self.options.pooling:
            if kind == PIECES:
                found[PIECES] = self.tokenizer.convert_ids_to_tokens(ids)
                found[_PIECE_VECTORS] = outputs[_PIECE_VECTORS][:len(ids)].copy()
            else:
                found[kind] = np.array(outputs[kind])
        return found

    def outputs(self, features):
        encoded = self.encoded(features, max(self.options.layers))["encoder_outputs"]
        # A layer may be several blocks one after the other.
        inner, mask = self.config.inner_group_num, features["input_mask"]
        hidden = [tf.cast(encoded[number * inner - 1], tf.float32)
                  for number in self.options.layers]
        found = {}
        for kind in self.options.pooling:
            of_layers = [self._vector(kind, each, mask) for each in hidden]
            found[_PIECE_VECTORS if kind == PIECES else kind] = (
                of_layers[0] if len(hidden) == 1 else
                tf.stack(of_layers, axis=-2))
        return found

    def _vector(self, kind, hidden, mask):
        if kind == PIECES:
            return tf.where(tf.cast(mask, tf.bool)[..., tf.newaxis], hidden, 0.0)
        if kind == POOLED:
            return self.bert.pooler(hidden[:, 0])
        if kind == EMBEDDING:
            return embedding(hidden, mask, self.sentence)
        return pool(kind, hidden, mask)


# ---- one vector of several -------------------------------------------------


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
