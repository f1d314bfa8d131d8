"""The encoder: the layers of ALBERT, and the blocks that they share.

A layer is self-attention and a feed-forward network; several layers may use one block
of each. Sharing keeps the number of parameters from growing with depth, and makes the
hidden states change more smoothly from layer to layer (paper, section 3.1, Figure 1).
A block hands out its variables as its layers use them (`layer_weights`), and computes a
layer with weights that were handed out. The element-wise parts (attend, add_activation,
add_and_normalize) are in kernels.plain, faster ones for CPUs in kernels.fast.

Shapes: B batch, S sequence, E embedding, H hidden, A heads, D = H / A, L layers;
[..., H] as the layout (see kernels.packing) holds a batch.
"""

import collections
import dataclasses
from typing import Mapping, NamedTuple, Optional

import tensorflow as tf

from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.errors import InputError
from albert_tf.modeling.kernels import recompute
from albert_tf.modeling.kernels.packing import PADDED, Padded
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer, product, sizes)

# Name of the folder for a layer's parameters in the release's checkpoints.
_BLOCK = "bert/encoder/transformer/group_{index}/inner_group_{inner}"


@dataclasses.dataclass(frozen=True)
class Computation:
    """How a model computes; but for `passes`, what it computes is the same.

    Handed in with each call, and no part of the model, which may so train in bfloat16,
    be evaluated in float32 and be exported:

        model(features, computation=Computation("bfloat16", skip_padding=True))

    Attributes:
      dtype: of the layers' products and activations, one of config.DTYPES. Variables,
        statistics and all outside of the layers are float32. Training in float16 needs
        loss scaling, and products of queries and keys below its largest number, 65504.
      recompute: whether the backward pass computes each layer once more instead of
        keeping its intermediate results.
      skip_padding: whether layers may leave out positions of padding. XLA cannot
        compile that.
      passes: layers to run, the first ones; None for all. Where the layers share one
        block, depth can so differ from step to step.
      constants: scope of a block → its weights as from `layer_weights`, computed ahead
        for serving. None computes them in each call.
    """

    dtype: str = "float32"
    recompute: bool = False
    skip_padding: bool = False
    passes: Optional[int] = None
    constants: Optional[Mapping[str, NamedTuple]] = None

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise InputError(
                f"dtype is '{self.dtype}'; choose one of {', '.join(DTYPES)}.")


