"""Vectors of many texts in a file: their numbers, formats, resuming, wrong inputs.

Parquet needs pyarrow; its tests are skipped without.
"""

import json
import os
import pathlib
import shutil
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest

import albert_tf
from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.errors import InputError
from albert_tf.features import extract as job, vectors as features
from albert_tf.features.extract import Options
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.commands import run_commands
from tests.serving import tiny_models

TEXTS = ["It is.", "", "The first text of them is long. " * 20, "Größe", "x"]
LINES = [f"text number {i}, " * (i % 7 + 1) for i in range(30)]
pytestmark = pytest.mark.usefixtures("eager")  # In graphs: test_layer_distances.
NEEDS_PYARROW = pytest.mark.skipif(
    find_spec("pyarrow") is None, reason="needs pyarrow")


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory):
    return tiny_models.write(tmp_path_factory.mktemp("model") / "tf1", "pretrained")


def texts_in(folder, lines, name="texts.txt"):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


def extract(model, folder, name, pooling=(), layers=(-1,), lines=TEXTS, **options):
    """The file made of some lines; further options are those of a job or of Options."""
    output = str(folder / name)
    jobs = {each: options.pop(each) for each in ("unit_texts", "vocabulary", "work_dir")
            if each in options}
    job.extract(model, [texts_in(folder, lines)], output,
                Options(pooling, layers, **options), **jobs)
    return output


def streamed(model, paths, options=Options(), held=1024, **columns):
    """The rows of texts, without a file."""
    loaded = job.load(model, options.of(formats.read(model)), None)
    return list(job.stream(loaded, job.texts(paths, columns), held))


