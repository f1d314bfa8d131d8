"""Texts for prediction from tables, JSON lines, Parquet and pipes."""

import datetime
import os

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


@pytest.fixture
def piped():
    """Puts bytes into the standard input, or into a pipe; returns its path."""
    kept = os.dup(0)

    def put(content, path):
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        if path == "-":
            os.dup2(read, 0)
            os.close(read)
        return "-" if path == "-" else f"/dev/fd/{read}"

    yield put
    os.dup2(kept, 0)
    os.close(kept)


JSON = '{"review": "a", "id": 7}\n\n{"review": null, "text_pair": "b"}\n{"text"\nc\td\n'


@pytest.mark.parametrize("path", ["-", "pipe"])
@pytest.mark.parametrize("name, content, count", [
    ("x.jsonl", JSON.encode(), 4), ("x.jsonl", f"\ufeff{JSON}".encode(), 4),
    ("x.jsonl", b'\r\n  { "review": "a"}', 1),
    ("x.jsonl", b"{}", 1), ("x.txt", b"a story\rb\tc\r", None), ("x.txt", b"\n", 1),
    ("x.txt", b"", 0), ("x.csv", b'id,"review"\n7,"a, b\nc"\n', 1),
    ("x.tsv", b'id\treview\n7\t"a\n', 1),
    ("x.txt", "a fine story\n".encode("utf-16"), None),
    ("x.txt", "good\n".encode("utf-16-le"), None),
    ("x.jsonl", '{"a": 1}\n'.encode("utf-16-le"), None),
    ("x.txt", "gr\u00fcn".encode("latin-1"), None)])
def test_a_pipe_is_read_as_a_file_is(tmp_path, piped, name, content, count, path):
    def found(path, shown):
        try:
            return [each._replace(given=str(each.given), where=each.where.removeprefix(
                f"{shown}, ")) for each in inputs.read(
                        path, "review", column_needed=False)]
        except InputError as error:
            return str(error).removeprefix(f"{shown}, ")

    (tmp_path / name).write_bytes(content)
    expected = found(str(tmp_path / name), str(tmp_path / name))
    assert count is None if isinstance(expected, str) else len(expected) == count
    pipe = piped(content, path)
    assert found(pipe, "the standard input" if pipe == "-" else pipe) == expected


def test_the_objects_of_the_standard_input(piped):
    with pytest.raises(InputError, match="revew"):
        list(inputs.read(piped(b"id,review\n7,a fine story\n", "-"), "revew"))
    first, second, *_ = inputs.read(piped(JSON.encode(), "-"), "review")
    assert first == ("a", {"id": 7}, "the standard input, line 1", 1)
    assert second == ((None, "b"), {}, "the standard input, line 3", 3)


def test_ids_and_lines_of_inputs_and_wrong_rows(tmp_path):
    path = write(tmp_path, "x.csv", 'key,text\nk,"a\nb"\nl,\nm\n\nn,c\n')
    found = list(inputs.read(path, "text", id_column="key"))
    assert [(each.line, each.kept) for each in found] == [
        (2, {"id": "k"}), (4, {"id": "l"}), (5, {}), (7, {"id": "n"})]
    assert str(found[1].given) == (
        "the text of column 'text' is empty; fill it in, or remove the line.")
    assert str(found[2].given).startswith("the row has 1 columns, but the first line has 2")


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
    # Columns of other tasks are left out.
    assert [each.given for each in inputs.read(path, inputs=("text_pair", "word"))] == [
        {"text_pair": "un"}, {}]
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table({
        "id": [datetime.date(2026, 1, 2), None], "text": ["one", "two"]}))
    assert [each.kept for each in inputs.read(path)] == [{"id": "2026-01-02"}, {}]
