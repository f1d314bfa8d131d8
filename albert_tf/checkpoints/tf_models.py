"""tf-models' checkpoints and SavedModels (TensorFlow Model Garden, `AlbertEncoder`).

Variables are recognised by the full names that an object-based checkpoint stores for
them. The kernels of attention have an axis for the attention heads.
"""

import os
import re
from typing import Any, Iterable, Mapping, Optional

from albert_tf import files, text_files
from albert_tf.checkpoints import bundle, tokenizer_files
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Row, as_format, in_theirs, matched, part_of, rows_of, with_heads,
    without_heads)
from albert_tf.checkpoints.folders import STATE_FILE
from albert_tf.checkpoints.release import ORIGINAL, SIZES, published, sizes_in
from albert_tf.config import AlbertConfig, CONFIG_FILE, refuse
from albert_tf.errors import reading
from albert_tf.modeling.parameter_count import BLOCK, POOLER, PROJECTION, WORDS

NAME = "tf_models"
# Beginning of our name → of theirs.
_PARTS = {
    "": "bert/",
    WORDS: "word_embeddings/embeddings",
    "bert/embeddings/position_embeddings": "position_embedding/embeddings",
    "bert/embeddings/token_type_embeddings": "type_embeddings/embeddings",
    "bert/embeddings/LayerNorm": "embeddings/layer_norm",
    PROJECTION: "embedding_projection",
    **{f"{BLOCK.format(0, 0)}{ours}": f"transformer/{theirs}" for ours, theirs in (
        ("attention_1/self", "self_attention"),
        ("attention_1/output/dense", "self_attention/attention_output"),
        ("LayerNorm", "self_attention_layer_norm"),
        ("ffn_1/intermediate/dense", "intermediate"),
        ("ffn_1/intermediate/output/dense", "output"),
        ("LayerNorm_1", "output_layer_norm"))},
    POOLER: "pooler_transform",
    "cls/predictions/output_bias": "bert/cls/predictions/output_bias/bias"}
# What stands before a full name in a model with its own scope.
_WITH_PREFIX = re.compile(
    r"^.*?(?:^|/)(?=(?:word_embeddings|position_embedding|type_embeddings|embeddings/"
    r"layer_norm|embedding_projection|transformer|pooler_transform|bert/cls)/)")
# All layers share one block.
_ONE_BLOCK: dict[str, Any] = {"num_hidden_groups": (1,), "inner_group_num": (1,)}
_DROPPED = {"^save_counter|optimizer": "training state"}


def name_of(ours: str) -> str:
    """Returns tf-models' full name of a variable for the original implementation's."""
    part, theirs = part_of(ours, _PARTS)
    return theirs + ours.removeprefix(part)


# Size → the tensor and its axis that tell it. Layers share their weights, therefore
# only a SavedModel tells their number.
_SIZES = {**SIZES, "num_attention_heads": (SIZES["hidden_size"][0], 1)}


def _rows(config: AlbertConfig, heads: Mapping[str, int]) -> list[Row]:
    return rows_of(config, heads, name_of, split=True)


def read(prefix: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    stored = {_WITH_PREFIX.sub("", name): tensor
              for name, tensor in bundle.by_names(prefix).items()}
    beside = os.path.join(os.path.dirname(prefix), CONFIG_FILE)
    if config is None and files.exists(beside):
        config = AlbertConfig.from_json_file(beside)
    if config is None:
        sizes, layers = sizes_in(stored, _SIZES, name_of), _count_layers(prefix)
        config = (AlbertConfig(**sizes, num_hidden_layers=layers) if layers
                  else published(prefix, sizes))
    refuse(vars(config), prefix, parameter_sharing=("all",), **_ONE_BLOCK)
    config, heads = with_heads(config, stored, name_of=name_of)
    return matched(NAME, prefix, config, heads, _rows(config, heads), stored, _DROPPED,
                   "transformer/|embedding")


def _count_layers(prefix: str) -> int:
    """Returns the number of layers whose outputs a SavedModel has, 0 if unknown."""
    path = os.path.join(os.path.dirname(os.path.dirname(prefix)), "saved_model.pb")
    if os.path.basename(prefix) != "variables" or not files.exists(path):
        return 0

    def values(messages: Iterable[Any], number: int) -> list[Any]:
        return [value for message in messages for key, value in bundle.fields(message)
                if key == number]

    with files.open_binary(path) as stream, reading(path):
        # SavedModel.meta_graphs(2).signature_def(5), a map; its outputs(2) are
        # pooled_output twice, sequence_output, and one for each layer.
        return next((len(values(values([entry], 2), 2)) - 3
                     for entry in values(values([stream.read()], 2), 5)
                     if values([entry], 1) == [b"serving_default"]), 0)


def check(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint = without_heads(checkpoint, {
        "sentence_order": "BertPretrainerV2 has no sentence-order head"})
    return as_format(
        checkpoint, NAME, False, needs_pooler=True, head=("masked_lm",), **_ONE_BLOCK,
        **ORIGINAL)


def write(checkpoint: Checkpoint, folder: str) -> None:
    """Writes ckpt-1, which tf.train.Checkpoint restores by the variables' full names, and
    albert_config.json, which the format lacks."""
    config = checkpoint.config
    text_files.write_json(os.path.join(folder, CONFIG_FILE), config.to_dict())
    if checkpoint.tokenizer:
        tokenizer_files.write_plain(checkpoint.tokenizer, folder)
    bundle.write(os.path.join(folder, "ckpt-1"), in_theirs(
        checkpoint, _rows(config, checkpoint.heads)))
    files.write(os.path.join(folder, STATE_FILE), b'model_checkpoint_path: "ckpt-1"\n')
