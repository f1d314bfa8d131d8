"""Finds the format of a path, reads the model in it into the common form, and converts it,
with heads, labels and tokenizer. Models on hubs are fetched by the hub's own package:

    hf://owner/name, hf://owner/name@revision     huggingface_hub
    kaggle://owner/model/framework/variation      kagglehub
    https://www.kaggle.com/models/owner/...       the same
"""

import dataclasses
import importlib
import json
import math
import os
import re
from typing import Any, Optional, Sequence, Union

from albert_tf import files, text_files
from albert_tf.checkpoints import bundle, folders
from albert_tf.checkpoints.checkpoint import (
    ROOT_HEADS, TYPES, Checkpoint, Report, finite, head_of, some, without_heads)
from albert_tf.checkpoints.folders import NULL_THRESHOLD, NULL_THRESHOLD_FILE
from albert_tf.checkpoints.labels import relabelled
from albert_tf.checkpoints.vocabulary import TASK_FILE, settings_in, task_settings
from albert_tf.config import AlbertConfig, NAMED, refuse
from albert_tf.errors import InputError, reason_of
from albert_tf.files import StrPath
from albert_tf.tokenization.tokenizer import FullTokenizer

Config = Union[None, AlbertConfig, str]
# Modules in the order in which they are tried, each with patterns of file names. A
# folder is of the format if it has a file for each pattern.
_FOLDERS = (
    ("sentence_transformers", r"modules\.json"),
    ("huggingface", r"config\.json", r"(model\.safetensors|pytorch_model\.bin)"
                                     r"(\.index\.json)?"),
    ("keras_hub", r"config\.json", r"model\.weights\.h5"))
# Modules for TensorFlow's checkpoints, each with a pattern of a tensor's name.
_CHECKPOINTS = (("release", r"(module/)?bert/embeddings/word_embeddings"),
                ("tf_models", r"(.*/)?word_embeddings/embeddings"))
# The formats that can be written → their modules, the hubs' names of libraries, and the
# options of `convert` that are for one format only.
FORMATS = {"tf1": ("release", "tensorflow", "optimizer_state"),
           "hf": ("huggingface", "transformers", "dtype"),
           "keras_hub": ("keras_hub", "keras-hub"), "tf_models": ("tf_models", "tf-keras"),
           "sentence_transformers": ("sentence_transformers", "sentence-transformers",
                                     "pooling", "max_seq_length")}
HUGGING_FACE = "hf://"
_HUB = re.compile(r"hf://|kaggle://|https://(?:www\.)?kaggle\.com/models/")
# Files that a model's folder may need, without the weights of other frameworks.
_PATTERNS = ("*.json", "*.safetensors", "*.weights.h5", "spiece.model", "vocab.txt",
             "*.md", "assets/*")
_CARD = "README.md"
# Entries of the source's card that are also true of the converted model.
_CARRIED = re.compile(r"^(?:license|license_name|license_link|language|base_model|"
                      r"datasets):.*\n(?:[ -].*\n)*", re.MULTILINE)
# Head → the hub's name of its task.
_PIPELINES = {"classification": "text-classification",
              "token_classification": "token-classification",
              "multiple_choice": "multiple-choice", "spans": "question-answering",
              "conditional_spans": "question-answering", "masked_lm": "fill-mask"}


def config_of(given: Config) -> Optional[AlbertConfig]:
    """Returns the config for itself, its file, or a published name."""
    if given is None or isinstance(given, AlbertConfig):
        return given
    name = str(given)
    return (AlbertConfig.named(name) if name in NAMED or not files.exists(name)
            else AlbertConfig.from_json_file(name))


def read(path: str, config: Config = None, head: str = "",
         vocabulary: Optional[FullTokenizer] = None, allow_nan: bool = False) -> Checkpoint:
    """Reads the model that a path holds, in any format.

        read("albert-base-v2").tensors["bert/pooler/dense/bias"].read()

    `head`, one of ROOT_HEADS, names the head of `output_weights` in a TF1 checkpoint if
    the folder does not say it; default: classification. `vocabulary` is the tokenizer
    for a folder that has none. Unless `allow_nan`, NaN and infinity are an error when
    they are read.
    """
    from albert_tf.checkpoints import tokenizer_files

    if head:
        refuse({"head": head}, os.fspath(path), "give one of these", head=ROOT_HEADS)
    given, path = os.fspath(path), located(path)
    name, where = _recognised(path)
    if not name and not files.exists(path):
        raise InputError(f"{path}: there is no such file or folder; {folders.ADVICE}.")
    if not name:
        raise InputError(
            f"{given}: holds no model in a supported format (found: "
            f"{some(files.names_in(path), 8) or 'nothing'}); give a folder of this project "
            "or TensorFlow (model.ckpt-*, ckpt-* or saved_model.pb), Hugging Face "
            "(config.json and model.safetensors or pytorch_model.bin), keras-hub "
            "(config.json and model.weights.h5) or sentence-transformers (modules.json).")
    checkpoint = _module(name).read(where, config_of(config),
                                    *([head] if name == "release" else ()))
    folder = folders.folder_of(path)
    tokenizer = tokenizer_files.find(folder, vocabulary or checkpoint.tokenizer)
    if tokenizer:
        checkpoint = tokenizer_files.fitted(checkpoint, tokenizer)
    return dataclasses.replace(
        checkpoint, settings=checkpoint.settings or task_settings(folder),
        tensors=checkpoint.tensors if allow_nan else finite(checkpoint))


