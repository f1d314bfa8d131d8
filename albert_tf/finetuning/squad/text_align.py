"""Where in a passage its pieces stand, in TensorFlow's graph, as
finetuning.squad.alignment finds it.

Shapes: N passages, P pieces; of one passage n characters and m characters of its
pieces' text, in which a blank stands for "▁".
"""

import tensorflow as tf

from albert_tf.tokenization import in_graph

_MIN_MATCHED_SHARE = 0.8
_BAND_MARGIN = 5
_UP, _LEFT, _MATCH = 0, 1, 2
_BLANK = ord(" ")
Ragged = tf.RaggedTensor


def located(ops: in_graph.TokenizerOps, passages: tf.Tensor
            ) -> tuple[Ragged, Ragged, Ragged]:
    """Ids, first and last character of each piece, int32 [N, (P)]; a passage whose
    pieces cannot be matched with it has none."""
    if isinstance(ops, in_graph.WordPieceOps):
        return ops.located(passages)
    ids, strings = ops.tokens(ops.prepare(passages))
    text = tf.strings.unicode_decode(tf.strings.regex_replace(tf.strings.reduce_join(
        strings, axis=-1), in_graph.UNDERLINE, " "), "UTF-8")
    lengths = strings.with_values(tf.strings.length(strings.values, "UTF8_CHAR"))
    chars = tf.strings.unicode_decode(passages, "UTF-8")
    chars = chars.with_values(ops.comparable(chars.values))

    def align(row):
        found, starts, ends = _places(row[0], row[1], row[2])
        return tf.fill([tf.size(starts)], found), starts, ends

    row = tf.RaggedTensorSpec([None], tf.int32, 0)
    found, starts, ends = tf.map_fn(
        align, (chars, text, lengths), fn_output_signature=(
            tf.RaggedTensorSpec([None], tf.bool, 0), row, row))
    rows = ids.value_rowids()
    kept = found.values
    return tuple(Ragged.from_value_rowids(
        part.values[kept], rows[kept], ids.nrows(), validate=False)
                 for part in (ids, starts, ends))


def _places(chars, text, lengths):
    """Whether the text is matched, and first and last character of its pieces [P]."""
    found, matches = _match(chars, text)
    size = tf.size(chars)
    matched = tf.where(matches >= 0)[:, 0]
    char_of = tf.tensor_scatter_nd_update(
        tf.fill([tf.size(text)], -1), tf.gather(matches, matched)[:, tf.newaxis],
        tf.cast(matched, tf.int32))
    is_match = char_of >= 0
    known = char_of[is_match]
    number = tf.cumsum(tf.cast(is_match, tf.int32))
    # What matches nothing starts behind the match before it and ends before the next.
    before = tf.gather(tf.concat([[-1], known], 0), number)
    after = tf.gather(tf.concat([known, [size]], 0), number)
    starts = tf.where(is_match, char_of, tf.minimum(before + 1, size - 1))
    ends = tf.where(is_match, char_of, tf.maximum(after - 1, 0))
    behind = tf.cumsum(lengths)
    return found, tf.gather(starts, behind - lengths), tf.gather(ends, behind - 1)


def _match(chars, text):
    """alignment.match_characters: whether enough is matched, and the places
    [n] in the text, or -1. `chars` are code points, -2 for what matches none."""
    size, length = tf.size(chars), tf.size(text)
    band = tf.abs(size - length) + _BAND_MARGIN
    enough = _MIN_MATCHED_SHARE * tf.cast(size, tf.float64)
    ordered = tf.sort(text)
    at = tf.minimum(tf.searchsorted(ordered, chars), tf.maximum(length - 1, 0))
    occurring = tf.cond(
        length > 0, lambda: tf.equal(tf.gather(ordered, at), chars),
        lambda: tf.zeros([size], tf.bool))
    absent = size - tf.math.count_nonzero(occurring, dtype=tf.int32)
    certain, greedy = _match_greedily(chars, text, occurring)
    certain &= ~((absent > band) | (length - size + absent >= band) | (
        tf.cast(size - absent, tf.float64) <= enough))

    def by_table():
        def wider():
            matched, matches = _match_by_table(chars, text, 2 * band)
            return tf.cast(matched, tf.float64) >= enough, matches

        matched, matches = _match_by_table(chars, text, band)
        return tf.cond(tf.cast(matched, tf.float64) > enough,
                       lambda: (tf.constant(True), matches), wider)

    return tf.cond(
        (size > 0) & (length > 0),
        lambda: tf.cond(certain, lambda: (tf.constant(True), greedy), by_table),
        lambda: (tf.constant(False), tf.fill([size], -1)))


