"""Folders of sentence-transformers: a model of Hugging Face, and how a text's vector
comes of its pieces'.

    modules.json            the parts in their order, each a folder
    config.json, ...        Transformer: the model, in the folder itself or 0_Transformer
    1_Pooling/config.json   which mean of the pieces' vectors
    2_Dense/, 3_Normalize/  what is done to it then
"""

import dataclasses
import json
import os
import re
from typing import Any, Mapping, Optional, Union

from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import huggingface, tensor_files, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Report, Vocabulary, without_heads)
from albert_tf.checkpoints.table import transposed
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.parameter_count import POOLER

NAME = "sentence_transformers"
_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
# Pooling: the names of older files, in the order in which vectors are put together.
_MODES = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens",
          "mean": "pooling_mode_mean_tokens",
          "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
          "weightedmean": "pooling_mode_weightedmean_tokens",
          "lasttoken": "pooling_mode_lasttoken"}
POOLING = tuple(_MODES)
# `pooled`, the release's pooler, is there the first piece and a dense layer.
POOLED = "pooled"
_ACTIVATIONS = {"Tanh": "activation", "ReLU": "activation", "GELU": "activation",
                "Sigmoid": "activation", "Identity": "linear"}
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_VECTOR = "sentence_embedding"


@dataclasses.dataclass(frozen=True)
class Dense:
    """A layer on the vector: kernel [in, out], bias [out], and one of _ACTIVATIONS."""

    kernel: Tensor
    bias: Optional[Tensor]
    activation: str


@dataclasses.dataclass(frozen=True)
class Normalize:
    """The vector divided by its length."""


@dataclasses.dataclass(frozen=True)
class Sentence:
    """How a text's vector comes of its pieces': those of `pooling` side by side, then
    the layers."""

    pooling: tuple[str, ...] = ("mean",)
    layers: tuple[Union[Dense, Normalize], ...] = ()

    def __str__(self):
        return ", ".join([*self.pooling, *(type(each).__name__ for each in self.layers)])


# ---- reading ---------------------------------------------------------------


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    """The model, its `facts["sentence"]` a Sentence, the length of texts among the
    settings."""
    first, *others = _modules(folder)
    where = os.path.join(folder, first["path"])
    if not (huggingface.weights_in(where)
            and files.exists(os.path.join(where, huggingface.CONFIG))):
        raise InputError(f"{where}: the model is incomplete: {_MODULES} names this "
                         "folder, but config.json or the weights are missing; copy or "
                         "download the rest.")
    _check_prompts(folder)
    found = huggingface.read(where, config)
    found = without_heads(found, dict.fromkeys(
        found.heads, "sentence-transformers reads the encoder alone"))
    width = found.config.hidden_size
    pooling = _pooling(os.path.join(folder, others[0]["path"]), width)
    width, layers = width * len(pooling), []
    for module in others[1:]:
        path = os.path.join(folder, module["path"])
        if module["kind"] == "Dense":
            layers.append(_dense(path, width))
            width = layers[-1].kernel.shape[1]
        elif module["kind"] == "Normalize":
            _check_names(path, _config(path))
            layers.append(Normalize())
    settings = next((_object(os.path.join(where, name)) for name in files.names_in(where)
                     if re.fullmatch(r"sentence_[\w-]+_config\.json", name)), {})
    tokenizer = os.path.join(where, "tokenizer_config.json")
    longest = settings.get("max_seq_length") or (
        _object(tokenizer) if files.exists(tokenizer) else {}).get("model_max_length")
    facts = {**found.facts, "sentence": Sentence(pooling, tuple(layers))}
    if longest is not None:
        if not isinstance(longest, (int, float)) or longest < 1:
            raise InputError(f"{where}: the longest text has {longest!r} pieces there; "
                             "give a whole number as max_seq_length.")
        longest = int(min(longest, found.config.max_position_embeddings))
        facts["task"] = {"flags": {"max_seq_length": longest}}
    _note_symbols(where, found.report)
    return dataclasses.replace(
        found, format=NAME, facts=facts,
        vocabulary=_vocabulary(where, settings.get("do_lower_case") is True))


