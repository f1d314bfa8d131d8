"""Fine-tuning from Python, on lists, pandas or `datasets`: the run of a script, without
flags.

    rows ─► <output_dir>/finetune_data/train.jsonl ─► cli.finetune.run
"""

import json
import os
import re
from typing import Any, Mapping, Optional, Sequence, TypedDict, Unpack

from absl import flags

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.checkpoints.run_files import PYTHON_DATA, claim_run_folder
from albert_tf.cli import finetune as command_line
from albert_tf.cli.define import options_in
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.command import ClassificationCommand
from albert_tf.finetuning.squad.command import SquadCommand
from albert_tf.finetuning.tagging.command import TaggingCommand
from albert_tf.from_python import rows
from albert_tf.from_python.rows import Columns, plain
from albert_tf.options import Option, checked
from albert_tf.serving.predict import Model, load
from albert_tf.training.log import Callback

# Task, as in Model.tasks → its command, and its folder in `finetuning`.
_TASKS: dict[str, tuple[Any, str]] = {
    "classify": (ClassificationCommand, "classification"),
    "tag": (TaggingCommand, "tagging"), "answer": (SquadCommand, "squad")}
# Options that other arguments stand for.
_OWN = re.compile(r".*_(file|dir|checkpoint|column)|do_(train|eval|predict)|recipe|"
                  "task_name")
_DEFAULTS = dict(eval_batch_size=32, predict_batch_size=32, num_workers=1)

# The options, for type checkers; tests/test_public_interface.py compares them with those
# of the scripts.
_Flag = Optional[bool]
_Int = Optional[int]
_Float = Optional[float]
_Text = Optional[str]
_List = Optional[str | Sequence[str]]

Options = TypedDict("Options", {
    "albert_dropout_prob": _Float, "allow_partial_init": _Flag,
    "answer_at_threshold": _Flag, "answer_language": _Text,
    "class_weights": None | str | Sequence[str] | Mapping[Any, Any],
    "clip_norm": _Float,
    "config_overrides": _List, "data_format": _Text, "delimiter": _Text,
    "distribution_strategy": _Text, "do_lower_case": _Flag, "doc_stride": _Int,
    "dropout_prob": _Float, "dtype": _Text, "early_stopping": _Int, "end_n_top": _Int,
    "eval_batch_size": _Int, "from_scratch": _Flag, "gradient_accumulation_steps": _Int,
    "header": _Flag, "iterations_per_loop": _Int, "jit_compile": _Flag,
    "keep_checkpoint_max": _Int, "label_all_tokens": _Flag, "label_separator": _Text,
    "label_threshold": _Float, "labels": None | str | Sequence[Any],
    "learning_rate": _Float, "max_answer_length": _Int, "max_query_length": _Int,
    "max_seq_length": _Int, "metric": _Text, "multi_label": _Flag, "n_best_size": _Int,
    "null_score_diff_threshold": _Float, "num_gpus": _Int, "num_length_buckets": _Int,
    "num_seeds": _Int, "num_train_epochs": _Float, "num_train_steps": _Int,
    "num_virtual_cpus": _Int, "num_warmup_steps": _Int, "num_workers": _Int,
    "optimizer": _Text, "random_seed": _Int, "recompute": _Flag, "regression": _Flag,
    "replica_gradients": _Text, "restart_on_failure": _Flag, "resume_from": _Text,
    "save_checkpoints_steps": _Int, "scheme": _Text, "sparse_gradient_norm": _Flag,
    "split_words": _Text, "start_n_top": _Int, "strip_accents": _Flag,
    "strip_numbers": _Flag, "temperature": _Float, "test_tags": _Flag, "tpu": _Text,
    "train_batch_size": _Int, "train_step": _Int, "version_2_with_negative": _Flag,
    "warmup_proportion": _Float, "warmup_step": _Int}, total=False)


