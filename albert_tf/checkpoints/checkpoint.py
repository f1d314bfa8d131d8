"""The form in which all formats meet: tensors by the release's names, and a report.

A format is a module with `read(folder, ...)`, `check(checkpoint)` and `write(checkpoint,
folder)`; formats.py tells which one reads a folder, and table.py has what formats share.
No arithmetic is done on a number: a conversion there and back changes no bit.
"""

import dataclasses
import importlib
from typing import Any, Iterable, Mapping, Optional

import numpy as np

from albert_tf.checkpoints.bundle import Tensor
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.heads import Head
from albert_tf.modeling.parameter_count import Shape, encoder_shapes

# The heads that are known: name → the module that defines it, and the variable that
# tells that a checkpoint has it. A new head is a line here.
HEADS = {
    "masked_lm": ("albert_tf.modeling.heads", "cls/predictions/output_bias"),
    "sentence_order": ("albert_tf.modeling.heads", "cls/seq_relationship/output_weights"),
    "classification": ("albert_tf.finetuning.classification.head", "output_weights"),
    "multiple_choice": ("albert_tf.finetuning.race.head", "output_weights"),
    "token_classification": ("albert_tf.finetuning.tagging.head", "output_weights"),
    "spans": ("albert_tf.finetuning.squad.head", "cls/squad/output_weights"),
    "early_exit": ("albert_tf.finetuning.classification.head", "exit/output_weights"),
    "conditional_spans": ("albert_tf.finetuning.squad.head", "start_logits/dense/kernel")}

# Heads whose output layer has no scope in the release, so that only what stands beside
# a checkpoint tells them apart.
ROOT_HEADS = tuple(name for name, (_, variable) in HEADS.items()
                   if variable == "output_weights")
# Why a tensor is dropped that the model would have a place for, with another config.
UNEXPECTED = "extra within the model's own names"
_SHOWN = 3
# Types whose numbers float32 holds as they are.
TYPES = ("float32", "float16", "bfloat16")


@dataclasses.dataclass
class Report:
    """What became of every tensor; names are as the source has them, but for those that
    a model lacks, which are the release's."""

    source: str
    matched: dict[str, str] = dataclasses.field(default_factory=dict)  # ours → theirs
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)  # theirs → why
    missing: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    # Of a model that is restored: variables that the source has in another shape (name,
    # shape in the model, in the source), and those that may be new. Like the missing
    # ones they keep their values.
    mismatched: list[tuple[str, Shape, Shape]] = dataclasses.field(default_factory=list)
    new: list[str] = dataclasses.field(default_factory=list)

    @property
    def unexpected(self) -> list[str]:
        """Dropped tensors that would have a place in a model of another config."""
        return [name for name, why in self.dropped.items() if why == UNEXPECTED]

    @property
    def complete(self) -> bool:
        """Whether the source and the model fit."""
        return not (self.missing or self.mismatched or self.unexpected)

    def summary(self, most: Optional[int] = None) -> str:
        """Counts, the names of all tensors that were not matched, and why; with `most`
        at most so many names of a kind."""
        return "\n".join((
            f"{self.source}: {len(self.matched)} tensors matched, {len(self.dropped)} "
            f"dropped, {len(self.missing)} missing, {len(self.mismatched)} of another "
            "shape.",
            *(f"  {what}: {some(names, most)}" for what, names in (
                ("new, start from random values", self.new),
                ("missing, keep their values", self.missing),
                ("of another shape, keep their values", self.mismatches()),
                *((f"dropped, {why}", names)
                  for why, names in self.by_reason().items())) if names),
            *(f"  {note}" for note in self.notes)))

    def mismatches(self) -> list[str]:
        """What is of another shape, in words."""
        return [f"{name} is {list(theirs)} in the checkpoint, {list(ours)} in the model"
                for name, ours, theirs in self.mismatched]

    def by_reason(self) -> dict[str, list[str]]:
        """Why tensors were dropped → their names."""
        found: dict[str, list[str]] = {}
        for name, why in sorted(self.dropped.items()):
            found.setdefault(why, []).append(name)
        return found


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The file of a tokenizer and what else it takes."""

    path: str
    do_lower_case: bool = True
    word_piece: bool = False
    strip_accents: Optional[bool] = None  # as for FullTokenizer


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model as a format holds it, in the neutral form.

    Attributes:
      format: its name, "hf" for example.
      tensors: by the release's names, float32, read when asked for.
      heads: the heads that it has → the width of their outputs.
      labels: of classification and token classification, in the order of the outputs;
        () for a regression.
      facts: what else is known of it, for the model card.
      slots: the optimizer's moments, `<name>/adam_m` and `<name>/adam_v`.
      step: at which it was saved.
    """

    format: str
    config: AlbertConfig
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, int]
    report: Report
    labels: tuple[str, ...] = ()
    vocabulary: Optional[Vocabulary] = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    slots: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    step: int = 0

    @property
    def source(self) -> str:
        return self.report.source


