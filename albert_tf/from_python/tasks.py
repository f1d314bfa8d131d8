"""The tasks that `finetune` trains: their columns, options, and what a run keeps of them.

    columns = columns_of("tag", Arguments())
    plan = PLANS["tag"]({"train": "train.jsonl"}, (), Arguments())
    plan.task.main_metric  # "f1"

A new task is a line of PLANS, of _OPTIONS and of columns_of.
"""

import dataclasses
import json
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import custom
from albert_tf.finetuning.squad import languages
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning.tagging import readers, scoring, task as tagging
from albert_tf.from_python.rows import Columns, plain
from albert_tf.tokenization.cleaning import WORD_SPLITS

MOST = 2 ** 31 - 1

# Task → its options besides those of Arguments, with their defaults. A tuple has all
# values, the default first.
_OPTIONS: dict[str, dict[str, Any]] = {
    "classify": {},
    "tag": {"scheme": ("auto", *scoring.SCHEMES),
            "split_words": ("auto", *WORD_SPLITS), "doc_stride": 64},
    "answer": {"version_2_with_negative": False, "doc_stride": 128,
               "max_query_length": 64, "n_best_size": 20, "max_answer_length": 30,
               "start_n_top": 5, "end_n_top": 5, "answer_language": (
                   "auto", languages.ENGLISH, *languages.CHARACTER_LANGUAGES)},
}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of `finetune` that define a task; the first are for classes, but for
    `label` and `labels`."""

    text: Optional[str] = None
    text_pair: Optional[str] = None
    regression: bool = False
    multi_label: bool = False
    label_threshold: float = LABEL_THRESHOLD
    class_weights: str | Mapping[str, float] = ""
    probabilities: Optional[str] = None
    label: Optional[str] = None
    labels: Optional[Sequence[str]] = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def checked(self, task: str) -> "Arguments":
        """Returns the arguments with the defaults of the task's options. Raises
        InputError for those that the task does not have."""
        if task not in PLANS:
            raise InputError(f"--task={task} is none of {', '.join(PLANS)}; give one of "
                             "these.")
        given, known = dict(self.options), _OPTIONS[task]
        if task != "classify":
            given |= {field.name: getattr(self, field.name)
                      for field in dataclasses.fields(self)[:7 if task == "tag" else 9]
                      if getattr(self, field.name) not in (field.default, None)}
        for name, value in given.items():
            if name not in known:
                raise InputError(
                    f"--{name} is not an option of task='{task}'"
                    + (f", which has {', '.join(known)}" if known else "")
                    + "; leave it out.")
            check(name, value, known[name])
        check("label_threshold", self.label_threshold, Limits(float, 0, 1))
        labels = self.labels
        if isinstance(labels, str):
            raise InputError(f"--labels={labels}: give a list of labels.")
        return dataclasses.replace(
            self, labels=None if labels is None else [_name(each) for each in labels],
            class_weights=self.class_weights if not isinstance(
                self.class_weights, Mapping) else {
                    _name(label): plain(weight)
                    for label, weight in self.class_weights.items()},
            options={**{name: values[0] if isinstance(values, tuple) else values
                        for name, values in known.items()}, **given})


def _name(label: Any) -> str:
    """Returns a label as the readers name it: 1 and True are "1" and "true"."""
    label = plain(label)
    return label if isinstance(label, str) else json.dumps(label, default=str)


class Limits(NamedTuple):
    """The numbers that an argument can be; with `kind` int, whole ones."""

    kind: type
    least: float
    most: float = MOST


def check(name: str, value: Any, values: Any) -> None:
    """Raises InputError if an argument is none of `values`: a tuple, Limits, a default
    that is True or False, or a default that is a whole number from 1."""
    if isinstance(values, bool):
        fits, what = isinstance(value, bool), "True or False"
    elif isinstance(values, (int, Limits)):
        limits = values if isinstance(values, Limits) else Limits(int, 1)
        fits = type(value) in (int, limits.kind) and limits.least <= value <= limits.most
        what = (f"a {'whole ' * (limits.kind is int)}number from {limits.least:g} to "
                f"{limits.most:.15g}")
    else:
        fits, what = value in values, f"one of {', '.join(values)}"
    if not fits:
        raise InputError(f"--{name}={value!r:.40}: give {what}.")


def columns_of(task: str, given: Arguments) -> Columns:
    """Returns the columns of a task's rows."""
    if task == "tag":
        # Further ones of those that tagging.readers takes.
        tags = ("tags", "ner_tags") if given.label is None else (given.label,)
        others = "tokens", "words", "text", "entities"
        return Columns(("tokens", tags[0]), tags, (
            *others, *tags) if given.label is None else others)
    if task == "answer":
        return Columns(("question", "context", "answers"), (), ("id", "is_impossible"),
                       "id")
    *names, label = _columns(given)
    soft = given.probabilities
    return Columns((*(name for name in names if name is not None), label), (label,),
                   () if soft is None else (label, soft),
                   advice=" Name them with text, text_pair and label.")


