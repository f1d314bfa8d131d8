"""The same step, however it is computed: compiled with XLA, recomputed, in parts of the
batch, on replicas, without padding, with the fast parts, in fewer bits.

All combinations would take hours: a few are tested here, and, as slow tests, so many
that every pair of two options' values occurs in some (pairwise cover).
"""

import functools
import itertools

import numpy as np
import pytest

from albert_tf.config import SHARING
from tests.training.tiny_trainer import (
    TASKS, Training, assert_close, column, training)

SLOW, LONG = pytest.mark.slow, pytest.mark.long


def steps(count=3, make=Training, **how):
    """Metrics of some steps, weights and moments after them."""
    made = make(**how)
    rows = made.run(steps=count)
    return rows, made.state()


# The plain steps, each computed once.
cached_steps = functools.cache(functools.partial(steps, make=training))


def assert_same_steps(found, expected, tolerance, changed, state_too=True):
    (other_rows, other_state), (rows, state) = found, expected
    names = rows[0].keys() - {"steps_per_second"}
    assert len(rows) == len(other_rows) >= 2 and names <= other_rows[0].keys()
    if changed.get("gradient_accumulation_steps") == 2:
        names -= {"total_loss"}  # That of a part is its share.
    if not state_too:  # Then few bits may change what is most likely.
        names = {name for name in names if "accuracy" not in name}
    for name in names:
        np.testing.assert_allclose(column(other_rows, name), column(rows, name),
                                   rtol=tolerance, atol=1e-6, err_msg=name)
    if state_too:
        assert_close(other_state, state, tolerance)


# The parts of a batch hold different numbers of masked pieces, and the gradients are
# clipped.
CLIPPED = dict(clip_norm=0.5)
DROPOUT = dict(CLIPPED, dropout=0.3)
FAST_DROPOUT = dict(DROPOUT, fast=True)
PERMUTATION = dict(DROPOUT, task="permutation")
TWO = dict(replicas=2)
PARTS = dict(gradient_accumulation_steps=2)
XLA = dict(jit_compile=True)
RECOMPUTE = dict(recompute=True)


@pytest.mark.parametrize("which, changed", [
    (DROPOUT, {**TWO, **PARTS}),
    *(pytest.param(DROPOUT, how, marks=LONG) for how in (TWO, PARTS)),
    pytest.param(DROPOUT, {**TWO, **PARTS, "fast": True, "skip_padding": True},
                 marks=LONG),
    pytest.param(DROPOUT, dict(replicas=4), marks=SLOW),
    *(pytest.param(FAST_DROPOUT, {**RECOMPUTE, **TWO, "jit_compile": jit}, marks=SLOW)
      for jit in (False, True)),
    *(pytest.param(which, how, marks=LONG) for which, how in (
        (CLIPPED, {**PARTS, **XLA}),
        (DROPOUT, {**PARTS, **XLA, **RECOMPUTE, "fast": True}),
        (DROPOUT, {**PARTS, "fast": True, "skip_padding": True}))),
    *(pytest.param({**DROPOUT, "layers": 2, "passes": (1, 2)}, how, marks=marks)
      for how, marks in ((TWO, LONG), ({**PARTS, **RECOMPUTE}, LONG),
                         ({**PARTS, **XLA, **RECOMPUTE}, SLOW))),
    pytest.param(DROPOUT, {**TWO, **XLA}, marks=SLOW),
    pytest.param({**PERMUTATION, "fast": True}, dict(skip_padding=True), marks=LONG),
    *(pytest.param({**PERMUTATION, "layers": 2}, how, marks=LONG) for how in (
        TWO, PARTS, {**RECOMPUTE, "fast": True},
        {**TWO, **PARTS, **RECOMPUTE, "fast": True, "skip_padding": True})),
    pytest.param({**PERMUTATION, "layers": 2, "passes": (1, 2)}, {**PARTS, **XLA},
                 marks=SLOW),
    pytest.param(DROPOUT, {**RECOMPUTE, "fast": True}, marks=LONG),
    pytest.param(DROPOUT, XLA, marks=SLOW),
    pytest.param({**FAST_DROPOUT, "dtype": "bfloat16"}, RECOMPUTE, marks=LONG),
    pytest.param({**FAST_DROPOUT, "dtype": "float16"}, RECOMPUTE, marks=SLOW),
    *(pytest.param({**FAST_DROPOUT, "dtype": dtype, "sharing": "none", "layers": 2},
                   RECOMPUTE, marks=SLOW)
      for dtype in ("float32", "bfloat16", "float16"))])
