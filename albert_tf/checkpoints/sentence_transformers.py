"""Folders of sentence-transformers: a Hugging Face model, and how its token vectors are
pooled into a sentence embedding.

    modules.json            the parts in their order, each a folder
    config.json, ...        Transformer: the model, in the folder or in 0_Transformer
    1_Pooling/config.json   how token vectors are pooled
    2_Dense/, 3_Normalize/  layers applied to the pooled vector
"""

import dataclasses
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
MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
# Kinds of pooling → their names in older files, in the order of concatenation.
_MODES = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens",
          "mean": "pooling_mode_mean_tokens",
          "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
          "weightedmean": "pooling_mode_weightedmean_tokens",
          "lasttoken": "pooling_mode_lasttoken"}
POOLING = tuple(_MODES)
# `pooled`, ALBERT's own pooler, is written as the first token and a dense layer.
POOLED = "pooled"
_ACTIVATIONS = {"Tanh": "activation", "ReLU": "activation", "GELU": "activation",
                "Sigmoid": "activation", "Identity": "linear"}
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_VECTOR = "sentence_embedding"
_ENCODER_ONLY = "sentence-transformers uses only the encoder"


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer on the vector: kernel [in, out], bias [out], and an activation."""

    kernel: Tensor
    bias: Optional[Tensor]
    activation: str


@dataclasses.dataclass(frozen=True)
class Normalize:
    """A layer that divides the vector by its length."""


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The way from token vectors to a sentence embedding: the results of each `pooling`
    are concatenated, then the layers are applied."""

    pooling: tuple[str, ...] = ("mean",)
    layers: tuple[Union[Dense, Normalize], ...] = ()

    def __str__(self):
        return ", ".join(
            [*self.pooling, *(type(layer).__name__ for layer in self.layers)])


# ---- reading ---------------------------------------------------------------


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    """Reads the model; `facts["sentence"]` is a Sentence, and the settings hold the
    maximum length of texts."""
    first, *_ = _modules(folder)
    where = os.path.join(folder, first["path"])
    if not (huggingface.weights_in(where)
            and files.exists(os.path.join(where, huggingface.CONFIG))):
        raise InputError(f"{where}: the model is incomplete: {MODULES} names this "
                         "folder, but config.json or the weights are missing; copy or "
                         "download the rest.")
    _check_prompts(folder)
    checkpoint = huggingface.read(where, config)
    checkpoint = without_heads(checkpoint, _ENCODER_ONLY)
    sentence, flags, vocabulary = described(folder, checkpoint.config)
    facts = {**checkpoint.facts, "sentence": sentence}
    if flags:
        facts["task"] = {"flags": flags}
    _note_symbols(where, checkpoint.report)
    return dataclasses.replace(
        checkpoint, format=NAME, facts=facts, vocabulary=vocabulary)


def described(folder: str, config: AlbertConfig
              ) -> tuple[Sentence, dict[str, int], Optional[Vocabulary]]:
    """Returns what a folder says besides the weights: how token vectors are pooled, the
    flags that limit the length of texts, and the vocabulary."""
    first, *others = _modules(folder)
    where = os.path.join(folder, first["path"])
    width = config.hidden_size
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
    settings = next((_object(os.path.join(where, name))
                     for name in files.names_in(where)
                     if re.fullmatch(r"sentence_[\w-]+_config\.json", name)), {})
    tokenizer = os.path.join(where, "tokenizer_config.json")
    longest = settings.get("max_seq_length") or (
        _object(tokenizer) if files.exists(tokenizer) else {}).get("model_max_length")
    flags = {}
    if longest is not None:
        if not isinstance(longest, (int, float)) or longest < 1:
            raise InputError(f"{where}: the maximum length of a text is {longest!r}; "
                             "set max_seq_length to a whole number of tokens.")
        flags["max_seq_length"] = int(min(longest, config.max_position_embeddings))
    return (Sentence(pooling, tuple(layers)), flags,
            _vocabulary(where, settings.get("do_lower_case") is True))


