"""What a batch is estimated to need, against what was measured.

    python -m pytest tests/training/test_memory.py
"""

import pytest

from albert_tf.config import AlbertConfig
from albert_tf.training.memory import training_memory
from albert_tf.training.options import StepOptions


# Peak of a training step less the memory before it, of benchmarks/results/memory.json.
@pytest.mark.parametrize("model, rows, length, options, measured", [
    ("base", 4, 512, {}, 3.10e9), ("base", 8, 128, {}, 1.31e9),
    ("base", 4, 512, {"dtype": "bfloat16"}, 1.88e9),
    ("base", 32, 512, {"recompute": True}, 3.63e9), ("large", 4, 512, {}, 7.76e9),
    ("xlarge", 8, 512, {"recompute": True}, 3.06e9), ("xxlarge", 1, 512, {}, 6.25e9)])
def test_estimate_is_below_what_was_measured(model, rows, length, options, measured):
    found = training_memory(
        AlbertConfig.named(model), StepOptions(**options), rows, length, predictions=20)
    assert measured / 5 < found < 0.6 * measured
