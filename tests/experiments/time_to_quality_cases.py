"""experiments/time_to_quality.py: what a recipe costs, ratios, what is not made again.

    python -m pytest tests/experiments/time_to_quality_cases.py

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
    of_step = flops_of_steps(RECIPES[name], 100, 1, time_to_quality.model_config())
    return sum(map(of_step, range(100)))


def test_operations_of_a_recipe_are_those_of_its_depths_batches_and_lengths():
    release = operations("release")
    assert release == 100 * step_flops(time_to_quality.model_config(), 32, 64, 10)
    assert operations("half_batch") == release / 2
    # Passes cost most of a step.
    assert 0.5 < operations("growing") / release < 0.55
    assert operations("roberta") == release
    assert 0.28 < operations("fast") / release < 0.32
    # Half of the tokens in 0.8 of the steps, those of most depths.
    assert 0.65 < operations("fast_lengths") / operations("fast") < 0.75
    # Two streams, in fewer steps.
    assert operations("permutation") > 1.1 * release
    # All pieces go through transformers' head.
    assert operations("transformers") > 1.1 * release


@pytest.mark.parametrize("layers", (3, 12))
@pytest.mark.parametrize("name", ("fast_equal", "permutation"))
def test_a_run_without_steps_has_the_operations_of_the_release(name, layers):
    FLAGS(["test", "--work_dir=work", f"--num_hidden_layers={layers}",
           "--num_train_steps=2000"])
    config = time_to_quality.model_config()
    steps = time_to_quality.num_steps(RECIPES[name], config)
    of_step = flops_of_steps(RECIPES[name], steps, 1, config)
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
    FLAGS.finetune = ["masked", "partut", "wnut"]
    common = {"masked": {"masked_lm_accuracy": 0.125}, "partut": {"accuracy": 0.5},
              "wnut": {"accuracy": 0.9, "f1": 0.25}}
    in_order = result("permutation", None, permutation_loss=[7.0, 6.5], finetuned=common)
    del in_order["masked_lm_loss"]
    rows = time_to_quality.summary([
        result("release", [7.0, 6.0], finetuned=common), in_order])
    assert rows[1]["permutation_loss"] == 6.5 and "compute_ratio" not in rows[1]
    for row in rows:
        assert (row["masked"], row["partut"], row["wnut"]) == (0.125, 0.5, 0.25)
    time_to_quality.print_table(rows)
    assert "12.5 | 50.0 | 25.0 |" in capsys.readouterr().out.splitlines()[-1]


def test_a_finished_run_of_the_results_is_not_made_again(monkeypatch, tmp_path):
    for name in ("text", "heldout"):
        (tmp_path / f"{name}.txt").write_text("A sentence.\n")
    FLAGS.text, FLAGS.heldout_text = f"{tmp_path}/text.txt", f"{tmp_path}/heldout.txt"
    FLAGS.runs = ["release:1", "fast:2"]
    trained = []
    config = time_to_quality.model_config()
    monkeypatch.setattr(time_to_quality, "train", lambda *run: trained.append(run[:2]))
    monkeypatch.setattr(
        time_to_quality, "result_of", lambda name, seed, config: result(
            name, [6.0, 5.0], seed, settings=time_to_quality.settings(name, config)))
    time_to_quality.main(["test"])
    assert trained == [("release", 1), ("fast", 2)]
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(run["recipe"], run["seed"]) for run in found["runs"]] == trained
    assert set(found["compute_ratio"]) == {"release", "fast"}
    time_to_quality.main(["test"])
    assert len(trained) == 2
    # What another task was asked of, or made otherwise, is made.
    with flagsaver.flagsaver(learning_rate=0.001):
        assert time_to_quality.kept("release", 1, config) is None
    with flagsaver.flagsaver(finetune=["mrpc"]):
        assert time_to_quality.kept("release", 1, config) is None
    assert time_to_quality.kept("release", 2, config) is None
    # Others that stand in the file stay.
    FLAGS.runs = ["growing:1"]
    time_to_quality.main(["test"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [run["recipe"] for run in found["runs"]] == ["release", "growing", "fast"]


@pytest.mark.parametrize("run", ["release", "released:1", "release:x"])
def test_a_run_that_is_none_is_refused(run):
    FLAGS.runs = [run]
    with pytest.raises(InputError, match=f"--runs: '{run}' is not of the form"):
        time_to_quality.main(["test"])


def test_shares_of_time_go_by_the_median_rate_of_steps_of_a_kind(tmp_path):
    rates = [(10, 4.0), (20, 4.0), (30, 0.1), (40, 1.0), (50, 1.0)]  # Slowed at 30.
    (tmp_path / "metrics.jsonl").write_text("".join(
        json.dumps({"step": step, "split": "train", "steps_per_second": rate}) + "\n"
        for step, rate in rates))

    def kind(step):
        return 1.0 if step < 30 else 2.0

    # 30 steps of a quarter of a second, 20 of a second.
    assert time_to_quality.shares_of_time(str(tmp_path), [20, 50], kind) == [
        pytest.approx(5 / 27.5), 1.0]
    (tmp_path / "metrics.jsonl").write_text("")
    assert time_to_quality.shares_of_time(str(tmp_path), [20, 50], kind) == [0.4, 1.0]
