"""Tagging: files, windows, scores as conlleval's, predictions.

    python -m pytest tests/finetuning/tagging/test_tagging.py
"""

import dataclasses
import json
import pickle
import random
import re
import tempfile
import types
from unittest import mock

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning.common import ExampleSet
from albert_tf.finetuning.tagging import scoring
from albert_tf.finetuning.tagging.task import Tagged, build_task
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests import row_tables
from tests.helpers import FIXTURES

IOB1 = ("EU NNP I-NP I-ORG\nrejects VBZ I-VP O\n"
        "New NNP I-NP I-LOC\nYork NNP I-NP I-LOC\n"
        "Oslo NNP I-NP B-LOC\n\n\n-DOCSTART- -X- -X- O\n\nPeter NNP I-NP I-PER\n")
IOB2 = (IOB1.replace("I-ORG", "B-ORG").replace("I-PER", "B-PER")
        .replace("New NNP I-NP I", "New NNP I-NP B"))
IOBES = (IOB2.replace("B-ORG", "S-ORG").replace("B-PER", "S-PER")
         .replace("York NNP I-NP I", "York NNP I-NP E")
         .replace("Oslo NNP I-NP B", "Oslo NNP I-NP S"))
CONLLU = """\
# sent_id = 1
# text = Aller du Nord, don't.
1\tAller\t_\tVERB\tV\tA=1,2|B=3\t_\t_\t_\t_
2-3\tdu\t_\t_\t_\t_\t_\t_\t_\t_
2\tde\t_\tADP\tP\t_\t_\t_\t_\t_
3\tle\t_\tDET\tD\t_\t_\t_\t_\t_
4\tNord\t_\tPROPN\tN\t_\t_\t_\t_\tSpaceAfter=No
5\t,\t_\tPUNCT\tF\t_\t_\t_\t_\t_
6-7\tdon't\t_\t_\t_\t_\t_\t_\t_\tX=1|SpaceAfter=No
6\tdo\t_\tAUX\tV\t_\t_\t_\t_\t_
7\tn't\t_\tPART\tR\t_\t_\t_\t_\t_
7.1\tgo\t_\tVERB\tV\t_\t_\t_\t_\t_
8\t.\t_\tPUNCT\tF\t_\t_\t_\t_\t_

1\tJa\t_\tINTJ\tI\t_\t_\t_\t_\t_
"""


@pytest.fixture(name="write")
def _write(tmp_path):
    def write(content, name="train.conll"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else "".join(
            json.dumps(row, ensure_ascii=False) + "\n" for row in content))
        return str(path)

    return write


def read(path, split="dev", tagged=True, **options):
    task = build_task(path, test_tags=tagged, **options)
    return task, task.read(path, split)


def spm():
    return FullTokenizer(spm_model_file=str(FIXTURES / "spm" / "en4k.model"))


# ---- reading ---------------------------------------------------------------


@pytest.mark.parametrize("text, scheme", [
    (IOB1, "iob1"), (IOB2, "iob2"), (IOBES, "iobes"),
    (re.sub(r"(\S+) \S+ \S+ (\S+)", r"\1\t\2", IOB2), "iob2"),
    (IOB2.replace(" ", "  \t ").replace("\n", "\r\n"), "iob2"),
    (IOB2.replace("\n\n", "\n\t\n"), "iob2")])
def test_columns_of_any_number_and_scheme(text, scheme, write):
    task, data = read(write(text))
    assert task.scheme == scheme and not data.notes
    assert [example.words for example in data.examples] == [
        ("EU", "rejects", "New", "York", "Oslo"), ("Peter",)]
    assert [[tuple(entity) for entity in scoring.entities(example.tags)]
            for example in data.examples] == [
        [(0, 1, "ORG"), (2, 4, "LOC"), (4, 5, "LOC")], [(0, 1, "PER")]]
    assert task.labels[0] == "O" and list(task.labels[1:]) == sorted(task.labels[1:])


