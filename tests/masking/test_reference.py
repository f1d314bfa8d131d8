"""The reference masker: the release's unit cases, from the same generators.

    python -m pytest tests/masking/test_reference.py
"""

import gzip
import json
import random

import numpy as np
import pytest

from albert_tf.masking.options import MaskingOptions
from albert_tf.masking.reference import RandomSource, group_words, mask_sequence
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


def test_words_are_grouped_by_their_starts():
    pieces = ["[CLS]", "▁при", "вет", "▁мир", ",", "▁2", "019", "[SEP]"]
    starts, boundary = WordStarts("sentencepiece"), [1, 1, 0, 1, 0, 1, 0, 1]
    assert group_words(pieces, starts, whole_words=True) == (
        [[1, 2], [3, 4], [5, 6]], boundary)
    assert group_words(pieces, starts, whole_words=False) == (
        [[1], [2], [3], [4], [5], [6]], boundary)


def test_one_seed_fixes_both_generators():
    draws = [(s.python.random(), s.numpy.random_sample())
             for s in map(RandomSource.from_seed, (1, 1, 2, -5))]
    assert draws[0] == draws[1]
    assert len({d[0] for d in draws}) == 3 == len({d[1] for d in draws})
