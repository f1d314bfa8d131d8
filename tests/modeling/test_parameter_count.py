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

# Table 1 of the paper, in millions, and which of our counts rounds to it. The figures
# of the last two follow from no count of their configs.
TABLE_1 = {
    "bert-base": (108, "agrees without pooler"),
    "bert-large": (334, "agrees without pooler"),
    "bert-xlarge": (1270, "agrees without pooler"), "base": (12, "agrees with pooler"),
    "large": (18, "agrees with pooler"),
    "xlarge": (60, "DIFFERS: 58.7M with pooler, 1.3M under the paper's figure"),
    "xxlarge": (235, "DIFFERS: 222.6M with pooler, 12.4M under the paper's figure"),
}

# Tables 3 and 4: (embedding size, sharing) of base → exact number, the paper's
# millions, and which count the number is.
BASE = {
    (64, "none"): (87_057_408, 87, "without pooler"),
    (128, "none"): (89_059_584, 89, "without pooler"),
    (256, "none"): (93_063_936, 93, "without pooler"),
    (768, "none"): (108_490_752, 108, "without pooler"),
    (64, "all"): (9_681_408, 10, "with pooler"),
    (128, "all"): (11_683_584, 12, "with pooler"),
    (256, "all"): (15_687_936, 16, "with pooler"),
    (768, "all"): (31_114_752, 31, "with pooler"),
    (128, "attention"): (63_647_232, 64, "with pooler"),
    (768, "attention"): (83_078_400, 83, "with pooler"),
    (128, "ffn"): (37_686_528, 38, "with pooler"),
    (768, "ffn"): (57_117_696, 57, "with pooler"),
}


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
    sizes, *tables = [
        {line.split("  ")[0]: line for line in part.splitlines()[1:]} for part in
        run_python("count_parameters.py", check=True).stdout.strip().split("\n\n")]
    assert {name: tuple(line.split()[1:]) for name, line in sizes.items()} == {
        name: tuple(f"{number:,}" for number in pinned) for name, pinned in PINNED.items()}
    first, third, fourth = tables
    assert first.keys() == TABLE_1.keys() and len(third) == len(fourth) == 8
    for name, (millions, note) in TABLE_1.items():
        assert first[name].endswith(note) and f" {millions}M " in first[name]
    for (size, sharing), (exact, millions, counted) in BASE.items():
        label = f"base, E={size}, shared: {sharing}"
        lines = [table[label] for table in (third, fourth) if label in table]
        assert lines, label
        for line in lines:
            assert f" {exact:,} " in line and f" {millions}M " in line
            assert line.endswith(f"agrees {counted}")


def test_script_counts_one_model():
    change = "--config_overrides=embedding_size=768,parameter_sharing=ffn"
    assert "57,117,696" in run_python(
        "count_parameters.py", "--model=base", change, check=True).stdout
    refused = run_python("count_parameters.py", change)
    assert refused.returncode == 1 and "--model" in refused.stderr
