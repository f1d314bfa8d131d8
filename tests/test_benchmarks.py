"""Benchmarks: what ours is compared with takes steps that learn, a wrong step shows, and
what is read from a program compiled for a TPU. `pytest -m gpu` and `-m tpu` run it all."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from benchmarks import contestants, peers, step_check, tpu_compile, tpu_compiler
from tests.helpers import ROOT, run_python

# ---- other libraries ---------------------------------------------------------


class Encoder(tf_keras.Model):
    """In place of tf-models-official's, which is not always there."""

    def __init__(self, config, dtype):
        super().__init__()
        del dtype
        self.table = tf_keras.layers.Embedding(config.vocab_size, config.embedding_size)
        self.projection = tf_keras.layers.Dense(config.hidden_size)

    def call(self, inputs, training=False):
        sequence = self.projection(self.table(inputs["input_word_ids"]))
        return {"sequence_output": sequence, "pooled_output": sequence[:, 0]}

    def get_embedding_table(self):
        return self.table.embeddings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tf_models_takes_a_step_in_our_loop(monkeypatch, dtype):
    made = []
    monkeypatch.setattr(peers, "tf_models_encoder",
                        lambda *given: made.append(Encoder(*given)) or made[-1])
    config = AlbertConfig(
        vocab_size=100, embedding_size=16, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=16)
    step = contestants.tf_models(config, 2, 16, dtype)
    before = tf.identity(made[0].projection.kernel)
    step()
    assert tf.reduce_any(made[0].projection.kernel != before)


def test_a_peer_whose_package_is_missing_is_left_out(caplog):
    makers = {"there": lambda: 1, "gone": lambda: peers.imported("no_such_package", "X")}
    assert peers.installed(makers) == {"there": 1}
    assert "Leaving out gone: X cannot be imported" in caplog.text


# ---- steps on a device ---------------------------------------------------------


def test_the_difference_is_relative_to_the_update():
    expected = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]]), "loss": np.ones(())}
    found = {**expected, "a": np.array([3.0, 0.5]), "loss": np.zeros(())}
    assert step_check.difference(found, expected) == pytest.approx(0.1)
    assert step_check.difference(expected, expected) == 0


@pytest.mark.long
@pytest.mark.usefixtures("eager")
def test_a_step_with_another_weight_or_type_shows():
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


# ---- compiled for a TPU --------------------------------------------------------

TEXT = """\
HloModule step

%fused_product (p.0: bf16[8,8]) -> bf16[8,8] {
  %p.0 = bf16[8,8]{1,0} parameter(0)
  ROOT %c = bf16[8,8]{1,0} convolution(%p.0, %p.0), dim_labels=bf_io->bf
}

%fused_sum (p.1: f32[8,8]) -> f32[8] {
  %p.1 = f32[8,8]{1,0} parameter(0)
  ROOT %r = f32[8]{0} reduce(%p.1, %p.1), dimensions={1}
}

%forward (t: (s32[], bf16[8,8])) -> (s32[], bf16[8,8]) {
  %x = bf16[8,8]{1,0} fusion(%t), calls=%fused_product, b={"estimated_cycles":"100"}
  %u = u32[16,4]{1,0:T(8,128)} rng-bit-generator(%t), algorithm=rng_default
}

%less_11 (t: (s32[], bf16[8,8])) -> pred[] {
  %n = s32[]{:T(256)} constant(11)
  ROOT %l = pred[]{:T(1024)} compare(%t, %n), direction=LT
}

%backward (t: (s32[], bf16[8,8])) -> (s32[], bf16[8,8]) {
  %y = f32[8]{0} fusion(%t), calls=%fused_sum, b={"estimated_cycles":"10"}
}

%less_count (t: (s32[], s32[])) -> pred[] {
  ROOT %m = pred[] compare(%t, %t), direction=LT
}

ENTRY %main (a: bf16[8,8]) -> bf16[8,8] {
  %v = f32[8,2]{1,0} rng(%a, %a), distribution=rng_uniform
  %copy.1 = bf16[8,8]{0,1} copy(%a), b={"estimated_cycles":"7"}
  %w1 = (s32[], bf16[8]{0:T(8,128)}, /*index=5*/f32[2]) while(%a), condition=%less_11, body=%forward
  %w2 = (s32[], bf16[8,8]{1,0}) while(%w1), condition=%less_count, body=%backward
  ROOT %e = bf16[8,8]{1,0} add(%a, %a), b={"estimated_cycles":"3"}
}
"""


def test_a_loop_counts_as_often_as_it_runs():
    """That of a gradient as often as the one before it."""
    groups, random_bytes = tpu_compiler._costs(TEXT)
    assert groups == {"products": 1100, "sums and maxima": 110, "copies": 7,
                      "other element-wise": 3}
    assert random_bytes == 11 * 16 * 4 * 4 + 8 * 2 * 4


@pytest.mark.parametrize("setting", [
    "ours:base:32x512", "ours:base:32:v3", "ours:base:32x512:v1", "peer:base:32x512:v3",
    "ours:base:32x512:v3:fast"])
def test_wrong_settings_are_named(setting):
    with pytest.raises(InputError, match=r"--(settings|shapes): '"):
        tpu_compile.parsed(setting)


def test_settings():
    assert tpu_compile.parsed("ours:large:8x128:v5e:recompute:passes=3") == {
        "contestant": "ours", "model": "large", "size": 8, "length": 128, "chip": "v5e",
        "recompute": True, "passes": 3, "predictions": 0}
    for setting in tpu_compile.SETTINGS:
        tpu_compile.parsed(setting)


@pytest.mark.skipif(importlib.util.find_spec("libtpu"), reason="libtpu is there")
def test_without_the_compiler_there_is_one_sentence(tmp_path):
    output = tmp_path / "new" / "results.json"
    process = run_python("-m", "benchmarks.tpu_compile", f"--output={output}")
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].endswith(
        "libtpu, the TPU's compiler, cannot be imported: No module named 'libtpu'; pip "
        "install -r benchmarks/requirements-tpu.txt into this environment.")
    assert "Traceback" not in process.stderr and not output.parent.exists()