def _modules(folder: str) -> list[dict[str, Any]]:
    """Returns the entries of modules.json, each with its `kind`. Raises InputError if
    they are not supported."""
    path = os.path.join(folder, MODULES)
    listed = text_files.read_json(path)
    if not isinstance(listed, list) or not all(
            isinstance(each, dict) and isinstance(each.get("type"), str)
            and isinstance(each.get("path"), str) for each in listed):
        raise InputError(f"{path}: is not a list of modules, each with its type and "
                         "path; copy or download it again.")
    modules = [{**each, "kind": each["type"].rpartition(".")[2]} for each in listed]
    kinds = [module["kind"] for module in modules]
    for module in modules:
        if os.path.basename(module["path"]) != module["path"]:
            raise InputError(f"{path}: the path {module['path']} leads out of the "
                             "folder; give the name of a folder in it.")
    for kind in kinds:
        if kind not in _KINDS:
            raise InputError(f"{path}: the module {kind} is not supported; "
                             f"{', '.join(_KINDS)} are.")
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) & {*kinds[:2]}:
        raise InputError(f"{path}: lists {', '.join(kinds) or 'nothing'}; supported "
                         "are a Transformer, a Pooling, and then Dense and Normalize.")
    return modules


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
            f"{path}: the default prompt '{name}' is not supported; set "
            "default_prompt_name to null, and put the prompt before each text.")


def _pooling(folder: str, width: int) -> tuple[str, ...]:
    path = os.path.join(folder, huggingface.CONFIG)
    values = _object(path)
    pooling = values.get("pooling_mode") or [
        mode for mode, name in _MODES.items() if values.get(name)] or "mean"
    modes = (pooling,) if isinstance(pooling, str) else tuple(pooling)
    for mode in modes:
        if mode not in _MODES:
            raise InputError(f"{path}: pooling_mode {mode!r} is not supported; "
                             f"{', '.join(_MODES)} are.")
    size = values.get("embedding_dimension", values.get("word_embedding_dimension"))
    if size not in (None, width):
        raise InputError(f"{path}: the pooling takes vectors of {size} numbers, but "
                         f"the model's have {width}; copy or download the folder "
                         "again.")
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
        raise InputError(f"{folder}: the dense layer's weights are missing; copy or "
                         "download the rest.")
    source, stored = huggingface.read_weights(folder)
    kernel, bias = stored.get("linear.weight"), stored.get("linear.bias")
    if kernel is None or len(kernel.shape) != 2 or kernel.shape[1] != width or (
            bias is not None and bias.shape != kernel.shape[:1]):
        raise InputError(f"{source}: holds no dense layer for vectors of {width} "
                         "numbers; copy or download the folder again.")
    return Dense(transposed(kernel), bias, activation)


def _vocabulary(folder: str, lower: bool) -> Optional[Vocabulary]:
    """Returns the folder's vocabulary; with `lower`, text is converted to lower case
    first."""
    vocabulary = tokenizer_files.find(folder)
    if not (vocabulary and lower) or vocabulary.do_lower_case:
        return vocabulary
    if vocabulary.word_piece and not (
            vocabulary.rules and vocabulary.rules.strips_cased):
        vocabulary = dataclasses.replace(vocabulary, strip_accents=False)
    return dataclasses.replace(vocabulary, do_lower_case=True)


def _note_symbols(folder: str, report: Report) -> None:
    """Notes in the report, and warns, if the folder's tokenizer cuts a vocabulary's own
    symbols out of the text before dividing it into words, as transformers 5 does by
    default."""
    path = os.path.join(folder, "tokenizer.json")
    symbols = [str(token.get("content")) for token in (
        _object(path) if files.exists(path) else {}).get("added_tokens") or ()
               if token.get("special") is False]
    if symbols:
        report.notes.append(
            f"{path} cuts {' '.join(symbols[:8])} out of the text first. Neither the "
            "original implementation nor this project does that: vectors differ for "
            "texts with these symbols beside a space or in a word")
        logging.warning("%s.", report.notes[-1])


