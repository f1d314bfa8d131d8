"""Flags of the scripts that use a trained model, and functions that load it."""

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
from albert_tf.cli.flags import lower_as_stated
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.training import devices

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_string("model", None, "Folder of the model, or a checkpoint in it.",
                        required=True)
    for name, kind in (("vocab_file", "WordPiece vocabulary"),
                       ("spm_model_file", "SentencePiece model")):
        flags.DEFINE_string(name, None, f"{kind} to use; needed only if the model's "
                            "folder has no vocabulary.")
    flags.DEFINE_bool("do_lower_case", True,
                      "Convert text to lower case, as the vocabulary given by "
                      "--vocab_file or --spm_model_file expects.")


def define_labels() -> None:
    flags.DEFINE_list("labels", [], "Labels in the order of the model's outputs, for a "
                      "model that does not name them or calls them LABEL_0, LABEL_1.")


def define_engine() -> None:
    flags.DEFINE_enum(
        "engine", "auto", ["auto", "tensorflow", "openvino", "onnxruntime"], "What "
        "computes the answers. auto: the fastest installed engine for short requests, "
        "TensorFlow for batches, as the log says; openvino, onnxruntime: this engine for "
        "all. The model is exported for it once, and the export is kept beside the "
        "model, or in ~/.cache if its folder cannot be written.")


def define_columns() -> None:
    """Defines the flags of tables, which are those of run_classifier.py."""
    trained = "default: as the model was trained"
    flags.DEFINE_string("text_column", None, "Column of the text in a .csv, .tsv or "
                        ".parquet file: its name, or its number from 0 with --noheader; "
                        f"or a field of JSON lines; {trained}.")
    flags.DEFINE_string("text_b_column", None, f"Column of the second text; {trained}.")
    flags.DEFINE_string("id_column", None, f"Column that is copied as `id`; {trained}, if "
                        "the file has it.")
    flags.DEFINE_bool("header", None, "The first line of a .csv or .tsv file names the "
                      f"columns; {trained}, else true.")
    flags.DEFINE_string("delimiter", None, f"Column separator; {trained}, else a tab in "
                        ".tsv and a comma in .csv files.")


def columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of text.inputs.read: the flags and, if they do
    not name a column, what a model of the user's own data was trained with (task.json).
    """
    values = {name: FLAGS[name].value for name in (
        "text_column", "text_b_column", "id_column", "header", "delimiter")}
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


def log_hardware() -> None:
    """Logs what TensorFlow runs models on."""
    logging.info("Running on %s.", devices.hardware())


def load():
    """Loads --model with albert_tf.load."""
    script.check_packages("tensorflow", "tf_keras")
    vocabulary_of_flags = vocabulary()  # Before TensorFlow: it reports wrong flags.
    import albert_tf

    model = relabelled(
        albert_tf.load(FLAGS.model, vocabulary=vocabulary_of_flags), FLAGS.labels)
    if model.model is not None:  # Exports run on what they were made for.
        log_hardware()
    return model