def rows_of(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


# ---- numbers ---------------------------------------------------------------


def test_vectors_are_the_model_s_after_any_pass(model, tmp_path):
    loaded = albert_tf.load(model)
    pooling = ("pooled", "mean", "cls", "max", "lasttoken", "pieces")
    rows = rows_of(extract(model, tmp_path, "out.jsonl", pooling, (1, -1)))
    assert len(rows) == len(TEXTS)
    for text, row in zip(TEXTS, rows):
        batch = loaded.tokenizer(text, max_length=64)
        out = loaded.model.bert(batch)
        hidden = np.stack([each[0].numpy() for each in out["encoder_outputs"]])
        first = loaded.model.bert.pooler(hidden[:, 0]).numpy()
        for name, expected in (
                ("pooled", first), ("mean", hidden.mean(axis=1)), ("cls", hidden[:, 0]),
                ("max", hidden.max(axis=1)), ("lasttoken", hidden[:, -1]),
                ("piece_vectors", hidden.transpose(1, 0, 2))):
            np.testing.assert_allclose(row[name], expected, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(first[-1], out["pooled_output"][0], atol=1e-5)
        assert row["pieces"] == loaded.tokenizer.convert_ids_to_tokens(
            batch["input_ids"][0])


def test_the_first_passes_alone_are_computed(model, monkeypatch):
    head = features.Features(albert_tf.load(model), Options(("mean",), (1,), 16))
    bert = mock.Mock(side_effect=head.bert)
    monkeypatch.setattr(head, "bert", bert)
    head.compute({name: np.ones([1, 4], np.int32) for name in head.inputs})
    [call] = bert.call_args_list
    assert call.kwargs["computation"].passes == 1


def test_cut_texts_are_counted(model, tmp_path, caplog):
    path = texts_in(tmp_path, TEXTS[2:] + TEXTS[:3])
    options = Options(("mean",), max_seq_length=16)
    job.extract(model, [path], str(tmp_path / "out.jsonl"), options, unit_texts=2)
    assert len(streamed(model, [path], options)) == 6
    assert caplog.text.count("2 of 6 texts are longer than the 16 tokens that the model "
                             "reads, and are cut; --windows") == 2


def test_windows_are_averaged(model, tmp_path, caplog):
    """Also over layers; a text that fits has the same vectors as without. The means
    themselves are in tests/serving/test_predict.py."""
    rows = {}
    for windows in (True, False):
        rows[windows] = rows_of(extract(
            model, tmp_path, f"{windows}.jsonl", ("mean", "pooled"), (1, 2),
            max_seq_length=16, windows=windows))
        assert ("are cut" in caplog.text) == (not windows)
    for i, (row, cut) in enumerate(zip(rows[True], rows[False])):
        for kind in row:
            assert np.allclose(row[kind], cut[kind], atol=1e-6) == (i != 2)


def test_pairs_ids_and_columns_of_a_table(model, tmp_path):
    lines = ['{"id": 7, "text": "It is.", "text_pair": "Größe"}', '{"text": "x"}']
    options = Options(("mean",))
    [row] = streamed(model, [texts_in(tmp_path, ["It is."])])
    [answer] = albert_tf.load(model).predict(["It is."], task="embed")
    assert row.keys() == answer.keys() == {"pooled", "mean"}  # the default
    rows = streamed(model, [texts_in(tmp_path, lines, "in.jsonl")], options)
    assert list(rows[0]) == ["id", "mean"] and rows[0]["id"] == 7
    assert list(rows[1]) == ["mean"]
    [expected] = albert_tf.load(model).predict(["It is."], ["Größe"], task="embed")
    np.testing.assert_allclose(rows[0]["mean"], expected["mean"], atol=1e-6)
    [row] = streamed(model, [texts_in(tmp_path, ["It is.\tGröße"])], options)
    np.testing.assert_allclose(row["mean"], rows[0]["mean"], atol=1e-6)
    (tmp_path / "in.csv").write_text("key,review\n7,x\n")
    [row] = streamed(model, [str(tmp_path / "in.csv")], options, text_column="review",
                     id_column="key")
    assert row["id"] == "7"
    np.testing.assert_allclose(row["mean"], rows[1]["mean"], atol=1e-6)


# ---- formats ---------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "out.npz", pytest.param("out.parquet", marks=NEEDS_PYARROW)])
@pytest.mark.parametrize("layers", [(-1,), (1, 2)])
def test_other_formats_hold_what_json_lines_hold(name, layers, model, tmp_path):
    options = dict(pooling=("mean", "pieces"), layers=layers, max_seq_length=16,
                   truncated=True, unit_texts=2)
    rows = rows_of(extract(model, tmp_path, "out.jsonl", **options))
    assert [row["truncated"] for row in rows] == [False, False, True, False, False]
    path = extract(model, tmp_path, name, **options)
    if name == "out.npz":
        columns = dict(np.load(path))
        ends = np.cumsum(columns.pop("piece_counts"))[:-1]
        for each in ("pieces", "piece_vectors"):
            columns[each] = np.split(columns[each], ends)
        assert columns["mean"].dtype == np.float32
        found = [dict(zip(columns, values)) for values in zip(*columns.values())]
    else:
        from pyarrow import parquet
        found = parquet.read_table(path).to_pylist()
    for row, other in zip(rows, found, strict=True):
        assert row.keys() == other.keys() and row["pieces"] == list(other["pieces"])
        assert row["truncated"] == other["truncated"]
        for each in ("mean", "piece_vectors"):
            np.testing.assert_allclose(row[each], other[each], atol=1e-6)


@pytest.mark.parametrize("ids, kept", [
    ([5, -2**63], [5, -2**63]), (["a", "longer"], ["a", "longer"]),
    ([3, "b"], ["3", "b"]), ([3, 2**63], ["3", "9223372036854775808"]),
    ([1.5, None], ["1.5", ""]), ([None, 2], ["", "2"])])
def test_ids_of_columns(ids, kept, model, tmp_path):
    path = texts_in(tmp_path, [json.dumps({"id": i, "text": "x"}) for i in ids], "in.jsonl")
    job.extract(model, [path], str(tmp_path / "out.npz"), Options(("mean",)), unit_texts=1)
    assert np.load(tmp_path / "out.npz")["id"].tolist() == kept


# ---- resuming --------------------------------------------------------------


def test_a_run_that_was_stopped_is_resumed(model, tmp_path, monkeypatch):
    path = texts_in(tmp_path, LINES)
    whole, broken, computed = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl", []
    job.extract(model, [path], str(whole), unit_texts=7)
    rows = features.Features.rows

    def some(head, inputs):
        computed.append(len(inputs))
        if len(computed) == 3:
            raise KeyboardInterrupt
        return rows(head, inputs)

    monkeypatch.setattr(features.Features, "rows", some)
    with pytest.raises(KeyboardInterrupt):
        job.extract(model, [path], str(broken), unit_texts=7)
    assert not broken.exists()
    job.extract(model, [path], str(broken), unit_texts=7)
    assert computed == [7, 7, 7, 7, 7, 2]
    assert whole.read_bytes() == broken.read_bytes()
    assert {*os.listdir(tmp_path)} == {"texts.txt", "whole.jsonl", "broken.jsonl"}


def test_another_text_begins_anew_and_other_options_are_refused(
        model, tmp_path, monkeypatch):
    given, cased = (FullTokenizer(None, lower, str(tiny_models.SPM))
                    for lower in (True, False))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "copyfileobj", mock.Mock(side_effect=KeyboardInterrupt))
        extract(model, tmp_path, "out.jsonl", ("mean",), vocabulary=given)
    for pooling, vocabulary, message in (
            ("max", given, "pooling=.'mean'"), ("mean", cased, "do_lower_case=True")):
        with pytest.raises(InputError, match=message):
            extract(model, tmp_path, "out.jsonl", (pooling,), vocabulary=vocabulary)
    rows = rows_of(extract(model, tmp_path, "out.jsonl", ("mean",), lines=["x"] * 3,
                           vocabulary=given))
    assert len(rows) == 3
    np.testing.assert_allclose(rows[0]["mean"], rows[2]["mean"], atol=1e-6)


def test_units_are_bounded_in_bytes(model, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_UNIT_BYTES", 4 * 16 * 50)
    with mock.patch.object(features.Features, "rows", autospec=True,
                           side_effect=features.Features.rows) as rows:
        extract(model, tmp_path, "pieces.jsonl", ("pieces",), lines=["abcde"] * 12,
                max_seq_length=8)
    # Of at most eight pieces each.
    assert [len(call.args[1]) for call in rows.call_args_list] == [6, 6]


# ---- wrong inputs ----------------------------------------------------------


@pytest.mark.parametrize("options, flag", [
    *(({"pooling": kinds.split(",")}, f"--pooling={kinds.partition(',')[0]}")
      for kinds in ("media", "embedding")),
    *(({"layers": layers}, f"--layers={layers[-1]}")
      for layers in ((1, 3), ("last",))),
    *(({"max_seq_length": length}, f"--max_seq_length={length}") for length in (65, 3)),
    ({"pooling": ("pieces",), "windows": True}, "--pooling=pieces")])
def test_options_that_a_model_has_not(options, flag, model, tmp_path):
    with pytest.raises(InputError, match=f"{flag}:"):
        extract(model, tmp_path, "out.jsonl", **options)
    assert os.listdir(tmp_path) == ["texts.txt"]


@pytest.mark.parametrize("name, line, output, pattern", [
    ("in.jsonl", '{"txt": "x"}', "o.jsonl", "in.jsonl, line 2: there is no input 'txt'"),
    ("in.jsonl", '{"text": 5}', "o.jsonl", "line 2: 'text' is 5, not a text"),
    ("in.jsonl", '{"text": "x"', "o.jsonl", "in.jsonl, line 2: not JSON"),
    ("in.jsonl", "", "o.txt", "--output_file=.*o.txt: the format is not known.*.npz"),
    ("in.jsonl", "", "in.jsonl", "in.jsonl exists already; give a new name"),
])
def test_wrong_texts_are_found_before_the_model_is_loaded(
        name, line, output, pattern, model, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "load", None)
    path = texts_in(tmp_path, ['{"id": 3, "text": "It is."}', line], name)
    with pytest.raises(InputError, match=pattern):
        job.extract(model, [path], str(tmp_path / output))
    assert os.listdir(tmp_path) == [name]


def test_files_without_a_text(model, tmp_path):
    with pytest.raises(InputError, match="there is no text in it"):
        extract(model, tmp_path, "o.jsonl", lines=[])


# ---- the standard input, and the command -----------------------------------


def test_the_standard_input(model, tmp_path, monkeypatch):
    given = "It is.\n" + '{"id": 1, "text": "x"}\n'
    for run in range(2):
        read, write = os.pipe()
        os.write(write, given.encode())
        os.close(write)
        monkeypatch.setattr(files, "open", lambda file, mode, **options: (
            os.fdopen(read, mode) if file == 0 else open(file, mode, **options)),
            raising=False)
        if run:
            job.extract(model, ["-"], str(tmp_path / "out.jsonl"))
            found = rows_of(tmp_path / "out.jsonl")
        else:
            found = streamed(model, ["-"], held=1)
        assert [row.get("id") for row in found] == [None, 1]
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_folder_without_its_vocabulary(model, tmp_path):
    bare, named = tmp_path / "bare", tmp_path / "named"
    for folder in bare, named:
        shutil.copytree(model, folder)
        (folder / tiny_models.SPM.name).unlink()
    (named / "task.json").unlink(missing_ok=True)
    (named / "vocabulary.json").write_text(
        json.dumps({"file": "other.model", "sha256": "0" * 64}))
    given = FullTokenizer(spm_model_file=str(tiny_models.SPM))
    for folder, vocabulary, pattern in (
            (bare, None, "/bare/.*: .*--spm_model_file"),
            (named, given, "/named, .* other.model")):
        with pytest.raises(InputError, match=pattern):
            extract(str(folder), tmp_path, "out.jsonl", vocabulary=vocabulary)
    assert len(rows_of(extract(
        str(bare), tmp_path, "out.jsonl", vocabulary=given))) == len(TEXTS)


@pytest.mark.long
def test_the_command(model, tmp_path):
    common = [f"--model={model}", f"--input_file={texts_in(tmp_path, TEXTS)}"]
    with run_commands("extract_features", {
            "wrong layers": [*common, "--layers=last"],
            "made": [*common, f"--output_file={tmp_path}/out.npz", "--pooling=mean,max",
                     "--layers=-1,-2", "--max_seq_length=9"],
    }, light={"wrong layers"}) as found:
        found.refused("wrong layers", "--layers=last")
        made = found.ok("made")
    arrays = np.load(tmp_path / "out.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "mean": (5, 2, 16), "max": (5, 2, 16)}
    assert "embedding: 5 of 5 texts (100.0%)" in made["log"]
