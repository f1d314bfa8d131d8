"""benchmarks.accelerator: a wrong step shows; on a GPU, `pytest -m gpu` runs it all."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import step_check
from tests.helpers import ROOT


def test_the_difference_is_relative_to_the_update():
    expected = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]]), "loss": np.ones(())}
    found = {**expected, "a": np.array([3.0, 0.5]), "loss": np.zeros(())}
    assert step_check.difference(found, expected) == pytest.approx(0.1)
    assert step_check.difference(expected, expected) == 0


@pytest.mark.long
@pytest.mark.usefixtures("eager")
def test_a_step_with_another_weight_or_type_shows():
    import tensorflow as tf

    device = tf.distribute.OneDeviceStrategy("CPU:0")
    small = step_check.SMALL.replace(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64,
        num_attention_heads=2, initializer_range=0.2)
    right = step_check.update_of(device, small)
    half = step_check.difference(
        step_check.update_of(device, small, dtype="bfloat16"), right)
    assert 1e-4 < half < step_check.BOUNDS["bfloat16"]
    other = step_check.update_of(device, small.replace(num_attention_heads=4))
    assert step_check.difference(other, right) > step_check.BOUNDS["bfloat16"]


@pytest.mark.gpu
def test_every_way_on_the_gpu(tmp_path):
    path = tmp_path / "accelerator.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.accelerator", f"--output={path}",
         "--models=base", "--lengths=128", "--rounds=2"], cwd=ROOT, check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    found = json.loads(path.read_text())
    assert all("GPU" in device or device != "CPU" for device in found["devices"])
    assert [row["right"] for row in found["steps"]] == [True] * 5
    assert all(0 < row["share_of_peak"] < 1.1 for row in found["speed"])
