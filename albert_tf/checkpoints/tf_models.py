"""tf-models' checkpoints and SavedModels (TensorFlow Model Garden, `AlbertEncoder`).

Attention kernels have an axis for the attention heads. A checkpoint is object-based: it
has the word embeddings below the masked-LM head, if there is one. Variables are
recognised by the full names that it stores for them.
"""

import os
import re
from typing import Any, Mapping, Optional

from albert_tf import files, text_files
from albert_tf.checkpoints import bundle, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import Checkpoint, shapes_of, without_heads
from albert_tf.checkpoints.table import (
    Row, as_format, in_theirs, matched, refuse, rows_of)
from albert_tf.checkpoints.release import ORIGINAL, SIZES, published, sizes_in
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import reading
from albert_tf.modeling.parameter_count import BLOCK, POOLER, PROJECTION, WORDS, Shape

NAME = "tf_models"
_WORDS = "word_embeddings/embeddings"
_BLOCK = BLOCK.format(0, 0)
_LAYER = "transformer/"
# Beginning of our name, of theirs, and of the key in a checkpoint of an encoder.
_PARTS = (
    (WORDS, _WORDS, "layer_with_weights-0/embeddings"),
    ("bert/embeddings/position_embeddings", "position_embedding/embeddings",
     "layer_with_weights-1/embeddings"),
    ("bert/embeddings/token_type_embeddings", "type_embeddings/embeddings",
     "layer_with_weights-2/embeddings"),
    ("bert/embeddings/LayerNorm", "embeddings/layer_norm", "layer_with_weights-3"),
    (PROJECTION, "embedding_projection", "layer_with_weights-4"),
    (f"{_BLOCK}attention_1/self/query", f"{_LAYER}self_attention/query",
     "layer_with_weights-5/_attention_layer/_query_dense"),
    (f"{_BLOCK}attention_1/self/key", f"{_LAYER}self_attention/key",
     "layer_with_weights-5/_attention_layer/_key_dense"),
    (f"{_BLOCK}attention_1/self/value", f"{_LAYER}self_attention/value",
     "layer_with_weights-5/_attention_layer/_value_dense"),
    (f"{_BLOCK}attention_1/output/dense", f"{_LAYER}self_attention/attention_output",
     "layer_with_weights-5/_attention_layer/_output_dense"),
    (f"{_BLOCK}LayerNorm/", f"{_LAYER}self_attention_layer_norm/",
     "layer_with_weights-5/_attention_layer_norm/"),
    (f"{_BLOCK}ffn_1/intermediate/dense", f"{_LAYER}intermediate",
     "layer_with_weights-5/_intermediate_dense"),
    (f"{_BLOCK}ffn_1/intermediate/output/dense", f"{_LAYER}output",
     "layer_with_weights-5/_output_dense"),
    (f"{_BLOCK}LayerNorm_1/", f"{_LAYER}output_layer_norm/",
     "layer_with_weights-5/_output_layer_norm/"),
    (POOLER, "pooler_transform", "layer_with_weights-6"),
)
_HEAD = (("cls/predictions/transform/dense", "masked_lm/dense"),
         ("cls/predictions/transform/LayerNorm", "masked_lm/layer_norm"),
         ("cls/predictions/output_bias", "masked_lm/output_bias.Sbias"))
# What stands before a full name in a model with its own scope.
_WITH_PREFIX = re.compile(
    r"^.*?(?:^|/)(?=(?:word_embeddings|position_embedding|type_embeddings|embeddings/"
    r"layer_norm|embedding_projection|transformer|pooler_transform|bert/cls)/)")
# All layers share one block.
_ONE_BLOCK: dict[str, Any] = {"num_hidden_groups": (1,), "inner_group_num": (1,)}
_DROPPED = {f"^save_counter|^{bundle.OBJECT_GRAPH}|optimizer": "training state"}


def name_of(ours: str) -> str:
    """Returns tf-models' full name of a variable for the original implementation's."""
    if ours.startswith("cls/"):
        return f"bert/{ours}" + ("/bias" if ours.endswith("output_bias") else "")
    return next(theirs + ours.removeprefix(start) for start, theirs, _ in _PARTS
                if ours.startswith(start))


# Size → the tensor and its axis that tell it. Layers share their weights, therefore
# only a SavedModel tells their number.
_SIZES = {size: (name_of(ours), axis) for size, (ours, axis) in {
    **SIZES, "num_attention_heads": (SIZES["hidden_size"][0], 1)}.items()}


def key_of(ours: str, projects: bool, has_head: bool) -> str:
    """Returns the key of a variable in a checkpoint."""
    for start, theirs in _HEAD:
        if ours.startswith(start):
            return theirs + ours.removeprefix(start)
    if ours == WORDS and has_head:
        return "masked_lm/embedding_table"
    start, key = next(
        (start, key) for start, _, key in _PARTS if ours.startswith(start))
    if not projects:  # Without a projection the next layers' numbers are one lower.
        key = re.sub(r"-([56])", lambda match: f"-{int(match[1]) - 1}", key)
    return f"encoder/{key}{ours.removeprefix(start)}"


