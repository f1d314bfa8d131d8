"""The encoder: embeddings, the shared block, the pooler.

Every variable carries the name that it has in the release's checkpoints, and
exists as soon as the model is constructed; all kernels are two-dimensional.
Shapes below: B batch, S sequence, E embedding, H hidden, A heads, D = H / A.

Dropout draws from a seed that the caller passes in, so that a training step is
a function of its number and can be repeated after a restart.
"""

from typing import Any, Mapping, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

# Added to the attention scores of masked positions. Finite, so that a row whose
# mask is all zero attends evenly, as in the release.
MASKED_SCORE = -10000.0

LAYER_NORM_EPSILON = 1e-12

# Name of the folder for a layer's parameters in the release's checkpoints.
_BLOCK = "bert/encoder/transformer/group_{index}/inner_group_{inner}"


def activation(name: str):
    """The function of a `hidden_act`; gelu in its tanh form."""
    return {
        "gelu": lambda x: tf.nn.gelu(x, approximate=True),
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "linear": tf.identity,
    }[name]


class NamedLayer(tf_keras.layers.Layer):
    """A layer whose variables are named after the release's, from the start.

    Args:
      scope: path of the layer in the release's checkpoints.
    """

    def __init__(self, scope: str, **kwargs):
        super().__init__(name=scope.replace("/", "_"), **kwargs)
        self.scope = scope

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        """Adds a trainable variable `<scope>/<name>`."""
        # A trailing slash makes the scope absolute, whatever scope encloses it.
        with tf.name_scope(f"{self.scope}/"):
            return self.add_weight(name=name, shape=shape, initializer=initializer)


def kernel_initializer(config: AlbertConfig):
    """Truncated normal of the config's range; a new object for each weight."""
    return tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)


class Dense(NamedLayer):
    """x · kernel + bias over the last axis: [..., in] → [..., out]."""

    def __init__(self, scope: str, in_size: int, out_size: int, initializer,
                 hidden_act: str = "linear"):
        super().__init__(scope)
        self.kernel = self.make_weight("kernel", [in_size, out_size], initializer)
        self.bias = self.make_weight("bias", [out_size], "zeros")
        self.activation = activation(hidden_act)

    def call(self, inputs):
        # One flat product: [B·S, in] × [in, out] is faster than a batched one.
        shape = tf.shape(inputs)
        flat = tf.reshape(inputs, [-1, self.kernel.shape[0]])
        output = self.activation(tf.nn.bias_add(tf.matmul(flat, self.kernel), self.bias))
        new_shape = tf.concat([shape[:-1], [self.kernel.shape[1]]], axis=0)
        output = tf.reshape(output, new_shape)
        output.set_shape(inputs.shape[:-1].concatenate([self.kernel.shape[1]]))
        return output


class LayerNorm(NamedLayer):
    """Normalization over the last axis, with gain `gamma` and offset `beta`."""

    def __init__(self, scope: str, size: int):
        super().__init__(scope)
        self.beta = self.make_weight("beta", [size], "zeros")
        self.gamma = self.make_weight("gamma", [size], "ones")

    def call(self, inputs):
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(
            inputs, mean, variance, self.beta, self.gamma, LAYER_NORM_EPSILON)


class DropoutSeeds:
    """Gives each dropout of one forward pass a seed of its own.

    Args:
      seed: int32 [2], or None where nothing is to be dropped.
    """

    def __init__(self, seed: Optional[tf.Tensor]):
        self._seed = seed
        self._count = 0

    def dropout(self, inputs: tf.Tensor, rate: float) -> tf.Tensor:
        """Zeroes a share `rate` of `inputs` and scales up the rest."""
        if self._seed is None or rate == 0.0:
            return inputs
        seed = tf.random.fold_in(self._seed, self._count)
        self._count += 1
        return tf.nn.experimental.stateless_dropout(inputs, rate, seed=seed)