def _columns(given: Arguments) -> tuple[str, Optional[str], str]:
    """Returns the columns of text, second text and label."""
    return ("text" if given.text is None else given.text, given.text_pair,
            "label" if given.label is None else given.label)


class Plan(NamedTuple):
    """A task and what a run keeps of it.

    Attributes:
      data: split → the path of its data, for `task.read`.
      kept: the entries of task.json that belong to the task.
      flags: the flags that define the task, as its script keeps them in task.json.
      options: the entries of options.json that belong to the task.
      keeps_flags: whether options.json has the flags, too.
      length: the maximum length in tokens; 0: by that of the training examples.
    """

    task: Any  # a FineTuningTask
    data: Mapping[str, str]
    kept: Mapping[str, Any]
    flags: Mapping[str, Any]
    options: Mapping[str, Any]
    keeps_flags: bool = True
    length: int = 0


def _classes(paths: Mapping[str, str], names: Sequence[str], given: Arguments) -> Plan:
    separator = "," if given.multi_label else None
    # Columns of a DataFrame may be numbers.
    text, text_pair, label = (None if name is None else str(name)
                              for name in _columns(given))
    task = custom.build_task({
        split: custom.DataFile(
            path, text or "", text_pair, label, separator=separator,
            probability=given.probabilities if split == "train" else None)
        for split, path in paths.items()},
        labels=given.labels or names or None, regression=given.regression)
    columns = {"text_column": text, "text_b_column": text_pair,
               "label_column": label}
    soft = {"probability_column": given.probabilities} if task.soft else {}
    task = dataclasses.replace(
        task, pairs=text_pair is not None, reading={**columns, **soft},
        label_threshold=given.label_threshold, class_weights=given.class_weights)
    return Plan(
        task, dict.fromkeys(paths, ""),
        {"labels": task.labels, "problem_type": task.problem_type},
        {"task_name": task.name, **columns, "header": True,
         "labels": list(task.labels) or None, "regression": given.regression,
         "multi_label": given.multi_label, "label_separator": separator or ",",
         "label_threshold": given.label_threshold, "delimiter": None},
        {"task_name": task.name, "warmup_step": 0, **soft,
         **({"class_weights": given.class_weights} if given.class_weights else {})},
        keeps_flags=False)


def _tags(paths: Mapping[str, str], names: Sequence[str], given: Arguments) -> Plan:
    options = dict(given.options)
    task = tagging.build_task(
        paths["train"], labels=given.labels or names or None,
        scheme=options["scheme"],
        doc_stride=options["doc_stride"], reading=readers.Reading(
            tag_column=str(given.label or ""), split=options["split_words"]))
    flags = {**options, "labels": list(task.labels), "scheme": task.scheme,
             "split_words": task.reading.split, "tag_column": str(given.label or ""),
             "strip_numbers": task.reading.strip_numbers, "word_column": 0}
    return Plan(task, paths, {"labels": list(task.labels),
                              "head": "token_classification"},
                flags, {"warmup_step": 0})


def _answers(paths: Mapping[str, str], names: Sequence[str], given: Arguments) -> Plan:
    del names
    options = dict(given.options)
    task = SquadTask(options.pop("version_2_with_negative"), must_score=True, **options)
    return Plan(task, {"predict" if split == "dev" else split: path
                       for split, path in paths.items()}, {},
                given.options, {}, length=task.max_seq_length)


# Task, as in Model.tasks → the function that takes the paths of its splits, the names
# of its labels in the data, and the arguments, and returns its Plan.
PLANS: dict[str, Callable[[Mapping[str, str], Sequence[str], Arguments], Plan]] = {
    "classify": _classes, "tag": _tags, "answer": _answers}
# Task → its folder in `finetuning`.
FOLDERS = {"classify": "classification", "tag": "tagging", "answer": "squad"}
