"""Hugging Face's folders: config.json and model.safetensors or pytorch_model.bin, or
shards, which an index lists. The matrix of a dense layer is transposed there, [out, in].

Exports for other engines have, in place of the weights, the folder `onnx` with the graphs
(GRAPH_NAMES) and, if export_model.py wrote them, portable.json and task.json.
"""

import dataclasses
import os
import re
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints import tensor_files, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    ROOT_HEADS, Checkpoint, Row, as_format, check_groups, in_theirs, label_count,
    matched, rows_of, with_heads)
from albert_tf.checkpoints.labels import outputs_of
from albert_tf.config import AlbertConfig, refuse
from albert_tf.errors import InputError, reading
from albert_tf.modeling.parameter_count import WORDS

NAME = "hf"
CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
            "pytorch_model.bin.index.json")

# ---- the config ------------------------------------------------------------

# Hugging Face's names of activations → ours.
_ACTIVATIONS = {
    "gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu_accurate": "gelu",
    "relu": "relu", "tanh": "tanh", "linear": "linear"}
# The first name of each is written.
_NAMES = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
# Defaults of Hugging Face's AlbertConfig, for missing keys whose values matter here.
_DEFAULTS = {"hidden_act": "gelu_new", "embedding_size": 128, "hidden_size": 4096}
# Keys that are not written back: a Checkpoint holds them, or they are of the files.
_NOT_KEPT = ("architectures", "model_type", "id2label", "label2id", "num_labels",
             "problem_type", "position_embedding_type", "torch_dtype", "dtype",
             "_name_or_path", "transformers_version", "auto_map", "quantization_config")


def _group(layer: int, layers: int, groups: int) -> int:
    return int(layer / (layers / groups))  # By other floats than the original's.


def config_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns our values for those of a config.json, and others under "huggingface"."""
    values = {**_DEFAULTS, **values}
    refuse(values, "config", model_type=("albert",), hidden_act=_ACTIVATIONS,
           position_embedding_type=("absolute",))
    known = {field.name for field in dataclasses.fields(AlbertConfig)} - {"extra"}
    config = {name: value for name, value in values.items() if name in known}
    others = {name: value for name, value in values.items()
              if name not in known and name not in _NOT_KEPT}
    return {**config, "hidden_act": _ACTIVATIONS[values["hidden_act"]],
            # A projection from E to H is there in any case if they differ.
            "project_embeddings": config["embedding_size"] == config["hidden_size"],
            **({"huggingface": others} if others else {})}


# ---- names -----------------------------------------------------------------

# Patterns for parts of our names → theirs, applied in this order.
_PARTS = (
    (r"^bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/",
     r"encoder.albert_layer_groups.\1.albert_layers.\2."),
    (r"attention_1/self/", "attention."),
    (r"attention_1/output/dense", "attention.dense"),
    (r"LayerNorm_1", "full_layer_layer_norm"),
    (r"(albert_layers\.\d+\.)LayerNorm", r"\1attention.LayerNorm"),
    (r"ffn_1/intermediate/output/dense", "ffn_output"),
    (r"ffn_1/intermediate/dense", "ffn"),
    (r"^bert/pooler/dense", "pooler"),
    (r"^bert/", ""),
    (r"^cls/predictions/transform/", "predictions."),
    (r"^cls/predictions/output_bias", "predictions.bias"),
    (r"^cls/seq_relationship/output_", "sop_classifier.classifier."),
    (r"^cls/squad/output_", "qa_outputs."),
    (r"^output_", "classifier."),
    (r"weights$|kernel$|gamma$", "weight"),
    (r"beta$", "bias"),
    (r"(_embeddings)$", r"\1.weight"),
    ("/", "."),
)
# Head → the class that has it. The first one that a checkpoint has is its architecture.
_CLASSES = {"classification": "AlbertForSequenceClassification",
            "multiple_choice": "AlbertForMultipleChoice",
            "token_classification": "AlbertForTokenClassification",
            "spans": "AlbertForQuestionAnswering",
            "sentence_order": "AlbertForPreTraining", "masked_lm": "AlbertForMaskedLM"}
_TIED = {"predictions.decoder.weight": WORDS,
         "predictions.decoder.bias": "cls/predictions/output_bias"}
_DROPPED = {
    "^predictions.decoder": "a copy of the tensor that it is tied to",
    "^(albert.)?embeddings.position_ids": "the numbers of the positions, 0, 1, 2, ...",
    "^predictions": "part of an incomplete masked-LM head"}
_PREFIX = "albert."


def name_of(ours: str, prefix: str = _PREFIX) -> str:
    """Returns Hugging Face's name; `prefix` stands before the encoder's names."""
    name = ours
    for pattern, replacement in _PARTS:
        name = re.sub(pattern, replacement, name)
    return (prefix if ours.startswith("bert/") else "") + name


def _rows(config: AlbertConfig, heads: Mapping[str, int], prefix: str) -> list[Row]:
    return rows_of(config, heads, lambda name: name_of(name, prefix), ["/kernel"])


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    path = os.path.join(folder, CONFIG)
    values = text_files.read_object(path)
    source, stored = read_weights(folder)
    # Wrappers, such as DataParallel and torch.compile, put a name before all others.
    while len({name.partition(".")[0] for name in stored}) == 1 and all(
            "." in name and not name.startswith(_PREFIX) for name in stored):
        stored = {name.partition(".")[2]: tensor for name, tensor in stored.items()}
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in stored) else ""
    config = config or AlbertConfig.from_json_file(path)
    classes = str(values.get("architectures"))
    root = next((head for head in ROOT_HEADS if _CLASSES[head] in classes),
                "classification" if f"{prefix}pooler.weight" in stored else
                "token_classification")
    config, heads = with_heads(config, stored, root, lambda ours: name_of(ours, prefix))
    check_groups(config, _group, path)
    checkpoint = matched(
        NAME, source, config, heads, _rows(config, heads, prefix), stored, _DROPPED,
        r"(albert|embeddings|encoder|pooler)\.",
        **outputs_of({**values, "labels": labels_of(values, heads, path)}, heads, path))
    for name, ours in _TIED.items():
        if name in stored and ours in checkpoint.tensors and not np.array_equal(
                stored[name].read().astype(np.float32), checkpoint.tensors[ours].read(),
                equal_nan=True):
            raise InputError(f"{source}: {name} differs from what an ALBERT ties it to, "
                             f"{checkpoint.report.matched[ours]}; save it with tied "
                             "weights.")
    return checkpoint


def labels_of(values: Mapping[str, Any], heads: Mapping[str, int], path: str
              ) -> Sequence[Any]:
    """Returns the labels, unchecked, or Hugging Face's default names."""
    count, named = label_count(heads), values.get("id2label")
    if not count or (count == 1 and values.get("problem_type") in (None, "regression")
                     and "token_classification" not in heads):
        return ()
    if named is None:
        return _numbered(count)
    with reading(path):
        return [named[key] for key in sorted(named, key=int)]


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))  # As transformers does.


