"""Paths with a scheme: TensorFlow's file systems and those of fsspec, which stand for
stores that only a network reaches. Whole commands: tests/scripts/test_store_drivers.py."""

import os
import pathlib
import subprocess
import sys

import pytest

from albert_tf import files, row_files, stores, text_files
from albert_tf.errors import InputError, Interruption
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.pretraining_data import local
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import ROOT
from tests.pretraining_data.data_creation import CORPUS, SPM_MODEL, options_of

fsspec = pytest.importorskip("fsspec")
registry = pytest.importorskip("fsspec.registry")


def use_arrow_for_hdfs():
    """Makes hdfs:///folder a local folder, by way of the same wrapper of pyarrow."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow import fs

    class Local(ArrowFSWrapper):
        protocol = "hdfs"

        def __init__(self, **options):
            super().__init__(fs.LocalFileSystem(), **options)

    fsspec.register_implementation("hdfs", Local, clobber=True)


@pytest.fixture(name="folder", params=["memory", "hdfs", "ram"])
def _folder(request, tmp_path):
    if request.param == "hdfs":
        pytest.importorskip("pyarrow")
        use_arrow_for_hdfs()
        yield f"hdfs://{tmp_path}/bucket"
        registry._registry.pop("hdfs")
        return
    if request.param == "ram":
        pytest.importorskip("tensorflow")
    folder = f"{request.param}://{tmp_path.name}/bucket"
    yield folder
    files.remove_folder(folder)


def test_every_operation(folder):
    path, other = f"{folder}/a.txt", f"{folder}/deep/b.txt"
    files.prepare_outputs({"--output_file": [path, other]}, {})
    assert not files.exists(path) and files.names_in(folder) == []
    # Nor in the folder above, if it is one.
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
    if not folder.startswith("ram"):  # TensorFlow's globs also find folders.
        assert files.expand_patterns(f"{folder}/*", "--x") == [path]
    files.rename(other, path)
    assert files.names_in(f"{folder}/deep") == [] and files.size(path) == 5
    files.copy(path, other)
    files.remove(path)
    files.remove(path)
    assert not files.exists(path) and files.size(other) == 5
    files.remove_folder(folder)
    files.remove_folder(folder)
    assert not files.exists(other)


def test_what_cannot_be_read_is_one_sentence(folder):
    files.write(f"{folder}/a.txt", b"")
    for call, message in (
            (lambda: files.open_binary(f"{folder}/b"), "/bucket/b cannot be reached: "),
            (lambda: files.size(f"{folder}/b"), "/bucket/b cannot be reached: "),
            (lambda: files.open_binary(folder), "/bucket is a folder; give a file"),
            (lambda: files.expand_patterns(f"{folder}/*.csv", "--x"),
             r"--x: no file matches '.*/\*.csv'")):
        with pytest.raises(InputError, match=message):
            call()


def test_a_failed_write_changes_nothing(folder):
    path = f"{folder}/a.txt"
    files.write(path, b"before")
    with pytest.raises(KeyError):
        with files.atomic_write(path) as stream:
            stream.write(b"half")
            raise KeyError
    assert files.names_in(folder) == ["a.txt"] and files.size(path) == 6


def test_an_object_of_a_folders_own_name_is_no_file_in_it(monkeypatch):
    files.write("memory://own/folder/a", b"1")
    system = fsspec.filesystem("memory")
    ls = type(system).ls
    monkeypatch.setattr(type(system), "ls", lambda self, path, detail=True, **options: [
        "/own/folder/", *ls(self, path, detail=detail, **options)])
    assert files.names_in("memory://own/folder") == ["a"]
    monkeypatch.undo()
    files.remove_folder("memory://own")


def test_killed_writers_leave_what_the_next_run_removes(tmp_path):
    pytest.importorskip("pyarrow")
    path = f"hdfs://{tmp_path}/bucket/a.txt"
    killed = subprocess.run([sys.executable, "-c", "\n".join([
        "import os", "from albert_tf import files", "from tests import test_stores",
        "test_stores.use_arrow_for_hdfs()",
        f"with files.atomic_write({path!r}) as stream:",
        "    stream.write(bytes(1 << 22))", "    os.kill(os.getpid(), 9)"])], cwd=ROOT)
    assert killed.returncode == -9
    [name] = os.listdir(tmp_path / "bucket")
    assert name.startswith("a.txt.incomplete-")
    use_arrow_for_hdfs()
    try:
        files.prepare_outputs({"--output_file": [path]}, {})
    finally:
        registry._registry.pop("hdfs")
    assert os.listdir(tmp_path / "bucket") == []


def test_unwritable_folders_and_wrong_names_are_refused_early(folder):
    files.write(f"{folder}/file", b"")
    if folder.startswith("hdfs"):
        with pytest.raises(InputError, match=(
                r"--output_file: hdfs://.*/file(/deep)? cannot be written: ")):
            files.prepare_outputs({"--output_file": [f"{folder}/file/deep/a"]}, {})
    for path in (f"{folder}/", folder.partition("://")[0] + "://bucket"):
        with pytest.raises(InputError, match="--x: .* is a folder or a bucket; give a f"):
            files.prepare_outputs({"--x": [path]}, {})
    assert files.names_in(folder) == ["file"]


def test_errors_of_drivers_become_sentences(monkeypatch):
    from fsspec.implementations.memory import MemoryFile

    def fail(self, *words):
        raise RuntimeError("no route\nto the store")

    files.write("memory://errors/a", b"1")
    monkeypatch.setattr(MemoryFile, "read", fail)
    with pytest.raises(InputError, match="memory://errors/a cannot be reached: no route;"):
        list(text_files.read_lines("memory://errors/a"))
    monkeypatch.setattr(MemoryFile, "write", fail)
    with pytest.raises(Interruption, match="cannot be written: no route; check"):
        files.write("memory://errors/a", b"2")
    monkeypatch.undo()
    assert files.size("memory://errors/a") == 1
    files.remove_folder("memory://errors")


@pytest.mark.parametrize("path, message", [
    ("s3://b/a", r"s3:// needs the package s3fs; run pip install 'albert_tf\[s3\]', or"),
    ("gs://b/a", r"gs:// needs the package gcsfs; run pip install 'albert_tf\[gcs\]'"),
    ("abfs://b/a", "abfs:// needs the package adlfs"),
    ("hdfs://b/a", "hdfs:// needs the package pyarrow"),
    ("nofs://b/a", "the scheme nofs:// is not known; give a local path, gs://")])
def test_missing_packages_are_named(path, message, monkeypatch):
    monkeypatch.setattr(stores, "_is_installed", lambda package: package == "fsspec")
    with pytest.raises(InputError, match=f"^{path}: {message}"):
        files.open_binary(path)


def test_without_fsspec_tensorflow_is_asked(monkeypatch):
    installed = stores._is_installed
    monkeypatch.setattr(
        stores, "_is_installed", lambda name: name != "fsspec" and installed(name))
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    files.write("ram://asked/a", b"1")
    assert files.size("ram://asked/a") == 1
    with pytest.raises(InputError, match="memory:// is not known without the package fs"):
        files.exists("memory://asked/a")


def test_what_tensorflow_must_read_or_write_is_refused():
    files.check_in_tensorflow("gs://b/a", "--output_dir")
    files.check_in_tensorflow("runs/a", "--output_dir")
    files.check_local("runs/a", "--output")
    for call, message in (
            (lambda: files.check_in_tensorflow("s3://b/a", "--output_dir"),
             "^--output_dir=s3://b/a: this needs TensorFlow's own file systems"),
            (lambda: files.expand_patterns("s3://b/*", "--x", by_tensorflow=True),
             "^--x=s3://b/.*, which do not have s3:// here; give a local path or one on"),
            (lambda: files.new_folder("s3://b/a", "--output").__enter__(), "^--output="),
            (lambda: files.check_local("gs://b/a", "--output"),
             "^--output=gs://b/a: files of this format are read and written on this")):
        with pytest.raises(InputError, match=message):
            call()


def test_the_work_folder_is_local():
    with pytest.raises(InputError, match="--work_dir=memory://a/b is not on this machine"):
        WorkFolder.beside("memory://a/out", "memory://a/b", [])


def test_data_are_the_same_from_and_to_a_store(tmp_path):
    tokenizer = FullTokenizer(spm_model_file=SPM_MODEL)
    here = options_of(tmp_path, CORPUS, ("a.tfrecord", "b.tfrecord"))
    there = options_of(tmp_path, CORPUS, ("a.tfrecord", "b.tfrecord"))
    there = type(there)(**{
        **vars(there), "input_files": ("memory://data/text.txt",),
        "output_files": ("memory://data/out/a", "memory://data/out/b")})
    files.copy(here.input_files[0], there.input_files[0])
    local.create(here, tokenizer, num_workers=1)
    local.create(there, tokenizer, num_workers=1,
                 work_dir=str(tmp_path / "work"))
    for path, other in zip(here.output_files, there.output_files):
        with files.open_binary(other) as stream:
            assert stream.read() == pathlib.Path(path).read_bytes()
    assert not (tmp_path / "work").exists()
    files.remove_folder("memory://data")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    row_files.pyarrow().parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "t")
    files.copy(str(tmp_path / "t"), "memory://rows/t.parquet")
    assert [row for _, row in row_files.read_rows("memory://rows/t.parquet", ["text"])] == [
        {"text": "a"}, {"text": "b"}]
    files.remove_folder("memory://rows")
