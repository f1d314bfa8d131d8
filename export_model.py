r"""Exports any ALBERT as a SavedModel that takes text, or as a file for other engines.

    python export_model.py --model=runs/sst-2 --export_dir=exported/sst-2
    python export_model.py --model=runs/sst-2 --export_dir=exported/sst-2_int8 \
        --format=onnx --precision=int8

The model is anything that `albert_tf.load` accepts, such as a folder of this project or
of Hugging Face. Lengths and the kind of input are those of its training, if the folder
tells them. docs/EXPORT.md describes the inputs and outputs.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

import dataclasses

from absl import flags

from albert_tf import files
from albert_tf.checkpoints.checkpoint import SEVERAL_LABELS
from albert_tf.cli import flags as cli_flags, model_flags
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue

FLAGS = flags.FLAGS

model_flags.define_flags()
model_flags.define_label_threshold()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16", "float16"],
                  "Type of matrix products and activations in a SavedModel.")
_PORTABLE = ("onnx", "openvino", "tflite")
flags.DEFINE_enum("format", "saved_model", ["saved_model", *_PORTABLE],
                  "Format to write. saved_model takes text or ids. "
                  f"{', '.join(_PORTABLE)}: one file with the graph of one task, which "
                  "takes ids; albert_tf.load, predict.py and serve.py accept the "
                  "folder.")
flags.DEFINE_list("precision", ["float32"],
                  f"For {', '.join(_PORTABLE)}: type of the weights in the file: "
                  "float32, float16, bfloat16 (openvino: 16 bits, computed in bfloat16) "
                  "or int8 (onnx, tflite: one scale per column, integer products). "
                  "For onnx and openvino also several, separated by commas: one file "
                  "each, of which albert_tf.load takes the first.")
_ONLY_PORTABLE = ("fill-mask",)
flags.DEFINE_string("task", None, "Task of the export: classify, tag, answer, choose, "
                    "order, embed or fill-mask (not for saved_model); default: the "
                    "task of the model's head, else embed.")
flags.DEFINE_bool("pairs", None, "For classify and embed: take two texts; default: as "
                  "in training, else one text.")
_SIZES = {
    "max_seq_length": "Maximum number of tokens of a sequence; default: as in "
                      "training, else the number of positions of the model.",
    "doc_stride": "For answer and tag: number of tokens from one window's start to the "
                  "next; default: as in training.",
    "max_query_length": "For answer: maximum number of tokens of a question; longer "
                        "questions are cut; default: as in training.",
    "n_best_size": "For answer (SQuAD 1.1): number of starts and of ends to try in "
                   "each window; default: as in training.",
    "max_answer_length": "For answer: maximum number of tokens of an answer; default: "
                         "as in training.",
    "max_qa_length": "For choose: maximum number of tokens of question and option; "
                     "longer ones are cut; default: as in training."}
# Flag → the tasks on which it has an effect.
_TASKS_OF = {
    "pairs": ("classify", "embed"), "doc_stride": ("answer", "tag"),
    "max_query_length": ("answer",), "n_best_size": ("answer",),
    "max_answer_length": ("answer",), "max_qa_length": ("choose",)}
for _name, _help in _SIZES.items():
    flags.DEFINE_integer(_name, None, _help, lower_bound=1, upper_bound=cli_flags.MOST)
define(cli_flags.ExportOptions)
flags.mark_flag_as_required("export_dir")


def main(argv):
    del argv
    files.new_folder(FLAGS.export_dir, "--export_dir")
    model_flags.check_task()
    is_portable = FLAGS.format != "saved_model"
    if is_portable:
        _check_portable()
    elif FLAGS.precision != ["float32"]:
        raise InputError(
            f"--precision={','.join(FLAGS.precision)} is for --format={', '.join(_PORTABLE)}; "
            "use --dtype to choose the type in which a SavedModel computes.")
    elif FLAGS.task in _ONLY_PORTABLE:
        raise InputError(f"--task={FLAGS.task} is not supported in a SavedModel; give "
                         f"--format={' or '.join(_PORTABLE)}.")
    else:
        cli_flags.check_tensorflow_text(FLAGS.export_text)
    loaded = model_flags.load()
    if FLAGS.label_threshold is not None and loaded.problem_type != SEVERAL_LABELS:
        raise InputError(f"--label_threshold: {FLAGS.model} does not classify texts with "
                         "any number of labels; leave the flag out.")
    if loaded.model is None:
        raise InputError(f"--model={FLAGS.model} is already an export; give the model "
                         "that was exported.")
    if is_portable:
        _export_portable(loaded)
        return
    if not loaded.tokenizer and FLAGS["export_text"].present and FLAGS.export_text:
        raise InputError(
            f"--export_text: {FLAGS.model} holds no vocabulary; give --spm_model_file "
            "or --vocab_file.")
    tasks = [task for task in loaded.tasks() if task not in _ONLY_PORTABLE]
    task = FLAGS.task or next(task for task in tasks if task != "order")
    if task not in tasks:
        raise InputError(f"--task={task}: {FLAGS.model} has no head for it; its tasks "
                         f"are {', '.join(tasks)}.")
    _check_task_flags(task)
    _export(loaded, task, loaded.tokenizer if FLAGS.export_text else None)


def _check_portable():
    """Raises InputError for flags without effect here, and for missing packages."""
    from albert_tf.serving import portable

    if FLAGS.dtype != "float32":
        raise InputError(f"--dtype={FLAGS.dtype} is for --format=saved_model; give "
                         "--precision for the weights of an export for "
                         f"{FLAGS.format}.")
    for name in ("export_text", "pairs"):
        if FLAGS[name].present and FLAGS[name].value:
            raise InputError(f"--{name} is for --format=saved_model: an export for "
                             f"{FLAGS.format} takes ids, and texts become ids in "
                             "Python; leave the flag out.")
    files.check_local(FLAGS.export_dir, "--export_dir")
    portable.check(FLAGS.format, *FLAGS.precision)


def _export_portable(loaded):
    from albert_tf.serving import portable

    if loaded.tokenizer is None:
        raise InputError(
            f"{FLAGS.model} holds no vocabulary, which the export needs; give "
            "--spm_model_file or --vocab_file.")
    sizes = {name: FLAGS[name].value for name in (*_SIZES, "label_threshold")
             if FLAGS[name].value is not None}
    settings = {**loaded.settings, "flags": {
        **loaded.settings.get("flags", {}), **sizes}}
    loaded = dataclasses.replace(loaded, settings=settings)
    _check_length(sizes.get("max_seq_length", 0), loaded.config)
    task = FLAGS.task or next(
        task for task in loaded.tasks() if task not in ("fill-mask", "order"))
    _check_task_flags(task)
    portable.export(loaded, task, FLAGS.export_dir, FLAGS.format, *FLAGS.precision)


def _check_task_flags(task):
    """Raises InputError for flags that have no effect on a task."""
    for name, tasks in _TASKS_OF.items():
        if task not in tasks and FLAGS[name].value is not None:
            raise InputError(f"--{name} has an effect only on the task"
                             f"{'s' * (len(tasks) > 1)} {' and '.join(tasks)}, but "
                             f"this is an export for {task}; leave the flag out.")


def _check_length(length, config):
    longest = config.max_position_embeddings
    if length > longest:
        raise InputError(f"--max_seq_length={length} is more than the {longest} "
                         "positions of the model; give a smaller number.")


def _export(loaded, task, tokenizer):
    from albert_tf.serving.export import export, text_of

    settings = loaded.settings.get("flags", {})
    sizes = {name: FLAGS[name].value or settings.get(name) for name in _SIZES}
    length = sizes.pop("max_seq_length") or loaded.config.max_position_embeddings
    _check_length(length, loaded.config)
    head = loaded.tasks()[task]
    labels = list(head.output_names(loaded.labels)) if head else []
    pairs = True if task == "order" else FLAGS.pairs
    if pairs is None:
        pairs = glue.takes_pairs(loaded.settings)
    threshold = loaded.threshold if head and head.has_threshold else None
    export(loaded.model, head and head.serving(), FLAGS.export_dir, labels, FLAGS.dtype,
           text_of(head, tokenizer, length, labels=labels or None, pairs=pairs,
                   scheme=settings.get("scheme"), split=settings.get("split_words"),
                   label_threshold=settings.get("label_threshold")
                   if FLAGS.label_threshold is None else FLAGS.label_threshold,
                   threshold=threshold, **sizes),
           threshold, loaded.sentence)


if __name__ == "__main__":
    script.run(main)
