"""Flags of the model, of devices and of the training loop, turned into frozen options.

Only the scripts and this folder know absl flags.
"""

import dataclasses
import os
from typing import Any, Optional, Sequence

from absl import flags, logging

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import (
    chosen_checkpoint, find_checkpoint, folder_of, holds_checkpoint)
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.config import AlbertConfig, CONFIG_FILE, DTYPES, NAMED, SHARING
from albert_tf.errors import InputError
from albert_tf.training import devices, memory
from albert_tf.training.memory import PlannedBatch, Sequences
from albert_tf.training.options import (
    RunOptions, StepOptions, check_batch_sizes)

FLAGS = flags.FLAGS

# Steps, sizes and counts: TensorFlow holds them in 32 bits.
MOST = 2 ** 31 - 1
TEACHER_NUMBERS = ("teacher_weight", "temperature", "teacher_hidden_weight")


class Number(flags.FloatParser):
    """For flags.DEFINE: a finite number within bounds, `below` not among them; absl's
    own parser lets nan pass any."""

    def __init__(self, upper_bound: float = 1e38, below: Optional[float] = None,
                 lower_bound: float = 0.0):
        super().__init__(lower_bound, upper_bound)
        self._below = below
        if below is not None:
            self.syntactic_help = f"a number of at least 0 and below {below:g}"

    def is_outside_bounds(self, val: float) -> bool:
        return not self.lower_bound <= val <= self.upper_bound or (
            self._below is not None and val >= self._below)


# ---- the model --------------------------------------------------------------


def define_model_flags() -> None:
    """--albert_config_file, --model, --config_overrides."""
    flags.DEFINE_string(
        "albert_config_file", None,
        "JSON file with the model's shape, as the released checkpoints have it.")
    flags.DEFINE_enum(
        "model", None, list(NAMED),
        "A published size by name, in place of --albert_config_file. The bert-* "
        "sizes share nothing and do not factorize the embeddings (Table 1 of the "
        "paper).")
    flags.DEFINE_list(
        "config_overrides", [],
        "Values of the config to change, as field=value,field=value. The paper's "
        "Table 3: embedding_size=64 (128, 256, 768); its Table 4: "
        f"parameter_sharing={'|'.join(SHARING)}. "
        "Own vocabulary: vocab_size=21128.")


def model_config(kept: Sequence[str] = ()) -> AlbertConfig:
    """The config that the model flags describe.

    Args:
      kept: files to take the first of that is there, where no flag is given.
    """
    if FLAGS.albert_config_file and FLAGS.model or not (
            FLAGS.albert_config_file or FLAGS.model or kept or initial_model()):
        raise InputError(
            "give either --albert_config_file=FILE or --model=NAME, one of "
            f"{', '.join(NAMED)}.")
    if FLAGS.model:
        return _with_overrides(AlbertConfig.named(FLAGS.model))
    path = FLAGS.albert_config_file or next(filter(files.exists, kept), None)
    if not path and (found := initial_model()):
        # A head that needs a pooler starts with a new one.
        return _with_overrides(found.config.replace(use_pooler=True))
    if not path:
        raise InputError(
            "give the model's config: --albert_config_file=FILE or --model=NAME; "
            f"neither --output_dir nor --init_checkpoint has an {CONFIG_FILE}.")
    return _with_overrides(AlbertConfig.from_json_file(path))


def _with_overrides(config: AlbertConfig) -> AlbertConfig:
    changes = config_overrides()
    try:
        return config.replace(**changes)
    except InputError as error:
        raise InputError(f"--config_overrides: {error}") from error