def _recognised(path: str) -> tuple[str, str]:
    """Returns the module that reads a path, or "", and the folder or prefix it reads."""
    path = folders.whole(path)
    names = files.names_in(path)
    for name, *patterns in _FOLDERS:
        if all(any(map(re.compile(pattern).fullmatch, names)) for pattern in patterns):
            return name, path
    prefix = folders.find(path)
    tensors = bundle.by_names(prefix) if prefix else ()
    return next((name for name, pattern in _CHECKPOINTS if any(
        map(re.compile(pattern).fullmatch, tensors))), ""), prefix or path


def _module(name: str) -> Any:
    return importlib.import_module(f"albert_tf.checkpoints.{name}")


def is_foreign(path: str) -> bool:
    """Returns whether a path holds anything but a checkpoint with the original's names."""
    try:
        name, where = ("hub", path) if is_hub(path) else _recognised(path)
        return bool(name) and (name != "release" or _module(name).is_foreign(where))
    except InputError:  # The checkpoint's own reader will raise the same error.
        return False


# ---- hubs ------------------------------------------------------------------


def is_hub(path: str) -> bool:
    return bool(_HUB.match(os.fspath(path)))


def located(path: StrPath) -> str:
    """Returns a model's path on this machine; fetches a hub's model."""
    path = files.expanded(path)
    if re.match("https?://", path) and not is_hub(path):
        raise InputError(f"{path}: fetching from this address is not supported; give "
                         "hf://OWNER/NAME or kaggle://HANDLE, or download the model.")
    if not is_hub(path):
        return path
    try:
        if not path.startswith(HUGGING_FACE):
            import kagglehub

            return kagglehub.model_download(_HUB.sub("", path).strip("/"))
        import huggingface_hub

        name, _, revision = path.removeprefix(HUGGING_FACE).partition("@")
        names = huggingface_hub.list_repo_files(name, revision=revision or None)
        patterns = [*_PATTERNS]
        if not any(each.endswith(".safetensors") for each in names):
            patterns.append("pytorch_model*.bin")
        # Weights in other folders are of sentence-transformers' dense layers.
        if not any(re.match(
                r"(0_\w+/)?[^/]*(\.safetensors|model[^/]*\.(bin|weights\.h5))$", each)
                   for each in names):
            # Without weights, one graph is fetched, with its external data.
            known = _module("huggingface").GRAPH_NAMES.values()
            patterns += [f"{each}*" for each in (
                *(f"onnx/{each}" for each in known), *sorted(names))
                         if each in names and each.endswith(".onnx")][:1]
        return huggingface_hub.snapshot_download(
            name, revision=revision or None, allow_patterns=patterns)
    except Exception as error:  # The package, its requests or the disk may fail.
        advice = f"pip install {error.name}" if isinstance(error, ImportError) else (
            "check the name, the network and your access to it")
        raise InputError(f"{path}: cannot be fetched ({reason_of(error).rstrip('.')}); "
                         f"{advice}.") from error


# ---- conversion ------------------------------------------------------------


