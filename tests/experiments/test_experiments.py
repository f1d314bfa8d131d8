"""Each experiment at a tiny scale: its runs are made once, and its results are told."""

import contextlib
import json

import pytest
from absl import flags
from absl.testing import flagsaver

from albert_tf.errors import InputError
from benchmarks import runs
from experiments import paper, rows
from experiments.paper import EXPERIMENTS
from experiments.scales import Row
from tests.experiments import data

pytestmark = pytest.mark.long

FLAGS = flags.FLAGS
# Fine-tuning is every experiment's alike, and so are seeds.
TASKS = {"sentence_objectives": ["mrpc", "squad"], "dropout": ["sst-2"]}
SEEDS = {"more_data": 2}
RUN_SCRIPT = runs.run_script


@pytest.fixture(scope="module", name="workplace")
def _workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    given = {**data.write(folder), "scale": "tiny", "work_dir": f"{folder}/work",
             "results_dir": f"{folder}/results"}
    with contextlib.ExitStack() as stack:
        scripts = stack.enter_context(contextlib.closing(data.Scripts()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(flagsaver.flagsaver())
        FLAGS(["test", *(f"--{name}={value}" for name, value in given.items())])
        patch.setattr(runs, "run_script", scripts)
        for name, experiment in EXPERIMENTS.items():
            # Of long tables the first row and the last.
            if experiment.trains and len(experiment.rows) > 3:
                patch.setitem(EXPERIMENTS, name, experiment._replace(
                    rows=[experiment.rows[0], experiment.rows[-1]]))
        yield folder, scripts


def ran(workplace, name):
    """The results of an experiment that has run."""
    folder, scripts = workplace
    before = len(scripts.ran)
    FLAGS.finetune, FLAGS.num_seeds = TASKS.get(name, []), SEEDS.get(name, 1)
    EXPERIMENTS[name].run()
    found = json.loads((folder / "results" / f"{name}_tiny.json").read_text())
    return found, scripts.ran[before:]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_it_runs_once_and_its_results_are_told(workplace, name):
    found, _ = ran(workplace, name)
    experiment = EXPERIMENTS[name]
    assert found["command"].startswith(f"python -m experiments.paper {name} --scale=tiny")
    assert {"commit", "cores", "machine"} <= found.keys()
    assert [(each["row"], each["seed"]) for each in found["rows"]] == [
        (row.name, seed) for seed in range(1, SEEDS.get(name, 1) + 1)
        for row in experiment.rows]
    for each in found["rows"]:
        assert each["scores"]
        if experiment.trains:
            assert each["steps"] >= 1 and each["core_seconds"] >= 0
    folder = workplace[0] / "results"
    table = (folder / f"{name}_tiny.md").read_text()
    assert all(f"| {row.name} |" in table for row in experiment.rows)
    # Results are committed, and tell nothing of where they were made.
    assert str(workplace[0]) not in json.dumps(found)
    assert (folder / f"{name}_tiny.png").exists() == bool(experiment.draw)
    again, scripts = ran(workplace, name)
    assert again == found and not scripts


def test_a_row_of_two_tables_is_trained_once(workplace):
    ran(workplace, "embedding_size")
    _, scripts = ran(workplace, "parameter_sharing")
    # Training, and two sets of held-out records: of one of two rows.
    assert scripts.count("run_pretraining.py") <= 3


def test_run_flags_come_before_what_the_scale_sets(workplace, monkeypatch):
    given = []
    for name in ("pretrain", "scores"):
        monkeypatch.setattr(runs, name, lambda *_, **values: given.append(values) or {})
    with flagsaver.flagsaver(run_flags=["eval_batch_size=8", "train_batch_size=6"]):
        rows.evaluate(rows.train(Row("SOP"), 1), Row("SOP"), "articles")
    assert [values["eval_batch_size"] for values in given] == ["8", "8"]
    assert given[0]["train_batch_size"] == "6"


def test_every_objective_is_measured_on_every_sentence(workplace):
    found, _ = ran(workplace, "sentence_objectives")
    for each in found["rows"]:
        for text in rows.HELDOUT:
            for score in ("MLM", "SOP", "NSP"):
                assert 0 <= each["scores"][f"{score}, {text}"] <= 100
        assert {"mrpc", "squad", "average"} <= each["scores"].keys()


def test_runs_of_other_text_are_refused(workplace, tmp_path):
    folder, _ = workplace
    ran(workplace, "more_data")
    other = tmp_path / "other.txt"
    other.write_text("One sentence.\n")
    with flagsaver.flagsaver(text=str(other)), pytest.raises(
            InputError, match="--work_dir=.* a different --scale, --text"):
        ran(workplace, "more_data")


def test_the_speed_of_a_step_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run_script", RUN_SCRIPT)
    with flagsaver.flagsaver():
        FLAGS(["test", "--scale=tiny", f"--work_dir={tmp_path}"])
        assert paper.step_seconds("base") > 0
        assert paper.step_seconds("base") == paper.step_seconds("base")
