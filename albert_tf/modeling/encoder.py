"""The two blocks of a layer: self-attention and feed-forward network.

A block hands out its variables as the layers that share it use them
(`layer_weights`), and computes a layer with weights that were handed out.

Shapes below: B batch, S sequence, H hidden, A heads, D = H / A; rows as in
token_rows.
"""

from typing import NamedTuple, Optional

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.kernels import fast, shared_kernels
from albert_tf.modeling.kernels.packing import ALL_ROWS, AllRows
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer, product)

# Name of the folder for a layer's parameters in the release's checkpoints.
_BLOCK = "bert/encoder/transformer/group_{index}/inner_group_{inner}"


class AttentionWeights(NamedTuple):
    """An attention block's variables as one layer uses them."""

    qkv_kernel: tf.Tensor  # query, key and value side by side, [H, 3H]
    qkv_bias: tf.Tensor
    output_kernel: tf.Tensor
    output_bias: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor


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

    def layer_weights(self, dtype: tf.DType, uses: int) -> list[AttentionWeights]:
        """The weights for each of the `uses` layers; kernels in `dtype`."""
        parts = (self.query, self.key, self.value)
        # One product for the three is faster than one for each.
        qkv_kernel = tf.concat([part.kernel for part in parts], axis=1)
        small = (
            tf.concat([part.bias for part in parts], axis=0),
            *map(tf.convert_to_tensor, (self.output_dense.bias, self.layer_norm.gamma,
                                        self.layer_norm.beta)))
        qkv_kernels, output_kernels = (
            shared_kernels.copies(tf.convert_to_tensor(kernel), dtype, uses)
            for kernel in (qkv_kernel, self.output_dense.kernel))
        return [AttentionWeights(qkv, small[0], output, *small[1:])
                for qkv, output in zip(qkv_kernels, output_kernels)]

    def call(self, hidden, attention_bias, seeds: DropoutSeeds,
             weights: Optional[AttentionWeights] = None,
             rows: AllRows = ALL_ROWS, positions=None):
        """Rows of [B, S, H] and [B, 1, 1, S] → such rows, or [B, Q, H].

        The weights are the own by default. The latter are the outputs at `positions`
        int [B, Q]; all positions are attended to, whichever the outputs are of.
        """
        weights = weights or self.layer_weights(hidden.dtype, 1)[0]
        kernel, bias = weights.qkv_kernel, weights.qkv_bias
        if positions is None:
            queries, query_rows = hidden, rows
            query, key, value = self._heads(hidden, rows, kernel, bias)
        else:
            queries, query_rows = rows.at(hidden, positions), ALL_ROWS
            sizes = [hidden.shape[-1], 2 * hidden.shape[-1]]
            kernels, biases = tf.split(kernel, sizes, axis=1), tf.split(bias, sizes)
            query, = self._heads(queries, query_rows, kernels[0], biases[0])
            key, value = self._heads(hidden, rows, kernels[1], biases[1])
        parts = query_rows.parts(queries)
        context = parts.attend(query, key, value, attention_bias, seeds.draw(
            tf.concat([tf.shape(query)[:-1], tf.shape(key)[2:3]], axis=0),
            self.probs_dropout_prob))  # [B, A, Q, D]
        return parts.add_and_normalize(
            product(query_rows.from_heads(context), weights.output_kernel),
            weights.output_bias, queries, weights.gamma, weights.beta,
            seeds.draw(tf.shape(queries), self.hidden_dropout_prob))

    def _heads(self, hidden, rows, kernel, bias):
        """Rows of H columns × [H, n·H] + [n·H] → n tensors [B, A, S, D]."""
        outputs = fast.add_bias(product(hidden, kernel), bias)
        return rows.to_heads(
            outputs, self.num_heads, hidden.shape[-1] // self.num_heads)


class FeedForwardWeights(NamedTuple):
    """A feed-forward block's variables as one layer uses them."""

    kernel: tf.Tensor
    bias: tf.Tensor
    output_kernel: tf.Tensor
    output_bias: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor


class FeedForwardBlock(NamedLayer):
    """Dense, activation, dense, add, LayerNorm.

    Release: second half of `attention_ffn_block`.
    """

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

    def layer_weights(self, dtype: tf.DType, uses: int) -> list[FeedForwardWeights]:
        """The weights for each of the `uses` layers; kernels in `dtype`."""
        first, second = (
            shared_kernels.copies(tf.convert_to_tensor(dense.kernel), dtype, uses)
            for dense in (self.intermediate, self.output_dense))
        bias, *rest = map(tf.convert_to_tensor, (
            self.intermediate.bias, self.output_dense.bias, self.layer_norm.gamma,
            self.layer_norm.beta))
        return [FeedForwardWeights(kernel, bias, output_kernel, *rest)
                for kernel, output_kernel in zip(first, second)]

    def call(self, hidden, seeds: DropoutSeeds,
             weights: Optional[FeedForwardWeights] = None,
             rows: AllRows = ALL_ROWS):
        """Rows of [B, S, H] → such rows; weights are the own by default."""
        weights = weights or self.layer_weights(hidden.dtype, 1)[0]
        parts = rows.parts(hidden)
        inner = parts.add_activation(
            product(hidden, weights.kernel), weights.bias, self.intermediate.hidden_act)
        return parts.add_and_normalize(
            product(inner, weights.output_kernel), weights.output_bias, hidden,
            weights.gamma, weights.beta,
            seeds.draw(tf.shape(hidden), self.dropout_prob))
