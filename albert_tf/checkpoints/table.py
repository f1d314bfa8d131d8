"""Tables of tensors, and changes of a model's structure, for all formats.

A format's table has one `Row` for each tensor: our name, theirs, and whether the matrix
is transposed. `as_format` and `with_pooler` give a checkpoint the structure that a
format needs. The `refuse_` functions raise InputError for what it does not support.
"""

import dataclasses
from typing import Any, Callable, Container, Iterable, Mapping, Optional

import numpy as np

from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import TYPES, Checkpoint, Report, some
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import POOLER, PROJECTION, Shape


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


# ---- structure -------------------------------------------------------------


def as_format(checkpoint: Checkpoint, projects: bool, grouping: str,
              only_group: bool = False) -> Checkpoint:
    """Returns the checkpoint with the structure that a format needs.

    For E = H, an identity projection is added if the format projects even then
    (`projects`), and removed if it does not. Layers that share nothing become one group
    each.

    Args:
      grouping: the format's assignment of layers to groups, from config.GROUPINGS.
      only_group: whether the format only has a single group of a single block.

    Raises:
      InputError: the format has no counterpart of the checkpoint's structure.
    """
    config, tensors = checkpoint.config, dict(checkpoint.tensors)
    layers = range(config.num_hidden_layers)
    if config.parameter_sharing == "none":
        config = dataclasses.replace(
            config, parameter_sharing="all", num_hidden_groups=len(layers))
        if {config.group_of_layer(layer) for layer in layers} != set(layers):
            config = dataclasses.replace(config, layer_grouping="even")
    if config.parameter_sharing != "all":
        raise InputError(
            f"parameter_sharing={config.parameter_sharing} has no counterpart in this "
            "format, which shares attention and feed-forward layers alike; choose a "
            "different format.")
    their_config = dataclasses.replace(config, layer_grouping=grouping)
    if [config.group_of_layer(layer) for layer in layers] != [
            their_config.group_of_layer(layer) for layer in layers]:
        raise InputError(
            f"num_hidden_groups={config.num_hidden_groups} for num_hidden_layers="
            f"{len(layers)} has no counterpart in this format, in which different "
            "layers would share weights; choose a different format.")
    if only_group and (config.num_hidden_groups, config.inner_group_num) != (1, 1):
        raise InputError(
            f"num_hidden_groups={config.num_hidden_groups}, inner_group_num="
            f"{config.inner_group_num} has no counterpart in this format, in which all "
            "layers share one block; choose a different format.")
    kernel, bias = f"{PROJECTION}/kernel", f"{PROJECTION}/bias"
    size = config.hidden_size
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
        their_config = dataclasses.replace(their_config, project_embeddings=projects)
    return dataclasses.replace(checkpoint, config=their_config, tensors=tensors)


def with_pooler(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with a pooler of zeros, for formats that always have one.
    The pooler's output is 0 and has no meaning."""
    config = dataclasses.replace(checkpoint.config, use_pooler=True)
    size = config.hidden_size
    checkpoint.report.notes.append(
        "the checkpoint has no pooler, but the format needs one: zeros are written")
    return dataclasses.replace(checkpoint, config=config, tensors={
        **checkpoint.tensors,
        f"{POOLER}/kernel": Tensor.of(np.zeros((size, size), np.float32)),
        f"{POOLER}/bias": Tensor.of(np.zeros(size, np.float32))})


def refuse_heads_but(known: Container[str], heads: Iterable[str], where: str) -> None:
    """Raises InputError for a head that a format does not support."""
    for head in heads:
        if head not in known:
            raise InputError(f"the head {head} has no counterpart in {where}; leave "
                             "the heads out (--encoder_only).")


def refuse_unless(wanted: Any, format_name: str, **fields: Any) -> None:
    """Raises InputError for a config field whose value a format does not support:
    refuse_unless(config, "tf1", layer_norm_eps=1e-12). A tuple gives alternatives."""
    for name, accepted in fields.items():
        value = getattr(wanted, name)
        known = accepted if isinstance(accepted, tuple) else (accepted,)
        if value not in known:
            raise InputError(
                f"{name}={value} is not supported by the format {format_name}, which "
                f"has only {' or '.join(map(str, known))}; choose a different format.")


def refuse_other_epsilon(config: AlbertConfig, format_name: str) -> None:
    if config.masked_lm_layer_norm_eps:
        raise InputError(
            f"the masked-LM head's LayerNorm has the epsilon "
            f"{config.masked_lm_layer_norm_eps:g} and the others "
            f"{config.layer_norm_eps:g}, but {format_name} has only one epsilon; leave "
            "the heads out (--encoder_only).")
