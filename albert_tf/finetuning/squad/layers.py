"""Keras layers of the head of SQuAD 2.0, under their names in the release.

Shapes: B batch, S sequence, H hidden, k starts.
"""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer)


class EndScores(NamedLayer):
    """Scores of the ends given the start, on which the end of an answer depends
    (`end_logits`)."""

    def __init__(self, config: AlbertConfig):
        super().__init__("end_logits")
        size = config.hidden_size
        self.dense_0 = Dense("end_logits/dense_0", 2 * size, size,
                             kernel_initializer(config))
        self.layer_norm = LayerNorm(
            "end_logits/LayerNorm", size, config.layer_norm_eps)
        self.dense_1 = Dense("end_logits/dense_1", size, 1, kernel_initializer(config))

    def call(self, hidden, starts):
        """[B, S, H], hidden states of k starts [B, k, H] → [B, k, S]."""
        # The first layer sees (position, start) side by side. Its product falls
        # into one of positions and one of starts, instead of one of all pairs.
        of_position, of_start = tf.split(self.dense_0.kernel, 2, axis=0)
        positions = tf.einsum("bsh,hg->bsg", hidden, of_position)[:, tf.newaxis]
        starts = tf.einsum("bkh,hg->bkg", starts, of_start)[:, :, tf.newaxis]
        pairs = tf.tanh(positions + starts + self.dense_0.bias)  # [B, k, S, H]
        return tf.squeeze(self.dense_1(self.layer_norm(pairs)), axis=-1)


class AnswerabilityScore(NamedLayer):
    """The score of "has no answer", from the first token and the expected start
    (`answer_class`)."""

    def __init__(self, config: AlbertConfig, dropout_prob: float):
        super().__init__("answer_class")
        self.dropout_prob = dropout_prob
        size = config.hidden_size
        self.dense_0 = Dense("answer_class/dense_0", 2 * size, size,
                             kernel_initializer(config), "tanh")
        self.kernel = self.make_weight(
            "dense_1/kernel", [size, 1], kernel_initializer(config))

    def call(self, hidden, start_probs, seeds: DropoutSeeds):
        """Hidden states [B, S, H], probabilities of starts [B, S] → [B]."""
        start = tf.einsum("bs,bsh->bh", start_probs, hidden)
        features = self.dense_0(tf.concat([start, hidden[:, 0]], axis=-1))
        features = seeds.dropout(features, self.dropout_prob)
        return tf.squeeze(tf.matmul(features, self.kernel), axis=-1)
