"""Finds the format of a path, and reads the model in it into the common form. A format's
module is imported only when a folder of it is read.

Models on hubs are fetched by name into the hub's own cache, with the hub's own package:

    hf://owner/name, hf://owner/name@revision     huggingface_hub
    kaggle://owner/model/framework/variation      kagglehub
    https://www.kaggle.com/models/owner/...       the same
"""

import dataclasses
import importlib
import os
import re
from typing import Any, Mapping, Optional, Union

from albert_tf import files
from albert_tf.checkpoints import bundle, folders, onnx_folder
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import ROOT_HEADS, Checkpoint, Vocabulary, some
from albert_tf.checkpoints.vocabulary import ROWS, task_settings
from albert_tf.config import AlbertConfig, NAMED, refuse
from albert_tf.errors import InputError, reason_of

Config = Union[None, AlbertConfig, Mapping[str, Any], str]
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
HUGGING_FACE = "hf://"
_KAGGLE = re.compile(r"(?:kaggle://|https://(?:www\.)?kaggle\.com/models/)")
# Files that a model's folder may need, without the weights of other frameworks.
_PATTERNS = ("*.json", "*.safetensors", "*.weights.h5", "spiece.model", "vocab.txt",
             "*.md", "assets/*")


def config_of(given: Config) -> Optional[AlbertConfig]:
    """Returns the config for itself, its values, its file, or a published name."""
    if isinstance(given, Mapping):
        return AlbertConfig.from_dict(given)
    if given is None or isinstance(given, AlbertConfig):
        return given
    return (AlbertConfig.named(given) if given in NAMED or not files.exists(given)
            else AlbertConfig.from_json_file(given))


def read(path: str, config: Config = None, head: str = "",
         vocabulary: Optional[Vocabulary] = None) -> Checkpoint:
    """Reads the model that a path holds, in any format.

        read("albert-base-v2").tensors["bert/pooler/dense/bias"].read()

    `head`, one of ROOT_HEADS, names the head of `output_weights` in a TF1 checkpoint if
    the folder does not say it; default: classification. `vocabulary` is for a folder
    that has none.
    """
    from albert_tf.checkpoints import tokenizer_files

    if head:
        refuse({"head": head}, os.fspath(path), "give one of these", head=ROOT_HEADS)
    given, path = os.fspath(path), located(path)
    name, where = _recognised(path)
    if not name and not files.exists(path):
        raise InputError(
            f"{path}: there is no such file or folder; {folders.path_advice(path)}.")
    if not name:
        raise InputError(
            f"{given}: holds no model in a supported format (found: "
            f"{some(files.names_in(path), 8) or 'nothing'}); {folders.path_advice(path)}, "
            "or give a folder of this project or TensorFlow (model.ckpt-*, ckpt-* or "
            "saved_model.pb), Hugging Face (config.json and model.safetensors or "
            "pytorch_model.bin), keras-hub (config.json and model.weights.h5) or "
            "sentence-transformers (modules.json).")
    checkpoint = _module(name).read(where, config_of(config),
                                    *([head] if name == "release" else ()))
    if vocabulary:
        tokenizer_files.check_given(vocabulary, path)
    vocabulary = vocabulary or checkpoint.vocabulary or tokenizer_files.find(
        path if files.is_folder(path) else os.path.dirname(path))
    if vocabulary:
        checkpoint = _without_padding(checkpoint, tokenizer_files.check(
            vocabulary, checkpoint.config.vocab_size).vocab_size)
    return dataclasses.replace(
        checkpoint, vocabulary=vocabulary, settings=checkpoint.settings
        or task_settings(folder_of_model(path)) or {})


def _without_padding(checkpoint: Checkpoint, tokens: int) -> Checkpoint:
    """Returns the checkpoint with word embeddings for these tokens alone."""
    size = checkpoint.config.vocab_size
    if tokens == size:
        return checkpoint

    def cut(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.then(lambda rows: rows[:tokens], (tokens, *tensor.shape[1:]))
                if name.startswith(ROWS) else tensor for name, tensor in tensors.items()}

    checkpoint.report.notes.append(
        f"{size - tokens} of the {size} word embeddings are padding, and left out")
    return dataclasses.replace(
        checkpoint, config=checkpoint.config.replace(vocab_size=tokens),
        tensors=cut(checkpoint.tensors), slots=cut(checkpoint.slots))


def _recognised(path: str) -> tuple[str, str]:
    """Returns the module that reads a path, or "", and the folder or prefix it reads."""
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


def located(path: files.StrPath) -> str:
    """Returns the folder or checkpoint on this machine that a path stands for."""
    return _whole(fetched(path))


def _whole(path: str) -> str:
    """Returns the folder if the path is one of several files of a model."""
    is_part = path.endswith((".safetensors", ".bin", ".h5", ".json", ".pb"))
    return os.path.dirname(path) or "." if is_part and files.exists(path) else path


def folder_of_model(path: str) -> str:
    """Returns the folder of a path that `read` accepts."""
    return folders.folder_of(_whole(path)) or "."


def folders_of_models(*paths: str) -> list[str]:
    """Returns the folders of models that are not on a hub."""
    return [folder_of_model(path) for path in paths if not is_hub(path)]


def is_foreign(path: str) -> bool:
    """Returns whether a path holds a model of another format than plain checkpoints with
    the original implementation's names."""
    path = _whole(os.fspath(path))
    try:
        name, where = ("hub", path) if is_hub(path) else _recognised(path)
        return bool(name) and (name != "release" or _module(name).is_foreign(where))
    except InputError:  # The checkpoint's own reader will raise the same error.
        return False


# ---- hubs ------------------------------------------------------------------


def is_hub(path: str) -> bool:
    path = os.fspath(path)
    return path.startswith(HUGGING_FACE) or bool(_KAGGLE.match(path))


def fetched(path: files.StrPath) -> str:
    """Returns a path, or the folder that is fetched if it is a hub's name."""
    path = files.expanded(path)
    if re.match("https?://", path) and not is_hub(path):
        raise InputError(f"{path}: fetching from this address is not supported; give "
                         "hf://OWNER/NAME or kaggle://HANDLE, or download the model.")
    if not is_hub(path):
        return path
    try:
        if path.startswith(HUGGING_FACE):
            return _hugging_face(path.removeprefix(HUGGING_FACE))
        import kagglehub

        return kagglehub.model_download(_KAGGLE.sub("", path).strip("/"))
    except Exception as error:  # The package, its requests or the disk may fail.
        advice = f"pip install {error.name}" if isinstance(error, ImportError) else (
            "check the name, the network and your access to it")
        raise InputError(f"{path}: cannot be fetched ({reason_of(error).rstrip('.')}); "
                         f"{advice}.") from error


def _hugging_face(name: str) -> str:
    import huggingface_hub

    name, _, revision = name.partition("@")
    names = huggingface_hub.list_repo_files(name, revision=revision or None)
    patterns = [*_PATTERNS]
    if not any(each.endswith(".safetensors") for each in names):
        patterns.append("pytorch_model*.bin")
    # Weights in other folders are of sentence-transformers' dense layers.
    if not any(re.match(
            r"(0_\w+/)?[^/]*(\.safetensors|model[^/]*\.(bin|weights\.h5))$", each)
               for each in names):
        # Without weights, one graph is fetched, with its external data.
        patterns += [f"{each}*" for each in (
            *(f"onnx/{each}" for each in onnx_folder.NAMES.values()), *sorted(names))
                     if each in names and each.endswith(".onnx")][:1]
    return huggingface_hub.snapshot_download(
        name, revision=revision or None, allow_patterns=patterns)
