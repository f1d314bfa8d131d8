"""Metrics of a whole set's predictions, by name.

    compute("f1", predictions=[1, 0, 1], labels=[1, 1, 1])  # 0.8

A model that always says the same scores as one that knows nothing: its correlation and
F1 are 0.0, where the formula says 0/0. Where it is the labels that are all equal, no
model has a correlation: Pearson's and Spearman's are NaN then, as in SciPy, and
Matthews' is 0.0, as in scikit-learn.
"""

import math
from typing import Callable, Sequence

import numpy as np

from albert_tf.errors import DivergenceError, InputError


def _f1(predictions, labels, **options) -> float:
    from sklearn.metrics import f1_score

    return f1_score(labels, predictions, zero_division=0.0, **options)


def _matthews(predictions, labels) -> float:
    from sklearn.metrics import matthews_corrcoef

    return matthews_corrcoef(labels, predictions)


def _pearson(predictions, labels) -> float:
    from scipy.stats import pearsonr

    return pearsonr(predictions, labels).statistic


def _spearman(predictions, labels) -> float:
    from scipy.stats import spearmanr

    return spearmanr(predictions, labels).statistic


METRICS = {
    # Of class ids; f1 is that of one class against the others.
    "accuracy": lambda predictions, labels: np.mean(predictions == labels),
    "f1": _f1,
    # Mean of the F1 of all classes that occur among labels or predictions.
    "macro_f1": lambda *columns: _f1(*columns, average="macro"),
    "matthews": _matthews,
    # Of numbers.
    "pearson": _pearson,
    "spearman": _spearman,
    "mse": lambda predictions, labels: np.mean((predictions - labels) ** 2),
}
_OF_NUMBERS = ("pearson", "spearman", "mse")
# 0/0 where the labels are all equal.
CORRELATIONS = ("matthews", "pearson", "spearman")
# GLUE's score of a task with two metrics is their mean.
_MEANS = {"accuracy_f1_mean": ("accuracy", "f1"),
          "pearson_spearman_mean": ("pearson", "spearman")}


def compute(name: str, predictions: Sequence, labels: Sequence, positive: int = 1
            ) -> float:
    """One metric of at least one example.

    `name` is one of METRICS, or the mean of two, such as accuracy_f1_mean. Predictions
    and labels are class ids [N], or numbers [N]; `positive` is the class whose F1 is
    f1, 1 for GLUE's MRPC and QQP.
    """
    if name in _MEANS:
        return sum(compute(part, predictions, labels, positive)
                   for part in _MEANS[name]) / len(_MEANS[name])
    # float64: sums over a set in float32 lose digits.
    dtype = np.float64 if name in _OF_NUMBERS else None
    predictions, labels = np.asarray(predictions, dtype), np.asarray(labels, dtype)
    if predictions.shape != labels.shape or predictions.ndim != 1:
        raise ValueError(f"predictions of shape {predictions.shape} and labels of "
                         f"shape {labels.shape}: both must be [N]")
    if not predictions.size:
        raise InputError("there is no example to score: the set is empty.")
    if name in _OF_NUMBERS:
        check_finite(predictions, "prediction {}".format)
        check_finite(labels, "label {}".format)
    if name in CORRELATIONS:
        if np.all(labels == labels[0]):
            return 0.0 if name == "matthews" else math.nan
        if np.all(predictions == predictions[0]):
            return 0.0
    if name == "f1":
        predictions, labels = predictions == positive, labels == positive
    return float(METRICS[name](predictions, labels))


def check_finite(outputs: np.ndarray, describe: Callable[[int], str]) -> None:
    """Refuses a model's outputs [N, ...] if one is not finite; `describe` names it."""
    wrong = np.flatnonzero(
        ~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=-1))
    if wrong.size:
        raise diverged(describe(wrong[0]))


def diverged(what: str) -> DivergenceError:
    """The error for an output that is not a number."""
    return DivergenceError(
        f"{what} is not a number: the model has diverged; take an earlier checkpoint "
        "or train with a lower --learning_rate.")


# ---- a model that has not learned ------------------------------------------


def entropy(labels: np.ndarray) -> float:
    """The cross-entropy of class ids [N] where each gets its share among them: the loss
    of a model that knows nothing else."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / len(labels)
    return float(-(shares * np.log(shares)).sum())


def at_chance(probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]
              ) -> str:
    """What shows that a model cannot tell classes apart, "" for nothing: [N, K] of a
    set, its class ids [N], and what the classes are called."""
    counts = np.bincount(labels, minlength=len(names))
    if np.count_nonzero(counts) < 2:
        return ""
    chosen = probabilities.argmax(axis=-1)
    if np.all(chosen == chosen[0]):
        return f"all {len(labels)} predictions are '{names[chosen[0]]}'"
    given = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    loss = float(-np.log(np.maximum(given, 1e-30)).mean())
    accuracy, share = np.mean(chosen == labels), counts.max() / len(labels)
    if loss >= entropy(labels) and accuracy <= share:
        return (f"the loss is {loss:.3f} and the accuracy {accuracy:.3f}, no better "
                f"than those of guessing ({entropy(labels):.3f} and {share:.3f})")
    return ""
