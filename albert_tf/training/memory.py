"""The memory that a batch needs at least, before anything is built. No TensorFlow.

Runs that were measured (benchmarks/memory.py) took over twice as much with full
sequences: what is refused by these numbers would be killed in the middle.
"""

from albert_tf.config import AlbertConfig
from albert_tf.training.options import StepOptions

# The layers leave out padding, and sequences may be half of it.
_LEAST_FILLED = 0.5


def training_memory(config: AlbertConfig, step: StepOptions, rows: int, length: int,
                    predictions: int = 0) -> float:
    """Bytes of the activations of `rows` sequences, those of one part of a batch, with
    `predictions` masked pieces in each."""
    hidden = config.hidden_size
    # Of one layer and piece: queries, keys, values, their context, two sums and their
    # normalizations, the feed-forward part before and after its activation, attention;
    # half as much again was taken for gradients and dropout in all measured runs.
    layer = 1.5 * (8 * hidden + 2 * config.intermediate_size
                   + config.num_attention_heads * length)
    count = config.num_hidden_layers * config.inner_group_num
    kept = count * hidden + layer if step.recompute else count * layer
    size = 4 if step.dtype == "float32" else 2
    return rows * (_LEAST_FILLED * length * size * kept
                   + 2 * 4 * predictions * config.vocab_size)
