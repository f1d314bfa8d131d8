"""Flags for the model, the devices and the training loop, turned into frozen options.

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
from albert_tf.cli import checks, script
from albert_tf.config import AlbertConfig, CONFIG_FILE, DTYPES, NAMED, SHARING
from albert_tf.errors import InputError
from albert_tf.tokenization import hf_tokenizer, tokenizer_json
from albert_tf.training import devices, memory
from albert_tf.training.memory import PlannedBatch, Sequences
from albert_tf.training.options import RunOptions, StepOptions, check_batch_sizes

FLAGS = flags.FLAGS

# The largest step, size or count: TensorFlow holds them in 32 bits.
MOST = 2 ** 31 - 1
# The flags of all scripts that have an effect in training only.
OF_TRAINING = (
    "train_batch_size gradient_accumulation_steps optimizer learning_rate "
    "save_checkpoints_steps keep_checkpoint_max iterations_per_loop clip_norm "
    "replica_gradients sparse_gradient_norm jit_compile recompute ")


def lower_as_stated(vocabulary: str) -> None:
    """Sets --do_lower_case as a vocabulary says it, if it is a tokenizer.json and the
    flag is not given."""
    if not FLAGS["do_lower_case"].present and tokenizer_json.is_file(vocabulary):
        FLAGS.do_lower_case = hf_tokenizer.from_json(vocabulary).do_lower_case


# ---- the model --------------------------------------------------------------


def define_model_flags() -> None:
    """--albert_config_file, --model, --config_overrides."""
    flags.DEFINE_string(
        "albert_config_file", None,
        "JSON file with the model's configuration, such as the albert_config.json of "
        "the released checkpoints.")
    flags.DEFINE_enum(
        "model", None, list(NAMED),
        "Published model size, instead of --albert_config_file. The bert-* sizes have "
        "separate weights per layer and full-size embeddings (Table 1 of the paper).")
    flags.DEFINE_list(
        "config_overrides", [],
        "Configuration fields to change, as field=value,field=value: embedding_size=64 "
        "(Table 3 of the paper), "
        f"parameter_sharing={'|'.join(SHARING)} (Table 4), "
        "vocab_size=21128 (for your own vocabulary).")


def model_config(kept: Sequence[str] = ()) -> AlbertConfig:
    """Returns the config that the model flags describe.

    Args:
      kept: configuration files; without a flag, the first one that exists is used.
    """
    has_flag = FLAGS.albert_config_file or FLAGS.model
    if not (has_flag or kept):
        check_init_checkpoint()
    if FLAGS.albert_config_file and FLAGS.model or not (
            has_flag or kept or initial_model()):
        raise InputError(
            "give either --albert_config_file=FILE or --model=NAME, where NAME is one "
            f"of {', '.join(NAMED)}.")
    if FLAGS.model:
        return _with_overrides(AlbertConfig.named(FLAGS.model))
    path = FLAGS.albert_config_file or next(filter(files.exists, kept), None)
    if not path and (checkpoint := initial_model()):
        # If the checkpoint has no pooler, a head that needs one starts with a new one.
        return _with_overrides(checkpoint.config.replace(use_pooler=True))
    if not path:
        check_init_checkpoint()
        raise InputError(
            "give the model's configuration: --albert_config_file=FILE or "
            "--model=NAME; neither --output_dir nor --init_checkpoint holds an "
            f"{CONFIG_FILE}.")
    return _with_overrides(AlbertConfig.from_json_file(path))


def _with_overrides(config: AlbertConfig) -> AlbertConfig:
    changes = config_overrides()
    try:
        return config.replace(**changes)
    except InputError as error:
        raise InputError(f"--config_overrides: {error}") from error


def check_memory(config: AlbertConfig, options: Optional[RunOptions] = None,
                 **batches: Sequences) -> None:
    """Raises InputError if the model, or a batch, does not fit into the memory of this
    machine (training.memory.check_memory).

    `batches` maps the flag of a batch's size to its contents, and needs `options`.
    """
    here = not (FLAGS.tpu or FLAGS.tpu_name or FLAGS.use_tpu
                or FLAGS.distribution_strategy == "tpu" or parallel.has_accelerator())
    planned = {}
    if options is not None and here:
        workers = max(1, known_replicas() // (FLAGS.num_virtual_cpus or 1))
        for name, sequences in batches.items():
            parts = (options.step.gradient_accumulation_steps
                     if name == "train_batch_size" else 1)
            planned[name] = PlannedBatch(
                FLAGS[name].value, FLAGS[name].value // parts // workers, sequences)
    memory.check_memory(config, here and FLAGS.do_train,
                        options.step if options else StepOptions(), planned)


def config_overrides() -> dict[str, str]:
    """Returns field → value of --config_overrides."""
    changes = {}
    for change in FLAGS.config_overrides:
        name, equals, value = change.partition("=")
        if not equals:
            raise InputError(
                f"--config_overrides: '{change}' does not have the form field=value.")
        changes[name.strip()] = value.strip()
    return changes


# ---- devices ----------------------------------------------------------------


def define_device_flags() -> None:
    """Defines --tpu and its old names, --distribution_strategy, --num_gpus and
    --num_virtual_cpus."""
    flags.DEFINE_string(
        "tpu", None,
        "Name or address of a Cloud TPU, or 'local' on a TPU VM. Trains with "
        "TPUStrategy.")
    flags.DEFINE_enum(
        "distribution_strategy", "one_device",
        ["one_device", "mirrored", "multi_worker_mirrored", "tpu"],
        "Devices to train on: one_device (the CPU or one GPU), mirrored (the GPUs of "
        "this machine), multi_worker_mirrored (several machines, listed in the "
        "environment variable TF_CONFIG), tpu (see --tpu).")
    flags.DEFINE_integer(
        "num_gpus", None,
        "Number of GPUs to use on this machine. Default: all with "
        "--distribution_strategy=mirrored, otherwise one if there is one. Not for "
        "several machines, where CUDA_VISIBLE_DEVICES limits them.",
        lower_bound=0, upper_bound=MOST)
    flags.DEFINE_integer(
        "num_virtual_cpus", 0,
        "Splits the CPU into N devices and trains one replica on each, to try out "
        "replicas on a machine without accelerators.",
        lower_bound=0, upper_bound=1024)
    flags.DEFINE_bool("use_tpu", False, "Not needed: --tpu is enough.")
    flags.DEFINE_string("tpu_name", None, "Same as --tpu.")
    for name in ("use_tpu", "tpu_name"):
        FLAGS[name].help += _OLD


_OLD = " (Kept for command lines of the original implementation.)"
# Flags of the original scripts that have no effect here → why.
_WITHOUT_EFFECT = {
    "tpu_zone": "the zone is taken from the environment",
    "gcp_project": "the project is taken from the environment",
    "master": "--tpu takes the address of a TPU",
    "num_tpu_cores": "all cores of the TPU are used",
    "use_einsum": "results are the same with and without it",
}


def define_old_flags() -> None:
    """Defines the flags of the original scripts that are accepted with a warning."""
    for name, why in _WITHOUT_EFFECT.items():
        # Some are written without a value.
        define = flags.DEFINE_bool if name == "use_einsum" else flags.DEFINE_string
        define(name, None, f"Has no effect: {why}." + _OLD)
    flags.DEFINE_string("albert_hub_module_handle", None, "Same as --init_checkpoint."
                        + _OLD)
    flags.DEFINE_integer(
        "num_keep_checkpoint", None, "Same as --keep_checkpoint_max." + _OLD,
        lower_bound=0, upper_bound=MOST)


def use_old_flags() -> None:
    """Warns about flags without effect, and gives the values of old names to the
    new."""
    for name, why in _WITHOUT_EFFECT.items():
        if FLAGS[name].present:
            logging.warning("--%s=%s has no effect: %s.", name, FLAGS[name].value, why)
    if FLAGS.albert_hub_module_handle and FLAGS["init_checkpoint"].present:
        logging.warning("--albert_hub_module_handle=%s has no effect: "
                        "--init_checkpoint is given.", FLAGS.albert_hub_module_handle)
    count = FLAGS.num_keep_checkpoint
    if count is not None:
        logging.warning("--num_keep_checkpoint is now called --keep_checkpoint_max.")
        if not FLAGS["keep_checkpoint_max"].present:
            FLAGS.keep_checkpoint_max = count


def _tpu() -> Optional[str]:
    """Returns the value of --tpu or its old name."""
    return FLAGS.tpu if FLAGS.tpu is not None else FLAGS.tpu_name


def make_strategy():
    """Returns the tf.distribute strategy that the device flags describe."""
    tpu = _tpu()
    name = FLAGS.distribution_strategy if tpu is None else "tpu"
    if tpu is None and (name == "tpu" or FLAGS.use_tpu):
        raise InputError("give the name or address of the TPU: --tpu=NAME, or "
                         "--tpu=local on a TPU VM.")
    return devices.make_strategy(
        name, tpu, FLAGS.num_gpus, FLAGS.num_virtual_cpus)


# ---- the loop ---------------------------------------------------------------


def define_training_flags(**defaults: Any) -> None:
    """Defines the flags of the training loop; `defaults` are those of the task."""
    define_old_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder for checkpoints, metrics and learning curves.")
    flags.DEFINE_string(
        "resume_from", "",
        "Step or path of a checkpoint in --output_dir to resume from or to evaluate, "
        "instead of the latest or the best one; for example if that is damaged.")
    flags.DEFINE_string(
        "init_checkpoint", None,
        "Model to start from if --output_dir holds no checkpoint: a checkpoint or "
        "folder of this project, of Google's TF1 code, of Hugging Face, KerasHub or TF "
        "Model Garden, a TensorFlow Hub module, hf://OWNER/NAME or kaggle://HANDLE. "
        "Its configuration and vocabulary are used unless flags give others.")
    flags.DEFINE_bool(
        "allow_partial_init", False,
        "Start even if variables of --init_checkpoint do not match the model; those "
        "without a match keep their random initial values.")
    flags.DEFINE_integer(
        "train_batch_size", defaults["train_batch_size"],
        "Number of sequences in a training step, over all replicas.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "eval_batch_size", defaults["eval_batch_size"],
        "Number of sequences in an evaluation batch, over all replicas.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "gradient_accumulation_steps", 1,
        "Number of parts in which each replica computes its share of a batch, one "
        "after the other. Each part needs less memory; the step stays the same. A "
        "signal stops the run between two parts, but with --jit_compile after the step, "
        "and on TPUs after --iterations_per_loop steps. --train_batch_size must be a "
        "multiple of this times the number of replicas.",
        lower_bound=1, upper_bound=MOST)
    flags.DEFINE_enum("optimizer", defaults["optimizer"], ["lamb", "adamw"],
                      "Optimizer; without bias correction, as in the original "
                      "implementation.")
    flags.DEFINE(checks.Number(), "learning_rate", defaults["learning_rate"],
                 "Peak learning rate, reached at the end of warm-up.")
    flags.DEFINE_integer("save_checkpoints_steps", defaults["save_checkpoints_steps"],
                         "Number of steps between two checkpoints; each is evaluated "
                         "if there is evaluation data.",
                         lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer("keep_checkpoint_max", 5,
                         "How many of the most recent checkpoints to keep; 0 keeps "
                         "all. The best is also kept, as model.ckpt-best.",
                         lower_bound=0, upper_bound=MOST)
    flags.DEFINE_integer(
        "iterations_per_loop", 1000,
        "Number of steps between two rows of training metrics. On TPUs this many steps "
        "run on the device before the host looks at "
        "them.", lower_bound=1, upper_bound=MOST)
    flags.DEFINE_integer(
        "random_seed", 12345,
        "Seed for initial weights, order of the data, masks and dropout.",
        lower_bound=0, upper_bound=MOST)
    flags.DEFINE(checks.Number(), "clip_norm", 1.0,
                 "Maximum global norm of a step's gradients; larger ones are scaled "
                 "down.")
    flags.DEFINE_enum(
        "replica_gradients", "mean", ["mean", "sum"],
        "How gradients of replicas are combined. mean: as if one replica computed the "
        "whole batch, so that results do not depend on the number of replicas. sum, as "
        "the original implementation does on TPUs: each replica divides its loss by "
        "its own weights and clips its own gradients, which are then summed.")
    flags.DEFINE_bool(
        "sparse_gradient_norm", False,
        "In the gradient norm, count an embedding row once for each occurrence of its "
        "token, as the original implementation does on CPU and GPU. The default is "
        "what it does on TPUs.")
    flags.DEFINE_bool("jit_compile", False,
                      "Compile the training step with XLA. On TPUs it always is.")
    flags.DEFINE_enum(
        "dtype", "float32", list(DTYPES),
        "Type of the layers' matrix products and activations. Variables, LayerNorm, "
        "softmax, losses and the optimizer stay float32. float16, for GPUs without "
        "bfloat16, uses dynamic loss scaling: steps whose gradients overflow are "
        "skipped and counted.")
    flags.DEFINE_bool(
        "recompute", False,
        "Save memory: keep only the input of each layer for the backward pass, which "
        "computes the rest again. The result is the same. On a CPU a step of ALBERT-base "
        "takes about a third longer with half the memory. On TPUs, by an estimate, it "
        "takes 45 % longer with a fifth to a third of the memory, and the program has a "
        "third to a sixth of its size, because the layers are compiled as a loop.")


def run_options(**task_options: Any) -> RunOptions:
    """Returns the training flags as RunOptions, whose fields have the flags' names.

    `task_options` are fields that the task sets itself, such as num_train_steps.
    """
    check_output_dir()
    script.check_packages("tensorflow", "tf_keras", "official", "orbit")
    use_old_flags()
    files.check_in_tensorflow(FLAGS.output_dir, "--output_dir")
    files.check_folder(FLAGS.output_dir, "--output_dir")
    checks.say_unused(OF_TRAINING, FLAGS.do_train, "without --do_train")
    checks.say_unused(
        "allow_partial_init", init_checkpoint(), "without --init_checkpoint")
    _check_folders()
    if not FLAGS.clip_norm:
        raise InputError(f"--clip_norm is {FLAGS.clip_norm}; it must be greater than "
                         "0.")
    if FLAGS.sparse_gradient_norm and FLAGS.gradient_accumulation_steps != 1:
        raise InputError(
            "--sparse_gradient_norm cannot be combined with "
            "--gradient_accumulation_steps, because it counts the rows of a whole "
            "batch; leave one of them out.")
    if FLAGS.dtype == "float16" and (
            _tpu() is not None or FLAGS.distribution_strategy == "tpu"):
        raise InputError(
            "--dtype=float16 is for GPUs; give --dtype=bfloat16 on TPUs, whose products "
            "are fast in that type, and which needs no loss scaling.")

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


def check_output_dir() -> None:
    """Raises InputError without --output_dir."""
    if not FLAGS.output_dir:
        raise InputError("give the folder for checkpoints: --output_dir=FOLDER.")


def _check_folders() -> None:
    """Refuses to train in the folder of the model that the run starts from, since
    training overwrites files there."""
    path = init_checkpoint()
    if path and FLAGS.do_train and os.path.realpath(
            formats.folder_of_model(path)) == os.path.realpath(FLAGS.output_dir):
        raise InputError(
            f"--output_dir={FLAGS.output_dir} is the folder of --init_checkpoint, whose "
            "files the run would overwrite; give a new folder, or leave out "
            "--init_checkpoint to continue the run that is there.")


def init_checkpoint() -> str:
    """Returns the path of --init_checkpoint or its old name, "" if neither is given.

    A model of a hub is downloaded once.
    """
    for name in ("init_checkpoint", "albert_hub_module_handle"):
        if name in FLAGS and FLAGS[name].value:
            FLAGS.init_checkpoint = formats.located(FLAGS[name].value)
            return FLAGS.init_checkpoint
    return ""


def initial_model() -> Optional[Checkpoint]:
    """Returns the model of --init_checkpoint if it has a foreign format, else None."""
    init = init_checkpoint() if "init_checkpoint" in FLAGS else ""
    return formats.read(init) if init and formats.is_foreign(init) else None


def kept_configs() -> list[str]:
    """Returns the config files beside the models that a run resumes or starts from."""
    init = init_checkpoint()
    return [os.path.join(folder, CONFIG_FILE) for folder in (
        FLAGS.output_dir or "", folder_of(init) if init else "") if folder]


def check_init_checkpoint() -> None:
    """Raises InputError if --init_checkpoint is needed and holds no checkpoint."""
    init = init_checkpoint()
    if init and not holds_checkpoint(FLAGS.output_dir) and (
            not formats.is_foreign(init)):
        find_checkpoint(init)


def known_replicas() -> int:
    """Returns a divisor of the number of replicas, as far as it is known without
    TensorFlow; also checks the flags of devices and the cluster that TF_CONFIG
    describes."""
    devices.check(FLAGS.distribution_strategy, FLAGS.num_gpus, FLAGS.num_virtual_cpus)
    if FLAGS.distribution_strategy == "multi_worker_mirrored":
        workers = devices.Cluster.from_environment()
        workers.resolve()
        return workers.size
    return FLAGS.num_virtual_cpus or FLAGS.num_gpus or 1
