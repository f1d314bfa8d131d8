"""ALBERT in TensorFlow 2 / Keras, faithful to the TF1 release.

    text ─► sentences ─► pieces ─► segment pairs, n-gram masks ─► TFRecords
     text/               tokenization/  pretraining_data/ masking/  records/

    TFRecords ─► batches ─► encoder, heads ─► losses ─► LAMB ─► checkpoint, evaluation
     records/    training/  modeling/         training/         checkpoints/

    labelled data ─► features ─► batches of few lengths ─► scores, predictions
     finetuning/tasks/           finetuning/

    checkpoint ─► SavedModel ─► answers
     checkpoints/  serving/

Names load on first use: `import albert_tf`, tokenization and data creation never load
TensorFlow.
"""

import importlib
from typing import Any, Callable, Mapping

__version__ = "0.2.0"


def lazily(package: str, names: Mapping[str, str]
           ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names load on first use.

    `package` is its `__name__`; `names` maps a public name to the module of the package
    that defines it or, with a slash at its end, that it stands for.
    """
    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = importlib.import_module(f"{package}.{names[name].rstrip('/')}")
        return module if names[name].endswith("/") else getattr(module, name)

    return getattr_, lambda: sorted({*vars(importlib.import_module(package)), *names})


__getattr__, __dir__ = lazily(__name__, {
    "AlbertConfig": "config",
    "InputError": "errors",
    "AlbertModel": "modeling.albert",
    "AlbertForPreTraining": "modeling.models",
    # Modules by their short names; a slash says that the module is meant.
    "checkpoint": "checkpoints/",
    "config": "config/",
    "errors": "errors/",
    "files": "files/",
    "heads": "modeling.models/",
    "input_pipeline": "training.input_pipeline/",
    "losses": "training.objectives/",
    "modeling": "modeling/",
    "optimization": "training.optimization/",
    "pretraining_instances": "pretraining_data.release_instances/",
    "records": "records/",
    "sequences": "records.sequences/",
    "serving": "serving/",
    "tasks": "finetuning.tasks/",
    "tokenization": "tokenization/",
    "training": "training/",
})