@pytest.mark.parametrize("tags, scheme, entities", [
    ("B_PER I_PER O B_LOC", "iob2", [(0, 2, "PER"), (3, 4, "LOC")]),
    ("I_X I_X O I_Y B_Y", "iob1", [(0, 2, "X"), (3, 4, "Y"), (4, 5, "Y")]),
    ("b-per i-per o", "iob2", [(0, 2, "per")]),
    ("b_X i_X e_X O s_Y", "iobes", [(0, 3, "X"), (4, 5, "Y")]),
    ("B I E S B E", "iobes", [(0, 3, ""), (3, 4, ""), (4, 6, "")]),
    ("B-X I-X O S-Y S-Y", "iobes", [(0, 2, "X"), (3, 4, "Y"), (4, 5, "Y")]),
    ("S-X I-X O", "iobes", [(0, 1, "X"), (1, 2, "X")]),
    ("E-X B-X E-X", "iobes", [(0, 1, "X"), (1, 3, "X")]),
    # Case, number and gender mark no entities.
    ("O L U M L", "none", None), ("n-s v-s n-m", "none", None),
    ("NN VB_S O", "none", None), ("B:X I:X O", "none", None)])
def test_spellings_of_tags_are_read_and_written_back(tags, scheme, entities, write):
    text = "".join(f"w {tag}\n" for tag in tags.split())
    task, data = read(write(text))
    assert task.scheme == scheme
    assert set(task.labels) == set(tags.split())
    assert predicted(task, data.examples, "conll") == "".join(
        f"{line} {tag}\n" for line, tag in zip(text.splitlines(), tags.split())) + "\n"
    if entities is not None:
        assert [tuple(found) for found in scoring.entities(data.examples[0].tags)] == (
            entities)
        tags = [data.examples[0].tags]
        assert scoring.score(tags, tags, scheme).table()["all"] == (
            1, 1, 1, len(entities))


def test_another_spelling_than_the_models_is_read_as_it(write):
    task = build_task(write("a B_X\nb I_X\nc O\n"))
    data = task.read(write("d o\ne b-X\n", "dev.conll"), "dev")
    assert data.examples[0].tags == ("O", "B_X") and not data.notes
    with pytest.raises(InputError, match="the tag 'O-' is neither O nor"):
        task.read(write("d O-\n", "dev.conll"), "dev")
    data = task.read(write([{"text": "e f g", "entities": [[0, 3, "X"]]}], "dev.jsonl"),
                     "dev")
    assert data.examples[0].tags == ("B_X", "I_X", "O") and not data.notes
    assert predicted(task, data.examples, "conll") == "e B_X B_X\nf I_X I_X\ng O O\n\n"


def test_comments_in_columns(write):
    text = ("# id 1-2\tdomain=en\na _ _ B-X\n# _ _ O\n\n# id 3 domain=en\n"
            "# text = b #\n# _ _ O\n#c _ _ O\n\n# the end\n")
    task, data = read(write(text))
    assert [example.words for example in data.examples] == [("a", "#"), ("#", "#c")]
    assert re.search(r"4 line\(s\) begin with # and are comments \(line 1, 5, 6, 10\)",
                     data.notes[0])
    assert predicted(task, data.examples, "conll") == (
        "a _ _ B-X B-X\n# _ _ O O\n\n# _ _ O O\n#c _ _ O O\n\n")
    assert [json.loads(line)["comments"] for line in predicted(
        task, data.examples, "jsonl").splitlines()] == [
            ["# id 1-2\tdomain=en"], ["# id 3 domain=en", "# text = b #"]]
    # OntoNotes, GermEval.
    _, data = read(write("#begin document (a); part 0\nb O\nc B-X\n\n#end document\n"))
    assert data.examples[0].words == ("b", "c") and len(data.examples) == 1
    _, data = read(write("#\thttp://a.b [2009-10-17]\n1\tb\tO\n2\tc\tB-X\n"),
                   reading=Reading(word_column=1))
    assert data.examples[0].words == ("b", "c")
    # Without comments, # is a word.
    _, data = read(write("# O\n\n# B-X\n"))
    assert [example.words for example in data.examples] == [("#",), ("#",)]


def test_other_columns(write):
    path = write(IOB2)
    assert read(path, reading=Reading(tag_column="1"))[0].scheme == "none"
    chunks, data = read(path, reading=Reading(tag_column="-2"))
    assert data.examples[0].tags == ("I-NP", "I-VP", "I-NP", "I-NP", "I-NP")
    assert chunks.scheme == "iob1"
    # conlleval's truth is the last column but one.
    lines = predicted(chunks, data.examples, "conll").splitlines()
    assert lines[0] == "EU NNP I-NP B-ORG I-NP I-NP" and lines[7] == (
        "-DOCSTART- -X- -X- O O O")


