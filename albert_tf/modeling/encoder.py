"""The encoder: the layers of ALBERT, and the blocks that they share.

A layer is self-attention and a feed-forward network. Each has its parameters in a
block, and several layers may use the same blocks; in ALBERT all layers do. Sharing
keeps the number of parameters from growing with depth, and makes the hidden states
change more smoothly from layer to layer (section 3.1 and Figure 1 of the paper). It
saves parameters, gradients and moments, not work: compute and activations stay those of
L layers.

A block returns its variables as tensors (`layer_weights`), and computes a layer from
such weights. The formulas between the matrix products (attend, add_activation,
add_and_normalize) are in kernels.plain, faster versions for CPUs in kernels.fast and for
TPUs in kernels.tpu. How layers are run one after another (recomputed, on TPUs in a loop)
is in kernels.layer_runs.

Shapes: B batch, S sequence, E embedding, H hidden, A heads, D = H / A, L layers;
[..., H] is a batch as its layout holds it (kernels.packing): [B, S, H] with padding, or
[N, H], all tokens one after another.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.kernels.layer_runs import Computation, LayerRuns
from albert_tf.modeling.kernels.packing import PADDED, Layout
from albert_tf.modeling.kernels.random import DropoutSeeds
from albert_tf.modeling.layers import Dense, LayerNorm, NamedLayer, kernel_initializer

# Scope of a block's variables in the original's checkpoints.
_BLOCK = "bert/encoder/transformer/group_{index}/inner_group_{inner}"


class BlockWeights(NamedTuple):
    """A block's variables as one layer uses them; kernels are [in, out]."""

    kernel: tf.Tensor  # in attention query, key and value side by side, [H, 3H]
    bias: tf.Tensor
    output_kernel: tf.Tensor
    output_bias: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor

    def query_apart(self) -> "BlockWeights":
        """Returns weights of attention whose kernel and bias are pairs: the query's
        part, and that of key and value."""
        if isinstance(self.kernel, tuple):
            return self
        size = self.kernel.shape[0]
        return self._replace(**{
            name: tuple(tf.split(getattr(self, name), [size, 2 * size], axis=-1))
            for name in ("kernel", "bias")})


class AttentionBlock(NamedLayer):
    """Self-attention, residual connection, LayerNorm. Original: first half of
    `attention_ffn_block`."""

    def __init__(self, config: AlbertConfig, index: int, inner: int):
        scope = _BLOCK.format(index=index, inner=inner)
        super().__init__(f"{scope}/attention_1")
        self.num_heads = config.num_attention_heads
        self.probs_dropout_prob = config.attention_probs_dropout_prob
        self.hidden_dropout_prob = config.hidden_dropout_prob
        # The block's number of dropouts in a layer: one for each probability above 0.
        self.draws = bool(self.probs_dropout_prob) + bool(self.hidden_dropout_prob)
        size = config.hidden_size

        def dense(name):
            return Dense(f"{self.scope}/{name}", size, size, kernel_initializer(config))

        # Each maps H to H: the A heads, each of width D, are side by side.
        self.query = dense("self/query")
        self.key = dense("self/key")
        self.value = dense("self/value")
        self.output_dense = dense("output/dense")
        self.layer_norm = LayerNorm(
            f"{scope}/LayerNorm", size, config.layer_norm_eps)

    def layer_weights(self) -> BlockWeights:
        """Returns the weights in float32."""
        parts = (self.query, self.key, self.value)
        # One product for query, key and value together is faster than three.
        return BlockWeights(
            tf.concat([part.kernel for part in parts], axis=1),
            tf.concat([part.bias for part in parts], axis=0),
            *map(tf.convert_to_tensor, (
                self.output_dense.kernel, self.output_dense.bias, self.layer_norm.gamma,
                self.layer_norm.beta)))

    def call(self, hidden, attention_bias, seeds: DropoutSeeds,
             weights: BlockWeights, layout: Layout = PADDED, positions=None):
        """[..., H], [B, 1, 1, S] → [..., H], or [B, Q, H] at `positions` int [B, Q].

        The kernels in `weights` are of the type of `hidden`. Even outputs at a few
        `positions` attend to all positions. If positions differ in what they attend to,
        the bias is [B, 1, S, S], with a row for each.
        """
        # 1. Which positions need an output: all, or in the last layer only those that
        #    are read.
        queries, query_layout = (hidden, layout) if positions is None else (
            layout.at(hidden, positions), layout.of_positions)
        if positions is not None and attention_bias.shape[2] != 1:
            attention_bias = query_layout.at(
                attention_bias[:, 0], positions)[:, tf.newaxis]  # [B, 1, Q, S]
        # 2. Query, key and value of each head, [B, A, S, D] (TPU: [B, S, A, D]); in one
        #    product if all need an output.
        if positions is None and not isinstance(weights.kernel, tuple):
            query, key, value = layout.heads(
                hidden, weights.kernel, weights.bias, self.num_heads)
        else:
            kernels, biases = weights.query_apart()[:2]
            query, = query_layout.heads(
                queries, kernels[0], biases[0], self.num_heads)
            key, value = layout.heads(hidden, kernels[1], biases[1], self.num_heads)
        # 3. softmax(query · keyᵀ / √D + bias) · value, with dropout on probabilities:
        #    `parts` has the formulas of kernels.plain, or faster versions of them.
        parts = query_layout.parts(queries)
        context = parts.attend(
            query, key, value, attention_bias, query_layout.dropped_probs(
                seeds, query, key, self.probs_dropout_prob))  # [B, A, Q, D]
        # 4. Join the heads; then output layer, dropout, residual, LayerNorm.
        return parts.add_and_normalize(
            query_layout.join(context, weights.output_kernel),
            weights.output_bias, queries, weights.gamma, weights.beta,
            query_layout.dropped(seeds, queries, self.hidden_dropout_prob),
            self.layer_norm.epsilon)


