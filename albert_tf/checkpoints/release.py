"""Checkpoints with the original implementation's names: TF1 checkpoints, runs of this
project, and TensorFlow Hub modules (`module/` before the names).

albert_zh's own layout (`layer_shared`) projects the word embeddings first, and all else
has width H: a model with E = H whose word embeddings are the product of two matrices.
"""

import functools
import os
import re
from typing import Any, Callable, Mapping, Optional

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints import bundle, tokenizer_files, vocabulary
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    ROOT_HEADS, Checkpoint, as_format, head_of, matched, part_of, rows_of, shapes_of,
    with_heads)
from albert_tf.checkpoints.labels import outputs_of
from albert_tf.checkpoints.folders import BEST_CHECKPOINT
from albert_tf.config import AlbertConfig, CONFIG_FILE, NAMED
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import BLOCK, QUERY_VECTOR, WORDS

NAME = "tf1"
_HUB_PREFIX = "module/"
# The values of the config that the original supports.
ORIGINAL: dict[str, Any] = {
    "hidden_act": ("gelu", "relu", "tanh", "linear"), "layer_norm_eps": (1e-12,),
    "masked_lm_layer_norm_eps": (1e-12,)}
_DROPPED = {
    r"(^|/)(adam_[mv]|global_step|iteration|save_counter|current_learning_rate"
    r"|[Aa]dam.*|lamb.*)$": "training state (optimizer or step)",
    QUERY_VECTOR: "used in pretraining with --objective=permutation only"}
# Size → the tensor and its axis that tell it.
SIZES = {
    "vocab_size": (WORDS, 0), "embedding_size": (WORDS, 1),
    "hidden_size": (f"{BLOCK.format(0, 0)}attention_1/self/query/kernel", 0),
    "intermediate_size": (f"{BLOCK.format(0, 0)}ffn_1/intermediate/dense/kernel", 1),
    "max_position_embeddings": ("bert/embeddings/position_embeddings", 0),
    "type_vocab_size": ("bert/embeddings/token_type_embeddings", 0)}
# The names of albert_zh's own layout → ours.
_ZH_LAYER, _ZH_PARTS = "bert/encoder/layer_shared/", {
    "attention/self/": "attention_1/self/",
    "attention/output/dense": "attention_1/output/dense",
    "attention/output/LayerNorm": "LayerNorm",
    "intermediate/dense": "ffn_1/intermediate/dense",
    "output/dense": "ffn_1/intermediate/output/dense",
    "output/LayerNorm": "LayerNorm_1"}


def is_foreign(prefix: str) -> bool:
    """Returns whether an ALBERT has different names, or belongs to a SavedModel."""
    names = bundle.by_names(prefix)
    return (WORDS not in names or os.path.basename(prefix) == "variables"
            or any(name.startswith(_ZH_LAYER) for name in names))


def read(prefix: str, config: Optional[AlbertConfig] = None, head: str = ""
         ) -> Checkpoint:
    """Reads a checkpoint or TensorFlow Hub module; `head` as for formats.read."""
    folder, stored = os.path.dirname(prefix), bundle.by_names(prefix)
    is_module = os.path.basename(folder) == "variables"
    objects = bundle.OBJECT_GRAPH in bundle.read(prefix)
    if is_module:
        folder = os.path.dirname(folder)
        if objects:
            raise InputError(f"{folder} is a SavedModel that export_model.py wrote; give "
                             "the model that was exported.")
    kind = "tf_hub" if is_module else "run" if objects else NAME
    begin = _HUB_PREFIX if any(name.startswith(_HUB_PREFIX) for name in stored) else ""
    name_of = begin.__add__
    task = {} if is_module else vocabulary.task_settings(folder)
    # The config is beside it, of any name if there is only one.
    place = os.path.join(folder, "assets") if is_module else folder
    named = [name for name in files.names_in(place)
             if re.fullmatch(r".*config.*\.json", name) and "tokenizer" not in name]
    named = [CONFIG_FILE] if CONFIG_FILE in named else named if len(named) == 1 else []
    values = {}
    for where in (os.path.join(place, name) for name in named):
        values = text_files.read_object(where)
        config = config or AlbertConfig.from_json_file(where)
    config = config or published(prefix, sizes_in(stored, SIZES, name_of))
    if any(name.startswith(_ZH_LAYER) for name in stored):
        config, stored = _from_zh(prefix, stored, config)
    settings = {**values, **task}
    config, heads = with_heads(config, stored, head or (
        settings.get("head") if settings.get("head") in ROOT_HEADS else
        "multiple_choice" if settings.get("task") == "race" else ""), name_of)
    step = stored.get("global_step", stored.get("iteration"))
    return matched(
        kind, prefix, config, heads, rows_of(config, heads, name_of), stored, _DROPPED,
        f"{begin}bert/", **outputs_of(settings, heads, folder), settings=task,
        slots={name: tensor for name, tensor in stored.items()
               if name.endswith(("/adam_m", "/adam_v"))},
        step=int(step.read()) if step else 0)