def test_numbers_of_a_segmentation_are_no_part_of_words(write):
    text = "科0\tB-PER\n技1\tI-PER\n22\tO\n310\tO\n\ufffd\ufffd0\tO\n"
    task, data = read(write(text), reading=Reading(split_words="auto", strip_numbers=True))
    assert data.examples[0].words == ("科", "技", "2", "3", "\ufffd\ufffd")
    assert data.examples[0].text == "科技23\ufffd\ufffd"
    assert task.reading.split_words == "characters"
    lines = predicted(task, data.examples, "conll").splitlines()
    assert lines[0] == "科0 B-PER B-PER" and lines[4] == "\ufffd\ufffd0 O O"
    assert read(write(text))[1].examples[0].words[0] == "科0"


def test_conllu_words_are_syntactic(write):
    task, data = read(write(CONLLU, "a.conllu"))
    first, second = data.examples
    assert first.words == ("Aller", "de", "le", "Nord", ",", "do", "n't", ".")
    assert first.tags == (
        "VERB", "ADP", "DET", "PROPN", "PUNCT", "AUX", "PART", "PUNCT")
    assert first.text == "Aller de le Nord , do n't ." and second.text == "Ja"
    assert first.where(7) == f"{data.paths[0]}, line 13"
    assert task.scheme == "none" and task.main_metric == "accuracy"
    with pytest.raises(InputError, match="--metric=f1: give one of accuracy"):
        task.chosen_by("f1")
    for column, tag in (("xpos", "V"), ("3", "VERB"), ("FEATS", "A=1,2|B=3")):
        _, data = read(write(CONLLU, "a.conllu"), reading=Reading(tag_column=column))
        assert data.examples[0].tags[0] == tag
    # Predictions keep every line.
    task, data = read(write(CONLLU, "a.conllu"))
    found = predicted(task, data.examples, "conllup")
    first, *lines = found.splitlines()
    assert first.startswith("# global.columns = ID FORM LEMMA UPOS")
    assert [line.rpartition("\t")[0] or line for line in lines] == (
        [*CONLLU.splitlines(), ""])
    assert [line.rpartition("\t")[2] for line in lines[2:13]] == [
        "VERB", "_", "ADP", "DET", "PROPN", "PUNCT", "_", "AUX", "PART", "_", "PUNCT"]
    # What was written can be read.
    again = Reading(tag_column="ALBERT:TAG").read(write(found, "b.conllup"))[0]
    assert [example.tags for example in again] == [
        example.tags for example in data.examples]


JSONL = [{"id": 7, "text": "Ångström met Dr. Wu’s dog 𝒳 in 科技.", "entities": [
    {"start": 0, "end": 8, "type": "PER"}, [17, 19, "PER"],
    {"start": 32, "end": 33, "label": "LOC", "text": "技"}]},
    {"text": "Nobody.", "entities": []}]


def test_spans_become_tags_and_tags_spans(write):
    _, data = read(write(JSONL, "a.jsonl"))
    first = data.examples[0]
    assert first.words == ("Ångström", "met", "Dr", ".", "Wu", "’", "s", "dog", "𝒳",
                           "in", "科", "技", ".")
    assert first.tags == ("B-PER", "O", "O", "O", "B-PER", *["O"] * 6, "B-LOC", "O")
    for scheme in ("iob1", "iob2", "iobes"):
        task, data = read(write(JSONL, "a.jsonl"), scheme=scheme)
        rows = [json.loads(line) for line in
                predicted(task, data.examples, "jsonl").splitlines()]
        assert rows[0]["id"] == 7 and rows[1]["entities"] == []
        assert rows[0]["entities"] == [
            dict(type="PER", start=0, end=8, text="Ångström", score=0.5),
            dict(type="PER", start=17, end=19, text="Wu", score=0.5),
            dict(type="LOC", start=32, end=33, text="技", score=0.5)]
        again = task.read(write(rows, "b.jsonl"), "dev").examples
        assert [e.tags for e in again] == [e.tags for e in data.examples]


