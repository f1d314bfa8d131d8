"""Tables of tensors, and changes of a model's structure, for all formats.

`matched` reads a checkpoint by a table with one `Row` for each tensor, `in_theirs` gives
the tensors to write, `as_format` the structure that a format needs.
"""

import dataclasses
import re
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np

from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import TYPES, Checkpoint, Report, some
from albert_tf.config import AlbertConfig, refuse
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import POOLER, PROJECTION, Shape

Group = Callable[[int, int, int], Optional[int]]  # layer, layers, groups → its group


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor's names and shapes in our format and in theirs."""

    ours: str
    theirs: str
    our_shape: Shape
    their_shape: Shape
    transposed: bool = False


def rows_of(shapes: Mapping[str, Shape], name: Callable[[str], str],
            transposed: Sequence[str] = (), heads: int = 0) -> list[Row]:
    """Returns a table of tensors. `name` is our name → theirs; matrices with one of the
    names, or ends of names, in `transposed` are [out, in]. Of a format that has an axis
    for them, `heads` is the number of attention heads."""
    rows = []
    for ours, shape in shapes.items():
        theirs, is_transposed = shape, ours.endswith(tuple(transposed))
        if is_transposed:
            theirs = shape[::-1]
        elif heads and "attention_1/self/" in ours:
            theirs = (*shape[:-1], heads, shape[-1] // heads)
        elif heads and ours.endswith("attention_1/output/dense/kernel"):
            theirs = (heads, shape[0] // heads, shape[1])
        rows.append(Row(ours, name(ours), shape, theirs, is_transposed))
    return rows


def part_of(ours: str, parts: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the longest beginning of our name that is a key of `parts`, its value."""
    part = max((part for part in parts if ours.startswith(part)), key=len)
    return part, parts[part]


def changed(tensor: Tensor, shape: Shape, transposed: bool = True) -> Tensor:
    """Returns the tensor in float32 (exact for the other TYPES), transposed or with a
    different shape."""
    return Tensor(shape, lambda: np.ascontiguousarray(
        tensor.read().T if transposed else tensor.read().reshape(shape), np.float32))


def in_theirs(checkpoint: Checkpoint, rows: Iterable[Row]) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by a format's names."""
    return {row.theirs: changed(
        checkpoint.tensors[row.ours], row.their_shape, row.transposed) for row in rows}


def matched(name: str, source: str, config: AlbertConfig, heads: Mapping[str, int],
            rows: Iterable[Row], theirs: Mapping[str, Tensor],
            dropped: Mapping[str, str], of_model: str, **fields: Any) -> Checkpoint:
    """Returns the checkpoint in the format `name` whose tensors are `theirs`. Its
    report says what became of each.

    `dropped` has patterns of names in no row → why such a tensor is not needed. Others
    that match the pattern `of_model` are refused, as are missing ones, shapes and types.
    """
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


# ---- what a format supports ------------------------------------------------

_ADVICE = ("choose a different format, or leave the heads out (--encoder_only) if it is "
           "about one of them")


def check_groups(config: AlbertConfig, group: Group, where: str) -> None:
    """Raises InputError if a format's formula assigns a layer to a different group than
    the original implementation does."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if any(group(layer, layers, groups) != config.group_of_layer(layer)
           for layer in range(layers)):
        raise InputError(
            f"{where}: num_hidden_groups={groups} for num_hidden_layers={layers} is not "
            "supported: different layers would share weights; choose a different format.")


def as_format(checkpoint: Checkpoint, name: str, projects: bool,
              group: Optional[Group] = None, needs_pooler: bool = False,
              **allowed: Iterable[Any]) -> Checkpoint:
    """Returns the checkpoint with the structure that a format needs, or refuses what has
    no counterpart there.

    Layers that share nothing become one group each. For E = H, an identity projection
    is added if the format projects even then (`projects`), and removed if it does not.
    If the format `needs_pooler`, a missing one becomes zeros. `group` is as for
    `check_groups`, `allowed` as for `refuse`: fields of the config, and `head`.
    """
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    where, size = f"the format {name}", config.hidden_size
    if config.parameter_sharing == "none":
        config = config.replace(
            parameter_sharing="all", num_hidden_groups=config.num_hidden_layers)
        check_groups(config, lambda layer, *_: layer, where)
    values = {**vars(config), "masked_lm_layer_norm_eps":
              config.masked_lm_layer_norm_eps or config.layer_norm_eps}
    for each in (*({"head": head} for head in checkpoint.heads), values):
        refuse(each, where, _ADVICE, parameter_sharing=("all",), **allowed)
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
                f"{PROJECTION} is not an identity, but this format has no projection if "
                f"embedding_size and hidden_size are both {size}; choose a different one.")
        config = config.replace(project_embeddings=projects)
    return dataclasses.replace(checkpoint, config=config, tensors=tensors)
