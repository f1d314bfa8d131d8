"""Parquet and Arrow files, as `datasets`, pandas and pyarrow write them.

Skipped without pyarrow, except what is said without it.
"""

import random
import sys

import pytest

from albert_tf import row_files
from albert_tf.errors import InputError
from tests.row_tables import class_label, table, write


def rows_of(path, *names, **options):
    return [row for _, row in row_files.read_rows(path, names, **options)]


KINDS = [".parquet", ".feather", ".arrow"]


@pytest.mark.parametrize("end", KINDS)
def test_rows_are_numbered_and_have_the_columns_that_are_asked_for(tmp_path, end):
    path = write(tmp_path / f"x{end}", table(
        {"text": [f"text {i}" for i in range(25)], "other": list(range(25))}), rows=10)
    assert list(row_files.read_rows(path, ["text"], ["missing"])) == [
        (i + 1, {"text": f"text {i}"}) for i in range(25)]
    assert list(row_files.columns_of(path)) == ["text", "other"]


@pytest.mark.parametrize("end", KINDS)
def test_numbers_become_the_names_in_the_schema(tmp_path, end):
    path = write(tmp_path / f"x{end}", table(
        {"label": [1, 0, -1, None], "tags": [[0, 1], [], None, [1]], "number": [1] * 4},
        label=class_label("bad", "good"), number={"dtype": "int64", "_type": "Value"},
        tags={"feature": class_label("O", "B-X"), "_type": "List"}))
    assert rows_of(path, "label", "tags", "number") == [
        {"label": "good", "tags": ["O", "B-X"], "number": 1},
        {"label": "bad", "tags": [], "number": 1},
        {"label": None, "tags": None, "number": 1},
        {"label": None, "tags": ["B-X"], "number": 1}]
    columns = row_files.columns_of(path)
    assert columns == {"label": ("bad", "good"), "tags": ("O", "B-X"), "number": ()}


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    for name, made, columns, message in (
            ("a.parquet", table({"label": [0, 2]}, label=class_label("bad", "good")),
             ["label"], "a.parquet: column 'label' holds 2"),
            ("b.parquet", table({"text": ["a"], "label": [1]}), ["words"],
             "b.parquet: there is no column 'words'; the columns are 'text', 'label'; choose"),
            ("c.feather", pa.Table.from_arrays(
                [pa.array(["a"]), pa.array(["b"])], ["text", "text"]), ["text"],
             "c.feather: 2 columns are named 'text'"),
            ("d.arrow", table({"text": pa.array([b"fine", b"f\xfcr"]).view(pa.string())}),
             ["text"], "d.arrow: .*UTF8"),
            ("e.parquet", table({"text": ["a"], "time": pa.array(
                [2 ** 40], pa.timestamp("s"))}), ["time"], "e.parquet: ")):
        with pytest.raises(InputError, match=message):
            rows_of(write(tmp_path / name, made), *columns, advice="choose one")
    assert rows_of(str(tmp_path / "e.parquet"), "text") == [{"text": "a"}]
    (tmp_path / "text.parquet").write_text("text,label\nfine,1\n" * 20)
    for name in ("text.parquet", "gone.parquet"):
        with pytest.raises(InputError, match=f"{name}: "):
            rows_of(str(tmp_path / name), "text")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install 'albert_tf.parquet.'"):
        rows_of(str(tmp_path / "e.parquet"), "text")


@pytest.mark.parametrize("end", KINDS)
def test_dictionaries_are_decoded(tmp_path, end):
    pa = pytest.importorskip("pyarrow")
    texts = pa.array(["yes", "no", None, "yes"]).dictionary_encode()
    path = write(tmp_path / f"x{end}", table({"label": texts}))
    assert [row["label"] for row in rows_of(path, "label")] == [
        "yes", "no", None, "yes"]


# --- what does not fit


@pytest.mark.parametrize("end", KINDS)
def test_a_file_that_is_cut_short(tmp_path, end):
    path = tmp_path / f"x{end}"
    write(path, table({"text": [f"{i} " * 20 for i in range(500)]}), rows=50)
    content = path.read_bytes()
    for size in (0, 1, 7, len(content) // 2, len(content) - 30):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=rf"x{end}: .*cut short"):
            rows_of(str(path), "text")


@pytest.mark.parametrize("end", KINDS)
def test_a_damaged_file(tmp_path, end):
    """pyarrow raises several errors, and ends the process where lengths disagree."""
    pa = pytest.importorskip("pyarrow")
    path, draw = tmp_path / f"x{end}", random.Random(2)
    write(path, table({
        "text": [f"{i} é " * 5 for i in range(300)],
        "label": pa.array(["abc"[i % 3] for i in range(300)]).dictionary_encode(),
        "tags": [[i % 3] * (i % 4) for i in range(300)],
        "answers": [{"text": ["x"] * (i % 3), "answer_start": [i] * (i % 3)}
                    for i in range(300)]},
        tags={"feature": class_label("a", "b", "c"), "_type": "List"}), rows=100)
    content, refused = path.read_bytes(), 0
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


# --- memory


@pytest.mark.parametrize("end", KINDS)
def test_memory_does_not_grow_with_the_file(tmp_path, end):
    pa = pytest.importorskip("pyarrow")
    # A Parquet file is one row group; Arrow has batches, as `datasets` writes them.
    path = write(tmp_path / f"x{end}", table(
        {"text": [f"{i:09}" * 50 for i in range(60_000)], "other": [1.0] * 60_000}),
        rows=100_000 if end == ".parquet" else 1000)
    before, most = pa.total_allocated_bytes(), 0
    for number, row in row_files.read_rows(path, ["text"]):  # noqa: B007
        if number % 500 == 1:
            most = max(most, pa.total_allocated_bytes() - before)
    assert number == 60_000 and row["text"] == f"{59_999:09}" * 50
    assert most < 6e6  # of 27 MB


def test_long_rows_are_read_few_at_a_time(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", table(
        {"text": [str(i) * 1000 for i in range(10)]}), rows=4)
    for size, expected in ((3500, 2), (10, 1)):
        monkeypatch.setattr(row_files, "_BATCH", size)
        with row_files._opened(path) as (_, batches):
            assert max(batch.num_rows for batch in batches(["text"])) == expected
