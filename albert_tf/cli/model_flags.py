"""Flags of the scripts that use a trained model, and functions that load it."""

import dataclasses
import os
from typing import Any, Mapping, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.checkpoints import formats, huggingface, onnx_folder
from albert_tf.checkpoints.folders import NULL_THRESHOLD_FILE
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.checkpoints.labels import relabelled
from albert_tf.checkpoints.vocabulary import TASK_FILE
from albert_tf.cli import script
from albert_tf.cli.define import define
from albert_tf.cli.flags import lower_as_stated
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.options import given, option
from albert_tf.training import devices

FLAGS = flags.FLAGS
flags.disclaim_key_flags()

_VOCABULARY = "%s to use; needed only if the model's folder has no vocabulary."
_TRAINED = "default: as the model was trained"


@dataclasses.dataclass(frozen=True)
class UsedModel:
    """The model to use."""

    model: str = option(None, "Folder of the model, or a checkpoint in it.")
    vocab_file: Optional[str] = option(None, _VOCABULARY % "WordPiece vocabulary")
    spm_model_file: Optional[str] = option(None, _VOCABULARY % "SentencePiece model")
    do_lower_case: bool = option(
        True, "Convert text to lower case, as the vocabulary given by --vocab_file or "
        "--spm_model_file expects.")


@dataclasses.dataclass(frozen=True)
class Labels:
    """The names of its outputs."""

    labels: list[str] = option(
        (), "Labels in the order of the model's outputs, for a model that does not name "
        "them or calls them LABEL_0, LABEL_1.")


@dataclasses.dataclass(frozen=True)
class Engine:
    """What runs it."""

    engine: str = option(
        "auto", "What computes the answers. auto: the fastest installed engine for short "
        "requests, TensorFlow for batches, as the log says; openvino, onnxruntime: this "
        "engine for all. The model is exported for it once, and the export is kept "
        "beside the model, or in ~/.cache if its folder cannot be written.",
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


def define_flags(*more: type) -> None:
    """Defines the flags of the model, which must be given, and of further options."""
    for cls in (UsedModel, *more):
        define(cls)
    flags.mark_flag_as_required("model")


def columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of text.inputs.read: the flags and, if they do
    not name a column, what a model of the user's own data was trained with (task.json).
    """
    values = dataclasses.asdict(given(Columns, FLAGS))
    trained = settings.get("flags", {}) if settings.get("task") == "custom" else {}
    if values["text_column"] is None and values["text_b_column"] is None:
        return {"column_needed": False, "id_needed": values["id_column"] is not None, **{
            name: trained.get(name) if value is None else value
            for name, value in values.items()}}
    return values


def vocabulary() -> Optional[Vocabulary]:
    """Returns the vocabulary given by the flags, or None."""
    if FLAGS.vocab_file and FLAGS.spm_model_file:
        raise InputError("--vocab_file and --spm_model_file are two vocabularies; give "
                         "only one of them.")
    path = FLAGS.vocab_file or FLAGS.spm_model_file
    if not path:
        return None
    lower_as_stated(path)
    return Vocabulary(path, FLAGS.do_lower_case, bool(FLAGS.vocab_file))


def model_files() -> list[str]:
    """Returns the files of --model on which its answers depend."""
    path = formats.located(FLAGS.model)
    folder = path if files.is_folder(path) else formats.folder_of_model(path)
    names = files.names_in(folder)
    if export := onnx_folder.find(path):
        return onnx_folder.files_of(*export)
    return [*formats.read(path, vocabulary=vocabulary()).files(), *(
        os.path.join(folder, name) for name in (
            TASK_FILE, NULL_THRESHOLD_FILE, CONFIG_FILE, huggingface.CONFIG)
        if name in names)]


def load():
    """Loads --model with albert_tf.load."""
    script.check_packages("tensorflow", "tf_keras")
    vocabulary_of_flags = vocabulary()  # Before TensorFlow: it reports wrong flags.
    import albert_tf

    model = relabelled(
        albert_tf.load(FLAGS.model, vocabulary=vocabulary_of_flags), FLAGS.labels)
    if model.model is not None:  # Exports run on what they were made for.
        logging.info("Running on %s.", devices.hardware())
    return model
