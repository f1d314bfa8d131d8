"""Shares of sources, and how often their texts are taken."""

import pytest

from albert_tf.text import prepare
from albert_tf.errors import InputError


@pytest.mark.parametrize("exponent", [0.3, 0.7, 1.0])
def test_shares_follow_the_formula(exponent, caplog):
    caplog.set_level("INFO")
    amounts = {"en": 80_000, "de": 15_000, "fi": 5_000, "none": 0}
    times = prepare.times_of(amounts, exponent)
    after = {source: amounts[source] * times[source] for source in amounts}
    assert sum(after.values()) == pytest.approx(100_000)
    assert after["fi"] / after["en"] == pytest.approx((5 / 80) ** exponent)
    assert after["de"] / after["en"] == pytest.approx((15 / 80) ** exponent)
    assert after["none"] == 0 and times["fi"] >= 1
    assert set(prepare.times_of({"a": 3, "b": 3, "c": 3}, exponent).values()) == {1}
    assert f"en: 80000 sentences, 80.00 %, taken {times['en']:.3f} times: " in caplog.text


@pytest.mark.parametrize("times", [0.05, 0.5, 1.0, 1.5, 2.0, 3.97])
def test_sums_come_out(times):
    sizes = [1 + i * i % 97 for i in range(500)]

    def taken(seed):
        copies = prepare.Copies({"a": times}, seed)
        return [copies.of("a", size) for size in sizes]

    counts = taken(1)
    assert counts == taken(1) and set(counts) <= {int(times), -int(-times // 1)}
    assert sum(a * b for a, b in zip(counts, sizes)) == pytest.approx(
        times * sum(sizes), abs=max(sizes))
    assert times % 1 == 0 or counts != taken(2)
    assert prepare.Copies({"a": times}).of("b", 5) == 1


def test_refusals():
    assert not prepare.is_sampled(None, {}) and not prepare.is_sampled(1, {"a": ["a"]})
    with pytest.raises(InputError, match="--sampling_exponent=0.5 needs a pattern"):
        prepare.is_sampled(0.5, {"a": ["a"]})