class AttentionWeights(NamedTuple):
    """An attention block's variables as one layer uses them; kernels are [in, out]."""

    qkv_kernel: tf.Tensor  # query, key and value side by side, [H, 3H]
    qkv_bias: tf.Tensor
    output_kernel: tf.Tensor
    output_bias: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor

    def query_apart(self) -> "AttentionWeights":
        """With the query's kernel and bias apart from those of key and value, each a
        pair."""
        if isinstance(self.qkv_kernel, tuple):
            return self
        size = self.qkv_kernel.shape[0]
        return self._replace(**{
            name: tuple(tf.split(getattr(self, name), [size, 2 * size], axis=-1))
            for name in ("qkv_kernel", "qkv_bias")})


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
        self.layer_norm = LayerNorm(
            f"{scope}/LayerNorm", size, config.layer_norm_eps)

    def layer_weights(self, dtype: tf.DType, uses: int) -> list[AttentionWeights]:
        """The weights for each of the `uses` layers; kernels in `dtype`."""
        parts = (self.query, self.key, self.value)
        # One product for the three is faster than one for each.
        qkv_kernel = tf.concat([part.kernel for part in parts], axis=1)
        small = (
            tf.concat([part.bias for part in parts], axis=0),
            *map(tf.convert_to_tensor, (self.output_dense.bias, self.layer_norm.gamma,
                                        self.layer_norm.beta)))
        # Cast once for all uses, whose gradients are summed in float32 as they come.
        qkv_kernels, output_kernels = (
            recompute.copies(tf.convert_to_tensor(kernel), dtype, uses)
            for kernel in (qkv_kernel, self.output_dense.kernel))
        return [AttentionWeights(qkv, small[0], output, *small[1:])
                for qkv, output in zip(qkv_kernels, output_kernels)]

    def call(self, hidden, attention_bias, seeds: DropoutSeeds,
             weights: Optional[AttentionWeights] = None,
             layout: Padded = PADDED, positions=None):
        """[..., H], [B, 1, 1, S] → [..., H], or [B, Q, H] at `positions` int [B, Q].

        `weights` are by default the block's own. All positions are attended to,
        whichever the outputs are of.
        """
        weights = weights or self.layer_weights(hidden.dtype, 1)[0]
        # 1. Who asks: every position, or, in the last layer, those that are read.
        queries, of_queries = (hidden, layout) if positions is None else (
            layout.at(hidden, positions), PADDED)
        # 2. Query, key and value of each head: in one product if all positions ask.
        if positions is None and not isinstance(weights.qkv_kernel, tuple):
            query, key, value = self._heads(
                hidden, layout, weights.qkv_kernel, weights.qkv_bias)
        else:
            kernels, biases = weights.query_apart()[:2]
            query, = self._heads(queries, of_queries, kernels[0], biases[0])
            key, value = self._heads(hidden, layout, kernels[1], biases[1])
        # 3. softmax(query · keyᵀ / √D + bias) · value, with dropout on the probabilities.
        parts = of_queries.parts(queries)
        context = parts.attend(query, key, value, attention_bias, seeds.draw(
            [*sizes(query)[:-1], sizes(key)[2]],
            self.probs_dropout_prob))  # [B, A, Q, D]
        # 4. Heads side by side again, the output layer, dropout, add, LayerNorm.
        return parts.add_and_normalize(
            product(of_queries.from_heads(context), weights.output_kernel),
            weights.output_bias, queries, weights.gamma, weights.beta,
            of_queries.dropped(seeds, queries, self.hidden_dropout_prob),
            self.layer_norm.epsilon)

    def _heads(self, hidden, layout, kernel, bias):
        """[..., H] × [H, n·H] + [n·H] → n tensors [B, A, S, D]."""
        return layout.to_heads(
            product(hidden, kernel, bias), self.num_heads,
            hidden.shape[-1] // self.num_heads)


class FeedForwardWeights(NamedTuple):
    """A feed-forward block's variables as one layer uses them."""

    kernel: tf.Tensor
    bias: tf.Tensor
    output_kernel: tf.Tensor
    output_bias: tf.Tensor
    gamma: tf.Tensor
    beta: tf.Tensor


class FeedForwardBlock(NamedLayer):
    """Dense, activation, dense, add, LayerNorm. Release: second half of
    `attention_ffn_block`."""

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
        self.layer_norm = LayerNorm(
            f"{scope}/LayerNorm_1", size, config.layer_norm_eps)

    def layer_weights(self, dtype: tf.DType, uses: int) -> list[FeedForwardWeights]:
        """The weights for each of the `uses` layers; kernels in `dtype`."""
        first, second = (
            recompute.copies(tf.convert_to_tensor(dense.kernel), dtype, uses)
            for dense in (self.intermediate, self.output_dense))
        bias, *rest = map(tf.convert_to_tensor, (
            self.intermediate.bias, self.output_dense.bias, self.layer_norm.gamma,
            self.layer_norm.beta))
        return [FeedForwardWeights(kernel, bias, output_kernel, *rest)
                for kernel, output_kernel in zip(first, second)]

    def call(self, hidden, seeds: DropoutSeeds,
             weights: Optional[FeedForwardWeights] = None,
             layout: Padded = PADDED):
        """[..., H] → [..., H]; `weights` are by default the block's own."""
        weights = weights or self.layer_weights(hidden.dtype, 1)[0]
        # From H to the intermediate size and back; then dropout, add, LayerNorm.
        parts = layout.parts(hidden)
        inner = parts.add_activation(
            product(hidden, weights.kernel), weights.bias, self.intermediate.hidden_act)
        return parts.add_and_normalize(
            product(inner, weights.output_kernel), weights.output_bias, hidden,
            weights.gamma, weights.beta,
            layout.dropped(seeds, hidden, self.dropout_prob), self.layer_norm.epsilon)


class Encoder(NamedLayer):
    """Projection E → H where they differ, then the layers (release:
    `transformer_model`); the config's `attention_index` and `ffn_index` say which block
    a layer uses."""

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/encoder")
        self.config = config
        self.projection = None
        if config.projects_embeddings:
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

    @property
    def blocks(self) -> tuple[NamedLayer, ...]:
        """Each block once."""
        return (*self.attention.values(), *self.ffn.values())

    def call(self, embedding_output, attention_bias, seeds: DropoutSeeds,
             computation: Computation = Computation(), layout: Padded = PADDED,
             positions=None):
        """[B, S, E], [B, 1, 1, S] → list of L · inner_group_num tensors [B, S, H], or
        of computation.passes · inner_group_num; the last of them [B, Q, H] with
        positions int [B, Q]."""
        # 1. From width E to H: the other half of the factorized embeddings.
        hidden = self.enter(embedding_output, layout)
        depth, most = computation.passes, self.config.num_hidden_layers
        if depth is not None and not 1 <= depth <= most:
            raise InputError(
                f"passes is {depth}; the config has {most} layers, so give 1 to that.")
        # 2. The blocks of each layer in turn. With shared parameters they are the same
        # ones, L times, so their weights are made ready once for all of their uses.
        layers = [pair for layer in range(most if depth is None else depth)
                  for pair in self._blocks_of(layer)]
        uses = collections.Counter(block.scope for pair in layers for block in pair)
        weights = {
            block.scope: iter(_weights(
                block, computation.constants, hidden.dtype, uses[block.scope]))
            for block in self.blocks}
        # 3. Layer by layer; of the last one only what is read.
        outputs, computed = [], {}
        for number, (attention, ffn) in enumerate(layers, start=1):
            read = positions if number == len(layers) else None
            # One _Layer for each pair of blocks: recomputation traces it once for all of
            # its uses, and the trace counts its draws.
            key = (attention.scope, ffn.scope, read is None)
            if key not in computed:
                layer = _Layer(attention, ffn, attention_bias, seeds, layout, read)
                computed[key] = layer, (
                    recompute.Recomputed(layer) if computation.recompute else layer)
            layer, compute = computed[key]
            hidden = compute(hidden, seeds.next_draw, *next(weights[attention.scope]),
                             *next(weights[ffn.scope]))
            seeds.skip(layer.draws)
            outputs.append(layout.pad(hidden) if read is None else hidden)
        return outputs

    def enter(self, embedding_output, layout: Padded = PADDED):
        """What the first layer takes: [B, S, E] → [..., H]."""
        hidden = layout.unpad(embedding_output)
        return hidden if self.projection is None else self.projection(hidden)

    def one_pass(self, layer: int, hidden, attention_bias, computation: Computation,
                 layout: Padded = PADDED, positions=None):
        """A single layer, which drops nothing, by weights computed ahead
        (computation.constants): [..., H] → [..., H], or [B, Q, H] with positions."""
        pairs = self._blocks_of(layer)
        for number, (attention, ffn) in enumerate(pairs, start=1):
            own = (weight for block in (attention, ffn) for weight in _weights(
                block, computation.constants, hidden.dtype, 1)[0])
            hidden = _Layer(attention, ffn, attention_bias, DropoutSeeds(None), layout,
                            positions if number == len(pairs) else None)(hidden, 0, *own)
        return hidden

    def _blocks_of(self, layer: int) -> list[tuple[AttentionBlock, FeedForwardBlock]]:
        return [(self.attention[f"{self.config.attention_index(layer)}_{inner}"],
                 self.ffn[f"{self.config.ffn_index(layer)}_{inner}"])
                for inner in range(self.config.inner_group_num)]


def _weights(block, constants, dtype, uses):
    if constants is None:
        return block.layer_weights(dtype, uses)
    found = constants[block.scope]
    return [tf.nest.map_structure(tf.convert_to_tensor, found)] * uses


class _Layer:
    """One layer: (hidden, number of its first draw, *weights of both blocks) → hidden."""

    def __init__(self, attention, ffn, attention_bias, seeds, layout, positions):
        self.attention, self.ffn = attention, ffn
        self.attention_bias, self.seeds = attention_bias, seeds
        self.layout, self.positions = layout, positions
        self.draws = 0  # that it makes, once it was called

    def __call__(self, hidden, first_draw, *weights):
        seeds = self.seeds.after(hidden, first_draw)
        first = len(AttentionWeights._fields)
        hidden = self.attention(
            hidden, self.attention_bias, seeds, AttentionWeights(*weights[:first]),
            self.layout, self.positions)
        hidden = self.ffn(hidden, seeds, FeedForwardWeights(*weights[first:]),
                          self.layout if self.positions is None else PADDED)
        self.draws = seeds.drawn
        return hidden
