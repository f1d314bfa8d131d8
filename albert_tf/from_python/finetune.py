"""Fine-tuning from Python, on lists, pandas or `datasets`: the run of a script, without
flags.

    rows ─► <output_dir>/finetune_data/train.jsonl ─► cli.finetune.run

Rows become a file, so that they are read, checked, compared with those of a run that is
resumed, and named in errors as a user's files are.
"""

import contextlib
import json
import os
import re
from typing import (
    Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Sized)

from absl import flags

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import PYTHON_DATA, claim_run_folder, holds_checkpoint
from albert_tf.cli import finetune as command_line, flags as cli_flags
from albert_tf.cli.define import options_in
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.command import ClassificationCommand
from albert_tf.finetuning.squad.task import SquadCommand
from albert_tf.finetuning.tagging.command import TaggingCommand
from albert_tf.options import checked
from albert_tf.serving.predict import Model, load
from albert_tf.training.log import Callback

# The tasks, as in Model.tasks.
_TASKS: dict[str, Any] = {
    "classify": ClassificationCommand, "tag": TaggingCommand, "answer": SquadCommand}
# Options that other arguments stand for.
_OWN = re.compile(r".*_(file|dir|checkpoint|column)|do_(train|eval|predict)|recipe|"
                  "task_name")


class _Columns(NamedTuple):
    """The columns of a task's rows."""

    names: tuple[Any, ...]  # those of a tuple, in its order
    labels: tuple[Any, ...]  # those whose numbers may have names
    others: tuple[Any, ...] = ()  # further ones that are read, if they are there


def finetune(model: files.StrPath, train: Any, dev: Any = None, *,
             output_dir: files.StrPath,
             task: str = "classify", text: Optional[str] = None,
             text_pair: Optional[str] = None, label: Optional[str] = None,
             probabilities: Optional[str] = None, callbacks: Sequence[Callback] = (),
             resume: bool = False, **options: Any) -> Model:
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
    command, output_dir = _TASKS[task], files.expanded(output_dir)
    # 1. The options, as a script has them.
    values = flags.FlagValues()
    command_line.define_options(command, values, eval_batch_size=32,
                                predict_batch_size=32, num_workers=1)
    values.mark_as_parsed()
    fixed = dict(init_checkpoint=formats.located(model), output_dir=output_dir,
                 do_train=True, do_eval=dev is not None, recipe=True)
    if task == "classify":
        first, label = text or "text", "label" if label is None else label
        columns = _Columns(
            tuple(name for name in (first, text_pair, label) if name is not None),
            (label,), (probabilities,) if probabilities else ())
        fixed |= {"task_name": "custom", **{
            f"{name}_column": None if value is None else str(value) for name, value in (
                ("text", first), ("text_b", text_pair), ("label", label),
                ("probability", probabilities))}}
    else:
        options |= dict(text=text, text_pair=text_pair, probabilities=probabilities)
        columns = _Columns(("question", "context", "answers"), (),
                           ("id", "is_impossible"))
        if task == "tag":
            fixed["tag_column"] = label or ""
            columns = _Columns(("tokens", label or "tags"), (
                (label,) if label else ("tags", "ner_tags")), (
                    "words", "text", "entities", *["ner_tags"] * (not label)))
    _take(values, task, options)
    for name, value in fixed.items():
        values[name].value = value
    # 2. The rows, which are written to the folder.
    paths = {os.path.join(output_dir, PYTHON_DATA, f"{split}.jsonl"): split
             for split in ("train", "dev")}
    with _named({**paths, "--do_eval": "dev", "--init_checkpoint": "the model"}):
        cli_flags.check_output_dir(values)
        files.make_directory(output_dir, "--output_dir")
        claim_run_folder(output_dir, command.__module__.split(".")[-2])
        fixed_rows = not resume and holds_checkpoint(output_dir)
        for (path, split), data in zip(paths.items(), (train, dev)):
            option = "predict_file" if (task, split) == ("answer", "dev") else (
                f"{split}_file")
            if isinstance(data, (str, os.PathLike)):
                values[option].value = files.expanded(data)
            elif data is not None or split == "train":
                _write(split, data, columns, path, fixed_rows)
                values[option].value = path
        if "labels" in values and not values.labels:
            values["labels"].value = _classes_of(train, columns.labels) or None
        # 3. The run.
        command_line.run(command, values, by_data=True, callbacks=callbacks,
                         changes_allowed=resume)
    return load(output_dir)


def _take(values: flags.FlagValues, task: str, options: Mapping[str, Any]) -> None:
    """Sets the options that are given; None and "" leave one open."""
    known = {option.name: option for option in options_in(values)
             if not _OWN.fullmatch(option.name) and not (
                 {option.needs, option.only_with} & {"do_predict", "export_dir"})}
    for name, value in options.items():
        if value is None or isinstance(value, str) and not value:
            continue
        if name not in known:
            raise InputError(f"--{name} is not an option of task='{task}'; leave it "
                             "out.")
        if name == "class_weights" and isinstance(value, str):
            value = [value]
        elif name == "class_weights" and isinstance(value, Mapping):
            value = [f"{_name(label)}={_plain(weight)}"
                     for label, weight in value.items()]
        elif name == "labels" and not isinstance(value, str):
            value = [_name(each) for each in value]
        values[name].value, values[name].present = checked(known[name], value), 1


