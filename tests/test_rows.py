"""CSV, TSV, JSON lines, and Parquet and Arrow, whose tests need pyarrow.

    python -m pytest -n 0 tests/test_rows.py
"""

import gzip
import random

import pytest

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.rows import columns_of, kind_of, number_of, rows, text, typed
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
    ("x.csv", f"text,label\n{'a ' * 100_000},yes\n", {}, [("a " * 100_000, "yes")]),
    ("x.jsonl", '{"text": "a", "label": [1, null]}', {}, [("a", [1, None])]),
])
def test_rows_of_text_files(tmp_path, name, content, options, expected):
    path = write(tmp_path, name, content)
    assert [(row["text"], row["label"])
            for _, row in rows(path, ["text", "label"], **options)] == expected


def test_columns_by_number_and_without_names(tmp_path):
    path = write(tmp_path, "x.tsv", "no\tA\tB\n\nyes\tC\tD\n")
    assert list(rows(path, ["2", "0"], ["7"], header=False)) == [
        (f"{path}, line 1", {"2": "B", "0": "no"}),
        (f"{path}, line 3", {"2": "D", "0": "yes"})]
    assert list(rows(path)) == [(f"{path}, line 3", {"no": "yes", "A": "C", "B": "D"})]
    assert [row for _, row in rows(path, ["1"])] == [{"1": "C"}]
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table(
        {"a": ["one"], "b": [2]}))
    assert list(rows(path, ["1", "a"], ["no"])) == [
        (f"{path}, row 1", {"1": 2, "a": "one"})]


def test_wrong_rows_may_be_kept(tmp_path):
    path = write(tmp_path, "x.csv", 'a,b\n1\n"2\n3",4\n')
    (where, error), (_, row) = rows(path, keep_wrong=True)
    assert number_of(where) == 2 and isinstance(error, InputError)
    assert row == {"a": "2\n3", "b": "4"}
    assert [row for _, row in rows(path, ragged=True)] == [{"a": "1"}, row]
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
    # What is no table as it was named.
    ("x.csv", "text;label\na;yes\n", {}, "give --delimiter"),
    ("x.csv", '"text";"label"\n"a";"yes"\n', {}, "give --delimiter"),
    ("x.tsv", "text,label\na,yes\n", {}, "give --delimiter"),
    ("x.csv", "text,label\na\0b,yes\n", {}, "line 2: .*NUL"),
    ("x.csv", "text,label\na,yes\n".encode("utf-16"), {}, "line 1: .*UTF-8"),
    ("x.csv", "text,label\na,yes\n".encode("utf-16-le"), {}, "line 1: .*NUL"),
    ("x.csv", b"text,label\na\xe9,yes\n", {}, "line 2: .*UTF-8"),
    ("x.csv", "text,label\ra,yes\rb,no", {}, "line 1: carriage returns alone"),
    ("x.csv", b"PK\3\4" + bytes(99), {}, "line 1: .*spreadsheet"),
    ("x.xlsx", "PK", {}, "CSV in UTF-8"), ("x.txt", "a", {}, "extension"),
    ("x.csv", "text\n", dict(delimiter="::"), "1-character.*--delimiter"),
    ("x.tsv", "a\tyes\n", dict(header=False), "'text'"),
    ("x.tsv", HEADER, dict(optional=["0"]), "'text' and '0' are the same column"),
    ("x.tsv.gz", gzip.compress(HEADER.encode(), mtime=0)[:-9], {}, "x.tsv.gz"),
])
def test_a_wrong_file_is_refused(tmp_path, name, content, options, message):
    with pytest.raises(InputError, match=message):
        list(rows(write(tmp_path, name, content), ["text", "label"], **options))


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
    with pytest.raises(InputError, match=r"x: 'a' is 'b\\x00'; it must be a text; NUL"):
        text(text_files.parse_json(r'{"a": "b\ud83d"}', "x"), "x", "a")


# --- Parquet and Arrow


def rows_of(path, *names, **options):
    return [row for _, row in rows(path, names, **options)]


KINDS = [".parquet", ".feather", ".arrow"]


