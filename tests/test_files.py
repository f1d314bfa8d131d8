"""Files: lines, JSON, and names that appear whole or not at all.

Compressed and damaged text: tests/pretraining_data/test_spans.py.
"""

import errno
import os
import pathlib

import pytest

from albert_tf import files, text_files
from albert_tf.checkpoints import formats
from albert_tf.errors import InputError, Interruption, reading, reason_of


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_lines_and_the_bytes_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n" + b"two\n" * 600 + b"three")
    told = []
    lines = list(text_files.read_lines(str(path), told.append))
    assert [lines[0], lines[1], lines[-1]] == [(1, "one"), (2, "two"), (602, "three")]
    assert len(told) == 3 and sum(told) == path.stat().st_size


def test_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write("~/new/a.txt", b"a\n")
    assert [*text_files.read_lines(pathlib.Path("~/new/a.txt"))] == [(1, "a")]
    assert files.expand_patterns("~/n*/a*", "--x") == [f"{tmp_path}/new/a.txt"]
    with pytest.raises(InputError, match=f"{tmp_path}/no: there is no such"):
        formats.read("~/no")
    with pytest.raises(InputError, match="--x=.*/new exists already"):
        files.check_new("~/new", "--x")


@pytest.mark.parametrize("content, message", [
    ('{"a":\n}', ", line 2: not JSON .*"), ("[1]", ": not a JSON object"),
    ('{"a": ' + "[" * 100_000, ": not JSON .*recursion depth.*"),
    ('{"a": ' + "9" * 5_000 + "}", ": not JSON .*digits.*")])