def test_spans_inside_words_are_widened_and_said(write):
    rows = [{"text": "東京タワーへ", "entities": [{"start": 2, "end": 5, "type": "X"}]},
            {"text": "ab cd", "entities": [{"start": 1, "end": 5, "type": "X"}]}]
    _, data = read(write(rows, "a.jsonl"))
    assert "2 line(s) have entities that begin or end inside a word" in data.notes[0]
    assert data.examples[1].tags == ("B-X", "I-X")
    task, data = read(write(rows, "a.jsonl"), reading=Reading(split_words="characters"))
    assert not data.notes and data.examples[0].tags == (
        "O", "O", "B-X", "I-X", "I-X", "O")
    assert data.examples[0].text == "東京タワーへ"


@pytest.mark.parametrize("split, words", [
    ("punctuation", "No|.|5|科|技|a|-|b"), ("whitespace", "No.|5|科技a-b"),
    ("characters", "N|o|.|5|科|技|a|-|b")])
def test_words_of_a_text(split, words):
    found = Reading(split_words=split).sentence(" No. 5\u3000科技a-b\n")
    assert "|".join(found.words) == words


def test_tags_out_of_place_are_counted_and_unknown_ones_said(write):
    train = write("a B-X\nb I-X\nc O\n")
    task = build_task(train)
    data = task.read(write("a B-X\nb I-Y\n\nc I-X\nd B-Z\n", "dev.conll"), "dev")
    assert "2 line(s) have tags that the model does not know (B-Z, I-Y); they count" in (
        data.notes[0]) and "(line 2, 5)" in data.notes[0]
    assert "2 line(s) have tags that iob2 does not allow there" in data.notes[1]
    assert "(line 2, 4)" in data.notes[1]


def test_labels_of_the_model_to_start_from_are_kept(write):
    path = write("a B-X\nb O\n")
    known = ("B-X", "I-X", "O")
    assert build_task(path, known_labels=known).labels == known
    assert build_task(path, known_labels=("B-Y", "O")).labels == ("O", "B-X")
    assert build_task(known_labels=known).scheme == "iob2"
    assert build_task(labels=["O", "E-X", "B-X"]).scheme == "iobes"


WRONG = [
    ("a B-X\nb O O\n", {}, "line 2"), ("a\nb\n", {}, "line 1: .*no tags"),
    ("a\tB-X\n\tO\n", {}, "line 2: the word"), ("a\tB-X\nb\t\n", {}, "line 2: .*tag"),
    ("\n\n", {}, "no word"), ("a O\n", {}, "tags are: O;"),
    ("a B-X\nb B:X\n", {}, "line 2: the tag 'B:X' .*; correct it"),
    ("a B-X\nb NN\nc DT\n", {}, "line 2: the tag 'NN' .*--scheme"),
    ("a B-X\nb E-X\n", {"scheme": "iob2"}, "line 2: the tag 'E-X' .*--scheme"),
    ("a B-X\nb M-X\nc E-X\nd S-X\n", {}, "line 2: the tag 'M-X'"),
    ("a B-X\nb b_X\n", {}, "B-X, b_X; .*each once and in one spelling"),
    ("a NN B-X\n\n# O\n", {}, "line 3"),
    ("a B-X\nb O\n", {"reading": Reading(tag_column="5")}, "--tag_column=5 .*2 columns;"),
    ("a B-X\n", {"reading": Reading(tag_column="ner")}, "--tag_column=ner"),
    ("a B-X\n", {"reading": Reading(tag_column="0")}, "no tags"),
    ("a B-X\nb O\n", {"labels": ["O", "B-X", "O"]}, "each once"),
    ("a NN\n", {"labels": ["DET", "ADJ"]}, "none of them"),
]
WRONG_CONLLU = [
    ("1\ta\n", "line 1"),
    (CONLLU.replace("Nord\t", "\t"), "line 7: the word"),
    ("# global.columns = FORM\na\n", "1 columns FORM"),
]
WRONG_JSON = [
    ({"entities": []}, "'text'"), ({"text": "a"}, "'entities'"),
    ({"text": "ab", "entities": [[0, 3, "X"]]}, "text of 2"),
    ({"text": "é ab", "entities": [{"start": 1, "end": 3, "type": "X", "text": "ab"}]},
     "characters"),
    *(({"text": "ab", "entities": [entity]}, word) for entity, word in (
        ([0, 1], "'start'"), ([False, True, "X"], "'start'"), ([0, 1, "X\tY"], "tab"))),
    ({"text": "a b", "entities": [[0, 3, "X"], [2, 3, "Y"]]}, "word 'b'"),
    ({"text": " \u200b", "entities": []}, "no word"), ({"words": ["a"], "tags": []}, "1 and 0"),
    ({"words": [1], "tags": ["X"]}, "'words'"),
]