# ---- writing ---------------------------------------------------------------


def with_modules(checkpoint: Checkpoint, pooling: str = "", max_seq_length: int = 0
                 ) -> Checkpoint:
    """Returns the checkpoint with a pooling and a maximum length of texts.

    Args:
      pooling: kinds from POOLING, separated by commas, or POOLED; default: the
        checkpoint's own, else the mean.
      max_seq_length: in tokens; default: as in training, else all positions.
    """
    sentence = checkpoint.facts.get("sentence") or Sentence()
    if pooling == POOLED:
        if not checkpoint.config.use_pooler:
            raise InputError(f"pooling={POOLED}: the model has no pooler; give one of "
                             f"{', '.join(POOLING)}.")
        sentence = Sentence(("cls",), (Dense(*(
            checkpoint.tensors[f"{POOLER}/{name}"] for name in (
                "kernel", "bias")), "Tanh"),))
    elif pooling:
        modes = tuple(mode.strip() for mode in pooling.split(","))
        wrong = [mode for mode in modes if mode not in _MODES]
        if wrong:
            raise InputError(f"pooling '{wrong[0]}' is not known; give {POOLED}, or "
                             f"some of {', '.join(POOLING)}.")
        sentence = Sentence(modes)
    task = checkpoint.facts.get("task") or {}
    longest = checkpoint.config.max_position_embeddings
    length = max_seq_length or task.get("flags", {}).get("max_seq_length") or longest
    if not 3 < length <= longest:
        raise InputError(f"--max_seq_length={length}: give 4 to {longest}, the number "
                         "of positions of the model.")
    return dataclasses.replace(checkpoint, facts={
        **checkpoint.facts, "sentence": sentence,
        "task": {**task, "flags": {**task.get("flags", {}), "max_seq_length": length}}})


def check(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint in the form that is written, with only the encoder. Raises
    InputError for settings that Hugging Face does not support."""
    if checkpoint.vocabulary is None:
        checkpoint.report.notes.append("the model's folder holds no vocabulary, which "
                                       "sentence-transformers needs to take text")
    return huggingface.check(without_heads(checkpoint, _ENCODER_ONLY))


def write(checkpoint: Checkpoint, folder: str) -> None:
    """Writes Hugging Face's files and those of the modules, in the form that all
    versions of sentence-transformers read."""
    huggingface.write(checkpoint, folder)
    write_modules(checkpoint.facts["sentence"], checkpoint.config.hidden_size,
                  checkpoint.facts["task"]["flags"]["max_seq_length"], folder)


def write_modules(sentence: Sentence, width: int, max_seq_length: int, folder: str
                  ) -> None:
    """Writes what `described` reads, except the vocabulary, into the folder of an
    encoder, whose token vectors have `width` numbers."""
    names = ["", "1_Pooling"]
    _write(folder, names[1], _pooling_config(sentence.pooling, width))
    for layer in sentence.layers:
        names.append(f"{len(names)}_{type(layer).__name__}")
        _write(folder, names[-1], {})
        if isinstance(layer, Dense):
            _write_dense(layer, folder, names[-1])
    _write(folder, "", [{
        "idx": i, "name": str(i), "path": name,
        "type": f"sentence_transformers.models.{name.partition('_')[2] or 'Transformer'}"}
        for i, name in enumerate(names)], MODULES)
    _write(folder, "", {
        "max_seq_length": max_seq_length, "do_lower_case": False},
        "sentence_bert_config.json")
    _write(folder, "", {"prompts": {}, "default_prompt_name": None,
                        "similarity_fn_name": "cosine"}, _PROMPTS)


def _write(folder: str, module: str, value: Any, name: str = huggingface.CONFIG) -> None:
    where = os.path.join(folder, module)
    files.make_directory(where, folder)
    text_files.write_json(os.path.join(where, name), value)


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