def test_json_objects(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert text_files.read_object(str(path)) == {"a": 1}
    path.write_text(content)
    with pytest.raises(InputError, match=f"a.json{message}; mend it"):
        text_files.read_object(str(path), "mend it")


@pytest.mark.parametrize("text, value", [
    (r'{"\ud83d": ["\ude00\ude00\u0000", {"b": "y\\\udbffz"}]}',
     {"\0": ["\0\0\0", {"b": "y\\\0z"}]}),
    (r'["\ud83d\ude00", "\\u0000", 1.5]', ["\U0001f600", r"\u0000", 1.5])])
def test_escapes_of_no_character(text, value):
    assert text_files.parse_json(text, "a.json") == value


@pytest.mark.parametrize("error, raised, message", [
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (OSError(errno.ENOSPC, "No space left"), Interruption,
     "/a(, .*/b)?: cannot be written: No space left")])
def test_what_was_there_stays_if_writing_fails(tmp_path, error, raised, message):
    (tmp_path / "a").write_text("old")
    path = str(tmp_path / "a")
    with pytest.raises(raised, match=message), files.staged(
            path, str(tmp_path / "b")) as (first, folder):
        files.write(first, b"new")
        os.mkdir(folder)
        raise error
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("write", [
    lambda path: files.write(path, b"new"),
    lambda path: (pathlib.Path("other").write_bytes(b"new"),
                  files.rename("other", path)),
], ids=["write", "rename"])
def test_writing_through_a_link_replaces_what_it_leads_to(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "far/target.txt").write_text("old")
    os.symlink("far/target.txt", "one")
    os.symlink(tmp_path / "one", "two")
    write("two")
    assert (tmp_path / "far/target.txt").read_text() == "new"
    assert os.path.islink("one") and os.path.islink("two")
    assert names(tmp_path / "far") == ["target.txt"]
    os.remove("far/target.txt")  # A link to nothing yet.
    files.prepare_outputs({"--output_file": ["two"]}, {})
    files.write("two", b"newer")
    assert (tmp_path / "far/target.txt").read_text() == "newer"


@pytest.fixture(name="odd")
def _odd(tmp_path, monkeypatch):
    """A folder of texts, each odd name in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("link", "loop", "pipe", "folder", "shards"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("text")
    os.symlink("gone.txt", "link/b.txt")
    os.symlink("b.txt", "loop/b.txt")
    os.mkfifo("pipe/b.txt")
    os.mkdir("folder/b.txt")
    for name in ("r-00000-of-00003", "r-00002-of-00003", "x-00000-of-00001"):
        (tmp_path / "shards" / name).write_text("text")


@pytest.mark.parametrize("pattern, message", [
    ("link/*", "^link/b.txt: No such file"), ("loop/b.txt", "^loop/b.txt: Too many"),
    ("pipe/*", "^pipe/b.txt is a pipe"), ("pipe/b.txt", "^pipe/b.txt is a pipe"),
    ("folder/*", "^folder/b.txt: Is a directory"),
    ("shards/*", r"^--x: 'shards/\*' matches .* shards/r-00001-of-00003 is missing; restore")])
def test_nothing_that_a_pattern_matches_is_left_out(odd, pattern, message):
    with pytest.raises(InputError, match=message):
        for path in files.expand_patterns(pattern, "--x"):
            files.open_binary(path).close()


def test_what_a_pattern_may_leave_out(odd):
    def found(pattern):
        return files.expand_patterns(pattern, "--input_file")

    # Folders on the way, shards that are named, and shards that are there.
    assert found("folder/**") == found("folder/**/*") == ["folder/a.txt"]
    assert found("shards/r-00002-of-00003") == ["shards/r-00002-of-00003"]
    pathlib.Path("shards/r-00001-of-00003").write_text("text")
    assert found("shards/r-*[01]-of-*") == [
        "shards/r-00000-of-00003", "shards/r-00001-of-00003"]


@pytest.mark.parametrize("text", [
    "{{function_node __wrapped__SaveV2_dtypes_2_device_/job:x}} runs/a/model.ckpt-4_temp"
    "/part-00000-of-00001; No space left on device [Op:SaveV2]",
    "runs/a/model.ckpt-4_temp123.data-00000-of-00001; No space left on device\nmore",
    "runs/a/model.ckpt-4.incomplete/variables/variables_temp/part-0; No space "
    "left on device"])
def test_reasons_name_no_temporary_files(text):
    assert reason_of(OSError(text)) == (
        "runs/a/model.ckpt-4; No space left on device")


def test_names_with_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.txt", "c.txt"):
        (tmp_path / name).write_text(name)
    for text, wanted in (('"a,b.txt", c.txt', ["a,b.txt", "c.txt"]),
                         ("c.txt,[ac]*.txt,", ["c.txt", "a,b.txt"])):
        assert files.expand_patterns(text, "--input_file") == wanted
    assert files.expand_each('c.txt,*.txt,"a,b.txt",*.txt', "--input_file") == {
        "c.txt": ["c.txt"], "*.txt": ["a,b.txt"], "a,b.txt": []}
    for text, hint in (("c.txt,d.txt", "comma"), ("", "names no file")):
        with pytest.raises(InputError, match=f"--input_file.*{hint}"):
            files.expand_patterns(text, "--input_file")
    assert files.expand_patterns("a,b.txt", "--train_file") == ["a,b.txt"]


@pytest.mark.parametrize("output, message", [
    ("./a.txt", "is also an input"), ("link.txt", "is also an input"),
    ("folder/./a.txt", "is also an input"), ("file://{0}/a.txt", "is also an input"),
    ("folder/model/a.txt", r"is also an input \(--model model\)"),
    ("killed.txt", r"is also an input \(--input_file killed.txt.incomplete\)"),
    ("folder", "is a folder"), ("new/", "is a folder"), ("", "an empty name is a folder"),
    ("/dev/null", "a device"), ("pipe", "pipe is a pipe or a device"),
    ("a.txt/in/it", "--output: the folder .*a.txt/in cannot"),
    ("folder/other", "--other=other is also --output")])
def test_an_output_is_no_input_by_any_name(output, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("model")
    for name in ("a.txt", "model/a.txt"):
        pathlib.Path(name).write_text("text")
    os.symlink("a.txt", "link.txt")
    os.symlink(tmp_path, "folder")
    os.mkfifo("pipe")
    inputs = {"--input_file": ["a.txt", "killed.txt.incomplete", "gs://bucket/b.txt"],
              "--model": ["model"]}
    with pytest.raises(InputError, match=message):
        files.prepare_outputs(
            {"--output": [output.format(tmp_path)], "--other": ["other"]}, inputs)
    for output in ("b.txt", "model/b.txt", "model.txt", "new/folder/out"):
        files.prepare_outputs({"--output": [output], "--other": ["other"]}, inputs)
    assert names(tmp_path) == ["a.txt", "folder", "link.txt", "model", "pipe"]


def test_a_second_process_that_writes_the_same_file_is_noticed(tmp_path):
    path = str(tmp_path / "a.txt")
    with pytest.raises(Interruption, match="a.txt.*writes"):
        with files.atomic_write(path) as stream:
            stream.write(b"ours")
            os.remove(path + files.INCOMPLETE)
            (tmp_path / ("a.txt" + files.INCOMPLETE)).write_bytes(b"half of theirs")
    assert not os.path.exists(path)


@pytest.mark.parametrize("error, kind, message", [
    (OSError(errno.EIO, "Input/output error"), Interruption, "a.gz: Input/output error."),
    (EOFError("too short"), InputError, "a.gz: the file is damaged.*too short")])
def test_only_an_error_of_the_system_keeps_finished_work(error, kind, message):
    with pytest.raises(InputError, match=message) as caught, reading("a.gz"):
        raise error
    assert type(caught.value) is kind


def test_several_processes_may_write_an_output_that_they_share(tmp_path):
    path = str(tmp_path / "a.txt")
    with files.atomic_write(path, shared=True) as one, files.atomic_write(
            path, shared=True) as other:
        one.write(b"the same")
        other.write(b"the same")
    assert names(tmp_path) == ["a.txt"] and pathlib.Path(path).read_bytes() == b"the same"