@pytest.mark.parametrize("name, text, options, pattern", [
    *(("a.conll", text, options, pattern) for text, options, pattern in WRONG),
    *(("a.conllu", text, {}, pattern) for text, pattern in WRONG_CONLLU),
    *(("a.jsonl", [row], {}, f"line 1.*{pattern}") for row, pattern in WRONG_JSON)])
def test_wrong_files_are_refused(name, text, options, pattern, write):
    with pytest.raises(InputError, match=pattern):
        read(write(text, name), **options)


def test_a_file_to_predict_needs_no_tags(write):
    task = build_task(write("a B-X\nb O\n"))
    for text, tagged in (("a\nb\n", None), ("a NN\nb DT\n", False)):
        task = dataclasses.replace(
            task, reading=Reading(tag_column="UPOS"), test_tags=tagged)
        data = task.read(write(text, "test.conll"), "test")
        assert data.examples[0].tags is None
        assert predicted(task, data.examples, "conll", ["B-X", "O"]) == (
            "".join(f"{line} {tag}\n" for line, tag in zip(
                text.splitlines(), ("B-X", "O"))) + "\n")
    task = dataclasses.replace(task, reading=Reading(), test_tags=None)
    with pytest.raises(InputError, match="'NN' is neither .* or --notest_tags"):
        task.read(write("a NN\n", "test.conll"), "test")


@pytest.mark.parametrize("name, text, tag", [
    ("a.csv", "word,tag\nAda,B-X\nran,O\nfar,O\n", "B-X"),
    ("a.tsv", "Ada;b-x\nran;O\n", "b-x"), ("a.txt", '"Ada","B-X"\n"ran","O"\n', "B-X"),
    ("b.jsonl", [{"text": "Ada B-X"}, {"text": "ran O"}], "B-X"),
    ("c.jsonl", [{"text": "Blood of type O"}], ""), ("b.txt", "type-O\nO\n", "")])
def test_words_of_a_table_are_not_tagged_with_their_tags(name, text, tag, write):
    task = build_task(write("a B-X\nb O\n"))
    if tag:
        with pytest.raises(InputError, match=f"most words have a tag .*such as {tag}"):
            task.read(write(text, name), "test")
    else:
        assert task.read(write(text, name), "test").examples[0].tags is None


def test_words_that_are_spelled_like_tags_are_words():
    for texts, tag in ((["He played his part", "What a noun"], ""),
                       (["It PRON", "the NOUN"], "PRON"), (["It b-x", "is o"], "b-x")):
        assert scoring.tag_at_ends(texts, ["NOUN", "PART", "PRON", "B-X", "O"]) == tag


# ---- windows ---------------------------------------------------------------


def outputs_of(examples, windows, tag_ids=None):
    """Outputs of a model that gives each place its number as the tag, or `tag_ids`."""
    columns = {name: [np.array(window[name]) for window in windows] for name in (
        "example_index", "word_index", "word_place")}
    tags = [np.zeros(len(window["input_ids"]), int) if tag_ids is None else tag_ids[i]
            for i, window in enumerate(windows)]
    return {"tags": tags, "probabilities": [np.full(len(row), 0.5) for row in tags]
            }, columns


