"""The options of a run and of its steps, and the memory that these need, without
TensorFlow."""

import dataclasses
from typing import Any, Mapping, NamedTuple

from albert_tf.config import DTYPES, AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount
from albert_tf.modeling.parameter_count import count_parameters
from albert_tf.options import check, option

OPTIMIZERS = ["lamb", "adamw"]


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How a training step is computed.

        StepOptions(gradient_accumulation_steps=4, dtype="bfloat16")
    """

    gradient_accumulation_steps: int = option(
        1, "Number of parts in which each replica computes its share of a batch, one "
        "after the other. Each part needs less memory; the step stays the same. A signal "
        "stops the run between two parts, but with --jit_compile after the step, and on "
        "TPUs after --iterations_per_loop steps. --train_batch_size must be a multiple "
        "of this times the number of replicas.", least=1, needs="do_train")
    random_seed: int = option(
        12345, "Seed for initial weights, order of the data, masks and dropout.")
    clip_norm: float = option(
        1.0, "Maximum global norm of a step's gradients; larger ones are scaled down.",
        least=1e-6, needs="do_train")
    replica_gradients: str = option(
        "mean", "How gradients of replicas are combined. mean: as if one replica "
        "computed the whole batch, so that results do not depend on the number of "
        "replicas. sum, as the original implementation does on TPUs: each replica "
        "divides its loss by its own weights and clips its own gradients, which are then "
        "summed.", choices=["mean", "sum"], needs="do_train")
    count_duplicate_rows: bool = option(
        False, "In the gradient norm, count an embedding row once for each occurrence of "
        "its token, as the original implementation does on CPU and GPU. The default is "
        "what it does on TPUs.", flag="sparse_gradient_norm", needs="do_train",
        only_with="gradient_accumulation_steps=1")
    jit_compile: bool = option(
        False, "Compile the training step with XLA. On TPUs it always is.",
        needs="do_train")
    dtype: str = option(
        "float32", "Type of the layers' matrix products and activations. Variables, "
        "LayerNorm, softmax, losses and the optimizer stay float32. float16, for GPUs "
        "without bfloat16, uses dynamic loss scaling: steps whose gradients overflow are "
        "skipped and counted.", choices=list(DTYPES))
    recompute: bool = option(
        False, "Save memory: keep only the input of each layer for the backward pass, "
        "which computes the rest again. The result is the same. On a CPU a step of "
        "ALBERT-base takes about a third longer with half the memory. On TPUs, by an "
        "estimate, it takes 45 % longer with a fifth to a third of the memory, and the "
        "program has a third to a sixth of its size, because the layers are compiled as "
        "a loop.", needs="do_train")

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run: when it saves, evaluates and stops, and where it starts.

        RunOptions("runs/base", num_train_steps=125000, train_batch_size=4096,
                   init_checkpoint="albert_base/model.ckpt-best")

    `early_stopping` goes by the task's best_metric.
    """

    output_dir: str = option(
        None, "Folder for checkpoints, metrics and learning curves.", required=True)
    num_train_steps: int = 0
    train_batch_size: int = option(
        32, "Number of sequences in a training step, over all replicas.", least=1,
        needs="do_train")
    eval_batch_size: int = option(
        64, "Number of sequences in an evaluation batch, over all replicas.", least=1,
        needs="do_eval eval_input_file")
    iterations_per_loop: int = option(
        1000, "Number of steps between two rows of training metrics. On TPUs this many "
        "steps run on the device before the host looks at them.", least=1,
        needs="do_train")
    save_checkpoints_steps: int = option(
        5000, "Number of steps between two checkpoints; each is evaluated if there is "
        "evaluation data.", least=1, needs="do_train")
    keep_checkpoint_max: int = option(
        5, "How many of the most recent checkpoints to keep; 0 keeps all. The best is "
        "also kept, as model.ckpt-best.", needs="do_train")
    resume_from: str = option(
        "", "Step or path of a checkpoint in --output_dir to resume from or to evaluate, "
        "instead of the latest or the best one; for example if that is damaged.")
    init_checkpoint: str = option(
        None, "Model to start from if --output_dir holds no checkpoint: a checkpoint or "
        "folder of this project, of Google's TF1 code, of Hugging Face, KerasHub or TF "
        "Model Garden, a TensorFlow Hub module, hf://OWNER/NAME or kaggle://HANDLE. Its "
        "configuration and vocabulary are used unless flags give others.")
    init_from_group0: bool = option(
        False, "Initialize every group of layers from group 0 of --init_checkpoint.",
        only_with="init_checkpoint")
    allow_partial_init: bool = option(
        False, "Start even if variables of --init_checkpoint do not match the model; "
        "those without a match keep their random initial values.",
        needs="init_checkpoint")
    from_scratch: bool = option(
        True, "Train from random weights. Without this flag, the run stops if it has "
        "neither --init_checkpoint nor a checkpoint in --output_dir.", needs="do_train")
    early_stopping: int = option(
        0, "Stop training after N consecutive evaluations without improvement; 0: "
        "never.", needs="do_train", only_with="do_eval")
    step: StepOptions = StepOptions()

    def kept(self) -> dict[str, Any]:
        """Returns all options in one flat dict, for options.json in output_dir."""
        flat = dataclasses.asdict(self)
        step = flat.pop("step")
        del flat["resume_from"]  # It concerns one start only.
        # Written only if they differ from the original implementation.
        for name in ("dtype", "replica_gradients"):
            if step[name] == getattr(StepOptions, name):
                del step[name]
        return {**flat, **step}


