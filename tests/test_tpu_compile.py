"""benchmarks/tpu_compile.py without the TPU's compiler: its arguments, tables, and what it
reads from a compiled program. `pytest -m tpu` compiles."""

import importlib.util

import pytest

from albert_tf.errors import InputError
from benchmarks import tpu_compile, tpu_compiler, tpu_schedule
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


# Two words, a loop of 5 turns, whose first and last compute nothing, around one of 4, and
# a word. The matrix unit is busy for 16 or 8 cycles with each of its instructions. The
# loop at the end only orders transfers.
WORDS = """\
LB: loop body
     0   :  { %0 = inlined_call_operand.hbm [shape: bf16[8,8]] }
   0x1   :  { %s1 = smov.u32 0 }
   0x2 LB: > { %v1 = vmatmul.bf16.gmra.mxu0 %v0  ;;  %v2 = vmatmul.f32.gmra.mxu1 %v0 }
   0x3   : > { %v3 = vmatmul.bf16.gmra.mxu0 %v0 }
   0x4 LB: >> { %v4 = vmul.f32 %v3 }
   0x5   : >> { %p1 = scmp.ge.s32.totalorder %s2, 4 /* loop exit test */ }
   0x6   : >> { %5 = sbr.rel (!%p1) target = $region1 }
   0x7 PF: > { %v5 = vadd.f32 %v4 }
   0x8   : > { %p2 = scmp.ge.s32.totalorder %s3, 5 /* loop exit test */ }
   0x9   :  { %6 = vsyncpa [#allocation4], 1 }
   0xa LB: > { %s4 = scalar_lea.vmem %s3, 48  ;;  %vm7 = vnop }
   0xb   : > { %p3 = scmp.ge.s32.totalorder %s4, 9 /* loop exit test */ }
"""


def test_words_count_as_often_as_their_loops_turn():
    # Four words outside of the inner loop, but 32 cycles of the first matrix unit.
    assert tpu_schedule.least_cycles(WORDS, 16) == 2 + 3 * (32 + 4 * 3) + 3
    assert tpu_schedule.least_cycles(WORDS, 1) == 2 + 3 * (8 + 4 * 3) + 3
    assert tpu_schedule.least_cycles(WORDS.replace("vmatmul", "vmul"), 16) == (
        2 + 3 * (4 + 4 * 3) + 3)


MOVES = """\
HloModule step

%rows (p.0: f32[64,8], p.1: f32[64,8], p.2: s32[]) -> f32[64,8] {
  %p.0 = f32[64,8]{1,0} parameter(0)
  %p.1 = f32[64,8]{1,0} parameter(1)
  %p.2 = s32[] parameter(2)
  %row = f32[1,8]{1,0} dynamic-slice(%p.0, %p.2), sizes={1,8}
  ROOT %new = f32[64,8]{1,0} dynamic-update-slice(%p.1, %row, %p.2)
}

ENTRY %main (a: f32[64,8], b: f32[64,8], i: s32[]) -> f32[64,8] {
  %a = f32[64,8]{1,0} parameter(0)
  %b = f32[64,8]{1,0} parameter(1)
  %i = s32[]{:S(2)} parameter(2)
  %near = f32[64,8]{1,0:T(8,128)S(1)} copy(%a)
  %sum.1 = f32[64,8]{1,0} add(%near, %b)
  %sum.2 = f32[64,8]{1,0} add(%near, %a)
  ROOT %moved = f32[64,8]{1,0} fusion(%sum.1, %sum.2, %i), calls=%rows
}
"""


def test_the_longest_of_words_and_memory_counts(tmp_path):
    """A sum reads one operand from memory and writes 64 rows there; the fusion reads a
    row. The sums share their words."""
    for name, words in (("sum.1", WORDS), ("moved", "   0x1   :  { %0 = vnop }")):
        (tmp_path / f"17-{name}-01-final_bundles.txt").write_text(words)
    (tmp_path / "17-TLP-00-deduplication-map.txt").write_text(
        "key:sum.1\nordinal:1\nequivalent_hlos[size=2]:\n  sum.1\n  sum.2\n"
        "key:moved\nordinal:2\nequivalent_hlos[size=1]:\n  moved\n")
    chip = tpu_compiler.CHIPS["v3"]._replace(clock=1.0, product_cycles=16)

    def seconds(bandwidth):
        return tpu_schedule.least_seconds(
            MOVES, str(tmp_path), chip._replace(bandwidth=bandwidth))

    with pytest.raises(InputError, match="libtpu has written no instructions to "):
        tpu_schedule.least_seconds(MOVES, str(tmp_path / "empty"), chip)
    assert seconds(1e9) == 2 * 137 + 1
    rows = 64 * 8 * 4
    assert seconds(1.0) == 2 * 2 * rows + 8 * 4


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
            "seconds": 0.25, "share_of_peak": 0.5, "least_seconds": 0.2,
            "most_of_peak": 0.625, "random_seconds": 0.05,
            "sequences_per_second_and_chip": 256.0, "compile_seconds": 60.0,
            "program": 30e6, "cycles": 10, "groups": {"copies": 1, "products": 9},
            **changes}


def test_tables(capsys):
    rows = [row(), row(recompute=True, passes=3)]
    tpu_compile.print_results(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == (
        "| v3 | base | 32 x 512 | ours | 17.0, no | 0.250 | 50 % | 256 | 50 ms "
        "| 0.200, 62 % | 60 s, 30 MB | products 90, copies 10 |")
    assert "| ours, recomputing, 3 passes |" in lines[3]