@pytest.mark.parametrize("stride", [1, 3, 6, 100])
def test_each_word_of_a_long_sentence_is_scored_once_where_it_has_most_context(
        stride, write):
    words = [f"w{i}" + "xyz" * (i % 7) for i in range(60)]
    path = write("".join(f"{word} {'B-X' if i % 3 else 'O'}\n"
                         for i, word in enumerate(words)))
    task = build_task(path, max_seq_length=14, doc_stride=stride)
    [example], tokenizer = task.read(path, "train").examples, pickle.loads(
        pickle.dumps(spm()))
    windows = task.featurize(example, tokenizer=tokenizer)
    pieces = [tokenizer.encode(word) for word in words]
    begin = np.cumsum([0, *map(len, pieces)])
    flat = [piece for word in pieces for piece in word]
    seen = sorted(i for window in windows for i in window["word_index"])
    assert seen == list(range(60)) and len(windows) > 1
    tags = []
    for window in windows:
        ids = window["input_ids"]
        assert len(ids) <= 14 and (ids[0], ids[-1]) == (
            tokenizer.cls_id, tokenizer.sep_id)
        labels = np.array(window["label_ids"])
        assert sorted(np.flatnonzero(labels)) == sorted(window["word_place"])
        for word, place in zip(window["word_index"], window["word_place"]):
            # The window's pieces lie around the word as in the sentence.
            first = begin[word] - (place - 1)
            assert ids[1:-1] == flat[first:first + len(ids) - 2]
            assert task.labels[labels[place] - 1] == example.tags[word]
            least = min((12 - min(stride, 12)) // 2, begin[word], len(flat) - 1 - begin[word])
            assert min(place - 1, len(ids) - 2 - place) >= least - 1
        tags.append(np.maximum(labels - 1, 0))
    outputs, columns = outputs_of(
        [example], [{**window, "example_index": [0]} for window in windows], tags)
    [found] = task.tagged([example], outputs, columns)
    assert tuple(found.tags) == example.tags and set(found.scores) == {0.5}


@pytest.fixture(name="word_pieces")
def _word_pieces(write):
    return FullTokenizer(vocab_file=write("\n".join(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]), "vocab.txt"))