def _name(label: Any) -> str:
    """Returns a label as the readers name it: 1 and True are "1" and "true"."""
    label = _plain(label)
    return label if isinstance(label, str) else json.dumps(label, default=str)


@contextlib.contextmanager
def _named(names: Mapping[str, str]) -> Iterator[None]:
    """Gives files and flags in errors the names of the arguments that they stand for:
    "train, row 3" in place of a path and "line 3"."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for there, name in names.items():
            if there in text:
                text = re.sub(rf"{re.escape(there)}, line (\d+)", rf"{name}, row \1", text)
                text = text.replace(there, name).replace("the line", "the row")
        raise type(error)(text) from error


# ---- rows --------------------------------------------------------------------


def _write(split: str, data: Any, columns: _Columns, path: str, fixed: bool) -> None:
    """Writes the rows as JSON lines. With `fixed`, those that are there must be the
    same."""
    classes, number = _classes_of(data, columns.labels), 0
    # The workers of a cluster write the same file.
    with files.staged(path, end=f"{files.INCOMPLETE}-{os.urandom(4).hex()}") as (staged,):
        with files.open_binary(staged, "wb") as stream:
            for number, row in enumerate(_rows(split, data, columns), 1):
                values = {str(name): _named_label(value, classes) if (
                    name in columns.labels) else value
                          for name, value in _plain(row).items()}
                if "id" in columns.others:  # Of a question, which needs a text.
                    values["id"] = str(row.get("id", number))
                try:
                    line = json.dumps(values, ensure_ascii=False).encode()
                except (TypeError, UnicodeEncodeError) as error:
                    raise InputError(f"{split}, row {number}: a value is no text, number "
                                     f"or list of them ({error}).") from error
                stream.write(line + b"\n")
        if not number:
            raise InputError(
                f"{split} has no examples with {' and '.join(map(str, columns.names))}; "
                "give some" + ", or leave it out" * (split == "dev") + ".")
        if fixed and files.exists(path) and files.sha256(staged) != files.sha256(path):
            raise InputError(
                f"{split} has other rows than the run in --output_dir, which would only "
                "be continued; choose a different --output_dir, or give resume=True.")


def _rows(split: str, data: Any, columns: _Columns) -> Iterator[dict[Any, Any]]:
    """Yields the values of the columns, if a row has them: the reader of the file
    refuses rows that lack some."""
    used = (*columns.names, *columns.others)
    if isinstance(data, Mapping) or hasattr(data, "iloc"):  # columns, or a DataFrame
        names = [name for name in used if name in data.keys()]
        cells = [data[name] for name in names]
        if any(isinstance(each, (str, Mapping)) or not isinstance(each, Sized)
               for each in cells) or len({*map(len, cells)}) > 1:
            raise InputError(
                f"{split}: the columns {', '.join(map(repr, names))} must be lists with "
                "a value for each row; a single example is a list of one dict.")
        data = (dict(zip(names, row)) for row in zip(*cells))
    if isinstance(data, (bytes, type)) or not isinstance(data, Iterable):
        raise InputError(f"{split} is a {type(data).__name__}; give a list of tuples or "
                         "dicts, a DataFrame, a Dataset or a file.")
    for number, row in enumerate(data, 1):
        if isinstance(row, (tuple, list)) and len(row) == len(columns.names):
            row = dict(zip(columns.names, row))
        if not isinstance(row, Mapping):
            raise InputError(
                f"{split}, row {number} is {row!r:.60}; each example must be a tuple "
                f"({', '.join(map(str, columns.names))}), or a dict with these keys.")
        yield {name: row[name] for name in used if name in row}


def _classes_of(data: Any, names: Sequence[Any]) -> list[str]:
    """Returns the names of the labels in these columns, if the data name them."""
    features = getattr(data, "features", None)
    features = features if isinstance(features, Mapping) else {}
    feature = next((features[name] for name in names if name in features), None)
    # A list of labels has the names in its elements.
    return list(getattr(getattr(feature, "feature", feature), "names", None) or ())


def _named_label(label: Any, classes: Sequence[str]) -> Any:
    """Returns the names of a label that is a number in the data's list of names."""
    if isinstance(label, list):
        return [_named_label(each, classes) for each in label]
    if not classes or not isinstance(label, int) or isinstance(label, bool):
        return label
    return classes[label] if 0 <= label < len(classes) else None


def _plain(value: Any) -> Any:
    """Returns a value of NumPy or pandas as one of Python; what stands for a missing one,
    such as NaN, as None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(map(_plain, sorted(value, key=str) if isinstance(
            value, (set, frozenset)) else value))
    try:
        return value if value == value else None
    except TypeError:  # pandas.NA, which is neither true nor false
        return None
