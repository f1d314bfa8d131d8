"""Fetches models on hubs by name, into the hub's own cache with the hub's own package.

    hf://owner/name, hf://owner/name@revision     huggingface_hub
    kaggle://owner/model/framework/variation      kagglehub
    https://www.kaggle.com/models/owner/...       the same

Both packages are optional; they are imported only when such a name is given.
"""

import importlib
import os
import re
from typing import Any

from albert_tf.checkpoints.onnx_folder import NAMES
from albert_tf.errors import InputError

HUGGING_FACE = "hf://"
_KAGGLE = re.compile(r"(?:kaggle://|https://(?:www\.)?kaggle\.com/models/)")
# Found in the errors of packages for HTTP if there is no connection.
_NO_ANSWER = re.compile(
    r"MaxRetryError|NameResolutionError|ConnectionError|ConnectError|ConnectTimeout|"
    r"ReadTimeout|ProxyError|gaierror|Name or service not known|"
    r"Temporary failure in name resolution|Network is unreachable|OfflineMode")
# Files that a model's folder may need, without the weights of other frameworks.
_PATTERNS = ["*.json", "*.safetensors", "pytorch_model*.bin", "spiece.model",
             "vocab.txt", "*.md", "*.h5", "assets/*"]


def is_hub(path: str) -> bool:
    path = os.fspath(path)
    return path.startswith(HUGGING_FACE) or bool(_KAGGLE.match(path))


def local(path: str) -> str:
    """Returns the folder on this machine that a path stands for; fetches it from a
    hub if it is a hub's name."""
    path = os.fspath(path)
    if path.startswith(HUGGING_FACE):
        return _hugging_face(path)
    if match := _KAGGLE.match(path):
        return _kaggle(path, path[match.end():].strip("/"))
    if re.match("https?://", path):
        raise InputError(
            f"{path}: fetching from this address is not supported (TensorFlow Hub's "
            "modules are on Kaggle now); give hf://OWNER/NAME or kaggle://HANDLE, or "
            "download the model and give its folder.")
    return path


def _package(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{path}: fetching it needs the package {name}: pip install "
                         f"{name}; or download the model and give its folder."
                         ) from error


def _failed(path: str, error: Exception) -> InputError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    causes, cause = [], error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(map(_NO_ANSWER.search, map(repr, causes))):
        return InputError(f"{path}: the hub cannot be reached from here; check the "
                          "network and its proxy, or download the model elsewhere and "
                          "give its folder.")
    return InputError(f"{path}: cannot be fetched ({reason.rstrip('.')}); check the "
                      "name, the network and your access to it.")


def _hugging_face(path: str) -> str:
    name, _, revision = path.removeprefix(HUGGING_FACE).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"{path} is not a name on the Hugging Face hub; give "
                         "hf://OWNER/NAME or hf://OWNER/NAME@REVISION.")
    package = _package("huggingface_hub", path)
    try:
        files = package.list_repo_files(name, revision=revision or None)
        patterns = list(_PATTERNS)
        if any(file.endswith(".safetensors") for file in files):
            patterns.remove("pytorch_model*.bin")
        if "model.weights.h5" not in files:
            patterns.remove("*.h5")
        # Those in other folders are of sentence-transformers' dense layers.
        if not any(re.match(
                r"(0_\w+/)?[^/]*(\.safetensors|model[^/]*\.(bin|weights\.h5))$", file)
                   for file in files):
            patterns += _graphs(files)
        return package.snapshot_download(
            name, revision=revision or None, allow_patterns=patterns)
    except Exception as error:  # The package, its requests or the disk may fail.
        raise _failed(path, error) from error


def _graphs(names: list[str]) -> list[str]:
    """Returns patterns for the ONNX file to fetch of a repository without weights, and
    for its external data."""
    graph = next((name for name in (
        *(f"onnx/{each}" for each in NAMES.values()), *sorted(names))
                  if name in names and name.endswith(".onnx")), None)
    return [f"{graph}*"] * bool(graph)


def _kaggle(path: str, handle: str) -> str:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+){3,4}", handle):
        raise InputError(f"{path} is not a Kaggle handle; give "
                         "kaggle://OWNER/MODEL/FRAMEWORK/VARIATION[/VERSION].")
    package = _package("kagglehub", path)
    try:
        return package.model_download(handle)
    except Exception as error:
        raise _failed(path, error) from error
