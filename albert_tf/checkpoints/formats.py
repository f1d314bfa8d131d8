"""Which format a path holds, and the model in it, in the neutral form."""

import os
from typing import Any, Mapping, Optional, Union

from albert_tf import files
from albert_tf.checkpoints import huggingface
from albert_tf.checkpoints.neutral import Checkpoint
from albert_tf.config import AlbertConfig, NAMED
from albert_tf.errors import InputError

Config = Union[None, AlbertConfig, Mapping[str, Any], str]
# Asked in this order.
_FORMATS = (huggingface,)
_KNOWN = (
    "of the release or of a run here (albert_config.json and model.ckpt-*), of Hugging "
    "Face (config.json and model.safetensors or pytorch_model.bin), of keras-hub "
    "(config.json and model.weights.h5), of tf-models (ckpt-*), a SavedModel or a "
    "TensorFlow Hub module (saved_model.pb)")


def config_of(given: Config) -> Optional[AlbertConfig]:
    """A config as it was given: itself, its values, a JSON file, or a published name."""
    if given is None or isinstance(given, AlbertConfig):
        return given
    if isinstance(given, Mapping):
        return AlbertConfig.from_dict(given)
    name = str(given)
    return (AlbertConfig.named(name) if name in NAMED
            else AlbertConfig.from_json_file(name))


def read(path: str, config: Config = None) -> Checkpoint:
    """The model that a path holds, whatever its format.

        read("albert-base-v2").tensors["bert/pooler/dense/bias"].read()
    """
    path = os.fspath(path)
    for known in _FORMATS:
        if known.recognise(path):
            return known.read(path, config_of(config))
    raise unknown(path)


def unknown(path: str) -> InputError:
    """The error for a path whose format is not known."""
    if not files.exists(path):
        return InputError(f"{path}: there is no such file or folder.")
    names = files.names_in(path) if files.is_folder(path) else [os.path.basename(path)]
    found = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return InputError(f"{path}: holds no model in a format that is known: found "
                      f"{found or 'nothing'}; known are folders {_KNOWN}.")