def _modules(folder: str) -> list[dict[str, Any]]:
    path = os.path.join(folder, _MODULES)
    listed = text_files.read_json(path)
    if not isinstance(listed, list) or not all(
            isinstance(each, dict) and isinstance(each.get("type"), str)
            and isinstance(each.get("path"), str) for each in listed):
        raise InputError(f"{path}: does not list modules, each with its type and path; "
                         "copy or download it again.")
    found = [{**each, "kind": each["type"].rpartition(".")[2]} for each in listed]
    kinds = [each["kind"] for each in found]
    for each in found:
        if os.path.basename(each["path"]) != each["path"]:
            raise InputError(f"{path}: the path {each['path']} leads out of the folder; "
                             "give the name of a folder in it.")
    for kind in kinds:
        if kind not in _KINDS:
            raise InputError(f"{path}: the module {kind} is not supported; "
                             f"{', '.join(_KINDS)} are.")
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) & {*kinds[:2]}:
        raise InputError(f"{path}: lists {', '.join(kinds) or 'nothing'}; supported are "
                         "a Transformer, a Pooling, and then Dense and Normalize.")
    return found


def _object(path: str) -> dict[str, Any]:
    return text_files.read_object(path, "copy or download it again")


def _config(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, huggingface.CONFIG)
    return _object(path) if files.exists(path) else {}


def _check_prompts(folder: str) -> None:
    path = os.path.join(folder, _PROMPTS)
    values = _object(path) if files.exists(path) else {}
    name = values.get("default_prompt_name")
    if name and (values.get("prompts") or {}).get(name):
        raise InputError(
            f"{path}: the prompt '{name}' stands before every text, which is not "
            "supported; make default_prompt_name null, and put it before texts.")


def _pooling(folder: str, width: int) -> tuple[str, ...]:
    path = os.path.join(folder, huggingface.CONFIG)
    values = _object(path)
    given = values.get("pooling_mode") or [
        mode for mode, name in _MODES.items() if values.get(name)] or "mean"
    modes = (given,) if isinstance(given, str) else tuple(given)
    for mode in modes:
        if mode not in _MODES:
            raise InputError(f"{path}: pooling_mode {mode!r} is not supported; "
                             f"{', '.join(_MODES)} are.")
    size = values.get("embedding_dimension", values.get("word_embedding_dimension"))
    if size not in (None, width):
        raise InputError(f"{path}: is of vectors of {size} numbers, but the model's have "
                         f"{width}; copy or download the folder again.")
    return modes


def _check_names(folder: str, values: Mapping[str, Any]) -> None:
    for name in ("module_input_name", "module_output_name"):
        if values.get(name) not in (None, _VECTOR):
            raise InputError(f"{os.path.join(folder, huggingface.CONFIG)}: {name} "
                             f"{values[name]!r} is not supported; {_VECTOR} is.")


def _dense(folder: str, width: int) -> Dense:
    values, path = _config(folder), os.path.join(folder, huggingface.CONFIG)
    _check_names(folder, values)
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS or values.get("use_residual"):
        raise InputError(
            f"{path}: " + ("use_residual" if activation in _ACTIVATIONS else
                           f"activation_function {activation}")
            + f" is not supported; dense layers with {', '.join(_ACTIVATIONS)} are.")
    if not huggingface.weights_in(folder):
        raise InputError(f"{folder}: the dense layer's weights are not there; copy or "
                         "download the rest.")
    source, stored = huggingface.read_weights(folder)
    kernel, bias = stored.get("linear.weight"), stored.get("linear.bias")
    if kernel is None or len(kernel.shape) != 2 or kernel.shape[1] != width or (
            bias is not None and bias.shape != kernel.shape[:1]):
        raise InputError(f"{source}: holds no dense layer for vectors of {width} "
                         "numbers; copy or download the folder again.")
    return Dense(transposed(kernel), bias, activation)


def _vocabulary(folder: str, lower: bool) -> Optional[Vocabulary]:
    """The folder's tokenizer, before which text may be lower-cased."""
    found = tokenizer_files.find(folder)
    if not (found and lower) or found.do_lower_case:
        return found
    return dataclasses.replace(found, do_lower_case=True,
                               strip_accents=False if found.word_piece else None)


def _note_symbols(folder: str, report: Report) -> None:
    """Says where their tokenizer cuts a vocabulary's own symbols out of the text before
    it is divided into words, as transformers 5 does unless told otherwise."""
    path = os.path.join(folder, "tokenizer.json")
    symbols = [str(token.get("content")) for token in (
        _object(path) if files.exists(path) else {}).get("added_tokens") or ()
               if token.get("special") is False]
    if symbols:
        report.notes.append(
            f"{path} cuts {' '.join(symbols[:8])} out of the text first, which neither "
            "the release nor this project does: vectors of texts with these symbols "
            "beside a blank or in a word differ")
        logging.warning("%s.", report.notes[-1])


