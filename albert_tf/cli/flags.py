"""The options of a model, the devices and a run, and what is made of them.

`values` are the flags of a script, or those of a call of `albert_tf.finetune`. Only the
scripts and this folder know absl flags.
"""

import dataclasses
import os
from typing import Any, Mapping, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import (
    checkpoint_of, chosen_checkpoint, find_checkpoint, folder_of, holds_checkpoint)
from albert_tf.checkpoints.labels import relabelled
from albert_tf.cli import script
from albert_tf.cli.define import Values
from albert_tf.config import AlbertConfig, CONFIG_FILE, NAMED, SHARING
from albert_tf.errors import InputError
from albert_tf.finetuning.seeds import SEEDS_FILE
from albert_tf.jobs import parallel
from albert_tf.options import given, option, options_of
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training import devices, options as training_options
from albert_tf.training.devices import DeviceOptions
from albert_tf.training.options import (
    RunOptions, Sequences, StepOptions, check_batch_sizes)

flags.disclaim_key_flags()


# ---- a model to train -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The config of the encoder."""

    albert_config_file: Optional[str] = option(
        None, "JSON file with the model's configuration, such as the albert_config.json "
        "of the released checkpoints.")
    model: Optional[str] = option(
        None, "Published model size, instead of --albert_config_file. The bert-* sizes "
        "have separate weights per layer and full-size embeddings (Table 1 of the "
        "paper).", choices=list(NAMED))
    config_overrides: list[str] = option(
        (), "Configuration fields to change, as field=value,field=value: "
        "embedding_size=64 (Table 3 of the paper), parameter_sharing="
        f"{'|'.join(SHARING)} (Table 4), vocab_size=21128 (for your own vocabulary).")


def model_config(values: Values) -> AlbertConfig:
    """Returns the config that the options describe; without one, that beside the model
    that a run resumes or starts from."""
    path, init = values.albert_config_file, (
        "init_checkpoint" in values and values.init_checkpoint)
    if not path and not values.model:
        folders = ("output_dir" in values and values.output_dir, init and folder_of(init))
        path = next(filter(files.exists, (
            os.path.join(folder, CONFIG_FILE) for folder in folders if folder)), None)
    if values.model and not path:
        config = AlbertConfig.named(values.model)
    elif path and not values.model:
        config = AlbertConfig.from_json_file(path)
    elif not path and init and formats.is_foreign(init):
        # If the checkpoint has no pooler, a head that needs one starts with a new one.
        config = formats.read(init).config.replace(use_pooler=True)
    else:
        if init:
            find_checkpoint(init)
        raise InputError(
            "give the model's configuration, either --albert_config_file=FILE or "
            f"--model=NAME, where NAME is one of {', '.join(NAMED)}, or a model that "
            f"holds an {CONFIG_FILE}.")
    changes = [change.partition("=") for change in values.config_overrides]
    try:
        return config.replace(**{
            name.strip(): value.strip() for name, _, value in changes})
    except InputError as error:
        raise InputError(f"--config_overrides: {error}") from error


def lower_case(values: Values = flags.FLAGS) -> Optional[bool]:
    """Returns --do_lower_case, or None if it is open what a tokenizer.json says."""
    flag = values["do_lower_case"]
    return None if flag.value and not flag.present else flag.value


