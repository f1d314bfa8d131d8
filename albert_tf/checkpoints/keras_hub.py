"""keras-hub's presets: config.json and model.weights.h5, and for a task task.json and
task.weights.h5. Keras 3 stores variables by the class of their layer and its number among
the layers of this class. keras-hub's ALBERT has a projection even for E = H, only one
activation (gelu in its tanh form), and the epsilon 1e-5 in the masked-LM head.
"""

import datetime
import math
import os
import re
from typing import Any, Iterable, Mapping, Optional

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints import tensor_files, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    SEVERAL_LABELS, Checkpoint, Row, as_format, check_groups, in_theirs, matched,
    part_of, rows_of, without_heads)
from albert_tf.checkpoints.labels import outputs_of
from albert_tf.checkpoints.vocabulary import check_settings
from albert_tf.config import AlbertConfig, refuse
from albert_tf.errors import InputError, reading
from albert_tf.modeling.parameter_count import (
    BLOCK, POOLER, PROJECTION, WORDS, count_parameters)

NAME = "keras_hub"
CONFIG, TASK = "config.json", "task.json"
# The key in CONFIG of what the format has no place for: labels, and how texts are read.
SETTINGS = "albert_tf"
WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"

# Beginning of our name, or of its part behind that of a block → keras-hub's layer.
_PARTS = {
    WORDS: "reversible_embedding",
    "bert/embeddings/position_embeddings": "position_embedding",
    "bert/embeddings/token_type_embeddings": "embedding",
    "bert/embeddings/LayerNorm": "layer_normalization",
    PROJECTION: "dense",
    POOLER: "dense_1",
    "cls/predictions/transform/dense": "masked_lm_head/_intermediate_dense",
    "cls/predictions/transform/LayerNorm": "masked_lm_head/_intermediate_layer_norm",
    "cls/predictions/output_bias": "masked_lm_head",
    "output_": "dense",
    "attention_1/self/query": "_self_attention_layer/query_dense",
    "attention_1/self/key": "_self_attention_layer/key_dense",
    "attention_1/self/value": "_self_attention_layer/value_dense",
    "attention_1/output/dense": "_self_attention_layer/output_dense",
    "LayerNorm": "_self_attention_layer_norm",
    "ffn_1/intermediate/dense": "_feedforward_intermediate_dense",
    "ffn_1/intermediate/output/dense": "_feedforward_output_dense",
    "LayerNorm_1": "_feedforward_layer_norm"}
_BLOCK = re.compile(re.escape(BLOCK).replace(r"\{\}", r"(\d+)"))
# Fields of config.json → ours; `dropout` is both of our dropout rates.
_FIELDS = {"vocabulary_size": "vocab_size", "num_layers": "num_hidden_layers",
           "num_heads": "num_attention_heads", "num_groups": "num_hidden_groups",
           "num_inner_repetitions": "inner_group_num",
           "embedding_dim": "embedding_size", "hidden_dim": "hidden_size",
           "intermediate_dim": "intermediate_size",
           "max_sequence_length": "max_position_embeddings",
           "num_segments": "type_vocab_size"}
# keras-hub's classes of tasks → their heads. The last one is written.
_HEADS = {"AlbertMaskedLM": "masked_lm", "AlbertClassifier": "classification",
          "AlbertTextClassifier": "classification"}
_DROPPED = {f"^({TASK_WEIGHTS}:)?optimizer/": "state of the training"}


def name_of(ours: str, inner: int) -> str:
    """Returns a variable's path in WEIGHTS, or in TASK_WEIGHTS behind that name."""
    layer = "layers/" if ours.startswith("bert/") else f"{TASK_WEIGHTS}:layers/"
    rest = ours
    if block := _BLOCK.match(ours):
        number = int(block[1]) * inner + int(block[2])
        layer += f"transformer_encoder{f'_{number}' if number else ''}/"
        rest = ours[block.end():]
    is_second = ours.endswith(("/bias", "/beta")) or ours == "output_bias"
    return f"{layer}{part_of(rest, _PARTS)[1]}/vars/{int(is_second)}"


def _rows(config: AlbertConfig, heads: Mapping[str, int]) -> list[Row]:
    return rows_of(config, heads, lambda name: name_of(name, config.inner_group_num),
                   ["output_weights"], split=True)


