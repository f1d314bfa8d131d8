"""Tokenizes text in TensorFlow's graph, as `tokenization` does in Python.

    strings ─► code points ─► cleaned ─► tokens ─► ids
               unicode_decode  tables    tensorflow_text

The tables hold the results of Python's functions for each character, because the
operations in tensorflow_text use a different version of Unicode. If two ways to split a
text are equally likely, tensorflow_text may choose differently (docs/EXPORT.md).

Shapes: N texts, C code points in all texts.
"""

import functools
import re
import unicodedata
from typing import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import UNDERLINE, clean_each
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.tokenizer import FullTokenizer, SentencePieceTokenizer

_CODES, _PAGE = 0x110000, 256
_PAGES = ["".join(map(chr, range(first, first + _PAGE)))
          for first in range(0, _CODES, _PAGE) if not 0xD800 <= first < 0xE000]
_ITSELF = -1  # in place of a list of values
# It stands for the second half of a quote, and is dropped like a mark.
_SECOND = "\U0010ffff"


# ---- tables ----------------------------------------------------------------


class Table:
    """An int32 value for each key below a size; equal pages are stored once."""

    def __init__(self, values: np.ndarray):
        pages = np.pad(values, (0, -len(values) % _PAGE)).reshape(-1, _PAGE)
        pages, numbers = np.unique(pages, axis=0, return_inverse=True)
        self._pages, self._page = (
            part.ravel().astype(np.int32) for part in (pages, numbers))

    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.gather(
            self._pages, tf.gather(self._page, keys // _PAGE) * _PAGE + keys % _PAGE)


class Expansion:
    """A map of keys to lists of values; keys not in `changed` map to themselves."""

    def __init__(self, changed: Mapping[int, Sequence[int]], size: int):
        number = np.zeros(size, np.int32)  # of a key's list; 0 if it has none
        number[list(changed)] = np.arange(1, len(changed) + 1)
        self._number, lists = Table(number), [[_ITSELF], *changed.values()]
        self._values = np.concatenate(lists).astype(np.int32)
        self._splits = np.cumsum([0, *map(len, lists)])

    def __call__(self, keys: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns the lists of keys [N, (keys)], joined: [N, (values)], and for each
        value the number of its key among those of all rows."""
        lists = tf.RaggedTensor.from_row_splits(self._values, self._splits, validate=False)
        found = tf.gather(lists, self._number(keys.values))
        source = found.value_rowids()
        return keys.with_values(found.with_values(tf.where(
            tf.equal(found.values, _ITSELF), tf.gather(keys.values, source),
            found.values))).merge_dims(1, 2), source


def of_characters(function: Callable[[str], int],
                  differs: Callable[[str], bool] = lambda page: True) -> Table:
    """Returns a table of a function's values for all code points; 0 for those of pages
    that do not differ."""
    values = np.zeros(_CODES, np.int32)
    for page in filter(differs, _PAGES):
        values[ord(page[0]):ord(page[-1]) + 1] = list(map(function, page))
    return Table(values)


def _expansion(function: Callable[[str], str]) -> Expansion:
    """Returns an Expansion of code points by a function of characters."""
    return Expansion({
        ord(char): [*map(ord, changed)] for page in _PAGES if function(page) != page
        for char in page if (changed := function(char)) != char}, _CODES)


@functools.cache
def is_space() -> Table:
    """Returns the table of code points that str.strip removes."""
    return of_characters(str.isspace)


@functools.cache
def _like() -> Table:
    """Returns the table of a character that acts on a "Σ" beside it like each other."""
    def of(char):
        if char == "Σ" or f"{char}Σ".lower()[-1] == "ς":
            return ord("Σ" if char == "Σ" else "a")
        return ord("'" if f"a{char}Σ".lower()[-1] == "ς" else " ")

    return of_characters(of)


# ---- values [C] of all texts -----------------------------------------------


def _before(values: tf.Tensor, first) -> tf.Tensor:
    """Returns the predecessor of each value; `first` for the first value."""
    return tf.concat([[first], values], 0)[:-1]


def _is_last(values: tf.Tensor) -> tf.Tensor:
    """Returns whether the next value is a different one."""
    return tf.not_equal(values, tf.concat([values, [-1]], 0)[1:])


def _with_marks(ends: tf.Tensor, is_mark: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the ends of characters with the marks that directly follow each."""
    begins = ~is_mark | tf.not_equal(rows, _before(rows, -1))
    number = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    return tf.gather(tf.math.segment_max(ends, number), number)


# In a graph, a function that is called several times exists once.
_traced = functools.partial(tf.function, autograph=False,
                            input_signature=[tf.TensorSpec([None], tf.string)])


# ---- SentencePiece ---------------------------------------------------------


class SentencePieceOps(tf.Module):
    """A SentencePieceTokenizer as TensorFlow operations."""

    def __init__(self, tokenizer: SentencePieceTokenizer):
        super().__init__()
        import tensorflow_text as text

        self._lower, self._quotes = tokenizer.do_lower_case, tokenizer.rules.quotes
        self._cleaned = _expansion(lambda text: clean_each(
            text.replace(_SECOND, "") if self._quotes else text, self._lower,
            tokenizer.strip_accents, tokenizer.rules))
        self._model = text.SentencepieceTokenizer(
            tokenizer.processor.serialized_model_proto())
        # The parts of the tokens that end in a digit and a comma.
        self._splits = Expansion(tokenizer.splits, tokenizer.vocab_size)
        self._is_bytes = np.array(
            tokenizer.processor.is_byte([*tokenizer.vocab.values()]))
        self._lengths = np.array(
            [len(piece.replace(UNDERLINE, "")) for piece in tokenizer.vocab], np.int32)
        self._is_solid = functools.cache(lambda: of_characters(
            lambda char: not tokenizer.drops(char)))

    @_traced
    def prepare(self, texts):
        return tf.strings.unicode_encode(self._prepared(texts)[0], "UTF-8")

    @_traced
    def ids(self, texts):
        return self._splits(self._model.tokenize(texts))[0]

    def _prepared(self, texts: tf.Tensor
                  ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Returns the results of preprocess_with_sources as code points, begins and ends;
        the source of a blank is the last of its run. Bytes that are not UTF-8 become
        U+FFFD."""
        if self._quotes:
            texts = tf.strings.regex_replace(tf.strings.regex_replace(
                texts, _SECOND, "\U0010fffe"), "``|''", f'"{_SECOND}')
        chars = tf.strings.unicode_decode(texts, "UTF-8")
        rows = chars.value_rowids()
        solid = tf.equal(is_space()(chars.values), 0)
        # A blank is kept if a word begins behind it, which is not the text's first.
        words = tf.cumsum(tf.cast(solid, tf.int32))
        of_others = tf.gather(tf.concat([[0], words], 0), tf.gather(
            chars.row_starts(), rows))
        keep = solid | (words > of_others) & tf.concat([solid, [False]], 0)[1:] & (
            ~_is_last(rows))
        starts = tf.ragged.range(tf.cast(chars.row_lengths(), tf.int32)).values[keep]
        rows = rows[keep]
        chars, source = self._cleaned(tf.RaggedTensor.from_value_rowids(
            chars.values[keep], rows, chars.nrows(), validate=False))
        is_mark = tf.equal(tf.math.unsorted_segment_sum(
            tf.ones_like(source), source, tf.size(starts)), 0)
        ends = _with_marks(starts + 1, is_mark, rows)
        starts = tf.gather(starts, source)
        if self._lower:
            is_sigma = tf.equal(chars.values, ord("Σ"))
            likes = chars.with_values(_like()(chars.values))
            chars = chars.with_values(tf.cond(
                tf.reduce_any(is_sigma), lambda: tf.where(
                    is_sigma, tf.strings.unicode_decode(tf.strings.lower(
                        tf.strings.unicode_encode(likes, "UTF-8"), "utf-8"),
                        "UTF-8").values, chars.values), lambda: chars.values))
        # A mark belongs to the last of several characters that come from one.
        return chars, starts, tf.where(
            _is_last(source), tf.gather(ends, source), starts + 1)

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """See `operations`. A text has no tokens if all are blank, or if one is a byte,
        whose character is not known. A token beside characters that the model composes
        may be off by one."""
        chars, starts, ends = self._prepared(texts)
        prepared = tf.strings.unicode_encode(chars, "UTF-8")
        pieces, *bounds = self._model.tokenize_with_offsets(prepared)
        ids, source = self._splits(pieces)
        # Count in characters of all texts, without blanks and what the model drops.
        solid = self._is_solid()(chars.values) > 0
        size = 1 + sum(tf.cast(chars.values >= least, tf.int32)
                       for least in (0x80, 0x800, 0x10000))
        places = tf.cumsum(size, exclusive=True)[solid]
        before = tf.gather(tf.cumsum(tf.strings.length(prepared), exclusive=True),
                           pieces.value_rowids())
        first, behind = (tf.searchsorted(
            places, before + tf.cast(bound.values, tf.int32)) for bound in bounds)
        # The parts of a token follow each other, the last one up to its end.
        lengths = tf.gather(self._lengths, ids.values)
        sums = tf.math.segment_sum(lengths, source)
        begin = tf.cumsum(lengths, exclusive=True) + tf.gather(
            first - tf.cumsum(sums, exclusive=True), source)
        end = tf.where(_is_last(source), tf.gather(behind, source), begin + lengths)
        end = tf.where(lengths > 0, tf.maximum(end, begin + 1), begin)
        # "▁" alone is just before the next character or behind the last one.
        rows = tf.concat([chars.value_rowids()[solid], [-1]], 0)
        starts = tf.concat([starts[solid], [0]], 0)
        ends = tf.concat([[0], ends[solid]], 0)
        starts = tf.where(tf.equal(tf.gather(rows, begin), ids.value_rowids()),
                          tf.gather(starts, begin), tf.gather(ends, begin))
        ends = tf.where(lengths > 0, tf.gather(
            ends, tf.minimum(end, tf.size(places))), starts)
        widest = tf.reduce_max(ids.with_values(tf.where(
            tf.gather(self._is_bytes, ids.values), tf.int32.max, ends - starts)), 1)
        kept = (widest > 0) & (widest < tf.int32.max)
        kept = ids.with_values(tf.gather(kept, ids.value_rowids()))
        return tuple(tf.ragged.boolean_mask(ids.with_values(part), kept)
                     for part in (ids.values, starts, ends - 1))


# ---- WordPiece -------------------------------------------------------------

# Kinds of characters: how many words more than one has "a", the character, "a".
_WITHIN, _SPACE, _ALONE = range(3)
_UNKNOWN_WORD = "\0"  # It is never a token, because cleaning removes this character.
# The steps before the splitting into words whose result does not depend on neighbours.
_STEPS = ("(Lowercase )?(BertNormalizer |NFD (Lowercase )?StripAccents (Lowercase )?)?"
          "BertPreTokenizer ")


class WordPieceOps(tf.Module):
    """An HfTokenizer with WordPiece as TensorFlow operations."""

    def __init__(self, tokenizer: HfTokenizer):
        super().__init__()
        import tensorflow_text as text

        content = tokenizer.to_json()
        steps = [f"finding {token.content!r:.40}" for token in tokenizer.added[:1]]
        steps += ["SentencePiece"] * tokenizer.uses_sentencepiece
        for step, inner in ((content["normalizer"], "normalizers"),
                            (content["pre_tokenizer"], "pretokenizers")):
            steps += [each["type"] for each in step.get(inner, [step])] if step else []
        if not re.fullmatch(_STEPS, "".join(f"{step} " for step in steps)):
            raise InputError(
                f"{tokenizer.vocabulary_path}: a model that takes text cannot do the steps "
                f"{', '.join(steps)}; export one that takes ids (--noexport_text), or give "
                "vocab.txt or spiece.model.")
        # What the library makes of each character alone. It also sorts the marks of
        # musical notes, if several follow one note.
        self._kind = of_characters(
            lambda char: len(tokenizer.words(f"a{char}a")) - 1,
            lambda page: len(tokenizer.words("a".join(page))) > 1)
        clean = tokenizer.normalized
        self._cleaned = _expansion(
            lambda text: clean(text).replace(" ", "") or clean(text)[:1])
        self._is_mark = of_characters(
            lambda char: unicodedata.category(char)[0] == "M" and not clean(char),
            lambda page: clean(page) != page)
        self._max_word_chars = content["model"]["max_input_chars_per_word"]
        self._lengths = np.array(
            [len(piece.removeprefix("##")) for piece in tokenizer.vocab], np.int32)
        self._lengths[tokenizer.unk_id] = 0  # That of its word, which is never empty.
        self._model = text.WordpieceTokenizer(
            tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
                list(tokenizer.vocab), list(tokenizer.vocab.values()), tf.string,
                tf.int64), tokenizer.unk_id),
            suffix_indicator="##", unknown_token="[UNK]",
            max_bytes_per_word=4 * self._max_word_chars)

    def prepare(self, texts):
        return texts

    @_traced
    def ids(self, texts):
        return self._tokenized(texts)[0]

    def _tokenized(self, texts: tf.Tensor
                   ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the ids of texts, the number of characters in the word of each, and
        where each character of all words begins and ends in its text."""
        chars = tf.strings.unicode_decode(texts, "UTF-8")
        starts = tf.ragged.range(tf.cast(chars.row_lengths(), tf.int32)).values
        kinds = self._kind(chars.values)
        ends = _with_marks(
            starts + 1, self._is_mark(chars.values) > 0, chars.value_rowids())
        chars, source = self._cleaned(chars)
        kinds, starts, ends = (tf.gather(part, source) for part in (kinds, starts, ends))
        rows = chars.value_rowids()
        apart = tf.not_equal(kinds, _WITHIN)
        begins = apart | _before(apart, True) | tf.not_equal(rows, _before(rows, -1))
        keep = tf.not_equal(kinds, _SPACE)
        number = tf.cumsum(tf.cast(begins, tf.int64))[keep]
        begins = tf.where(tf.not_equal(number, _before(number, -1)))[:, 0]
        words = tf.RaggedTensor.from_row_starts(chars.values[keep], begins)
        lengths = tf.cast(words.row_lengths(), tf.int32)
        ids = self._model.tokenize(tf.where(
            lengths <= self._max_word_chars,
            tf.strings.unicode_encode(words, "UTF-8"), _UNKNOWN_WORD))
        number = ids.value_rowids()
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(ids.values, tf.int32),
            tf.gather(rows[keep], tf.gather(begins, number)), chars.nrows(),
            validate=False), tf.gather(lengths, number), starts[keep], ends[keep]

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        ids, lengths, starts, ends = self._tokenized(texts)
        own = tf.gather(self._lengths, ids.values)
        lengths = tf.where(own > 0, own, lengths)
        last = tf.cumsum(lengths)
        return tuple(ids.with_values(part) for part in (
            ids.values, tf.gather(starts, last - lengths),
            tf.gather(ends, last - 1) - 1))


TokenizerOps = SentencePieceOps | WordPieceOps


def operations(tokenizer: FullTokenizer) -> TokenizerOps:
    """Returns a tokenizer as TensorFlow functions of strings [N].

    `prepare` returns strings, `ids` those of prepared strings: int32 [N, (tokens)].
    `located` returns the ids of texts, and the first and last characters of their tokens,
    as FullTokenizer.tokenize_with_offsets.
    """
    return WordPieceOps(tokenizer) if isinstance(tokenizer, HfTokenizer) else (
        SentencePieceOps(tokenizer))
