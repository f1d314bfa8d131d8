"""The common form of all formats: tensors named as in the original implementation, and
a report. No arithmetic is done on numbers: converting there and back changes no bit.

A format is a module with `read(folder, ...)`, `check(checkpoint)`, which returns it in the
form that is written, and `write(checkpoint, folder)`. A table has a `Row` for each tensor.
"""

import dataclasses
import functools
import importlib
import math
import os
import re
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.folders import NULL_THRESHOLD_FILE
from albert_tf.checkpoints.vocabulary import TASK_FILE, elsewhere
from albert_tf.config import CONFIG_FILE, AlbertConfig, refuse
from albert_tf.errors import InputError
from albert_tf.modeling.head import Head, Shape, Shapes
from albert_tf.modeling.parameter_count import (
    POOLER, PROJECTION, WORDS, encoder_shapes)

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
# What a classification head gives, by transformers' names: numbers, or the scores of
# labels of which a text has exactly one, or any number.
PROBLEMS = REGRESSION, ONE_LABEL, SEVERAL_LABELS = (
    "regression", "single_label_classification", "multi_label_classification")
# If a text has any number of labels, it is given those from this probability on.
LABEL_THRESHOLD = 0.5
# The variables with a row for each token.
ROWS = (WORDS, "cls/predictions/output_bias")
# Types whose numbers float32 represents exactly.
TYPES = ("float32", "float16", "bfloat16")
Group = Callable[[int, int, int], Optional[int]]  # layer, layers, groups → its group


@dataclasses.dataclass
class Report:
    """What became of every tensor."""

    source: str
    matched: dict[str, str] = dataclasses.field(default_factory=dict)  # ours → theirs
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)  # theirs → why
    missing: list[str] = dataclasses.field(default_factory=list)  # ours
    notes: list[str] = dataclasses.field(default_factory=list)
    mismatched: dict[str, str] = dataclasses.field(default_factory=dict)  # ours → shapes
    new: list[str] = dataclasses.field(default_factory=list)  # ours, keep their values
    # The dropped tensors that a model with a different config would use.
    unexpected: list[str] = dataclasses.field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if no tensor is missing, mismatched or unexpected."""
        return not (self.missing or self.mismatched or self.unexpected)

    def summary(self, most: Optional[int] = None) -> str:
        """Returns the counts, and at most `most` names of the tensors of each kind."""
        dropped = sorted(self.dropped)
        return "\n".join((
            f"{self.source}: {len(self.matched)} tensors matched, {len(self.dropped)} "
            f"dropped, {len(self.missing)} missing, {len(self.mismatched)} with a "
            "different shape.",
            *(f"  {what}: {some(names, most)}" for what, names in (
                ("new, start from random values", self.new),
                ("missing from the source", self.missing),
                ("different shape, keep their values", self.mismatched.values()),
                *((f"dropped, {why}", [
                    name for name in dropped if self.dropped[name] == why])
                  for why in dict.fromkeys(self.dropped[name] for name in dropped))) if names),
            *(f"  {note}" for note in self.notes)))


@dataclasses.dataclass(frozen=True, repr=False)
class Checkpoint:
    """A model read from any format: float32 tensors by the original's names."""

    format: str
    config: AlbertConfig
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, int]  # name → width of the outputs
    report: Report
    labels: tuple[str, ...] = ()  # in the order of the outputs; () for one number
    problem_type: str = ""  # one of PROBLEMS, "" if the source does not tell
    tokenizer: Any = None  # a FullTokenizer, or None if the folder has no vocabulary
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the task
    sentence: Any = None  # sentence_transformers.Sentence
    slots: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)  # moments
    step: int = 0
    model: Any = None  # an AlbertModel, or AlbertWithHeads if it has heads, once loaded

    def __repr__(self) -> str:
        return (f"{type(self).__name__}({self.source!r}, format={self.format!r}, "
                f"heads={dict(self.heads)}, labels=({some(self.labels, 8)}))")

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
        """Returns the files on which answers depend: weights, settings, vocabulary."""
        folder, name = os.path.split(self.source)
        return [*(os.path.join(folder, other) for other in files.names_in(folder or ".")
                  if other.startswith(name) or other in (
                      TASK_FILE, NULL_THRESHOLD_FILE, CONFIG_FILE, "config.json")),
                *([self.tokenizer.vocabulary_path] if self.tokenizer else ())]


