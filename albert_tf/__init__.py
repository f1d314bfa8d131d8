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

import ast
import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

__version__ = "0.2.0"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # No log lines of C++ code.


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package, which load on first use the
    names that its source imports for type checkers, `if TYPE_CHECKING:`."""
    source = inspect.getsource(sys.modules[package])
    imports: list[Any] = next(
        node.body for node in ast.parse(source).body if isinstance(node, ast.If))
    module_of = {alias.name: each.module for each in imports for alias in each.names}

    def getattr_(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        if module_of[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(module_of[name]), name)

    return getattr_, lambda: sorted({*vars(sys.modules[package]), *module_of})


if TYPE_CHECKING:
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
    __getattr__, __dir__ = lazily(__name__)
