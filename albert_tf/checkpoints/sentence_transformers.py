"""Folders of sentence-transformers: a Hugging Face model, and how its token vectors are
pooled into a sentence embedding.

    modules.json            the parts in their order, each a folder
    config.json, ...        Transformer: the model, in the folder or in 0_Transformer
    1_Pooling/config.json   how token vectors are pooled
    2_Dense/, 3_Normalize/  layers applied to the pooled vector
"""

import dataclasses
import json
import os
import re
from typing import Any, Iterable, Optional, Union

from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import huggingface, tensor_files, tokenizer_files
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, changed, without_heads)
from albert_tf.checkpoints.vocabulary import settings_in
from albert_tf.config import AlbertConfig, refuse
from albert_tf.errors import InputError, reading
from albert_tf.modeling.parameter_count import POOLER
from albert_tf.tokenization.tokenizer import FullTokenizer

NAME = "sentence_transformers"
MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTH = "sentence_bert_config.json"
# Kinds of pooling → their names in older files, in the order of concatenation.
_MODES = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens",
          "mean": "pooling_mode_mean_tokens",
          "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
          "weightedmean": "pooling_mode_weightedmean_tokens",
          "lasttoken": "pooling_mode_lasttoken"}
POOLING = tuple(_MODES)
# `pooled`, ALBERT's own pooler, is written as the first token and a dense layer.
POOLED = "pooled"
# A vector for each token; the vector that a folder defines.
PIECES, EMBEDDING = "pieces", "embedding"
_ACTIVATIONS = {"Tanh": "activation", "ReLU": "activation", "GELU": "activation",
                "Sigmoid": "activation", "Identity": "linear"}
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


def read(folder: str, config: Optional[AlbertConfig] = None) -> Checkpoint:
    where = os.path.join(folder, _modules(folder)[0][1])
    path = os.path.join(folder, _PROMPTS)
    values = settings_in(path)
    name = values.get("default_prompt_name")
    with reading(path):
        if (values.get("prompts") or {}).get(name):
            raise InputError(f"{path}: the default prompt '{name}' is not supported; put "
                             "it before each text, and set default_prompt_name to null.")
    checkpoint = without_heads(huggingface.read(where, config), _ENCODER_ONLY)
    sentence, settings, tokenizer = described(folder, checkpoint.config)
    path = os.path.join(where, "tokenizer.json")
    known = {token.content for token in tokenizer.added} if tokenizer else ()
    if symbols := [
            token["content"] for token in settings_in(path).get("added_tokens") or ()
            if token.get("special") is False and token["content"] not in known]:
        # As transformers 5 does by default.
        checkpoint.report.notes.append(
            f"{path} cuts {' '.join(symbols[:8])} out of the text first. Neither the "
            "original implementation nor this project does that: vectors differ for "
            "texts with these symbols beside a space or in a word")
        logging.warning("%s.", checkpoint.report.notes[-1])
    return dataclasses.replace(
        checkpoint, format=NAME, tokenizer=tokenizer, sentence=sentence,
        settings=settings)


def described(folder: str, config: AlbertConfig
              ) -> tuple[Sentence, dict[str, Any], Optional[FullTokenizer]]:
    """Returns how token vectors are pooled, settings with the length, and the tokenizer."""
    (_, where), (_, path), *places = [
        (kind, os.path.join(folder, name)) for kind, name in _modules(folder)]
    width, layers = config.hidden_size, []
    values = _settings(path, embedding_dimension=(None, width),
                       word_embedding_dimension=(None, width))
    modes = values.get("pooling_mode") or [
        mode for mode, name in _MODES.items() if values.get(name)] or "mean"
    pooling = tuple(modes if isinstance(modes, list) else [modes])
    for mode in pooling:
        refuse({"pooling": mode}, path, pooling=POOLING)
    width *= len(pooling)
    for kind, path in places:
        if kind == "Dense":
            layers.append(_dense(path, width))
            width = layers[-1].kernel.shape[1]
        elif kind == "Normalize":
            layers.append(Normalize())
    path = os.path.join(where, next((
        name for name in files.names_in(where)
        if re.fullmatch(r"sentence_[\w-]+_config\.json", name)), _LENGTH))
    values, settings = settings_in(path), {}
    longest = values.get("max_seq_length") or settings_in(os.path.join(
        where, "tokenizer_config.json")).get("model_max_length")
    if longest is not None:
        with reading(where):
            settings["flags"] = {"max_seq_length": int(
                min(longest, config.max_position_embeddings))}
    tokenizer = tokenizer_files.find(where)
    if tokenizer and not tokenizer.do_lower_case:
        refuse(values, path, do_lower_case=(None, False))
    return Sentence(pooling, tuple(layers)), settings, tokenizer


