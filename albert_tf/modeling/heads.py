"""The heads that stand on the encoder, one for each kind of task.

Every variable carries the name that it has in the release's checkpoints; some heads of
the release stand outside of any scope.
Shapes: B batch, S sequence, P predictions, E embedding, H hidden, V pieces, k starts.
"""

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer)

# Of the output layers of tasks, whatever the config's initializer_range is.
TASK_INITIALIZER_RANGE = 0.02


class MaskedLanguageModelHead(NamedLayer):
    """Scores of every piece at the masked positions (`get_masked_lm_output`).

    The output weights are the word embeddings, passed in by the caller: a table of V
    pieces of its own would cost as many parameters once more.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("cls/predictions")
        self.transform = Dense(
            f"{self.scope}/transform/dense", config.hidden_size,
            config.embedding_size, kernel_initializer(config), config.hidden_act)
        self.layer_norm = LayerNorm(
            f"{self.scope}/transform/LayerNorm", config.embedding_size,
            config.masked_lm_layer_norm_eps or config.layer_norm_eps)
        self.output_bias = self.make_weight("output_bias", [config.vocab_size], "zeros")

    def call(self, masked, word_embeddings):
        """Outputs at the masked positions [B, P, H], [V, E] → logits [B, P, V]."""
        batch, num_predictions, _ = tf.unstack(tf.shape(masked))
        masked = tf.reshape(masked, [-1, masked.shape[-1]])
        # Few positions: in float32 whatever type the layers compute in.
        hidden = self.layer_norm(self.transform(tf.cast(masked, tf.float32)))
        logits = tf.matmul(hidden, word_embeddings, transpose_b=True)  # [B·P, V]
        logits = tf.nn.bias_add(logits, self.output_bias)
        return tf.reshape(logits, [batch, num_predictions, self.output_bias.shape[0]])


class OutputLayer(NamedLayer):
    """x · weightsᵀ + bias, [N, in] → [N, out]: `output_weights`, `output_bias`.

    The scope "" is the root, where the release has them for classification and multiple
    choice.
    """

    def __init__(self, scope: str, in_size: int, out_size: int,
                 initializer_range: float = TASK_INITIALIZER_RANGE):
        super().__init__(scope or "output")
        self.scope = scope
        self.output_weights = self.make_weight(
            "output_weights", [out_size, in_size],
            tf_keras.initializers.TruncatedNormal(stddev=initializer_range))
        self.output_bias = self.make_weight("output_bias", [out_size], "zeros")

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        if self.scope:
            return super().make_weight(name, shape, initializer)
        # "" is the root, whatever scope the model is constructed in.
        with tf.name_scope(""):
            return self.add_weight(name=name, shape=shape, initializer=initializer)

    def call(self, inputs):
        logits = tf.matmul(inputs, self.output_weights, transpose_b=True)
        return tf.nn.bias_add(logits, self.output_bias)


class EndHead(NamedLayer):
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


class AnswerabilityHead(NamedLayer):
    """The score of "has no answer", from the first piece and the expected start
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
