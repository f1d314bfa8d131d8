"""What a batch is estimated to need, against what was measured.

    python -m pytest tests/training/test_memory.py
"""

import json
import pathlib
import re

import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.training import memory
from albert_tf.training.memory import Sequences, evaluation_memory, training_memory
from albert_tf.training.options import StepOptions
from benchmarks import contestants, tpu_compile


# Peak of a training step less the memory before it, of benchmarks/results/memory.json.
@pytest.mark.parametrize("model, rows, length, options, measured", [
    ("base", 4, 512, {}, 3.10e9), ("base", 8, 128, {}, 1.31e9),
    ("base", 4, 512, {"dtype": "bfloat16"}, 1.88e9),
    ("base", 32, 512, {"recompute": True}, 3.63e9), ("large", 4, 512, {}, 7.76e9),
    ("xlarge", 8, 512, {"recompute": True}, 3.06e9), ("xxlarge", 1, 512, {}, 6.25e9)])
def test_estimate_is_below_what_was_measured(model, rows, length, options, measured):
    for filled, most in ((0.5, 0.6), (1.0, 1.0)):
        found = training_memory(
            AlbertConfig.named(model), StepOptions(**options), rows,
            Sequences(length, filled, predictions=20))
        assert measured / 5 < found < most * measured


def test_most_memory_is_above_what_was_measured():
    """And at most 2.7 times that. On TPUs that is what was compiled."""
    def over(kind, row, shape, dtype, recompute, needed, parts=1, passes=0, masked=0):
        size, length = shape
        config = AlbertConfig.named(row["model"])
        if passes:
            config = config.replace(num_hidden_layers=passes)
        return memory.most_memory(
            kind, config, StepOptions(dtype=dtype, recompute=recompute), size // parts,
            Sequences(length, 1, masked or contestants.predictions(length))) / needed

    ratios = {}
    for name, row in results("tpu_compile").items():
        if row["contestant"] == "ours":
            ratios[name] = over(
                "TPU", row, (row["size"], row["length"]), row["dtype"],
                row["recompute"], row["memory"], passes=row["passes"],
                masked=row["predictions"])
    for name, row in results("memory").items():
        if row["contestant"] in ("ours", "plain") and "peak" in row:
            kind = "CPU" if row["contestant"] == "ours" else "GPU"
            options = row["options"]
            ratios[name] = over(
                kind, row, contestants.parsed_shape(row["shape"]), row["dtype"],
                "recompute" in options, 1e9 * (row["peak"] - row["before"]),
                options.get("gradient_accumulation_steps", 1))
    assert len(ratios) > 20
    assert {name: ratio for name, ratio in ratios.items() if not 1 < ratio < 2.7} == {}


def test_table_of_sequences():
    text = (pathlib.Path(tpu_compile.__file__).parents[1] / "docs" / "ACCELERATORS.md"
            ).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+) \|((?: \d+, \d+ \|){5})$", text, re.M)
    assert len(rows) == 8
    for model, length, numbers in rows:
        sequences = Sequences(int(length), 1, contestants.predictions(int(length)))

        def most(kind, free, recompute):
            step, size = StepOptions(dtype="bfloat16", recompute=recompute), 1
            while memory.most_memory(kind, AlbertConfig.named(model), step, 2 * size,
                                     sequences) <= 0.9 * free:
                size *= 2
            return size

        assert numbers == "".join(
            f" {most(kind, free, False)}, {most(kind, free, True)} |" for kind, free in (
                ("TPU", 2 ** 34), *(("GPU", size * 1e9) for size in (15, 23, 39, 79))))


def results(name):
    path = pathlib.Path(tpu_compile.__file__).parent / "results" / f"{name}.json"
    return json.loads(path.read_text())["results"]


# Likewise, of the forward pass of full sequences.
@pytest.mark.parametrize("model, rows, length, predictions, measured", [
    ("base", 32, 512, 0, 1.29e9), ("base", 128, 128, 0, 0.87e9),
    ("large", 16, 512, 0, 0.91e9), ("base", 64, 512, 20, 2.08e9)])
def test_evaluation(model, rows, length, predictions, measured):
    def found(**more):
        return evaluation_memory(AlbertConfig.named(model), StepOptions(), rows,
                                 Sequences(length, 1.0, predictions, **more))

    assert measured / 3 < found() < 0.8 * measured
    assert found(of_example=4) == 4 * found()
    assert found(vectors=1000) > 20 * found()


def most_bytes(parts: int) -> int:
    """That the tensors of a training step hold at one time."""
    config = AlbertConfig(
        vocab_size=100, embedding_size=16, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=256, max_position_embeddings=128)
    step = contestants.ours(config, 16, 128, "float32",
                            gradient_accumulation_steps=parts)
    found = []
    for _ in range(3):  # The order of operations is not always the same.
        tf.config.experimental.reset_memory_stats("CPU:0")
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        step()
        found.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
    return min(found)


def test_parts_of_a_batch_are_computed_one_after_the_other():
    try:
        tf.config.experimental.get_memory_info("CPU:0")
    except ValueError:
        pytest.skip("TensorFlow does not count this device's memory")
    assert most_bytes(2) < 0.7 * most_bytes(1)