def _modules(folder: str) -> list[tuple[str, str]]:
    """Returns the kinds and folders that modules.json lists."""
    path = os.path.join(folder, MODULES)
    with files.open_binary(path) as stream, reading(path):
        modules = [(each["type"].rpartition(".")[2], str(each["path"]))
                   for each in json.load(stream)]
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or (
            {*kinds[2:]} - {"Dense", "Normalize", "Dropout"}) or any(
                os.path.basename(name) != name for _, name in modules):
        raise InputError(
            f"{path}: lists {', '.join(kinds)}; supported are a Transformer, a Pooling, "
            "then Dense and Normalize, each with a folder beside this file as its path.")
    return modules


def _settings(folder: str, **allowed: Iterable[Any]) -> dict[str, Any]:
    path = os.path.join(folder, huggingface.CONFIG)
    values = text_files.read_object(path)
    refuse(values, path, module_input_name=(None, _VECTOR),
           module_output_name=(None, _VECTOR), **allowed)
    return values


def _dense(folder: str, width: int) -> Dense:
    values = _settings(folder, use_residual=(None, False))
    activation = str(values.get("activation_function", "Tanh")).rpartition(".")[2]
    refuse({"activation_function": activation}, folder, activation_function=_ACTIVATIONS)
    source, stored = huggingface.read_weights(folder)
    kernel, bias = stored.get("linear.weight"), stored.get("linear.bias")
    if kernel is None or kernel.shape[1:] != (width,):
        raise InputError(f"{source}: holds no dense layer for vectors of {width} "
                         "numbers; copy or download the folder again.")
    return Dense(changed(kernel, kernel.shape[::-1]), bias, activation)


def check(checkpoint: Checkpoint) -> Checkpoint:
    return huggingface.check(without_heads(checkpoint, _ENCODER_ONLY))


def write(checkpoint: Checkpoint, folder: str, pooling: str = "", max_seq_length: int = 0
          ) -> None:
    """Writes the folder; `pooling`: kinds from POOLING separated by commas, or POOLED, by
    default the checkpoint's own, else the mean."""
    sentence = checkpoint.sentence or Sentence()
    if pooling == POOLED and checkpoint.config.use_pooler:
        kernel, bias = (checkpoint.tensors[f"{POOLER}/{name}"]
                        for name in ("kernel", "bias"))
        sentence = Sentence(("cls",), (Dense(kernel, bias, "Tanh"),))
    elif pooling:
        sentence = Sentence(tuple(map(str.strip, pooling.split(","))))
        for mode in sentence.pooling:
            refuse({"pooling": mode}, f"the format {NAME}", f"{POOLED} needs a pooler",
                   pooling=POOLING)
    longest = checkpoint.config.max_position_embeddings
    length = max_seq_length or checkpoint.max_seq_length
    if not 3 < length <= longest:
        raise InputError(f"--max_seq_length={length}: give 4 to {longest}, the number "
                         "of positions of the model.")
    huggingface.write(dataclasses.replace(checkpoint, settings={
        "flags": {"max_seq_length": length}}), folder)
    write_modules(sentence, checkpoint.config.hidden_size, length, folder)


def write_modules(sentence: Sentence, width: int, max_seq_length: int, folder: str
                  ) -> None:
    """Writes what `described` reads, except the vocabulary, for vectors of `width`."""
    modes = sentence.pooling
    modules: dict[str, Any] = {"1_Pooling": {
        "embedding_dimension": width, "pooling_mode": list(modes)}}
    if modes == tuple(mode for mode in _MODES if mode in modes):  # as older versions
        modules["1_Pooling"] = {"word_embedding_dimension": width, **{
            name: mode in modes for mode, name in _MODES.items()}}
    for number, layer in enumerate(sentence.layers, 2):
        modules[f"{number}_{type(layer).__name__}"] = {} if isinstance(
            layer, Normalize) else {
                "in_features": layer.kernel.shape[0],
                "out_features": layer.kernel.shape[1], "bias": layer.bias is not None,
                "activation_function": "torch.nn.modules."
                f"{_ACTIVATIONS[layer.activation]}.{layer.activation}"}
    for (name, values), layer in zip(modules.items(), (None, *sentence.layers)):
        where = os.path.join(folder, name)
        text_files.write_json(os.path.join(where, huggingface.CONFIG), values)
        if isinstance(layer, Dense):
            tensor_files.write_safetensors(os.path.join(where, "model.safetensors"), {
                "linear.weight": changed(layer.kernel, layer.kernel.shape[::-1]),
                **({"linear.bias": layer.bias} if layer.bias else {})}, "float32")
    for name, value in (
            (MODULES, [{
                "idx": i, "name": str(i), "path": name, "type": "sentence_transformers."
                f"models.{name.partition('_')[2] or 'Transformer'}"}
                for i, name in enumerate(["", *modules])]),
            (_LENGTH, {"max_seq_length": max_seq_length, "do_lower_case": False}),
            (_PROMPTS, {"prompts": {}, "default_prompt_name": None,
                        "similarity_fn_name": "cosine"})):
        text_files.write_json(os.path.join(folder, name), value)
