"""ALBERT in TensorFlow 2 / Keras, faithful to the TF1 release.

Names load on first use: `import albert_tf` and everything of levels 0 and 1
(configuration, tokenization, data creation) never load TensorFlow.
"""

import importlib

__version__ = "0.1.0"

# Module, in this package, that defines each public name.
_NAMES = {
    "AlbertConfig": "config",
    "InputError": "errors",
    "AlbertModel": "modeling",
    "AlbertForPreTraining": "heads",
}
_MODULES = (
    "checkpoint", "config", "errors", "files", "heads", "input_pipeline",
    "losses", "modeling", "optimization", "pretraining_instances", "records",
    "sequences", "tokenization", "training",
)


def __getattr__(name):
    if name in _NAMES:
        value = getattr(importlib.import_module(f"albert_tf.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"albert_tf.{name}")
    raise AttributeError(f"module 'albert_tf' has no attribute '{name}'")


def __dir__():
    return sorted([*globals(), *_NAMES, *_MODULES])