def check_batch_sizes(options: RunOptions, num_replicas: int, train: bool = True,
                      evaluate: bool = True) -> None:
    """Raises InputError if a batch cannot be divided evenly among replicas and
    parts."""
    parts = options.step.gradient_accumulation_steps
    for name, size, divisor, used in (
            ("train_batch_size", options.train_batch_size, num_replicas * parts, train),
            ("eval_batch_size", options.eval_batch_size, num_replicas, evaluate)):
        if used and (size < 1 or size % divisor):
            raise InputError(
                f"--{name} {size} must be a positive multiple of {divisor}, the number of "
                "replicas, in training times --gradient_accumulation_steps; give, for "
                f"example, --{name}={max(-(-size // divisor), 1) * divisor}.")


# ---- memory ----------------------------------------------------------------

# What is computed is the least: measured runs (benchmarks/memory.py) needed up to twice as
# much, and more with masked tokens. A run that is refused would run out of memory.


class Sequences(NamedTuple):
    """The sequences of a batch."""

    length: float  # the average, in tokens
    filled: float = 0.5  # share of it that is not padding, which the layers leave out
    predictions: int = 0  # masked tokens in each sequence
    vectors: int = 0  # of the encoder's width, that a head computes for each token
    of_example: int = 1  # number of sequences in each example

    def memory(self, config: AlbertConfig, step: StepOptions, examples: int,
               trained: bool) -> float:
        """Returns the bytes of the activations of examples: those of one part of a
        training batch, or an evaluation batch, whose layers are freed one by one."""
        hidden, inner = config.hidden_size, 2 * config.intermediate_size
        attention = config.num_attention_heads * self.length
        # Numbers for each token.
        if trained:
            # One layer holds queries, keys, values, their context, two sums and their
            # normalizations, the feed-forward part before and after its activation, and
            # attention. Measured runs needed half as much again for gradients and
            # dropout.
            layer = 1.5 * (8 * hidden + inner + attention)
            count = config.num_hidden_layers * config.inner_group_num
            numbers = count * hidden + layer if step.recompute else count * layer
        else:
            numbers = max(5 * hidden + attention, hidden + inner, hidden * self.vectors)
        size = 4 if step.dtype == "float32" else 2
        return examples * self.of_example * (
            self.filled * self.length * size * numbers
            + 2 * 4 * self.predictions * config.vocab_size)


def check_memory(config: AlbertConfig, trained: bool, step: StepOptions = StepOptions(),
                 batches: Mapping[str, tuple[int, int, Sequences]] = {}) -> None:
    """Raises InputError if the model, with gradients and moments if it is `trained`, or
    one of `batches` does not fit into memory: the name of a size's flag → the size, how
    many of its examples this process computes at once, and what they are."""
    parameters = count_parameters(config)["with heads"]
    needed, free = 4 * parameters * (4 if trained else 1), parallel.available_memory()
    if needed > free:
        raise InputError(
            f"the model has {parameters:,} parameters, which need {amount(needed)} of "
            "memory" + " with gradients and the optimizer's moments" * trained
            + f", but {amount(free)} are free; use a smaller model (--model, "
            "--albert_config_file, --config_overrides) or a larger machine.")
    for name, (size, examples, sequences) in batches.items():
        of_batch = sequences.memory(
            config, step, examples, trained=name == "train_batch_size")
        if needed + of_batch > free:
            raise InputError(
                f"--{name}={size}: {examples * sequences.of_example} sequences of "
                f"{sequences.length:.0f} tokens at once need at least "
                f"{amount(of_batch)} of memory, the model {amount(needed)}, but "
                f"{amount(free)} are free; use a larger --gradient_accumulation_steps, "
                "--recompute, --dtype=bfloat16 or a smaller batch.")
