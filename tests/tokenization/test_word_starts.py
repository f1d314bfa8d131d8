"""Which pieces start a word.

    python -m pytest tests/tokenization/test_word_starts.py
"""

import gzip
import json

from albert_tf.tokenization.word_starts import WordStarts
from tests.helpers import FIXTURES


def test_word_starts_of_the_release():
    cases = json.loads(gzip.decompress(
        (FIXTURES / "pretraining_data" / "unit_cases.json.gz").read_bytes()))
    release, wordpiece = WordStarts("release"), WordStarts("wordpiece")
    for piece, expected in cases["is_start_piece"].items():
        assert [release[piece], wordpiece[piece]] == expected, piece


def test_word_starts_by_the_mark_of_a_space_alone():
    words = ["▁при", "вет", "▁мир", ",", "▁2", "019"]
    starts, release = WordStarts("sentencepiece"), WordStarts("release")
    assert [starts[p] for p in words] == [True, False, True, False, True, False]
    assert all(release[p] for p in words)