# ---- heads and the original's names ----------------------------------------


def head_of(name: str, width: int = 1, **options: Any) -> Head:
    """Returns the head with a name; `options` that are not its fields are ignored."""
    importlib.import_module(HEADS[name][0])
    kind = Head.kinds[name]
    if not kind.fixed_width:
        options["width"] = width
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in fields})


def shapes_of(config: AlbertConfig, heads: Mapping[str, int]) -> Shapes:
    """Returns name → shape of all tensors of a model."""
    return functools.reduce(dict.__or__, (
        head_of(*head).shapes(config) for head in heads.items()), encoder_shapes(config))


def with_heads(config: AlbertConfig, stored: Mapping[str, Tensor], root_head: str = "",
               name_of: Callable[[str], str] = str) -> tuple[AlbertConfig, dict[str, int]]:
    """Returns the config with `use_pooler` as the tensors tell it, and their heads → the
    widths. `root_head` is that of `output_weights`; `name_of` gives the names there."""
    # 1 for a scalar, which is refused later.
    heads = {name: head_of(name).width if head_of(name).fixed_width else math.prod(
        stored[name_of(variable)].shape[:1]) for name, (_, variable) in HEADS.items()
             if name_of(variable) in stored and (
                 name not in ROOT_HEADS or name == (root_head or "classification"))}
    return config.replace(use_pooler=name_of(f"{POOLER}/kernel") in stored or any(
        head_of(name).reads == "pooled_output" for name in heads)), heads


def without_heads(checkpoint: Checkpoint, why: Mapping[str, str] | str) -> Checkpoint:
    """Returns the checkpoint without the heads in `why`, head → reason, or one for all."""
    if isinstance(why, str):
        why = dict.fromkeys(checkpoint.heads, why)
    heads = dict(checkpoint.heads)
    for head in filter(why.__contains__, checkpoint.heads):
        for name in head_of(head, heads.pop(head)).shapes(checkpoint.config):
            checkpoint.report.dropped[checkpoint.report.matched.pop(name)] = why[head]
    config = checkpoint.config if "masked_lm" in heads else dataclasses.replace(
        checkpoint.config, masked_lm_layer_norm_eps=0.0)
    return dataclasses.replace(
        checkpoint, config=config, heads=heads,
        labels=checkpoint.labels if label_count(heads) else (),
        problem_type=checkpoint.problem_type if "classification" in heads else "")


def with_rows(checkpoint: Checkpoint, size: int,
              change: Callable[[np.ndarray], np.ndarray]) -> Checkpoint:
    """Returns the checkpoint with `size` tokens, and the rows of its tokens changed."""
    def changed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.then(change, size, *tensor.shape[1:])
                if name.startswith(ROWS) else tensor for name, tensor in tensors.items()}

    return dataclasses.replace(
        checkpoint, config=checkpoint.config.replace(vocab_size=size),
        tensors=changed(checkpoint.tensors), slots=changed(checkpoint.slots))


def with_new_pieces(checkpoint: Checkpoint, parts: Sequence[Sequence[int]]) -> Checkpoint:
    """Returns the checkpoint for a vocabulary that was extended at its end. The row of a
    new token is the mean of the rows of the tokens that its text was split into (`parts`:
    their ids for each new token)."""
    def extended(rows: np.ndarray) -> np.ndarray:
        means = [rows[list(ids)].mean(axis=0, keepdims=True) for ids in parts]
        return np.concatenate([rows, *means]).astype(rows.dtype)

    return with_rows(checkpoint, checkpoint.config.vocab_size + len(parts), extended)


