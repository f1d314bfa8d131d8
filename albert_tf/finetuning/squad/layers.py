"""Keras layers of the head of SQuAD 2.0, named as in the original implementation.

Shapes: B batch, S sequence, H hidden, k starts.
"""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.layers import Dense, LayerNorm, NamedLayer, kernel_initializer


class EndScores(NamedLayer):
    """Scores of the ends of an answer, given its start (`end_logits`)."""

    def __init__(self, config: AlbertConfig):
        super().__init__("end_logits")
        size = config.hidden_size
        self.dense_0 = Dense("end_logits/dense_0", 2 * size, size,
                             kernel_initializer(config))
        self.layer_norm = LayerNorm(
            "end_logits/LayerNorm", size, config.layer_norm_eps)
        self.dense_1 = Dense("end_logits/dense_1", size, 1, kernel_initializer(config))

    def call(self, hidden, starts):
        """Returns the scores [B, k, S], given the hidden states [B, S, H] and those of
        k starts [B, k, H]."""
        # The first layer's input is (position, start), concatenated. Its product is the
        # sum of one for positions and one for starts, which is cheaper than all pairs.
        of_position, of_start = tf.split(self.dense_0.kernel, 2, axis=0)
        positions = tf.einsum("bsh,hg->bsg", hidden, of_position)[:, tf.newaxis]
        starts = tf.einsum("bkh,hg->bkg", starts, of_start)[:, :, tf.newaxis]
        pairs = tf.tanh(positions + starts + self.dense_0.bias)  # [B, k, S, H]
        return tf.squeeze(self.dense_1(self.layer_norm(pairs)), axis=-1)


class AnswerabilityScore(NamedLayer):
    """The score of "no answer", computed from the first token and the expected start
    (`answer_class`)."""

    def __init__(self, config: AlbertConfig, dropout_prob: float):
        super().__init__("answer_class")
        self.dropout_prob = dropout_prob
        size = config.hidden_size
        self.dense_0 = Dense("answer_class/dense_0", 2 * size, size,
                             kernel_initializer(config), "tanh")
        self.kernel = self.make_weight(
            "dense_1/kernel", [size, 1], kernel_initializer(config))

    def call(self, hidden, start_probs, seeds):
        """Returns the scores [B], given the hidden states [B, S, H] and the
        probabilities of starts [B, S]."""
        start = tf.einsum("bs,bsh->bh", start_probs, hidden)
        features = self.dense_0(tf.concat([start, hidden[:, 0]], axis=-1))
        features = seeds.dropout(features, self.dropout_prob)
        return tf.squeeze(tf.matmul(features, self.kernel), axis=-1)
