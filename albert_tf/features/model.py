"""The vectors of texts: pooled, means, of each piece, after any pass."""

import dataclasses
from typing import Optional, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import load as loading
from albert_tf.checkpoints.load import Loaded
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.checkpoints.sentence_transformers import POOLED
from albert_tf.features import vectors
from albert_tf.features.files import Row
from albert_tf.features.options import EMBEDDING, PIECES, Options
from albert_tf.finetuning.answer import Request, answers
from albert_tf.text.inputs import Input

_VECTORS = "piece_vectors"


def load(model: str, options: Options, vocabulary: Optional[Vocabulary] = None
         ) -> "Features":
    """Of the model in a folder; `options` are filled in (Options.of)."""
    return Features(loading.load(model, vocabulary=vocabulary), options)


class Features(vectors.Vectors):
    """Texts or pairs as the vectors that options name."""

    def __init__(self, loaded: Loaded, options: Options):
        super().__init__(loaded)
        self.options, self.max_length = options, options.max_seq_length
        self.computation = dataclasses.replace(
            self.computation, passes=max(options.layers))

    def rows(self, inputs: Sequence[Input]) -> list[Row]:
        """What is kept of each input, and its vectors."""
        found = answers([self.request(each.given, 1) for each in inputs],
                        self.options.batch_size)
        return [{**each.kept, **answer} for each, answer in zip(inputs, found)]

    def request(self, given, top_k):
        row = self.tokenizer.features(
            given["text"], given.get("text_pair"), self.max_length)
        return Request(
            [row], lambda outputs: self._named(outputs[0], row["input_ids"]), self)

    def _named(self, outputs, ids):
        found = {}
        for kind in self.options.pooling:
            if kind == PIECES:
                found[PIECES] = self.tokenizer.convert_ids_to_tokens(ids)
                found[_VECTORS] = outputs[_VECTORS][:len(ids)].copy()
            else:
                found[kind] = np.array(outputs[kind])
        return found

    def outputs(self, features):
        encoded = self.bert(features, computation=self.computation,
                            padding_is_read=False)["encoder_outputs"]
        inner, mask = self.config.inner_group_num, features["input_mask"]
        hidden = [tf.cast(encoded[number * inner - 1], tf.float32)
                  for number in self.options.layers]
        found = {}
        for kind in self.options.pooling:
            of_layers = [self._vector(kind, each, mask) for each in hidden]
            found[_VECTORS if kind == PIECES else kind] = (
                of_layers[0] if len(hidden) == 1 else
                tf.stack(of_layers, axis=-2))
        return found

    def _vector(self, kind, hidden, mask):
        if kind == PIECES:
            return tf.where(tf.cast(mask, tf.bool)[..., tf.newaxis], hidden, 0.0)
        if kind == POOLED:
            return self.bert.pooler(hidden[:, 0])
        if kind == EMBEDDING:
            return vectors.embedding(hidden, mask, self.sentence)
        return vectors.pool(kind, hidden, mask)
