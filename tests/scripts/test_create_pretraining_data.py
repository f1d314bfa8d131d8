"""From text to records by the script's two ways on one machine: files, wrong inputs."""

import json
import logging
import os
import re

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import local, release
from albert_tf.pretraining_data.options import InstanceOptions, shard_names
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import read_records
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.commands import run_commands
from tests.pretraining_data.data_creation import (
    SPM_MODEL, TEXT, options_of, written)


@pytest.fixture(scope="module")
def tokenizer():
    return FullTokenizer(spm_model_file=SPM_MODEL)


@pytest.fixture(name="create", params=["local", "release"])
def create_(request):
    """The script's way without and with --reproduce_release."""
    return dict(local=local, release=release)[request.param].create


def test_outputs_are_filled_evenly_with_a_summary_beside(tmp_path, tokenizer, create):
    shards = shard_names("data/a.tfrecord", 2)
    options = options_of(tmp_path, outputs=shards)
    summary = create(options, tokenizer)
    counts = [sum(1 for _ in read_records(path)) for path in options.output_files]
    assert sum(counts) == summary["instances"] and abs(counts[0] - counts[1]) <= 1
    assert sorted(os.listdir(tmp_path / "data")) == [
        "a.tfrecord-00000-of-00002", "a.tfrecord-00001-of-00002",
        "summary-a.tfrecord.json"]
    with pytest.raises(InputError, match="a.tfrecord-00000-of-00002 is a shard from "):
        create(options_of(tmp_path, outputs=shard_names("data/a.tfrecord", 3)), tokenizer)
    stored = json.loads((tmp_path / "data" / "summary-a.tfrecord.json").read_text())
    assert stored["text"]["documents"] == 3 and stored["text"]["sentences"] == 6
    assert stored["text"]["single_sentence_documents"] == 1
    assert stored["settings"]["random_seed"] == 12345
    assert {k: stored[k] for k in ("instances", "label_1_share", "padding_share")} == {
        k: summary[k] for k in ("instances", "label_1_share", "padding_share")}


def test_summary_counts_agree_with_the_records(tmp_path, tokenizer, create):
    options = options_of(tmp_path, instances=InstanceOptions(
        max_seq_length=24, masking=MaskingOptions(max_predictions_per_seq=4)))
    summary = create(options, tokenizer)
    rows = [pretraining_spec(24, 4).parse_numpy(record)
            for record in read_records(options.output_files[0])]
    lengths = [int(row["input_mask"].sum()) for row in rows]
    assert summary["instances"] == len(rows)
    assert summary["length"] == {
        "mean": pytest.approx(np.mean(lengths)), "min": min(lengths),
        "median": sorted(lengths)[(len(rows) - 1) // 2], "max": max(lengths)}
    assert summary["padding_share"] == pytest.approx(
        1 - np.mean(lengths) / 24, abs=1e-6)
    assert summary["predicted_pieces"] == sum(
        row["masked_lm_weights"].sum() for row in rows)
    assert summary["label_1_share"] == pytest.approx(
        np.mean([row["next_sentence_labels"][0] for row in rows]), abs=1e-6)


@pytest.mark.parametrize("text, more, warned", [
    (TEXT, {}, ""),
    (TEXT.replace("\n\n", "\n"), {}, "Put a blank line between documents"),
    (TEXT.replace("\n\n", "\n"), {"instances": InstanceOptions(
        max_seq_length=24, random_next_sentence=True)}, "a blank line between documents"),
    ("文\n\n字\n\n語 a\n", {}, "vocabulary does not fit"),
    ("One.\n\nTwo.\n\nThree.\n", {}, "100.0% of the instances have label 1"),
    (TEXT, {"instances": InstanceOptions(max_seq_length=256)}, "fewer than the 38"),
])
def test_poor_data_warns_and_good_does_not(
        tmp_path, tokenizer, caplog, text, more, warned, create):
    with caplog.at_level(logging.WARNING):
        create(options_of(tmp_path, text, **more), tokenizer)
    assert warned in caplog.text if warned else not caplog.text


@pytest.mark.parametrize("text, more, message", [
    ("\n \n\n", {}, "text.txt: there is no sentence"),
    (b"Good.\n\nBad \xff here.\n", {}, "text.txt, line 3: byte 5 is not UTF-8"),
    (TEXT, {"outputs": [f"out{i}" for i in range(500)]}, "too few for 500 output"),
    ("One.\n\nTwo.\n", {"instances": InstanceOptions(single_segment="skip")},
     "gives 0 instances, .*6 chunks of a single sentence"),
    (TEXT, {"outputs": ["text.txt"]}, "text.txt is also an input"),
    (TEXT, {"outputs": ["."]}, "is a folder"),
    (TEXT, {"outputs": ["a", "a"]}, "or a file twice"),
    (TEXT, {"outputs": ["text.txt/out.tfrecord"]}, "--output_file: .* cannot be wr"),
])
def test_wrong_inputs(tmp_path, tokenizer, text, more, message, create):
    with pytest.raises(InputError, match=message):
        create(options_of(tmp_path, text, **more), tokenizer)
    # Nothing was written.
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["text.txt"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the commands gave, in a process that has not loaded TensorFlow."""
    folder = tmp_path_factory.mktemp("command")
    written(folder)
    commands = {}
    for name, more in (("right", ["--max_predictions_per_seq=4", "--do_permutation"]),
                       ("fast", ["--recipe=fast"])):
        commands[name] = [
            f"--input_file={folder}/te*.txt", f"--spm_model_file={SPM_MODEL}",
            "--max_seq_length=24", "--dupe_factor=2", *more,
            f"--output_file={folder}/new/{name}.tfrecord"]
    with run_commands("create_pretraining_data", commands, light=commands) as results:
        yield results


@pytest.mark.parametrize("name, predictions, least, says", [
    ("right", 8, 0, "3 documents, 6 sentences"),
    ("fast", 10, 0.2,
     "The recipe sets --masked_lm_prob=0.4, --max_predictions_per_seq=10.")])
def test_script_without_tensorflow_and_vocab_file(name, predictions, least, says, results):
    done = results.ok(name)
    assert not done["loaded"] and says in done["log"]
    spec = pretraining_spec(24, predictions)
    records = [spec.parse_numpy(each) for each in read_records(
        re.search(r"Wrote (.*.tfrecord), and", done["log"])[1])]
    assert len(records) > 4
    for record in records:
        predicted = record["masked_lm_weights"].sum()
        assert least * record["input_mask"].sum() < predicted <= predictions
