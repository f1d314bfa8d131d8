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
from albert_tf.tokenization import cleaning
from albert_tf.tokenization.cleaning import ORIGINAL, Rules
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.sentencepiece_tokenizer import UNDERLINE
from albert_tf.tokenization.tokenizer import FullTokenizer

# A file beside the vocabulary in an export, with the settings for cleaning.
TOKENIZER_FILE = "tokenizer_config.json"

_CODES = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_PAGE = 256
# Stands for a capital sigma until its neighbours decide which small one it becomes.
_SIGMA = _CODES
_SIGMAS = (0x3C3, 0x3C2)  # the small sigma within a word and at its end


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
        several = {key: values for key, values in changed.items() if len(values) != 1}
        table = np.zeros(size, np.int64)
        for key, values in changed.items():
            table[key] = values[0] - key if len(values) == 1 else 0
        # The numbers of lists are larger than all differences.
        self._first = 2 * max(size, _SIGMA + 1)
        table[list(several)] = self._first + np.arange(len(several))
        self._table = Table(table)
        self._values = np.concatenate(
            [*map(np.array, several.values()), [0]]).astype(np.int32)
        self._lengths = np.array([*map(len, several.values()), 0], np.int32)
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths

    def __call__(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values for keys [C], and for each the index of its key."""
        entries = self._table(keys)

        def expand():
            listed = entries >= self._first
            number = tf.where(listed, entries - self._first, len(self._lengths) - 1)
            counts = tf.where(listed, tf.gather(self._lengths, number), 1)
            source = tf.repeat(tf.range(tf.size(keys)), counts)
            place = tf.range(tf.size(source)) - tf.gather(
                tf.cumsum(counts, exclusive=True), source)
            of_list = tf.gather(self._starts, tf.gather(number, source)) + place
            return tf.where(
                tf.gather(listed, source),
                tf.gather(self._values, tf.minimum(of_list, len(self._values) - 1)),
                tf.gather(keys + entries, source)), source

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


def _expansion(function: Callable[[str], str], lower: bool = False) -> Expansion:
    """Returns an Expansion of code points by a function of characters.

    If `lower`, characters are lower-cased after it. "Σ" becomes _SIGMA, because its
    small letter depends on its neighbours.
    """
    def whole(text):
        return "".join(char if char == "Σ" else char.lower()
                       for char in function(text)) if lower else function(text)

    changed = {}
    for page in _PAGES:
        if whole(page) != page or "Σ" in page:
            for char in page:
                codes = [_SIGMA if lower and c == "Σ" else ord(c)
                         for c in whole(char)]
                if codes != [ord(char)]:
                    changed[ord(char)] = codes
    return Expansion(changed, _CODES)


# The class of a character near "Σ" for str.lower: other, cased, or ignored (Unicode's
# Case_Ignorable).
_OTHER, _CASED, _IGNORED = range(3)


@functools.lru_cache(maxsize=None)
def _case_classes() -> Table:
    def of(char):
        if f"{char}Σ".lower()[-1] == "ς":
            return _CASED
        return _IGNORED if f"A{char}Σ".lower()[-1] == "ς" else _OTHER

    return of_characters(of)


def _lower_sigmas(chars: Flat) -> tf.Tensor:
    """Returns the values with each _SIGMA replaced by a small sigma.

    It is "ς" if a cased character is before it and none after it, without ignored ones.
    """
    is_sigma = tf.equal(chars.values, _SIGMA)

    def replace():
        classes = tf.where(is_sigma, _CASED, _case_classes()(
            tf.where(is_sigma, 0, chars.values)))
        stands = tf.where(tf.not_equal(classes, _IGNORED))[:, 0]
        # Classes and rows of characters that are not ignored, with an edge at each end.
        edge = tf.constant([_OTHER])
        kinds = tf.concat([edge, tf.gather(classes, stands), edge], 0)
        rows = tf.concat([[-1], tf.gather(chars.rows, stands), [-1]], 0)
        number = tf.cumsum(tf.cast(tf.not_equal(classes, _IGNORED), tf.int32))

        def cased(step):
            at = number + step
            at = tf.clip_by_value(at, 0, tf.size(kinds) - 1)
            return tf.equal(tf.gather(kinds, at), _CASED) & tf.equal(
                tf.gather(rows, at), chars.rows)

        small = tf.where(cased(-1) & ~cased(1), _SIGMAS[1], _SIGMAS[0])
        return tf.where(is_sigma, small, chars.values)

    return tf.cond(tf.reduce_any(is_sigma), replace, lambda: chars.values)


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


@functools.lru_cache(maxsize=None)
def _comparable(lower: bool, strip_accents: bool, rules: Rules) -> Table:
    """Returns the table of cleaning.comparable; -2 if that is not one character."""
    def of(char):
        result = cleaning.comparable(char, lower, strip_accents, rules)
        return ord(result) if len(result) == 1 else -2

    return of_characters(of)


def _before(values: tf.Tensor, first) -> tf.Tensor:
    """Returns the predecessor of each value; `first` for the first value."""
    return tf.concat([[first], values], 0)[:-1]


# ---- SentencePiece ---------------------------------------------------------


class Cleaning:
    """cleaning.preprocess_text as TensorFlow operations."""

    def __init__(self, lower: bool, strip_accents: bool = True,
                 rules: Rules = ORIGINAL):
        def changed(text):
            spaced = "".join(" " if char.isspace() else char for char in text)
            return "".join(c for c in unicodedata.normalize("NFKD", spaced)
                           if not rules.is_combining(c)) if strip_accents else spaced

        self._quotes = rules.quotes
        self._expansion = _expansion(changed, lower)
        self._is_mark = functools.cache(
            lambda: of_characters(lambda char: not changed(char)))

    def characters(self, texts: tf.Tensor) -> Flat:
        """Returns the code points of preprocess_text(text) for texts [N]."""
        return self._cleaned(self._collapsed(texts)[0])[0]

    def sourced(self, texts: tf.Tensor) -> tuple[Flat, tf.Tensor, tf.Tensor]:
        """Returns the code points of preprocess_text(text), and where the source of
        each begins and ends in its text, as preprocess_with_sources; a blank has only
        the last of its run."""
        chars, starts, ends = self._collapsed(texts)
        ends = _joined(starts, ends, self._is_mark()(chars.values) > 0, chars.rows)
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
        return chars._replace(values=_lower_sigmas(chars)), source

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        return _encoded(self.characters(texts))


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


_cleaning = functools.cache(Cleaning)


class TokenizerOps(tf.Module):
    """A FullTokenizer as TensorFlow functions, each of which is traced once.

    Attributes:
      prepare: strings [N] → strings [N], as FullTokenizer.prepare.
      ids: prepared texts [N] → int32 [N, (tokens)].
      assets: name → content of the files from which the tokenizer can be loaded.
    """

    prepare: Callable[[tf.Tensor], tf.Tensor]
    ids: Callable[[tf.Tensor], tf.RaggedTensor]
    assets: dict[str, bytes]


def traced(function: Callable) -> Callable:
    """Wraps a function of strings [N] for calls in graphs."""
    return tf.function(function, autograph=False,
                       input_signature=[tf.TensorSpec([None], tf.string)])


def operations(tokenizer: FullTokenizer) -> TokenizerOps:
    """Returns a tokenizer as TensorFlow operations."""
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

    def __init__(self, tokenizer: FullTokenizer):
        super().__init__()
        text = tensorflow_text()
        path = tokenizer.vocabulary_path
        with files.open_binary(path) as stream:
            model = stream.read()
        self.assets = {os.path.basename(path): model}
        self._cleaning = _cleaning(
            tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.rules)
        self.prepare = traced(self._cleaning)
        # The model's own tokens, strings [N, (tokens)], for prepared texts.
        self.pieces = traced(lambda texts: self._model.tokenize(texts))
        self.ids = traced(lambda texts: self._tokens(texts)[0])
        self.tokens = traced(self._tokens)
        self._vocab = list(tokenizer.vocab)
        self._is_bytes = np.array(
            [tokenizer.is_bytes(i) for i in tokenizer.vocab.values()])
        self._lengths = functools.cache(
            lambda: of_characters(tokenizer.normalized_length))
        self._comparable = functools.partial(
            _comparable, tokenizer.do_lower_case, tokenizer.strip_accents,
            tokenizer.rules)
        self._model = text.SentencepieceTokenizer(model, out_type=tf.string)
        self._unk_id = tokenizer.unk_id
        self._ids = _lookup(tokenizer)
        self._splits = Expansion(
            {i: tokenizer.convert_tokens_to_ids(pieces)
             for i, pieces in tokenizer.split_pieces().items()}, tokenizer.vocab_size)
        digits = "".join(f"\\x{{{code:x}}}" for code in range(_CODES)
                         if chr(code).isdigit())
        self._digit_comma = f"(?s).*[{digits}],"

    def comparable(self, codes: tf.Tensor) -> tf.Tensor:
        """Returns each character after cleaning; -2 if it becomes none or several."""
        return self._comparable()(codes)

    def _tokens(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns ids and tokens of prepared texts; unknown tokens keep their text."""
        ids, names, _ = self._split(Flat.of(self.pieces(texts)))
        return ids.ragged(), ids._replace(values=names).ragged()

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, first and last character of tokens, as tokenize_with_offsets.

        A text has none if all its tokens are blank, or if one is a byte, whose
        character is not known. If the model's normalization both composes characters
        and makes several of one, a token beside such a one may be off by it.
        """
        chars, starts, ends = self._cleaning.sourced(texts)
        prepared = _encoded(chars)
        pieces, *bounds = self._model.tokenize_with_offsets(prepared)
        pieces = Flat.of(pieces)
        ids, names, source = self._split(pieces)
        # Count in normalized characters of all texts, without blanks.
        widths = self._lengths()(chars.values)
        number = tf.concat([[0], tf.cumsum(widths)], 0)
        solid = tf.repeat(tf.range(tf.size(widths)), widths)
        lengths = tf.strings.length(
            tf.strings.regex_replace(names, f"[{UNDERLINE} ]", ""), "UTF8_CHAR")

        def parts(first, behind, source):
            """Returns where tokens begin if they fill their sources, which go from
            `first` to `behind`, whether they do, and the sizes of the sources."""
            sums = tf.math.unsorted_segment_sum(lengths, source, tf.size(first))
            before = tf.cumsum(lengths, exclusive=True) - tf.gather(
                tf.cumsum(sums, exclusive=True), source)
            return (tf.gather(first, source) + before,
                    tf.gather(tf.equal(sums, behind - first), source),
                    tf.gather(behind - first, source))

        text = chars.ragged()
        begin, whole, _ = parts(*(tf.gather(number, tf.cast(bound, tf.int32))
                                  for bound in (text.row_starts(), text.row_limits())),
                                tf.cast(ids.rows, tf.int32))
        # Where characters are composed, the tokens of a text are more or fewer. Each
        # piece of the model knows its bytes.
        size = 1 + sum(tf.cast(chars.values >= least, tf.int32)
                       for least in (0x80, 0x800, 0x10000))
        before = tf.gather(tf.cumsum(tf.strings.length(prepared), exclusive=True),
                           pieces.rows)
        first, behind = (tf.gather(number, tf.searchsorted(
            tf.cumsum(size, exclusive=True), before + tf.cast(bound.values, tf.int32)))
                         for bound in bounds)
        of_piece, same, counts = parts(first, behind, source)
        begin = tf.where(whole, begin, tf.where(
            same, of_piece, tf.gather(first, source)))
        counts = tf.where(whole | same | tf.equal(lengths, 0), lengths, tf.maximum(
            counts, 1))
        # "▁" alone is just before the next character or behind the last one.
        rows = tf.concat([tf.gather(chars.rows, solid), [-1]], 0)
        starts = tf.concat([tf.gather(starts, solid), [0]], 0)
        ends = tf.concat([[0], tf.gather(ends, solid)], 0)
        starts = tf.where(tf.equal(tf.gather(rows, begin), ids.rows),
                          tf.gather(starts, begin), tf.gather(ends, begin))
        ends = tf.where(counts > 0, tf.gather(
            ends, tf.minimum(begin + counts, tf.size(solid))), starts)
        known = tf.math.unsorted_segment_max(ends - starts, ids.rows, ids.num_rows) > 0
        known &= tf.math.unsorted_segment_max(tf.cast(tf.gather(
            self._is_bytes, ids.values), tf.int32), ids.rows, ids.num_rows) < 1
        kept = tf.gather(known, ids.rows)
        return tuple(ids._replace(values=part).where(kept).ragged()
                     for part in (ids.values, starts, ends - 1))

    def _split(self, pieces: Flat) -> tuple[Flat, tf.Tensor, tf.Tensor]:
        """Splits the model's tokens at digit and comma; returns ids, tokens, and the
        index of the model's token for each."""
        ids = self._ids.lookup(pieces.values)
        values, source = self._splits(ids)
        names = tf.where(tf.equal(values, self._unk_id),
                         tf.gather(pieces.values, source),
                         tf.gather(self._vocab, values))
        result = pieces.take(source, values), names, source
        unknown = tf.equal(ids, self._unk_id) & tf.strings.regex_full_match(
            pieces.values, self._digit_comma)
        return tf.cond(
            tf.reduce_any(unknown),
            lambda: self._split_unknown(pieces, unknown, *result), lambda: result)

    def _split_unknown(self, pieces, unknown, found, names, source):
        """Applies the digit-comma rule to tokens that are not in the vocabulary."""
        places = tf.cast(tf.where(unknown)[:, 0], tf.int32)
        parts = self.pieces(tf.strings.regex_replace(
            tf.strings.regex_replace(tf.gather(pieces.values, places), ",$", ""),
            UNDERLINE, ""))
        parts = Flat.of(tf.concat([parts, tf.fill([tf.size(places), 1], ",")], axis=1))
        keep = ~tf.gather(unknown, source)
        sources = tf.concat(
            [source[keep], tf.gather(places, tf.cast(parts.rows, tf.int32))], 0)
        order = tf.argsort(sources, stable=True)
        values = tf.concat([found.values[keep], self._ids.lookup(parts.values)], 0)
        names = tf.gather(tf.concat([names[keep], parts.values], 0), order)
        sources = tf.gather(sources, order)
        return pieces.take(sources, tf.gather(values, order)), names, sources


def _lookup(tokenizer: FullTokenizer, dtype=tf.int32) -> tf.lookup.StaticHashTable:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
        list(tokenizer.vocab), list(tokenizer.vocab.values()), tf.string, dtype),
        tokenizer.unk_id)


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

    The tables hold what the library makes of each character. Neighbours matter only
    where Unicode sorts marks.
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
        # Whether two marks that are kept change places.
        self._class = of_characters(unicodedata.combining) if (
            clean("\U0001d16d\U0001d165") == "\U0001d165\U0001d16d") else None

    def __call__(self, texts: tf.Tensor) -> Words:
        chars = _decoded(texts)
        starts = _places(chars)
        ends = _joined(
            starts, starts + 1, self._is_mark(chars.values) > 0, chars.rows)
        kinds = self._kind(chars.values)
        values, source = self._changed(chars.values)
        chars = chars.take(source, values)
        if self._class:
            order = self._order(chars)
            source = tf.gather(source, order)
            chars = chars.take(order, tf.gather(chars.values, order))
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

    def _order(self, chars: Flat) -> tf.Tensor:
        """Returns the canonical order of the characters: each run of combining ones is
        sorted by combining class (Unicode standard, section 3.11)."""
        classes = self._class(chars.values)
        new_row = tf.not_equal(chars.rows, _before(chars.rows, -1))
        sinks = (_before(classes, 0) > classes) & (classes > 0) & ~new_row

        def sort():
            run = tf.cumsum(tf.cast(tf.equal(classes, 0) | new_row, tf.int32))
            return tf.argsort(run * 256 + classes, stable=True)

        return tf.cond(tf.reduce_any(sinks), sort,
                       lambda: tf.range(tf.size(classes)))


