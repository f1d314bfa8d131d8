"""The parts of encoder and heads: dense layers and LayerNorm.

Every variable has the same name as in the original's checkpoints, and is created by the
constructor; all kernels are two-dimensional. The formulas of GELU, LayerNorm and
dropout are in kernels.plain, and the random numbers of dropout in kernels.random.
"""

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.modeling.kernels import plain
from albert_tf.modeling.kernels.fast import product


class NamedLayer(tf_keras.layers.Layer):
    """A layer whose variables are named `<scope>/<name>`, as in the original's
    checkpoints."""

    def __init__(self, scope: str, **kwargs):
        # Layers cast their inputs themselves; Keras would cast all of them to float32.
        super().__init__(name=scope.replace("/", "_"), autocast=False, **kwargs)
        self.scope = scope

    def _trackable_children(self, save_type="checkpoint", **options):
        # A SavedModel stores only the variables of a layer. Keras would also store a
        # function for each, which takes many times as long and fails for ours.
        if save_type == "savedmodel":
            return tf.Module._trackable_children(self, save_type)
        return super()._trackable_children(save_type, **options)

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        """Adds a trainable variable `<scope>/<name>`; the scope "" is the root."""
        # A trailing slash makes the scope absolute, whatever scope encloses it.
        with tf.name_scope(self.scope and f"{self.scope}/"):
            return self.add_weight(name=name, shape=shape, initializer=initializer)


def kernel_initializer(config: AlbertConfig):
    """Returns a truncated normal with the config's deviation, new for each weight."""
    return tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)


class Dense(NamedLayer):
    """x · kernel + bias, then an activation: [..., in] → [..., out], in x's dtype."""

    def __init__(self, scope: str, in_size: int, out_size: int, initializer,
                 hidden_act: str = "linear"):
        super().__init__(scope)
        self.kernel = self.make_weight("kernel", [in_size, out_size], initializer)
        self.bias = self.make_weight("bias", [out_size], "zeros")
        self.hidden_act = hidden_act

    def call(self, inputs):
        output = product(inputs, tf.cast(self.kernel, inputs.dtype),
                         tf.convert_to_tensor(self.bias))
        return plain.activation(self.hidden_act)(output)


class LayerNorm(NamedLayer):
    """Normalization over the last axis, with gain `gamma` and offset `beta`."""

    def __init__(self, scope: str, size: int, epsilon: float):
        super().__init__(scope)
        self.epsilon = epsilon
        self.beta = self.make_weight("beta", [size], "zeros")
        self.gamma = self.make_weight("gamma", [size], "ones")

    def call(self, inputs):
        return plain.normalize(inputs, self.gamma, self.beta, self.epsilon)


class TokenScores(NamedLayer):
    """Scores all tokens of the vocabulary at the masked positions (original:
    `get_masked_lm_output`).

    The output weights are the word embeddings, which the caller passes: a separate
    table would cost V · E more parameters.
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

    def call(self, states, word_embeddings):
        """Maps hidden states at the masked positions [B, P, H] and word embeddings
        [V, E] to logits [B, P, V]."""
        # From width H back to E. There are only a few positions, so float32 costs
        # little, whatever dtype the layers use.
        hidden = self.layer_norm(self.transform(tf.cast(states, tf.float32)))
        # A token's score is the product of its embedding with the hidden state.
        return product(hidden, word_embeddings, self.output_bias, transpose_b=True)


class OutputLayer(NamedLayer):
    """x · weightsᵀ + bias, [N, in] → [N, out] or, at every position, [B, S, in] →
    [B, S, out]: `output_weights`, `output_bias`.

    The scope "" is the root, where the original keeps them for classification and
    multiple choice. The config's initializer_range does not apply to tasks' layers.
    """

    def __init__(self, scope: str, in_size: int, out_size: int,
                 initializer_range: float = 0.02):
        super().__init__(scope or "output")
        self.scope = scope
        self.output_weights = self.make_weight(
            "output_weights", [out_size, in_size],
            tf_keras.initializers.TruncatedNormal(stddev=initializer_range))
        self.output_bias = self.make_weight("output_bias", [out_size], "zeros")

    def call(self, inputs):
        return product(inputs, self.output_weights, self.output_bias, transpose_b=True)