def _group(layer: int, layers: int, groups: int) -> Optional[int]:
    return layer * groups // layers if layers % groups == 0 else None


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    path, task, source, of_head = (
        os.path.join(folder, name) for name in (CONFIG, TASK, WEIGHTS, TASK_WEIGHTS))
    _, values, settings = _description(path, ("AlbertBackbone",))
    check_settings(settings, path)
    rate = values.get("dropout", 0.0)
    try:
        config = config or AlbertConfig(
            **{ours: values.get(theirs) for theirs, ours in _FIELDS.items()},
            hidden_dropout_prob=rate, attention_probs_dropout_prob=rate,
            project_embeddings=values.get("embedding_dim") == values.get("hidden_dim"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    stored = tensor_files.read_h5(source)
    heads: dict[str, int] = {}
    if files.exists(task):
        kind, values, _ = _description(task, _HEADS)
        stored |= {f"{TASK_WEIGHTS}:{name}": tensor
                   for name, tensor in tensor_files.read_h5(of_head).items()}
        bias = stored.get(name_of("output_bias", 1))
        heads = {_HEADS[kind]: math.prod(bias.shape[:1]) if bias else 1}
        if "masked_lm" in heads:
            config = config.replace(masked_lm_layer_norm_eps=1e-5)
        if "classification" in heads and values.get("activation") == "sigmoid":
            settings = {**settings, "problem_type": SEVERAL_LABELS}
    check_groups(config, _group, path)
    return matched(
        NAME, source, config, heads, _rows(config, heads), stored, _DROPPED,
        f"(?!{TASK_WEIGHTS})", settings=settings, **outputs_of(settings, heads, path))


def _description(path: str, kinds: Iterable[str]
                 ) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Returns the class of a file's Keras object, its settings, and those of ours."""
    value = text_files.read_object(path)
    refuse({"class_name": value.get("class_name")}, path, class_name=kinds)
    with reading(path):
        return value["class_name"], dict(value["config"]), dict(value.get(SETTINGS, {}))


def check(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint = without_heads(checkpoint, {
        "sentence_order": "keras-hub has no sentence-order head"})
    return as_format(
        checkpoint, NAME, True, _group, needs_pooler=True, head=("classification",),
        hidden_act=("gelu",), layer_norm_eps=(1e-12,))


def _described(kind: str, values: Mapping[str, Any], dtype: str = "") -> dict[str, Any]:
    """Returns the description of a Keras object; with `dtype`, that of a layer."""
    # In snake case: "AlbertTextClassifier" → "albert_text_classifier".
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    layer = {"trainable": True, "dtype": {
        "module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype},
        "registered_name": None}} if dtype else {}
    return {"module": f"keras_hub.src.models.albert.{name}", "class_name": kind,
            "config": {"name": name, **layer, **values},
            "registered_name": f"keras_hub>{kind}"}


def write(checkpoint: Checkpoint, folder: str) -> None:
    config, (*_, kind) = checkpoint.config, _HEADS
    described = {CONFIG: _described("AlbertBackbone", {
        **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
        "dropout": config.hidden_dropout_prob}, "float32"), "metadata.json": {
            "keras_version": "3.15.1", "keras_hub_version": "0.32.0",
            "parameter_count": count_parameters(config)["with pooler"],
            "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
            "tasks": ["MaskedLM", "TextClassifier"]}}
    # AlbertTokenizer does not support WordPiece.
    if checkpoint.tokenizer and checkpoint.tokenizer.uses_sentencepiece:
        tokenizer_files.copy_sentencepiece(
            checkpoint.tokenizer, os.path.join(folder, tokenizer_files.KERAS_MODEL))
        described["tokenizer.json"] = _described("AlbertTokenizer", {
            "config_file": "tokenizer.json", "proto": None, "sequence_length": None,
            "add_bos": False, "add_eos": False}, "int32")
        described["preprocessor.json"] = _described(f"{kind}Preprocessor", {
            "tokenizer": described["tokenizer.json"], "config_file": "preprocessor.json",
            "sequence_length": checkpoint.max_seq_length,
            "truncate": "round_robin"}, "float32")
    weights = in_theirs(checkpoint, _rows(config, checkpoint.heads))
    of_head = {name.partition(":")[2]: weights.pop(name) for name in [*weights]
               if name.startswith(TASK_WEIGHTS)}
    tensor_files.write_h5(os.path.join(folder, WEIGHTS), weights)
    for outputs in checkpoint.heads.values():
        described[TASK] = _described(kind, {
            "backbone": described[CONFIG],
            "preprocessor": described.get("preprocessor.json"), "num_classes": outputs,
            "activation": "sigmoid" if checkpoint.problem_type == SEVERAL_LABELS else
            "linear", "dropout": 0.1})
        # Of the optimizer, the step and the learning rate are expected.
        tensor_files.write_h5(os.path.join(folder, TASK_WEIGHTS), of_head | {
            f"optimizer/vars/{i}": Tensor.of(np.asarray(value))
            for i, value in enumerate((np.int64(0), np.float32(1e-5)))})
    settings = {**checkpoint.kept_settings, **checkpoint.kept_problem, **(
        {"labels": list(checkpoint.labels)} if checkpoint.labels else {})}
    if settings:
        described[CONFIG] = {**described[CONFIG], SETTINGS: settings}
    for name, value in described.items():
        text_files.write_json(os.path.join(folder, name), value)
