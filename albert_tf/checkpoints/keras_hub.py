"""keras-hub's presets: config.json and model.weights.h5, and for a task task.json and
task.weights.h5.

Keras 3 stores variables by the class of their layer and its number among the layers of
this class, not by name. keras-hub's ALBERT has a projection even for E = H, only one
activation (gelu in its tanh form), and the epsilon 1e-5 in the masked-LM head.
"""

import datetime
import os
import re
from typing import Any, Mapping, Optional

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints import tensor_files, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    SEVERAL_LABELS, Checkpoint, Report, head_of, without_heads)
from albert_tf.checkpoints.table import (
    Row, as_format, matched, refuse_heads_but, refuse_unless, rows_of, to_theirs,
    with_pooler)
from albert_tf.checkpoints.tf_models import with_heads
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import (
    BLOCK, POOLER, PROJECTION, WORDS, Shape, encoder_shapes)

NAME = "keras_hub"
CONFIG, TASK = "config.json", "task.json"
WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
_METADATA = "metadata.json"
MASKED_LM_EPSILON = 1e-5

# Beginning of our name → keras-hub's layer (_LAYERS), or its part of a block (_PARTS).
_LAYERS = (
    (WORDS, "layers/reversible_embedding"),
    ("bert/embeddings/position_embeddings", "layers/position_embedding"),
    ("bert/embeddings/token_type_embeddings", "layers/embedding"),
    ("bert/embeddings/LayerNorm", "layers/layer_normalization"),
    (PROJECTION, "layers/dense"),
    (POOLER, "layers/dense_1"),
    ("cls/predictions/transform/dense", "layers/masked_lm_head/_intermediate_dense"),
    ("cls/predictions/transform/LayerNorm",
     "layers/masked_lm_head/_intermediate_layer_norm"),
    ("cls/predictions", "layers/masked_lm_head"),
    ("output_", "layers/dense"),
)
_PARTS = (("attention_1/self/query", "_self_attention_layer/query_dense"),
          ("attention_1/self/key", "_self_attention_layer/key_dense"),
          ("attention_1/self/value", "_self_attention_layer/value_dense"),
          ("attention_1/output/dense", "_self_attention_layer/output_dense"),
          ("LayerNorm/", "_self_attention_layer_norm/"),
          ("ffn_1/intermediate/dense", "_feedforward_intermediate_dense"),
          ("ffn_1/intermediate/output/dense", "_feedforward_output_dense"),
          ("LayerNorm_1/", "_feedforward_layer_norm/"))
_BLOCK = re.compile(re.escape(BLOCK).replace(r"\{\}", r"(\d+)"))
# Fields of config.json → ours; `dropout` is both of our dropout rates.
_FIELDS = {"vocabulary_size": "vocab_size", "num_layers": "num_hidden_layers",
           "num_heads": "num_attention_heads", "num_groups": "num_hidden_groups",
           "num_inner_repetitions": "inner_group_num",
           "embedding_dim": "embedding_size", "hidden_dim": "hidden_size",
           "intermediate_dim": "intermediate_size",
           "max_sequence_length": "max_position_embeddings",
           "num_segments": "type_vocab_size"}
_TASKS = {"AlbertMaskedLM": "masked_lm", "AlbertTextClassifier": "classification",
          "AlbertClassifier": "classification"}
# The learning rates of the optimizers that keras-hub gives to its tasks. It expects the
# optimizer's step and rate in TASK_WEIGHTS, and warns if they are not there.
_RATES = {"masked_lm": 5e-5, "classification": 1e-5}


def name_of(ours: str, inner: int) -> str:
    """Returns a variable's path in the HDF5 file: TASK_WEIGHTS for a head, else
    WEIGHTS."""
    block = _BLOCK.match(ours)
    if block:
        number = int(block[1]) * inner + int(block[2])
        rest = ours[block.end():]
        layer = f"layers/transformer_encoder{f'_{number}' if number else ''}/" + next(
            theirs.rstrip("/") for part, theirs in _PARTS if rest.startswith(part))
    else:
        layer = next(theirs for start, theirs in _LAYERS if ours.startswith(start))
    is_second = ours.endswith(("/bias", "/beta")) or ours == "output_bias"
    return f"{layer}/vars/{int(is_second)}"


def _rows(shapes: Mapping[str, Shape], config: AlbertConfig) -> list[Row]:
    return rows_of(
        shapes, lambda name: name_of(name, config.inner_group_num),
        lambda name: name == "output_weights",
        lambda name, shape: with_heads(name, shape, config))


