"""Data on s3://, through s3fs and a server of moto on this machine. Skipped without them:

    pip install s3fs 'moto[server]'
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers import ROOT
from tests.pretraining_data.data_creation import CORPUS, SPM_MODEL

pytestmark = pytest.mark.long
BUCKET = "s3://bucket"


@pytest.fixture(scope="module", name="environment")
def _environment():
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "me",
           "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    server.stop()


@pytest.fixture(name="store")
def _store(environment, monkeypatch):
    import s3fs

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    store.mkdir("bucket")
    store.pipe("bucket/in/text.txt", CORPUS)
    yield store
    store.rm("bucket", recursive=True)


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


def test_a_killed_data_creation_is_resumed(store, tmp_path):
    flags = data_flags(f"{BUCKET}/in/*.txt", f"{BUCKET}/out/data",
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
        *shards, "summary-data.json", "summary-data.png", "summary-data.txt"))
    for name in shards:
        assert store.cat(f"bucket/out/{name}") == (tmp_path / name).read_bytes()
    assert not (tmp_path / "work").exists()


def test_a_killed_upload_leaves_nothing(store):
    store.pipe("bucket/out/a", b"before")
    run = start("", code="\n".join([
        "from albert_tf import files",
        f"with files.atomic_write('{BUCKET}/out/a') as stream:",
        # More than a part of the upload, which s3fs sends at once.
        "    for _ in range(60): stream.write(bytes(1 << 20))",
        "    print('half', flush=True)", "    sys.stdin.read()"]))
    assert run.stdout.readline() == "half\n"
    run.kill()
    run.communicate()
    assert found(store, "out") == ["out/a"] and store.cat("bucket/out/a") == b"before"


def test_text_and_vocabulary(store):
    finished("prepare_corpus.py", f"--input_file={BUCKET}/in/text.txt",
             f"--output_file={BUCKET}/out/train.txt", "--document_separator=blank_line")
    assert store.size("bucket/out/train.txt") > 1000
    finished("train_sentencepiece.py", f"--input_file={BUCKET}/out/train.txt",
             f"--output_prefix={BUCKET}/out/spm", "--vocab_size=500")
    assert b"[MASK]" in store.cat("bucket/out/spm.model")
    assert not [name for name in found(store, "") if "incomplete" in name]


@pytest.mark.parametrize("output, message", [
    ("s3://no-bucket/out/a", "--output_file: s3://no-bucket/out cannot be written: "),
    (f"{BUCKET}/in/text.txt", "would be overwritten")])
def test_refused_before_the_work(output, message, store):
    log = finished("prepare_corpus.py", f"--input_file={BUCKET}/in/text.txt",
                   f"--output_file={output}", status=1)
    assert message in log and "Traceback" not in log
    assert store.cat("bucket/in/text.txt") == CORPUS
    assert not (ROOT / "s3:").exists()


def test_runs_of_tensorflow_are_refused(store, tmp_path):
    run = subprocess.run(
        [sys.executable, "run_classifier.py", "--task_name=cola", "--do_train",
         f"--data_dir={BUCKET}/in", f"--output_dir={BUCKET}/out"], cwd=ROOT, text=True,
        capture_output=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert run.returncode == 1
    assert ("--output_dir=s3://bucket/out: this needs TensorFlow's own file systems"
            in run.stderr)
