"""The cost model against rules of thumb and the products of a tiny model."""

import pytest

from albert_tf.config import AlbertConfig
from benchmarks import cost_model
from benchmarks.cost_model import Batch, Chip

CHIP = Chip("test", 1e12, 1e11, 1e9)


def test_operations_are_six_a_parameter_and_piece():
    config = AlbertConfig.named("bert-large")
    batch = Batch(8, 128, 20)
    cost = cost_model.step_cost(config, batch, CHIP, 1)
    kernels = 12 * config.num_hidden_layers * config.hidden_size ** 2
    attention = 12 * config.num_hidden_layers * config.hidden_size * 128
    expected = (6 * kernels + attention) * 8 * 128
    assert cost.flops == pytest.approx(expected, rel=0.03)
    assert cost.sent == 0 and cost.network_seconds == 0


def test_sharing_changes_what_is_sent_and_not_what_is_computed():
    batch = Batch(8, 512, 77)
    shared, own = (cost_model.step_cost(
        AlbertConfig.named("large", parameter_sharing=sharing), batch, CHIP, 64)
        for sharing in ("all", "none"))
    assert shared.flops == own.flops
    assert own.sent / shared.sent == pytest.approx(own.parameters / shared.parameters)
    assert own.sent / shared.sent > 15
    assert shared.seconds < own.seconds


def test_recomputing_makes_the_layers_once_more():
    batch, config = Batch(2, 16, 2), AlbertConfig.named("base")
    layers = sum(p.flops for p in cost_model.layer_products(config, batch))
    plain, again = (cost_model.step_cost(config, batch, CHIP, 1, recompute).flops
                    for recompute in (False, True))
    assert again - plain == pytest.approx(layers)


def test_the_slower_of_arithmetic_and_memory_counts():
    product = cost_model.Product(4, 8, 16, 3)
    assert product.flops == 2 * 4 * 8 * 16 * 3
    assert product.bytes == 2 * 3 * (4 * 8 + 8 * 16 + 4 * 16)
    batch, config = Batch(1, 8, 1), AlbertConfig.named("base")
    slow_memory = CHIP._replace(memory=1.0)
    cost = cost_model.step_cost(config, batch, slow_memory, 1)
    assert cost.compute_seconds == pytest.approx(cost.bytes, rel=0.01)
