"""Flags of the scripts that use a trained model, and functions that load it."""

import os
from typing import Any, Mapping, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.checkpoints import checkpoint, formats, onnx_folder
from albert_tf.checkpoints.folders import NULL_THRESHOLD_FILE
from albert_tf.checkpoints.run_files import is_of_run
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.checkpoints.vocabulary import TASK_FILE
from albert_tf.cli import checks, script
from albert_tf.cli.flags import MOST, lower_as_stated
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs.progress import amount
from albert_tf.training import devices
from albert_tf.training.memory import Sequences, evaluation_memory
from albert_tf.training.options import StepOptions

FLAGS = flags.FLAGS

# The number of texts of a file that are held in memory at a time.
_HELD = 1024


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


def define_label_threshold() -> None:
    flags.DEFINE(
        checks.Number(upper_bound=1), "label_threshold", None, "For a model of texts with any "
        "number of labels: the probability from which on a label is given; default: as "
        "in training, else 0.5.")


def define_engine() -> None:
    flags.DEFINE_enum(
        "engine", "auto", ["auto", "tensorflow", "openvino", "onnxruntime"], "What "
        "computes the answers. auto: the fastest installed engine for short requests, "
        "TensorFlow for batches, as the log says; openvino, onnxruntime: this engine for "
        "all. The model is exported for it once, and the export is kept beside the "
        "model.")


def check_engine() -> None:
    """Raises InputError if --engine cannot be used, before the model is loaded."""
    if FLAGS.engine in ("auto", "tensorflow"):
        return
    script.check_packages(FLAGS.engine)


def define_length_flags() -> None:
    flags.DEFINE_bool("windows", False, "Read texts that are too long in overlapping "
                      "windows, and average the windows' logits or vectors; by default "
                      "they are cut, as in training.")
    flags.DEFINE_bool("truncated", False, "Add `truncated` to each answer: true if a "
                      "text of it was cut.")


def define_batch_size(upper_bound: int = MOST) -> None:
    flags.DEFINE_integer("batch_size", 32, "Maximum number of sequences that are "
                         "computed together.", lower_bound=1, upper_bound=upper_bound)


def define_columns() -> None:
    """Defines the flags of tables, which are those of run_classifier.py."""
    trained = "default: as the model was trained"
    flags.DEFINE_string("text_column", None, "Column of the text in a .csv, .tsv or "
                        ".parquet file: its name, or its number from 0 with --noheader; "
                        f"or a field of JSON lines; {trained}.")
    flags.DEFINE_string("text_b_column", None, f"Column of the second text; {trained}.")
    flags.DEFINE_string("id_column", None, "Column that is copied as `id`.")
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
        return {name: trained.get(name) if value is None else value
                for name, value in values.items()}
    return values


def check_batch_size(config: AlbertConfig, settings: Mapping[str, Any],
                     most: int = _HELD) -> None:
    """Raises InputError if a --batch_size needs more memory than is free, for texts of
    the maximum length that the model's settings (task.json) allow. The default batch
    size is not checked."""
    examples = min(FLAGS.batch_size, most)
    length = min(settings.get("flags", {}).get("max_seq_length", 512),
                 config.max_position_embeddings)
    needed = evaluation_memory(config, StepOptions(), examples, Sequences(length))
    free = parallel.available_memory()
    if FLAGS["batch_size"].present and not parallel.has_accelerator() and needed > free:
        raise InputError(
            f"--batch_size={FLAGS.batch_size}: {examples} sequences of {length} tokens "
            f"need at least {amount(needed)} of memory, but {amount(free)} are free; "
            "use a smaller batch size.")


def check_task() -> None:
    """Raises InputError if no head does --task, before the model is loaded."""
    known = checkpoint.tasks()
    if FLAGS.task and FLAGS.task not in known:
        raise InputError(
            f"--task={FLAGS.task} is not known; give one of {', '.join(known)}.")


def check_output(flag: str, path: str) -> None:
    """Raises InputError if the output would overwrite a file of the model. JSON lines
    may be written into the model's folder."""
    folders = formats.folders_of_models(FLAGS.model)
    may_overwrite = not path.endswith(".jsonl") or is_of_run(
        os.path.basename(path), tasks=())
    files.prepare_outputs({flag: [path]}, {
        "--model": folders if may_overwrite else [],
        **{f"--{name}": [FLAGS[name].value] for name in ("vocab_file", "spm_model_file")
           if FLAGS[name].value}})


def vocabulary() -> Optional[Vocabulary]:
    """Returns the vocabulary given by the flags, or None."""
    if FLAGS.vocab_file and FLAGS.spm_model_file:
        raise InputError("--vocab_file and --spm_model_file are two vocabularies; give "
                         "only one of them.")
    path = FLAGS.vocab_file or FLAGS.spm_model_file
    if path and not files.exists(path):
        name = "vocab_file" if FLAGS.vocab_file else "spm_model_file"
        raise InputError(f"--{name}: {path} does not exist; check the path.")
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
        os.path.join(folder, name) for name in (TASK_FILE, NULL_THRESHOLD_FILE)
        if name in names)]


def log_hardware() -> None:
    """Logs what TensorFlow runs models on."""
    logging.info("Running on %s.", devices.hardware())


def load():
    """Loads --model with albert_tf.load."""
    script.check_packages("tensorflow", "tf_keras")
    vocabulary_of_flags = vocabulary()  # Before TensorFlow: it reports wrong flags.
    import albert_tf

    model = albert_tf.load(FLAGS.model, vocabulary=vocabulary_of_flags)
    if model.model is not None:  # Exports run on what they were made for.
        log_hardware()
    return model
