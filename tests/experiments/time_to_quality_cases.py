"""experiments/time_to_quality.py: what a recipe costs, ratios, what is not made again.

Run by test_own_processes.py.
"""

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from albert_tf.errors import InputError
from benchmarks.contestants import step_flops
from experiments import time_to_quality
from experiments.time_to_quality import RECIPES, flops_of_steps

FLAGS = flags.FLAGS


@pytest.fixture(autouse=True)
def _flags(tmp_path):
    with flagsaver.flagsaver():
        FLAGS(["test", f"--work_dir={tmp_path}/work", f"--output={tmp_path}/found.json",
               "--num_train_steps=100"])
        yield


def operations(name):
    """Of all steps of a recipe."""
    of_step = flops_of_steps(RECIPES[name], 100, time_to_quality.model_config())
    return sum(map(of_step, range(100)))


def test_operations_of_a_recipe_are_those_of_its_depths_and_batches():
    release = operations("release")
    assert release == 100 * step_flops(time_to_quality.model_config(), 32, 64, 10)
    assert 0.5 < operations("half_batch_masked40") / release < 0.7
    # Passes cost most of a step.
    assert 0.5 < operations("growing") / release < 0.55
    assert operations("roberta") == release
    assert 0.28 < operations("fast") / release < 0.32
    # Two streams, in fewer steps.
    assert operations("permutation") > 1.1 * release


@pytest.mark.parametrize("layers", (3, 12))
@pytest.mark.parametrize("name", ("fast_equal", "permutation"))
def test_a_run_without_steps_has_the_operations_of_the_release(name, layers):
    FLAGS(["test", "--work_dir=work", f"--num_hidden_layers={layers}",
           "--num_train_steps=2000"])
    config = time_to_quality.model_config()
    steps = time_to_quality.num_steps(RECIPES[name], config)
    of_step = flops_of_steps(RECIPES[name], steps, config)
    assert sum(map(of_step, range(steps))) == pytest.approx(
        2000 * step_flops(config, 32, 64, 10), rel=1e-3)


def result(recipe, losses, seed=1, **more):
    return {"recipe": recipe, "seed": seed, "finished": True, "finetuned": {},
            "step": [50, 100], "flops": [1e12, 2e12], "masked_lm_loss": losses,
            "core_seconds": 10.0, **more}


def test_the_ratio_is_of_the_operations_to_the_loss_of_the_release():
    rows = {row["recipe"]: row for row in time_to_quality.summary([
        result("release", [7.0, 6.0]), result("release", [7.0, 5.8], seed=2),
        result("growing", [6.9, 4.9]), result("fast", [5.9, 5.0]),
        result("fast", [5.9, 6.1], seed=2),  # That it ends above is of no matter.
        result("stable", [7.0, 6.5])])}
    # 5.9 lies half-way between 6.9 and 4.9.
    assert rows["growing"]["compute_ratio"] == pytest.approx(2 / 1.5)
    assert rows["fast"]["compute_ratio"] == pytest.approx(2.0)
    assert "compute_ratio" not in rows["stable"]
    assert rows["release"]["compute_ratio"] == pytest.approx(1.0)
    assert rows["release"]["seeds"] == 2
    assert rows["release"]["spread"] == pytest.approx(0.2)


def test_what_recipes_with_and_without_masks_have_in_common_is_in_the_table(capsys):
    FLAGS.finetune = ["masked", "mrpc"]
    common = {"masked": {"masked_lm_accuracy": 0.125}, "mrpc": {"accuracy": 0.5}}
    in_order = result("permutation", None, permutation_loss=[7.0, 6.5], finetuned=common)
    del in_order["masked_lm_loss"]
    rows = time_to_quality.summary([
        result("release", [7.0, 6.0], finetuned=common), in_order])
    assert rows[1]["permutation_loss"] == 6.5 and "compute_ratio" not in rows[1]
    time_to_quality.print_table(rows)
    assert "12.5 | 50.0 |" in capsys.readouterr().out.splitlines()[-1]


def test_other_runs_of_the_results_stay(monkeypatch, tmp_path):
    for name in ("text", "heldout"):
        (tmp_path / f"{name}.txt").write_text("A sentence.\n")
    FLAGS.text, FLAGS.heldout_text = f"{tmp_path}/text.txt", f"{tmp_path}/heldout.txt"
    monkeypatch.setattr(time_to_quality, "train", lambda *run: None)
    monkeypatch.setattr(time_to_quality, "result_of", lambda name, seed, config: result(
        name, [6.0, 5.0], seed))
    for FLAGS.runs in (["release:1", "fast:2"], ["growing:1"]):
        time_to_quality.main(["test"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [run["recipe"] for run in found["runs"]] == ["release", "growing", "fast"]
    assert set(found["compute_ratio"]) == {"release", "growing", "fast"}


@pytest.mark.parametrize("run", ["release", "released:1", "release:x"])
def test_a_run_that_is_none_is_refused(run):
    FLAGS.runs = [run]
    with pytest.raises(InputError, match=f"--runs: '{run}' is not of the form"):
        time_to_quality.main(["test"])
