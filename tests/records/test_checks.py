"""What is checked of records, and of the summaries beside them, before a long run.

    python -m pytest tests/records/test_checks.py
"""

import json
import os
import struct

import pytest

from albert_tf.errors import InputError
from albert_tf.records import checks
from albert_tf.records.spec import Feature, FeatureSpec, pretraining_spec
from tests.records.examples import S, SPEC, example, flip, frame_size, write
from tests.helpers import serialized


# Files that fit and that do not.


def refused(path, named, spec=SPEC):
    with pytest.raises(InputError, match=f"^{path}, record 1: .*{named}"):
        checks.check_files([path], spec)


def test_another_length(tmp_path, path):
    checks.check_files([str(path)], SPEC)
    other = write(tmp_path / "x", [example(0, 8, 3)], pretraining_spec(8, 3))
    refused(other, "set max_seq_length to 8")
    slots = write(tmp_path / "y", [example(0, S, 3)], pretraining_spec(S, 3))
    refused(slots, "masked_lm_positions has 3 int64 values instead of 2")
    # How many slots unmasked records have does not matter.
    checks.check_files([slots, str(path)], checks.unmasked_spec(SPEC))


def test_records_that_do_not_fit(tmp_path):
    other = FeatureSpec((Feature("input_ids", "int64", (S,)),))
    refused(write(tmp_path / "x", [{"input_ids": [1] * S}], other),
            "input_mask has 0 int64 values")
    refused(write(tmp_path / "y", [b"\xff\xff\xff"]), "not a tf.train.Ex")


# Errors that show while training.


def error_of_tf_data(paths):
    import tensorflow as tf

    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as caught:
        for _ in tf.data.TFRecordDataset(paths).batch(2).map(SPEC.parse):
            continue
    return caught.value


@pytest.mark.parametrize("damage, where", [
    (lambda path: flip(path, struct.calcsize("<QI") + frame_size(path) + 9),
     ", record 2:"),
    (lambda path: flip(path, frame_size(path)), ", record 2:"),
    (lambda path: os.truncate(path, 2 * frame_size(path) - 9), ", record 2:"),
    (os.remove, ":")], ids=["content", "header", "cut", "gone"])
def test_explain_damage(tmp_path, path, damage, where):
    paths = [write(tmp_path / "good"), str(path)]
    damage(path)
    explanation = checks.explain_read_error(paths, SPEC, error_of_tf_data(paths))
    assert isinstance(explanation, InputError)
    assert str(explanation).startswith(f"{path}{where}")


@pytest.mark.parametrize("content", [
    b"\xff\xff", b"", serialized(pretraining_spec(8, 2), example(1, length=8))])
def test_explain_a_later_record_that_does_not_fit(tmp_path, content):
    path = write(tmp_path / "mixed", [0, content])
    checks.check_files([path], SPEC)  # only looks at the first record
    explanation = checks.explain_read_error([path], SPEC, error_of_tf_data([path]))
    assert str(explanation).startswith(f"{path}, record 2:")


def test_other_errors_are_not_explained(path):
    import tensorflow as tf

    data_loss = tf.errors.DataLossError(None, None, "corrupted record at 0")
    assert checks.explain_read_error([str(path)], SPEC, data_loss) is None
    flip(path, 40)
    elsewhere = tf.errors.InvalidArgumentError(None, None, "indices[0] = 5 is not in")
    for error in (elsewhere, ValueError("x")):
        assert checks.explain_read_error([str(path)], SPEC, error) is None
    assert checks.explain_read_error([str(path)], SPEC, data_loss)


# Masked or not.


def sequences(*weights):
    """Records of 2 7 7 3, masked where a weight is above 0."""
    return [{**example(0), "input_ids": [2, 7, 7, 3, 0, 0],
             "masked_lm_weights": [weight, 0]} for weight in weights]


def test_records_are_masked_or_not(tmp_path):
    spec = checks.unmasked_spec(SPEC)
    unmasked, masked, one = (
        write(tmp_path / name, sequences(*weights))
        for name, weights in (("u", [0, 0]), ("m", [1]), ("o", [0, 0, 1])))
    checks.check_masks([unmasked], spec, "--dynamic_masking")
    # A record without a mask among others makes no unmasked file.
    checks.check_masks([masked, one], SPEC)
    with pytest.raises(InputError, match="/u: .* give --dynamic_masking"):
        checks.check_masks([one, unmasked], SPEC)
    for path in (masked, one):
        with pytest.raises(InputError, match=f"{path}: .*leave out --dynamic_masking"):
            checks.check_masks([unmasked, path], spec, "--dynamic_masking")