def convert(input: StrPath, output: StrPath, format: str, config: Config = None,
            head: str = "", encoder_only: bool = False, dtype: str = "float32",
            optimizer_state: bool = False, allow_nan: bool = False, pooling: str = "",
            max_seq_length: int = 0, labels: Sequence[str] = ()) -> Report:
    """Converts the model at `input` to a new folder in the given format.

        report = convert("runs/sst-2", "sst-2-hf", "hf")
        print(report.summary())

    The output folder is written completely or not at all. TensorFlow is loaded only for
    "tf1" and "tf_models".

    Args:
      input, config, head, allow_nan: as for `load`.
      output: path of a folder that does not exist yet.
      format: one of FORMATS: tf1, hf, keras_hub, tf_models, sentence_transformers.
      encoder_only: leave the heads out.
      dtype: for "hf", the type of the numbers in the file: float32, bfloat16, float16.
      optimizer_state: for "tf1", also write the optimizer's moments and the step.
      pooling, max_seq_length: for "sentence_transformers", as for its `write`.
      labels: of a model that does not name them, in the order of its outputs.

    Returns the report: which tensors were matched, dropped or missing.
    """
    refuse({"format": format, "dtype": dtype}, "convert", "give one of these",
           format=FORMATS, dtype=TYPES)
    module, _, *allowed = FORMATS[format]
    options = {name: value for name, value in dict(
        dtype=dtype, optimizer_state=optimizer_state, pooling=pooling,
        max_seq_length=max_seq_length).items() if value and value != "float32"}
    for name in {*options} - {*allowed}:
        raise InputError(f"--{name} is not for --format={format}; leave it out.")
    target, input, output = _module(module), os.fspath(input), os.fspath(output)
    (files.check_in_tensorflow if format in ("tf1", "tf_models")
     else files.check_local)(output, "--output")
    files.check_new(output, "--output")
    checkpoint = relabelled(read(input, config, head, allow_nan=allow_nan), labels)
    if head and head not in checkpoint.heads:
        raise InputError(
            f"--head={head}: {input} has no such head (its heads: "
            f"{', '.join(checkpoint.heads) or 'none'}); leave the flag out.")
    if encoder_only:
        checkpoint = without_heads(checkpoint, "only the encoder is converted")
    notes = checkpoint.report.notes
    if checkpoint.sentence and format != "sentence_transformers":
        notes.append("the pooling of token vectors into a sentence embedding "
                     f"({checkpoint.sentence}) is not written")
    if not checkpoint.tokenizer:
        notes.append(
            "no tokenizer is written, because the model's folder holds no "
            "vocabulary; copy its spiece.model or vocab.txt there and convert again")
    checkpoint = target.check(checkpoint)
    with files.staged(output) as (staged,):
        files.make_directory(staged)
        target.write(checkpoint, staged, **options)
        if checkpoint.kept_settings and format not in (
                "keras_hub", "sentence_transformers"):
            text_files.write_json(os.path.join(staged, TASK_FILE),
                                  checkpoint.kept_settings, ensure_ascii=False)
        threshold = os.path.join(os.path.dirname(checkpoint.source), NULL_THRESHOLD_FILE)
        if files.exists(threshold) and "answer" in (
                head_of(head).task for head in checkpoint.heads):
            files.copy(threshold, os.path.join(staged, NULL_THRESHOLD_FILE))
        name = os.path.basename(os.path.normpath(output))
        files.write(os.path.join(staged, _CARD),
                    card(checkpoint, format, name, input).encode())
    return checkpoint.report


# ---- the model card ---------------------------------------------------------


def card(checkpoint: Checkpoint, format: str, name: str, source: str = "") -> str:
    """Returns the text of a model card; `source` is the path that the user gave."""
    config, carried = checkpoint.config, ""
    path, results = (os.path.join(os.path.dirname(checkpoint.source), each)
                     for each in (_CARD, "eval_results.json"))
    if files.exists(path):
        with files.open_binary(path) as stream:
            content = stream.read().decode("utf-8", "replace").replace("\r\n", "\n")
        if match := re.match(r"---\n(.*?\n)---\n", content, re.DOTALL):
            carried = "".join(_CARRIED.findall(match[1]))
    pipeline = next((
        name for head, name in _PIPELINES.items() if head in checkpoint.heads),
        "sentence-similarity" if format == "sentence_transformers" else
        "feature-extraction")
    lines = [f'---\n{carried}library_name: "{FORMATS[format][1]}"',
             f'pipeline_tag: "{pipeline}"', 'tags:\n  - "albert"']
    if source.startswith(HUGGING_FACE) and "base_model:" not in carried:
        base = source.removeprefix(HUGGING_FACE).partition("@")[0]
        lines += [f"base_model: {json.dumps(base, ensure_ascii=False)}"]
    task, stored = checkpoint.settings.get("task"), settings_in(results)
    # Scores of another step, or of a head that is left out, are not the model's.
    if task and pipeline in _PIPELINES.values() and stored.get("step") == checkpoint.step:
        # YAML takes JSON, but reads 1e-05 as a string.
        scores = [{"type": metric, "value": round(value, 4)}
                  for metric, value in sorted(stored.items())
                  if type(value) in (int, float) and math.isfinite(value)
                  and metric not in ("step", "loss", NULL_THRESHOLD)]
        lines += [f"metrics: {json.dumps([score['type'] for score in scores])}",
                  "model-index: " + json.dumps([{"name": name, "results": [{
                      "task": {"type": pipeline}, "dataset": {"name": task, "type": task},
                      "metrics": scores}]}], ensure_ascii=False)]
    lines += [
        "---", "", f"# {name}", "",
        f"An ALBERT of {config.num_hidden_layers} layers, hidden size "
        f"{config.hidden_size}, vocabulary of {config.vocab_size} tokens, converted by "
        f"albert_tf from {checkpoint.format} to {format}.", ""]
    if checkpoint.labels:
        lines += ["Labels: " + ", ".join(
            " ".join(label.split()) for label in checkpoint.labels), ""]
    if checkpoint.tokenizer and checkpoint.tokenizer.uses_sentencepiece:
        if format == "keras_hub":
            lines += ["keras-hub's tokenizer neither lower-cases nor removes accents. "
                      "Clean text first, for example with "
                      "`albert_tf.tokenization.cleaning.preprocess_text`.", ""]
        elif format in ("hf", "sentence_transformers"):
            lines += ["`tokenizer.json` divides text as Google's original "
                      "implementation does, except for a piece that ends in a digit "
                      "and a comma inside a number: the original splits it again.", ""]
    if remarks := checkpoint.report.summary(8).splitlines()[1:]:
        lines += ["Not converted:", "", *(f"-{line[1:]}" for line in remarks), ""]
    return "\n".join(lines)