# ---- heads and the release's names -----------------------------------------


def head_of(name: str, width: int = 1, **options: Any) -> Head:
    """Returns the head of a name (modeling.heads), without loading TensorFlow;
    `options` that are not fields of it are ignored."""
    importlib.import_module(HEADS[name][0])
    kind = Head.kinds[name]
    if not kind.fixed_width:
        options["width"] = width
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in fields})


def tasks() -> list[str]:
    """Lists the tasks of all known heads, and "embed", which needs none."""
    return [*filter(None, dict.fromkeys(head_of(name).task for name in HEADS)), "embed"]


def shapes_of(config: AlbertConfig, heads: Mapping[str, int]) -> dict[str, Shape]:
    """All tensors of a model by name."""
    shapes = encoder_shapes(config)
    for name, outputs in heads.items():
        shapes |= head_of(name, outputs).shapes(config)
    return shapes


def heads_in(shapes: Mapping[str, Shape], root_head: str = "") -> dict[str, int]:
    """The heads that tensors by the release's names make up → their widths; `root_head`
    is that of `output_weights`, by default classification."""
    other_roots = {*ROOT_HEADS} - {root_head or "classification"}
    widths = {}
    for name, (_, variable) in HEADS.items():
        if variable in shapes and name not in other_roots:
            kind = head_of(name)
            widths[name] = kind.width if kind.fixed_width else shapes[variable][0]
    return widths


def with_needed_pooler(config: AlbertConfig, heads: Mapping[str, int]) -> AlbertConfig:
    """The config of a checkpoint, which must have the pooler that its heads see."""
    return dataclasses.replace(
        config, use_pooler=config.use_pooler or any(
            head_of(name).reads == "pooled_output" for name in heads))


def without_heads(checkpoint: Checkpoint, why: Mapping[str, str]) -> Checkpoint:
    """The checkpoint without some heads (head → why); the report says so."""
    for head, reason in why.items():
        for name in head_of(head, checkpoint.heads[head]).shapes(checkpoint.config):
            theirs = checkpoint.report.matched.pop(name)
            checkpoint.report.dropped[theirs] = reason
    heads = {head: width for head, width in checkpoint.heads.items() if head not in why}
    config = checkpoint.config if "masked_lm" in heads else dataclasses.replace(
        checkpoint.config, masked_lm_layer_norm_eps=0.0)
    labels = checkpoint.labels if {*heads} & {*ROOT_HEADS} else ()
    return dataclasses.replace(checkpoint, config=config, heads=heads, labels=labels)


# ---- numbers ---------------------------------------------------------------


def finite(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors; reading one that holds NaN or infinity raises InputError."""
    def checked(name, tensor):
        def read():
            array = tensor.read()
            check_finite(source, [(name, array)],
                         "give another, or allow them (--allow_nan of "
                         "convert_checkpoint.py, allow_nan=True of albert_tf.load)")
            return array
        return dataclasses.replace(tensor, read=read)

    return {name: checked(name, tensor) for name, tensor in tensors.items()}


def check_finite(source: str, values: Iterable[tuple[str, Any]],
                 advice: str = "give another checkpoint") -> None:
    """Raises InputError if one of some (name, tensor) pairs holds NaN or infinity."""
    for name, value in values:
        value = np.asarray(value)
        # A sum is finite unless a number is not, or the sum of all is too large.
        if value.dtype.kind == "f" and not np.isfinite(value.sum()) and not np.isfinite(
                value).all():
            raise InputError(
                f"{source}: {name} holds numbers that are NaN or infinite, so nothing "
                f"can be learnt or predicted with it; {advice}.")


def some(names: Iterable[str], most: Optional[int] = _SHOWN) -> str:
    """The first names, at most so many, and how many more there are."""
    names = list(names)
    shown = names[:most]
    more = f", and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more