def sizes_in(stored: Mapping[str, Tensor], axes: Mapping[str, tuple[str, int]],
             name_of: Callable[[str], str]) -> dict[str, int]:
    """Returns the sizes that tensors tell, or 0, by `axes`: size → tensor and axis."""
    return {field: (*(stored[name_of(ours)].shape[axis:] if name_of(ours) in stored
                      else ()), 0)[0] for field, (ours, axis) in axes.items()}


def published(source: str, sizes: Mapping[str, int]) -> AlbertConfig:
    """Returns the published config (version 2) with these sizes."""
    for name in ("base-v2", "large-v2", "xlarge-v2", "xxlarge-v2"):
        if all(sizes[field] == NAMED[name].get(field, 128) for field in (
                "embedding_size", "hidden_size", "intermediate_size")):
            return AlbertConfig.named(name, **sizes)
    raise InputError(f"{source}: there is no {CONFIG_FILE}, and the tensors do not tell "
                     "all sizes; give the config (--albert_config_file, --model, or "
                     "config=).")


def _from_zh(prefix: str, stored: Mapping[str, Tensor], config: AlbertConfig
             ) -> tuple[AlbertConfig, dict[str, Tensor]]:
    """Converts config and tensors of albert_zh's own layout to a model with E = H."""
    if config.hidden_size == 4096 and "ln_type" not in config.extra:
        raise InputError(
            f"{prefix}: albert_zh's xxlarge has LayerNorm before the layers, which is "
            "not supported; give a different model.")
    tensors = {}
    for name, tensor in stored.items():
        if name.startswith(_ZH_LAYER):
            rest = name.removeprefix(_ZH_LAYER)
            part, ours = part_of(rest, _ZH_PARTS)
            name = BLOCK.format(0, 0) + ours + rest.removeprefix(part)
        tensors[name] = tensor
    first, second = stored[WORDS], tensors.pop(f"{WORDS}_2", None)
    if second is not None:
        tensors[WORDS] = Tensor(
            (first.shape[0], second.shape[-1]), lambda: first.read() @ second.read())
    return config.replace(
        embedding_size=config.hidden_size, num_hidden_groups=1), tensors


def check(checkpoint: Checkpoint) -> Checkpoint:
    if not checkpoint.config.use_pooler:
        checkpoint.report.notes.append(
            "the checkpoint has no pooler; a task that needs one must train it")
    return as_format(checkpoint, NAME, False, **ORIGINAL)


def write(checkpoint: Checkpoint, folder: str, optimizer_state: bool = False) -> None:
    """Writes albert_config.json and model.ckpt-best; with `optimizer_state` also the
    moments and the step, or zeros if the checkpoint has none."""
    shapes = shapes_of(checkpoint.config, checkpoint.heads)
    tensors = {name: checkpoint.tensors[name] for name in shapes}
    if optimizer_state:
        for name, shape in shapes.items():
            zeros = Tensor(shape, functools.partial(np.zeros, shape, np.float32))
            for slot in (f"{name}/adam_m", f"{name}/adam_v"):
                tensors[slot] = checkpoint.slots.get(slot, zeros)
        tensors["global_step"] = Tensor.of(np.array(checkpoint.step, np.int64))
    values = checkpoint.config.to_dict()
    for head in checkpoint.heads:
        if head in ROOT_HEADS or head_of(head).has_labels:
            values |= {"head": head, "labels": list(checkpoint.labels),
                       **checkpoint.kept_problem}
    text_files.write_json(os.path.join(folder, CONFIG_FILE), values, ensure_ascii=False)
    if checkpoint.tokenizer:
        tokenizer_files.write_plain(checkpoint.tokenizer, folder)
    bundle.write(os.path.join(folder, BEST_CHECKPOINT), tensors)
