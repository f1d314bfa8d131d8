"""ALBERT in TensorFlow 2 / Keras, faithful to the TF1 release.

    text ─► sentences ─► pieces ─► segment pairs, n-gram masks ─► TFRecords
     text/               tokenization/  pretraining_data/ masking/  records/

    TFRecords ─► batches ─► encoder, heads ─► losses ─► LAMB ─► checkpoint, evaluation
     records/    training/  modeling/         training/         checkpoints/

    labelled data ─► features ─► batches of few lengths ─► scores, predictions
     finetuning/TASK/            finetuning/

    checkpoint ─► SavedModel ─► answers
     checkpoints/  serving/

Names load on first use: `import albert_tf`, tokenization and data creation never load
TensorFlow.
"""

import importlib
import os
from typing import Any, Callable, Mapping

__version__ = "0.2.0"

# TensorFlow's C++ log tells of missing GPUs when it loads; its errors come as
# exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def lazily(package: str, public: Mapping[str, str], modules: str = ""
           ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names load on first use.

    `package` is its `__name__`; `public` maps modules of it to the names that they
    define; `modules` are public themselves.
    """
    module_of = {name: module for module, names in public.items()
                 for name in names.split()}

    def getattr_(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        if name in modules.split():
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return getattr_, lambda: sorted({
        *vars(importlib.import_module(package)), *module_of, *modules.split()})


__getattr__, __dir__ = lazily(__name__, {
    "serving.predict": "load",
    "config": "AlbertConfig",
    "errors": "InputError",
    "modeling.albert": "AlbertModel",
    "modeling.pretraining": "AlbertForPreTraining",
}, modules="checkpoints config errors features files finetuning masking modeling "
           "pretraining_data records serving text tokenization training")
