"""The common form of all formats: tensors named as in the original implementation, and
a report. No arithmetic is done on numbers: converting there and back changes no bit.

A format is a module with `read(folder, ...)`, `check(checkpoint)`, which returns it in the
form that is written, and `write(checkpoint, folder)`. formats.py finds the module that
reads a folder, and table.py has what formats share.
"""

import dataclasses
import functools
import importlib
import math
import os
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.vocabulary import elsewhere
from albert_tf.config import AlbertConfig, refuse, shown
from albert_tf.errors import InputError
from albert_tf.modeling.head import Head
from albert_tf.modeling.parameter_count import Shape, encoder_shapes
from albert_tf.tokenization.cleaning import Rules

# The known heads: name → the module that defines it, and a variable that every
# checkpoint with this head has. To add a head, add a line here.
HEADS = {
    "masked_lm": ("albert_tf.modeling.heads", "cls/predictions/output_bias"),
    "sentence_order": ("albert_tf.modeling.heads", "cls/seq_relationship/output_weights"),
    "classification": ("albert_tf.finetuning.classification.head", "output_weights"),
    "multiple_choice": ("albert_tf.finetuning.race.head", "output_weights"),
    "token_classification": ("albert_tf.finetuning.tagging.head", "output_weights"),
    "spans": ("albert_tf.finetuning.squad.head", "cls/squad/output_weights"),
    "conditional_spans": ("albert_tf.finetuning.squad.head", "start_logits/dense/kernel")}

# Heads whose output layer has no scope in the original. The names of the tensors do not
# tell them apart; other files in the folder do.
ROOT_HEADS = tuple(name for name, (_, variable) in HEADS.items()
                   if variable == "output_weights")
# What the outputs of a classification head are, by transformers' names: numbers, or the
# scores of labels of which a text has exactly one, or any number.
PROBLEMS = REGRESSION, ONE_LABEL, SEVERAL_LABELS = (
    "regression", "single_label_classification", "multi_label_classification")
# If a text has any number of labels, it is given those from this probability on.
LABEL_THRESHOLD = 0.5
# The reason for dropping a tensor that a model with a different config would use.
UNEXPECTED = "extra within the model's own names"
# Types whose numbers float32 represents exactly.
TYPES = ("float32", "float16", "bfloat16")


@dataclasses.dataclass
class Report:
    """A report on every tensor: matched, dropped or missing; all that a model lacks, or
    that may be new, keep their values when it is restored."""

    source: str
    matched: dict[str, str] = dataclasses.field(default_factory=dict)  # ours → theirs
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)  # theirs → why
    missing: list[str] = dataclasses.field(default_factory=list)  # ours
    notes: list[str] = dataclasses.field(default_factory=list)
    mismatched: dict[str, str] = dataclasses.field(default_factory=dict)  # ours → shapes
    new: list[str] = dataclasses.field(default_factory=list)  # ours

    @property
    def unexpected(self) -> list[str]:
        """The dropped tensors that a model with a different config would use."""
        return [name for name, why in self.dropped.items() if why == UNEXPECTED]

    @property
    def complete(self) -> bool:
        """True if no tensor is missing, mismatched or unexpected."""
        return not (self.missing or self.mismatched or self.unexpected)

    def summary(self, most: Optional[int] = None) -> str:
        """Returns the counts, and at most `most` names of the tensors of each kind."""
        return "\n".join((
            f"{self.source}: {len(self.matched)} tensors matched, {len(self.dropped)} "
            f"dropped, {len(self.missing)} missing, {len(self.mismatched)} with a "
            "different shape.",
            *(f"  {what}: {some(names, most)}" for what, names in (
                ("new, start from random values", self.new),
                ("missing, keep their values", self.missing),
                ("different shape, keep their values", self.mismatched.values()),
                *((f"dropped, {why}", names)
                  for why, names in self.by_reason().items())) if names),
            *(f"  {note}" for note in self.notes)))

    def by_reason(self) -> dict[str, list[str]]:
        """Returns each reason for dropping tensors → their names."""
        names = sorted(self.dropped)
        return {why: [name for name in names if self.dropped[name] == why]
                for why in dict.fromkeys(map(self.dropped.get, names))}


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's file and settings."""

    path: str
    do_lower_case: bool = True
    word_piece: bool = False
    strip_accents: Optional[bool] = None  # this and the next as for FullTokenizer
    rules: Optional[Rules] = None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model read from any format, in the common form. Tensors are float32, by the
    original's names."""

    format: str
    config: AlbertConfig
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, int]  # name → width of the outputs
    report: Report
    labels: tuple[str, ...] = ()  # in the order of the outputs; () for one number
    problem_type: str = ""  # one of PROBLEMS, "" if the source does not tell
    vocabulary: Optional[Vocabulary] = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the task
    sentence: Any = None  # sentence_transformers.Sentence
    slots: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)  # moments
    step: int = 0

    @property
    def source(self) -> str:
        return self.report.source

    @property
    def kept_problem(self) -> dict[str, str]:
        """The entry of a config or task.json with the problem type, if it is known."""
        return {"problem_type": self.problem_type} if self.problem_type else {}

    @property
    def flags(self) -> Mapping[str, Any]:
        """The options that the model was trained with."""
        return self.settings.get("flags", {})

    @property
    def max_seq_length(self) -> int:
        """The maximum length of a sequence in training, else the number of positions."""
        longest = self.config.max_position_embeddings
        return min(self.flags.get("max_seq_length", longest), longest)

    @property
    def kept_settings(self) -> dict[str, Any]:
        """The settings that a conversion keeps; without a head, the length of texts."""
        if self.heads:
            return elsewhere(self.settings)
        return {"flags": {"max_seq_length": self.max_seq_length}} if (
            "max_seq_length" in self.flags) else {}

    def files(self) -> list[str]:
        """Returns the files of the weights and the vocabulary."""
        folder, name = os.path.split(self.source)
        return [*(os.path.join(folder, other) for other in files.names_in(folder or ".")
                  if other.startswith(name)),
                *([self.vocabulary.path] if self.vocabulary else ())]


