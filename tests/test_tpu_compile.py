"""benchmarks/tpu_compile.py without the TPU's compiler: its arguments, tables, and what it
reads from a compiled program. `pytest -m tpu` compiles."""

import importlib.util

import pytest

from albert_tf.errors import InputError
from benchmarks import tpu_compile, tpu_compiler
from tests.helpers import run_python

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


def row(**changes):
    return {**tpu_compile.parsed("ours:base:32x512:v3"), "memory": 17e9, "fits": False,
            "seconds": 0.25, "share_of_peak": 0.5, "random_seconds": 0.05,
            "sequences_per_second_and_chip": 256.0, "compile_seconds": 60.0,
            "program": 30e6, "cycles": 10, "groups": {"copies": 1, "products": 9},
            **changes}


def test_tables(capsys):
    rows = [row(), row(recompute=True, passes=3)]
    tpu_compile.print_results(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == (
        "| v3 | base | 32 x 512 | ours | 17.0, no | 0.250 | 50 % | 256 | 50 ms "
        "| 60 s, 30 MB | products 90, copies 10 |")
    assert "| ours, recomputing, 3 passes |" in lines[3]
