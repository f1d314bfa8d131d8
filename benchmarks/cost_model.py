r"""Estimates what a training step costs: operations, bytes, time, communication.

    python -m benchmarks.cost_model
    python -m benchmarks.cost_model --sequences=32 --max_seq_length=128 --replicas=8

This is arithmetic, not a measurement. Each matrix product of a step takes its operations
at the chip's peak or its memory traffic, whichever is longer (a roofline). Element-wise
parts count as fused into the products beside them, as XLA does, and take no time. The
optimizer reads and writes its state once. Replicas sum gradients by a ring all-reduce,
which sends and receives 2 (N - 1) / N times their bytes and overlaps with nothing. The
time is therefore a lower bound.

The estimate illustrates section 3.1 of the paper: sharing keeps the operations but reduces
the parameters, and with them the optimizer's state and what replicas send. The column
"paper" holds the speed measured in the paper's table 2, BERT-large = 1.
"""

import dataclasses
from typing import Iterator, NamedTuple

from absl import flags

from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.modeling.parameter_count import count_parameters

FLAGS = flags.FLAGS

flags.DEFINE_integer("sequences", 64, "Sequences per step on each chip.", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 512, "Tokens in a sequence.", lower_bound=1)
flags.DEFINE_integer("max_predictions_per_seq", 77, "Masked tokens in a sequence.",
                     lower_bound=1)
flags.DEFINE_integer("replicas", 64, "Number of chips.", lower_bound=1)
flags.DEFINE_bool("recompute", False, "Compute layers again in the backward pass.")

# Pretraining speed in table 2 of the paper.
PAPER_SPEED = {"bert-base": 4.7, "bert-large": 1.0, "base": 5.6, "large": 1.7,
               "xlarge": 0.6, "xxlarge": 0.3}
_BYTES = 2  # bfloat16
_GRADIENT_BYTES = 4
# LAMB reads weight, gradient and both moments, and writes weight and moments (float32).
_OPTIMIZER_BYTES = 4 * (4 + 3)


class Chip(NamedTuple):
    """The data sheet of a chip.

    Attributes:
      name: name of the chip.
      flops: dense operations per second in bfloat16.
      memory: bytes per second.
      network: bytes per second that one chip sends while it receives as many.
    """

    name: str
    flops: float
    memory: float
    network: float


# Bytes per second that a TPU chip sends while it receives as many, from Google's pages on
# TPU v3 (all-reduce of a pod, 340 TB/s over 1,024 chips) and v5e (1,600 Gbit/s).
NETWORKS = {"v3": 340e12 / 1024 / 2, "v5e": 1600e9 / 8 / 2}
# Dollars an hour for a chip on demand, in us-east1 (v3) and us-central1 (v5e): Google's
# list as SkyPilot fetches it (skypilot-org/skypilot-catalog on GitHub, commit 017e250,
# catalogs/v7/gcp/vms.csv: 512.0 for tpu-v3-512, 76.8 for tpu-v5litepod-64). Other regions
# cost up to 30 % more.
PRICES = {"v3": 2.00, "v5e": 1.20}
CHIPS = (
    Chip("TPU v3", 123e12, 900e9, NETWORKS["v3"]),
    # NVIDIA H100 data sheet, SXM; NVLink's 900 GB/s count both directions.
    Chip("H100", 989.4e12, 3.35e12, 450e9),
)


class Product(NamedTuple):
    """A group of `count` products [rows, inner] × [inner, columns] of the forward pass."""

    rows: int
    inner: int
    columns: int
    count: int = 1

    @property
    def flops(self) -> float:
        """Returns multiplications and additions."""
        return 2.0 * self.rows * self.inner * self.columns * self.count

    @property
    def bytes(self) -> float:
        """Returns the memory traffic: both operands and the result, once each."""
        return _BYTES * self.count * (
            self.rows * self.inner + self.inner * self.columns
            + self.rows * self.columns)


@dataclasses.dataclass(frozen=True)
class Batch:
    """The work of one chip in a step."""

    sequences: int
    length: int
    predictions: int


