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
from typing import Optional

from absl import flags

from albert_tf import files
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import check_needs, define
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue
from albert_tf.finetuning.race.task import RaceTask
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning.tagging.task import TaggingTask
from albert_tf.options import MOST, option, options_of
from albert_tf.serving.options import Ask

FLAGS = flags.FLAGS

_PORTABLE = ("onnx", "openvino", "tflite")
_SAVED = "format=saved_model"


@dataclasses.dataclass(frozen=True)
class Options:
    """What is written."""

    dtype: str = option(
        "float32", "Type of matrix products and activations in a SavedModel.",
        choices=["float32", "bfloat16", "float16"], only_with=_SAVED)
    format: str = option(
        "saved_model", "Format to write. saved_model takes text or ids. "
        f"{', '.join(_PORTABLE)}: one file with the graph of one task, which takes ids; "
        "albert_tf.load, predict.py and serve.py accept the folder.",
        choices=["saved_model", *_PORTABLE])
    precision: list[str] = option(
        ("float32",), f"For {', '.join(_PORTABLE)}: type of the weights in the file: "
        "float32, float16, bfloat16 (openvino: 16 bits, computed in bfloat16) or int8 "
        "(onnx, tflite: one scale per column, integer products). For onnx and openvino "
        "also several, separated by commas: one file each, of which albert_tf.load "
        "takes the first.",
        only_with=" ".join(f"format={name}" for name in _PORTABLE))
    task: Optional[str] = option(
        None, "Task of the export: classify, tag, answer, choose, order, embed or "
        "fill-mask (not for saved_model); default: the task of the model's head, else "
        "embed.")
    pairs: Optional[bool] = option(
        None, "For classify and embed: take two texts; default: as in training, else one "
        "text.", only_with=_SAVED)
    max_seq_length: Optional[int] = option(
        None, "Maximum number of tokens of a sequence; default: as in training, else 512 "
        "(for answer 384), if the model has as many positions.", least=1)


define(cli_flags.UsedModel, Options, cli_flags.ExportOptions, without="engine")
flags.mark_flag_as_required("export_dir")
define(Ask, without="task top_k batch_size windows truncated probability_list")
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
        "as in training.", lower_bound=1, upper_bound=MOST)


def main(argv):
    files.check_new(FLAGS.export_dir, "--export_dir")
    is_portable = FLAGS.format != "saved_model"
    check_needs()
    if is_portable:
        from albert_tf.serving import portable

        files.check_local(FLAGS.export_dir, "--export_dir")
        portable.check(FLAGS.format, *FLAGS.precision)
    else:
        files.check_in_tensorflow(FLAGS.export_dir, "--export_dir")
        script.check_packages(*["tensorflow_text"] * FLAGS.export_text)
    loaded = cli_flags.load_model()
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
            **flags_of_task, "task": getattr(answering, "task", None),
            "max_seq_length": answering.max_length, "labels": labels or None,
            "pairs": pairs, "threshold": threshold})
    export(loaded.model, head and head.serving(), FLAGS.export_dir, labels, FLAGS.dtype,
           text, threshold, loaded.sentence, loaded.settings)


if __name__ == "__main__":
    script.run(main)