def test_words_that_cleaning_removes_are_unknown_pieces(word_pieces, write):
    task, data = read(write("ab B-X\n\ufffd\ufffd O\nq O\n\u200b O\n"))
    [window] = task.featurize(data.examples[0], tokenizer=word_pieces)
    assert window["input_ids"] == [2, 5, 6, 1, 1, 1, 3]
    assert window["word_place"] == [1, 3, 4, 5]
    assert window["label_ids"] == [0, 2, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("tags, scheme, labels, trained", [
    ("B-X O B-X", "auto", "O B-X I-X", [0, 2, 3, 1, 2, 3, 0]),
    ("b_X O i_X", "iob1", "O b_X i_X", [0, 2, 3, 1, 3, 3, 0]),
    ("S-X O S-Y", "iobes", "O S-X S-Y", [0, 2, 2, 1, 3, 3, 0]),
    ("NN DT NN", "auto", "DT NN", [0, 2, 2, 1, 2, 2, 0])])
def test_all_tokens_of_a_word_may_be_trained(
        tags, scheme, labels, trained, word_pieces, write):
    path = write("".join(f"{word} {tag}\n" for word, tag in zip("ab a ab".split(),
                                                                tags.split())))
    task = build_task(path, scheme=scheme, label_all_tokens=True)
    assert task.labels == tuple(labels.split())
    [example] = task.read(path, "train").examples
    [window], [scored] = (task.featurize(
        example, tokenizer=word_pieces, is_training=is_training)
                          for is_training in (True, False))
    assert window["label_ids"] == trained
    firsts = {0, 1, 3, 4}  # Scores are those of words: of their first tokens.
    assert scored == {**window, "label_ids": [
        label * (place in firsts) for place, label in enumerate(trained)]}
    assert task.feature_settings("train") != task.feature_settings("dev")
    if labels == "O B-X I-X":
        with pytest.raises(InputError, match="the tags lack I-X, .* with B-X; add"):
            build_task(path, labels=["O", "B-X"], label_all_tokens=True)


# ---- scores ----------------------------------------------------------------


def conlleval(sentences):
    """conlleval.pl of 2004, rule by rule; (words, right, true, given, correct)."""
    def end(prev, tag, prev_type, kind):
        return (prev + tag in ("BB", "BO", "IB", "IO", "EE", "EI", "EO")
                or prev != "O" and prev_type != kind)

    def start(prev, tag, prev_type, kind):
        return (prev + tag in ("BB", "IB", "OB", "OI", "EE", "EI", "OE")
                or tag != "O" and prev_type != kind)

    counts, inside, last = [0] * 5, False, ("O", "", "O", "")
    for line in [line for sentence in sentences for line in (*sentence, None)]:
        true, given = line or ("O", "O")
        c, ct, g, gt = *(true + "-").split("-")[:2], *(given + "-").split("-")[:2]
        lc, lct, lg, lgt = last
        ends = end(lc, c, lct, ct), end(lg, g, lgt, gt)
        if inside and all(ends) and lct == lgt:
            inside, counts[4] = False, counts[4] + 1
        elif inside and (ends[0] != ends[1] or gt != ct):
            inside = False
        starts = start(lc, c, lct, ct), start(lg, g, lgt, gt)
        if all(starts) and ct == gt:
            inside = True
        counts[2] += starts[0]
        counts[3] += starts[1]
        counts[0] += line is not None
        counts[1] += line is not None and true == given
        last = c, ct, g, gt
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_scores_are_those_of_conlleval_on_any_tags(seed):
    """Whatever order the tags come in."""
    draw, tags = random.Random(seed), ["O", "O", "B-X", "B-Y", "I-X", "I-Y"]
    true = [draw.choices(tags, k=draw.randint(1, 9)) for _ in range(50)]
    given = [[draw.choice(tags) if draw.random() < 0.3 else tag for tag in row]
             for row in true]
    counts = scoring.score(true, given, "iob2")
    words, right_words, *expected = conlleval(map(zip, true, given))
    assert [counts.words, counts.right_words] == [words, right_words]
    assert [counter.total() for counter in counts[:3]] == expected
    precision, recall = expected[2] / expected[1], expected[2] / expected[0]
    assert counts.metrics()["f1"] == pytest.approx(
        2 * precision * recall / (precision + recall))


@pytest.mark.parametrize("scheme, tags, places", [
    ("iob2", "O I-X I-X B-Y I-X", [1, 4]), ("iob1", "B-X I-X B-X B-Y", [0, 3]),
    ("iobes", "B-X O I-X E-Y S-X B-X", [0, 2, 3, 5]), ("iob2", "B I O I", [3])])
def test_tags_out_of_place(scheme, tags, places):
    assert scoring.misplaced(tags.split(), scheme) == places


def test_reports_and_failures(write, monkeypatch):
    task, data = read(write("a B-X\nb I-X\nc B-Y\nd O\n"))

    def results(function, *tags):
        monkeypatch.setattr(type(task), "tagged", lambda *_: [Tagged([*tags], [0.5] * 4)])
        return function(data, {}, types.SimpleNamespace(columns={}))

    scores, report = results(task.results, "B-X", "I-X", "B-X", "O")
    assert scores == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.75}
    lines = report.splitlines()
    assert lines[0] == "4 words; entities as conlleval counts them"
    assert [line.split() for line in lines[-3:]] == [
        ["X", "0.5000", "1.0000", "0.6667", "1"], ["Y", *["0.0000"] * 3, "1"],
        ["all", "0.5000", "0.5000", "0.5000", "2"]]
    assert results(task.failure, *"OOOO") == "all predictions are 'O'"
    assert not results(task.failure, *"OO", "B-X", "O")


def predicted(task, examples, kind, tags=None):
    """The file of predictions of a model that gives these tags, or the true ones."""
    tags = iter(tags or [tag for example in examples for tag in example.tags])
    tagged = [Tagged([next(tags) for _ in example.words], [0.5] * len(example.words))
              for example in examples]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(
            type(task), "tagged", return_value=tagged):
        task.write_predictions(folder, ExampleSet(examples), {}, mock.Mock())
        with open(f"{folder}/predictions.{kind}", encoding="utf-8") as stream:
            return stream.read()


def test_predictions_are_what_conlleval_reads(write):
    text = "Der ART O\nGroße B-X B-X\n\n-DOCSTART-\n\nOslo NE B-X\n"
    task, data = read(write(text))
    found = predicted(task, data.examples, "conll", ["B-X", "O", "B-X"])
    assert found == ("Der ART O B-X\nGroße B-X B-X O\n\n-DOCSTART- O O O\n\n"
                     "Oslo NE B-X B-X\n\n")
    # A word with a blank, or that is one, needs tabs.
    task, data = read(write("New York\tB-X\n \tO\n"))
    assert predicted(task, data.examples, "conll") == (
        "New York\tB-X\tB-X\n \tO\tO\n\n")


