"""What a batch is estimated to need, against what was measured."""

import pytest

from albert_tf.config import AlbertConfig
from albert_tf.training.options import Sequences, StepOptions
from benchmarks import contestants
from tests import tiny_run


# Peak of a training step less the memory before it, of benchmarks/results/memory.json.
@pytest.mark.parametrize("model, rows, length, options, measured", [
    ("base", 4, 512, {}, 3.10e9), ("base", 8, 128, {}, 1.31e9),
    ("base", 4, 512, {"dtype": "bfloat16"}, 1.88e9),
    ("base", 32, 512, {"recompute": True}, 3.63e9), ("large", 4, 512, {}, 7.76e9),
    ("xlarge", 8, 512, {"recompute": True}, 3.06e9), ("xxlarge", 1, 512, {}, 6.25e9)])
def test_estimate_is_below_what_was_measured(model, rows, length, options, measured):
    for filled, most in ((0.5, 0.6), (1.0, 1.0)):
        found = Sequences(length, filled, predictions=20).memory(
            AlbertConfig.named(model), StepOptions(**options), rows, trained=True)
        assert measured / 5 < found < most * measured


# Likewise, of the forward pass of full sequences.
@pytest.mark.parametrize("model, rows, length, predictions, measured", [
    ("base", 32, 512, 0, 1.29e9), ("base", 128, 128, 0, 0.87e9),
    ("large", 16, 512, 0, 0.91e9), ("base", 64, 512, 20, 2.08e9)])
def test_evaluation(model, rows, length, predictions, measured):
    def found(**more):
        return Sequences(length, 1.0, predictions, **more).memory(
            AlbertConfig.named(model), StepOptions(), rows, trained=False)

    assert measured / 3 < found() < 0.8 * measured
    assert found(of_example=4) == 4 * found()
    assert found(vectors=1000) > 20 * found()


@pytest.mark.long
def test_parts_of_a_batch_are_computed_one_after_the_other():
    config = AlbertConfig(
        vocab_size=100, embedding_size=16, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=256, max_position_embeddings=128)
    one, two = (tiny_run.most_bytes(contestants.ours(
        config, 16, 128, "float32", gradient_accumulation_steps=parts))
        for parts in (1, 2))
    assert two < 0.7 * one
