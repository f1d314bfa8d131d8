"""Texts for prediction from tables, JSON lines and Parquet."""

import io

import pytest

from albert_tf.errors import InputError
from albert_tf.text import inputs
from tests import row_tables
from tests.test_rows import write


@pytest.mark.parametrize("name, content, columns, given", [
    ("x.csv", 'id,text\n7,"a, b"\n', dict(text_column="text"), ["a, b"]),
    ("x.TSV", "id\ttext\tother\n7\ta\tb\n", dict(
        text_column="text", text_b_column="other"), [("a", "b")]),
    ("x.tsv.gz", "a\tb\n", dict(text_column="1", header=False), ["b"]),
    ("x.csv", "id;text\n7;a\n", dict(text_column="text", delimiter=";"), ["a"]),
    ("x.jsonl", '{"text": "a"}\n{"review": "b", "stars": 5}\n',
     dict(text_column="review"), [{"text": "a"}, "b"]),
    ("x.jsonl", '{"text": "a", "text_pair": "b", "label": "x"}\n',
     dict(text_column="text"), [("a", "b")]),
    ("x.jsonl", '{"text": "a"}\n', dict(text_column="0"), [{"text": "a"}]),
    ("x.txt", "a,b\nc\td\n", dict(text_column="text"), ["a,b", ("c", "d")]),
    # Not a pair whose second text has tabs.
    ("x.txt", "a\tb\tc\td\n", dict(text_column="text"), [("a", "b", "c", "d")]),
])
def test_inputs_are_read_as_in_training(tmp_path, name, content, columns, given):
    path = write(tmp_path, name, content)
    assert [each.given for each in inputs.read(path, **columns)] == given


def test_objects_and_texts_of_the_standard_input(monkeypatch):
    lines = '{"review": "a", "id": 7}\n{"review": null, "text_pair": "b"}\n{"text"\nc\td\n\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    found = list(inputs.read("-", "review"))
    assert found[0] == ("a", {"id": 7}, "the standard input, line 1", 1)
    assert [each.given for each in (found[1], *found[3:])] == [(None, "b"), ("c", "d"), ""]
    assert str(found[2].given).startswith("not JSON (")


def test_ids_and_lines_of_inputs_and_wrong_rows(tmp_path):
    path = write(tmp_path, "x.csv", 'key,text\nk,"a\nb"\nl,\nm\n\nn,c\n')
    found = list(inputs.read(path, "text", id_column="key"))
    assert [(each.line, each.kept) for each in found] == [
        (2, {"id": "k"}), (4, {"id": "l"}), (5, {}), (7, {"id": "n"})]
    assert str(found[1].given) == (
        "the text of column 'text' is empty; fill it in, or remove the line.")
    assert str(found[2].given).startswith("the row has 1 columns, but the first line has 2")


@pytest.mark.parametrize("content", [
    '{"text": "a", "id": NaN}', '{"text": "a", "id": [1, Infinity]}',
    '{"review": "a", "id": 1e999}'])
def test_ids_that_are_no_json_are_errors(tmp_path, content):
    [found] = inputs.read(write(tmp_path, "x.jsonl", content), "review", id_column="id")
    assert found.kept == {} and "which is not JSON" in str(found.given)


@pytest.mark.parametrize("columns, message", [
    ({}, "x.csv is a table, but its columns are not known: give --text_column"),
    (dict(text_column="review"), "x.csv: there is no column 'review'"),
])
def test_inputs_of_an_unknown_column_are_refused(tmp_path, columns, message):
    with pytest.raises(InputError, match=message):
        list(inputs.read(write(tmp_path, "x.csv", "id,text\n7,a\n"), **columns))


def test_inputs_of_parquet(tmp_path):
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table({
        "review": ["fine", None], "title": ["a", "b"], "key": [7, 8]}))
    found = list(inputs.read(path, "review", "title", id_column="key"))
    assert found[0] == (("fine", "a"), {"id": 7}, f"{path}, row 1", 1)
    assert str(found[1].given) == "'review' is missing; it must be a text."
    assert found[1].kept == {"id": 8}
    # Without the flag, columns are called as the inputs of the model.
    with pytest.raises(InputError, match="'review', 'title', 'key'.*--text_column"):
        list(inputs.read(path))
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table({
        "id": ["k", None], "text": ["one", "two"], "text_pair": ["un", None],
        "label": [0, 1]}))
    assert [(each.given, each.kept) for each in inputs.read(path)] == [
        ({"text": "one", "text_pair": "un"}, {"id": "k"}), ({"text": "two"}, {})]
