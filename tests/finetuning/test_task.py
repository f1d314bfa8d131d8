"""The course of fine-tuning, with a made-up task: what it does, resumes and refuses."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.finetuning.classification.head import Classification
from albert_tf.finetuning.common import ExampleSet
from albert_tf.finetuning.course import Course, fine_tune, read
from albert_tf.finetuning.task import FineTuningTask, Settings
from albert_tf.finetuning.classification.task import classification_spec
from albert_tf.training.options import RunOptions, Sequences, StepOptions
from tests import tiny_run

LENGTH = 8
SPEC = classification_spec(3, tiny_run.VOCAB_SIZE)
CONFIG = tiny_run.config(num_hidden_layers=1, hidden_dropout_prob=0.1)


pytestmark = pytest.mark.usefixtures("eager", "without_curves")


def make_rows(count, seed, longest=LENGTH):
    random = np.random.default_rng(seed)
    return [{"input_ids": random.integers(5, tiny_run.VOCAB_SIZE, size).tolist(),
             "input_mask": [1] * size, "segment_ids": [int(i > size // 2) for i in range(
                 size)], "label_ids": [n % 3]}
            for n, size in enumerate(random.integers(2, longest + 1, count))]


SETS = {"train": make_rows(8, 5), "dev": make_rows(5, 6), "test": make_rows(3, 7)}


class MadeUp(FineTuningTask):
    """Its examples are features already; it keeps what it is asked to write."""

    main_metric = "accuracy"

    def __init__(self, folder, prediction_split="test"):
        self.folder, self.prediction_split = folder, prediction_split
        self.written, self.exported = {}, []
        self.writes = []

    def read(self, where, split):
        assert where == f"where {split} is"
        return ExampleSet(SETS[split], notes=(f"{split} is made up.",))

    def spec(self, config):
        return SPEC

    def featurize(self, example, *, tokenizer, is_training):
        return [example]

    def sources(self, split, data):
        return {f"{split} data": str(len(data.examples))}

    def feature_settings(self, split):
        return {}

    def head(self, settings):
        return Classification(3)

    def score(self, data, outputs, table):
        assert len(data.examples) == table.num_rows == len(outputs["logits"])
        return {"accuracy": 0.5}

    def write(self, split, data, outputs, table, step, settings):
        self.writes.append(split)
        self.written[split] = step, np.stack(outputs["logits"])

    def export(self, model, metrics, step):
        assert step == 2
        self.exported.append((len(model.weights), dict(metrics)))

    def run(self, *wanted, random_seed=12345, task="made-up", **settings):
        """Does what is wanted of "train", "eval" and "predict"."""
        vocabulary = self.folder.parent / "vocab.txt"
        vocabulary.write_text("[PAD]\n")
        fine_tune(self, Settings(
            RunOptions(str(self.folder), num_train_steps=4, train_batch_size=4,
                       eval_batch_size=3, iterations_per_loop=2, save_checkpoints_steps=2,
                       step=StepOptions(random_seed=random_seed)),
            CONFIG, types.SimpleNamespace(keeps={}), str(vocabulary),
            lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
            {split: f"where {split} is" for split in SETS}, {"task": task},
            {split: str(self.folder / split) for split in SETS}, **{
                **{f"do_{what}": what in wanted for what in ("train", "eval", "predict")},
                **dict(learning_rate=0.01, num_warmup_steps=1, max_seq_length=LENGTH,
                       num_lengths=1, predict_batch_size=2, num_workers=1,
                       options={"made_up": True}), **settings}), self.export)
        return self


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory, eager, without_curves):
    """One that trained, evaluated and predicted."""
    task = MadeUp(tmp_path_factory.mktemp("made up") / "whole")
    return task.run("train", "eval", "predict", export_dir="exported")


def options_of(task):
    return json.loads((task.folder / "options.json").read_text())


def test_course_of_a_task(whole, caplog):
    # The best of equal ones is the first.
    assert whole.written["dev"][0] == whole.written["test"][0] == 2
    assert [len(logits) for _, logits in whole.written.values()] == [5, 3]
    [(count, metrics)] = whole.exported
    assert count and metrics["accuracy"] == 0.5
    assert options_of(whole)["num_warmup_steps"] == 1
    assert options_of(whole)["num_train_steps"] == 4 and options_of(whole)["made_up"]

    # The folder alone gives the same; a set that is there twice is predicted once.
    again = MadeUp(whole.folder).run("predict")
    np.testing.assert_allclose(again.written["test"][1], whole.written["test"][1],
                               atol=1e-6)
    assert again.writes == ["test"] and not again.exported
    assert "Reusing the features of 3 records" in caplog.text
    assert "test is made up." in caplog.text and "dev is made up" not in caplog.text
    same = MadeUp(whole.folder, prediction_split="dev").run("eval", "predict")
    assert same.writes == ["dev"]


def test_texts_that_are_cut_are_counted(whole, caplog):
    """From features that are reused, too; not where texts are read in windows."""
    class InWindows(MadeUp):
        in_windows = True

    full = sum(len(row["input_ids"]) == LENGTH for row in SETS["dev"])
    assert 0 < full < 5
    InWindows(whole.folder).run("eval")
    assert "is cut" not in caplog.text
    MadeUp(whole.folder).run("eval")
    assert (f"--max_seq_length={LENGTH}, dev: {full} of 5 texts fill all {LENGTH} tokens "
            "that the model reads; what is longer is cut.") in caplog.text


def test_lengths_to_train_with_do_not_depend_on_other_sets():
    sizes = {"train": (3, 20, 21), "dev": (9, 40), "test": (8,)}
    tables = {split: types.SimpleNamespace(lengths=np.array(lengths), num_rows=1)
              for split, lengths in sizes.items()}
    found = Course(None, types.SimpleNamespace(max_seq_length=64, num_lengths=2), {},
                   tables=tables).padded()
    assert [padded.lengths for padded in found.values()] == [
        (8, 24), (8, 24, 40), (8, 24, 40)]


def test_export_alone(whole):
    task = MadeUp(whole.folder).run(export_dir="exported")
    assert task.exported == [(whole.exported[0][0], {})] and not task.written


def test_memory_is_asked_for_before_a_model_is_built(tmp_path):
    class Unbuilt(MadeUp):
        model, vectors_of_piece = None, 7

    def refuse(**batches):
        asked.update(batches)
        raise InputError("too much")

    asked = {}
    with pytest.raises(InputError, match="too much"):
        Unbuilt(tmp_path / "run").run("train", "eval", "predict", check_memory=refuse)
    assert asked == {
        f"{flag}_batch_size": Sequences(
            np.mean([len(row["input_ids"]) for row in SETS[split]]), 1, vectors=7)
        for flag, split in (("train", "train"), ("eval", "dev"), ("predict", "test"))}


def test_other_training_data_in_a_finished_folder_are_warned_of(whole, caplog):
    class Other(MadeUp):
        def sources(self, split, data):
            return {f"{split} data": "other"}

    line = "train_data was {"
    MadeUp(whole.folder).run("train", "eval")
    assert line not in caplog.text
    Other(whole.folder).run("train", "eval")
    assert line in caplog.text and "nothing to train" in caplog.text


@pytest.mark.parametrize("wanted", ["train", "eval"])
def test_folder_of_another_task_is_refused_before_its_data_are_read(wanted, whole):
    task = MadeUp(whole.folder)
    task.read = None
    with pytest.raises(InputError, match="task: 'made-up' there, 'other' in this"):
        task.run(wanted, task="other")


def test_texts_in_two_sets_are_counted(caplog):
    task = types.SimpleNamespace(
        texts=("text",), evaluation_split="dev", prediction_split="test",
        read=lambda texts, split: ExampleSet([
            types.SimpleNamespace(text=text) for text in texts]))
    data = {"train": ["a", "b  c"], "dev": ["b c", "d"], "test": ["d", "a", "e"]}
    for changed in {}, {"dev": ["x"], "test": ["y"]}:
        read(task, types.SimpleNamespace(
            data=data | changed, do_train=True, do_eval=True, do_predict=True))
    [record] = caplog.records
    assert record.getMessage().startswith(
        "1 of 2 examples of dev and 2 of 3 examples of test have texts that are also in "
        "train or dev: ")