IDS = {"cls": 2, "sep": 3, "mask": 4}


@pytest.mark.parametrize("summary, given, expected", [
    (IDS, (None, None, None), IDS),
    ({**IDS, "cls": 9}, (2, None, 7), {**IDS, "mask": 7}),
    (None, (2, 3, 4), IDS),
    (None, (2, None, None), "--cls_id, --sep_id and --mask_id .*x.* are 2, None, None"),
    (None, (2, 3, 40), "vocab_size 40, .* are 2, 3, 40"),
    (None, (2, 3, 2), "--mask_id .* are 2, 3, 2"),
    ({**IDS, "cls": 5}, (None, None, None), "the id 2 for .CLS., but --cls_id is 5"),
    ({**IDS, "sep": 5}, (None, None, None), "the id 3 for .SEP., but --sep_id is 5")])
def test_special_ids_come_from_the_summary_and_flags_go_before(
        tmp_path, summary, given, expected):
    path = write(tmp_path / "x", sequences(0))
    arguments = ([path], checks.unmasked_spec(SPEC), 40, summary,
                 dict(zip(("cls_id", "sep_id", "mask_id"), given)))
    if isinstance(expected, dict):
        assert checks.special_ids(*arguments) == expected
    else:
        with pytest.raises(InputError, match=expected):
            checks.special_ids(*arguments)


# The summaries beside the records.


def summaries(*folders):
    return checks.summaries_of([str(folder / "a") for folder in folders])


@pytest.fixture(name="made")
def _made(tmp_path):
    """Makes a folder with a summary of a record file."""
    def make(name, instances=None, **vocabulary):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "summary-a.json").write_text(json.dumps({
            "settings": {"output_files": ["old/a"], **(
                {"instances": instances} if instances else {})},
            "vocabulary": {"kind": "WordPiece", "size": 3, **vocabulary}}))
        return folder
    return make


def test_sentence_objective_is_what_the_records_were_made_for(made):
    objective = checks.sentence_objective
    assert objective([]) == "order" and objective([], "none") == "none"
    # Where a summary says nothing of it, the flag decides.
    assert objective(summaries(made("unknown")), "none") == "none"
    following, none = (made(name, {"sentence_objective": name})
                       for name in ("next", "none"))
    assert objective(summaries(none)) == objective(summaries(none), "none") == "none"
    with pytest.raises(InputError, match="--sentence_objective says order, .*a.json says n"):
        objective(summaries(following), "order")
    with pytest.raises(InputError, match="next/summary-a.json says next, .* says none;"):
        objective(summaries(following, none))


def test_vocabulary_of_records(made):
    def vocabulary(*folders, vocab_size=3):
        return checks.check_vocabulary(summaries(*folders), vocab_size)

    first = made("1", file="v.txt", sha256="1")
    assert vocabulary(first) == {
        "kind": "WordPiece", "file": "v.txt", "sha256": "1", "size": 3}
    assert checks.summaries_of([str(first / "b")]) == []
    more = {"kind": "WordPiece", "path": "/v.txt", "rules": {"clean": False}}
    other = made("5", file="v.txt", sha256="1", **more)
    assert vocabulary(other) == {"file": "v.txt", "sha256": "1", "size": 3, **more}
    with pytest.raises(InputError, match="5/summary-a.* differ in rules"):
        vocabulary(first, other)
    ids = {"cls": 0, "sep": 1, "mask": 2}
    same = made("2", file="renamed.txt", sha256="1", special_ids=ids)
    for folders in ((first, same), (same, first)):
        assert vocabulary(*folders)["special_ids"] == ids
    with pytest.raises(InputError, match="3/summary-a.* differ in sha256"):
        vocabulary(first, made("3", file="v.txt", sha256="2"))
    with pytest.raises(InputError, match="1/summary-a.json: .* 3 tokens, .*vocab_size is 4"):
        vocabulary(first, vocab_size=4)
