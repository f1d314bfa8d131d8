"""Tokenization in the graph gives what Python's gives; the slow test takes every line of
../shared/data and every code point."""

import functools
import pathlib
import random
import tempfile

import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.tokenization import in_graph
from albert_tf.tokenization.tokenizer import FullTokenizer, marked
from tests.helpers import SHARED
from tests.tokenization.test_tokenizer import MODEL, WP_VOCAB, rows

pytest.importorskip("tensorflow_text")

CODES = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# Between letters, first, last, after a digit, twice, amid marks and sigmas.
CONTEXTS = ("{}", "a{}b", "{}b", "9{}", "{0}{0}", "ΑΣ{}", "ΣΑΣ{}Σ", "e\u0301{}\u0327,")
TEXTS = [
    "", " ", "\u00a0a \u2003b\u3000", "Café  No. ½ ﬁne", "ΑΣ ΑΣ. ΣΣ ΑΣΑ Σ", "İstanbul",
    "1,999, 9,00,000 and 3,", "☃☃ ☃5, [CLS]", "`` quotes'' \u00a8", "好吗a\u0301b\0c",
    "\U0001d165\u0301\U0001d16da", "a" * 300, "\u2581 \u2581a", "e" * 40, "zzz eee eeee",
    # White space, marks, what one character becomes, what is dropped, other scripts.
    "The café of Zoë opened in 1,984, and  closed in 2003. ", " \n ", "a  b   c d",
    "x\u00a0y \u00a8 z", "tab\tand\nline ", "작은 도서관은 강가에 있다.",
    "½ ﬁ\u0301 ① Ⅷ, ½9, ½", "İ ΑΣ Σ ½ﬁ ㎏ ﬂ ⅔ ㎞ ㏎", "תְּקַעּ הַסִּפְרִיָּה הַקְּטַנָּה",
    "تَقَعُ المَكْتَبَةُ الصَّغِيرَةُ", "한9,국 1,2,한 ９,½９,", "\0" * 9 + "한",
    "e\u0301\u0323 \u0301e\u0301\u0302\u0301 o\u0302\u0323 u\u031b\u0301",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8 a", "\u0f73\u0f75 \u0301\u0301",
    "\u200b\u00ad한\u200b국\u00ad  \u2581한\u200c, \u2581 ½\u200b"]
FOLDER = tempfile.TemporaryDirectory()
TOKENIZERS = {
    "sentencepiece": lambda: FullTokenizer(spm_model_file=MODEL),
    "sentencepiece, cased": lambda: FullTokenizer(
        spm_model_file=MODEL, do_lower_case=False),
    "sentencepiece, accents": lambda: keeping_accents(True),
    "sentencepiece, accents, cased": lambda: keeping_accents(False),
    "wordpiece": lambda: FullTokenizer(vocab_file=WP_VOCAB),
    "wordpiece, accents": lambda: FullTokenizer(
        vocab_file=WP_VOCAB, strip_accents=False),
    "wordpiece, cased": lambda: FullTokenizer(vocab_file=WP_VOCAB, do_lower_case=False)}


def keeping_accents(lower):
    """The vocabulary, as if it had been made of text with its accents."""
    path = pathlib.Path(FOLDER.name, "accents.model")
    path.write_bytes(marked(
        pathlib.Path(MODEL).read_bytes(), strip_accents=False))
    return FullTokenizer(spm_model_file=path, do_lower_case=lower)


@functools.cache
def made(name):
    tokenizer = TOKENIZERS[name]()
    return tokenizer, in_graph.operations(tokenizer)


def equally_likely(tokenizer, ids, wanted):
    """Whether two rows of ids spell one text, and SentencePiece scores them the same."""
    if not tokenizer.uses_sentencepiece:
        return False
    spelled = ["".join(tokenizer.convert_ids_to_tokens(row)) for row in (ids, wanted)]
    scores = [sum(map(tokenizer.processor.get_score, row)) for row in (ids, wanted)]
    return spelled[0] == spelled[1] and scores[0] == pytest.approx(scores[1], 2e-6)


def exact(tokenizer, text):
    """Ids, first and last characters of a text's tokens."""
    try:
        spans = tokenizer.tokenize_with_offsets(text)
    except InputError:
        spans = []
    if not any(span.end > span.start for span in spans):
        return [[], [], []]
    return [[span.id for span in spans], [span.start for span in spans],
            [span.end - 1 for span in spans]]


def check(name, texts):
    tokenizer, ops = made(name)
    prepared = ops.prepare(tf.constant(texts))
    for text, found in zip(texts, prepared.numpy()):
        assert found.decode() == tokenizer.prepare(text), ascii(text)
    found = ops.ids(prepared).to_list()
    for text, ids, wanted in zip(texts, found, tokenizer.encode_batch(texts)):
        assert ids == wanted or equally_likely(tokenizer, ids, wanted), ascii(text)


@pytest.mark.parametrize("name", [
    name if name in ("sentencepiece", "wordpiece, accents")
    else pytest.param(name, marks=pytest.mark.long) for name in TOKENIZERS])
def test_no_texts_and_bytes_that_are_no_text(name, monkeypatch):
    monkeypatch.setattr(in_graph, "_PAGES", [  # All characters take seconds.
        page for page in in_graph._PAGES if not {"a", "\ufffd"}.isdisjoint(page)])
    for table in in_graph.is_space, in_graph._like:
        monkeypatch.setattr(in_graph, table.__name__, functools.cache(table.__wrapped__))
    tokenizer = TOKENIZERS[name]()
    ops = in_graph.operations(tokenizer)
    assert ops.ids(tf.constant([], tf.string)).shape[0] == 0
    found = ops.ids(ops.prepare(tf.constant([b"a\xff b"]))).to_list()
    assert found == [tokenizer.encode("a\ufffd b")]


@pytest.mark.long
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_and_their_characters_are_those_of_python(name):
    tokenizer, ops = made(name)
    draw, texts = random.Random(1), [*TEXTS, *(row["text"] for row in rows())]
    check(name, [*texts, *(draw.choice(CONTEXTS).format(code)
                           for code in draw.sample(CODES, 500))])
    found = zip(*(part.to_list() for part in ops.located(tf.constant(texts))))
    for text, row in zip(texts, found, strict=True):
        wanted = exact(tokenizer, text)
        assert [*row] == wanted or row[0] != wanted[0] and equally_likely(
            tokenizer, row[0], wanted[0]), ascii(text)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.skipif(SHARED is None, reason="needs ../shared")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_line_and_every_code_point(name):
    for context in CONTEXTS:
        texts = [context.format(code) for code in CODES]
        for first in range(0, len(texts), 50_000):
            check(name, texts[first:first + 50_000])
    for path in sorted((SHARED / "data").rglob("*")):
        if path.is_file() and path.suffix not in (".model", ".vocab"):
            # SentencePiece adds scores in float32, which does not suffice for the
            # megabytes of SQuAD's one line.
            lines = [line[first:first + 10_000]
                     for line in path.read_text(encoding="utf-8").splitlines()
                     for first in range(0, max(len(line), 1), 10_000)]
            for first in range(0, len(lines), 5_000):
                check(name, lines[first:first + 5_000])
