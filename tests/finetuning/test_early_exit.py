"""The curve of score against mean passes, by hand.

    python -m pytest tests/finetuning/test_early_exit.py
"""

import numpy as np
import pytest

from albert_tf.finetuning import early_exit

LABELS = np.array([1, 0, 1])


def accuracy(found):
    return {"accuracy": float(np.mean(found == LABELS))}


def logits(*probabilities):
    """Of the second of two classes: [N, passes] → [N, passes, 2]."""
    values = np.log(np.array(probabilities))
    return np.stack([np.log1p(-np.exp(values)), values], axis=-1)


def outputs(*probabilities):
    made = logits(*probabilities)
    return {"logits": list(made[:, -1]), "exit_logits": list(made[:, :-1])}


# Sure and right at once; sure and wrong, then right; never sure.
MIXED = outputs([.95, .95, .95], [.92, .4, .05], [.6, .4, .55])


def test_confidence_stops_above_the_threshold():
    curve = {point["threshold"]: point for point in
             early_exit.curves(MIXED, accuracy)["confidence"]}
    assert curve[0.0]["passes"] == 1 and curve[0.0]["accuracy"] == pytest.approx(2 / 3)
    # 1 and 1 pass, and all 3 of the last one.
    assert curve[0.9]["passes"] == pytest.approx(5 / 3)
    assert curve[0.9]["accuracy"] == pytest.approx(2 / 3)
    assert curve[0.925] == {"threshold": 0.925, "passes": pytest.approx(7 / 3),
                            "accuracy": 1.0}
    assert curve[1.0]["passes"] == 3 and curve[1.0]["accuracy"] == 1.0


def test_a_probability_of_one_does_not_stop_at_one():
    sure = {"logits": [np.array([0., 99.])] * 3,
            "exit_logits": [np.array([[0., 999.]])] * 3}
    assert early_exit.curves(sure, accuracy)["confidence"][-1]["passes"] == 2


def test_patience_waits_for_equal_answers():
    curve = early_exit.curves(MIXED, accuracy)["patience"]
    assert [point["patience"] for point in curve] == [1, 2, 3]
    assert [point["passes"] for point in curve] == pytest.approx([1, 8 / 3, 3])
    assert curve[1]["accuracy"] == 1.0


def test_patience_of_numbers_has_a_tolerance():
    found = {"exit_logits": [[[0.0], [4.9]], [[1.0], [1.01]], [[9.0], [5.0]]],
             "logits": [[5.0], [1.0], [0.0]]}
    curves = early_exit.curves(found, lambda said: {"sum": float(said.sum())})
    assert list(curves) == ["patience"]
    assert [point["passes"] for point in curves["patience"]] == pytest.approx(
        [1, 8 / 3, 3])
    assert curves["patience"][1]["sum"] == pytest.approx(5.0 + 1.01)


def test_cheapest_loses_half_a_point_at_most():
    curve = [{"threshold": threshold, "passes": passes, "f1": f1} for
             threshold, passes, f1 in ((0, 1, .8), (.5, 2, .895), (1, 4, .9))]
    assert early_exit.cheapest({"confidence": curve}, "f1")["passes"] == 2


def test_picture_and_table(tmp_path):
    curves = early_exit.curves(MIXED, accuracy)
    early_exit.draw({"SST-2": (curves, "accuracy")}, str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    lines = early_exit.table(curves).splitlines()
    assert lines[1].split() == ["threshold", "passes", "accuracy"]
    assert "       0.925     2.33333           1" in lines