class Embeddings(NamedLayer):
    """Word + token type + position, LayerNorm, dropout.

    Release: `embedding_lookup` and `embedding_postprocessor`.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/embeddings")
        self.dropout_prob = config.hidden_dropout_prob
        width = config.embedding_size

        def table(name, rows):
            return self.make_weight(name, [rows, width], kernel_initializer(config))

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table(
            "token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table(
            "position_embeddings", config.max_position_embeddings)
        self.layer_norm = LayerNorm(f"{self.scope}/LayerNorm", width)

    def call(self, input_ids, segment_ids, seeds: DropoutSeeds):
        """int32 [B, S], int32 [B, S] → float [B, S, E]."""
        length = tf.shape(input_ids)[1]
        output = tf.gather(self.word_embeddings, input_ids)
        output += tf.gather(self.token_type_embeddings, segment_ids)
        output += self.position_embeddings[tf.newaxis, :length]
        return seeds.dropout(self.layer_norm(output), self.dropout_prob)


class AttentionBlock(NamedLayer):
    """Self-attention, add, LayerNorm. Release: first half of `attention_ffn_block`."""

    def __init__(self, config: AlbertConfig, index: int, inner: int):
        scope = _BLOCK.format(index=index, inner=inner)
        super().__init__(f"{scope}/attention_1")
        self.num_heads = config.num_attention_heads
        self.probs_dropout_prob = config.attention_probs_dropout_prob
        self.hidden_dropout_prob = config.hidden_dropout_prob
        size = config.hidden_size

        def dense(name):
            return Dense(f"{self.scope}/{name}", size, size, kernel_initializer(config))

        self.query = dense("self/query")
        self.key = dense("self/key")
        self.value = dense("self/value")
        self.output_dense = dense("output/dense")
        self.layer_norm = LayerNorm(f"{scope}/LayerNorm", size)

    def _heads(self, inputs):
        """[B, S, H] → [B, A, S, D]."""
        batch, length = tf.shape(inputs)[0], tf.shape(inputs)[1]
        size = inputs.shape[-1] // self.num_heads
        split = tf.reshape(inputs, [batch, length, self.num_heads, size])
        return tf.transpose(split, [0, 2, 1, 3])

    def call(self, hidden, attention_bias, seeds: DropoutSeeds):
        """[B, S, H] and [B, 1, 1, S] → [B, S, H]."""
        query = self._heads(self.query(hidden))
        key = self._heads(self.key(hidden))
        value = self._heads(self.value(hidden))
        scale = query.shape[-1] ** -0.5
        scores = tf.matmul(query, key, transpose_b=True) * scale  # [B, A, S, S]
        probs = tf.nn.softmax(scores + attention_bias)
        probs = seeds.dropout(probs, self.probs_dropout_prob)
        context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])  # [B, S, A, D]
        context = tf.reshape(context, tf.shape(hidden))
        output = seeds.dropout(self.output_dense(context), self.hidden_dropout_prob)
        return self.layer_norm(hidden + output)


class FeedForwardBlock(NamedLayer):
    """Dense, activation, dense, add, LayerNorm: second half of `attention_ffn_block`."""

    def __init__(self, config: AlbertConfig, index: int, inner: int):
        scope = _BLOCK.format(index=index, inner=inner)
        super().__init__(f"{scope}/ffn_1")
        self.dropout_prob = config.hidden_dropout_prob
        size, width = config.hidden_size, config.intermediate_size
        self.intermediate = Dense(
            f"{self.scope}/intermediate/dense", size, width,
            kernel_initializer(config), config.hidden_act)
        self.output_dense = Dense(
            f"{self.scope}/intermediate/output/dense", width, size,
            kernel_initializer(config))
        self.layer_norm = LayerNorm(f"{scope}/LayerNorm_1", size)

    def call(self, hidden, seeds: DropoutSeeds):
        """[B, S, H] → [B, S, H]."""
        output = self.output_dense(self.intermediate(hidden))
        return self.layer_norm(hidden + seeds.dropout(output, self.dropout_prob))


class Encoder(NamedLayer):
    """Projection E → H where they differ, then the layers.

    Release: `transformer_model`. Which parameters a layer uses is the config's
    `attention_index` and `ffn_index`.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/encoder")
        self.config = config
        self.projection = None
        if config.embedding_size != config.hidden_size:
            self.projection = Dense(
                f"{self.scope}/embedding_hidden_mapping_in",
                config.embedding_size, config.hidden_size, kernel_initializer(config))
        layers = range(config.num_hidden_layers)
        self.attention = self._blocks(
            AttentionBlock, {config.attention_index(layer) for layer in layers})
        self.ffn = self._blocks(
            FeedForwardBlock, {config.ffn_index(layer) for layer in layers})

    def _blocks(self, block, indices):
        """Blocks by (index, inner); Keras tracks dictionaries with string keys."""
        return {f"{index}_{inner}": block(self.config, index, inner)
                for index in sorted(indices)
                for inner in range(self.config.inner_group_num)}

    def call(self, embedding_output, attention_bias, seeds: DropoutSeeds):
        """[B, S, E], [B, 1, 1, S] → list of L · inner_group_num tensors [B, S, H]."""
        hidden = embedding_output
        if self.projection is not None:
            hidden = self.projection(hidden)
        outputs = []
        for layer in range(self.config.num_hidden_layers):
            for inner in range(self.config.inner_group_num):
                attention = self.attention[f"{self.config.attention_index(layer)}_{inner}"]
                ffn = self.ffn[f"{self.config.ffn_index(layer)}_{inner}"]
                hidden = ffn(attention(hidden, attention_bias, seeds), seeds)
                outputs.append(hidden)
        return outputs


