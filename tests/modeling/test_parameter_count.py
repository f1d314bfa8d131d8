"""Numbers of parameters: of the real models, and in the paper's tables."""

import math

import pytest

from albert_tf.config import NAMED, SHARING, AlbertConfig
from albert_tf.modeling.heads import MASKED_LM, SENTENCE_ORDER
from albert_tf.modeling.parameter_count import count_parameters, encoder_shapes
from tests.helpers import run_python

# Exact numbers by published size: encoder, with the pooler, with the heads.
PINNED = {
    "base": (11_092_992, 11_683_584, 11_813_810),
    "large": (16_634_368, 17_683_968, 17_847_474),
    "xlarge": (54_528_512, 58_724_864, 59_021_490),
    "xxlarge": (205_814_272, 222_595_584, 223_158_450),
    "bert-base": (108_490_752, 109_081_344, 109_705_010),
    "bert-large": (333_557_760, 334_607_360, 335_691_058),
    "bert-xlarge": (1_271_095_296, 1_275_291_648, 1_279_526_194),
    "tiny": (5_118_480, 5_216_136, 5_287_082),
    "small": (5_730_048, 5_877_888, 5_958_194),
    # 4 layers of 312 and 6 of 384, on BERT's 21,128 Chinese pieces.
    "albert-tiny-zh": (3_982_864, 4_080_520, 4_142_594),
    "albert-small-zh": (4_594_432, 4_742_272, 4_813_706),
}
PINNED |= {f"{size}-v2": PINNED[size] for size in ("base", "large", "xlarge", "xxlarge")}


def counts(config):
    count = count_parameters(config)
    return count["encoder"], count["with pooler"], count["with heads"]


def test_every_published_size_is_pinned():
    assert {name: counts(AlbertConfig.named(name)) for name in NAMED} == PINNED


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("changes", [
    {}, {"num_hidden_groups": 2}, {"inner_group_num": 2}, {"embedding_size": 8},
    {"num_hidden_layers": 6, "num_hidden_groups": 4}])
def test_shapes_are_those_of_the_models_variables(sharing, changes):
    from tests import models

    config = AlbertConfig(
        vocab_size=20, embedding_size=5, hidden_size=8, num_hidden_layers=4,
        num_attention_heads=2, intermediate_size=13, max_position_embeddings=7,
        type_vocab_size=3, parameter_sharing=sharing).replace(**changes)
    model = models.AlbertForPreTraining(config)
    shapes = {v.name.removesuffix(":0"): tuple(v.shape) for v in model.trainable_variables}
    assert shapes == {**encoder_shapes(config), **MASKED_LM.shapes(config),
                      **SENTENCE_ORDER.shapes(config)}
    assert counts(config)[-1] == sum(map(math.prod, shapes.values()))


def test_script_prints_every_size_and_row():
    """And the paper's tables, whose numbers differ in two rows of the first."""
    sizes, *tables = [
        {line.split("  ")[0]: line for line in part.splitlines()[1:]} for part in
        run_python("count_parameters.py", check=True).stdout.strip().split("\n\n")]
    assert {name: tuple(line.split()[1:]) for name, line in sizes.items()} == {
        name: tuple(f"{number:,}" for number in pinned) for name, pinned in PINNED.items()}
    assert [*map(len, tables)] == [7, 8, 8]
    assert [label for table in tables for label, line in table.items()
            if " agrees " not in line] == ["xlarge", "xxlarge"]


def test_script_counts_one_model():
    change = "--config_overrides=embedding_size=768,parameter_sharing=ffn"
    assert "57,117,696" in run_python(
        "count_parameters.py", "--model=base", change, check=True).stdout
    refused = run_python("count_parameters.py", change)
    assert refused.returncode == 1 and "--model" in refused.stderr