def test_outputs_that_are_not_finite_say_so(write):
    task, data = read(write("a B-X\nb O\n"))
    windows = [{**task.featurize(data.examples[0], tokenizer=spm())[0],
                "example_index": [0]}]
    outputs, columns = outputs_of(data.examples, windows)
    outputs["probabilities"][0][:] = np.nan
    with pytest.raises(InputError, match="word 1 of .*line 1 is not a number: the "):
        task.tagged(data.examples, outputs, columns)


def test_invisible_characters_make_no_tags(write, caplog):
    path = write("\ufeffEU\tB-ORG\u200b\nsays\tO\n\nOslo\t\ufeffB-ORG\nso\tO\n")
    task = build_task(path)
    assert task.labels == ("O", "B-ORG") and task.scheme == "iob2"
    with caplog.at_level("INFO"):
        found = task.read(path, "train")
    assert [each.tags for each in found.examples] == [("B-ORG", "O")] * 2
    assert not found.notes
    assert caplog.messages[-1] == (
        "train: 2 sentences with 4 words; the scheme of tags is iob2: O 2, B-ORG 2.")


# ---- Parquet and Arrow (tests/test_rows.py has the files themselves)

NER = row_tables.class_label("O", "B-LOC", "I-LOC", "B-PER")
WORDS = [["New", "York", "sleeps"], ["Peter", "wakes"]]
NUMBERS = [[1, 2, 0], [3, 0]]


@pytest.fixture(name="rows")
def _rows(tmp_path):
    def rows(columns, name="train.parquet", **features):
        return row_tables.write(tmp_path / name, row_tables.table(columns, **features))

    return rows


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
def test_tokens_and_tags_of_datasets(rows, name):
    path = rows({"id": ["a", "b"], "tokens": WORDS, "ner_tags": NUMBERS}, name,
                ner_tags={"feature": NER, "_type": "Sequence"})
    task, data = read(path)
    # The schema's order, and also the tags that no word has.
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER") and task.scheme == "iob2"
    assert [(s.words, s.tags, s.text, s.fields) for s in data.examples] == [
        (("New", "York", "sleeps"), ("B-LOC", "I-LOC", "O"), "New York sleeps",
         {"id": "a"}), (("Peter", "wakes"), ("B-PER", "O"), "Peter wakes", {"id": "b"})]
    assert data.examples[1].where() == f"{path}, row 2"


def test_tags_as_text_and_from_another_column(rows):
    path = rows({"words": [*WORDS, []], "tags": [["B-LOC", "I-LOC", "O"], ["B-PER", "O"], []],
                 "pos": [["N", "N", "V"], ["N", "V"], []]})
    task, data = read(path)
    assert task.labels == ("O", "B-LOC", "B-PER", "I-LOC")
    assert data.notes == (f"{path}: 1 row(s) without a word are left out (row 3).",)
    task, data = read(path, reading=Reading(tag_column="pos"))
    assert task.labels == ("N", "V") and data.examples[0].tags == ("N", "N", "V")


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_numbers_without_names_are_those_of_labels(rows, write, name):
    columns = {"tokens": WORDS, "ner_tags": NUMBERS}
    path = rows(columns, name) if name.endswith("parquet") else write(
        [dict(zip(columns, row)) for row in zip(*columns.values())], name)
    task, data = read(path, labels=NER["names"])
    assert [s.tags for s in data.examples] == [("B-LOC", "I-LOC", "O"), ("B-PER", "O")]
    with pytest.raises(InputError, match="(row|line) 1: 'ner_tags' .*--labels"):
        read(path)
    with pytest.raises(InputError, match="(row|line) 2: 'ner_tags' holds 3"):
        read(path, labels=NER["names"][:3])


@pytest.mark.parametrize("columns, message, tag_column", [
    ({"sentence": ["a"]}, "row 1: 'text'", ""),
    ({"tokens": [["a"]], "labels": [[0]]}, "row 1: .*'entities'.*--tag_column", ""),
    ({"tokens": [["a", None]], "tags": [["N", "N"]]}, "row 1: 'tokens'", ""),
    ({"tokens": [["a"]], "tags": [["N"]]}, "'POS'.*--tag_column", "POS")])
def test_wrong_columns_of_parquet(rows, columns, message, tag_column):
    with pytest.raises(InputError, match=message):
        read(rows(columns), reading=Reading(tag_column=tag_column))
