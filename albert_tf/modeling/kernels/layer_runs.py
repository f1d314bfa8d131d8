"""Running the layers of an encoder one after another, as a `Computation` says.

    runs = LayerRuns(layers, Computation("bfloat16"), attention_bias, seeds, layout)
    for attention, ffn in layers:
        hidden = runs(attention, ffn, hidden)

Kernels that several layers share are cast once, and their gradients, one from each
layer, are summed in float32 as soon as they exist (`copies`).

With recomputation (Chen et al. 2016) only the inputs of the L layers, L · B · S · H
numbers, and the activations of one layer are kept between forward and backward pass.
`tf.recompute_grad` does not achieve this: it computes again, but sets no order, and
TensorFlow and XLA may compute an operation as soon as its inputs exist. The order saves
the memory:

  A layer is computed again only when the gradient of its output exists. Otherwise all
    layers might be recomputed at once, or XLA might notice that they are computed twice
    and keep them (`after`).
  The same is true for the draws of dropout, which need no input of the layer
    (DropoutSeeds.after).
  The gradient of a layer's input is passed on only when those of its weights exist.
    Otherwise the executor might delay the products for these, and keep their inputs.
"""

import collections
import dataclasses
import functools
from typing import Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from albert_tf.modeling.kernels import fast
from albert_tf.modeling.kernels.packing import Layout
from albert_tf.modeling.kernels.plain import wide
from albert_tf.modeling.kernels.random import DropoutSeeds, after

# Maximum number of bytes of gradients that are summed at once. The larger it is, the
# less often the intermediate sum is read and written.
_SUMMED_BYTES = 1 << 25


@dataclasses.dataclass(frozen=True)
class Computation:
    """How a model computes. What it changes in the result is rounding, apart from
    `passes`.

    It is an argument of each call, not a part of the model, which can therefore train
    in bfloat16, be evaluated in float32, and be exported:

        model(features, computation=Computation("bfloat16", skip_padding=True))

    Attributes:
      dtype: of the layers' matrix products and activations, one of config.DTYPES.
        Variables, softmax, LayerNorm and everything outside the layers are float32.
        Training in float16 needs loss scaling, and overflows if a product of query and
        key exceeds 65504.
      recompute: whether the backward pass computes each layer again instead of keeping
        its intermediate results, which saves memory. On TPUs `encoder_outputs` then has
        the last layer alone if all share their blocks.
      skip_padding: whether layers skip padding, at which `encoder_outputs` then have no
        meaning. XLA cannot compile this.
      passes: how many layers to run, from the first; None for all. If all layers share
        their blocks, the depth can differ from step to step.
      constants: scope of a block → its weights, cast to `dtype` in advance for serving.
        None computes them in each call.
    """

    dtype: str = "float32"
    recompute: bool = False
    skip_padding: bool = False
    passes: Optional[int] = None
    constants: Optional[Mapping[str, NamedTuple]] = None