# ---- reading ---------------------------------------------------------------


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    """Reads the model in a preset's folder."""
    path = os.path.join(folder, CONFIG)
    kind, values = _kind(text_files.read_object(path), path)
    if kind != "AlbertBackbone":
        raise InputError(f"{path}: describes a {kind}, not an AlbertBackbone; give an "
                         "ALBERT model.")
    if config is None:
        try:
            config = _config(values)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not the config of an AlbertBackbone (it has "
                             f"no {error}); copy or download it again.") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    stored = tensor_files.read_h5(os.path.join(folder, WEIGHTS))
    heads, problem, task = {}, "", os.path.join(folder, TASK)
    of_task: dict[str, Tensor] = {}
    report = Report(os.path.join(folder, WEIGHTS))
    if files.exists(task):
        kind, described = _kind(text_files.read_object(task), task)
        if kind not in _TASKS:
            raise InputError(f"{task}: the task {kind} is not supported; supported are "
                             f"{', '.join(_TASKS)}.")
        of_task = tensor_files.read_h5(os.path.join(folder, TASK_WEIGHTS))
        bias = of_task.get("layers/dense/vars/1")
        heads = {_TASKS[kind]: bias.shape[0] if bias else 1}
        if "masked_lm" in heads:
            config = config.replace(
                masked_lm_layer_norm_eps=MASKED_LM_EPSILON)
        activation = described.get("activation") or "linear"
        if "classification" in heads and activation == "sigmoid":
            problem = SEVERAL_LABELS
        elif activation != "linear":
            report.notes.append(
                f"the task's activation {activation} is not applied to the outputs")
    elif files.exists(os.path.join(folder, TASK_WEIGHTS)):
        raise InputError(f"{task} is missing, but {TASK_WEIGHTS} is there; copy or "
                         f"download the whole folder, or remove {TASK_WEIGHTS} to read "
                         "only the encoder.")
    shapes = encoder_shapes(config)
    tensors = matched(report, shapes, _rows(shapes, config), stored,
                      _why_dropped, lambda name: True)
    if heads:
        (head, outputs), = heads.items()
        shapes = head_of(head, outputs).shapes(config)
        of_head = Report(os.path.join(folder, TASK_WEIGHTS))
        tensors |= matched(of_head, shapes, _rows(shapes, config), of_task,
                           _why_dropped, lambda name: False)
        report.matched |= {name: f"{TASK_WEIGHTS}:{theirs}"
                           for name, theirs in of_head.matched.items()}
        report.dropped |= {f"{TASK_WEIGHTS}:{name}": why
                           for name, why in of_head.dropped.items()}
    return Checkpoint(NAME, config, tensors, heads, report, problem_type=problem)


def _kind(value: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, Any]]:
    kind, values = value.get("class_name"), value.get("config")
    if not isinstance(kind, str) or not isinstance(values, Mapping):
        raise InputError(f"{path} is not the description of a Keras object; copy or "
                         "download it again.")
    return kind, values


def _config(values: Mapping[str, Any]) -> AlbertConfig:
    rate = values.get("dropout", 0.0)
    return AlbertConfig(
        **{ours: values[theirs] for theirs, ours in _FIELDS.items()},
        hidden_dropout_prob=rate, attention_probs_dropout_prob=rate,
        layer_grouping="even", project_embeddings=True).simplified()


def _why_dropped(name: str) -> Optional[str]:
    return "state of the training" if name.startswith("optimizer/") else None


# ---- writing ---------------------------------------------------------------


