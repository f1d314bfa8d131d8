"""The memory of a step: what a batch needs at least, before anything is built, and how
freed memory goes back. No TensorFlow.

Runs that were measured (benchmarks/memory.py) took up to twice as much, and those with
masked pieces more: what is refused by these numbers would be killed in the middle.
"""

import ctypes
import os
import sys
from typing import NamedTuple

from absl import logging

from albert_tf.config import AlbertConfig
from albert_tf.training.options import StepOptions


class Sequences(NamedTuple):
    """What a batch consists of.

    Attributes:
      length: of a sequence, in pieces, on average.
      filled: share of it that is no padding, which the layers leave out.
      predictions: masked pieces in each.
      vectors: of the encoder's width, that a head makes of each piece in evaluation.
      of_example: sequences in each of the batch's examples.
    """

    length: float
    filled: float = 0.5
    predictions: int = 0
    vectors: int = 0
    of_example: int = 1

    def memory(self, examples: int, config: AlbertConfig, of_piece: float,
               size: int) -> float:
        """Bytes of so many of them, with so many numbers of `size` bytes a piece."""
        return examples * self.of_example * (
            self.filled * self.length * size * of_piece
            + 2 * 4 * self.predictions * config.vocab_size)


def training_memory(config: AlbertConfig, step: StepOptions, examples: int,
                    sequences: Sequences) -> float:
    """Bytes of the activations of one part of a batch."""
    hidden = config.hidden_size
    # Of one layer and piece: queries, keys, values, their context, two sums and their
    # normalizations, the feed-forward part before and after its activation, attention;
    # half as much again was taken for gradients and dropout in all measured runs.
    layer = 1.5 * (8 * hidden + 2 * config.intermediate_size
                   + config.num_attention_heads * sequences.length)
    count = config.num_hidden_layers * config.inner_group_num
    kept = count * hidden + layer if step.recompute else count * layer
    return sequences.memory(examples, config, kept, _size(step))


# TensorFlow's own bound between small and large tensors, in bytes.
_LARGE = 1 << 18
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Of mallopt(3).


def return_freed() -> None:
    """Has the memory of large tensors go back to the system as they are freed; to be
    called before TensorFlow makes its first one.

        return_freed()
        import tensorflow as tf

    With oneDNN TensorFlow keeps on a CPU whatever it once had, with gaps between tensors
    of many sizes: an eighth of what ALBERT-xlarge's step takes. Its other allocator is
    the system's, which would keep what is below 32 MB, unless it is told not to.
    Fresh memory is zeroed each time, so that a step takes longer. Where the system's
    allocator is another than glibc's, on Linux, a warning says that nothing changes.
    """
    # Not in every C library.
    mallopt = (getattr(ctypes.CDLL(None), "mallopt", None)
               if sys.platform.startswith("linux") else None)
    if not mallopt or not all(mallopt(name, _LARGE) for name in (
            _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)):
        logging.warning("--return_memory changes nothing here: it is for Linux with glibc.")
        return
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"


def evaluation_memory(config: AlbertConfig, step: StepOptions, examples: int,
                      sequences: Sequences) -> float:
    """Bytes of the activations of a batch without gradients, where a layer's are gone
    with it."""
    hidden = config.hidden_size
    return sequences.memory(examples, config, max(
        5 * hidden + config.num_attention_heads * sequences.length,
        hidden + 2 * config.intermediate_size,
        hidden * sequences.vectors), _size(step))


def _size(step: StepOptions) -> int:
    return 4 if step.dtype == "float32" else 2
