"""Tokenizes text in TensorFlow's graph, as `tokenization` does in Python.

    strings ─► code points ─► cleaned ─► tokens ─► ids
               unicode_decode  tables    tensorflow_text

When the graph is built, the result of Python's functions for each character is stored
in tables, because the operations in tensorflow_text use a different version of Unicode.
If two ways to split a text are equally likely, tensorflow_text (SentencePiece 0.1.96)
may choose differently (docs/EXPORT.md).

Shapes: N texts, C code points in all texts, P tokens in all texts. The values of all
texts are in one row, and `rows` is the number of the text for each.
"""

import functools
import json
import os
import re
import unicodedata
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import Rules
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.sentencepiece_tokenizer import (
    UNDERLINE, SentencePieceTokenizer)
from albert_tf.tokenization.tokenizer import FullTokenizer

# A file beside the vocabulary in an export, with the settings for cleaning.
TOKENIZER_FILE = "tokenizer_config.json"

_CODES = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_PAGE = 256


class Flat(NamedTuple):
    """Values of all texts, [C], the text of each, ascending, and their number."""

    values: tf.Tensor
    rows: tf.Tensor  # int64
    num_rows: tf.Tensor  # int64

    @classmethod
    def of(cls, ragged: tf.RaggedTensor) -> "Flat":
        return cls(ragged.values, ragged.value_rowids(), ragged.nrows())

    def ragged(self) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_value_rowids(
            self.values, self.rows, self.num_rows, validate=False)

    def where(self, kept: tf.Tensor) -> "Flat":
        return Flat(self.values[kept], self.rows[kept], self.num_rows)

    def take(self, indices: tf.Tensor, values: tf.Tensor) -> "Flat":
        """Returns new values, each with the row of the value at `indices`."""
        return Flat(values, tf.gather(self.rows, indices), self.num_rows)


# ---- tables ----------------------------------------------------------------