def check(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint in the form that is written, without the sentence-order
    head, which keras-hub lacks. Raises InputError for other heads and settings that
    keras-hub does not support or computes differently."""
    config, heads = checkpoint.config, dict(checkpoint.heads)
    refuse_heads_but(("masked_lm", "sentence_order", "classification"), heads,
                     "keras-hub")
    refuse_unless(config, NAME, hidden_act="gelu", layer_norm_eps=1e-12)
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        checkpoint.report.notes.append(
            "keras-hub has only one dropout rate, taken from hidden_dropout_prob")
    if checkpoint.labels:
        checkpoint.report.notes.append(
            "keras-hub does not store labels; in the order of the outputs they are "
            f"{', '.join(checkpoint.labels)}")
    if "masked_lm" in heads and config.masked_lm_layer_norm_eps != MASKED_LM_EPSILON:
        raise InputError(
            f"the masked-LM head of keras-hub has the epsilon {MASKED_LM_EPSILON:g}, that "
            f"of this model {config.masked_lm_layer_norm_eps or config.layer_norm_eps:g}"
            ", so that its outputs would differ; leave the heads out (--encoder_only).")
    if "sentence_order" in heads:
        checkpoint = without_heads(checkpoint, {
            "sentence_order": "keras-hub has no sentence-order head"})
    if not config.use_pooler:
        checkpoint = with_pooler(checkpoint)
    if config.num_hidden_layers % config.num_hidden_groups and (
            config.parameter_sharing == "all"):
        raise InputError(
            f"num_hidden_groups={config.num_hidden_groups} does not divide "
            f"num_hidden_layers={config.num_hidden_layers}; keras-hub requires it.")
    return as_format(checkpoint, projects=True, grouping="even")


def _described(kind: str, module: str, values: Mapping[str, Any], dtype: str = ""
               ) -> dict[str, Any]:
    """Returns the description of a Keras object; with `dtype`, that of a layer."""
    layer = {"name": module, "trainable": True, "dtype": {
        "module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype},
        "registered_name": None}} if dtype else {}
    return {"module": f"keras_hub.src.models.albert.{module}", "class_name": kind,
            "config": {**layer, **values}, "registered_name": f"keras_hub>{kind}"}


def write(checkpoint: Checkpoint, folder: str) -> None:
    """Writes a preset's folder, with a task if the checkpoint has a head."""
    config = checkpoint.config
    backbone = _described("AlbertBackbone", "albert_backbone", {
        **{theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()},
        "dropout": config.hidden_dropout_prob}, "float32")
    preprocessor = _write_preprocessor(checkpoint, folder)
    text_files.write_json(os.path.join(folder, CONFIG), backbone)
    text_files.write_json(os.path.join(folder, _METADATA), {
        "keras_version": "3.15.1", "keras_hub_version": "0.32.0",
        "parameter_count": sum(
            int(np.prod(shape)) for shape in encoder_shapes(config).values()),
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "tasks": ["MaskedLM", "TextClassifier"]})
    _write_h5(os.path.join(folder, WEIGHTS), checkpoint, encoder_shapes(config))
    if not checkpoint.heads:
        return
    (head, outputs), = checkpoint.heads.items()
    if head == "masked_lm":
        task = _described("AlbertMaskedLM", "albert_masked_lm", {
            "backbone": backbone, "preprocessor": preprocessor,
            "name": "albert_masked_lm"})
    else:
        task = _described("AlbertTextClassifier", "albert_text_classifier", {
            "backbone": backbone, "preprocessor": preprocessor,
            "name": "albert_text_classifier", "num_classes": outputs,
            "activation": "sigmoid" if checkpoint.problem_type == SEVERAL_LABELS
            else "linear", "dropout": 0.1})
    text_files.write_json(os.path.join(folder, TASK), task)
    rate = _RATES[head]
    _write_h5(os.path.join(folder, TASK_WEIGHTS), checkpoint,
              head_of(head, outputs).shapes(config),
              {"optimizer/vars/0": np.int64(0), "optimizer/vars/1": np.float32(rate)})


def _write_preprocessor(checkpoint: Checkpoint, folder: str
                        ) -> Optional[dict[str, Any]]:
    """Writes tokenizer and preprocessor, and returns the preprocessor's description.
    Returns None without a vocabulary, and for WordPiece, which AlbertTokenizer does not
    support."""
    vocabulary = checkpoint.vocabulary
    if vocabulary is None or vocabulary.word_piece:
        return None
    path = os.path.join(folder, tokenizer_files.KERAS_MODEL)
    files.make_directory(os.path.dirname(path), folder)
    files.write(path, tokenizer_files.sentencepiece_model(vocabulary))
    tokenizer = _described(
        "AlbertTokenizer", "albert_tokenizer", {
            "config_file": "tokenizer.json", "proto": None, "sequence_length": None,
            "add_bos": False, "add_eos": False}, "int32")
    kind, module, more = (
        ("AlbertMaskedLMPreprocessor", "albert_masked_lm_preprocessor", {
            "mask_selection_rate": 0.15, "mask_selection_length": 96,
            "mask_token_rate": 0.8, "random_token_rate": 0.1})
        if "masked_lm" in checkpoint.heads else
        ("AlbertTextClassifierPreprocessor", "albert_text_classifier_preprocessor", {}))
    preprocessor = _described(kind, module, {
        "tokenizer": tokenizer, "config_file": "preprocessor.json",
        "sequence_length": checkpoint.config.max_position_embeddings,
        "truncate": "round_robin", **more}, "float32")
    text_files.write_json(os.path.join(folder, "tokenizer.json"), tokenizer)
    text_files.write_json(os.path.join(folder, "preprocessor.json"), preprocessor)
    return preprocessor


def _write_h5(path: str, checkpoint: Checkpoint, shapes: Mapping[str, Shape],
              scalars: Mapping[str, np.generic] = {}) -> None:
    tensor_files.write_h5(path, {
        **{row.theirs: to_theirs(row, checkpoint.tensors[row.ours])
           for row in _rows(shapes, checkpoint.config)},
        **{name: Tensor.of(np.asarray(value)) for name, value in scalars.items()}})