def check_memory(values: Values, config: AlbertConfig, step: StepOptions,
                 **batches: Sequences) -> None:
    """Raises InputError if the model, or a batch, does not fit into the memory of this
    machine (training.options.check_memory). `batches` maps the option of a batch's size
    to its contents."""
    used = given(DeviceOptions, values)
    here = not (used.kind == "tpu" or parallel.has_accelerator())
    planned = {}
    for name, sequences in batches.items() if here else ():
        workers = max(1, used.known_replicas() // (used.num_virtual_cpus or 1))
        parts = step.gradient_accumulation_steps if name == "train_batch_size" else 1
        size = values[name].value
        planned[name] = size, size // parts // workers, sequences
    training_options.check_memory(config, here and values.do_train, step, planned)


# ---- the original's flags ----------------------------------------------------

_OLD = " (Kept for command lines of the original implementation.)"


@dataclasses.dataclass(frozen=True)
class OldOptions:
    """Flags of the original scripts that have another name here, or no effect."""

    tpu_name: Optional[str] = option(None, "Same as --tpu." + _OLD)
    albert_hub_module_handle: Optional[str] = option(
        None, "Same as --init_checkpoint." + _OLD)
    num_keep_checkpoint: Optional[int] = option(
        None, "Same as --keep_checkpoint_max." + _OLD)
    use_tpu: bool = option(False, "Not needed: --tpu is enough." + _OLD, only_with="tpu")
    tpu_zone: Optional[str] = option(
        None, "Has no effect: the zone is taken from the environment." + _OLD)
    gcp_project: Optional[str] = option(
        None, "Has no effect: the project is taken from the environment." + _OLD)
    master: Optional[str] = option(
        None, "Has no effect: --tpu takes the address of a TPU." + _OLD)
    num_tpu_cores: Optional[str] = option(
        None, "Has no effect: all cores of the TPU are used." + _OLD)
    use_einsum: Optional[bool] = option(
        None, "Has no effect: results are the same with and without it." + _OLD)


_NEW_NAMES = {"tpu_name": "tpu", "albert_hub_module_handle": "init_checkpoint",
              "num_keep_checkpoint": "keep_checkpoint_max"}


def use_old_flags() -> None:
    """Gives the values of old names to the new, warns about old flags, and downloads the
    --init_checkpoint of a hub."""
    values = flags.FLAGS
    for old in options_of(OldOptions):
        if values[old.name].present:
            logging.warning("--%s: %s", old.name, old.help)
            name = _NEW_NAMES.get(old.name)
            if name and not values[name].present:
                values[name].value, values[name].present = values[old.name].value, 1
    if values.init_checkpoint:
        values.init_checkpoint = formats.located(values.init_checkpoint)


# ---- the run ----------------------------------------------------------------

OF_RUN = (ModelOptions, DeviceOptions, StepOptions, RunOptions)


def run_options(values: Values, **task_options: Any) -> RunOptions:
    """Returns the options of the run, checked before any long work.

    `task_options` are fields that the task sets itself, such as num_train_steps.
    """
    script.check_packages("tensorflow", "tf_keras", "official", "orbit")
    files.check_in_tensorflow(values.output_dir, "--output_dir")
    files.check_folder(values.output_dir, "--output_dir")
    check_output_dir(values)
    options = given(RunOptions, values, init_checkpoint=values.init_checkpoint or "",
                    step=given(StepOptions, values), **task_options)
    # Check that there is a model to start from.
    folder, init = options.output_dir, options.init_checkpoint
    if options.resume_from:
        chosen_checkpoint(folder, options.resume_from)
    elif holds_checkpoint(folder):
        if not files.exists(os.path.join(folder, SEEDS_FILE)):
            checkpoint_of(folder, best=not values.do_train, to_train=values.do_train)
    elif init:
        if not formats.is_foreign(init):
            find_checkpoint(init)
    elif not (values.do_train and options.from_scratch):
        raise InputError(
            f"there is no model to start from: {folder} has no checkpoint, and "
            "--init_checkpoint is not given; give one"
            + (", or --from_scratch to train from random weights."
               if values.do_train else ", or train first (--do_train)."))
    check_batch_sizes(
        options, given(DeviceOptions, values).known_replicas(), train=values.do_train,
        evaluate=any(name in values and values[name].value
                     for name in ("do_eval", "eval_input_file")))
    return options


def check_output_dir(values: Values) -> None:
    """Raises InputError if training would overwrite the model that it starts from."""
    init = values.init_checkpoint
    if init and values.do_train and os.path.realpath(folder_of(init)) == (
            os.path.realpath(values.output_dir)):
        raise InputError(
            f"--output_dir={values.output_dir} is the folder of --init_checkpoint, whose "
            "files the run would overwrite; give a new folder, or only --output_dir to "
            "continue the run that is there.")


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """The SavedModel that is written."""

    export_dir: Optional[str] = option(
        None, "Folder for a SavedModel of the best checkpoint.")
    export_text: bool = option(
        True, "Export a SavedModel that takes text, which needs tensorflow_text; "
        "--noexport_text: one that takes token ids.", needs="export_dir")


# ---- a trained model --------------------------------------------------------

_VOCABULARY = "%s to use; needed only if the model's folder has no vocabulary."
_TRAINED = "default: as the model was trained"


@dataclasses.dataclass(frozen=True)
class UsedModel:
    """The model to use, the names of its outputs, and what runs it."""

    model: str = option(
        None, "Folder of the model, or a checkpoint in it.", required=True)
    vocab_file: Optional[str] = option(None, _VOCABULARY % "WordPiece vocabulary")
    spm_model_file: Optional[str] = option(None, _VOCABULARY % "SentencePiece model")
    do_lower_case: bool = option(
        True, "Convert text to lower case, as the vocabulary given by --vocab_file or "
        "--spm_model_file expects.")
    labels: list[str] = option(
        (), "Labels in the order of the model's outputs, for a model that does not name "
        "them or calls them LABEL_0, LABEL_1.")
    engine: str = option(
        "auto", "What computes the answers. auto: the fastest installed engine for short "
        "requests, TensorFlow for batches, as the log says; openvino, onnxruntime: this "
        "engine for all. The model is exported for it once, and the export is kept "
        "beside the model.",
        choices=["auto", "tensorflow", "openvino", "onnxruntime"])


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of tables, by the flags of run_classifier.py."""

    text_column: Optional[str] = option(
        None, "Column of the text in a .csv, .tsv or .parquet file: its name, or its "
        f"number from 0 with --noheader; or a field of JSON lines; {_TRAINED}.",
        only_with="input_file")
    text_b_column: Optional[str] = option(
        None, f"Column of the second text; {_TRAINED}.", only_with="input_file")
    id_column: Optional[str] = option(
        None, f"Column that is copied as `id`; {_TRAINED}, if the file has it.",
        only_with="input_file")
    header: Optional[bool] = option(
        None, "The first line of a .csv or .tsv file names the columns; "
        f"{_TRAINED}, else true.", only_with="input_file")
    delimiter: Optional[str] = option(
        None, f"Column separator; {_TRAINED}, else a tab in .tsv and a comma in .csv "
        "files.", only_with="input_file")


def columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of text.inputs.read: the flags and, if they do not name a
    column, what a model of the user's own data was trained with (task.json)."""
    values = dataclasses.asdict(given(Columns, flags.FLAGS))
    if values["text_column"] is not None or values["text_b_column"] is not None:
        return values
    trained = settings.get("flags", {}) if settings.get("task") == "custom" else {}
    return {"column_needed": False, "id_needed": values["id_column"] is not None, **{
        name: trained.get(name) if value is None else value
        for name, value in values.items()}}


def vocabulary() -> Optional[FullTokenizer]:
    """Returns the tokenizer given by the flags, or None."""
    values = flags.FLAGS
    return FullTokenizer(
        values.vocab_file, lower_case(), values.spm_model_file
    ) if values.spm_model_file or values.vocab_file else None


def model_files() -> list[str]:
    """Returns the files of --model on which its answers depend."""
    from albert_tf.checkpoints import huggingface

    path = formats.located(flags.FLAGS.model)
    return huggingface.files_of_export(path) or formats.read(
        path, vocabulary=vocabulary()).files()


def load_model():
    """Loads --model with albert_tf.load."""
    tokenizer = vocabulary()  # Before TensorFlow: it reports wrong flags.
    import albert_tf

    model = relabelled(
        albert_tf.load(flags.FLAGS.model, vocabulary=tokenizer), flags.FLAGS.labels)
    if model.model is not None:  # Exports run on what they were made for.
        logging.info("Running on %s.", devices.hardware())
    return model