@pytest.mark.parametrize("end", KINDS)
def test_rows_are_numbered_and_numbers_become_the_names_in_the_schema(tmp_path, end):
    pa = pytest.importorskip("pyarrow")
    path = row_tables.write(tmp_path / f"x{end}", row_tables.table(
        {"label": [1, 0, -1, None], "tags": [[0, 1], [], None, [1]], "number": [1] * 4,
         "coded": pa.array(["yes", "no", None, "yes"]).dictionary_encode()},
        label=row_tables.class_label("bad", "good"),
        number={"dtype": "int64", "_type": "Value"},
        tags={"feature": row_tables.class_label("O", "B-X"), "_type": "List"}), rows=3)
    columns = columns_of(path)
    assert columns == {
        "label": ("bad", "good"), "tags": ("O", "B-X"), "number": (), "coded": ()}
    assert [tuple(row.values()) for row in rows_of(path, *columns)] == [
        ("good", ["O", "B-X"], 1, "yes"), ("bad", [], 1, "no"), (None, None, 1, None),
        (None, ["B-X"], 1, "yes")]
    assert [*rows(path, ["number"], ["missing"])] == [
        (f"{path}, row {i}", {"number": 1}) for i in range(1, 5)]


def test_what_does_not_fit_in_parquet_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    for name, made, columns, message in (
            ("a.parquet", row_tables.table(
                {"label": [0, 2]}, label=row_tables.class_label("bad", "good")),
             ["label"], "a.parquet: .* of a different kind"),
            ("b.parquet", row_tables.table({"text": ["a"], "label": [1]}), ["words"],
             "b.parquet: there is no column 'words'; the columns are 'text', 'label'; choose"),
            ("c.feather", pa.Table.from_arrays(
                [pa.array(["a"]), pa.array(["b"])], ["text", "text"]), ["text"],
             "c.feather: 2 columns are named 'text'"),
            ("d.arrow", row_tables.table({
                "text": pa.array([b"fine", b"f\xfcr"]).view(pa.string())}),
             ["text"], "d.arrow: .*UTF8"),
            ("e.parquet", row_tables.table({"text": ["a"], "time": pa.array(
                [2 ** 40], pa.timestamp("s"))}), ["time"], "e.parquet: ")):
        with pytest.raises(InputError, match=message):
            rows_of(row_tables.write(tmp_path / name, made), *columns, advice="choose one")
    assert rows_of(str(tmp_path / "e.parquet"), "text") == [{"text": "a"}]
    (tmp_path / "text.parquet").write_text("text,label\nfine,1\n" * 20)
    for name in ("text.parquet", "gone.parquet"):
        with pytest.raises(InputError, match=f"{name}: "):
            rows_of(str(tmp_path / name), "text")


@pytest.mark.parametrize("end", KINDS)
def test_a_damaged_file(tmp_path, end):
    """pyarrow raises several errors, and ends the process where lengths disagree."""
    pa = pytest.importorskip("pyarrow")
    path, draw = tmp_path / f"x{end}", random.Random(2)
    row_tables.write(path, row_tables.table({
        "text": [f"{i} é " * 5 for i in range(300)],
        "label": pa.array(["abc"[i % 3] for i in range(300)]).dictionary_encode(),
        "tags": [[i % 3] * (i % 4) for i in range(300)],
        "answers": [{"text": ["x"] * (i % 3), "answer_start": [i] * (i % 3)}
                    for i in range(300)]},
        tags={"feature": row_tables.class_label("a", "b", "c"), "_type": "List"}), rows=100)
    content, refused = path.read_bytes(), 0
    for size in (0, 1, 7, len(content) // 2, len(content) - 30):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=rf"x{end}: .*cut short"):
            rows_of(str(path), "text")
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 8])):
            place, size = draw.randrange(len(damaged)), draw.choice([1, 1, 4, 16])
            damaged[place:place + size] = draw.randbytes(draw.choice([1, 1, 4, 16]))
        path.write_bytes(damaged)
        try:
            rows_of(str(path), "text", "label", "tags", "answers")
        except InputError as error:
            assert f"x{end}" in str(error)
            refused += 1
    assert refused > 75


@pytest.mark.parametrize("end", KINDS)
def test_memory_does_not_grow_with_the_file(tmp_path, end):
    pa = pytest.importorskip("pyarrow")
    # A Parquet file is one row group; Arrow has batches, as `datasets` writes them.
    path = row_tables.write(tmp_path / f"x{end}", row_tables.table(
        {"text": [f"{i:09}" * 50 for i in range(60_000)], "other": [1.0] * 60_000}),
        rows=100_000 if end == ".parquet" else 1000)
    before, most = pa.total_allocated_bytes(), 0
    for number, (_, row) in enumerate(rows(path, ["text"]), 1):  # noqa: B007
        if number % 500 == 1:
            most = max(most, pa.total_allocated_bytes() - before)
    assert number == 60_000 and row["text"] == f"{59_999:09}" * 50
    assert most < 6e6  # of 27 MB

