"""Data in an object store through fsspec's driver and a server on this machine: s3://
with moto. Without them the tests are skipped:

    pip install s3fs 'moto[server]'
"""

import signal
import subprocess
import sys
import time

import pytest

from tests.commands import free_ports
from tests.helpers import ROOT
from tests.pretraining_data.data_creation import CORPUS, SPM_MODEL

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.long
BUCKET = "s3://bucket"


@pytest.fixture(name="store")
def _store(monkeypatch):
    """A store that is a server of this machine, here and in what is started."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    [port] = free_ports(1)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=port)
    server.start()
    for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    store.mkdir("bucket")
    store.pipe("bucket/in/text.txt", CORPUS)
    yield store
    store.rm("bucket", recursive=True)
    server.stop()


def start(script, *flags, code=""):
    """Starts a script, or code, without TensorFlow: it is not used, nor tried."""
    first = "import sys; sys.modules['tensorflow'] = None"
    code = code or (
        f"import runpy; sys.argv[0] = {script!r}; runpy.run_path({script!r}, "
        "run_name='__main__')")
    return subprocess.Popen([sys.executable, "-c", f"{first}\n{code}", *map(str, flags)],
                            cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def found(store, folder):
    return sorted(name.removeprefix("bucket/") for name in store.find(f"bucket/{folder}"))


def test_a_killed_data_creation_is_resumed(store, tmp_path):
    def create(text, output, *more):
        return start(
            "create_pretraining_data.py", f"--input_file={text}", f"--output_file={output}",
            "--num_shards=2", f"--spm_model_file={SPM_MODEL}", "--max_seq_length=48",
            "--dupe_factor=2", "--max_predictions_per_seq=7", "--num_workers=1", *more)

    there = f"{BUCKET}/in/*.txt", f"{BUCKET}/out/data", f"--work_dir={tmp_path / 'work'}"
    run = create(*there)
    while not any("data-0" in name for name in found(store, "out")) and (
            run.poll() is None):
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    (tmp_path / "text.txt").write_bytes(CORPUS)
    for flags in there, (tmp_path / "text.txt", tmp_path / "data"):
        run = create(*flags)
        _, log = run.communicate(timeout=300)
        assert run.returncode == 0, log[-3000:]
    shards = ["data-00000-of-00002", "data-00001-of-00002"]
    assert found(store, "out") == sorted(f"out/{name}" for name in (
        *shards, "summary-data.json"))
    for name in shards:
        assert store.cat(f"bucket/out/{name}") == (tmp_path / name).read_bytes()
    assert not (tmp_path / "work").exists()


def test_a_killed_upload_leaves_nothing(store):
    store.pipe("bucket/out/a", b"before")
    run = start("", code="\n".join([
        "from albert_tf import files",
        f"with files.atomic_write('{BUCKET}/out/a') as stream:",
        # More than a part of the upload, which is sent at once.
        "    for _ in range(60): stream.write(bytes(1 << 20))",
        "    print('half', flush=True)", "    sys.stdin.read()"]))
    assert run.stdout.readline() == "half\n"
    run.kill()
    run.communicate()
    assert found(store, "out") == ["out/a"] and store.cat("bucket/out/a") == b"before"
