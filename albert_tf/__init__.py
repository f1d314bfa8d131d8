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


def lazily(package: str, public: Mapping[str, str]
           ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names load on first use.

    `package` is its `__name__`; `public` maps modules of it to the names that they
    define or, with a slash at the module's end, to the name that it goes by itself.
    """
    modules = {name: module for module, names in public.items()
               for name in names.split()}

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = importlib.import_module(f"{package}.{modules[name].rstrip('/')}")
        return module if modules[name].endswith("/") else getattr(module, name)

    return getattr_, lambda: sorted({*vars(importlib.import_module(package)), *modules})


__getattr__, __dir__ = lazily(__name__, {
    "serving.predict": "load",
    "config": "AlbertConfig",
    "errors": "InputError",
    "modeling.albert": "AlbertModel",
    "modeling.pretraining": "AlbertForPreTraining",
    # Modules by their short names.
    "checkpoints/": "checkpoint",
    "config/": "config",
    "errors/": "errors",
    "files/": "files",
    "modeling.models/": "heads",
    "training.input_pipeline/": "input_pipeline",
    "training.losses/": "losses",
    "modeling/": "modeling",
    "training.optimization/": "optimization",
    "pretraining_data.instances/": "pretraining_instances",
    "records/": "records",
    "tokenization.sequences/": "sequences",
    "serving/": "serving",
    "tokenization/": "tokenization",
    "training/": "training",
})