def _match_greedily(chars, text, occurring):
    """alignment.match_greedily for a text that has the same characters but for
    blanks: each blank must then follow the match before it. Whether that is so, and
    the places [n]."""
    is_blank = tf.equal(chars, _BLANK) & occurring
    solid = occurring & ~is_blank
    places = tf.cast(tf.where(tf.not_equal(text, _BLANK))[:, 0], tf.int32)
    given = chars[solid]
    least = tf.minimum(tf.size(places), tf.size(given))
    same = tf.equal(tf.size(places), tf.size(given)) & tf.reduce_all(
        tf.equal(tf.gather(text, places[:least]), given[:least]))
    number = tf.cumsum(tf.cast(solid, tf.int32))
    known = tf.concat([[-1], places], 0)
    last = tf.gather(known, tf.minimum(number, tf.size(places)))
    # How many blanks have come since the last solid character.
    blanks = tf.cumsum(tf.cast(is_blank, tf.int32))
    at_solid = tf.concat([[0], blanks[solid]], 0)
    place = tf.where(is_blank, last + blanks - tf.gather(at_solid, number), last)
    there = tf.gather(tf.concat([text, [-1]], 0), tf.minimum(
        tf.maximum(place, 0), tf.size(text)))
    fits = tf.reduce_all(~is_blank | tf.equal(there, _BLANK))
    return same & fits, tf.where(occurring, place, -1)


def _match_by_table(chars, text, band):
    """alignment.match_by_table: the number of matched characters, and places."""
    size, length, width = tf.size(chars), tf.size(text), 2 * band
    padded = tf.concat([tf.fill([band], -1), text, tf.fill(
        [tf.maximum(size + band - length, 0)], -1)], 0)

    def row(i, above, table):
        """`above` [width + 1] is the row before, and a 0 out of its band."""
        same = tf.equal(padded[i:i + width], chars[i])
        diagonal = tf.where(same, above[:-1] + 1, 0)
        # The best of the matches up to each place is the last, as `above` rises.
        last = tf.gather(tf.concat([[-1], tf.cast(tf.where(same)[:, 0], tf.int32)], 0),
                         tf.cumsum(tf.cast(same, tf.int32)))
        matched = tf.where(last >= 0, tf.gather(above, tf.maximum(last, 0)) + 1, 0)
        up = above[1:]
        best = tf.maximum(tf.concat([up[:-1], above[-2:-1]], 0), matched)
        left = tf.concat([[0], best[:-1]], 0)
        step = tf.where(diagonal > tf.maximum(up, left), _MATCH,
                        tf.where(left > up, _LEFT, _UP))
        return i + 1, tf.concat([best, [0]], 0), table.write(i, tf.cast(step, tf.int8))

    _, above, table = tf.while_loop(
        lambda i, *_: i < size, row,
        (tf.constant(0), tf.zeros([width + 1], tf.int32), tf.TensorArray(
            tf.int8, size, element_shape=[None])))
    table = table.stack()
    first = length - size + band

    def trace(i, k, matches):
        step = table[i, k]
        is_match = tf.equal(step, _MATCH)
        matches = tf.tensor_scatter_nd_update(
            matches, [[i]], [tf.where(is_match, i - band + k, -1)])
        is_left = tf.equal(step, _LEFT)
        return (tf.where(is_left, i, i - 1),
                tf.where(is_left, k - 1, tf.where(is_match, k, k + 1)), matches)

    _, _, matches = tf.while_loop(
        lambda i, k, _: (i >= 0) & (k >= 0) & (k < width) & (i - band + k >= 0), trace,
        (size - 1, first, tf.fill([size], -1)))
    return above[first], matches
