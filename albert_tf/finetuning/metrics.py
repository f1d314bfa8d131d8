"""Metrics of predictions: accuracy, F1, Matthews, Pearson, Spearman, squared error.

Each takes the predictions and the labels of a whole set, NumPy arrays of shape
[N], and returns a float. Where a metric is undefined, it is 0.0, never NaN: a
correlation when the predictions (or the labels) are all equal, F1 when there is no
positive example and none is predicted. A model that always says the same then
scores as one that knows nothing.
"""

import numpy as np

from albert_tf.errors import InputError


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of predictions that are right.

    Args:
      predictions: class ids [N].
      labels: class ids [N].

    Raises:
      InputError: if there is no example.
    """
    predictions, labels = _checked(predictions, labels)
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """F1 of one class: 2·precision·recall / (precision + recall).

    Args:
      predictions: class ids [N].
      labels: class ids [N].
      positive: the class that counts; 1 for GLUE's MRPC and QQP.

    Raises:
      InputError: if there is no example.
    """
    from sklearn.metrics import f1_score

    predictions, labels = _checked(predictions, labels)
    return float(f1_score(labels == positive, predictions == positive,
                          zero_division=0.0))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the F1 of all classes that occur among labels or predictions.

    Args:
      predictions: class ids [N].
      labels: class ids [N].

    Raises:
      InputError: if there is no example.
    """
    from sklearn.metrics import f1_score

    predictions, labels = _checked(predictions, labels)
    return float(f1_score(labels, predictions, average="macro", zero_division=0.0))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation, for two classes or more.

    Args:
      predictions: class ids [N].
      labels: class ids [N].

    Raises:
      InputError: if there is no example.
    """
    from sklearn.metrics import matthews_corrcoef

    predictions, labels = _checked(predictions, labels)
    if _constant(predictions) or _constant(labels):
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation of two series of numbers [N].

    Raises:
      InputError: if there is no example, or a number is not finite.
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predictions, labels)


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Spearman's rank correlation of two series of numbers [N].

    Raises:
      InputError: if there is no example, or a number is not finite.
    """
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predictions, labels)


def mean_squared_error(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the squared differences of two series of numbers [N].

    Raises:
      InputError: if there is no example, or a number is not finite.
    """
    predictions, labels = _checked_numbers(predictions, labels)
    return float(np.mean((predictions - labels) ** 2))


def _correlation(function, predictions, labels) -> float:
    predictions, labels = _checked_numbers(predictions, labels)
    if _constant(predictions) or _constant(labels):
        return 0.0
    return float(function(predictions, labels).statistic)


def _constant(values: np.ndarray) -> bool:
    return bool(np.all(values == values[0]))


def _checked(predictions, labels) -> tuple[np.ndarray, np.ndarray]:
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1:
        raise ValueError(
            f"predictions of shape {predictions.shape} and labels of shape "
            f"{labels.shape}: both must be [N]")
    if not predictions.size:
        raise InputError("there is no example to score: the set is empty.")
    return predictions, labels


def _checked_numbers(predictions, labels) -> tuple[np.ndarray, np.ndarray]:
    # float64: sums over a set in float32 lose digits.
    predictions, labels = _checked(np.asarray(predictions, np.float64),
                                   np.asarray(labels, np.float64))
    for values, what in ((predictions, "prediction"), (labels, "label")):
        wrong = np.flatnonzero(~np.isfinite(values))
        if wrong.size:
            raise InputError(
                f"{what} {wrong[0]} is {values[wrong[0]]}, not a number to score; "
                "a model that gives such values has diverged: lower "
                "--learning_rate.")
    return predictions, labels
