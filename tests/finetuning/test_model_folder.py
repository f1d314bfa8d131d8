"""What a fine-tuned model's folder keeps of its task and vocabulary."""

import json

import pytest

from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.errors import InputError
from albert_tf.finetuning import model_folder
from albert_tf.tokenization import tokenizer

SETTINGS = dict(task="cola", labels=["0", "1"], vocabulary_flag="vocab_file",
                flags={"max_seq_length": 8})


@pytest.fixture(name="vocabulary")
def _vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\na\n")
    return path


@pytest.fixture(name="folder")
def _folder(tmp_path):
    return tmp_path / "model"


def keep(folder, vocabulary, **changes):
    model_folder.keep(str(folder), {**SETTINGS, **changes}, str(vocabulary))


def with_model(folder):
    (folder / "model.ckpt-best.index").write_bytes(b"")


def test_task_is_read_as_it_was_kept(folder, vocabulary):
    assert model_vocabulary.task_settings(str(folder)) == {}
    keep(folder, vocabulary, labels=["好", "坏"])
    kept = model_vocabulary.task_settings(str(folder))
    assert kept["labels"] == ["好", "坏"] and kept["flags"] == {"max_seq_length": 8}
    assert "好" in (folder / "task.json").read_text(encoding="utf-8")
    assert (folder / "vocab.txt").read_text() == "[PAD]\na\n"
    assert kept["vocabulary"] == tokenizer.vocabulary_of(str(vocabulary))
    # What is made from a model may have no vocabulary.
    made = {"task": "rte", "flags": {"doc_stride": 9}}
    (folder / "task.json").write_text(json.dumps(made))
    assert model_vocabulary.task_settings(str(folder)) == made
    assert not model_vocabulary.kept_beside(str(folder))


def test_folder_with_a_model_takes_no_other_task(folder, vocabulary):
    keep(folder, vocabulary)
    with_model(folder)
    keep(folder, vocabulary, flags={"max_seq_length": 9})  # No other task.
    for changes, message in (
            (dict(task="rte"), "different task .task: 'cola' there, 'rte' in this"),
            (dict(labels=["1", "0"]), r"labels: \['0', '1'\] there, \['1', '0'\] in")):
        with pytest.raises(InputError, match=message):
            keep(folder, vocabulary, **changes)
    vocabulary.write_text("[PAD]\nb\n")
    with pytest.raises(InputError, match="vocab.txt .*model, which"):
        keep(folder, vocabulary)
    assert (folder / "vocab.txt").read_text() == "[PAD]\na\n"
    assert model_vocabulary.task_settings(str(folder))["flags"] == {"max_seq_length": 9}


def test_tags_are_no_labels_of_texts(folder, vocabulary):
    """Though both heads have the same variables, and may have the same labels."""
    keep(folder, vocabulary)
    with_model(folder)
    settings = {"task": "mine", "labels": ["0", "1"]}
    model_folder.check(str(folder), settings, False)
    settings["head"] = "token_classification"
    with pytest.raises(InputError, match="head: 'classification' there"):
        model_folder.check(str(folder), settings, False)


def test_run_that_came_to_nothing_does_not_tie_the_folder(folder, vocabulary):
    keep(folder, vocabulary)
    vocabulary.write_text("[PAD]\nb\n")
    keep(folder, vocabulary, task="rte")
    assert model_vocabulary.task_settings(str(folder))["task"] == "rte"
    assert (folder / "vocab.txt").read_text() == "[PAD]\nb\n"


def kept_as(**changes):
    return json.dumps({"vocabulary": {"file": "v"}, "flags": {}, **changes})


@pytest.mark.parametrize("content, message", [
    ("{", "not JSON"), ("[]", "object"),
    (kept_as(flags={"max_seq_length": -1}), "max_seq_length is -1"),
    (kept_as(flags={"max_answer_length": 1e20}), "max_answer_length is 1e"),
    (kept_as(flags={"doc_stride": None}), "doc_stride is None"),
    (kept_as(labels=["a", float("inf")]), "labels"),
    (kept_as(labels={"a": 1}), "labels"),
    *((text, "") for text in (
        kept_as(flags=[], vocabulary_flag="vocab_file"),
        '{"vocabulary": {"sha256": "a"}}', kept_as(vocabulary_flag="x"),
        kept_as(vocabulary="a", vocabulary_flag="vocab_file")))])
def test_damaged_task(content, message, tmp_path):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(InputError, match=f"task.json.*{message}"):
        model_vocabulary.task_settings(str(tmp_path))


# ---- the vocabulary of a pretrained model ----------------------------------


def test_vocabulary_is_found_from_a_folder_and_from_its_checkpoints(folder):
    """And pretraining goes on only with records of the same."""
    kept = {"file": "30k.model", "sha256": "12", "size": 3}
    other = {**kept, "file": "b.model", "sha256": "2"}
    model_vocabulary.keep(str(folder), kept)
    model_vocabulary.check_records(str(folder), other)  # There is no model yet.
    with_model(folder)
    for name in ("", "/", "/model.ckpt-best", "/model.ckpt-best.index",
                 "/model.ckpt-best.data-00000-of-00001"):
        assert model_vocabulary.kept_beside(f"{folder}{name}") == kept, name
    # A folder beside it or below it is another's.
    (folder / "below").mkdir()
    for another in folder / "below", folder.parent:
        assert not model_vocabulary.kept_beside(str(another))
    model_vocabulary.check_records(str(folder), {**kept, "file": "renamed"})
    with pytest.raises(InputError, match="b.model is not .* with 30k.model"):
        model_vocabulary.check_records(str(folder), other)


def test_task_goes_before_the_vocabulary_of_pretraining(folder, vocabulary):
    keep(folder, vocabulary)
    model_vocabulary.keep(str(folder), {"file": "old", "sha256": "12"})
    assert model_vocabulary.kept_beside(str(folder)) == {
        **tokenizer.vocabulary_of(str(vocabulary)), "kind": "WordPiece",
        "do_lower_case": True}


def test_vocabulary_without_a_digest_is_not_compared(vocabulary):
    given = tokenizer.vocabulary_of(str(vocabulary))
    model_vocabulary.check({"file": "other"}, given, "model")
    model_vocabulary.check({**given, "file": "renamed"}, given, "model")
    with pytest.raises(InputError, match=r"made with other; give that"):
        model_vocabulary.check({"file": "other", "sha256": "1"}, given, "model")