def _joined(starts, ends, is_mark, rows):
    """Returns `ends` of characters, extended over the marks that directly follow them
    (see HfTokenizer.tokenize_with_offsets)."""
    size = tf.size(starts)

    def step(distance, found, at):
        # Find the mark at `distance` after each character, if only marks are between.
        there = at + distance < size
        at = at[there]
        mark = tf.gather(is_mark, at + distance) & tf.equal(
            tf.gather(rows, at), tf.gather(rows, at + distance))
        at = at[mark]
        end = tf.gather(found, at)
        here = tf.equal(tf.gather(starts, at + distance), end)
        return distance + 1, tf.tensor_scatter_nd_update(
            found, at[:, tf.newaxis],
            tf.where(here, tf.gather(ends, at + distance), end)), at

    return tf.while_loop(
        lambda distance, found, at: tf.size(at) > 0, step,
        (tf.constant(1), ends, tf.cond(
            tf.reduce_any(is_mark), lambda: tf.cast(tf.where(~is_mark)[:, 0], tf.int32),
            lambda: tf.zeros([0], tf.int32))),
        (tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None])))[1]


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
        self._table = _lookup(tokenizer, tf.int64)
        self._unknown = tokenizer.convert_ids_to_tokens([tokenizer.unk_id])[0]
        self._model = text.WordpieceTokenizer(
            self._table, suffix_indicator="##", unknown_token=self._unknown,
            max_bytes_per_word=4 * self._max_word_chars,
            token_out_type=tf.string)
        self.prepare = traced(tf.identity)
        self.ids = traced(self._ids_of)

    def _pieces(self, words: Words) -> tf.RaggedTensor:
        """Returns the tokens of words, strings [W, (tokens)]."""
        fits = words.chars.row_lengths() <= self._max_word_chars
        return self._model.tokenize(tf.where(fits, tf.strings.unicode_encode(
            words.chars, "UTF-8"), _UNKNOWN_WORD))

    def _ids_of(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = self._words(texts)
        pieces = self._pieces(words)
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(self._table.lookup(pieces.values), tf.int32),
            tf.gather(words.rows, pieces.value_rowids()), words.num_rows,
            validate=False)

    def located(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, first and last character of tokens, as tokenize_with_offsets."""
        words = self._words(texts)
        pieces = Flat.of(self._pieces(words))
        lengths = tf.strings.length(pieces.values, "UTF8_CHAR")
        begins = tf.not_equal(pieces.rows, _before(pieces.rows, -1))
        lengths = tf.where(begins, lengths, lengths - 2)  # "##" is not in the text.
        whole = tf.cast(tf.gather(words.chars.row_lengths(), pieces.rows), tf.int32)
        lengths = tf.where(
            begins & tf.equal(pieces.values, self._unknown), whole, lengths)
        last = tf.cumsum(lengths)
        results = (tf.cast(self._table.lookup(pieces.values), tf.int32),
                 tf.gather(words.starts, last - lengths),
                 tf.gather(words.ends, last - 1) - 1)
        rows = tf.gather(words.rows, pieces.rows)
        return tuple(tf.RaggedTensor.from_value_rowids(
            part, rows, words.num_rows, validate=False) for part in results)


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
