"""The encoder: the release's outputs, from the release's checkpoints."""

import json

import numpy as np
import pytest

from albert_tf.checkpoints.folders import read_tensors
from albert_tf.checkpoints.restore import load_tf1_tensors, restore_tf1, tf1_tensors
from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from tests import models
from tests.golden.model import (
    ALL_CASES, FIXTURE_CASES, HEADS, assert_holds, fixture_case, shared_case)
from tests.helpers import SHARED


def check_forward(case):
    model = AlbertModel(case.config)
    load_tf1_tensors(model, {k: v for k, v in case.weights.items()
                             if k.startswith("bert/")})
    out = model(case.encoder_inputs, training=False)
    golden = case.forward
    # Row 5 is masked whole: its scores near -10000 lose digits.
    for rows, tolerance in ((slice(0, 5), 1e-5), (slice(5, 6), 2e-4)):
        def close(ours, theirs):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=tolerance)

        layers = np.stack(out["encoder_outputs"])[:, rows][:, :, case.positions]
        close(layers, golden["all_encoder_layers"][:, rows])
        close(out["embedding_output"][rows], golden["embedding_output"][rows])
        close(out["pooled_output"][rows], golden["pooled_output"][rows])
    assert out["sequence_output"] is out["encoder_outputs"][-1]
    assert len(out["encoder_outputs"]) == (
        case.config.num_hidden_layers * case.config.inner_group_num)
    # Without a mask and segments: all pieces count, one segment.
    out = model({"input_ids": case.forward["input_ids"]})
    for name in ("embedding_output", "sequence_output", "pooled_output"):
        np.testing.assert_allclose(
            out[name], case.forward[f"default_{name}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FIXTURE_CASES)
def test_forward_pass_is_the_releases(name):
    check_forward(fixture_case(name))


@pytest.mark.shared
@pytest.mark.parametrize("name", ALL_CASES[len(FIXTURE_CASES):])
def test_forward_pass_is_the_releases_whole(name):
    check_forward(shared_case(name))


# ---- checkpoints -----------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize("path", [
    *(f"model_forward/{name}/model.ckpt" for name in ALL_CASES[len(FIXTURE_CASES):]),
    *(f"pretraining_run/{name}.ckpt" for name in (
        "init", "init_groups1", "final_adamw", "final_lamb_default_lr",
        "final_lamb_default_lr_with_slots", "final_lamb_high_lr",
        "start_lamb_groups_from_group0", "final_lamb_groups_from_group0"))])
def test_golden_checkpoints_into_both_models(path):
    prefix = SHARED / "golden" / path
    config_file = prefix.parent / "albert_config.json"
    if config_file.exists():
        config = AlbertConfig.from_json_file(str(config_file))
    else:
        runs = json.loads((prefix.parent / "runs.json").read_text())
        values = runs["lamb_groups_from_group0" if "from_group0" in path
                      else "lamb_default_lr"]["config"]
        config = AlbertConfig.from_dict(values)
    if path.endswith("init_groups1.ckpt"):
        config = config.replace(num_hidden_layers=4)
    stored = read_tensors(str(prefix))
    for kind in (models.AlbertForPreTraining, AlbertModel):
        model = kind(config)
        report = restore_tf1(model, str(prefix))
        assert report.complete and not report.missing and not report.mismatched
        assert {*report.matched, *report.dropped} == set(stored)
        assert_holds(model, stored)
    slots = 65 if "slots" in path else 0
    assert len(report.dropped) == slots + len(HEADS)


@pytest.mark.shared
@pytest.mark.parametrize("head, extra", [
    ("classifier/head_mnli", ["output_bias", "output_weights"]),
    ("race/head", ["output_bias", "output_weights"]),
    ("squad/head_v1", None), ("squad/head_v2", None)])
def test_golden_finetuned_checkpoints_into_the_encoder(head, extra):
    folder = SHARED / "golden" / head
    model = AlbertModel(AlbertConfig.from_json_file(str(folder / "albert_config.json")))
    report = restore_tf1(model, str(folder / "model.ckpt"))
    assert report.complete and report.dropped
    assert extra is None or list(report.dropped) == extra
    assert_holds(model, read_tensors(str(folder / "model.ckpt")))


@pytest.mark.shared
def test_group_0_as_in_the_release_but_for_its_mistake():
    golden = SHARED / "golden" / "pretraining_run"
    run = json.loads((golden / "runs.json").read_text())["lamb_groups_from_group0"]
    model = models.AlbertForPreTraining(AlbertConfig.from_dict(run["config"]))
    report = restore_tf1(
        model, str(golden / run["init_checkpoint"]), init_from_group0=True)
    assert report.complete
    ours = tf1_tensors(model)
    theirs = read_tensors(
        str(golden / "start_lamb_groups_from_group0.ckpt"))
    differing = sorted(name for name in ours
                       if not np.array_equal(ours[name], theirs[name]))
    assert differing == sorted(run["variables_not_restored_by_the_original"])
    for name in differing:
        np.testing.assert_array_equal(
            ours[name], ours[name.replace("/group_0", "/group_1")])
