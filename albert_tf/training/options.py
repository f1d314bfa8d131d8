"""How a run goes and how its steps are computed. No TensorFlow."""

import dataclasses
from typing import Any

from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How a training step is computed.

        StepOptions(gradient_accumulation_steps=4, dtype="bfloat16")

    Attributes:
      gradient_accumulation_steps: parts in which each replica computes its batch;
        memory falls, and the result is that of the whole batch.
      random_seed: of dropout.
      clip_norm: largest global norm of the gradients.
      replica_gradients: "mean": the replicas compute one step of the whole batch; "sum":
        each clips the gradients of its own mean loss, and their sum is applied, as the
        release on TPU.
      count_duplicate_rows: the norm counts the rows of an embedding gradient apart
        where a piece occurs twice, as the release does on CPU and GPU.
      jit_compile: compile the step with XLA. TPUs always do.
      dtype: of the layers' products and activations, one of DTYPES; variables, losses
        and the optimizer's state are float32. float16 takes loss scaling.
      recompute: the backward pass computes each layer once more instead of keeping its
        activations; memory falls, and the result is the same.
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
    """When a run saves, evaluates and stops, and what it starts from.

        RunOptions("runs/base", num_train_steps=125000, train_batch_size=4096,
                   init_checkpoint="albert_base/model.ckpt-best")

    Attributes:
      train_batch_size, eval_batch_size: sequences per step, all replicas together.
      iterations_per_loop: steps between two rows of training metrics.
      save_checkpoints_steps: steps between two checkpoints, and evaluations.
      keep_checkpoint_max: latest checkpoints to keep; 0 keeps all.
      resume_from: step or path of the checkpoint of output_dir to resume at, or to
        evaluate, in place of the latest or best.
      init_checkpoint: "" starts from random weights.
      init_from_group0: copy its group 0 into every group.
      allow_partial_init: start even where names or shapes do not match.
      from_scratch: whether random weights will do where there is nothing to start from.
      early_stopping: end after so many evaluations in a row without a new best of the
        task's best_metric; 0 never does.
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
        # Steps are counted in 32 bits where seeds are made of them.
        if self.num_train_steps >= 2 ** 31:
            raise InputError(
                f"num_train_steps is {self.num_train_steps}; give fewer than 2^31 "
                "steps, or epochs that make no more.")

    def kept(self) -> dict[str, Any]:
        """All of them on one level, as options.json of output_dir has them."""
        flat = dataclasses.asdict(self)
        step = flat.pop("step")
        del flat["resume_from"]  # of one start alone
        # Folders of earlier versions have no such entries.
        for name in ("dtype", "replica_gradients"):
            if step[name] == getattr(StepOptions, name):
                del step[name]
        return {**flat, **step}


def check_batch_sizes(options: RunOptions, num_replicas: int, train: bool = True,
                      evaluate: bool = True) -> None:
    """Raises InputError where a batch does not divide over replicas and parts."""
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
                + (f" times --gradient_accumulation_steps ({parts})."
                   if divisor != num_replicas else "."))
