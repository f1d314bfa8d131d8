import gzip
import json

import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.features import FeatureTable
from albert_tf.finetuning.race import task
from albert_tf.finetuning.common import ExampleSet
from albert_tf.finetuning.race.task import RaceTask
from tests import row_tables
from tests.helpers import FIXTURES, tokenizer

FOLDER = FIXTURES / "race"
PASSAGE = {
    "id": "high7.txt", "article": "A dog ran.\nIt was wet.",
    "questions": ["What ran?", "It was _ ."],
    "options": [["a dog", "a cat", "a man", "a car"], ["wet", "dry", "old", "red"]],
    "answers": ["A", "B"]}


GOLDEN = json.loads(gzip.decompress((FOLDER / "features.json.gz").read_bytes()))


def features_of(example, max_seq_length=32, max_qa_length=16):
    (features,) = RaceTask(max_seq_length, max_qa_length).featurize(
        example, tokenizer=tokenizer())
    return features


def question(article, text, *options):
    return task.RaceExample("x", 0, "high", article, text, options, "A", "x")


def passage(**changes):
    """PASSAGE with other values; None takes a key out."""
    return {key: value for key, value in {**PASSAGE, **changes}.items()
            if value is not None}


def write(folder, *passages, split="dev", level="high", names=None):
    """Writes passages as N.txt, or as the given texts, under a data_dir."""
    target = folder / split / level
    target.mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(passages):
        name = names[i] if names else f"{i + 1}.txt"
        # Over several lines, as an editor may save them.
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (target / name).write_text(text, encoding="utf-8")
    return str(folder)


def read(folder, split, **options):
    return RaceTask(**options).read(str(folder), split).examples


def read_high(folder, **options):
    return read(folder, "dev", high_only=True, **options)


# ---- equal to the release --------------------------------------------------


@pytest.mark.parametrize("key", GOLDEN)
def test_examples_and_features_are_the_releases(key):
    split, levels, lengths = key.split("/")
    max_seq_length, max_qa_length = map(int, lengths.split("_"))
    examples = read(FOLDER, split, high_only="high1" in levels,
        middle_only="middle1" in levels)
    assert len(examples) == len(GOLDEN[key])
    for example, row in zip(examples, GOLDEN[key]):
        assert (example.example_id, example.label) == (
            row["example_id"], task.LETTERS[row["label"]])
        features = features_of(example, max_seq_length, max_qa_length)
        assert features["label_ids"] == [row["features"]["label_id"]]
        for name in ("input_ids", "input_mask", "segment_ids"):
            rows = [values + [0] * (max_seq_length - len(values))
                    for values in features[name]]
            assert rows == row["features"][name], (example.example_id, name)


def test_features_are_padded_to_the_longest_choice_alone():
    features = features_of(question("a dog", "it", "a", "a very wet dog", "b", "c"))
    lengths = [sum(mask) for mask in features["input_mask"]]
    assert max(lengths) == len(features["input_ids"][0]) < 32
    assert {len(row) for values in (features["input_ids"], features["segment_ids"])
            for row in values} == {max(lengths)}
    assert min(lengths) < max(lengths)


# ---- where the release failed ----------------------------------------------


def test_question_and_option_longer_than_the_sequence_are_cut():
    words = " ".join(["bicycle"] * 30)
    features = features_of(question("a dog", words, "end", "a", "b", "c"),
                           max_seq_length=10, max_qa_length=128)
    pieces = tokenizer().encode(f"{words} end")
    assert features["input_ids"][0] == [
        tokenizer().cls_id, tokenizer().sep_id, *pieces[-7:], tokenizer().sep_id]
    assert features["segment_ids"][0] == [0, 0] + [1] * 8


# ---- reading ---------------------------------------------------------------


def test_files_are_read_in_the_order_of_their_numbers_and_name_passages(tmp_path):
    names = ["10.txt", "9.txt", "100.txt", "extra.txt"]
    write(tmp_path / "RACE", *[passage(id=None)] * 4, names=names)
    for folder in (tmp_path, tmp_path / "RACE"):
        ids = [example.example_id for example in read_high(folder)]
        assert ids[::2] == ids[1::2] == [
            "high9.txt", "high10.txt", "high100.txt", "highextra.txt"]


def test_a_test_set_without_answers_is_predicted_but_not_scored(tmp_path):
    folder = write(tmp_path, passage(answers=None), split="test")
    examples = read(folder, "test", high_only=True)
    assert [example.label for example in examples] == [None, None]
    assert features_of(examples[0])["label_ids"] == [0]
    assert RaceTask().results(
        ExampleSet(examples), {"probabilities": np.eye(4)[[0, 0]]}, None) == ({}, "")
    with pytest.raises(InputError, match="1.txt: there is no label or answer"):
        read_high(write(tmp_path, passage(answers=None)))


