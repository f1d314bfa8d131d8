r"""Weights of classes in the training loss, for labels of unequal frequency.

For one label, the loss of a batch of B examples with the class ids y is

    (1 / B) · Σ_i w[y_i] · CE_i        w[c] = v[c] · N / Σ_k n[k] · v[k]

where n[c] of the N training examples have class c, and v are the weights as they are
given, or 1 / n[c] if they are to be balanced (King and Zeng 2001; `class_weight` in
scikit-learn). Their mean over the training examples is 1, so that the loss and the
learning rate keep their scale.

If a text has any number of labels, the weight of a label multiplies the loss of the texts
that have it (`pos_weight` in PyTorch): as it is given, or (N - n) / n if balanced.
"""

from typing import Mapping, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.finetuning.classification.label_cells import number

BALANCED = "balanced"
_MOST = 1e6


def parse(words: Sequence[str]) -> str | dict[str, float]:
    """Returns the weights that a flag gives: BALANCED, or label → weight.

        parse(["no=1", "yes=4.5"])  # {"no": 1.0, "yes": 4.5}
    """
    if list(words) == [BALANCED]:
        return BALANCED
    weights: dict[str, float] = {}
    for word in words:
        label, _, weight = word.rpartition("=")
        if label.strip() in weights or not 0 < number(weight) <= _MOST:
            raise InputError(f"--class_weights: '{word}': give balanced, or once for each "
                             f"label label=weight, a number above 0, up to {_MOST:g}.")
        weights[label.strip()] = number(weight)
    return weights


def check(given: str | Mapping[str, float], labels: Sequence[str]) -> None:
    """Raises InputError if weights do not fit the labels of a task, () for numbers."""
    if given and not labels:
        raise InputError("--class_weights are for labels, but this task predicts "
                         "numbers; leave the flag out.")
    for label in given if isinstance(given, Mapping) else ():
        if label not in labels:
            raise InputError(f"--class_weights: '{label}' is not one of the labels "
                             f"{', '.join(labels)}; correct it.")


def weights(given: str | Mapping[str, float], labels: Sequence[str], ids: np.ndarray
            ) -> np.ndarray:
    """Returns the factors of the loss, float32 [K], for the training examples' class
    ids [N], or 1 or 0 for each label, [N, K]. Labels that are not named have weight 1.
    """
    several, total = ids.ndim == 2, len(ids)
    counts = ids.sum(axis=0) if several else np.bincount(ids, minlength=len(labels))
    counts = counts.astype(np.float64)
    if isinstance(given, Mapping):
        relative = np.array([given.get(label, 1.0) for label in labels])
    else:
        # A label without examples has no effect.
        least = np.maximum(counts, 1)
        relative = np.maximum(total - counts, 1) / least if several else 1 / least
    if not several:
        relative = relative * total / (counts @ relative)
    return relative.astype(np.float32)