def test_step_is_the_same(which, changed):
    expected = cached_steps(**which)
    assert_same_steps(steps(**{**which, **changed}), expected, 1e-5, changed)
    assert min(column(expected[0], "gradient_norm")) > 0.5


@pytest.mark.long
@pytest.mark.parametrize("dtype, fast, tolerance", [
    ("bfloat16", True, 0.05), ("float16", True, 0.005),
    pytest.param("bfloat16", False, 0.05, marks=SLOW),
    pytest.param("float16", False, 0.005, marks=SLOW)])
def test_half_the_bits_train_to_the_same_loss(dtype, fast, tolerance):
    whole, half = (
        column(steps(count=20, make=training, **how)[0], "total_loss")
        for how in (CLIPPED, dict(CLIPPED, dtype=dtype, fast=fast)))
    assert whole[-1] < 0.8 * whole[0]
    np.testing.assert_allclose(half, whole, rtol=tolerance)
    assert half != whole


# What a step is; its reference has the same.
WHICH = {
    "task": tuple(TASKS), "sharing": SHARING, "groups": (1, 2),
    "dtype": ("float32", "bfloat16", "float16"), "optimizer": ("lamb", "adamw"),
    "count_duplicate_rows": (False, True), "dropout": (0.0, 0.3),
    "passes": ((None,), (1, 2))}
# How it is computed; first as its reference is.
HOW = {
    "jit_compile": (False, True), "recompute": (False, True),
    "gradient_accumulation_steps": (1, 2), "skip_padding": (False, True),
    "fast": (False, True), "replicas": (1, 2)}
OPTIONS = {**WHICH, **HOW}


def possible(chosen):
    """Rows of one word cannot be told apart once parts of a batch or replicas are
    summed, and XLA cannot compile packed ones."""
    return not (2 in (chosen.get("gradient_accumulation_steps"), chosen.get("replicas"))
                and chosen.get("count_duplicate_rows")
                or chosen.get("skip_padding") and chosen.get("jit_compile"))


def pairs(chosen):
    """Every two of the chosen values, with their options' names."""
    return set(itertools.combinations(chosen.items(), 2))


def every_pair():
    """Of any two options, all their values that go together."""
    return {pair for one, other in itertools.combinations(OPTIONS, 2)
            for pair in itertools.product(
                *([(name, value) for value in OPTIONS[name]] for name in (one, other)))
            if possible(dict(pair))}


def pairwise_cover():
    """Few combinations in which every possible pair of values occurs: each begins with
    a pair that is missing and takes the values that add the most others."""
    missing, cover = every_pair(), []
    while missing:
        chosen = dict(max(missing, key=str))
        for name, values in OPTIONS.items():
            if name not in chosen:
                chosen = max(
                    ({**chosen, name: value} for value in reversed(values)
                     if possible({**chosen, name: value})),
                    key=lambda row: len(pairs(in_order(row)) & missing))
        cover.append(in_order(chosen))
        missing -= pairs(cover[-1])
    return cover


def in_order(chosen):
    return {name: chosen[name] for name in OPTIONS if name in chosen}


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [*pairwise_cover(), dict(
        layers=1, task="classification", dtype="float16", recompute=True, fast=True,
        jit_compile=True, gradient_accumulation_steps=2)],
    ids=lambda chosen: "-".join(f"{name}={value}" for name, value in chosen.items()))
def test_combination_is_the_same(chosen):
    how = {name: value for name, value in chosen.items() if name in HOW}
    # Both optimizers divide a gradient by its own size, which would magnify the
    # roundings of one that is almost 0 a thousand times; a larger epsilon does not.
    which = {"layers": 2, "clip_norm": 2.0, "epsilon": 1e-2,
             **{name: chosen[name] for name in chosen.keys() - how.keys()}}
    # XLA leaves out roundings between the operations that it fuses.
    tolerance = {"float32": 2e-5, "bfloat16": 0.1, "float16": 0.01}[chosen["dtype"]]
    state_too = chosen["dtype"] == "float32"
    parts = {"fast": chosen.get("fast", False)}
    expected = steps(**which, **parts)
    assert_same_steps(steps(**which, **how), expected, tolerance, how, state_too)
    if parts["fast"]:
        found, plain = expected, steps(**which)
        if not state_too:
            # Other parts round otherwise, and updates magnify it: the norm of the third
            # step in float16 may be 2 % from that in float32, on either side.
            found, plain = ((rows[:2], state) for rows, state in (found, plain))
        assert_same_steps(found, plain, tolerance, {}, state_too)


def test_pairs_are_all_there():
    cover = pairwise_cover()
    assert len(cover) < 1.2 * len(TASKS) * len(SHARING) and all(map(possible, cover))
    assert set().union(*map(pairs, cover)) == every_pair()