def layer_products(config: AlbertConfig, batch: Batch) -> Iterator[Product]:
    """Returns the forward products of all layers."""
    tokens, hidden = batch.sequences * batch.length, config.hidden_size
    layers = config.num_hidden_layers * config.inner_group_num
    heads = config.num_attention_heads
    yield Product(tokens, hidden, 3 * hidden, layers)  # query, key, value
    attention = layers * batch.sequences * heads
    yield Product(batch.length, hidden // heads, batch.length, attention)  # q · kᵀ
    yield Product(batch.length, batch.length, hidden // heads, attention)  # · v
    yield Product(tokens, hidden, hidden, layers)  # output
    yield Product(tokens, hidden, config.intermediate_size, layers)
    yield Product(tokens, config.intermediate_size, hidden, layers)


def other_products(config: AlbertConfig, batch: Batch) -> Iterator[Product]:
    """Returns the forward products outside the layers."""
    tokens, hidden = batch.sequences * batch.length, config.hidden_size
    if config.embedding_size != hidden:
        yield Product(tokens, config.embedding_size, hidden)
    yield Product(batch.sequences, hidden, hidden)  # pooler
    predicted = batch.sequences * batch.predictions
    yield Product(predicted, hidden, config.embedding_size)
    yield Product(predicted, config.embedding_size, config.vocab_size)


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The cost of one step on one chip.

    Attributes:
      parameters: number of trained parameters.
      flops: operations, including recomputation.
      bytes: memory traffic, including the optimizer.
      sent: bytes that the chip sends to others.
      compute_seconds, network_seconds: bounds from the data sheet.
    """

    parameters: int
    flops: float
    bytes: float
    sent: float
    compute_seconds: float
    network_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.network_seconds


def exchange_bytes(config: AlbertConfig, replicas: int) -> float:
    """Returns what each of the replicas sends to sum the gradients around a ring."""
    return (2 * (replicas - 1) / replicas * count_parameters(config).with_heads
            * _GRADIENT_BYTES)


def step_cost(config: AlbertConfig, batch: Batch, chip: Chip, replicas: int,
              recompute: bool = False) -> StepCost:
    """Returns the cost of a training step of the whole pretraining model.

    The backward pass of a product consists of two products of the same size. Recomputation
    (gradient checkpointing) makes the products of the layers once more.

    Args:
      config: the model's shape.
      batch: the work of one chip.
      chip: its data sheet.
      replicas: number of chips that sum their gradients.
      recompute: whether layers are computed again.
    """
    flops = num_bytes = seconds = 0.0
    for products, times in ((layer_products(config, batch), 4 if recompute else 3),
                            (other_products(config, batch), 3)):
        for product in products:
            flops += times * product.flops
            num_bytes += times * product.bytes
            seconds += times * max(
                product.flops / chip.flops, product.bytes / chip.memory)
    parameters = count_parameters(config).with_heads
    optimizer = parameters * _OPTIMIZER_BYTES
    sent = exchange_bytes(config, replicas)
    return StepCost(parameters, flops, num_bytes + optimizer, sent,
                    seconds + optimizer / chip.memory, sent / chip.network)


def print_chip(chip: Chip, batch: Batch, replicas: int, recompute: bool) -> None:
    costs = {name: step_cost(AlbertConfig.named(name), batch, chip, replicas, recompute)
             for name in ("bert-base", "bert-large", "bert-xlarge", "base", "large",
                          "xlarge", "xxlarge")}
    reference = costs["bert-large"].seconds
    print(f"\n{chip.name}: {batch.sequences} x {batch.length} a chip, "
          f"{replicas} chips, bfloat16{', recomputing' if recompute else ''}\n")
    print(f"{'':12}{'parameters':>11}{'TFLOP':>8}{'GB':>7}{'compute ms':>12}"
          f"{'sent MB':>9}{'network ms':>12}{'sequences/s':>13}"
          f"{'speed':>7}{'paper':>7}")
    for name, cost in costs.items():
        rate = batch.sequences * replicas / cost.seconds
        print(f"{name:12}{cost.parameters / 1e6:10.1f}M{cost.flops / 1e12:8.1f}"
              f"{cost.bytes / 1e9:7.1f}{1e3 * cost.compute_seconds:12.1f}"
              f"{cost.sent / 1e6:9.0f}{1e3 * cost.network_seconds:12.2f}{rate:13,.0f}"
              f"{reference / cost.seconds:7.2f}{PAPER_SPEED.get(name, ''):>7}")


def main(_):
    batch = Batch(FLAGS.sequences, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    for chip in CHIPS:
        print_chip(chip, batch, FLAGS.replicas, FLAGS.recompute)


if __name__ == "__main__":
    script.run(main)