class LayerRuns:
    """The layers of one forward pass: pairs of an attention block and a feed-forward
    block, each with `scope`, `draws` and `layer_weights`, the same pair for layers that
    share; the rest is as for Encoder.call."""

    def __init__(self, layers: Sequence[tuple], computation: Computation,
                 attention_bias: tf.Tensor, seeds: DropoutSeeds, layout: Layout):
        self._computation, self._attention_bias = computation, attention_bias
        self._seeds, self._layout = seeds, layout
        self._uses = collections.Counter(block.scope for pair in layers for block in pair)
        self._weights = {}
        self._layer = recomputed(self._run) if computation.recompute else self._run

    def __call__(self, attention, ffn, hidden: tf.Tensor,
                 positions: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Runs the next layer: [..., H] → [..., H], or [B, Q, H] at `positions`."""
        weights = [next(self._weights_of(block, hidden.dtype))
                   for block in (attention, ffn)]
        # A layer gets the index of its first dropout, so that each has its own.
        hidden = self._layer(
            hidden, self._seeds.next_draw, weights, attention, ffn, positions)
        self._seeds.next_draw += attention.draws + ffn.draws
        return hidden

    def _weights_of(self, block, dtype: tf.DType) -> Iterator[NamedTuple]:
        """Returns what is left of a block's weights: one for each layer that uses it."""
        constants, uses = self._computation.constants, self._uses[block.scope]
        if block.scope not in self._weights:
            self._weights[block.scope] = iter(
                in_copies(block.layer_weights(), dtype, uses) if constants is None else
                [tf.nest.map_structure(tf.convert_to_tensor, constants[block.scope])]
                * uses)
        return self._weights[block.scope]

    def _run(self, hidden, first_draw, weights, attention, ffn, positions=None):
        """Runs a pair of blocks with the weights of both; `first_draw` is the index of
        its first dropout."""
        seeds = self._seeds.after(hidden, first_draw)
        hidden = attention(hidden, self._attention_bias, seeds, weights[0], self._layout,
                           positions)
        return ffn(hidden, seeds, weights[1], self._layout if positions is None
                   else self._layout.of_positions)

    def in_a_loop(self, hidden: tf.Tensor, layers: Sequence[tuple]
                  ) -> tuple[tf.Tensor, Sequence[tuple]]:
        """On TPUs, runs all layers but the last in a loop if they share their blocks and
        are recomputed: XLA then compiles one layer for any number of them. Returns the
        hidden states and the layers that are left.

        Without recomputation the loop would copy what each layer keeps; TPUs would take
        18 % longer (an estimate of their compiler).
        """
        if not (self._computation.recompute and len(set(layers)) == 1
                and len(layers) > 2 and fast.device_kind() == "TPU"):
            return hidden, layers
        count, pair = len(layers) - 1, layers[0]
        draws = sum(block.draws for block in pair)
        weights = [block.layer_weights() for block in pair]

        def body(number, draw, hidden):
            # Cast within the loop: it sums the gradients of `weights`, in float32.
            cast, = in_copies(weights, hidden.dtype, 1)
            return number + 1, draw + draws, self._layer(hidden, draw, cast, *pair)

        hidden = tf.while_loop(
            lambda number, *_: number < count, body, (0, self._seeds.next_draw, hidden),
            maximum_iterations=count, parallel_iterations=1)[-1]
        self._seeds.next_draw += count * draws
        self._uses.subtract({block.scope: count for block in pair})
        return hidden, layers[-1:]


def recomputed(layer: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a layer that the backward pass computes again, so that none of its
    activations are kept. It must return the same values each time, and all its large
    activations must depend on `hidden`.

    It is traced once, and once for its gradient, for all layers of the same blocks: the
    graph of 24 separate layers would need half a gigabyte and many seconds to build.
    `layer` is (hidden, number, weights, *others) → hidden; `others` and tensors that it
    captures from outside need no gradient, and the latter must be the same for all layers.
    """
    def backward(upstream, hidden, number, weights, *others):
        late = after(hidden, upstream)
        with tf.GradientTape() as tape:
            tape.watch([late, weights])
            output = layer(late, number, weights, *others)
        d_hidden, *d_weights = tf.nest.flatten(tape.gradient(
            output, [late, weights], output_gradients=upstream))
        with tf.control_dependencies(d_weights):
            return (tf.identity(d_hidden), *d_weights)

    forward = tf.function(layer, autograph=False)
    backward = tf.function(backward, autograph=False)

    def run(hidden, number, weights, *others):
        number = tf.convert_to_tensor(number)
        return fast.with_gradient(
            lambda hidden, *tensors: forward(
                hidden, number, tf.nest.pack_sequence_as(weights, tensors), *others),
            lambda upstream: backward(upstream, hidden, number, weights, *others),
            hidden, *tf.nest.flatten(weights))

    return run


def in_copies(weights, dtype: tf.DType, uses: int) -> list:
    """Returns a structure of weights once for each of `uses` layers; kernels, which are
    of rank 2, in `dtype`."""
    tensors = [copies(each, dtype, uses) if each.shape.rank == 2 else [each] * uses
               for each in tf.nest.flatten(weights)]
    return [tf.nest.pack_sequence_as(weights, each) for each in zip(*tensors)]


def copies(kernel: tf.Tensor, dtype: tf.DType, uses: int) -> list[tf.Tensor]:
    """Returns a float32 kernel in the type of the products, once for each of its
    `uses`, whose gradients are summed in float32, several of them at once."""
    low = tf.stop_gradient(tf.cast(kernel, dtype))
    group = max(1, _SUMMED_BYTES // (low.dtype.size * kernel.shape.num_elements()))

    # TensorFlow merges nested sums into one, which would keep the gradients of all layers
    # until the end. It does not merge the sum in an island.
    add = functools.partial(fast.island, _sum) if fast.is_compiled(kernel.shape) else _sum
    kernels = []
    while uses:
        count = min(group, uses)
        uses -= count
        # `count` copies and, unless they are the last, the kernel for the next ones.
        outputs = fast.with_gradient(
            lambda kernel: [low] * count + [kernel] * bool(uses), add, kernel)
        kernels += outputs[:count]
        kernel = outputs[-1]
    return kernels


def _sum(*tensors):
    return tf.add_n([wide(tensor) for tensor in tensors])