class AlbertModel(tf_keras.Model):
    """The ALBERT encoder with its pooler (release: `modeling.AlbertModel`).

    Args:
      config: the model's shape.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**{"name": "bert", **kwargs})
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense("bert/pooler/dense", config.hidden_size,
                            config.hidden_size, kernel_initializer(config), "tanh")

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, Any]:
        """Runs the encoder.

        Args:
          inputs: `input_ids` int [B, S]; optionally `input_mask` int [B, S],
            1 for pieces and 0 for padding (default all 1), and `segment_ids`
            int [B, S] (default all 0). Further keys are ignored.
          training: whether dropout is on.
          seed: int32 [2]; equal seeds drop equal units. By default every
            training call draws a new one.

        Returns:
          A dict: `embedding_output` [B, S, E]; `encoder_outputs`, a list of
          [B, S, H], one for each block; `sequence_output` [B, S, H], the last
          of them; `pooled_output` [B, H].

        Raises:
          InputError: if S is over max_position_embeddings, or the inputs differ in
            shape.
        """
        input_ids = tf.cast(inputs["input_ids"], tf.int32)
        length = input_ids.shape[1]
        if length is not None and length > self.config.max_position_embeddings:
            raise InputError(
                f"a sequence of {length} pieces is longer than the config's "
                f"max_position_embeddings {self.config.max_position_embeddings}.")
        mask = inputs.get("input_mask")
        mask = tf.ones_like(input_ids) if mask is None else tf.convert_to_tensor(mask)
        segment_ids = inputs.get("segment_ids")
        segment_ids = (tf.zeros_like(input_ids) if segment_ids is None
                       else tf.cast(segment_ids, tf.int32))
        for name, value in (("input_mask", mask), ("segment_ids", segment_ids)):
            # A row too few would be broadcast without a word.
            if not input_ids.shape.is_compatible_with(value.shape):
                raise InputError(
                    f"{name} has the shape {list(value.shape)}, but input_ids has "
                    f"{list(input_ids.shape)}; they must be the same.")

        if training and seed is None:
            seed = tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max,
                                     dtype=tf.int32)
        seeds = DropoutSeeds(seed if training else None)
        embedding_output = self.embeddings(input_ids, segment_ids, seeds)
        unmasked = tf.cast(mask, embedding_output.dtype)[:, tf.newaxis, tf.newaxis, :]
        attention_bias = (1.0 - unmasked) * MASKED_SCORE  # [B, 1, 1, S]
        outputs = self.encoder(embedding_output, attention_bias, seeds)
        return {
            "embedding_output": embedding_output,
            "encoder_outputs": outputs,
            "sequence_output": outputs[-1],
            "pooled_output": self.pooler(outputs[-1][:, 0]),
        }

    def get_config(self):
        return {"config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(AlbertConfig.from_dict(config["config"]))