def finetune(model: files.StrPath, train: Any, dev: Any = None, *,
             output_dir: files.StrPath,
             task: str = "classify", text: Optional[str] = None,
             text_pair: Optional[str] = None, label: Optional[str] = None,
             probabilities: Optional[str] = None, callbacks: Sequence[Callback] = (),
             resume: bool = False, **options: Unpack[Options]) -> Model:
    """Fine-tunes a model to classify texts, to predict numbers, to tag words or to answer
    questions, and returns the best checkpoint as `albert_tf.load` does.

        model = albert_tf.finetune(
            "albert-base-v2", [("A fine film.", "good"), ("Dull.", "bad")],
            output_dir="runs/reviews")
        model.predict("A fine film.")["label"]

        model = albert_tf.finetune(
            "albert-base-v2", [(["Ada", "writes"], ["B-PER", "O"])], task="tag",
            output_dir="runs/names")

    It is the run of run_classifier.py with --task_name=custom, of run_tagger.py or of
    run_squad.py, with --recipe, and writes the same files. The same call continues a run
    that was stopped, by Ctrl-C for example, which raises KeyboardInterrupt; a call with
    other rows or options is refused, unless `resume` is true.

    Args:
      model: the model to start from, as for `albert_tf.load`.
      train: the training examples: a list of tuples or dicts, a dict of columns, a
        pandas DataFrame, a Dataset of `datasets`, or the path of a file that the script
        reads. The columns by task:

        * classify: (text, label), or (text, text_pair, label).
        * tag: (tokens, tags), lists of words and of tags, or `ner_tags` instead of
          `tags`; or dicts of text and entities, as in JSON lines for run_tagger.py.
        * answer: (question, context, answers), where answers are
          {"text": ["Ada"], "answer_start": [17]} in characters; dicts may have an id.
      dev: likewise, the examples to evaluate on, about ten times; None: none, and the
        last checkpoint is the result.
      output_dir: the folder of the run.
      task: "classify", "tag" or "answer", as in `Model.tasks`.
      text, text_pair, label: the names of the columns, by default those above; text_pair
        is that of second texts, None without. With tuples, they are only the names in
        files.
      probabilities: the name of a column of dicts label → probability, which training
        examples may have and learn in place of the label (docs/DISTILLATION.md).
      resume: continue the run in output_dir also with other rows or options.
      callbacks: functions that get step, metrics and checkpoint (training.log).
      **options: the flags of the script, such as num_train_epochs, learning_rate,
        train_batch_size, max_seq_length, metric, early_stopping, dtype, random_seed;
        for classes labels, regression, multi_label (labels are lists), label_threshold
        and class_weights ("balanced" or a dict), for tags scheme, for questions
        version_2_with_negative. What is left out follows the number and length of the
        training examples (recipes.recipe_for_data).

    Raises:
      InputError: for examples, a model or a folder that do not fit; it names the row,
        counted from 1, and arguments as the flags of their names.
      DivergenceError: if the training diverges.
    """
    if task not in _TASKS:
        raise InputError(f"--task={task} is none of {', '.join(_TASKS)}; give one of "
                         "these.")
    command, folder = _TASKS[task]
    output_dir, model = files.expanded(output_dir), formats.located(model)
    columns = _columns(task, text, text_pair, label, probabilities)
    # 1. The options, as a script has them.
    values = flags.FlagValues()
    command_line.define_options(command, values, **_DEFAULTS)
    values.mark_as_parsed()
    fixed = dict(init_checkpoint=model, output_dir=output_dir, do_train=True,
                 do_eval=dev is not None, recipe=True)
    if task == "classify":
        fixed |= dict(
            task_name="custom", text_column=str(columns.names[0]),
            text_b_column=None if text_pair is None else str(text_pair),
            label_column=str(columns.labels[0]),
            probability_column=None if probabilities is None else str(probabilities))
        _take(values, task, options)
    else:
        fixed |= {"tag_column": label or ""} if task == "tag" else {}
        _take(values, task, {**options, "text": text, "text_pair": text_pair,
                             "probabilities": probabilities})
    for name, value in fixed.items():
        values[name].value = value
    # 2. The rows, which are written to the folder.
    if os.path.realpath(formats.folder_of_model(model)) == os.path.realpath(output_dir):
        raise InputError(f"--output_dir={output_dir} is the folder of the model to start "
                         "from, whose files the run would overwrite; give a new folder.")
    files.make_directory(output_dir, "--output_dir")
    claim_run_folder(output_dir, folder)
    fixed_rows = not resume and holds_checkpoint(output_dir)
    paths = {os.path.join(output_dir, PYTHON_DATA, f"{split}.jsonl"): split
             for split in ("train", "dev")}
    with rows.named({**paths, "--do_eval": "dev"}):
        for (path, split), data in zip(paths.items(), (train, dev)):
            option = "predict_file" if (task, split) == ("answer", "dev") else (
                f"{split}_file")
            if isinstance(data, (str, os.PathLike)):
                values[option].value = files.expanded(data)
            elif data is not None or split == "train":
                rows.write(split, data, columns, path, fixed_rows)
                values[option].value = path
        if "labels" in values and not values.labels:
            values["labels"].value = list(rows.classes_of(train, columns)) or None
        # 3. The run.
        command_line.run(command, values, by_data=True, callbacks=callbacks,
                         changes_allowed=resume)
    return load(output_dir)


def _has_effect(option: Option) -> bool:
    """Returns whether an option of a script is one here, too."""
    return not (_OWN.fullmatch(option.name)
                or {option.needs, option.only_with} & {"do_predict", "export_dir"})


def _take(values: flags.FlagValues, task: str, options: Mapping[str, Any]) -> None:
    """Sets the options that are given; None and "" leave one open."""
    known = {option.name: option for option in options_in(values) if _has_effect(option)}
    for name, value in options.items():
        if value is None or isinstance(value, str) and not value:
            continue
        if name not in known:
            raise InputError(f"--{name} is not an option of task='{task}'; leave it "
                             "out.")
        if name == "class_weights" and isinstance(value, str):
            value = [value]
        elif name == "class_weights" and isinstance(value, Mapping):
            value = [f"{_name(label)}={plain(weight)}" for label, weight in value.items()]
        elif name == "labels" and not isinstance(value, str):
            value = [_name(each) for each in value]
        values[name].value = checked(known[name], value)
        values[name].present = 1


def _name(label: Any) -> str:
    """Returns a label as the readers name it: 1 and True are "1" and "true"."""
    label = plain(label)
    return label if isinstance(label, str) else json.dumps(label, default=str)


def _columns(task: str, text: Optional[str], text_pair: Optional[str],
             label: Optional[str], probabilities: Optional[str]) -> Columns:
    """Returns the columns of a task's rows."""
    if task == "answer":
        return Columns(("question", "context", "answers"), (), ("id", "is_impossible"),
                       "id")
    if task == "tag":
        # Further ones of those that tagging.readers takes.
        others = ("tokens", "words", "text", "entities")
        return Columns(("tokens", label), (label,), others) if label else Columns(
            ("tokens", "tags"), ("tags", "ner_tags"), (*others, "tags", "ner_tags"))
    label = "label" if label is None else label
    pair = () if text_pair is None else (text_pair,)
    return Columns((text or "text", *pair, label), (label,),
                   (label, probabilities) if probabilities else (),
                   advice=" Name them with text, text_pair and label.")
