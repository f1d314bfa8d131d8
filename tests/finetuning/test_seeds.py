"""Several runs of a task: each by its seed, and the best kept."""

import json
import math

import numpy as np
import pytest

from albert_tf.checkpoints.folders import RUN_FILE
from albert_tf.errors import DivergenceError, InputError
from albert_tf.finetuning import course
from tests.finetuning.test_task import MadeUp
from tests.tiny_run import assert_equal_tensors, stored

pytestmark = [pytest.mark.usefixtures("eager", "without_curves"), pytest.mark.long]


class Scored(MadeUp):
    """Scores by `scores`, one for each evaluation in turn; fails where it is None."""

    def __init__(self, folder, scores=()):
        super().__init__(folder)
        self.scores, self.evaluations = list(scores), 0

    def score(self, data, outputs, table):
        self.last = self.scores.pop(0) if self.scores else 0.5
        self.evaluations += 1
        return {"accuracy": self.last or 0.0}

    def failure(self, data, outputs, table):
        return "" if self.last is not None else "all 5 predictions are 'a'"


def summary(folder):
    return json.loads((folder / "seeds.json").read_text())


def check_equal(folder, other, name):
    assert_equal_tensors(*(stored(each, name, "model") for each in (folder, other)),
                         rtol=1e-5, atol=1e-7)


# Two evaluations for each run, at steps 2 and 4.
SCORES = (0.1, 0.2, 0.3, 0.9, 0.4, 0.6)


@pytest.fixture(scope="module", name="three")
def _three(tmp_path_factory, eager, without_curves):
    return Scored(tmp_path_factory.mktemp("seeds") / "three", SCORES).run(
        "train", "eval", "predict", num_seeds=3)


def test_every_seed_has_its_folder_and_the_best_is_there_above(three):
    found = summary(three.folder)
    assert [run["name"] for run in found["runs"]] == [
        "seed-12345", "seed-12346", "seed-12347"]
    assert [run["step"] for run in found["runs"]] == [4, 4, 4]
    assert (found["lowest"], found["median"], found["best"]) == (0.2, 0.6, 0.9)
    assert found["best_run"] == "seed-12346"
    assert math.isclose(found["standard_deviation"], np.std([0.2, 0.6, 0.9], ddof=1))
    best = three.folder / "seed-12346"
    check_equal(three.folder, best, "model.ckpt-best")
    for folder in three.folder, best:
        assert json.loads((folder / "options.json").read_text())["random_seed"] == 12346
        assert json.loads((folder / "task.json").read_text())["task"] == "made-up"
    # Predicted once, by the best.
    assert three.writes == ["dev", "dev", "dev", "dev", "test"]
    assert three.written["test"][0] == 4


def test_a_seed_among_others_trains_as_it_does_alone(three, tmp_path):
    alone = Scored(tmp_path / "alone", (0.1, 0.2)).run(
        "train", "eval", random_seed=12347)
    check_equal(alone.folder, three.folder / "seed-12347", "model.ckpt-4")


def test_finished_seeds_are_not_run_again(three):
    again = Scored(three.folder).run("train", "eval", num_seeds=3)
    assert again.evaluations == 1  # The best, evaluated.
    with pytest.raises(InputError, match="different learning_rate: it was 0.01, and is"):
        Scored(three.folder).run("train", "eval", num_seeds=3, learning_rate=0.02)


@pytest.mark.parametrize("split, message", [
    ("train", "seed-12345 is of a different train_data"),
    ("dev", "seed-12345 is of a different evaluation_set")])
def test_finished_seeds_are_not_compared_with_those_of_other_data(split, message, three):
    class Other(Scored):
        def sources(self, name, data):
            return {f"{name} data": "other"} if name == split else super().sources(
                name, data)

    with pytest.raises(InputError, match=message):
        Other(three.folder).run("train", "eval", num_seeds=3)


def test_the_folder_above_is_the_best_model(three):
    task = Scored(three.folder).run("predict")
    np.testing.assert_allclose(task.written["test"][1], three.written["test"][1],
                               atol=1e-6)
    with pytest.raises(InputError, match="has the runs of several seeds"):
        Scored(three.folder).run("train", "eval")


def test_a_model_of_one_run_is_not_overwritten_by_several(tmp_path):
    Scored(tmp_path / "one").run("train")
    with pytest.raises(InputError, match="has the model of a single run"):
        Scored(tmp_path / "one").run("train", "eval", num_seeds=2)


def test_a_seed_that_diverges_does_not_count(tmp_path, caplog):
    class Diverging(Scored):
        def score(self, data, outputs, table):
            if super().score(data, outputs, table)["accuracy"] < 0:
                raise DivergenceError("the loss is infinite.")
            return {"accuracy": self.last}

    task = Diverging(tmp_path / "run", (-1, 0.3, 0.4)).run("train", "eval", num_seeds=2)
    found = summary(task.folder)
    assert [run["failure"] for run in found["runs"]] == ["the loss is infinite.", ""]
    assert (found["best"], found["without_result"]) == (0.4, 1)
    assert "seed-12345 failed" in caplog.text
    with pytest.raises(InputError, match="all 2 runs failed.*lower --learning_rate"):
        Diverging(tmp_path / "all", [-1] * 2).run("train", "eval", num_seeds=2)
    assert not (tmp_path / "all" / "model.ckpt-best.index").exists()


@pytest.mark.parametrize("few, message", [
    (2, "At step 2 all 5 predictions are 'a'. The model does not seem to learn. A lower"),
    (10, "At step 2 all 5 predictions are 'a'. Train for more steps.")])
def test_a_failure_is_told(
        few, message, tmp_path, caplog, monkeypatch):
    """A few steps are too early for advice, and without training it would be wrong."""
    monkeypatch.setattr(course, "_FEW_STEPS", few)
    Scored(tmp_path / "run", [None] * 3).run("train", "eval")
    assert message in caplog.text
    assert few == 2 or "--learning_rate" not in caplog.text
    caplog.clear()
    Scored(tmp_path / "run", [None] * 3).run("eval")
    assert "At step 2 all 5 predictions are 'a'. If you did not expect" in caplog.text
    assert "--learning_rate" not in caplog.text


@pytest.mark.parametrize("content", ["", '{"runs": [{}]}'])
def test_a_damaged_list_of_runs(content, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILE).write_text("{}")
    (tmp_path / "run" / "seeds.json").write_text(content)
    with pytest.raises(InputError, match="seeds.json"):
        Scored(tmp_path / "run").run("train", "eval", num_seeds=2)
