"""Labels of a model and of a task: their order, and characters that nobody sees."""

import re

import pytest

from albert_tf.checkpoints import labels
from albert_tf.checkpoints.checkpoint import Checkpoint, Report
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError


@pytest.mark.parametrize("theirs, ours, expected", [
    (["pos", "neg"], ["pos", "neg"], None),
    (["pos", "neg"], ["neg", "pos"], [1, 0]),
    (["O", "B-X", "I-X"], ["O", "I-X", "B-X"], [0, 2, 1]),
    # Hugging Face's MNLI, in capitals, for the task's order.
    (["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
     ["contradiction", "entailment", "neutral"], [2, 0, 1]),
    (["Not entailment", "entailment"], ["entailment", "not_entailment"], [1, 0]),
    (["\u200bneg", "pos"], ["pos", "neg"], [1, 0]),
    # Tags in another spelling.
    (["O", "B-PER", "I-PER", "B-b"], ["B_b", "b-per", "I_PER", "o"], [3, 1, 2, 0]),
    # Tags that only their case tells apart are matched exactly.
    (["b", "B", "o"], ["B", "o", "b"], [1, 2, 0])])
def test_labels_are_matched_by_name(theirs, ours, expected, caplog):
    with caplog.at_level("INFO"):
        assert labels.order(tuple(theirs), tuple(ours), "the-model") == expected
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(caplog.messages) == bool(expected)


@pytest.mark.parametrize("theirs, ours, expected, named", [
    (("LABEL_0", "LABEL_1"), ("no", "yes"), None, "no, yes.*--labels"),
    ((), ("no", "yes"), None, "no, yes.*--labels"),
    (("NEGATIVE", "POSITIVE"), ("0", "1"), None, "NEGATIVE is taken for 0, POSITIVE"),
    (("a", "b", "c"), ("c", "d", "a"), [2, 1, 0], "b is taken for d")])
def test_doubtful_labels_are_warned_of(theirs, ours, expected, named, caplog):
    assert labels.order(theirs, ours, "the-model") == expected
    assert re.search(named, caplog.text)


@pytest.mark.parametrize("text, expected", [
    ("\ufeffpos", "pos"), ("pos\u200b", "pos"), (" pos\u200e \u200b", "pos"),
    ("po\u00ads", "pos"), ("\u200cpos\u200d", "pos"), ("not good", "not good"),
    # What joins letters and emoji, and what tells flags apart, is part of the label.
    ("می\u200cشود", "می\u200cشود"), ("👩\u200d🚀", "👩\u200d🚀"),
    ("🏴\U000e0067\U000e0062\U000e0065\U000e007f",
     "🏴\U000e0067\U000e0062\U000e0065\U000e007f")])
def test_invisible_characters_are_removed(text, expected):
    assert labels.cleaned(text) == expected


def model(head="classification", width=2, theirs=(), problem_type=""):
    return Checkpoint("hf", AlbertConfig(), {}, {head: width}, Report("folder"), theirs,
                      problem_type)


def test_outputs_without_names_get_those_of_the_flag():
    for kind in (model(), model(theirs=("LABEL_0", "LABEL_1")),
                 model("token_classification"), model(theirs=("no", "yes"))):
        assert labels.relabelled(kind, ["no", "\u200byes"]).labels == ("no", "yes")
        assert labels.relabelled(kind, []) is kind
    one = model(width=1, problem_type="multi_label_classification")
    assert labels.relabelled(one, ["dear"]).labels == ("dear",)


@pytest.mark.parametrize("kind, given, named", [
    (model(theirs=("no", "yes")), "yes,no", "labels of folder are no, yes"),
    (model(), "a,b,c", "2 outputs"), (model(), "a,a", "2 outputs"),
    (model(), "a,", "2 outputs"), (model(width=1), "a", "no outputs"),
    (model("spans"), "a,b", "no outputs")])
def test_names_that_do_not_fit_are_refused(kind, given, named):
    with pytest.raises(InputError, match=f"--labels={given}: .*{named}"):
        labels.relabelled(kind, given.split(","))