# ---- wrong input -----------------------------------------------------------


@pytest.mark.parametrize("changes, message", [
    *(({name: value}, f"'{name}'") for name, value in (
        ("article", None), ("article", 3), ("questions", None), ("questions", ["a", None]),
        ("options", None), ("options", [["a", "b", "c", "d"], "abcd"]),
        ("options", [["a", "b", "c", "d"], ["1", 2, "3", "4"]]), ("answers", "AB"),
        ("answers", ["A", 1]))),
    ({"questions": [], "options": [], "answers": []}, "0 questions"),
    ({"options": PASSAGE["options"][:1]}, "1 lists of options"),
    ({"answers": ["A"]}, "1 answers"),
    *(({"answers": ["A", answer]}, "question 2: ") for answer in ("E", "", "AB")),
    ({"options": [["a", "b", "c", "d"], ["a", "b", "c"]]}, "question 2: there are 3"),
])
def test_a_wrong_passage_is_named(tmp_path, changes, message):
    folder = write(tmp_path, passage(id="a"), passage(**changes))
    with pytest.raises(InputError, match=f"^{folder}/dev/high/2.txt.*{message}"):
        read_high(folder)


@pytest.mark.parametrize("name, text, message", [
    ("1.txt", '{\n "article": "a",\n "questions": [}', r"1\.txt, line 3"),
    ("all.txt", f"{json.dumps(PASSAGE)}\n\n{{'article': 1}}\n", r"all\.txt, line 3"),
    ("1.txt", "[1]", r"1\.txt"), ("all.txt", "\n", "no question of the level high"),
    ("all.txt", f"{json.dumps(PASSAGE)}\n{json.dumps(passage(options=None))}\n",
     r"all\.txt, line 2: 'options'"),
    ("1.md", "{}", "dev/high"),
])
def test_a_wrong_file_is_named_with_its_line(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_high(write(tmp_path, text, names=[name]))


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(InputError, match="--data_dir"):
        read(tmp_path, "dev")
    write(tmp_path, PASSAGE)
    with pytest.raises(InputError, match="dev/middle: .*--data_dir .--high_only"):
        read(tmp_path, "dev")


def test_passages_that_may_be_there_twice_are_refused(tmp_path):
    folder = write(tmp_path, PASSAGE, PASSAGE)
    with pytest.raises(InputError, match=r"2\.txt: the id 'high7.txt' .*1\.txt"):
        read_high(folder)
    write(tmp_path, json.dumps(PASSAGE), names=["all.txt"])
    with pytest.raises(InputError, match="all.txt and others"):
        read_high(folder)


def test_options_that_cannot_be_are_refused():
    for options, flag in (({"max_seq_length": 3}, "--max_seq_length=3"), (
            {"high_only": True, "middle_only": True}, "--high_only and --middle_only")):
        with pytest.raises(InputError, match=flag):
            RaceTask(**options)


# ---- scores and files ------------------------------------------------------


def test_accuracy_is_that_of_all_and_of_each_level():
    examples = read(FOLDER, "dev")
    middle = sum(example.level == "middle" for example in examples)
    right = RaceTask().label_ids(examples)
    guesses = [(right[0] + 1) % 4, *right[1:]]  # The first is of the level middle.

    def score(chosen, examples=examples):
        scores, _ = RaceTask().results(
            ExampleSet(examples), {"probabilities": np.eye(4)[chosen]}, None)
        assert scores.pop("questions") == sum(each.label is not None for each in examples)
        low, high = scores.pop("accuracy_low"), scores.pop("accuracy_high")
        assert low < scores["accuracy"] <= high
        return scores

    assert score(guesses) == pytest.approx({
        "accuracy": 1 - 1 / len(examples), "middle_accuracy": 1 - 1 / middle,
        "high_accuracy": 1.0})
    assert set(score(right[middle:], examples[middle:])) == {
        "accuracy", "high_accuracy"}
    # Questions without an answer do not count.
    assert score(guesses, [examples[0]._replace(label=None), *examples[1:]]) == {
        "accuracy": 1.0, "middle_accuracy": 1.0, "high_accuracy": 1.0}


def test_predictions_are_written_as_letters_and_for_people(tmp_path):
    examples = read_high(write(tmp_path / "data", passage(
        questions=["What\tran?", "It was _ ."])))
    probabilities = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]], "f")
    paths = RaceTask().write_predictions(
        str(tmp_path / "out"), ExampleSet(examples), {"probabilities": probabilities}, None)
    letters, table = [open(path, encoding="utf-8").read() for path in paths]
    assert json.loads(letters) == {"high7.txt": ["A", "D"]}
    assert [line.split("\t") for line in table.splitlines()] == [
        ["id", "question_number", "level", "question", "prediction", "probability",
         "option", "answer"],
        ["high7.txt", "1", "high", "What ran?", "A", "0.7000", "a dog", "A"],
        ["high7.txt", "2", "high", "It was _ .", "D", "0.4000", "red", "B"]]
    # The letters are what a set's files have as answers.
    again = passage(answers=json.loads(letters)["high7.txt"])
    assert read_high(write(tmp_path / "again", again))[1].label == "D"


