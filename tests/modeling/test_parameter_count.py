import pathlib
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.config import AlbertConfig, NAMED, SHARING
from albert_tf.modeling.parameter_count import (
    agreement, count_parameters, named_counts, paper_rows)

ROOT = pathlib.Path(__file__).parents[2]

# Exact numbers by published size: encoder, with the pooler, with the heads.
PINNED = {
    "base": (11_092_992, 11_683_584, 11_813_810),
    "large": (16_634_368, 17_683_968, 17_847_474),
    "xlarge": (54_528_512, 58_724_864, 59_021_490),
    "xxlarge": (205_814_272, 222_595_584, 223_158_450),
    "base-v2": (11_092_992, 11_683_584, 11_813_810),
    "large-v2": (16_634_368, 17_683_968, 17_847_474),
    "xlarge-v2": (54_528_512, 58_724_864, 59_021_490),
    "xxlarge-v2": (205_814_272, 222_595_584, 223_158_450),
    "bert-base": (108_490_752, 109_081_344, 109_705_010),
    "bert-large": (333_557_760, 334_607_360, 335_691_058),
    "bert-xlarge": (1_271_095_296, 1_275_291_648, 1_279_526_194),
}

# Table 1 of the paper, in millions, and which of our counts rounds to it.
TABLE_1 = {
    "bert-base": (108, "without pooler"), "bert-large": (334, "without pooler"),
    "bert-xlarge": (1270, "without pooler"), "base": (12, "with pooler"),
    "large": (18, "with pooler"), "xlarge": (60, ""), "xxlarge": (235, ""),
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
    return count.without_pooler, count.with_pooler, count.with_heads


def test_every_published_size_is_pinned():
    assert {name: (c.without_pooler, c.with_pooler, c.with_heads)
            for name, c in named_counts().items()} == PINNED
    assert set(PINNED) == set(NAMED), (
        "pin the parameter count of every size of config.NAMED in PINNED")


def test_table_1_of_the_paper():
    rows = {row.label: row for row in paper_rows() if row.table == 1}
    assert set(rows) == set(TABLE_1)
    for name, (millions, counted) in TABLE_1.items():
        count = count_parameters(rows[name].config)
        assert (rows[name].millions, agreement(count, millions)) == (millions, counted)


def test_gaps_to_the_paper():
    # The paper's figures for these two follow from no count of their configs.
    for name, millions, gap in (("xlarge", 60, 1.3), ("xxlarge", 235, 12.4)):
        count = count_parameters(AlbertConfig.named(name))
        assert millions - count.with_pooler / 1e6 == pytest.approx(gap, abs=0.05)
        assert count.with_heads < (millions - 0.5) * 1e6


def test_tables_3_and_4_of_the_paper():
    rows = [row for row in paper_rows() if row.table in (3, 4)]
    assert len(rows) == 16
    seen = set()
    for row in rows:
        key = (row.config.embedding_size, row.config.parameter_sharing)
        exact, millions, counted = BASE[key]
        count = count_parameters(row.config)
        assert row.millions == millions
        assert getattr(count, counted.replace(" ", "_")) == exact
        assert agreement(count, millions) == counted
        seen.add(key)
    assert seen == set(BASE)


def variables_of(config):
    """Parameters of the real models: encoder, with the pooler, with the heads."""
    from albert_tf.modeling.models import AlbertForPreTraining

    model = AlbertForPreTraining(config)
    sizes = {v.name: int(np.prod(v.shape)) for v in model.trainable_variables}
    total = sum(sizes.values())
    heads = sum(size for name, size in sizes.items() if name.startswith("cls/"))
    pooler = sum(size for name, size in sizes.items() if name.startswith("bert/pooler"))
    return total - heads - pooler, total - heads, total


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("changes", [
    {}, {"num_hidden_groups": 2}, {"inner_group_num": 2}, {"embedding_size": 8},
    {"num_hidden_layers": 6, "num_hidden_groups": 4}])
def test_arithmetic_equals_the_models_variables(sharing, changes):
    config = AlbertConfig(
        vocab_size=20, embedding_size=5, hidden_size=8, num_hidden_layers=4,
        num_attention_heads=2, intermediate_size=13, max_position_embeddings=7,
        type_vocab_size=3, parameter_sharing=sharing).replace(**changes)
    assert counts(config) == variables_of(config)


def test_arithmetic_equals_the_variables_of_base():
    assert variables_of(AlbertConfig.named("base")) == PINNED["base"]


def run_script(*arguments):
    result = subprocess.run(
        [sys.executable, str(ROOT / "count_parameters.py"), *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT)
    return result.returncode, result.stdout, result.stderr


def test_script_prints_every_size_and_row():
    status, output, _ = run_script()
    assert status == 0
    lines = output.splitlines()
    for name, pinned in PINNED.items():
        assert any(line.split()[:1] == [name] and f"{pinned[1]:,}" in line
                   for line in lines), name
    for row in paper_rows():
        assert any(line.startswith(row.label) and f"{row.millions}M" in line
                   for line in lines), row.label
    different = [line.split()[0] for line in lines if "DIFFERS" in line]
    assert different == ["xlarge", "xxlarge"]


def test_script_counts_one_model():
    status, output, _ = run_script(
        "--model=base", "--config_overrides=embedding_size=768,parameter_sharing=ffn")
    assert status == 0 and "57,117,696" in output
    status, output, errors = run_script("--config_overrides=embedding_size=768")
    assert status == 1 and "--model" in errors