def label_count(heads: Mapping[str, int]) -> int:
    """Returns the number of outputs that have labels, 0 if the heads have none."""
    return next((width for name, width in heads.items() if head_of(name).has_labels), 0)


# ---- tables of tensors ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor's names and shapes in our format and in theirs."""

    ours: str
    theirs: str
    our_shape: Shape
    their_shape: Shape
    transposed: bool = False


def rows_of(config: AlbertConfig, heads: Mapping[str, int], name: Callable[[str], str],
            transposed: Sequence[str] = (), split: bool = False) -> list[Row]:
    """Returns a table of tensors. `name` is our name → theirs; matrices whose names end in
    one of `transposed` are [out, in]; with `split` attention heads have an axis."""
    rows, count = [], config.num_attention_heads
    for ours, shape in shapes_of(config, heads).items():
        theirs, is_transposed = shape, ours.endswith(tuple(transposed))
        if is_transposed:
            theirs = shape[::-1]
        elif split and "attention_1/self/" in ours:
            theirs = (*shape[:-1], count, shape[-1] // count)
        elif split and ours.endswith("attention_1/output/dense/kernel"):
            theirs = (count, shape[0] // count, shape[1])
        rows.append(Row(ours, name(ours), shape, theirs, is_transposed))
    return rows


def part_of(ours: str, parts: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the longest beginning of our name that is a key of `parts`, its value."""
    return max((item for item in parts.items() if ours.startswith(item[0])),
               key=lambda item: len(item[0]))


def changed(tensor: Tensor, shape: Shape, transposed: bool = True) -> Tensor:
    """Returns the tensor in float32, transposed or with a different shape."""
    return Tensor(shape, lambda: np.ascontiguousarray(
        tensor.read().T if transposed else tensor.read().reshape(shape), np.float32))


def in_theirs(checkpoint: Checkpoint, rows: Iterable[Row]) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by a format's names."""
    return {row.theirs: changed(
        checkpoint.tensors[row.ours], row.their_shape, row.transposed) for row in rows}


def matched(name: str, source: str, config: AlbertConfig, heads: Mapping[str, int],
            rows: Iterable[Row], theirs: Mapping[str, Tensor],
            dropped: Mapping[str, str], of_model: str, **fields: Any) -> Checkpoint:
    """Returns the checkpoint in the format `name` whose tensors are `theirs`. `dropped`
    has patterns of names in no row → why such a tensor is not needed. Others that match
    the pattern `of_model` are refused, as are missing ones, shapes and types."""
    report, remaining, tensors, wrong = Report(source), dict(theirs), {}, []
    for row in rows:
        tensor = remaining.pop(row.theirs, None)
        if tensor is None:
            wrong.append(f"{row.theirs} is missing")
        elif tensor.shape != row.their_shape:
            wrong.append(f"{row.theirs} is {list(tensor.shape)}, but the config makes "
                         f"it {list(row.their_shape)}")
        elif tensor.dtype not in TYPES:
            wrong.append(f"{row.theirs} has the type {tensor.dtype}, not one of "
                         f"{', '.join(TYPES)}")
        else:
            tensors[row.ours] = changed(tensor, row.our_shape, row.transposed)
            report.matched[row.ours] = row.theirs
    for their_name in sorted(remaining):
        why = next((why for pattern, why in dropped.items()
                    if re.search(pattern, their_name)), "")
        if not why and re.match(of_model, their_name):
            wrong.append(f"{their_name} does not belong to a model of this config")
        report.dropped[their_name] = why or "not a known part of an ALBERT"
    if wrong:
        raise InputError(f"{source}: {some(wrong)}; give the whole model, and the "
                         "config that these weights were made with.")
    if not config.use_pooler:
        report.missing += [f"{POOLER}/kernel", f"{POOLER}/bias"]
    return Checkpoint(name, config, tensors, heads, report, **fields)


def check_groups(config: AlbertConfig, group: Group, where: str) -> None:
    """Raises InputError if a format assigns a layer to a different group than we do."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if any(group(layer, layers, groups) != config.group_of_layer(layer)
           for layer in range(layers)):
        raise InputError(
            f"{where}: num_hidden_groups={groups} for num_hidden_layers={layers} is not "
            "supported: different layers would share weights; choose a different format.")


def as_format(checkpoint: Checkpoint, name: str, projects: bool,
              group: Optional[Group] = None, needs_pooler: bool = False,
              **allowed: Iterable[Any]) -> Checkpoint:
    """Returns the checkpoint as a format needs it, or refuses what it cannot hold: values
    of the config and of `head` that are not `allowed`, and groups (`check_groups`).

    Layers that share nothing become one group each. For E = H, an identity projection
    is added if the format projects even then (`projects`), and removed if it does not.
    If the format `needs_pooler`, a missing one becomes zeros."""
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    where, size = f"{checkpoint.source}: the format {name}", config.hidden_size
    if config.parameter_sharing == "none":
        config = config.replace(
            parameter_sharing="all", num_hidden_groups=config.num_hidden_layers)
        check_groups(config, lambda layer, *_: layer, where)
    values = {**vars(config), "masked_lm_layer_norm_eps":
              config.masked_lm_layer_norm_eps or config.layer_norm_eps}
    for each in (*({"head": head} for head in checkpoint.heads), values):
        refuse(each, where, "choose a different format, or leave the heads out "
               "(--encoder_only) if it is about one of them",
               parameter_sharing=("all",), **allowed)
    if group:
        check_groups(config, group, where)
    if needs_pooler and not config.use_pooler:
        config = config.replace(use_pooler=True)
        checkpoint.report.notes.append(
            "the checkpoint has no pooler, but the format needs one: zeros are written")
        tensors[f"{POOLER}/kernel"] = Tensor.of(np.zeros((size, size), np.float32))
        tensors[f"{POOLER}/bias"] = Tensor.of(np.zeros(size, np.float32))
    kernel, bias = f"{PROJECTION}/kernel", f"{PROJECTION}/bias"
    if config.embedding_size == size and config.project_embeddings != projects:
        if projects:
            tensors[kernel] = Tensor.of(np.eye(size, dtype=np.float32))
            tensors[bias] = Tensor.of(np.zeros(size, np.float32))
        elif (tensors.pop(kernel).read() != np.eye(size)).any() or (
                tensors.pop(bias).read().any()):
            raise InputError(
                f"{where} has no projection if embedding_size and hidden_size are both "
                f"{size}, but {PROJECTION} is not an identity; choose a different one.")
        config = config.replace(project_embeddings=projects)
    return dataclasses.replace(checkpoint, config=config, tensors=tensors)


def finite(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns tensors that raise InputError when read if they hold NaN or infinity."""
    advice = ("give a different checkpoint, or allow them with --allow_nan or "
              "allow_nan=True")
    return {name: tensor.then(functools.partial(
        check_finite, checkpoint.source, name, advice))
            for name, tensor in checkpoint.tensors.items()}


def check_finite(source: str, name: str, advice: str, value: np.ndarray) -> np.ndarray:
    """Returns a tensor's numbers. Raises InputError for NaN or infinity."""
    # The sum, which is fast, is infinite too if finite numbers are very large.
    if value.dtype.kind == "f" and not np.isfinite(value.sum()) and not np.isfinite(
            value).all():
        raise InputError(
            f"{source}: {name} holds NaN or infinite numbers, therefore the model "
            f"cannot be trained or used; {advice}.")
    return value


def some(names: Iterable[str], most: Optional[int] = 3) -> str:
    """Returns the first `most` names, and how many more there are."""
    names = list(names)
    rest = names[most:] if most is not None else ()
    return ", ".join(names[:most]) + (f", and {len(rest)} more" if rest else "")
