r"""Writes any ALBERT as a SavedModel that takes text, or small, for other engines.

    python export_model.py --model=runs/sst-2 --export_dir=exported/sst-2
    python export_model.py --model=runs/sst-2 --export_dir=exported/sst-2_int8 \
        --format=onnx --precision=int8

The model is whatever `albert_tf.load` takes: a run here, a folder of Hugging Face, ...
Lengths and the kind of input are those of its training, where the folder tells them.
What goes in and comes out: docs/SERVING.md.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses

from absl import flags

from albert_tf import files
from albert_tf.cli import finetuning_flags, flags as cli_flags, model_flags
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue

FLAGS = flags.FLAGS

model_flags.define_flags()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16", "float16"],
                  "Of products and activations.")
_PORTABLE = ("onnx", "openvino", "tflite")
flags.DEFINE_enum("format", "saved_model", ["saved_model", *_PORTABLE],
                  f"{', '.join(_PORTABLE)}: the graph of one task in one file, for ids, "
                  "each weight in it once; albert_tf.load, predict.py and serve.py take "
                  "the folder.")
flags.DEFINE_enum("precision", "float32", ["float32", "float16", "bfloat16", "int8"],
                  "Of what is no SavedModel: of the weights in the file. bfloat16 "
                  "(openvino): 16 bits, computed in bfloat16. int8 (onnx, tflite): a "
                  "scale for each column, products of integers.")
_ONLY_PORTABLE = ("fill-mask",)
flags.DEFINE_string("task", None, "What the export does: classify, tag, answer, choose, "
                    "order, embed or, no SavedModel, fill-mask; default: what the model's "
                    "head is for, else embed.")
flags.DEFINE_bool("pairs", None, "classify, embed: whether it takes two texts; default: "
                  "as in training, else no.")
_SIZES = {
    "max_seq_length": "Pieces of a sequence; default: as in training, else all that "
                      "the model has positions for.",
    "doc_stride": "answer, tag: pieces from one window's start to the next.",
    "max_query_length": "answer: pieces that are kept of a question.",
    "n_best_size": "answer: starts and ends of a window that are tried (SQuAD 1.1).",
    "max_answer_length": "answer: pieces of the longest answer.",
    "max_qa_length": "choose: pieces that are kept of question and option."}
for _name, _help in _SIZES.items():
    flags.DEFINE_integer(_name, None, _help, lower_bound=1, upper_bound=cli_flags.MOST)
finetuning_flags.define_export_flags()
flags.mark_flag_as_required("export_dir")


def main(argv):
    del argv
    if files.exists(FLAGS.export_dir):
        raise InputError(
            f"--export_dir={FLAGS.export_dir} is there already; choose another.")
    model_flags.check_task()
    portably = FLAGS.format != "saved_model"
    if portably:
        _check_portable()
    elif FLAGS.precision != "float32":
        raise InputError(
            f"--precision={FLAGS.precision} is for --format={', '.join(_PORTABLE)}; a "
            "SavedModel computes in another type by --dtype.")
    elif FLAGS.task in _ONLY_PORTABLE:
        raise InputError(f"--task={FLAGS.task}: no SavedModel does it; give "
                         f"--format={' or '.join(_PORTABLE)}.")
    else:
        finetuning_flags.check_tensorflow_text()
    loaded = model_flags.load()
    if loaded.model is None:
        raise InputError(f"--model={FLAGS.model} is an export already; give the model "
                         "that it was made from.")
    if portably:
        _export_portable(loaded)
        return
    if not loaded.tokenizer and FLAGS["export_text"].present and FLAGS.export_text:
        raise InputError(
            f"--export_text: {FLAGS.model} holds no vocabulary; give --spm_model_file "
            "or --vocab_file.")
    tasks = [task for task in loaded.tasks() if task not in _ONLY_PORTABLE]
    task = FLAGS.task or next(task for task in tasks if task != "order")
    if task not in tasks:
        raise InputError(f"--task={task}: {FLAGS.model} has no head for it, but could "
                         f"{', '.join(tasks)}.")
    _export(loaded, task, loaded.tokenizer if FLAGS.export_text else None)


def _check_portable():
    """Refuses flags that say nothing here, and packages that are missing."""
    from albert_tf.serving import portable

    if FLAGS.dtype != "float32":
        raise InputError(f"--dtype={FLAGS.dtype} is for --format=saved_model; give "
                         "--precision for the weights of an export for "
                         f"{FLAGS.format}.")
    for name in ("export_text", "pairs"):
        if FLAGS[name].present and FLAGS[name].value:
            raise InputError(f"--{name} is for --format=saved_model: an export for "
                             f"{FLAGS.format} takes ids; one text or two become ids in "
                             "Python.")
    portable.check(FLAGS.format, FLAGS.precision)


def _export_portable(loaded):
    from albert_tf.serving import portable

    if loaded.tokenizer is None:
        raise InputError(
            f"{FLAGS.model} holds no vocabulary, which is put beside the exported "
            "model; give --spm_model_file or --vocab_file.")
    given = {name: FLAGS[name].value for name in _SIZES
             if FLAGS[name].value is not None}
    settings = {**loaded.settings, "flags": {
        **loaded.settings.get("flags", {}), **given}}
    loaded = dataclasses.replace(loaded, settings=settings)
    _check_length(given.get("max_seq_length", 0), loaded.config)
    task = FLAGS.task or next(
        task for task in loaded.tasks() if task not in ("fill-mask", "order"))
    portable.export(loaded, task, FLAGS.export_dir, FLAGS.format, FLAGS.precision)


def _check_length(length, config):
    longest = config.max_position_embeddings
    if length > longest:
        raise InputError(f"--max_seq_length={length} is over the {longest} positions "
                         "that the model has.")


def _export(loaded, task, tokenizer):
    from albert_tf.serving.export import export, text_of

    kept = loaded.settings.get("flags", {})
    sizes = {name: FLAGS[name].value or kept.get(name) for name in _SIZES}
    length = sizes.pop("max_seq_length") or loaded.config.max_position_embeddings
    _check_length(length, loaded.config)
    head = loaded.tasks()[task]
    labels = list(head.output_names(loaded.labels)) if head else []
    pairs = True if task == "order" else FLAGS.pairs
    if pairs is None:
        known = glue.TASKS.get(str(loaded.settings.get("task")))
        pairs = known.pairs if known else bool(kept.get("text_b_column")) or None
    threshold = loaded.threshold if head and head.has_threshold else None
    export(loaded.model, head and head.serving(), FLAGS.export_dir, labels, FLAGS.dtype,
           text_of(head, tokenizer, length, labels=labels or None, pairs=pairs,
                   scheme=kept.get("scheme"), split=kept.get("split_words"),
                   threshold=threshold, **sizes),
           threshold, loaded.sentence)


if __name__ == "__main__":
    script.run(main)