def check_memory(config: AlbertConfig, options: Optional[RunOptions] = None,
                 rows: int = 0, **batches: Sequences) -> None:
    """training.memory.check_memory by the flags; with `options` also for `batches`: the
    flag of their size → what they consist of. `rows` are those of a part of a batch, if
    not by the flag."""
    here = not (FLAGS.tpu or FLAGS.tpu_name or FLAGS.use_tpu
                or FLAGS.distribution_strategy == "tpu" or parallel.has_accelerator())
    planned = {}
    if options is not None and here:
        workers = max(1, known_replicas() // (FLAGS.num_virtual_cpus or 1))
        for name, sequences in batches.items():
            parts = (options.step.gradient_accumulation_steps
                     if name == "train_batch_size" else 1)
            planned[name] = PlannedBatch(
                FLAGS[name].value, (rows or FLAGS[name].value // parts) // workers,
                sequences)
    memory.check_memory(config, here and FLAGS.do_train,
                        options.step if options else StepOptions(), planned)


def config_overrides() -> dict[str, str]:
    """The values of --config_overrides."""
    changes = {}
    for change in FLAGS.config_overrides:
        name, equals, value = change.partition("=")
        if not equals:
            raise InputError(
                f"--config_overrides: '{change}' is not of the form field=value.")
        changes[name.strip()] = value.strip()
    return changes


# ---- devices ----------------------------------------------------------------


def define_device_flags() -> None:
    """--tpu, --distribution_strategy, --num_gpus, --num_virtual_cpus and old names
    of --tpu."""
    flags.DEFINE_string(
        "tpu", None,
        "Name or address of a Cloud TPU, or 'local'; trains through TPUStrategy.")
    flags.DEFINE_enum(
        "distribution_strategy", "one_device",
        ["one_device", "mirrored", "multi_worker_mirrored", "tpu"],
        "Replicas: one_device (CPU, or one GPU), mirrored (GPUs of this machine), "
        "multi_worker_mirrored (several machines; the environment variable "
        "TF_CONFIG lists them), tpu (as --tpu).")
    flags.DEFINE_integer(
        "num_gpus", None,
        "GPUs to use on this machine. Default: one if there is one for one_device, "
        "all for mirrored.", lower_bound=0, upper_bound=MOST)
    flags.DEFINE_integer(
        "num_virtual_cpus", 0,
        "Splits the CPU into so many devices and mirrors the model over them: for "
        "trying out replicas where there is no accelerator.",
        lower_bound=0, upper_bound=1024)
    flags.DEFINE_bool("use_tpu", False, "As in the release; --tpu is enough.")
    flags.DEFINE_string("tpu_name", None, "As in the release: the same as --tpu.")
    for name in ("use_tpu", "tpu_name"):
        FLAGS[name].help += _OLD


_OLD = " (Kept for old command lines.)"
# Flags of the release's scripts that say nothing now → why.
_WITHOUT_EFFECT = {
    "tpu_zone": "it is taken from the environment",
    "gcp_project": "it is taken from the environment",
    "master": "--tpu takes the address of a TPU",
    "num_tpu_cores": "all cores of the TPU are used",
    "use_einsum": "the products are the same",
}


def define_old_flags() -> None:
    """Flags of the release that are understood, with a warning."""
    for name, why in _WITHOUT_EFFECT.items():
        # Some are written without a value.
        define = flags.DEFINE_bool if name == "use_einsum" else flags.DEFINE_string
        define(name, None, f"As in the release; without effect: {why}." + _OLD)
    flags.DEFINE_string("albert_hub_module_handle", None, "As in the release: the same "
                        "as --init_checkpoint." + _OLD)
    flags.DEFINE_integer(
        "num_keep_checkpoint", None, "As in the release: the same as "
        "--keep_checkpoint_max." + _OLD, lower_bound=0, upper_bound=MOST)


def use_old_flags() -> None:
    """Warns of old flags without effect, and takes others for their new names."""
    for name, why in _WITHOUT_EFFECT.items():
        if FLAGS[name].present:
            logging.warning("--%s=%s has no effect: %s.", name, FLAGS[name].value, why)
    if FLAGS.albert_hub_module_handle and FLAGS["init_checkpoint"].present:
        logging.warning("--albert_hub_module_handle=%s has no effect: --init_checkpoint "
                        "is given.", FLAGS.albert_hub_module_handle)
    count = FLAGS.num_keep_checkpoint
    if count is not None:
        logging.warning("--num_keep_checkpoint is called --keep_checkpoint_max now.")
        if not FLAGS["keep_checkpoint_max"].present:
            FLAGS.keep_checkpoint_max = count


def make_strategy():
    """The tf.distribute strategy that the device flags describe."""
    tpu = FLAGS.tpu if FLAGS.tpu is not None else FLAGS.tpu_name
    name = FLAGS.distribution_strategy if tpu is None else "tpu"
    if tpu is None and (name == "tpu" or FLAGS.use_tpu):
        raise InputError("give the TPU's name or address: --tpu=NAME, or --tpu=local.")
    return devices.make_strategy(
        name, tpu, FLAGS.num_gpus, FLAGS.num_virtual_cpus)


# ---- the loop ---------------------------------------------------------------


def define_training_flags(**defaults: Any) -> None:
    """Flags of the loop that every task shares; the defaults are the task's."""
    define_old_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder of checkpoints, metrics and curves.")
    flags.DEFINE_string(
        "resume_from", "",
        "Checkpoint of --output_dir, by its step or path, to resume at or to evaluate, "
        "in place of the latest or best: where that is damaged, say.")
    flags.DEFINE_string(
        "init_checkpoint", None,
        "Model to start from where output_dir holds none: a checkpoint or folder of the "
        "TF1 release, of this project, of Hugging Face, keras-hub or tf-models, a "
        "SavedModel or TensorFlow Hub module, hf://OWNER/NAME or kaggle://HANDLE. Its "
        "config and vocabulary are used where no flag gives others.")
    flags.DEFINE_bool(
        "allow_partial_init", False,
        "Start even where names or shapes of --init_checkpoint do not match the "
        "model: what does not match keeps its random values.")
    flags.DEFINE_integer(
        "train_batch_size", defaults["train_batch_size"],
        "Sequences per step, all replicas together.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "eval_batch_size", defaults["eval_batch_size"],
        "Sequences per evaluation batch, all replicas together.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "gradient_accumulation_steps", 1,
        "Parts in which each replica computes its batch: with 64, a batch of 4096 "
        "needs the memory of one of 64, and gives the same step.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_enum("optimizer", defaults["optimizer"], ["lamb", "adamw"],
                      "Optimizer, without bias correction, as in the release.")
    flags.DEFINE(Number(), "learning_rate", defaults["learning_rate"],
                 "Learning rate at the end of warm-up.")
    flags.DEFINE_integer("save_checkpoints_steps", defaults["save_checkpoints_steps"],
                         "Steps between two checkpoints, and evaluations.",
                         lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer("keep_checkpoint_max", 5,
                         "Latest checkpoints to keep; 0 keeps all. The best is kept "
                         "beside them as model.ckpt-best.",
                         lower_bound=0, upper_bound=MOST)
    flags.DEFINE_integer(
        "iterations_per_loop", 1000,
        "Steps between two rows of training metrics; on TPUs, steps that run on "
        "the device without the host.", lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "random_seed", 12345,
        "Fixes initial weights, the order of the data, masks and dropout.",
        lower_bound=0, upper_bound=MOST)
    flags.DEFINE(Number(), "clip_norm", 1.0,
                 "Largest global norm of a step's gradients.")
    flags.DEFINE_enum(
        "replica_gradients", "mean", ["mean", "sum"],
        "How replicas join their gradients. mean: as one replica would compute the "
        "whole batch, so that results do not depend on their number; sum, as the release "
        "on TPUs: each divides its loss by its own weights and clips its own gradients, "
        "which are summed, so that the optimizer's epsilon counts less.")
    flags.DEFINE_bool(
        "sparse_gradient_norm", False,
        "Count the rows of an embedding gradient apart where a piece occurs twice, "
        "as the release does on CPU and GPU. The default is what it does on TPUs.")
    flags.DEFINE_bool("jit_compile", False,
                      "Compile the training step with XLA. TPUs always do.")
    flags.DEFINE_enum(
        "dtype", "float32", list(DTYPES),
        "Type of the layers' matrix products and activations. Variables, LayerNorm, "
        "softmax, losses and the optimizer are float32 all the same. float16 comes "
        "with dynamic loss scaling: steps whose gradient overflows are skipped and "
        "counted. It is for GPUs without bfloat16.")
    flags.DEFINE_bool(
        "recompute", False,
        "Keep each layer's input alone for the backward pass, which computes the rest "
        "again: a third more time, the same result, less memory (ALBERT-base at "
        "4 x 512: half).")


def run_options(**task_options: Any) -> RunOptions:
    """The training flags as a RunOptions, whose fields are called as the flags.

    `task_options` are fields that the task's own flags give otherwise, such as
    num_train_steps.
    """
    if not FLAGS.output_dir:
        raise InputError("--output_dir=FOLDER is needed.")
    use_old_flags()
    _check_folders()
    if not FLAGS.clip_norm:
        raise InputError(f"--clip_norm is {FLAGS.clip_norm}; it must be over 0.")
    if FLAGS.sparse_gradient_norm and FLAGS.gradient_accumulation_steps > 1:
        raise InputError(
            "--sparse_gradient_norm counts the rows of one whole batch, so it does "
            "not go with --gradient_accumulation_steps.")

    def of_flags(options, **given):
        return options(**{
            field.name: FLAGS[field.name].value for field in dataclasses.fields(options)
            if field.name in FLAGS and field.name not in given}, **given)

    options = of_flags(
        RunOptions, init_checkpoint=init_checkpoint(),
        step=of_flags(StepOptions, count_duplicate_rows=FLAGS.sparse_gradient_norm),
        **task_options)
    if options.resume_from:
        chosen_checkpoint(options.output_dir, options.resume_from)
    check_batch_sizes(
        options, known_replicas(), train=FLAGS.do_train,
        evaluate=any(name in FLAGS and FLAGS[name].value
                     for name in ("do_eval", "eval_input_file")))
    return options


def _check_folders() -> None:
    """Refuses to train in the folder of a model that is read: a run writes over what it
    finds there."""
    for name, path in (("init_checkpoint", init_checkpoint()),
                       ("teacher", FLAGS["teacher"].value if "teacher" in FLAGS else "")):
        if path and FLAGS.do_train and os.path.realpath(
                formats.folder_of_model(path)) == os.path.realpath(FLAGS.output_dir):
            raise InputError(
                f"--output_dir={FLAGS.output_dir} is the folder of --{name}, whose files "
                "a run would write over; give a new folder"
                + (", or leave --init_checkpoint out to go on with the run that is "
                   "there." if name == "init_checkpoint" else "."))


def init_checkpoint() -> str:
    """--init_checkpoint, or what stands for it in old command lines; models of a hub
    are fetched once. "" for none."""
    for name in ("init_checkpoint", "albert_hub_module_handle"):
        if name in FLAGS and FLAGS[name].value:
            FLAGS.init_checkpoint = formats.located(FLAGS[name].value)
            return FLAGS.init_checkpoint
    return ""


def initial_model() -> Optional[Checkpoint]:
    """The model of --init_checkpoint where it is in another format than the release's,
    or None."""
    init = init_checkpoint() if "init_checkpoint" in FLAGS else ""
    return formats.read(init) if init and formats.is_foreign(init) else None


def kept_configs() -> list[str]:
    """Configs beside the models that a run goes on from, or starts from."""
    init = init_checkpoint()
    return [os.path.join(folder, CONFIG_FILE) for folder in (
        FLAGS.output_dir or "", folder_of(init) if init else "") if folder]


def check_init_checkpoint() -> None:
    """Raises InputError where --init_checkpoint, if it is needed, is none."""
    init = init_checkpoint()
    # Which is asked without TensorFlow.
    if init and not any(map(holds_checkpoint, (FLAGS.output_dir, init))) and (
            not formats.is_foreign(init)):
        find_checkpoint(init)


def known_replicas() -> int:
    """What the number of replicas is a multiple of, as far as TensorFlow need not say;
    checks the cluster."""
    if FLAGS.distribution_strategy == "multi_worker_mirrored":
        workers = devices.Cluster.from_environment()
        workers.resolve()
        return workers.size * (FLAGS.num_gpus or 1)
    return FLAGS.num_virtual_cpus or 1


# ---- the teacher ------------------------------------------------------------


def define_teacher_flags(teacher: str, what: str) -> None:
    """Flags of training.distillation. `teacher` says what it must be; `what` is learned
    besides its outputs."""
    flags.DEFINE_string(
        "teacher", None, f"{teacher}, in any format that --init_checkpoint takes: what "
        f"it says of each example is learned besides the {what} (distillation). The "
        "same vocabulary, any shape; give fewer layers with "
        "--config_overrides=num_hidden_layers=4 and the teacher itself as "
        "--init_checkpoint for the same weights at fewer passes.")
    flags.DEFINE(
        Number(upper_bound=1), "teacher_weight", 0.5,
        f"The teacher's share of the loss; with 1 the {what} do not count.")
    flags.DEFINE(
        Number(lower_bound=0.01, upper_bound=100), "temperature", 2.0,
        "What the scores of --teacher and model are divided by for the teacher's loss: "
        "the higher, the more unlikely classes count.")
    flags.DEFINE(
        Number(), "teacher_hidden_weight", 0.0,
        "Of the difference of the last hidden states, pooled for a head of sequences, "
        "from those of a --teacher of the same hidden_size; added to the loss.")


def check_teacher() -> None:
    """Raises InputError where flags of distillation would do nothing."""
    if FLAGS.teacher and not FLAGS.do_train:
        raise InputError("--teacher is for training: give --do_train, or leave it out.")
    given = [name for name in TEACHER_NUMBERS if FLAGS[name].present]
    if given and not FLAGS.teacher and FLAGS.do_train:
        raise InputError(f"--{given[0]} is of distillation: give --teacher too, or leave "
                         "it out.")