def test_options_that_are_cut_are_counted(caplog):
    asked = RaceTask(32, 6)
    examples = [question("A dog ran. " * 20, "What?", "a", "b", "c", "the dog of a man"),
                question("A dog ran.", "What?", "a", "b", "c", "d")]
    rows = [asked.fitted(example, tokenizer()) for example in examples]
    assert [cut > 0 for _, cut in rows] == [True, False]
    table = FeatureTable.from_values(asked.spec(AlbertConfig(
        vocab_size=4000)), [features for features, _ in rows])
    asked.check_features({"dev": None}, {"dev": table}, None)
    assert [record.getMessage() for record in caplog.records] == [
        "--max_qa_length=6, dev: 1 of 8 options with their questions fill all 6 tokens "
        "that the model reads; what is longer is cut."]


# --- Parquet and Arrow (tests/test_rows.py has the files themselves)

ROWS = {"example_id": ["high7.txt", "middle3.txt", "high7.txt"],
        "article": [PASSAGE["article"], "It rains.", PASSAGE["article"]],
        "question": ["What ran?", "It _ .", "It was _ ."],
        "options": [PASSAGE["options"][0], ["rains", "snows", "is dry", "is hot"],
                    PASSAGE["options"][1]],
        "answer": ["A", "A", "B"]}


def write_rows(tmp_path, name="dev.parquet", **changes):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    row_tables.write(path, row_tables.table(
        {key: value for key, value in {**ROWS, **changes}.items() if value}))
    return str(tmp_path)


@pytest.mark.parametrize("name, split", [
    ("validation-00000-of-00001.parquet", "dev"), ("validation/data-0.arrow", "dev"),
    ("train.parquet", "train"), ("test/test.feather", "test")])
def test_rows_are_the_same_as_passages(tmp_path, name, split):
    where = write_rows(tmp_path / "rows", name)
    write(tmp_path, PASSAGE, split=split)
    folder = write(tmp_path, {
        "id": "middle3.txt", "article": "It rains.", "questions": ["It _ ."],
        "options": [ROWS["options"][1]], "answers": ["A"]}, split=split, level="middle")
    found, expected = (RaceTask().read(path, split).examples for path in (where, folder))
    assert [e._replace(where="") for e in found] == [
        e._replace(where="") for e in expected]
    assert [e.where.rpartition(" ")[2] for e in found] == ["2", "1", "3"]
    assert len(RaceTask(high_only=True).read(where, split).examples) == 2


def test_several_files_of_rows_and_intermediate_ones(tmp_path):
    write_rows(tmp_path, "dev/data-00000-of-00002.arrow")
    write_rows(tmp_path, "dev/cache-0123.arrow")
    where = write_rows(tmp_path, "dev/data-00001-of-00002.arrow", example_id=[
        "high8.txt", "middle4.txt", "high8.txt"])
    assert [(e.example_id, e.number) for e in RaceTask().read(where, "dev").examples] == [
        ("middle3.txt", 0), ("middle4.txt", 0), ("high7.txt", 0), ("high7.txt", 1),
        ("high8.txt", 0), ("high8.txt", 1)]


def test_rows_without_answers_are_to_predict(tmp_path):
    where = write_rows(tmp_path, "test.parquet", answer=["", None, ""])
    assert {e.label for e in RaceTask().read(where, "test").examples} == {None}
    where = write_rows(tmp_path, "dev.parquet", answer=None)
    with pytest.raises(InputError, match="dev.parquet, row 2: there is no label"):
        RaceTask().read(where, "dev")


@pytest.mark.parametrize("changes, message", [
    ({"article": None}, "'article'"), ({"options": [["a"]] * 3}, "row 1, .*1 options"),
    ({"example_id": ["a", "b", "c"]}, "row 1: the example_id 'a'"),
    ({"article": ["a", "b", "c"]}, "row 3: the id 'high7.txt'"),
    ({"example_id": ["high1", "high2", "high3"]}, "--high_only")])
def test_rows_that_do_not_fit(tmp_path, changes, message):
    where = write_rows(tmp_path, **changes)
    with pytest.raises(InputError, match=f"dev.parquet.*{message}"):
        RaceTask().read(where, "dev")
