"""The memory that a step needs at least, known before anything is built. No TensorFlow.

Runs that were measured (benchmarks/memory.py) took up to twice as much, and those with
masked pieces more: what is refused by these numbers would be killed in the middle.
"""

from typing import Mapping, NamedTuple

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount
from albert_tf.modeling.parameter_count import count_parameters
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


class PlannedBatch(NamedTuple):
    """A batch of `size` examples, of which this process computes `examples` at once."""

    size: int
    examples: int
    sequences: Sequences


def check_memory(config: AlbertConfig, trained: bool, step: StepOptions = StepOptions(),
                 batches: Mapping[str, PlannedBatch] = {}) -> None:
    """Raises InputError where the machine does not have the memory that the model's
    weights need, with gradients and moments where they are `trained` in it, and then that
    of any of `batches`, by the flag of their size."""
    parameters = count_parameters(config).with_heads
    needed, free = 4 * parameters * (4 if trained else 1), parallel.available_memory()
    if needed > free:
        raise InputError(
            f"the model has {parameters:,} parameters, which take "
            f"{amount(needed)} of memory"
            + (" with gradients and the optimizer's moments" if trained else "")
            + f", but {amount(free)} are free; give a smaller one (--model, "
            "--albert_config_file, --config_overrides), or take a larger machine.")
    for name, (size, examples, sequences) in batches.items():
        in_training = name == "train_batch_size"
        found = (training_memory if in_training else evaluation_memory)(
            config, step, examples, sequences)
        if needed + found > free:
            raise InputError(
                f"--{name}={size}: {examples * sequences.of_example} "
                f"sequences of {sequences.length:.0f} pieces at once take at least "
                f"{amount(found)} of memory, the model {amount(needed)}, but "
                f"{amount(free)} are free; give "
                + "a larger --gradient_accumulation_steps, --recompute, " * in_training
                + "--dtype=bfloat16 or a smaller batch.")


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
