"""Metrics of the predictions of a whole set, by name.

If all predictions are equal, the model scores as one that has learned nothing: its
correlation and F1 are 0.0, although the formula gives 0/0. If all labels are equal, the
correlation is undefined: Pearson's and Spearman's are NaN, as in SciPy, and Matthews'
is 0.0, as in scikit-learn.
"""

import importlib
import math
from typing import Any, Callable, Sequence

import numpy as np

from albert_tf import pictures
from albert_tf.errors import DivergenceError, InputError

# More labels do not fit in the lines of a report, or their counts in a picture's cells,
# nor do longer names.
_MOST_IN_TEXT, _MOST_IN_CELLS, _LONGEST = 12, 20, 24


def _library(module: str, name: str, labels_first: bool = True, **options: Any
             ) -> Callable[..., float]:
    """Returns a function of predictions and labels that a library has."""
    def metric(predictions, labels) -> float:
        both = (labels, predictions) if labels_first else (predictions, labels)
        result = getattr(importlib.import_module(module), name)(*both, **options)
        return getattr(result, "statistic", result)

    return metric


_f1 = _library("sklearn.metrics", "f1_score", zero_division=0.0)
_mean_f1 = _library("sklearn.metrics", "f1_score", zero_division=0.0, average="macro")
METRICS = {
    # Metrics of class ids; f1 is the F1 of one class against the others.
    "accuracy": lambda predictions, labels: np.mean(predictions == labels),
    "f1": _f1,
    # The mean F1 of all classes that occur among the labels or predictions, or of all K
    # labels of which a text has any number, [N, K], 1 for those that it has.
    "macro_f1": lambda predictions, labels: _mean_f1(predictions, labels) if (
        predictions.ndim == 1) else np.mean([
            _f1(*columns) for columns in zip(predictions.T, labels.T)]),
    # Metrics of such labels alone.
    "micro_f1": lambda predictions, labels: _f1(predictions.ravel(), labels.ravel()),
    "exact_match": lambda predictions, labels: np.mean(
        np.all(predictions == labels, axis=-1)),
    "matthews": _library("sklearn.metrics", "matthews_corrcoef"),
    # Metrics of numbers.
    "pearson": _library("scipy.stats", "pearsonr", labels_first=False),
    "spearman": _library("scipy.stats", "spearmanr", labels_first=False),
    "mse": lambda predictions, labels: np.mean((predictions - labels) ** 2),
}
# Metrics that are a share of the examples, and have an `interval`.
SHARES = ("accuracy", "exact_match")
_OF_NUMBERS = ("pearson", "spearman", "mse")
LOWER_IS_BETTER = ("mse",)
_CORRELATIONS = ("matthews", "pearson", "spearman")  # 0/0 if all labels are equal
# GLUE's score of a task with two metrics is their mean.
_MEANS = {"accuracy_f1_mean": ("accuracy", "f1"),
          "pearson_spearman_mean": ("pearson", "spearman")}


def compute(name: str, predictions: Sequence, labels: Sequence, positive: int = 1
            ) -> float:
    """Computes a metric of a set, one of METRICS or the mean of two, such as
    accuracy_f1_mean, of class ids [N], or numbers [N], or labels [N, K]; `positive` is
    the class whose F1 is "f1", 1 for GLUE's MRPC and QQP."""
    if name in _MEANS:
        return sum(compute(part, predictions, labels, positive)
                   for part in _MEANS[name]) / len(_MEANS[name])
    # In float32, sums over a large set would lose digits.
    dtype = np.float64 if name in _OF_NUMBERS else None
    predictions, labels = np.asarray(predictions, dtype), np.asarray(labels, dtype)
    if not predictions.size:
        raise InputError("there is no example to score; give a set that is not empty.")
    if name in _OF_NUMBERS:
        check_finite(predictions, "prediction {}".format)
        check_finite(labels, "label {}".format)
    if name in _CORRELATIONS:
        if np.all(labels == labels[0]):
            return 0.0 if name == "matthews" else math.nan
        if np.all(predictions == predictions[0]):
            return 0.0
    if name == "f1":
        predictions, labels = predictions == positive, labels == positive
    return float(METRICS[name](predictions, labels))


