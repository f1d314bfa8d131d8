"""SQuAD: what a file may hold, and what is told of one that does not.

    python -m pytest tests/finetuning/squad/test_dataset.py
"""

import gzip
import json

import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning.squad import scoring
from albert_tf.finetuning.squad.predictions import Predictions
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning.squad.dataset import questions_in, read_questions, to_train
from tests import row_tables


def content(**changes):
    """A file's content with one question, changed at one level or another."""
    paragraph = {"context": "The clock is old.", "qas": [{
        "id": "q1", "question": "What is old?",
        "answers": [{"text": "clock", "answer_start": 4}]}]}
    for key, value in changes.items():
        holder = paragraph if key in paragraph else paragraph["qas"][0]
        if value is None:
            holder.pop(key)
        else:
            holder[key] = value
    return {"version": "1.1", "data": [{"title": "Clocks", "paragraphs": [paragraph]}]}


def write(tmp_path, data):
    path = tmp_path / "squad.json"
    path.write_bytes(data if isinstance(data, bytes)
                     else json.dumps(data, ensure_ascii=False).encode())
    return str(path)


AT = "squad.json, article 1, paragraph 1, question"
# Questions of version 2.0 without an answer.
IMPOSSIBLE = content(answers=[], is_impossible=True)


@pytest.mark.parametrize("data, message", [
    (b'{"data": [\n{"paragraphs": [}]}', "line 2"), (b"", "squad.json"),
    (b'{"data":\n["\xff"]}', "line 2: .*UTF-8"), ([1, 2], "not a JSON object"),
    ({"data": {}}, "'data'"), ({"data": []}, "no question"),
    ({"data": [{"paragraphs": []}]}, "no question"),
    ({"data": [{"paragraphs": [{"context": "a", "qas": []}]}, {"title": "b"}]},
     "article 2: 'paragraphs'"),
    (content(context=None), "paragraph 1: 'context'"),
    (content(qas=None), "'qas'"), (content(id=None), f"{AT} 1: 'id'"),
    (content(question=None), f"{AT} 'q1': 'question'"),
    (content(is_impossible="no"), "'is_impossible'"),
    (content(answers=[{}]), f"{AT} 'q1', answer: 'text'"),
    (content(qas=content()["data"][0]["paragraphs"][0]["qas"] * 2), "same id"),
])
def test_what_is_not_squad_is_told_with_its_place(tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        SquadTask().read(write(tmp_path, data))


@pytest.mark.parametrize("answers, message", [
    *((answers, "no answer") for answers in (
        [], None, [{"text": "", "answer_start": 0}], [{"text": " ", "answer_start": 3}])),
    ([{"text": "clock", "answer_start": 5}], "'clock' .* 5 .*'lock '"),
    ([{"text": "clock", "answer_start": -13}], "character -13"),
    ([{"text": "clock"}], "'answer_start'"),
    ([{"text": "clock", "answer_start": "4"}], "'answer_start'")])
def test_answers_unfit_for_training_are_told_with_the_question(answers, message):
    question, = questions_in(content(answers=answers), "squad.json")
    with pytest.raises(InputError, match=f"{AT} 'q1'.*{message}"):
        to_train(question)
    # Prediction takes no notice of answers.
    assert question.answer_text is None and question.start_position is None


def test_training_takes_the_first_of_several_answers(tmp_path):
    answers = [{"text": "old", "answer_start": 13},
               {"text": "clock", "answer_start": 4}]
    found = SquadTask().read(write(tmp_path, content(answers=answers)), "train")
    assert found.examples[0][3:5] == ("old", 13)
    assert "1 of 1 questions have several answers" in found.notes[0]
    assert not SquadTask().read(write(tmp_path, content()), "train").notes


@pytest.mark.parametrize("split", ["train", "predict"])
def test_answers_of_impossible_questions_are_left_out_and_counted(tmp_path, split):
    """So that a question is scored as it was trained."""
    marked = content(is_impossible=True)
    found = SquadTask(True).read(write(tmp_path, marked), split)
    assert (found.examples[0].answer_text == "") == (split == "train")
    note, = found.notes
    assert "1 of 1 questions are marked as impossible, but have answers" in note
    for answer, exact in ("", 100), ("clock", 0):
        metrics = scoring.score(found.examples, Predictions(
            {"q1": answer}, {}, {"q1": 0.0}), 1.0).metrics
        assert metrics["exact"] == metrics["NoAns_exact"] == exact
        assert "HasAns_exact" not in metrics
    # Some files give impossible questions an empty answer.
    empty = content(is_impossible=True, answers=[{"text": "", "answer_start": -1}])
    found = SquadTask(True).read(write(tmp_path, empty), split)
    assert not found.notes and found.examples[0].answers == []


@pytest.mark.parametrize("text, start, kept", [
    ("clock ", 4, ("clock", 4)), (" clock", 3, ("clock", 4)),
    (" old", 12, ("old", 13)), ("clock is ", 4, ("clock is", 4))])
def test_blanks_at_the_ends_of_answers_are_left_out(text, start, kept):
    question, = questions_in(content(answers=[
        {"text": text, "answer_start": start}]), "squad.json")
    assert to_train(question)[3:5] == kept


@pytest.mark.parametrize("data, answered", [
    (content(), True), (IMPOSSIBLE, True), (content(answers=[]), False),
    (content(answers=None), False)])
def test_a_test_set_has_no_answers(tmp_path, data, answered):
    found = SquadTask(True).read(write(tmp_path, data))
    assert found.answered == answered and not found.notes


def test_scoring_needs_answers(tmp_path):
    SquadTask(must_score=True).read(write(tmp_path, content()))
    SquadTask(True, must_score=True).read(write(tmp_path, IMPOSSIBLE))
    for answers, version_2 in ([], False), (None, False), (None, True):
        path = write(tmp_path, content(answers=answers))
        with pytest.raises(InputError, match="'q1' has no answers.*cannot be scored"):
            SquadTask(version_2, must_score=True).read(path)
    partly = content()
    partly["data"] += content(id="q2", answers=None)["data"]
    found = SquadTask().read(write(tmp_path, partly))
    assert not found.answered
    assert "No metrics will be computed: " in found.notes[0]
    assert "'q2' has no answers" in found.notes[0]


@pytest.mark.parametrize("split", ["train", "predict"])
def test_version_2_needs_its_flag(split, tmp_path):
    path = write(tmp_path, IMPOSSIBLE)
    with pytest.raises(InputError, match="'q1' .*add --version_2_with_negative"):
        SquadTask().read(path, split)
    example, = SquadTask(True).read(path, split).examples
    assert example.is_impossible
    example, = SquadTask(True).read(write(tmp_path, content()), "train").examples
    assert example.answer_text == "clock" and not example.is_impossible


# --- Parquet and Arrow (tests/test_rows.py has the files themselves)

ROWS = {"id": ["q1", "q2"], "title": ["Clocks"] * 2, "context": ["The clock is old."] * 2,
        "question": ["What is old?", "How is it?"],
        "answers": [{"text": ["clock", "The clock"], "answer_start": [4, 0]},
                    {"text": ["old"], "answer_start": [13]}]}
NO_ANSWER = {"text": [], "answer_start": []}


def of_rows(tmp_path, name="squad.parquet", **changes):
    if ".json" in name:
        columns = {**ROWS, **changes}
        lines = "".join(json.dumps(dict(zip(columns, row))) + "\n\n"
                        for row in zip(*columns.values())).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
        return str(path)
    return row_tables.write(tmp_path / name, row_tables.table(
        {key: value for key, value in {**ROWS, **changes}.items() if value}))


@pytest.mark.parametrize("name", [
    "squad.parquet", "squad.jsonl", "squad.json", "squad.jsonl.gz"])
def test_rows_are_the_same_as_articles(tmp_path, name):
    rows = read_questions(of_rows(tmp_path, name))
    articles = questions_in({"data": [{"paragraphs": [{"context": "The clock is old.", "qas": [
        {"id": "q1", "question": "What is old?", "answers": [
            {"text": "clock", "answer_start": 4},
            {"text": "The clock", "answer_start": 0}]},
        {"id": "q2", "question": "How is it?", "answers": [
            {"text": "old", "answer_start": 13}]}]}]}]}, "")
    assert [row[:-1] for row in rows] == [question[:-1] for question in articles]
    as_list = of_rows(tmp_path, "list-" + name, answers=[question.answers
                                                         for question in rows])
    assert [row[:-1] for row in read_questions(as_list)] == [row[:-1] for row in rows]
    place = "line 3" if ".json" in name else "row 2"
    assert rows[1].where.endswith(f"{name}, {place}, question 'q2'")


def test_a_row_without_an_answer_has_none_in_its_passage(tmp_path):
    path = of_rows(tmp_path, answers=[ROWS["answers"][0], NO_ANSWER])
    assert [e.is_impossible for e in SquadTask(True).read(path, "train").examples] == [
        None, True]
    with pytest.raises(InputError, match="row 2, .*'q2' .*--version_2_with_negative"):
        SquadTask().read(path, "train")


@pytest.mark.parametrize("answers", [None, [NO_ANSWER] * 2, [None] * 2])
def test_rows_of_a_test_set(tmp_path, answers):
    path = of_rows(tmp_path, answers=answers)
    found = SquadTask(True).read(path)
    assert not found.answered and not found.notes and len(found.examples) == 2
    with pytest.raises(InputError, match="row 1, question 'q1' has no answer to tra"):
        SquadTask(True).read(path, "train")


@pytest.mark.parametrize("changes, message", [
    ({"context": None}, "'context'.*'id', 'title', 'question', 'answers'"),
    ({"question": ["a", None]}, "row 2.*'question'"), ({"id": [1, 2]}, "row 1: 'id'"),
    ({"id": ["q", "q"]}, "row 2.*same id"), ({"answers": [["a"], ["b"]]}, "row 1.*'answers'"),
    ({"answers": [{"text": ["a"], "answer_start": [1, 2]}] * 2}, "row 1,.*'text' is missing"),
    ({"id": [], "answers": []}, "squad.parquet"),
])
def test_rows_that_do_not_fit(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        SquadTask().read(of_rows(tmp_path, **changes))
    path = of_rows(tmp_path, "squad.jsonl")
    with open(path, "a", encoding="utf-8") as stream:
        stream.write('{"id": "q3", "question": "a"}\n')
    with pytest.raises(InputError, match="line 5: .*'context'"):
        SquadTask().read(path)


# --- several files

def test_several_files_are_one_set(tmp_path, caplog):
    caplog.set_level("INFO")
    of_rows(tmp_path, "part-1.jsonl")
    of_rows(tmp_path, "part-0.parquet", id=["p1", "p2"])
    pattern = f"{tmp_path}/part-*"
    data = SquadTask().read(pattern, "train")
    assert [example.qas_id for example in data.examples] == ["p1", "p2", "q1", "q2"]
    assert [path[-9:] for path in data.paths] == ["0.parquet", "t-1.jsonl"]
    assert sorted(SquadTask().sources("train", data)) == ["train data 0", "train data 1"]
    assert "--train_file: 4 examples from 2 files: " in caplog.text
    of_rows(tmp_path, "part-2.jsonl")
    with pytest.raises(InputError, match="part-2.jsonl, line 1, .*part-1.jsonl, line 1"):
        SquadTask().read(pattern, "train")
    with pytest.raises(InputError, match="--predict_file: no file matches"):
        SquadTask().read(f"{tmp_path}/dev-*", "predict")
