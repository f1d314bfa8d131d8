"""ALBERT in TensorFlow 2 / Keras, faithful to Google's TF1 code.

The code has three parts. The core is the paper. Scale makes the same computations fast,
resumable and distributed. Around them are tasks, formats and serving, each in a folder
of its own. Besides modules that all share (errors, text_files), the core imports only
modeling/kernels (faster computations), modeling/head (what any task adds to the
encoder), modeling/inputs (checks) and tokenization/sequences ([CLS] a [SEP] b [SEP], and
which tokens start a word).

    core     text ─► tokens ─► sentence pairs, n-gram masks ─► records
                ─► encoder, heads ─► losses ─► LAMB
    scale    pretraining_data/, training/, modeling/kernels/, records/, jobs/
    around   finetuning/TASK/, checkpoints/, features/, serving/, cli/

Read the core in this order:

     1. config                       the shape of a model, the published sizes
     2. masking/options              how many tokens are masked, and how they are shown
     3. masking/reference            n-gram masking of one sequence, as released
     4. pretraining_data/options     how documents are cut into instances
     5. pretraining_data/instances   sentence pairs, in order or swapped
     6. modeling/layers              dense layers, LayerNorm
     7. modeling/encoder             attention and feed-forward, shared by all layers
     8. modeling/albert              factorized embeddings, encoder, pooler
     9. modeling/heads               the outputs for masked tokens and sentence order
    10. modeling/pretraining         the model that is pretrained
    11. training/losses              what it learns
    12. training/optimization        LAMB and AdamW, warm-up and decay

Keep modeling/kernels/plain open beside 6 to 8: it has the formulas of attention, GELU,
LayerNorm and dropout; and kernels/packing, whose Layout makes heads of hidden states.
tokenization/sequences goes with 5: how pairs are truncated.

Names load on first use: `import albert_tf`, tokenization and data creation never load
TensorFlow.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any, Callable, Mapping

__version__ = "0.2.0"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # No log lines of C++ code.


def lazily(package: str, public: Mapping[str, str], modules: str = ""
           ) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose public names are loaded
    on first use.

    `package` is its `__name__`; `public` maps its modules to the names that they
    define; `modules` are modules that are public themselves.
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


if TYPE_CHECKING:  # The names, for type checkers, which run no code.
    from albert_tf import (
        checkpoints as checkpoints, config as config, errors as errors,
        features as features, files as files, finetuning as finetuning,
        masking as masking, modeling as modeling, pretraining_data as pretraining_data,
        records as records, serving as serving, text as text,
        tokenization as tokenization, training as training)
    from albert_tf.config import AlbertConfig as AlbertConfig
    from albert_tf.errors import InputError as InputError
    from albert_tf.from_python.finetune import finetune as finetune
    from albert_tf.modeling.albert import AlbertModel as AlbertModel
    from albert_tf.modeling.pretraining import AlbertForPreTraining as AlbertForPreTraining
    from albert_tf.serving.predict import load as load
else:
    __getattr__, __dir__ = lazily(__name__, {
        "serving.predict": "load",
        "from_python.finetune": "finetune",
        "config": "AlbertConfig",
        "errors": "InputError",
        "modeling.albert": "AlbertModel",
        "modeling.pretraining": "AlbertForPreTraining",
    }, modules="checkpoints config errors features files finetuning masking modeling "
               "pretraining_data records serving text tokenization training")
