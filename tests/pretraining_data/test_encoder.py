"""Codes equal the pieces' ids and word starts, however they are computed."""

import functools
import gzip
import json
import pickle
import random
import sys
import unicodedata

import numpy as np
import pytest

from albert_tf.pretraining_data.encoder import PieceEncoder, code_dtype
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.tokenization.sequences import WordStarts
from tests.helpers import FIXTURES
from tests.pretraining_data.data_creation import SPM_MODEL, WORDPIECE

KINDS = {
    "release": dict(spm_model_file=SPM_MODEL),
    "sentencepiece": dict(spm_model_file=SPM_MODEL, do_lower_case=False),
    "cased release": dict(spm_model_file=SPM_MODEL, do_lower_case=False),
    "wordpiece": dict(vocab_file=WORDPIECE),
}


@functools.cache
def encoder(kind):
    return PieceEncoder(FullTokenizer(**KINDS[kind]),
                        "sentencepiece" if kind == "sentencepiece" else "release")


@functools.cache
def golden_strings():
    path = FIXTURES / "tokenization" / "golden.json.gz"
    return [row["text"] for row in json.loads(gzip.decompress(
        path.read_bytes()))["strings"]]


def expected(encoder, kind, lines):
    """Codes of each line as the reference path has them, by pieces as strings."""
    tokenizer = encoder.tokenizer
    starts = WordStarts("wordpiece" if "wordpiece" in kind else
                        "sentencepiece" if kind == "sentencepiece" else "release")
    return [[i * 2 + starts[piece] for piece, i in zip(
        pieces, tokenizer.convert_tokens_to_ids(pieces))]
        for pieces in map(tokenizer.tokenize, lines)]


def check(encoder, kind, texts):
    lines = encoder.tokenizer.prepare_batch(texts)
    assert lines == [encoder.tokenizer.prepare(text).strip() for text in texts]
    found, rows = encoder.encode(lines), expected(encoder, kind, lines)
    assert found.codes.dtype == encoder.dtype and found.lengths.dtype == np.uint32
    assert found.lengths.tolist() == list(map(len, rows))
    assert found.codes.tolist() == sum(rows, [])
    assert found.unknown_pieces == sum(
        code // 2 == encoder.tokenizer.unk_id for row in rows for code in row)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_ids_and_word_starts_of_pieces(kind):
    sent = pickle.loads(pickle.dumps(encoder(kind)))  # As to other processes.
    # It is [SEP], and starts a word.
    assert sent.separator == sent.tokenizer.sep_id * 2 + 1
    for texts in (golden_strings(), *([text] for text in golden_strings()[::7])):
        check(sent, kind, texts)


# Pieces that end in a digit and a comma, unknown characters, both in one, pieces
# that the text spells like special ones, and what preparation drops.
PARTS = [
    "1,", "1,000,000", "[1,", "0,", "\u2603", "\u26035,", "\u4e2d\u6587", "\u0663,",
    "\u4e2d1,", "[CLS]", "[SEP]", "<unk>", "[UNK]", "\u2581", "\u0301", "caf\u00e9",
    "word", "unaffable", "A", "\u00bd,", "\u00b2,", "\0", "\ufffd", "\u00a0", "   ",
    "x" * 300, "\U0001f600", ",", "9"]


@pytest.mark.parametrize("kind", KINDS)
def test_random_mixtures(kind):
    rng = random.Random(3)
    for size in (0, 1, 2, 50, 400):
        found = check(encoder(kind), kind, [
            "".join(rng.choice(PARTS) + rng.choice(["", " "])
                    for _ in range(rng.randrange(7))) for _ in range(size)])
    assert found.unknown_pieces


def test_the_type_holds_every_code():
    for size in (5, 30_000, 32_768, 32_769, 250_000):
        assert np.iinfo(code_dtype(size)).max >= size * 2 - 1
    assert code_dtype(32_768).itemsize == 2 and code_dtype(32_769).itemsize == 4


def test_no_combining_character_lies_where_none_is_looked_for():
    assert not any(map(unicodedata.combining,
                       map(chr, range(0x20000, sys.maxunicode + 1))))
