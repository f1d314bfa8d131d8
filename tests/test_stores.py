"""Every operation on this machine and in stores: fsspec's memory file system, and
TensorFlow's own."""

import dataclasses
import os
import pathlib
import sys

import fsspec
import pytest

from albert_tf import files, rows, text_files
from albert_tf.errors import InputError, Interruption
from albert_tf.pretraining_data import local
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests import row_tables
from tests.pretraining_data.data_creation import CORPUS, SPM_MODEL, options_of


@pytest.fixture(name="folder", params=["local", "memory", "ram"])
def _folder(request, tmp_path):
    if request.param == "local":
        yield str(tmp_path / "bucket")
        return
    if request.param == "ram":
        pytest.importorskip("tensorflow")
    folder = f"{request.param}://{tmp_path.name}/bucket"
    yield folder
    files.remove(folder)


def test_every_operation(folder):
    path, other = f"{folder}/a.txt", f"{folder}/deep/b.txt"
    files.prepare_outputs({"--output_file": [path, other]}, {})
    # Some stores have folders, which are made.
    assert not files.exists(path) and {*files.names_in(folder)} <= {"deep"}
    assert {*files.names_in(os.path.dirname(folder))} <= {"bucket"}
    files.write(path, b"one\ntwo\n")
    files.write(other, b"12345")
    assert files.exists(path) and files.is_folder(folder) and not files.is_folder(path)
    assert files.names_in(folder) == ["a.txt", "deep"]
    assert files.size(other) == 5
    assert list(text_files.read_lines(path)) == [(1, "one"), (2, "two")]
    with files.open_binary(path) as stream:
        assert stream.seek(-4, os.SEEK_END) == 4 and stream.read() == b"two\n"
    assert files.expand_patterns(f"{folder}/*.txt", "--x") == [path]
    files.rename(other, path)
    assert files.names_in(f"{folder}/deep") == [] and files.size(path) == 5
    files.copy(path, other)
    files.remove(path)
    files.remove(path)
    assert not files.exists(path) and files.size(other) == 5
    files.remove(folder)
    files.remove(folder)
    assert not files.exists(other)


def test_a_folder_appears_as_a_whole(folder):
    if folder.startswith("ram"):
        pytest.skip("TensorFlow cannot rename folders there.")
    with files.staged(f"{folder}/model") as (staged,):
        files.write(f"{staged}/deep/a", b"1")
        assert files.names_in(folder) == ["model.incomplete"]
    assert files.names_in(f"{folder}/model/deep") == ["a"]
    assert files.names_in(folder) == ["model"]


def test_what_cannot_be_read_is_one_sentence(folder):
    files.write(f"{folder}/a.txt", b"")
    for call, message in (
            (lambda: files.open_binary(f"{folder}/b"), "/bucket/b: "),
            (lambda: files.size(f"{folder}/b"), "/bucket/b: "),
            (lambda: files.open_binary(folder), "/bucket: Is a directory"),
            *((lambda path=path: files.prepare_outputs({"--x": [path]}, {}),
               "--x: .* is a folder or a bucket; give a file") for path in (
                   f"{folder}/", folder if "://" not in folder else
                   folder.partition("://")[0] + "://bucket")),
            (lambda: files.expand_patterns(f"{folder}/*.csv", "--x"),
             r"--x: no file matches '.*/\*.csv'")):
        with pytest.raises(InputError, match=message):
            call()


def test_a_failed_write_changes_nothing_and_a_killed_one_is_replaced(folder):
    path = f"{folder}/a.txt"
    files.write(path, b"before")
    with pytest.raises(KeyError):
        with files.atomic_write(path) as stream:
            stream.write(b"half")
            raise KeyError
    assert files.names_in(folder) == ["a.txt"] and files.size(path) == 6
    with files.open_binary(path + files.INCOMPLETE, "wb") as stream:
        stream.write(b"what a killed process left")
    files.write(path, b"after")
    assert files.names_in(folder) == ["a.txt"] and files.size(path) == 5


