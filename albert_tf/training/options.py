"""The options of a run and of its steps, without TensorFlow."""

import dataclasses
from typing import Any

from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How a training step is computed.

        StepOptions(gradient_accumulation_steps=4, dtype="bfloat16")

    Attributes:
      gradient_accumulation_steps: number of parts in which each replica computes its
        batch; needs less memory, with the same result.
      random_seed: seed of dropout.
      clip_norm: maximum global norm of the gradients.
      replica_gradients: "mean": the replicas compute one step of the whole batch;
        "sum": each replica clips the gradients of its own mean loss, and their sum is
        applied, as in the original implementation on TPU.
      count_duplicate_rows: if a token occurs twice, the gradient norm counts its
        embedding rows separately, as in the original implementation on CPU and GPU.
      jit_compile: compiles the step with XLA; TPUs always do.
      dtype: type of the layers' matrix products and activations, one of DTYPES;
        variables, losses and the optimizer's state are float32. float16 uses loss
        scaling.
      recompute: the backward pass computes each layer again instead of keeping its
        activations; needs less memory, with the same result.
    """

    gradient_accumulation_steps: int = 1
    random_seed: int = 12345
    clip_norm: float = 1.0
    replica_gradients: str = "mean"
    count_duplicate_rows: bool = False
    jit_compile: bool = False
    dtype: str = "float32"
    recompute: bool = False


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of a run: when it saves, evaluates and stops, and where it starts.

        RunOptions("runs/base", num_train_steps=125000, train_batch_size=4096,
                   init_checkpoint="albert_base/model.ckpt-best")

    Attributes:
      train_batch_size, eval_batch_size: sequences per step, all replicas together.
      iterations_per_loop: steps between two rows of training metrics.
      save_checkpoints_steps: steps between two checkpoints and their evaluations.
      keep_checkpoint_max: number of the most recent checkpoints to keep; 0 keeps all.
      resume_from: step or path of the checkpoint in output_dir to resume from or to
        evaluate, in place of the latest or best.
      init_checkpoint: checkpoint to start from; "" starts from random weights.
      init_from_group0: copies the checkpoint's group 0 into every group.
      allow_partial_init: starts even if names or shapes do not match.
      from_scratch: allows random weights if there is no checkpoint to start from.
      early_stopping: stops after this many evaluations in a row without a new best
        value of the task's best_metric; 0 never stops.
    """

    output_dir: str
    num_train_steps: int
    train_batch_size: int
    eval_batch_size: int = 64
    iterations_per_loop: int = 1000
    save_checkpoints_steps: int = 5000
    keep_checkpoint_max: int = 5
    resume_from: str = ""
    init_checkpoint: str = ""
    init_from_group0: bool = False
    allow_partial_init: bool = False
    from_scratch: bool = True
    early_stopping: int = 0
    step: StepOptions = StepOptions()

    def __post_init__(self):
        # Seeds use the step as a 32-bit number.
        if self.num_train_steps >= 2 ** 31:
            raise InputError(
                f"num_train_steps is {self.num_train_steps}; give fewer than 2^31 "
                "steps, or fewer epochs.")

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
    if parts < 1:
        raise InputError(
            f"--gradient_accumulation_steps is {parts}; it must be 1 or more.")
    for name, size, divisor, used in (
            ("train_batch_size", options.train_batch_size, num_replicas * parts, train),
            ("eval_batch_size", options.eval_batch_size, num_replicas, evaluate)):
        if used and (size < 1 or size % divisor):
            raise InputError(
                f"--{name} {size} must be a positive multiple of {divisor}, the "
                f"number of replicas ({num_replicas})"
                + (f" times --gradient_accumulation_steps ({parts}); give "
                   f"{_fitting_parts(size, num_replicas, parts)}" if divisor
                   != num_replicas else "; give ")
                + f"--{name}={max(-(-size // divisor), 1) * divisor}.")


def _fitting_parts(size: int, num_replicas: int, parts: int) -> str:
    """Returns the flag with a number of parts that divides a batch, if there is one:
    as many sequences in a part as one replica would have, or else a few more."""
    of_replica, rest = divmod(size, num_replicas)
    if rest or not of_replica:
        return ""
    fitting = parts // num_replicas
    if parts % num_replicas or not fitting or of_replica % fitting:
        fitting = max(count for count in range(1, min(parts, of_replica) + 1)
                      if not of_replica % count)
    return f"--gradient_accumulation_steps={fitting} or "
