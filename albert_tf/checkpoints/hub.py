"""Fetches models on hubs by name, into the hub's own cache with the hub's own package.

    hf://owner/name, hf://owner/name@revision     huggingface_hub
    kaggle://owner/model/framework/variation      kagglehub
    https://www.kaggle.com/models/owner/...       the same
"""

import os
import re

from albert_tf import files
from albert_tf.checkpoints.onnx_folder import NAMES
from albert_tf.errors import InputError, reason_of

HUGGING_FACE = "hf://"
_KAGGLE = re.compile(r"(?:kaggle://|https://(?:www\.)?kaggle\.com/models/)")
# Files that a model's folder may need, without the weights of other frameworks.
_PATTERNS = ["*.json", "*.safetensors", "spiece.model", "vocab.txt", "*.md", "assets/*"]


def is_hub(path: str) -> bool:
    path = os.fspath(path)
    return path.startswith(HUGGING_FACE) or bool(_KAGGLE.match(path))


def local(path: files.StrPath) -> str:
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
    patterns = list(_PATTERNS)
    if not any(each.endswith(".safetensors") for each in names):
        patterns.append("pytorch_model*.bin")
    if "model.weights.h5" in names:
        patterns.append("*.h5")
    # Weights in other folders are of sentence-transformers' dense layers.
    if not any(re.match(
            r"(0_\w+/)?[^/]*(\.safetensors|model[^/]*\.(bin|weights\.h5))$", each)
               for each in names):
        # Without weights, one graph is fetched, with its external data.
        patterns += [f"{each}*" for each in (
            *(f"onnx/{each}" for each in NAMES.values()), *sorted(names))
                     if each in names and each.endswith(".onnx")][:1]
    return huggingface_hub.snapshot_download(
        name, revision=revision or None, allow_patterns=patterns)