def test_an_object_of_a_folders_own_name_is_no_file_in_it(monkeypatch):
    files.write("memory://own/folder/a", b"1")
    system = fsspec.filesystem("memory")
    ls = type(system).ls
    monkeypatch.setattr(type(system), "ls", lambda self, path, detail=True, **options: [
        "/own/folder/", *ls(self, path, detail=detail, **options)])
    assert files.names_in("memory://own/folder") == ["a"]
    monkeypatch.undo()
    files.remove("memory://own")


def test_errors_of_drivers_become_sentences(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(self, *words, **options):
        raise RuntimeError("no route\nto the store")

    files.write("memory://errors/a", b"1")
    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(InputError, match="memory://errors/a: no route; check"):
        list(text_files.read_lines("memory://errors/a"))
    with pytest.raises(Interruption, match="no route; check"):
        files.write("memory://errors/a", b"2")
    monkeypatch.undo()
    assert files.size("memory://errors/a") == 1
    files.remove("memory://errors")


@pytest.mark.parametrize("path, message", [
    ("s3://b/a", "[Ii]nstall s3fs"), ("gs://b/a", "[Ii]nstall gcsfs"),
    ("abfs://b/a", "[Ii]nstall adlfs"), ("nofs://b/a", "nofs")])
def test_missing_packages_are_named(path, message, monkeypatch):
    monkeypatch.setattr(files, "_in_tensorflow", lambda path: False)
    for driver in ("gcsfs", "s3fs", "adlfs"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(InputError, match=f"^{path}: .*{message}"):
        files.open_binary(path)


def test_what_tensorflow_must_read_or_write_is_refused():
    pytest.importorskip("tensorflow")
    files.check_in_tensorflow("gs://b/a", "--output_dir")
    files.check_in_tensorflow("runs/ä b{1,2}]", "--output_dir")
    files.check_in_tensorflow("records[1]/train*.tf_record")
    files.check_local("runs/a", "--output")
    for call, message in (
            (lambda: files.check_in_tensorflow("s3://b/a", "--output_dir"),
             "^--output_dir=s3://b/a: TensorFlow does not reach"),
            *((lambda name=name: files.check_in_tensorflow(f"runs/{name}", "--resume"),
               f"^--resume=runs/.*TensorFlow takes names with {shown} for patterns")
              for name, shown in (("run[1]", r"\["), ("a*", r"\*"), ("b?", r"\?"),
                                  ("c\\d", r"\\"))),
            (lambda: files.check_local("gs://b/a", "--output"),
             "^--output=gs://b/a: files of this format are read and written on this")):
        with pytest.raises(InputError, match=message):
            call()


def test_data_are_the_same_from_and_to_a_store(tmp_path):
    tokenizer = FullTokenizer(spm_model_file=SPM_MODEL)
    here = options_of(tmp_path, CORPUS, ("a.tfrecord", "b.tfrecord"))
    there = dataclasses.replace(
        here, input_files=("memory://data/text.txt",),
        output_files=("memory://data/out/a", "memory://data/out/b"))
    files.copy(here.input_files[0], there.input_files[0])
    local.create(here, tokenizer, num_workers=1)
    with pytest.raises(InputError, match="--work_dir=memory://.* is not on this machine"):
        local.create(there, tokenizer, num_workers=1)
    local.create(there, tokenizer, num_workers=1,
                 work_dir=str(tmp_path / "work"))
    for path, other in zip(here.output_files, there.output_files):
        with files.open_binary(other) as stream:
            assert stream.read() == pathlib.Path(path).read_bytes()
    assert not (tmp_path / "work").exists()
    files.remove("memory://data")


def test_parquet(tmp_path):
    path = row_tables.write(tmp_path / "t.parquet", row_tables.table({"text": ["a", "b"]}))
    files.copy(path, "memory://rows/t.parquet")
    assert [row for _, row in rows.rows("memory://rows/t.parquet", ["text"])] == [
        {"text": "a"}, {"text": "b"}]
    files.remove("memory://rows")