class FeedForwardBlock(NamedLayer):
    """Dense layer, activation, dense layer, residual connection, LayerNorm. Original:
    second half of `attention_ffn_block`."""

    def __init__(self, config: AlbertConfig, index: int, inner: int):
        scope = _BLOCK.format(index=index, inner=inner)
        super().__init__(f"{scope}/ffn_1")
        self.dropout_prob = config.hidden_dropout_prob
        self.draws = int(bool(self.dropout_prob))
        size, width = config.hidden_size, config.intermediate_size
        # From H to a larger width, 4 · H in the published models, and back.
        self.intermediate = Dense(
            f"{self.scope}/intermediate/dense", size, width,
            kernel_initializer(config), config.hidden_act)
        self.output_dense = Dense(
            f"{self.scope}/intermediate/output/dense", width, size,
            kernel_initializer(config))
        self.layer_norm = LayerNorm(
            f"{scope}/LayerNorm_1", size, config.layer_norm_eps)

    def layer_weights(self) -> BlockWeights:
        """Returns the weights in float32."""
        return BlockWeights(*map(tf.convert_to_tensor, (
            self.intermediate.kernel, self.intermediate.bias, self.output_dense.kernel,
            self.output_dense.bias, self.layer_norm.gamma, self.layer_norm.beta)))

    def call(self, hidden, seeds: DropoutSeeds, weights: BlockWeights,
             layout: Layout = PADDED):
        """[..., H] → [..., H]; kernels in `weights` are of the type of `hidden`."""
        # From H to the intermediate size and back; then dropout, residual, LayerNorm.
        parts = layout.parts(hidden)
        inner = parts.add_activation(
            layout.product(hidden, weights.kernel), weights.bias,
            self.intermediate.hidden_act)
        return parts.add_and_normalize(
            layout.product(inner, weights.output_kernel), weights.output_bias, hidden,
            weights.gamma, weights.beta,
            layout.dropped(seeds, hidden, self.dropout_prob), self.layer_norm.epsilon)


class Encoder(NamedLayer):
    """Projects the embeddings from E to H if the config does, then runs the layers
    (original: `transformer_model`). The config's `block_indices` says which
    blocks a layer uses."""

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/encoder")
        self.config = config
        # The second half of the factorized embeddings: a matrix [E, H].
        self.projection = None
        if config.projects_embeddings:
            self.projection = Dense(
                f"{self.scope}/embedding_hidden_mapping_in",
                config.embedding_size, config.hidden_size, kernel_initializer(config))
        # One block for each index that occurs: if all layers share, there is only one.
        # The keys are "index_inner", because Keras tracks string keys only.
        self.attention, self.ffn = (
            {f"{index}_{inner}": block(config, index, inner)
             for index in sorted({*config.block_indices(kind)})
             for inner in range(config.inner_group_num)}
            for kind, block in (("attention", AttentionBlock), ("ffn", FeedForwardBlock)))

    @property
    def blocks(self) -> tuple[NamedLayer, ...]:
        """Each block once."""
        return (*self.attention.values(), *self.ffn.values())

    def call(self, embedding_output, attention_bias, seeds: DropoutSeeds,
             computation: Computation = Computation(), layout: Layout = PADDED,
             positions=None):
        """Maps embeddings [B, S, E] and an attention bias [B, 1, 1, S] or [B, 1, S, S]
        to the outputs of all pairs of blocks, a list of tensors [B, S, H].

        The list has inner_group_num tensors for each of the L layers, or of
        computation.passes layers, or the last alone (Computation.recompute). With
        positions int [B, Q] the last one is [B, Q, H].
        """
        # 1. Project from width E to H: the second half of the factorized embeddings.
        hidden = self.enter(embedding_output, layout)
        # 2. List the blocks of each layer. If all layers share, this is the same pair
        #    L times, so its weights are prepared once for all uses.
        indices = zip(self.config.block_indices("attention"), self.config.block_indices("ffn"))
        layers = [
            (self.attention[f"{attention}_{inner}"], self.ffn[f"{ffn}_{inner}"])
            for attention, ffn in list(indices)[:computation.passes]
            for inner in range(self.config.inner_group_num)]
        runs = LayerRuns(layers, computation, attention_bias, seeds, layout)
        # Where TPUs gain by it, this runs all layers but the last, which then is the
        # only one that is left.
        hidden, layers = runs.in_a_loop(hidden, layers)
        # 3. Run layer after layer, in ALBERT the same one each time. The last one
        #    computes only the positions that are read.
        outputs = []
        for number, (attention, ffn) in enumerate(layers, start=1):
            if number < len(layers) or positions is None:
                hidden = runs(attention, ffn, hidden)
                outputs.append(layout.pad(hidden))
            else:
                outputs.append(runs(attention, ffn, hidden, positions))
        return outputs

    def enter(self, embedding_output, layout: Layout = PADDED):
        """Returns the input of the first layer: [B, S, E] → [..., H]."""
        hidden = layout.unpad(embedding_output)
        return hidden if self.projection is None else self.projection(hidden)