def read_weights(folder: str) -> tuple[str, dict[str, Tensor]]:
    """Returns the path of a folder's weights, and all tensors by their names there."""
    names = files.names_in(folder)
    name = next((name for name in _WEIGHTS if name in names), _WEIGHTS[0])
    path = os.path.join(folder, name)
    read_file = (tensor_files.read_safetensors if ".safetensors" in name
                 else tensor_files.read_torch)
    if not name.endswith(".index.json"):
        return path, read_file(path)
    with reading(path):
        index = dict(text_files.read_object(path)["weight_map"])
        shards = {shard: read_file(os.path.join(folder, shard))
                  for shard in sorted({*index.values()})}
    # If several shards have a tensor, the index chooses.
    return path, {name: shards[shard][name] for name, shard in index.items()
                  if name in shards[shard]}


def check(checkpoint: Checkpoint) -> Checkpoint:
    if "token_classification" in checkpoint.heads:
        checkpoint.report.notes.append(
            "the division of raw text into words, by which the model was trained, is not "
            "part of the tokenizer: give it lists of words (is_split_into_words=True), "
            "and take the tag at the first token of each word; the pipeline of "
            "transformers divides raw text differently, so that its tags can differ")
    return as_format(checkpoint, NAME, True, _group, head=_CLASSES,
                     masked_lm_layer_norm_eps=(checkpoint.config.layer_norm_eps,))


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the content of config.json."""
    values = {name: value for name, value in checkpoint.config.to_dict().items()
              if name not in ("masked_lm_layer_norm_eps", "use_pooler",
                              "project_embeddings", "parameter_sharing")}
    others = values.pop("huggingface", {})
    ids = (0, 2, 3)
    if tokenizer := checkpoint.tokenizer:
        ids = tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id
    content = {"pad_token_id": ids[0], "bos_token_id": ids[1], "eos_token_id": ids[2],
               "classifier_dropout_prob": 0.1, "layer_norm_eps": 1e-12,
               **values, **others,
               "hidden_act": _NAMES[checkpoint.config.hidden_act],
               "architectures": [next((
                   name for head, name in _CLASSES.items() if head in checkpoint.heads),
                   "AlbertModel")], "model_type": "albert", "dtype": "float32"}
    if labels := checkpoint.labels or _numbered(label_count(checkpoint.heads)):
        content["id2label"] = {str(i): label for i, label in enumerate(labels)}
        content["label2id"] = {label: i for i, label in enumerate(labels)}
    if checkpoint.heads.get("classification") == 1 and not checkpoint.labels:
        content["problem_type"] = "regression"
    return dict(sorted({**content, **checkpoint.kept_problem}.items()))


def write(checkpoint: Checkpoint, folder: str, dtype: str = "float32") -> None:
    """Writes config.json and model.safetensors; `dtype` may be bfloat16 or float16."""
    config, heads = checkpoint.config, checkpoint.heads
    values = config_of(checkpoint) | {"dtype": dtype}
    text_files.write_json(os.path.join(folder, CONFIG), values, ensure_ascii=False)
    if checkpoint.tokenizer:
        tokenizer_files.write_huggingface(
            checkpoint.tokenizer, folder, checkpoint.max_seq_length,
            segments=config.type_vocab_size)
    rows = _rows(config, heads, _PREFIX if heads else "")
    tensor_files.write_safetensors(os.path.join(folder, "model.safetensors"),
                                   in_theirs(checkpoint, rows), dtype)


# ---- exports ----------------------------------------------------------------

# Of exports: what the graph does, and the folder of the graphs.
SETTINGS = "portable.json"
GRAPHS = "onnx"
# Type of the weights → the graph's name. transformers.js knows these names; optimum
# takes model.onnx, or the only file.
GRAPH_NAMES = {"float32": "model.onnx", "float16": "model_fp16.onnx",
               "bfloat16": "model_fp16.onnx", "int8": "model_quantized.onnx"}


def find_export(path: str) -> Optional[tuple[str, list[str]]]:
    """Returns the folder of an export, and the graph that the path names, or all in the
    folder. Returns None for others, as for folders that hold weights, too, unless the
    path names a graph."""
    folder, graph = os.path.split(path) if path.endswith((".onnx", ".tflite")) else (
        path, "")
    places = [folder or "."]
    if graph and os.path.basename(folder) == GRAPHS:
        places.insert(0, os.path.dirname(folder) or ".")
    for place in places:
        names = files.names_in(place)
        graphs = [path] if graph else [
            os.path.join(each, name) for each in (os.path.join(place, GRAPHS), place)
            for name in files.names_in(each) if name.endswith(".onnx")]
        if SETTINGS in names or CONFIG in names and (
                graph.endswith(".onnx") if graph else graphs
                and not {*_WEIGHTS, "model.weights.h5"} & {*names}):
            return place, graphs
    return None


def files_of_export(path: str) -> list[str]:
    """Returns the files of an export on which its answers depend; none of others."""
    folder, graphs = find_export(path) or ("", [])
    # A user's texts may be there, too. Large graphs have their weights in
    # model.onnx_data.
    return [*(os.path.join(folder, name) for name in files.names_in(folder)
              if name.endswith((".json", ".model", ".tflite"))
              or name in ("labels.txt", "vocab.txt")),
            *(os.path.join(place, name) for place, begin in map(os.path.split, graphs)
              for name in files.names_in(place or ".") if name.startswith(begin))]


def chosen_graph(folder: str, graphs: Sequence[str]) -> str:
    """Returns the only one of an export's graphs, or of several by GRAPH_NAMES."""
    known = [path for name in GRAPH_NAMES.values() for path in graphs
             if os.path.basename(path) == name]
    if len(graphs) > 1 and not known:
        raise InputError(f"{folder} holds several ONNX files, and none is named "
                         f"{GRAPH_NAMES['float32']}; give the path of one: "
                         f"{', '.join(graphs)}.")
    return [*known, *graphs][0]


def heads_of_outputs(values: Mapping[str, Any], outputs: Mapping[str, Sequence[Any]],
                     path: str) -> dict[str, int]:
    """Returns the head whose `outputs` (name → shape) an ONNX graph computes → its width;
    {} if it computes hidden states. `values` are those of config.json."""
    classes, shape = str(values.get("architectures")), outputs.get("logits") or ()
    # A graph may leave the last axis of the logits open.
    width = shape[-1] if shape and isinstance(shape[-1], int) else len(
        values.get("id2label") or ()) or (
            values.get("vocab_size", 0) if _CLASSES["masked_lm"] in classes else 2)
    if {"start_logits", "end_logits"} <= outputs.keys():
        return {"spans": 2}
    if len(shape) == 2:
        return ({"multiple_choice": 1} if _CLASSES["multiple_choice"] in classes
                else {"classification": width})
    if len(shape) == 3:
        return ({"masked_lm": 1} if width == values.get("vocab_size")
                else {"token_classification": width})
    if not {"last_hidden_state", "sentence_embedding"} & outputs.keys():
        raise InputError(f"{path} computes {', '.join(outputs)}, which are the outputs "
                         "of no head that is supported; export the model for one task.")
    return {}
