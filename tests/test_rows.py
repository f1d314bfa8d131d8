"""CSV, TSV and JSON lines as rows; tests/test_row_files.py has Parquet and Arrow.

    python -m pytest -n 0 tests/test_rows.py
"""

import gzip

import pytest

from albert_tf.errors import InputError
from albert_tf.rows import kind_of, number_of, rows, text, typed
from tests import row_tables

PAIR = [("fine", "yes"), ("not so", "no")]
JSON = '{"text": "fine", "label": "yes"}\n{"label": "no", "text": "not so"}'


def write(tmp_path, name, content):
    path = tmp_path / name
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


@pytest.mark.parametrize("name, content, options, expected", [
    ("x.tsv", "text\tlabel\tother\nfine\tyes\t1\nnot so\tno\t2\n", {}, PAIR),
    ("x.TSV", "\ufefftext\tlabel\tother\r\nfine\tyes\t1\r\nnot so\tno\t2", {}, PAIR),
    ("x.csv", "label,text\nyes,fine\nno,not so\n", {}, PAIR),
    ("x.csv", 'label, text\nyes,  "a, ""b"""\nno,c\n', {}, [('a, "b"', "yes"), ("c", "no")]),
    ("x.csv", 'label other text\nyes  "a b"\n', dict(delimiter=" "), [("a b", "yes")]),
    ("x.jsonl", JSON, {}, PAIR), ("x.json", JSON.replace("\n", "\n\n"), {}, PAIR),
    ("x.tsv.gz", "text\tlabel\nfine\tyes\nnot so\tno\n", {}, PAIR),
    ("x.txt", 'text;label\n"a;b";yes\n', dict(kind="csv", delimiter=";"), [("a;b", "yes")]),
    # Quotation marks are text in TSV; in CSV a cell may have delimiters and line ends.
    ("x.tsv", 'text\tlabel\n"He said ""\tyes\n', {}, [('"He said ""', "yes")]),
    ("x.csv", 'text,label\n"Say ""yes"",\nplease",yes\n', {},
     [('Say "yes",\nplease', "yes")]),
    # Carriage returns may end lines.
    ("x.csv", 'text,label\ra,yes\r"b\rc",no\r', {}, [("a", "yes"), ("b\nc", "no")]),
    ("x.jsonl", JSON.replace("\n", "\r"), {}, PAIR),
    ("x.csv", f"text,label\n{'a ' * 100_000},yes\n", {}, [("a " * 100_000, "yes")]),
    ("x.jsonl", '{"text": "a", "label": [1, null]}', {}, [("a", [1, None])]),
])
def test_rows_of_text_files(tmp_path, name, content, options, expected):
    path = write(tmp_path, name, content)
    assert [(row["text"], row["label"])
            for _, row in rows(path, ["text", "label"], **options)] == expected


def test_columns_by_number_and_without_names(tmp_path):
    path = write(tmp_path, "x.tsv", "no\tA\tB\n\nyes\tC\tD\n")
    blank = []
    assert list(rows(path, ["2", "0"], ["7"], header=False, blank=blank)) == [
        (f"{path}, line 1", {"2": "B", "0": "no"}),
        (f"{path}, line 3", {"2": "D", "0": "yes"})]
    assert blank == [2]
    assert list(rows(path)) == [(f"{path}, line 3", {"no": "yes", "A": "C", "B": "D"})]
    assert [row for _, row in rows(path, ["1"])] == [{"1": "C"}]
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table(
        {"a": ["one"], "b": [2]}))
    assert list(rows(path, ["1", "a"], ["no"])) == [
        (f"{path}, row 1", {"1": 2, "a": "one"})]


def test_lines_of_any_length(tmp_path):
    path = write(tmp_path, "x.tsv", "a\tb\n1\n2\t3\t4\n")
    assert [row for _, row in rows(path, ["a", "b"], ragged=True)] == [
        {"a": "1"}, {"a": "2", "b": "3", None: ["4"]}]


def test_wrong_rows_may_be_kept(tmp_path):
    path = write(tmp_path, "x.csv", 'a,b\n1\n"2\n3",4\n')
    (where, error), (_, row) = rows(path, keep_wrong=True)
    assert number_of(where) == 2 and isinstance(error, InputError)
    assert row == {"a": "2\n3", "b": "4"}
    (_, error), (where, row) = rows(
        write(tmp_path, "x.jsonl", '{"a"\n{"a": 1}'), keep_wrong=True)
    assert isinstance(error, InputError) and (number_of(where), row) == (2, {"a": 1})


HEADER = "text\tlabel\n"


