"""Data in object stores through fsspec's drivers and servers on this machine: s3:// with
moto, gs:// with gcp-storage-emulator, abfs:// with Azurite. A store is skipped without
its driver and server:

    pip install s3fs 'moto[server]' gcsfs gcp-storage-emulator adlfs
    npm install -g azurite
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.helpers import ROOT
from tests.pretraining_data.data_creation import CORPUS, SPM_MODEL

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.long
# The name and key of Azurite's only account, which its documentation gives.
_ACCOUNT = ("AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT5"
            "0uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _moto(port):
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=port)
    server.start()
    try:
        yield {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "me",
               "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    finally:
        server.stop()


def _gcp_storage_emulator(port):
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    from gcp_storage_emulator.handlers import objects

    def move(request, response, storage, *_):
        """Answers moveTo, which gcsfs asks for and this server lacks."""
        params = request.params
        params["dest_bucket_name"] = params["bucket_name"]
        objects.rewrite(request, response, storage)
        storage.delete_file(params["bucket_name"], params["object_id"])

    path = r"^/storage/v1/b/(?P<bucket_name>[-.\w]+)/o/(?P<object_id>.+)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "HANDLERS", (
            (f"{path}/moveTo/o/(?P<dest_object_id>.+)$", {emulator.POST: move}),
            *emulator.HANDLERS))
        server = emulator.create_server("127.0.0.1", port, in_memory=True)
        server.start()
        try:
            # It has no gRPC, with which gcsfs would ask for the kind of each bucket.
            yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
                   "FSSPEC_GCS_TOKEN": "anon",
                   "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        finally:
            server.stop()


def _azurite(port):
    program = shutil.which("azurite-blob") or pytest.skip("azurite is not installed")
    server = subprocess.Popen(
        [program, "--inMemoryPersistence", "--blobHost=127.0.0.1", f"--blobPort={port}",
         "--skipApiVersionCheck", "--disableTelemetry"], stdout=subprocess.DEVNULL)
    try:
        yield {"AZURE_STORAGE_CONNECTION_STRING":
               f"DefaultEndpointsProtocol=http;{_ACCOUNT};"
               f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"}
    finally:
        server.terminate()
        server.wait()


# Scheme → its driver and its server on a port, which gives the environment.
SERVERS = {"s3": ("s3fs", _moto), "gs": ("gcsfs", _gcp_storage_emulator),
           "abfs": ("adlfs", _azurite)}


@pytest.fixture(scope="module", name="scheme", params=SERVERS)
def _scheme(request):
    """A scheme whose store is a server of this machine, here and in what is started."""
    driver, server = SERVERS[request.param]
    if importlib.util.find_spec(driver) is None:
        pytest.skip(f"{driver} is not installed")
    port = _free_port()
    with contextlib.contextmanager(server)(port) as environment, (
            pytest.MonkeyPatch.context()) as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline, f"The server of {request.param} is not up."
            time.sleep(0.1)
        fsspec.config.set_conf_env(fsspec.config.conf)
        yield request.param
        fsspec.config.conf.pop("gcs", None)


@pytest.fixture(name="store")
def _store(scheme):
    store = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    if not store.exists("bucket"):
        store.mkdir("bucket")
    store.pipe("bucket/in/text.txt", CORPUS)
    yield store
    for name in store.find("bucket"):
        store.rm(name)


@pytest.fixture(name="bucket")
def _bucket(scheme):
    return f"{scheme}://bucket"


def start(script, *flags, code=""):
    """Starts a script, or code, without TensorFlow: it is not used, nor tried."""
    first = "import sys; sys.modules['tensorflow'] = None"
    code = code or (
        f"import runpy; sys.argv[0] = {script!r}; runpy.run_path({script!r}, "
        "run_name='__main__')")
    return subprocess.Popen([sys.executable, "-c", f"{first}\n{code}", *map(str, flags)],
                            cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def finished(script, *flags, status=0):
    run = start(script, *flags)
    _, log = run.communicate(timeout=300)
    assert run.returncode == status, log[-3000:]
    return log


def data_flags(text, output, *more):
    return (f"--input_file={text}", f"--output_file={output}", "--num_shards=2",
            f"--spm_model_file={SPM_MODEL}", "--max_seq_length=48", "--dupe_factor=2",
            "--max_predictions_per_seq=7", "--num_workers=1", *more)


def found(store, folder):
    return sorted(name.removeprefix("bucket/") for name in store.find(f"bucket/{folder}"))


def test_a_killed_data_creation_is_resumed(store, bucket, tmp_path):
    flags = data_flags(f"{bucket}/in/*.txt", f"{bucket}/out/data",
                       f"--work_dir={tmp_path / 'work'}")
    run = start("create_pretraining_data.py", *flags)
    while not any("data-0" in name for name in found(store, "out")) and (
            run.poll() is None):
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    finished("create_pretraining_data.py", *flags)
    (tmp_path / "text.txt").write_bytes(CORPUS)
    finished("create_pretraining_data.py",
             *data_flags(tmp_path / "text.txt", tmp_path / "data"))
    shards = ["data-00000-of-00002", "data-00001-of-00002"]
    assert found(store, "out") == sorted(f"out/{name}" for name in (
        *shards, "summary-data.json", "summary-data.txt"))
    for name in shards:
        assert store.cat(f"bucket/out/{name}") == (tmp_path / name).read_bytes()
    assert not (tmp_path / "work").exists()


def test_a_killed_upload_leaves_nothing(store, bucket):
    store.pipe("bucket/out/a", b"before")
    run = start("", code="\n".join([
        "from albert_tf import files",
        f"with files.atomic_write('{bucket}/out/a') as stream:",
        # More than a part of the upload, which is sent at once.
        "    for _ in range(60): stream.write(bytes(1 << 20))",
        "    print('half', flush=True)", "    sys.stdin.read()"]))
    assert run.stdout.readline() == "half\n"
    run.kill()
    run.communicate()
    assert found(store, "out") == ["out/a"] and store.cat("bucket/out/a") == b"before"


def test_text_and_vocabulary(store, bucket):
    finished("prepare_corpus.py", f"--input_file={bucket}/in/text.txt",
             f"--output_file={bucket}/out/train.txt", "--document_separator=blank_line")
    assert store.size("bucket/out/train.txt") > 1000
    finished("train_sentencepiece.py", f"--input_file={bucket}/out/train.txt",
             f"--output_prefix={bucket}/out/spm", "--vocab_size=500")
    assert b"[MASK]" in store.cat("bucket/out/spm.model")
    assert not [name for name in found(store, "") if "incomplete" in name]


@pytest.mark.parametrize("output, message", [
    ("{scheme}://no-bucket/out/a",
     "--output_file: {scheme}://no-bucket/out cannot be written: "),
    ("{scheme}://bucket/in/text.txt", "would be overwritten")])
def test_refused_before_the_work(output, message, store, bucket, scheme):
    log = finished("prepare_corpus.py", f"--input_file={bucket}/in/text.txt",
                   f"--output_file={output.format(scheme=scheme)}", status=1)
    assert message.format(scheme=scheme) in log and "Traceback" not in log
    assert store.cat("bucket/in/text.txt") == CORPUS
    assert not (ROOT / f"{scheme}:").exists()


def test_runs_of_tensorflow_are_refused(store, bucket, scheme):
    if scheme == "gs":
        pytest.skip("TensorFlow has gs://")
    run = subprocess.run(
        [sys.executable, "run_classifier.py", "--task_name=cola", "--do_train",
         f"--data_dir={bucket}/in", f"--output_dir={bucket}/out"], cwd=ROOT, text=True,
        capture_output=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert run.returncode == 1
    assert (f"--output_dir={bucket}/out: this needs TensorFlow's own file systems"
            in run.stderr)
