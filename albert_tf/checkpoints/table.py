"""Tables of tensors, and changes of a model's structure, for all formats.

A format's table has one `Row` for each tensor: our name, theirs, and whether the matrix
is transposed. `as_format` gives a checkpoint the structure that a format needs, and
`refuse` raises InputError for values that it does not support.
"""

import dataclasses
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np

from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import TYPES, Checkpoint, Report, some
from albert_tf.config import AlbertConfig, shown
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import POOLER, PROJECTION, Shape

Group = Callable[[int, int, int], Optional[int]]  # layer, layers, groups → its group


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor's names in our format and in theirs; `shape` is theirs."""

    ours: str
    theirs: str
    shape: Shape
    transposed: bool = False


def rows_of(shapes: Mapping[str, Shape], name: Callable[[str], str],
            transposed: Callable[[str], bool] = lambda name: False,
            shape: Callable[[str, Shape], Shape] = lambda name, shape: shape
            ) -> list[Row]:
    """Returns a table of tensors. The functions take our name and return their name,
    whether the matrix is transposed, and their shape if it is not."""
    return [Row(ours, name(ours),
                our_shape[::-1] if transposed(ours) else shape(ours, our_shape),
                transposed(ours)) for ours, our_shape in shapes.items()]


def to_ours(row: Row, theirs: Tensor, shape: Shape) -> Tensor:
    def read() -> np.ndarray:
        array = theirs.read()
        if array.dtype != np.float32:
            array = array.astype(np.float32)  # Exact for bfloat16 and float16.
        return array.T if row.transposed else array.reshape(shape)

    return Tensor(shape, read)


def transposed(tensor: Tensor) -> Tensor:
    return Tensor(tensor.shape[::-1], lambda: tensor.read().T, tensor.dtype)


def to_theirs(row: Row, ours: Tensor) -> Tensor:
    def read() -> np.ndarray:
        array = ours.read()
        return np.ascontiguousarray(
            array.T if row.transposed else array.reshape(row.shape))

    return Tensor(row.shape, read)


def matched(report: Report, shapes: Mapping[str, Shape], rows: Iterable[Row],
            theirs: Mapping[str, Tensor], why_dropped: Callable[[str], Optional[str]],
            of_model: Callable[[str], bool]) -> dict[str, Tensor]:
    """Returns the tensors of a model by our names, and adds all tensors to `report`.

    Args:
      shapes: shapes of the model's tensors by our names.
      why_dropped: name → why a tensor that is in no row is not needed, or None.
      of_model: name → whether a tensor that is in no row should belong to the model.

    Raises:
      InputError: tensors are missing or left over, or have a wrong shape or type.
    """
    remaining, tensors, lacking, wrong = dict(theirs), {}, [], []
    for row in rows:
        tensor = remaining.pop(row.theirs, None)
        if tensor is None:
            lacking.append(row.theirs)
        elif tensor.shape != row.shape:
            wrong.append(f"{row.theirs} is {list(tensor.shape)}, but the config makes "
                         f"it {list(row.shape)}")
        elif tensor.dtype not in TYPES:
            raise InputError(
                f"{report.source}: {row.theirs} has the type {tensor.dtype}, which is "
                f"not supported ({', '.join(TYPES)} are); give the model before it was "
                "quantized or cast.")
        else:
            tensors[row.ours] = to_ours(row, tensor, shapes[row.ours])
            report.matched[row.ours] = row.theirs
    if not tensors:
        raise InputError(f"{report.source}: none of its {len(theirs)} tensors belongs "
                         "to an ALBERT (it holds "
                         f"{some(sorted(theirs)) or 'nothing'}); give an ALBERT model.")
    if wrong:
        raise InputError(f"{report.source}: {some(wrong)}; give the config that these "
                         "weights were made with.")
    if lacking:
        raise InputError(
            f"{report.source}: {len(lacking)} of the model's tensors are missing "
            f"({some(lacking)}); copy or download the whole model, or give its config.")
    for name in sorted(remaining):
        why = why_dropped(name)
        if why is None and of_model(name):
            raise InputError(
                f"{report.source}: {name} does not belong to a model of this config "
                f"({len(remaining)} tensors are left over); give the config that these "
                "weights were made with.")
        report.dropped[name] = why or "not a known part of an ALBERT"
    return tensors


# ---- what a format supports ------------------------------------------------

_ADVICE = ("choose a different format, or leave the heads out (--encoder_only) if it is "
           "about one of them")


def refuse(values: Mapping[str, Any], where: str, advice: str = "give a different model",
           **allowed: Iterable[Any]) -> None:
    """Raises InputError for a value that is not among the allowed ones:
    refuse({"hidden_act": "swish"}, "config", hidden_act=("gelu", "relu"))."""
    for name, accepted in allowed.items():
        if name in values and values[name] not in (accepted := tuple(accepted)):
            raise InputError(
                f"{where}: {name}={shown(values[name])} is not supported, only "
                f"{', '.join(map(str, accepted)) or 'none'}; {advice}.")


def check_groups(config: AlbertConfig, group: Group, where: str) -> None:
    """Raises InputError if a format's formula, layer, layers, groups → group, assigns a
    layer to a different group than the original implementation does."""
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if any(group(layer, layers, groups) != config.group_of_layer(layer)
           for layer in range(layers)):
        raise InputError(
            f"{where}: num_hidden_groups={groups} for num_hidden_layers={layers} is not "
            "supported: different layers would share weights; choose a different format.")


def as_format(checkpoint: Checkpoint, name: str, projects: bool,
              group: Optional[Group] = None, needs_pooler: bool = False,
              **allowed: Iterable[Any]) -> Checkpoint:
    """Returns the checkpoint with the structure that a format needs. Raises InputError
    if the format has no counterpart of it.

    Layers that share nothing become one group each. For E = H, an identity projection
    is added if the format projects even then (`projects`), and removed if it does not.
    If the format `needs_pooler`, a missing one becomes zeros, whose output is 0 and has
    no meaning. `group` is as for `check_groups`, by default the original's formula, and
    `allowed` as for `refuse`: fields of the config, and `head`.
    """
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    where, size = f"the format {name}", config.hidden_size
    if config.parameter_sharing == "none":
        config = config.replace(
            parameter_sharing="all", num_hidden_groups=config.num_hidden_layers)
        check_groups(config, lambda layer, *_: layer, where)
    values = {**vars(config), "masked_lm_layer_norm_eps":
              config.masked_lm_layer_norm_eps or config.layer_norm_eps}
    for each in ({"head": head} for head in checkpoint.heads):
        refuse(each, where, _ADVICE, **allowed)
    refuse(values, where, _ADVICE, parameter_sharing=("all",), **allowed)
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
        else:
            if (tensors.pop(kernel).read() != np.eye(size)).any() or (
                    tensors.pop(bias).read().any()):
                raise InputError(
                    f"{PROJECTION} is not an identity, but this format has no "
                    f"projection if embedding_size and hidden_size are both {size}; "
                    "choose a different format.")
        config = config.replace(project_embeddings=projects)
    return dataclasses.replace(checkpoint, config=config, tensors=tensors)