class Table:
    """An int32 value for each key below a size; equal pages are stored once."""

    def __init__(self, values: np.ndarray):
        pages = np.pad(values.astype(np.int32), (0, -len(values) % _PAGE)).reshape(
            -1, _PAGE)
        unique, page = np.unique(pages, axis=0, return_inverse=True)
        self._pages, self._page = unique.reshape(-1), page.reshape(-1).astype(np.int32)

    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.gather(
            self._pages, tf.gather(self._page, keys // _PAGE) * _PAGE + keys % _PAGE)


class Expansion:
    """A map of keys to lists of values, mostly one; keys not in `changed` map to
    themselves."""

    def __init__(self, changed: dict[int, Sequence[int]], size: int):
        several = [key for key, values in changed.items() if len(values) != 1]
        table = np.zeros(size, np.int64)
        for key, values in changed.items():
            table[key] = values[0] - key if len(values) == 1 else 0
        # The numbers of lists are larger than all differences.
        self._first = 2 * max(size, _CODES)
        table[several] = self._first + np.arange(len(several))
        self._table = Table(table)
        lists = [*(changed[key] for key in several), []]
        self._values = np.concatenate(lists).astype(np.int32)
        self._splits = np.cumsum([0, *map(len, lists)])

    def __call__(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values for keys [C], and for each the index of its key."""
        entries = self._table(keys)

        def expand():
            listed = entries >= self._first
            lists = tf.gather(
                tf.RaggedTensor.from_row_splits(self._values, self._splits),
                tf.where(listed, entries - self._first, len(self._splits) - 2))
            values = tf.concat([lists, tf.RaggedTensor.from_tensor(
                (keys + entries)[:, tf.newaxis], tf.cast(~listed, tf.int64))], 1)
            return values.values, tf.cast(values.value_rowids(), tf.int32)

        return tf.cond(tf.reduce_any(entries >= self._first), expand,
                       lambda: (keys + entries, tf.range(tf.size(keys))))


_PAGES = [
    "".join(chr(code) for code in range(first, first + _PAGE)
            if code not in _SURROGATES) for first in range(0, _CODES, _PAGE)]


def of_characters(function: Callable[[str], int]) -> Table:
    """Returns a table of a function's values for all code points."""
    values = np.zeros(_CODES, np.int32)
    for page in filter(None, _PAGES):
        values[ord(page[0]):ord(page[0]) + len(page)] = list(map(function, page))
    return Table(values)


def _expansion(function: Callable[[str], str]) -> Expansion:
    """Returns an Expansion of code points by a function of characters."""
    return Expansion({
        ord(char): [*map(ord, changed)] for page in _PAGES if function(page) != page
        for char in page if (changed := function(char)) != char}, _CODES)


def _decoded(texts: tf.Tensor) -> Flat:
    """Returns the code points of texts; bytes that are not UTF-8 become U+FFFD."""
    return Flat.of(tf.strings.unicode_decode(texts, "UTF-8"))


def _places(chars: Flat) -> tf.Tensor:
    """Returns the position of each character in its text."""
    return tf.range(tf.size(chars.values)) - tf.cast(tf.gather(
        chars.ragged().row_starts(), chars.rows), tf.int32)


def _encoded(chars: Flat) -> tf.Tensor:
    return tf.strings.unicode_encode(chars.ragged(), "UTF-8")


def rows_from(ragged: tf.RaggedTensor, first: tf.Tensor, counts: tf.Tensor
              ) -> tf.RaggedTensor:
    """Returns `counts` [N] values from each row, from position `first` [N] on."""
    begin = ragged.row_starts() + tf.cast(first, tf.int64)
    places = tf.ragged.range(begin, begin + tf.cast(counts, tf.int64))
    return places.with_values(tf.gather(ragged.values, places.values))


@functools.lru_cache(maxsize=None)
def is_space() -> Table:
    """Returns the table of code points that str.strip removes."""
    return of_characters(str.isspace)


def _before(values: tf.Tensor, first) -> tf.Tensor:
    """Returns the predecessor of each value; `first` for the first value."""
    return tf.concat([[first], values], 0)[:-1]


@functools.lru_cache(maxsize=None)
def _like() -> Table:
    """Returns the table of a character that acts on a "Σ" beside it like each other."""
    def of(char):
        if char != "Σ" and f"{char}Σ".lower()[-1] == "σ":
            return ord("'" if f"a{char}Σ".lower()[-1] == "ς" else " ")
        return ord("Σ" if char == "Σ" else "a")

    return of_characters(of)


def _lower_sigmas(chars: Flat) -> tf.Tensor:
    """Returns the characters with "σ" or "ς" for each "Σ", by its neighbours."""
    likes = _encoded(chars._replace(values=_like()(chars.values)))
    return tf.where(tf.equal(chars.values, ord("Σ")), _decoded(
        tf.strings.lower(likes, "utf-8")).values, chars.values)


def _with_marks(ends: tf.Tensor, is_mark: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the ends of characters with the marks that directly follow each."""
    begins = ~is_mark | tf.not_equal(rows, _before(rows, -1))
    number = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    return tf.gather(tf.math.segment_max(ends, number), number)


# ---- SentencePiece ---------------------------------------------------------


class Cleaning:
    """cleaning.preprocess_text as TensorFlow operations."""

    def __init__(self, lower: bool, strip_accents: bool, rules: Rules):
        def changed(text):
            text = "".join(" " if char.isspace() else char for char in text)
            if strip_accents:
                text = "".join(char for char in unicodedata.normalize("NFKD", text)
                               if not rules.is_combining(char))
            # The small letter of "Σ" depends on its neighbours.
            return "".join(char if char == "Σ" else char.lower()
                           for char in text) if lower else text

        self._lower, self._quotes = lower, rules.quotes
        self._expansion = _expansion(changed)
        self._is_mark = functools.cache(
            lambda: of_characters(lambda char: not changed(char)))

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        return _encoded(self._cleaned(self._collapsed(texts)[0])[0])

    def sourced(self, texts: tf.Tensor) -> tuple[Flat, tf.Tensor, tf.Tensor]:
        """Returns the code points of preprocess_text(text), and where the source of
        each begins and ends in its text, as preprocess_with_sources; a blank has only
        the last of its run."""
        chars, starts, ends = self._collapsed(texts)
        ends = _with_marks(ends, self._is_mark()(chars.values) > 0, chars.rows)
        chars, source = self._cleaned(chars)
        # A mark belongs to the last of several characters that come from one.
        is_last = tf.not_equal(source, tf.concat([source, [-1]], 0)[1:])
        starts = tf.gather(starts, source)
        return chars, starts, tf.where(is_last, tf.gather(ends, source), starts + 1)

    def _collapsed(self, texts: tf.Tensor) -> tuple[Flat, tf.Tensor, tf.Tensor]:
        """Returns " ".join(text.split()), with its quotes joined, and where each
        character begins and ends."""
        chars = _decoded(texts)
        space = tf.cast(is_space()(chars.values), tf.bool)
        # The last character of a run of white space is kept, except at both ends.
        words = tf.cumsum(tf.cast(~space, tf.int32))
        here = tf.math.segment_sum(tf.cast(~space, tf.int32), chars.rows)
        behind = tf.gather(tf.cumsum(here), chars.rows)
        within = (words > behind - tf.gather(here, chars.rows)) & (words < behind)
        next_is_space = tf.concat([space, [True]], 0)[1:]
        keep = ~space | (within & ~next_is_space)
        starts, chars = _places(chars)[keep], chars.where(keep)
        ends = starts + 1
        for quote in "`'" if self._quotes else "":
            chars, starts, ends = _join_quotes(chars, starts, ends, ord(quote))
        return chars, starts, ends

    def _cleaned(self, chars: Flat) -> tuple[Flat, tf.Tensor]:
        """Returns the characters after cleaning, and for each the index of its source.
        """
        values, source = self._expansion(chars.values)
        chars = chars.take(source, values)
        if self._lower:
            chars = chars._replace(values=tf.cond(
                tf.reduce_any(tf.equal(values, ord("Σ"))),
                lambda: _lower_sigmas(chars), lambda: values))
        return chars, source


def _join_quotes(chars: Flat, starts: tf.Tensor, ends: tf.Tensor, code: int
                 ) -> tuple[Flat, tf.Tensor, tf.Tensor]:
    """Replaces each two adjacent characters of a code by ", which comes from both."""
    same = tf.equal(chars.values, code)
    begins = same & ~(_before(same, False) & tf.equal(
        chars.rows, _before(chars.rows, -1)))
    # The number of each such character in its run.
    count = tf.cumsum(tf.cast(same, tf.int32))
    before = tf.concat([[0], count[begins] - 1], 0)
    number = count - tf.gather(before, tf.cumsum(tf.cast(begins, tf.int32)))
    second = same & tf.equal(number % 2, 0)
    first = tf.concat([second, [False]], 0)[1:]
    chars = chars._replace(values=tf.where(first, ord('"'), chars.values))
    ends = tf.where(first, tf.concat([ends, [0]], 0)[1:], ends)
    return chars.where(~second), starts[~second], ends[~second]


class TokenizerOps(tf.Module):
    """A FullTokenizer as TensorFlow functions, each of which is traced once.

    Attributes:
      prepare: strings [N] → strings [N], as FullTokenizer.prepare.
      ids: prepared texts [N] → int32 [N, (tokens)].
      located: texts [N] → ids, first and last characters of tokens, each int32 [N,
        (tokens)], as FullTokenizer.tokenize_with_offsets.
      assets: name → content of the files from which the tokenizer can be loaded.
    """

    prepare: Callable[[tf.Tensor], tf.Tensor]
    ids: Callable[[tf.Tensor], tf.RaggedTensor]
    located: Callable[[tf.Tensor], tuple[tf.RaggedTensor, ...]]
    assets: dict[str, bytes]


def traced(function: Callable) -> Callable:
    """Wraps a function of strings [N] for calls in graphs."""
    return tf.function(function, autograph=False,
                       input_signature=[tf.TensorSpec([None], tf.string)])


def operations(tokenizer: FullTokenizer) -> TokenizerOps:
    """Returns a tokenizer as TensorFlow operations."""
    if tokenizer.added:
        raise InputError(
            f"{tokenizer.vocabulary_path}: a model that takes text cannot find added "
            f"tokens such as {tokenizer.added[0].content!r:.40} in it; export a model "
            "that takes ids (--noexport_text).")
    if isinstance(tokenizer, HfTokenizer):
        ops: TokenizerOps = WordPieceOps(tokenizer)
    else:
        ops = SentencePieceOps(tokenizer)
    ops.assets[TOKENIZER_FILE] = json.dumps({
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents, **tokenizer.keeps}).encode()
    return ops


class SentencePieceOps(TokenizerOps):
    """A SentencePieceTokenizer as TensorFlow operations."""

    def __init__(self, tokenizer: SentencePieceTokenizer):
        super().__init__()
        text = tensorflow_text()
        path = tokenizer.vocabulary_path
        with files.open_binary(path) as stream:
            model = stream.read()
        self.assets = {os.path.basename(path): model}
        self._cleaning = Cleaning(
            tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.rules)
        self._model = text.SentencepieceTokenizer(model)
        self._splits = Expansion(
            {i: tokenizer.convert_tokens_to_ids(pieces)
             for i, pieces in tokenizer.split_pieces().items()}, tokenizer.vocab_size)
        self._is_bytes = np.array(
            [tokenizer.is_bytes(i) for i in tokenizer.vocab.values()])
        self._lengths = np.array(
            [len(piece.replace(UNDERLINE, "")) for piece in tokenizer.vocab], np.int32)
        self._is_solid = functools.cache(lambda: of_characters(
            lambda char: not tokenizer.drops(char)))
        self.prepare = traced(self._cleaning)
        self.ids = traced(lambda texts: self._split(
            Flat.of(self._model.tokenize(texts)))[0].ragged())

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, first and last character of tokens, as tokenize_with_offsets.

        A text has none if all its tokens are blank, or if one is a byte, whose
        character is not known. If the model's normalization composes characters, a
        token beside such a one may be off by it.
        """
        chars, starts, ends = self._cleaning.sourced(texts)
        prepared = _encoded(chars)
        pieces, *bounds = self._model.tokenize_with_offsets(prepared)
        pieces = Flat.of(pieces)
        ids, source = self._split(pieces)
        # Count in characters of all texts, without blanks and what the model drops.
        is_solid = self._is_solid()(chars.values)
        solid = tf.where(is_solid > 0)[:, 0]
        number = tf.concat([[0], tf.cumsum(is_solid)], 0)
        size = 1 + sum(tf.cast(chars.values >= least, tf.int32)
                       for least in (0x80, 0x800, 0x10000))
        before = tf.gather(tf.cumsum(tf.strings.length(prepared), exclusive=True),
                           pieces.rows)
        first, behind = (tf.gather(number, tf.searchsorted(
            tf.cumsum(size, exclusive=True), before + tf.cast(bound.values, tf.int32)))
                         for bound in bounds)
        # The parts of a token follow each other, the last one up to its end.
        lengths = tf.gather(self._lengths, ids.values)
        sums = tf.math.segment_sum(lengths, source)
        begin = tf.cumsum(lengths, exclusive=True) + tf.gather(
            first - tf.cumsum(sums, exclusive=True), source)
        is_last = tf.not_equal(source, tf.concat([source, [-1]], 0)[1:])
        end = tf.where(is_last, tf.gather(behind, source), begin + lengths)
        end = tf.where(lengths > 0, tf.maximum(end, begin + 1), begin)
        # "▁" alone is just before the next character or behind the last one.
        rows = tf.concat([tf.gather(chars.rows, solid), [-1]], 0)
        starts = tf.concat([tf.gather(starts, solid), [0]], 0)
        ends = tf.concat([[0], tf.gather(ends, solid)], 0)
        starts = tf.where(tf.equal(tf.gather(rows, begin), ids.rows),
                          tf.gather(starts, begin), tf.gather(ends, begin))
        ends = tf.where(lengths > 0, tf.gather(
            ends, tf.minimum(end, tf.size(solid))), starts)
        known = tf.math.unsorted_segment_max(ends - starts, ids.rows, ids.num_rows) > 0
        known &= tf.math.unsorted_segment_max(tf.cast(tf.gather(
            self._is_bytes, ids.values), tf.int32), ids.rows, ids.num_rows) < 1
        kept = tf.gather(known, ids.rows)
        return tuple(ids._replace(values=part).where(kept).ragged()
                     for part in (ids.values, starts, ends - 1))

    def _split(self, pieces: Flat) -> tuple[Flat, tf.Tensor]:
        """Splits the model's tokens at digit and comma; returns ids, and the index of
        the model's token for each."""
        ids, source = self._splits(pieces.values)
        return pieces.take(source, ids), source


# ---- WordPiece -------------------------------------------------------------

# Kinds of characters: how many words more than one has "a", the character, "a".
_WITHIN, _SPACE, _ALONE = range(3)
# The steps before the splitting into words whose result does not depend on neighbours.
_STEPS = ("(Lowercase )?(BertNormalizer |NFD (Lowercase )?StripAccents (Lowercase )?)?"
          "BertPreTokenizer ")
_UNKNOWN_WORD = "\0"  # It is never a token, because cleaning removes this character.


class Words(NamedTuple):
    """The words in all texts, and the position of each of their characters.

    A dropped mark belongs to the character before it.
    """

    chars: tf.RaggedTensor  # int32 [W, (characters)]
    rows: tf.Tensor  # int64 [W], the text of each word
    num_rows: tf.Tensor
    starts: tf.Tensor  # int32 [C], position in the original text
    ends: tf.Tensor  # int32 [C], the end of the character there


class Splitting:
    """How an HfTokenizer cleans and splits text into words, as TensorFlow operations.

    The tables hold what the library makes of each character alone. It also sorts the
    marks of musical notes, if several follow one note.
    """

    def __init__(self, tokenizer: HfTokenizer):
        clean = tokenizer.normalized

        def without_blanks(text):
            cleaned = clean(text)
            return cleaned.replace(" ", "") or cleaned[:1]

        kinds = np.zeros(_CODES, np.int32)
        for page in filter(None, _PAGES):
            if len(tokenizer.words("a".join(page))) > 1:
                kinds[ord(page[0]):ord(page[0]) + len(page)] = [
                    len(tokenizer.words(f"a{char}a")) - 1 for char in page]
        self._kind = Table(kinds)
        self._changed = _expansion(without_blanks)
        self._is_mark = of_characters(
            lambda char: unicodedata.category(char)[0] == "M" and not clean(char))

    def __call__(self, texts: tf.Tensor) -> Words:
        chars = _decoded(texts)
        starts = _places(chars)
        ends = _with_marks(starts + 1, self._is_mark(chars.values) > 0, chars.rows)
        kinds = self._kind(chars.values)
        values, source = self._changed(chars.values)
        chars = chars.take(source, values)
        kinds, starts, ends = (
            tf.gather(part, source) for part in (kinds, starts, ends))
        apart = tf.not_equal(kinds, _WITHIN)
        begins = apart | _before(apart, True) | tf.not_equal(
            chars.rows, _before(chars.rows, -1))
        number = tf.cumsum(tf.cast(begins, tf.int64))
        keep = tf.not_equal(kinds, _SPACE)
        number, rows = number[keep], chars.rows[keep]
        begins = tf.not_equal(number, _before(number, -1))
        return Words(
            tf.RaggedTensor.from_row_starts(chars.values[keep], tf.where(begins)[:, 0]),
            rows[begins], chars.num_rows, starts[keep], ends[keep])


def _check_steps(content: dict[str, Any], path: str) -> None:
    """Raises InputError for a tokenizer.json whose steps the graph does not have."""
    if content["model"]["type"] != "WordPiece":
        raise InputError(
            f"{path}: a model that takes text needs the SentencePiece model that the "
            "tokenizer.json was made from; put it in the folder as spiece.model.")
    steps = []
    for part, inner in (("normalizer", "normalizers"),
                        ("pre_tokenizer", "pretokenizers")):
        step = content[part] or {inner: []}
        steps += [each["type"] for each in step.get(inner, [step])]
    if not re.fullmatch(_STEPS, "".join(f"{step} " for step in steps)):
        raise InputError(
            f"{path}: a model that takes text cannot do the steps "
            f"{', '.join(steps)} of its tokenizer; export a model that takes ids, or "
            "give a vocab.txt.")


class WordPieceOps(TokenizerOps):
    """An HfTokenizer with WordPiece as TensorFlow operations."""

    def __init__(self, tokenizer: HfTokenizer):
        super().__init__()
        text = tensorflow_text()
        content = tokenizer.to_json()
        _check_steps(content, tokenizer.vocabulary_path)
        self.assets = {"tokenizer.json": json.dumps(content).encode()} if (
            tokenizer.is_json) else {"vocab.txt": "".join(
                f"{piece}\n" for piece in tokenizer.vocab).encode()}
        self._words = Splitting(tokenizer)
        self._max_word_chars = content["model"]["max_input_chars_per_word"]
        self._unk_id = tokenizer.unk_id
        self._lengths = np.array(
            [len(piece.removeprefix("##")) for piece in tokenizer.vocab], np.int32)
        self._model = text.WordpieceTokenizer(
            tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
                list(tokenizer.vocab), list(tokenizer.vocab.values()), tf.string,
                tf.int64), tokenizer.unk_id),
            suffix_indicator="##",
            unknown_token=tokenizer.convert_ids_to_tokens([tokenizer.unk_id])[0],
            max_bytes_per_word=4 * self._max_word_chars)
        self.prepare = traced(tf.identity)
        self.ids = traced(lambda texts: self._tokenized(self._words(texts))[0].ragged())

    def _tokenized(self, words: Words) -> tuple[Flat, tf.Tensor]:
        """Returns the ids of all words, and the number of the word for each."""
        fits = words.chars.row_lengths() <= self._max_word_chars
        ids = self._model.tokenize(tf.where(fits, tf.strings.unicode_encode(
            words.chars, "UTF-8"), _UNKNOWN_WORD))
        number = ids.value_rowids()
        return Flat(tf.cast(ids.values, tf.int32), tf.gather(words.rows, number),
                    words.num_rows), number

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, first and last character of tokens, as tokenize_with_offsets."""
        words = self._words(texts)
        ids, number = self._tokenized(words)
        whole = tf.cast(tf.gather(words.chars.row_lengths(), number), tf.int32)
        lengths = tf.where(tf.equal(ids.values, self._unk_id), whole,
                           tf.gather(self._lengths, ids.values))
        last = tf.cumsum(lengths)
        return tuple(ids._replace(values=part).ragged() for part in (
            ids.values, tf.gather(words.starts, last - lengths),
            tf.gather(words.ends, last - 1) - 1))


def tensorflow_text():
    """Imports tensorflow_text, which registers operations for exports that take text.

    Raises InputError if it is not installed.
    """
    try:
        import tensorflow_text as package
    except ImportError as error:
        raise InputError(
            "tensorflow_text is not installed, but exported models need it to tokenize "
            "text; run pip install --no-deps 'tensorflow-text=="
            f"{'.'.join(tf.__version__.split('.')[:2])}.*'.") from error
    return package
