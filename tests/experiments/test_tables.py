"""The tables' arithmetic, names of runs, and wrong inputs; nothing is trained."""

import pathlib
import re

import pytest
from absl import flags
from absl.testing import flagsaver

from albert_tf import text_files
from albert_tf.errors import InputError
from benchmarks import runs
from experiments import rows, tables
from experiments.paper import EXPERIMENTS
from experiments.scales import PAPER, SMALL, Row, config_of, run_name
from experiments.tables import Experiment
from tests.helpers import ROOT

FLAGS = flags.FLAGS


@pytest.fixture(autouse=True)
def _flags(tmp_path):
    with flagsaver.flagsaver():
        FLAGS(["test", f"--work_dir={tmp_path}/work",
               f"--results_dir={tmp_path}/results"])
        yield


def results(**scores):
    """Those of two rows: name → scores of its seeds."""
    return {"command": "python -m x", "commit": "abc", "rows": [
        {"row": row, "seed": seed, "steps": 4000, "core_seconds": 1800.0,
         "scores": {"average": value}}
        for row, values in scores.items() for seed, value in enumerate(values, 1)]}


TABLE = Experiment("x", [Row("a", paper={"average": 79.0}),
                              Row("b", paper={"average": 80.1}), Row("c")],
                   {"b is better": lambda means: (
                       means["b"]["average"] > means["a"]["average"]),
                    "c is best": lambda means: means["c"]["average"] > 90})


def test_a_table_has_means_half_ranges_and_the_papers_numbers():
    """Orders and verdicts are of the seeds that all rows have."""
    text = TABLE.markdown(results(a=[50.0, 40.0], b=[49.0]))
    assert "|  | average | paper: average |\n| --- | --- | --- |\n" in text
    assert "| a | 45.0 ± 5.0 | 79.0 |\n| b | 49.0 | 80.1 |" in text
    assert "Order by average, paper: b > a." in text
    assert "Order by average, ours: a > b." in text
    assert "- b is better: not reproduced." in text
    assert "- c is best: not measured yet." in text
    assert "seeds 1, 2; 4,000 steps; pretraining took 1.5 core-hours" in text
    assert "; not run yet: c." in text


def test_a_trial_of_another_length_leaves_the_table_as_it_is(tmp_path, monkeypatch):
    """And its command gives what it has."""
    monkeypatch.setattr(tables, "check", lambda experiment: None)
    table = Experiment("x", [Row("a")], draw=None, measure=lambda row, seed, *_: {
        "steps": rows.steps_of(row, seed), "scores": {}})
    table.run()
    path = tmp_path / "results" / "x.json"
    before = path.read_bytes()
    FLAGS(["test", "--num_train_steps=7", "--finetune=", "--run_flags=dtype=float32,seed=2",
           f"--results_dir={tmp_path}/results"])
    table.run()
    assert path.read_bytes() == before
    trial = text_files.read_object(str(tmp_path / "results" / "x_7steps.json"))
    assert trial["command"] == (
        "python -m experiments.paper x --scale=small --num_train_steps=7 --finetune= "
        "--run_flags=dtype=float32,seed=2")
    assert trial["rows"][0]["steps"] == 7


def test_the_paper_scale_has_the_papers_models_and_settings():
    for row in EXPERIMENTS["sentence_objectives"].rows:
        assert config_of(row, PAPER).hidden_size == 768
    assert (PAPER.batches["train_batch_size"], PAPER.batches["learning_rate"],
            PAPER.steps, round(PAPER.warmup * PAPER.steps)) == (
                4096, 0.00176, 125_000, 3125)


def test_the_small_scale_has_the_papers_proportions():
    rows_of = EXPERIMENTS["embedding_size"].rows
    assert [config_of(row, SMALL).embedding_size for row in rows_of] == 2 * [
        16, 32, 64, 128]
    bert = config_of(Row("", "bert-xlarge"), SMALL)
    assert bert.embedding_size == bert.hidden_size and bert.parameter_sharing == "none"
    assert config_of(Row("", "xxlarge"), SMALL).embedding_size == 32


