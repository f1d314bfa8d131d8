"""Tables of tensors, and another structure for the same numbers: for the formats.

A format's table has one `Row` for each tensor: our name, theirs, and whether the matrix
is transposed. `as_format` and `with_pooler` give a checkpoint the structure that a
format has; the `refuse_` functions name what it cannot hold.
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
    """One tensor in two formats; `shape` is theirs."""

    ours: str
    theirs: str
    shape: Shape
    transposed: bool = False


def rows_of(shapes: Mapping[str, Shape], name: Callable[[str], str],
            transposed: Callable[[str], bool] = lambda name: False,
            shape: Callable[[str, Shape], Shape] = lambda name, shape: shape
            ) -> list[Row]:
    """A table of tensors; the functions give their name, whether the matrix lies the
    other way round, and otherwise their shape, by our name."""
    return [Row(ours, name(ours), own[::-1] if transposed(ours) else shape(ours, own),
                transposed(ours)) for ours, own in shapes.items()]


def to_ours(row: Row, theirs: Tensor, shape: Shape) -> Tensor:
    def read() -> np.ndarray:
        array = theirs.read()
        if array.dtype != np.float32:
            array = array.astype(np.float32)  # bfloat16 and float16: exact
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
    """The tensors of a model by our names, and in `report` what became of all others.

    Args:
      shapes: of the model, by our names.
      why_dropped: name → why a tensor that no row names is not needed, or None.
      of_model: name → whether a tensor that no row names would be the model's.
    """
    left, found, lacking, wrong = dict(theirs), {}, [], []
    for row in rows:
        tensor = left.pop(row.theirs, None)
        if tensor is None:
            lacking.append(row.theirs)
        elif tensor.shape != row.shape:
            wrong.append(f"{row.theirs} is {list(tensor.shape)}, but the config makes "
                         f"it {list(row.shape)}")
        elif tensor.dtype not in TYPES:
            raise InputError(
                f"{report.source}: {row.theirs} is of the type {tensor.dtype}, whose "
                f"numbers cannot be taken over as they are ({', '.join(TYPES)} can); "
                "give the model before it was quantized or cast.")
        else:
            found[row.ours] = to_ours(row, tensor, shapes[row.ours])
            report.matched[row.ours] = row.theirs
    if not found:
        raise InputError(f"{report.source}: none of its {len(theirs)} tensors is of an "
                         f"ALBERT: it holds {some(sorted(theirs)) or 'nothing'}.")
    if wrong:
        raise InputError(f"{report.source}: {some(wrong)}; give the config that these "
                         "weights were made with.")
    if lacking:
        raise InputError(
            f"{report.source}: it lacks {len(lacking)} of the model's tensors "
            f"({some(lacking)}); copy or download the whole, or give its config.")
    for name in sorted(left):
        why = why_dropped(name)
        if why is None and of_model(name):
            raise InputError(
                f"{report.source}: {name} has no place in a model of its config "
                f"({len(left)} tensors are left over); give the config that these "
                "weights were made with.")
        report.dropped[name] = why or "no part of an ALBERT that is known here"
    return found


# ---- structure -------------------------------------------------------------


def as_format(checkpoint: Checkpoint, projects: bool, grouping: str,
              only_group: bool = False) -> Checkpoint:
    """The checkpoint with the structure that a format has, or InputError.

    Where it projects even for E = H (`projects`), an identity is put in; where it does
    not, an identity is left out. Layers that share nothing become as many groups.

    Args:
      grouping: which layer belongs to which group there, one of config.GROUPINGS.
      only_group: whether it has a single group of a single block.
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
            f"parameter_sharing={config.parameter_sharing} has no counterpart there: "
            "attention and feed-forward layers are shared alike.")
    there = dataclasses.replace(config, layer_grouping=grouping)
    if [config.group_of_layer(layer) for layer in layers] != [
            there.group_of_layer(layer) for layer in layers]:
        raise InputError(
            f"num_hidden_groups={config.num_hidden_groups} for num_hidden_layers="
            f"{len(layers)} has no counterpart there: other layers would share.")
    if only_group and (config.num_hidden_groups, config.inner_group_num) != (1, 1):
        raise InputError(
            f"num_hidden_groups={config.num_hidden_groups}, inner_group_num="
            f"{config.inner_group_num} has no counterpart there, where all layers are "
            "one block.")
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
                    f"{PROJECTION} is no identity, and there is no projection there "
                    f"where embedding_size and hidden_size are both {size}.")
        there = dataclasses.replace(there, project_embeddings=projects)
    return dataclasses.replace(checkpoint, config=there, tensors=tensors)


def with_pooler(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a pooler of zeros where it has none, for formats that always
    have one; its output is 0 and says nothing."""
    config = dataclasses.replace(checkpoint.config, use_pooler=True)
    size = config.hidden_size
    checkpoint.report.notes.append(
        "the checkpoint has no pooler, but the format has: it is written as zeros")
    return dataclasses.replace(checkpoint, config=config, tensors={
        **checkpoint.tensors,
        f"{POOLER}/kernel": Tensor.of(np.zeros((size, size), np.float32)),
        f"{POOLER}/bias": Tensor.of(np.zeros(size, np.float32))})


def refuse_heads_but(known: Container[str], heads: Iterable[str], where: str) -> None:
    """Raises InputError for a head that a format does not know."""
    for head in heads:
        if head not in known:
            raise InputError(f"the head {head} has no counterpart in {where}; leave it "
                             "out (--encoder_only).")


def refuse_unless(wanted: Any, format_name: str, **fields: Any) -> None:
    """Raises InputError for a field of the config that a format does not have:
    refuse_unless(config, "tf1", layer_norm_eps=1e-12); a tuple gives alternatives."""
    for name, accepted in fields.items():
        value = getattr(wanted, name)
        known = accepted if isinstance(accepted, tuple) else (accepted,)
        if value not in known:
            raise InputError(
                f"{name}={value} cannot be written as {format_name}, which has only "
                f"{' or '.join(map(str, known))}.")


def refuse_other_epsilon(config: AlbertConfig, format_name: str) -> None:
    if config.masked_lm_layer_norm_eps:
        raise InputError(
            f"the masked-LM head's LayerNorm has the epsilon "
            f"{config.masked_lm_layer_norm_eps:g} and the others "
            f"{config.layer_norm_eps:g}, but {format_name} has one for all; leave the "
            "heads out (--encoder_only).")