# ---- heads and the original's names ----------------------------------------


def head_of(name: str, width: int = 1, **options: Any) -> Head:
    """Returns the head with a name; `options` that are not its fields are ignored."""
    importlib.import_module(HEADS[name][0])
    kind = Head.kinds[name]
    if not kind.fixed_width:
        options["width"] = width
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in fields})


def tasks() -> list[str]:
    """Lists the tasks of all known heads, and "embed", which needs no head."""
    return [*dict.fromkeys(head_of(name).task for name in HEADS), "embed"]


def shapes_of(config: AlbertConfig, heads: Mapping[str, int]) -> dict[str, Shape]:
    """Returns name → shape of all tensors of a model."""
    return functools.reduce(dict.__or__, (
        head_of(*head).shapes(config) for head in heads.items()), encoder_shapes(config))


def heads_in(shapes: Mapping[str, Shape], root_head: str = "",
             name_of: Callable[[str], str] = str) -> dict[str, int]:
    """Returns the heads that tensors belong to → their widths. `root_head` is that of
    `output_weights`; `name_of` maps the original's names to those in `shapes`."""
    # 1 for a scalar, which is refused later.
    return {name: head_of(name).width if head_of(name).fixed_width else math.prod(
        shapes[name_of(variable)][:1]) for name, (_, variable) in HEADS.items()
            if name_of(variable) in shapes and (
                name not in ROOT_HEADS or name == (root_head or "classification"))}


def read_pooler(heads: Iterable[str]) -> bool:
    """Returns whether one of the heads reads the pooler's output."""
    return any(head_of(name).reads == "pooled_output" for name in heads)


def without_heads(checkpoint: Checkpoint, why: Mapping[str, str] | str) -> Checkpoint:
    """Returns the checkpoint without those of its heads that are in `why` (head →
    reason) or, with a single reason, without any; adds the reasons to the report."""
    if isinstance(why, str):
        why = dict.fromkeys(checkpoint.heads, why)
    heads = {}
    for head, width in checkpoint.heads.items():
        if head not in why:
            heads[head] = width
            continue
        for name in head_of(head, width).shapes(checkpoint.config):
            checkpoint.report.dropped[checkpoint.report.matched.pop(name)] = why[head]
    config = checkpoint.config if "masked_lm" in heads else dataclasses.replace(
        checkpoint.config, masked_lm_layer_norm_eps=0.0)
    return dataclasses.replace(
        checkpoint, config=config, heads=heads,
        labels=checkpoint.labels if label_count(heads) else (),
        problem_type=checkpoint.problem_type if "classification" in heads else "")


def label_count(heads: Mapping[str, int]) -> int:
    """Returns the number of outputs that have labels, 0 if the heads have none."""
    return next((width for name, width in heads.items() if head_of(name).has_labels), 0)


def check_labels(labels: Any, heads: Mapping[str, int], where: str) -> tuple[str, ...]:
    """Returns a file's labels, one for each output of the head, () if it names none."""
    count = label_count(heads)
    if not isinstance(labels, (list, tuple)) or count and labels and (
            len(labels) != count) or not all(
                isinstance(label, (str, int, float)) for label in labels):
        raise InputError(f"{where}: the labels are {shown(labels)}, but the head has "
                         f"{count} outputs; give a text for each output, or none.")
    return tuple(map(str, labels)) if count else ()


def outputs_of(values: Mapping[str, Any], heads: Mapping[str, int], where: str
               ) -> dict[str, Any]:
    """Returns what a file says of the head's outputs: fields of a Checkpoint."""
    problem = values.get("problem_type") if "classification" in heads else ""
    refuse({"problem_type": problem or ""}, where, problem_type=("", *PROBLEMS))
    return {"labels": check_labels(values.get("labels") or (), heads, where),
            "problem_type": problem or ""}


# ---- numbers ---------------------------------------------------------------


def finite(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Returns tensors that raise InputError when read if they hold NaN or infinity."""
    def checked(name: str, array: np.ndarray) -> np.ndarray:
        check_finite(source, [(name, array)], "give a different checkpoint, or allow "
                     "them with --allow_nan or allow_nan=True")
        return array

    return {name: tensor.then(functools.partial(checked, name))
            for name, tensor in tensors.items()}


def check_finite(source: str, values: Iterable[tuple[str, Any]],
                 advice: str = "give a different checkpoint") -> None:
    """Raises InputError if one of the (name, tensor) pairs holds NaN or infinity."""
    for name, value in values:
        value = np.asarray(value)
        # The sum, which is fast, is infinite too if finite numbers are very large.
        if value.dtype.kind == "f" and not np.isfinite(value.sum()) and not np.isfinite(
                value).all():
            raise InputError(
                f"{source}: {name} holds NaN or infinite numbers, therefore the model "
                f"cannot be trained or used; {advice}.")


def some(names: Iterable[str], most: Optional[int] = 3) -> str:
    """Returns the first `most` names, and how many more there are."""
    names = list(names)
    rest = names[most:] if most is not None else ()
    return ", ".join(names[:most]) + (f", and {len(rest)} more" if rest else "")