def test_the_same_row_has_the_same_run_whatever_a_table_calls_it():
    def names(experiment):
        return {rows.named(row, 1)["run"] for row in experiment.rows}

    sizes = names(EXPERIMENTS["embedding_size"])
    assert len(sizes) == 8
    assert len(sizes & names(EXPERIMENTS["model_sizes"])) == 2  # ALBERT-base, BERT-base.
    assert names(EXPERIMENTS["dropout"]) & names(EXPERIMENTS["model_sizes"])
    # Of a scale of its own.
    sharing = names(EXPERIMENTS["parameter_sharing"])
    assert len(sharing) == 8 and not sharing & sizes
    kinds = [Row(""), Row("", sentence_objective="next"), Row("", text=0.25),
             Row("", config={"hidden_dropout_prob": 0.1})]
    assert len({run_name(row, seed, SMALL, steps) for row in kinds
                for seed in (1, 2) for steps in (10, 20)}) == 16


def test_held_out_records_have_the_papers_masks_whatever_is_trained_on(monkeypatch):
    made = {}
    monkeypatch.setattr(runs, "vocabulary", lambda *_: "spm.model")
    monkeypatch.setattr(runs, "records", lambda path, **given: made.update({path: given}))
    row = Row("", scale="longer")
    rows.records(row)
    rows.records(row, "articles")
    (_, trained), (_, heldout) = made.items()
    assert (trained["masked_lm_prob"], trained["dupe_factor"]) == (0.4, 5)
    assert (heldout["masked_lm_prob"], heldout["dupe_factor"]) == (0.15, 1)
    assert trained["max_predictions_per_seq"] == heldout["max_predictions_per_seq"]


def test_as_long_is_by_what_both_took(monkeypatch):
    monkeypatch.setattr(rows, "train", lambda row, seed: row.size)
    costs = {"bert-large": 300.0, "xxlarge": 960.0}
    monkeypatch.setattr(runs, "cost", lambda folder: {"core_seconds": costs[folder]})
    row = Row("", "bert-large", as_long_as="xxlarge")
    assert rows.steps_of(row, 1) == 12_800
    monkeypatch.setattr(runs, "cost", lambda folder: {})  # Broken off.
    assert 4000 < rows.steps_of(row, 1) < 12_000
    assert rows.steps_of(Row(""), 1) == 4000


def test_a_quarter_of_the_text_is_every_fourth_article(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"First {n}.\nSecond {n}.\n\n" for n in range(10)))
    (tmp_path / "work").mkdir()
    with flagsaver.flagsaver(text=str(text)):
        assert pathlib.Path(rows._text(0.25)).read_text() == "".join(
            f"First {n}.\nSecond {n}.\n\n" for n in (0, 4, 8))
        assert rows._text(1.0) == str(text)


def test_counts_are_the_papers():
    EXPERIMENTS["parameter_counts"].run()
    found = pathlib.Path(tables.results_path("parameter_counts", "small"))
    assert '"with pooler": 11.683584' in found.read_text()
    assert ": reproduced." in found.with_suffix(".md").read_text()


@pytest.mark.parametrize("given, message", [
    (["--finetune=cola"], "--finetune: 'cola' is not among the tasks of --scale=small"),
    (["--row=none", "--row=XYZ"],
     "--row: 'XYZ' is not a row of sentence_objectives; its rows are none; NSP; SOP"),
    (["--run_flags=tpu"], "--run_flags: 'tpu' is not of the form NAME=VALUE"),
    (["--text=none.txt"], "--text.*none.txt"),
    (["--data_dir=nowhere"], "--data_dir=nowhere: nowhere/squad/.* is missing")])
def test_wrong_inputs_are_refused_before_anything_runs(
        tmp_path, monkeypatch, given, message):
    monkeypatch.setattr(runs, "run_script", lambda *_, **__: pytest.fail("ran"))
    text = tmp_path / "text.txt"
    text.write_text("A sentence.\n")
    FLAGS(["test", f"--text={text}", f"--heldout_text={text}",
           f"--work_dir={tmp_path}/work", f"--results_dir={tmp_path}/results", *given])
    with pytest.raises(InputError, match=message):
        EXPERIMENTS["sentence_objectives"].run()


def test_the_page_links_the_tables_and_repeats_their_verdicts():
    text = (ROOT / "docs" / "PAPER.md").read_text(encoding="utf-8")
    for name, experiment in EXPERIMENTS.items():
        path = pathlib.Path(FLAGS["results_dir"].default) / f"{name}.json"
        table = path.with_suffix(".md").read_text(encoding="utf-8")
        assert experiment.markdown(text_files.read_object(str(path))) == table
        assert f"(../experiments/results/{name}.md)" in text
        for claim, verdict in re.findall(r"^- (.*): ((?:not )?reproduced)\.$", table, re.M):
            assert f"| {claim} | {verdict} |" in text, name
