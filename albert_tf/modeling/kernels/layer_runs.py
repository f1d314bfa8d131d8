"""Running the layers of an encoder one after another, as a `Computation` says.

    runs = LayerRuns(layers, Computation("bfloat16"), attention_bias, seeds, layout)
    for attention, ffn in layers:
        hidden = runs(attention, ffn, hidden)

Layers that share their blocks have their weights prepared once for all uses, and are traced
once if the backward pass recomputes them.
"""

import collections
import dataclasses
from typing import Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from albert_tf.config import DTYPES
from albert_tf.errors import InputError
from albert_tf.modeling.kernels import fast, recompute
from albert_tf.modeling.kernels.packing import Layout
from albert_tf.modeling.kernels.random import DropoutSeeds


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
        its intermediate results, which saves memory.
      skip_padding: whether layers may skip padding. XLA cannot compile this.
      passes: how many layers to run, from the first; None for all. If all layers share
        their blocks, the depth can differ from step to step.
      constants: scope of a block → its weights from `layer_weights`, computed in
        advance for serving. None computes them in each call.
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


class LayerRuns:
    """The layers of one forward pass.

    Args:
      layers: pairs of an attention block and a feed-forward block, each a layer with
        `scope` and `layer_weights(dtype, uses)`; the same pair for layers that share.
      computation, attention_bias, seeds, layout: as for Encoder.call.
    """

    def __init__(self, layers: Sequence[tuple], computation: Computation,
                 attention_bias: tf.Tensor, seeds: DropoutSeeds, layout: Layout):
        self._computation, self._attention_bias = computation, attention_bias
        self._seeds, self._layout = seeds, layout
        self._uses = collections.Counter(block.scope for pair in layers for block in pair)
        self._weights, self._functions = {}, {}

    def __call__(self, attention, ffn, hidden: tf.Tensor,
                 positions: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Runs the next layer: [..., H] → [..., H], or [B, Q, H] at `positions`."""
        weights = [self._next_weights(block, hidden.dtype) for block in (attention, ffn)]
        # Make one _Layer for each pair of blocks, so that recomputation traces it only
        # once. The trace also counts its dropouts.
        key = (attention.scope, ffn.scope, positions is None)
        if key not in self._functions:
            layer = _Layer(attention, ffn, self._attention_bias, self._seeds,
                           self._layout, positions, [type(each) for each in weights])
            self._functions[key] = layer, (
                recompute.Recomputed(layer) if self._computation.recompute else layer)
        layer, function = self._functions[key]
        # A layer gets the index of its first dropout, so that each has its own.
        hidden = function(hidden, self._seeds.next_draw, *weights[0], *weights[1])
        self._seeds.skip(layer.draws)
        return hidden

    def _next_weights(self, block, dtype: tf.DType) -> NamedTuple:
        """Returns a block's weights for the next layer that uses it."""
        if self._computation.constants is not None:
            weights = self._computation.constants[block.scope]
            return tf.nest.map_structure(tf.convert_to_tensor, weights)
        if block.scope not in self._weights:
            self._weights[block.scope] = iter(
                block.layer_weights(dtype, self._uses[block.scope]))
        return next(self._weights[block.scope])

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
        weights = [block.layer_weights(tf.float32, 1)[0] for block in pair]
        layer = _Layer(*pair, self._attention_bias, self._seeds, self._layout, None,
                       [type(each) for each in weights])
        function = recompute.Recomputed(layer)

        def body(number, draw, hidden):
            # Cast within the loop: it sums the gradients of `weights`, in float32.
            cast = [recompute.copies(weight, hidden.dtype, 1)[0]
                    if weight.shape.rank == 2 else weight
                    for each in weights for weight in each]
            hidden = function(hidden, draw, *cast)
            return number + 1, draw + layer.draws, hidden

        hidden = tf.while_loop(
            lambda number, *_: number < count, body, (0, self._seeds.next_draw, hidden),
            maximum_iterations=count, parallel_iterations=1)[-1]
        self._seeds.skip(count * layer.draws)
        self._uses.subtract({block.scope: count for block in pair})
        return hidden, layers[-1:]


class _Layer:
    """A pair of blocks as a function: (hidden, index of its first dropout, *weights of
    both blocks) → hidden."""

    def __init__(self, attention, ffn, attention_bias, seeds, layout, positions, kinds):
        self.attention, self.ffn = attention, ffn
        self.attention_bias, self.seeds = attention_bias, seeds
        self.layout, self.positions, self.kinds = layout, positions, kinds
        self.draws = 0  # number of its dropouts, known after the first call

    def __call__(self, hidden, first_draw, *weights):
        seeds = self.seeds.after(hidden, first_draw)
        # Weights are separate arguments, so that recomputation can return the gradient
        # of each; those of attention come first.
        of_attention, of_ffn = self.kinds
        count = len(of_attention._fields)
        hidden = self.attention(
            hidden, self.attention_bias, seeds, of_attention(*weights[:count]),
            self.layout, self.positions)
        hidden = self.ffn(hidden, seeds, of_ffn(*weights[count:]),
                          self.layout if self.positions is None
                          else self.layout.of_positions)
        self.draws = seeds.drawn
        return hidden
