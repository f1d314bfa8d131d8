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
from albert_tf.cli import checks, flags as cli_flags, model_flags
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue
from albert_tf.finetuning.race.task import RaceTask
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning.tagging.task import TaggingTask
from albert_tf.options import options_of
from albert_tf.serving.options import Ask

FLAGS = flags.FLAGS

model_flags.define_flags()
model_flags.define_labels()
flags.adopt_module_key_flags(model_flags)
define(Ask, without="task top_k batch_size windows truncated probability_list")
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
flags.DEFINE_string("task", None, "Task of the export: classify, tag, answer, choose, "
                    "order, embed or fill-mask (not for saved_model); default: the "
                    "task of the model's head, else embed.")
flags.DEFINE_bool("pairs", None, "For classify and embed: take two texts; default: as "
                  "in training, else one text.")
flags.DEFINE_integer(
    "max_seq_length", None, "Maximum number of tokens of a sequence; default: as in "
    "training, else 512 (for answer 384), if the model has as many positions.",
    lower_bound=1, upper_bound=cli_flags.MOST)
# Size → the tasks on which it has an effect, if not on all.
_SIZES: dict[str, tuple[str, ...]] = {"max_seq_length": ()}
for _name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length",
              "max_qa_length"):
    _able = {task: option.help for task, kind in (
        ("answer", SquadTask), ("tag", TaggingTask), ("choose", RaceTask))
             for option in options_of(kind) if option.name == _name}
    _SIZES[_name] = tuple(_able)
    flags.DEFINE_integer(
        _name, None, f"For {' and '.join(_able)}: {next(iter(_able.values()))} Default: "
        "as in training.", lower_bound=1, upper_bound=cli_flags.MOST)
define(cli_flags.ExportOptions)
flags.mark_flag_as_required("export_dir")


def main(argv):
    del argv
    files.new_folder(FLAGS.export_dir, "--export_dir")
    is_portable = FLAGS.format != "saved_model"
    if is_portable:
        from albert_tf.serving import portable

        for name in ("dtype", "export_text", "pairs"):
            value = FLAGS[name].value
            if FLAGS[name].present and value and value != "float32":
                raise InputError(f"--{name}={value} is for --format=saved_model: an "
                                 f"export for {FLAGS.format} takes ids, and has the "
                                 "type of --precision; leave the flag out.")
        files.check_local(FLAGS.export_dir, "--export_dir")
        portable.check(FLAGS.format, *FLAGS.precision)
    else:
        checks.check_needs("precision", False, f"--format={' or '.join(_PORTABLE)}")
        files.check_in_tensorflow(FLAGS.export_dir, "--export_dir")
        cli_flags.check_tensorflow_text(FLAGS.export_text)
    loaded = model_flags.load()
    if loaded.model is None:
        raise InputError(f"--model={FLAGS.model} is already an export; give the model "
                         "that was exported.")
    if loaded.tokenizer is None and (
            is_portable or FLAGS["export_text"].present and FLAGS.export_text):
        raise InputError(f"--export_text: {FLAGS.model} holds no vocabulary; give "
                         "--spm_model_file or --vocab_file.")
    tasks = [task for task in loaded.tasks() if is_portable or task != "fill-mask"]
    task = FLAGS.task or next(
        task for task in tasks if task not in ("fill-mask", "order"))
    if task not in tasks:
        raise InputError(f"--task={task}: {FLAGS.model} has no head for it; its tasks "
                         f"are {', '.join(tasks)}.")
    if FLAGS.label_threshold is not None:
        loaded.check(Ask(task, label_threshold=FLAGS.label_threshold))
    for name, able in {**_SIZES, "pairs": ("classify", "embed")}.items():
        if FLAGS[name].value is not None and able and task not in able:
            raise InputError(f"--{name} has an effect only on {' and '.join(able)}; this "
                             f"is an export for {task}. Leave the flag out.")
    settings = {**loaded.settings.get("flags", {}), **{
        name: FLAGS[name].value for name in (*_SIZES, "label_threshold")
        if FLAGS[name].value is not None}}
    longest = loaded.config.max_position_embeddings
    if (FLAGS.max_seq_length or 0) > longest:
        raise InputError(f"--max_seq_length={FLAGS.max_seq_length} is more than the "
                         f"{longest} positions of the model; give a smaller number.")
    loaded = dataclasses.replace(
        loaded, settings={**loaded.settings, "flags": settings})
    if is_portable:
        portable.export(loaded, task, FLAGS.export_dir, FLAGS.format, *FLAGS.precision)
    else:
        _export_saved_model(loaded, task)


def _export_saved_model(loaded, task):
    from albert_tf.serving.export import export, text_of

    head = loaded.tasks()[task]
    labels = list(head.output_names(loaded.labels)) if head else []
    pairs = True if task == "order" else FLAGS.pairs
    if pairs is None:
        pairs = glue.takes_pairs(loaded.settings)
    threshold = loaded.threshold if head and head.has_threshold else None
    text = None
    if FLAGS.export_text and loaded.tokenizer is not None:
        # Lengths and windows are those of predict.py.
        answering, flags_of_task = loaded.head(task), loaded.settings["flags"]
        text = text_of(head, loaded.tokenizer, **{
            **flags_of_task, **getattr(getattr(answering, "task", None), "__dict__", {}),
            "max_seq_length": answering.max_length, "labels": labels or None,
            "pairs": pairs, "threshold": threshold,
            "split": flags_of_task.get("split_words")})
    export(loaded.model, head and head.serving(), FLAGS.export_dir, labels, FLAGS.dtype,
           text, threshold, loaded.sentence, loaded.settings)


if __name__ == "__main__":
    script.run(main)
