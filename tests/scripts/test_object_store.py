"""Data, checkpoints and predictions on gs://, through TensorFlow's own client."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests import cloud_storage, fuzz
from tests.helpers import ROOT

pytestmark = pytest.mark.slow
BUCKET = f"gs://{cloud_storage.BUCKET}"


@pytest.fixture(scope="module", name="material")
def _material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    fuzz.write_inputs(folder)
    return folder


@pytest.fixture(name="storage")
def _storage(material, tmp_path):
    with cloud_storage.serve(tmp_path) as storage:
        for path in material.rglob("*"):
            if path.is_file():
                storage.put(str(path.relative_to(material)), path.read_bytes())
        yield storage


def run(script, storage, material, values, **changes):
    """Each path of `values` is the bucket's, but for the config and the vocabulary."""
    done = subprocess.run(
        [sys.executable, ROOT / f"{script}.py", *(
            f"--{name}={value}" for name, value in {**values, **changes}.items())],
        cwd=material, env={**os.environ, **storage.environment}, text=True,
        capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def remote(values, *names):
    return {name: f"{BUCKET}/{value}" if name in names else value
            for name, value in values.items()}


def test_pretraining_begins_resumes_and_evaluates(material, storage, tmp_path):
    from albert_tf.checkpoints.folders import read_tensors

    values, _ = fuzz.COMMANDS["run_pretraining"]["train"]
    there = remote(values, "input_file", "eval_input_file", "output_dir")
    run("run_pretraining", storage, material, there, num_train_steps=4)
    log = run("run_pretraining", storage, material, there, num_train_steps=6)
    assert f"Resuming at step 4 from {BUCKET}/out/model.ckpt-4" in log
    run("run_pretraining", storage, material, values, num_train_steps=6,
        output_dir=tmp_path / "here")
    for name, content in storage.objects.items():
        if name.startswith("out/"):
            path = tmp_path / "copy" / name[4:]
            path.parent.mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(content)
    found, expected = (read_tensors(str(tmp_path / folder / "model.ckpt-6"))
                       for folder in ("copy", "here"))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
    assert len((tmp_path / "copy/metrics.jsonl").read_text().splitlines()) == 6
    assert not [name for name in storage.objects
                if "incomplete" in name or "_temp" in name or "lock" in name]


def test_fine_tuning_reads_and_writes_there(material, storage):
    values, _ = fuzz.COMMANDS["run_classifier"]["train"]
    there = remote(values, "data_dir", "output_dir", "spm_model_file",
                   "albert_config_file")
    run("run_classifier", storage, material, there)
    assert storage.objects["out/predictions.tsv"].count(b"\n") == 13
    run("run_classifier", storage, material, dict(
        output_dir=f"{BUCKET}/out", data_dir=f"{BUCKET}/glue", do_predict="true",
        num_workers=1))
