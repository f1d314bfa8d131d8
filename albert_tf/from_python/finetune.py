"""Fine-tuning from Python, on lists, pandas or `datasets`: the run of a script, without
flags.

    rows ─► <output_dir>/finetune_data/train.jsonl ─► cli.finetune.run

Rows become a file, so that they are read, checked, compared with those of a run that is
resumed, and named in errors as a user's files are.
"""

import hashlib
import json
import os
import re
from typing import Any, Iterator, Mapping, Optional, Sequence, Sized

from absl import flags

from albert_tf import files, rows
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import PYTHON_DATA, claim_run_folder, holds_checkpoint
from albert_tf.cli import finetune as command_line, flags as cli_flags
from albert_tf.cli.define import options_in
from albert_tf.config import refuse
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.command import ClassificationCommand
from albert_tf.finetuning.classification.task import BALANCED
from albert_tf.finetuning.squad.task import SquadCommand
from albert_tf.finetuning.tagging.task import TaggingCommand
from albert_tf.options import checked
from albert_tf.serving.predict import Model, load
from albert_tf.training.log import Callback

# The tasks, as in Model.tasks.
_TASKS: dict[str, Any] = {
    "classify": ClassificationCommand, "tag": TaggingCommand, "answer": SquadCommand}
# Options that other arguments stand for.
_OWN = re.compile(r".*_(file|dir|checkpoint|column)|do_(train|eval|predict)|recipe|"
                  "task_name")


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

    It is the run of run_classifier.py with --task_name=custom, of run_tagger.py or of
    run_squad.py, with --recipe, and writes the same files. The same call continues a run
    that was stopped, by Ctrl-C for example, which raises KeyboardInterrupt.

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
      dev: likewise, the examples to evaluate on, about ten times; with None, the last
        checkpoint is the result.
      output_dir: the folder of the run.
      task: "classify", "tag" or "answer", as in `Model.tasks`.
      text, text_pair, label: the names of the columns, by default those above.
      probabilities: the name of a column of dicts label → probability, which training
        examples may have and learn in place of the label (docs/DISTILLATION.md).
      callbacks: functions that get step, metrics and checkpoint (training.log).
      resume: continue the run in output_dir also with other rows or options, which are
        refused otherwise.
      **options: the flags of the script, as its --help describes them; `labels` is a
        list, and `class_weights` may be a dict. What is left out follows the number and
        length of the training examples (recipes.recipe_for_data).

    Errors name the row, counted from 1, or its line in finetune_data/, and arguments as
    the flags of their names.
    """
    refuse({"task": task}, "finetune", "give one of these", task=_TASKS)
    command, output_dir = _TASKS[task], files.expanded(output_dir)
    # 1. The options, as a script has them.
    values = flags.FlagValues()
    command_line.define_options(command, values, eval_batch_size=32,
                                predict_batch_size=32, num_workers=1)
    values.mark_as_parsed()
    fixed = dict(init_checkpoint=formats.located(model), output_dir=output_dir,
                 do_train=True, do_eval=dev is not None, recipe=True)
    if task == "classify":
        text, label = text or "text", label or "label"
        names = [name for name in (text, text_pair, label) if name]
        more = [probabilities] if probabilities else []
        fixed |= dict(task_name="custom", text_column=text, text_b_column=text_pair,
                      label_column=label, probability_column=probabilities)
    else:
        names, more = ["question", "context", "answers"], ["id", "is_impossible"]
        options |= dict(text=text, text_pair=text_pair, probabilities=probabilities)
        if task == "tag":
            fixed["tag_column"] = label or ""
            names, more = ["tokens", label or "tags"], [
                "words", "text", "entities", *["ner_tags"] * (not label)]
        else:
            options["label"] = label
    _take(values, task, options)
    for name, value in fixed.items():
        values[name].value = value
    # 2. The rows, which are written to the folder.
    cli_flags.check_output_dir(values)
    claim_run_folder(output_dir, command.__module__.split(".")[-2])
    for split, option, data in zip(
            ("train", "dev"), command(values).data_options.values(), (train, dev)):
        if isinstance(data, (str, os.PathLike)):
            values[option].value = files.expanded(data)
        elif data is not None or split == "train":
            values[option].value = path = os.path.join(
                output_dir, PYTHON_DATA, f"{split}.jsonl")
            _write(split, b"".join(_lines(split, data, names, more)), path,
                   fixed=not resume and holds_checkpoint(output_dir))
    if "labels" in values and not values.labels:
        values["labels"].value = _classes_of(train, names[-1], "ner_tags") or None
    # 3. The run.
    command_line.run(command, values, by_data=True, callbacks=callbacks,
                     changes_allowed=resume)
    return load(output_dir)


def _take(values: flags.FlagValues, task: str, options: Mapping[str, Any]) -> None:
    """Sets the options that are given; None and "" leave one open."""
    known = {option.name: option for option in options_in(values)
             if not _OWN.fullmatch(option.name)}
    for name, value in options.items():
        if value is None or isinstance(value, str) and not value:
            continue
        if name not in known:
            raise InputError(f"--{name} is not an option of task='{task}'; leave it out.")
        if name == "class_weights":
            value = [f"{_name(label)}={weight}" for label, weight in value.items()] if (
                isinstance(value, Mapping)) else [value] if value == BALANCED else value
        elif name == "labels" and not isinstance(value, str):
            value = [*map(_name, value)]
        values[name].value, values[name].present = checked(known[name], value), 1


def _name(label: Any) -> str:
    """Returns a label as the readers name it: 1 and True are "1" and "true"."""
    return label if isinstance(label, str) else json.dumps(label, default=_plain)


# ---- rows --------------------------------------------------------------------


def _write(split: str, lines: bytes, path: str, fixed: bool) -> None:
    """Writes lines. With `fixed`, those that are there must be the same."""
    if not lines:
        raise InputError(f"{split} has no examples; give some"
                         + ", or leave it out" * (split == "dev") + ".")
    if fixed and files.exists(path) and (
            files.sha256(path) != hashlib.sha256(lines).hexdigest()):
        raise InputError(
            f"{split} has other rows than the run in --output_dir, which would only be "
            "continued; choose a different --output_dir, or give resume=True.")
    with files.atomic_write(path, shared=True) as stream:  # by the workers of a cluster
        stream.write(lines)


def _lines(split: str, data: Any, names: Sequence[str], more: Sequence[str]
           ) -> Iterator[bytes]:
    """Yields rows as JSON lines of a task's columns, if a row has them: the reader of the
    file refuses rows that lack some. `names` are those of a tuple, in its order, `more`
    others that are read."""
    classes = {name: _classes_of(data, name) for name in (*names, *more)}
    if isinstance(data, Mapping) or hasattr(data, "iloc"):  # columns, or a DataFrame
        cells = {name: data[name] for name in classes if name in data.keys()}
        if any(isinstance(each, (str, Mapping)) or not isinstance(each, Sized)
               for each in cells.values()) or len({*map(len, cells.values())}) > 1:
            raise InputError(
                f"{split}: the columns {', '.join(map(repr, cells))} must be lists with "
                "a value for each row; a single example is a list of one dict.")
        data = (dict(zip(cells, row)) for row in zip(*cells.values()))
    for number, row in enumerate(data, 1):
        if isinstance(row, (tuple, list)) and len(row) == len(names):
            row = dict(zip(names, row))
        if not isinstance(row, Mapping):
            raise InputError(f"{split}, row {number} is {row!r:.60}; each example must be "
                             f"a tuple ({', '.join(names)}), or a dict with these keys.")
        try:
            row = {name: _value(row[name], labels)
                   for name, labels in classes.items() if name in row}
            if "id" in more:  # of a question, which needs a text
                row["id"] = str(number if row.get("id") is None else row["id"])
            line = json.dumps(row, ensure_ascii=False, default=_plain).encode()
        except (TypeError, IndexError, UnicodeEncodeError) as error:
            raise InputError(f"{split}, row {number}: a value is no text, number or list "
                             f"of them ({error}).") from error
        yield line + b"\n"


def _classes_of(data: Any, *names: str) -> list[str]:
    """Returns the names of the labels in the first of these columns that a Dataset has."""
    features = getattr(data, "features", None)  # A DataFrame may have such a column.
    feature = next((features[name] for name in names if name in features), None) if (
        isinstance(features, Mapping)) else None
    # A list of labels has the names in its elements.
    return list(getattr(getattr(feature, "feature", feature), "names", None) or ())


def _value(value: Any, labels: Sequence[str]) -> Any:
    """Returns a value by the name that it has in `labels`; None if it is missing."""
    # Missing values of NumPy and pandas, whose NA is neither true nor false.
    if not isinstance(value, (str, list)) and str(value) in ("nan", "<NA>", "NaT"):
        return None
    return rows.named(value.tolist() if hasattr(value, "tolist") else value, labels)


def _plain(value: Any) -> Any:
    """Returns a value of NumPy, or a set, as json.dumps writes it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.40}")
