"""The reference masker: the release's unit cases, from the same generators.

    python -m pytest tests/masking/test_reference.py
"""

import gzip
import json
import random

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions, cumulative_ngram_probabilities
from albert_tf.masking.reference import RandomSource, mask_sequence
from albert_tf.tokenization.sequences import WordStarts
from tests.helpers import FIXTURES

CASES = json.loads(gzip.decompress(
    (FIXTURES / "pretraining_data" / "unit_cases.json.gz").read_bytes()))
VOCABULARY = [line.split("\t")[0] for line in (
    FIXTURES / "spm" / "en4k.vocab").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES["create_masked_lm_predictions"])
def test_masks_of_the_release(case):
    flags = case["flags"]
    options = MaskingOptions(
        case["max_predictions_per_seq"], case["masked_lm_prob"],
        **{name: flags[name] for name in (
            "ngram", "favor_shorter_ngram", "do_whole_word_mask", "do_permutation")})
    starts = WordStarts("release" if flags["spm_model_file"] else "wordpiece")
    source = RandomSource(
        random.Random(case["python_seed"]), np.random.RandomState(case["np_seed"]))
    masked = mask_sequence(case["tokens"], starts, VOCABULARY, options, source)
    assert masked.pieces == case["output_tokens"]
    assert masked.positions == case["masked_lm_positions"]
    assert masked.labels == case["masked_lm_labels"]
    assert masked.token_boundary == case["token_boundary"]
    assert source.python.random() == case["next_random"]
    assert source.numpy.random_sample() == case["next_np_random"]


@pytest.mark.parametrize("probability", [0.15, 0.1, 0.25, 0.5, 1.0, 0.01, 0.0])
def test_budgets_are_rounded_as_by_python(probability):
    options = MaskingOptions(max_predictions_per_seq=77, masked_lm_prob=probability)
    expected = [min(77, max(1, round(length * probability))) if probability else 0
                for length in range(600)]
    assert options.num_to_predict(np.arange(600)).tolist() == expected
    assert [int(options.num_to_predict(length)) for length in range(600)] == expected


@pytest.mark.parametrize("values, named", [
    (dict(max_predictions_per_seq=0), "--max_predictions_per_seq=0"),
    (dict(ngram=0), "--ngram=0"), (dict(masked_lm_prob=-0.1), "--masked_lm_prob=-0.1"),
    (dict(masked_lm_prob=1.5), "--masked_lm_prob=1.5")])
def test_values_out_of_range(values, named):
    with pytest.raises(InputError, match=named):
        MaskingOptions(**values)


@pytest.mark.parametrize("favor, expected", [
    (True, [6 / 11, 9 / 11, 1]), (False, [2 / 11, 5 / 11, 1])])
def test_odds_of_the_sizes_of_ngrams(favor, expected):
    assert cumulative_ngram_probabilities(MaskingOptions(
        favor_shorter_ngram=favor)) == pytest.approx(expected)