@pytest.mark.parametrize("name, content, options, message", [
    ("x.tsv", "txt\tlabel\na\tyes\n", dict(advice="do this"), "'text'.*do this"),
    ("x.csv", "text,label,text\na,yes,b\n", {}, "2 columns are named 'text'"),
    ("x.tsv", HEADER + "a\tyes\nb\n", {}, "line 3"),
    ("x.tsv", HEADER + "a\tyes\tz\n", {}, "line 2"),
    ("x.csv", 'text,label\na,yes\n"b,no\n', {}, "line 3"),
    ("x.csv", 'text,label\n"a"b,no\n', {}, "line 2"),
    ("x.jsonl", '{"text": "a", "label": "x"}\n{"text": "a"', {}, "line 2"),
    ("x.json", '[\n{"text": "a", "label": "x"}\n]', {}, "line 1: .*array"),
    ("x.jsonl", '["a", "yes"]', {}, "line 1: .*object"),
    ("x.jsonl", '{"sentence": "a", "label": "x"}', {}, "line 1: .*'text'.*'sentence'"),
    ("x.jsonl", '{"text": "a\\ud83d", "label": "x"}', {}, "line 1: .*surrogate"),
    # What is no table as it was named.
    ("x.csv", "text;label\na;yes\n", {}, "give --delimiter"),
    ("x.csv", '"text";"label"\n"a";"yes"\n', {}, "give --delimiter"),
    ("x.tsv", "text,label\na,yes\n", {}, "give --delimiter"),
    ("x.csv", "text,label\na\0b,yes\n", {}, "line 2: .*NUL"),
    ("x.csv", "text,label\na,yes\n".encode("utf-16"), {}, "line 1: .*UTF-8"),
    ("x.csv", "text,label\na,yes\n".encode("utf-16-le"), {}, "line 1: .*NUL"),
    ("x.csv", b"text,label\na\xe9,yes\n", {}, "line 2: .*UTF-8"),
    ("x.csv", b"PK\3\4" + bytes(99), {}, "line 1: .*spreadsheet"),
    ("x.xlsx", "PK", {}, "CSV in UTF-8"), ("x.txt", "a", {}, "extension"),
    ("x.csv", "text\n", dict(delimiter="::"), "--delimiter='::'"),
    ("x.tsv", "a\tyes\n", dict(header=False), "'text'"),
    ("x.tsv.gz", gzip.compress(HEADER.encode(), mtime=0)[:-9], {}, "x.tsv.gz"),
])
def test_a_wrong_file_is_refused(tmp_path, name, content, options, message):
    with pytest.raises(InputError, match=message):
        list(rows(write(tmp_path, name, content), ["text", "label"], **options))


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="none.csv: No such file"):
        list(rows(str(tmp_path / "none.csv")))


@pytest.mark.parametrize("name, kind", [
    ("a.tsv", "tsv"), ("A.CSV.gz", "csv"), ("a.ndjson.zst", "jsonl"),
    ("a.arrow", "parquet"), ("a", "text"), ("a.csv.txt", "text")])
def test_the_name_tells_the_kind(name, kind):
    assert kind_of(name, "text") == kind


ROW = {"a": "x", "n": 1, "b": True, "l": ["x"], "o": {}, "e": " ", "null": None}


@pytest.mark.parametrize("kinds, wrong", [
    (dict(a=str, n=int, b=bool, l=[str], o=dict, none=(str, None)), ""),
    (dict(o=(str, dict), l=[(str, int)], null=(str, None)), ""),
    (dict(n=str), "'n' is 1; it must be a text"), (dict(b=int), "'b' is True"),
    (dict(l=[int]), "'l'"), (dict(l=[[str]]), "'l'"), (dict(null=str), "'null' is missing"),
    (dict(none=[str]), "'none' is missing; it must be a list"), (dict(a=[str]), "'a'")])
def test_types_of_values(kinds, wrong):
    if not wrong:
        assert typed(ROW, "x, line 1", **kinds) is ROW
        return
    with pytest.raises(InputError, match=f"x, line 1: {wrong}"):
        typed(ROW, "x, line 1", **kinds)


def test_a_text_is_not_empty():
    assert text(ROW, "x, line 1", "a") == "x"
    for column in ("e", "n", "null", "format"):
        with pytest.raises(InputError, match=f"x, row 1: .*'{column}'"):
            text({**ROW, "format": "\ufeff\u2060 \ufe0f"}, "x, row 1", column)
    with pytest.raises(InputError, match="x: 'a' is missing"):
        typed(["a"], "x", a=str)