# ---- writing ---------------------------------------------------------------


def with_modules(checkpoint: Checkpoint, pooling: str = "", max_seq_length: int = 0
                 ) -> Checkpoint:
    """The checkpoint with the vector that a folder is to give; by default as its own,
    else the mean. `pooling` is some of POOLING, separated by commas, or POOLED."""
    found = checkpoint.facts.get("sentence") or Sentence()
    if pooling == POOLED:
        if not checkpoint.config.use_pooler:
            raise InputError(f"pooling={POOLED}: the model has no pooler; give another: "
                             f"{', '.join(POOLING)}.")
        found = Sentence(("cls",), (Dense(*(
            checkpoint.tensors[f"{POOLER}/{name}"] for name in (
                "kernel", "bias")), "Tanh"),))
    elif pooling:
        modes = tuple(mode.strip() for mode in pooling.split(","))
        wrong = [mode for mode in modes if mode not in _MODES]
        if wrong:
            raise InputError(f"pooling '{wrong[0]}' is not known; give {POOLED}, or some "
                             f"of {', '.join(POOLING)}.")
        found = Sentence(modes)
    task = checkpoint.facts.get("task") or {}
    longest = checkpoint.config.max_position_embeddings
    length = max_seq_length or task.get("flags", {}).get("max_seq_length") or longest
    if not 3 < length <= longest:
        raise InputError(f"--max_seq_length={length}: give 4 to {longest}, the positions "
                         "that the model has.")
    return dataclasses.replace(checkpoint, facts={
        **checkpoint.facts, "sentence": found,
        "task": {**task, "flags": {**task.get("flags", {}), "max_seq_length": length}}})


def check(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it can be written: the encoder."""
    if checkpoint.vocabulary is None:
        checkpoint.report.notes.append("no vocabulary lies beside the model, without "
                                       "which sentence-transformers takes no text")
    return huggingface.check(without_heads(checkpoint, dict.fromkeys(
        checkpoint.heads, "sentence-transformers reads the encoder alone")))


def write(checkpoint: Checkpoint, folder: str) -> None:
    """Writes Hugging Face's files and, beside them, the modules', in the form that all
    versions of sentence-transformers read."""
    huggingface.write(checkpoint, folder)
    found: Sentence = checkpoint.facts["sentence"]
    names = ["", "1_Pooling"]
    _write(folder, names[1], _pooling_config(
        found.pooling, checkpoint.config.hidden_size))
    for layer in found.layers:
        names.append(f"{len(names)}_{type(layer).__name__}")
        _write(folder, names[-1], {})
        if isinstance(layer, Dense):
            _write_dense(layer, folder, names[-1])
    _write(folder, "", [{
        "idx": i, "name": str(i), "path": name,
        "type": f"sentence_transformers.models.{name.partition('_')[2] or 'Transformer'}"}
        for i, name in enumerate(names)], _MODULES)
    _write(folder, "", {
        "max_seq_length": checkpoint.facts["task"]["flags"]["max_seq_length"],
        "do_lower_case": False}, "sentence_bert_config.json")
    _write(folder, "", {"prompts": {}, "default_prompt_name": None,
                        "similarity_fn_name": "cosine"}, _PROMPTS)


def _write(folder: str, module: str, value: Any, name: str = huggingface.CONFIG) -> None:
    where = os.path.join(folder, module)
    files.make_directory(where, folder)
    files.write(os.path.join(where, name), json.dumps(value, indent=2).encode() + b"\n")


def _pooling_config(modes: tuple[str, ...], width: int) -> dict[str, Any]:
    if list(modes) != [mode for mode in _MODES if mode in modes]:
        return {"embedding_dimension": width, "pooling_mode": list(modes)}
    return {"word_embedding_dimension": width,
            **{name: mode in modes for mode, name in _MODES.items()}}


def _write_dense(layer: Dense, folder: str, module: str) -> None:
    tensors = {"linear.weight": transposed(layer.kernel)}
    if layer.bias is not None:
        tensors["linear.bias"] = layer.bias
    rows, columns = layer.kernel.shape
    _write(folder, module, {
        "in_features": rows, "out_features": columns, "bias": layer.bias is not None,
        "activation_function": f"torch.nn.modules.{_ACTIVATIONS[layer.activation]}."
                               f"{layer.activation}"})
    tensor_files.write_safetensors(
        os.path.join(folder, module, "model.safetensors"), tensors, "float32")
