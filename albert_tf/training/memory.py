"""The memory of a step, known before anything is built, without TensorFlow.

`training_memory` and `evaluation_memory` are the least: measured runs
(benchmarks/memory.py) needed up to twice as much, and more with masked tokens. A run that
is refused because of these numbers would run out of memory.
"""

from typing import Mapping, NamedTuple

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount
from albert_tf.modeling.parameter_count import count_parameters
from albert_tf.training.options import StepOptions


class Sequences(NamedTuple):
    """The sequences of a batch."""

    length: float  # the average, in tokens
    filled: float = 0.5  # share of it that is not padding, which the layers leave out
    predictions: int = 0  # masked tokens in each sequence
    vectors: int = 0  # of the encoder's width, that a head computes for each token
    of_example: int = 1  # number of sequences in each example

    def memory(self, examples: int, config: AlbertConfig, step: StepOptions,
               of_piece: float) -> float:
        """Returns the bytes of examples with `of_piece` numbers for each token."""
        size = 4 if step.dtype == "float32" else 2
        return examples * self.of_example * (
            self.filled * self.length * size * of_piece
            + 2 * 4 * self.predictions * config.vocab_size)


def check_memory(config: AlbertConfig, trained: bool, step: StepOptions = StepOptions(),
                 batches: Mapping[str, tuple[int, int, Sequences]] = {}) -> None:
    """Raises InputError if the model, with gradients and moments if it is `trained`, or
    one of `batches` does not fit into memory: the name of a size's flag → the size, how
    many of its examples this process computes at once, and what they are."""
    parameters = count_parameters(config).with_heads
    needed, free = 4 * parameters * (4 if trained else 1), parallel.available_memory()
    if needed > free:
        raise InputError(
            f"the model has {parameters:,} parameters, which need {amount(needed)} of "
            "memory" + " with gradients and the optimizer's moments" * trained
            + f", but {amount(free)} are free; use a smaller model (--model, "
            "--albert_config_file, --config_overrides) or a larger machine.")
    for name, (size, examples, sequences) in batches.items():
        of_batch = (training_memory if name == "train_batch_size" else
                    evaluation_memory)(config, step, examples, sequences)
        if needed + of_batch > free:
            raise InputError(
                f"--{name}={size}: {examples * sequences.of_example} sequences of "
                f"{sequences.length:.0f} tokens at once need at least "
                f"{amount(of_batch)} of memory, the model {amount(needed)}, but "
                f"{amount(free)} are free; use a larger --gradient_accumulation_steps, "
                "--recompute, --dtype=bfloat16 or a smaller batch.")


def training_memory(config: AlbertConfig, step: StepOptions, examples: int,
                    sequences: Sequences) -> float:
    """Returns the bytes of the activations of one part of a batch."""
    hidden = config.hidden_size
    # One layer holds for each token: queries, keys, values, their context, two sums and
    # their normalizations, the feed-forward part before and after its activation, and
    # attention. Measured runs needed half as much again for gradients and dropout.
    layer = 1.5 * (8 * hidden + 2 * config.intermediate_size
                   + config.num_attention_heads * sequences.length)
    count = config.num_hidden_layers * config.inner_group_num
    numbers = count * hidden + layer if step.recompute else count * layer
    return sequences.memory(examples, config, step, numbers)


def evaluation_memory(config: AlbertConfig, step: StepOptions, examples: int,
                      sequences: Sequences) -> float:
    """Returns the bytes of the activations of a batch, freed after each layer."""
    hidden = config.hidden_size
    return sequences.memory(examples, config, step, max(
        5 * hidden + config.num_attention_heads * sequences.length,
        hidden + 2 * config.intermediate_size, hidden * sequences.vectors))