def _rows(shapes: Mapping[str, Shape], config: AlbertConfig) -> list[Row]:
    return rows_of(shapes, name_of,
                   shape=lambda name, shape: with_heads(name, shape, config))


def with_heads(name: str, shape: Shape, config: AlbertConfig) -> Shape:
    """Returns the shape of a tensor with a separate axis for the attention heads."""
    heads, depth = config.num_attention_heads, (
        config.hidden_size // config.num_attention_heads)
    if "attention_1/self/" in name:
        return (*shape[:-1], heads, depth)
    if name.endswith("attention_1/output/dense/kernel"):
        return (heads, depth, shape[1])
    return shape


# ---- reading ---------------------------------------------------------------


def _stored(prefix: str) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by their full names, without any prefix."""
    return {_WITH_PREFIX.sub("", name): tensor
            for name, tensor in bundle.by_names(prefix).items()}


def recognise(prefix: str) -> bool:
    """Returns whether a checkpoint holds tf-models' ALBERT."""
    return _WORDS in _stored(prefix)


def read(prefix: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    """Reads the model in a checkpoint, which may be that of a SavedModel."""
    stored = _stored(prefix)
    beside = os.path.join(os.path.dirname(prefix), CONFIG_FILE)
    if config is None and files.exists(beside):
        config = AlbertConfig.from_json_file(beside)
    if config is None:
        sizes, layers = sizes_in(stored, _SIZES), _count_layers(prefix)
        config = (AlbertConfig(**sizes, num_hidden_layers=layers) if layers
                  else published(prefix, sizes))
    refuse(vars(config), prefix, parameter_sharing=("all",), **_ONE_BLOCK)
    config = config.replace(use_pooler="pooler_transform/kernel" in stored)
    has_head = name_of("cls/predictions/output_bias") in stored
    heads = {"masked_lm": 1} if has_head else {}
    return matched(NAME, prefix, config, heads, _rows(shapes_of(config, heads), config),
                   stored, _DROPPED, "transformer/|embedding")


def _count_layers(prefix: str) -> int:
    """Returns the number of layers whose outputs a SavedModel has, 0 if unknown."""
    path = os.path.join(os.path.dirname(os.path.dirname(prefix)), "saved_model.pb")
    if os.path.basename(prefix) != "variables" or not files.exists(path):
        return 0

    def values(message: bytes, number: int) -> list[Any]:
        return [value for key, value in bundle.fields(message) if key == number]

    with files.open_binary(path) as stream, reading(path, binary=True):
        # SavedModel.meta_graphs(2).signature_def(5), a map; its outputs(2) are
        # pooled_output twice, sequence_output, and one for each layer.
        for graph in values(stream.read(), 2):
            for entry in values(graph, 5):
                if values(entry, 1) == [b"serving_default"]:
                    return len(values(values(entry, 2)[0], 2)) - 3
    return 0


# ---- writing ---------------------------------------------------------------


def check(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint in the form that is written."""
    checkpoint = without_heads(checkpoint, {
        "sentence_order": "BertPretrainerV2 has no sentence-order head"})
    return as_format(
        checkpoint, NAME, False, needs_pooler=True, head=("masked_lm",), **_ONE_BLOCK,
        **ORIGINAL)


def write(checkpoint: Checkpoint, folder: str) -> None:
    """Writes ckpt-1, as tf.train.Checkpoint does for an encoder, or for a pretrainer if
    there is a masked-LM head, and albert_config.json, which the format lacks."""
    import tensorflow as tf

    config, has_head = checkpoint.config, "masked_lm" in checkpoint.heads
    text_files.write_json(os.path.join(folder, CONFIG_FILE), config.to_dict())
    if checkpoint.vocabulary:
        tokenizer_files.write_plain(checkpoint.vocabulary, folder)
    root = tf.train.Checkpoint()

    def place(key: str, value: Any) -> None:
        node, (*parts, last) = root, key.split("/")
        for part in parts:
            if not hasattr(node, part):
                setattr(node, part, tf.Module())
            node = getattr(node, part)
        # In a key, ".S" stands for a slash within a name.
        setattr(node, last.replace(".S", "/"), value)

    with tf.device("CPU"):
        shapes = shapes_of(config, checkpoint.heads)
        tensors = in_theirs(checkpoint, _rows(shapes, config))
        for name in shapes:
            theirs = name_of(name)
            variable = tf.Variable(tensors[theirs].read(), name=theirs)
            place(key_of(name, config.projects_embeddings, has_head), variable)
            if has_head and name == WORDS:
                # They are one variable with two names.
                place("encoder/layer_with_weights-0/embeddings", variable)
    if has_head:
        place("model/encoder_network", root.encoder)
        place("model/masked_lm", root.masked_lm)
    root.save(os.path.join(folder, "ckpt"))
