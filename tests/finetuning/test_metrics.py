"""Metrics against hand-made counts and the release's own results."""

import gzip
import json
import math

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning.metrics import METRICS, compute, interval
from tests.helpers import FIXTURES

# tp 3, fn 1, fp 2, tn 2
LABELS = np.array([1, 1, 1, 1, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 0, 1, 1, 0, 0])


def golden(task):
    """Predictions and labels of the real examples, and the release's results."""
    with gzip.open(FIXTURES / "classifier" / "metrics.json.gz") as stream:
        record = json.load(stream)[task]
    columns = [np.concatenate([np.array(batch[i]) for batch in record["batches"]])
               for i in range(4)]
    _, labels, logits, real = columns
    predictions = logits if logits.ndim == 1 else logits.argmax(axis=-1)
    return predictions[real > 0], labels[real > 0], record["metrics"]


@pytest.mark.parametrize("task, metric, name", [
    *((task, "accuracy", "eval_accuracy") for task in ("cola", "mnli", "mrpc", "qqp")),
    ("cola", "matthews", "matthew_corr"),
    ("sts-b", "pearson", "pearson"), ("sts-b", "mse", "MSE")])
def test_metrics_are_the_releases(task, metric, name):
    predictions, labels, expected = golden(task)
    assert len(labels) == 22  # Of 24: two only pad the last batch.
    assert math.isclose(compute(metric, predictions, labels), expected[name],
                        rel_tol=1e-5)


@pytest.mark.parametrize("metric, value", [
    ("matthews", 0.0), ("pearson", math.nan), ("spearman", math.nan)])
def test_predictions_or_labels_that_are_all_equal(metric, value):
    assert compute(metric, np.ones(8), LABELS) == 0.0
    for predictions, labels in ((LABELS, np.ones(8)), (np.ones(1), np.ones(1))):
        assert compute(metric, predictions, labels) == pytest.approx(value, nan_ok=True)
    assert compute("f1", np.zeros(4, int), np.zeros(4, int)) == 0.0
    assert compute("f1", PREDICTIONS, LABELS, positive=0) == pytest.approx(4 / 7)


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_set_is_refused(metric):
    with pytest.raises(InputError, match="empty"):
        compute(metric, np.array([]), np.array([]))


def test_predictions_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="prediction 1 is not a number.*diverged"):
        compute("pearson", np.array([1.0, np.nan]), np.array([1.0, 2.0]))


def test_intervals_are_wilsons():
    # As of statsmodels' proportion_confint(8, 10, method="wilson").
    assert interval(0.8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert interval(1.0, 20) == pytest.approx((0.838875, 1.0), abs=1e-6)