def interval(share: float, count: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share of `count` independent examples (Wilson)."""
    from scipy.stats import binomtest

    result = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(result.low), float(result.high)


def best_threshold(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Returns the threshold with the highest micro F1, and that F1, for the
    probabilities [N, K] and the labels [N, K], 1 or 0."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    sorted_probabilities = probabilities.reshape(-1)[order].astype(np.float64)
    hits = np.cumsum(labels.reshape(-1)[order])
    scores = 2 * hits / (np.arange(1, hits.size + 1) + max(hits[-1], 1))
    # Equal probabilities are on the same side of every threshold.
    last = np.append(sorted_probabilities[1:] != sorted_probabilities[:-1], True)
    best = int(np.argmax(np.where(last, scores, -1.0)))
    # Half-way to the next lower probability.
    after = sorted_probabilities[best + 1] if best + 1 < hits.size else 0.0
    return float((sorted_probabilities[best] + after) / 2), float(scores[best])


def check_finite(outputs: np.ndarray, describe: Callable[[int], str]) -> None:
    """Raises DivergenceError if one of a model's outputs [N, ...] is not finite;
    `describe` names output number n."""
    finite = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=-1)
    if not finite.all():
        raise diverged(describe(finite.argmin()))


def diverged(what: str) -> DivergenceError:
    """Returns the error for an output that is not a number."""
    return DivergenceError(
        f"{what} is not a number: the model has diverged. Use an earlier checkpoint, "
        "or train with a lower --learning_rate.")


def entropy(labels: np.ndarray, weights: Sequence[float] = ()) -> float:
    """Returns the entropy of class ids [N]: the loss of a model that knows only how
    frequent each class is. With `weights` [K], each class counts as often."""
    counts = np.bincount(labels, minlength=len(weights)) * (
        np.asarray(weights, np.float64) if len(weights) else 1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum() * counts.sum() / len(labels))


def entropy_by_label(labels: np.ndarray, weights: Sequence[float] = ()) -> float:
    """Returns the mean entropy of labels [N, K], each given or not. With `weights` [K],
    labels that are given count as often."""
    return float(np.mean([
        entropy(column, [1, weights[i]] if len(weights) else ())
        for i, column in enumerate(np.transpose(labels))]))


def by_class(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> str:
    """Returns precision, recall and F1 of each class as text, and what is confused, given
    class ids [N]; without confusions, given 1 or 0 for each label, [N, K]."""
    from sklearn.metrics import classification_report, confusion_matrix

    several = labels.ndim == 2
    # As in macro_f1, a class that occurs nowhere has no F1 to average.
    listed = range(len(names)) if several else np.union1d(labels, predictions).tolist()
    single = several and len(names) == 1
    if single:  # Given or not: scikit-learn takes this for two classes.
        labels, predictions = labels[:, 0], predictions[:, 0]
    text = classification_report(
        labels, predictions, labels=[1] if single else listed, digits=4,
        target_names=[names[i] for i in listed], zero_division=0.0).rstrip()
    if absent := [name for i, name in enumerate(names) if i not in listed]:
        text += f"\n\nNeither in the data nor predicted: {', '.join(absent)}."
    if several or len(listed) > _MOST_IN_TEXT:
        return text
    matrix = confusion_matrix(labels, predictions, labels=listed)
    names = [_short(names[i]) for i in listed]
    cells = [["", *names], *([name, *map(str, row)] for name, row in zip(names, matrix))]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return text + "\n\nRows are the labels, columns the predictions:\n\n" + "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths))
        for line in cells)


def draw_confusions(path: str, title: str, labels: np.ndarray, predictions: np.ndarray,
                    names: Sequence[str]) -> None:
    """Draws a confusion matrix as PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    listed = np.union1d(labels, predictions)
    side = min(3 + 0.32 * len(listed), 25)
    figure = pictures.figure(side + 1, side)
    if not figure:
        return
    axes = figure.subplots()
    axes.set_title(f"{title}: {len(labels)} examples")
    ConfusionMatrixDisplay.from_predictions(
        labels, predictions, labels=listed, ax=axes, cmap="Blues",
        display_labels=[_short(names[i]).replace("$", r"\$") for i in listed],
        xticks_rotation="vertical", include_values=len(listed) <= _MOST_IN_CELLS)
    pictures.save(figure, path)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else name[:_LONGEST - 1] + "…"
