"""The likeliest pieces of a text by a unigram model, where two ways are equally likely.

tensorflow_text holds SentencePiece 0.1.96. It and later versions add a path's scores in
float32, and where two ways to the same place ("e" + "ee" and "ee" + "e", say) differ by
no more than rounding, each takes another: in about one line of 5,000. So whatever
0.1.96 finds is looked at: a way of pieces beside it that comes within rounding of it
makes a text doubtful, and doubtful texts are taken apart again, as SentencePiece 0.2.3
does (Model::EncodeOptimized of its unigram_model.cc).

    text   ▁ e e e        ─ pieces found, boundaries 0 1 2 4
    node   0 1 2 3 4      arcs: each piece of the vocabulary that stands in the text

Shapes: C characters of all texts, A arcs, D doubtful texts, L characters of the
longest.
"""

from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from albert_tf.tokenization.sentencepiece_proto import model_proto

_UNKNOWN_PENALTY = 10.0  # kUnkPenalty
_RESET = 1e5  # kScoreResetThreshold
# Ways that differ by less than this share of a text's score are within rounding.
_ROUNDING = 2.0 ** -19
_CODE_BITS = 21
# Kinds of pieces in a model that a text may be cut into.
_NORMAL, _USER_DEFINED = 1, 4
_UNIGRAM = 1


class _Arcs(NamedTuple):
    """Pieces that stand in the texts: from which character, how many, which [A]."""

    start: tf.Tensor
    length: tf.Tensor
    piece: tf.Tensor


class Unigram(tf.Module):
    """Mends the pieces that tensorflow_text finds.

    Attributes:
      longest: characters of the longest piece.
    """

    @classmethod
    def of(cls, model: bytes) -> Optional["Unigram"]:
        """None for a model of another kind, whose pieces are left as they are found."""
        proto = model_proto().FromString(model)
        if proto.trainer_spec.model_type != _UNIGRAM or (
                proto.trainer_spec.byte_fallback):
            return None
        return cls(proto)

    def __init__(self, proto):
        super().__init__()
        pieces = [piece for piece in proto.pieces
                  if piece.type in (_NORMAL, _USER_DEFINED)]
        self.longest = max(len(piece.piece) for piece in pieces)
        normal = [p.score for p in pieces if p.type == _NORMAL]
        # The last one is of a character that is no piece.
        self._scores = np.array(
            [0.1 * (len(p.piece.encode()) - 1) if p.type == _USER_DEFINED else p.score
             for p in pieces] + [0.0], np.float32)
        self._scores[-1] = np.float32(min(normal)) - np.float32(_UNKNOWN_PENALTY)
        self._unknown = len(pieces)
        edges: dict[int, int] = {}
        ends = {0: -1}
        for number, piece in enumerate(pieces):
            node = 0
            for char in piece.piece:
                node = edges.setdefault(node << _CODE_BITS | ord(char), len(edges) + 1)
            ends[node] = number
        self._edges = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
            np.array([*edges], np.int64), np.array([*edges.values()], np.int64)), -1)
        self._piece_at = np.array(
            [ends.get(node, -1) for node in range(len(edges) + 1)], np.int32)

    def __call__(self, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
        """Strings [N, (pieces)] as tensorflow_text finds them → as SentencePiece."""
        texts = tf.strings.reduce_join(pieces, axis=-1)
        chars = tf.strings.unicode_decode(texts, "UTF-8")
        arcs = self._arcs(chars)
        doubtful = self._doubtful(pieces, chars, arcs)

        def mended():
            numbers = tf.where(doubtful)[:, 0]
            of_those = tf.gather(doubtful, tf.gather(chars.value_rowids(), arcs.start))
            best = self._best(tf.gather(chars, numbers), _Arcs(*(
                tf.boolean_mask(part, of_those) for part in arcs._replace(
                    start=arcs.start - _shift(chars, doubtful, arcs.start)))))
            place = tf.where(
                doubtful, pieces.nrows() - 1 + tf.cumsum(tf.cast(doubtful, tf.int64)),
                tf.range(pieces.nrows()))
            return tf.gather(tf.concat([pieces, best], 0), place)

        return tf.cond(tf.reduce_any(doubtful), mended, lambda: pieces)

    def _arcs(self, chars: tf.RaggedTensor) -> _Arcs:
        """All pieces of the vocabulary in the texts, and characters that are none."""
        codes, ends = tf.cast(chars.values, tf.int64), tf.gather(
            chars.row_limits(), chars.value_rowids())
        count = tf.size(codes, tf.int64)

        def step(length, at, node, start, lengths, piece):
            here = at + length < tf.gather(ends, at)
            at, node = at[here], node[here]
            node = self._edges.lookup(
                tf.bitwise.left_shift(node, _CODE_BITS) | tf.gather(codes, at + length))
            at, node = at[node >= 0], node[node >= 0]
            length += 1
            found = tf.gather(self._piece_at, node)
            is_piece = found >= 0
            return (length, at, node, tf.concat([start, at[is_piece]], 0),
                    tf.concat([lengths, tf.fill([tf.math.count_nonzero(is_piece)],
                                                length)], 0),
                    tf.concat([piece, found[is_piece]], 0))

        none = tf.zeros([0], tf.int64)
        row = tf.TensorShape([None])
        _, _, _, start, length, piece = tf.while_loop(
            lambda length, at, *_: tf.size(at) > 0, step,
            (tf.constant(0, tf.int64), tf.range(count), tf.zeros([count], tf.int64),
             none, none, tf.zeros([0], tf.int32)),
            (tf.TensorShape([]), row, row, row, row, row))
        single = tf.math.unsorted_segment_sum(
            tf.cast(tf.equal(length, 1), tf.int32), start, count)
        unknown = tf.where(tf.equal(single, 0))[:, 0]
        ones = tf.ones_like(unknown)
        return _Arcs(
            tf.concat([start, unknown], 0), tf.concat([length, ones], 0),
            tf.concat([piece, tf.cast(self._unknown * ones, tf.int32)], 0))

    def _doubtful(self, pieces, chars, arcs: _Arcs) -> tf.Tensor:
        """bool [N]: whether another way may be as likely as that of `pieces`."""
        rows = chars.value_rowids()
        # Each text has one node more than characters.
        first = chars.row_starts() + tf.range(chars.nrows())
        number = tf.size(chars.values, tf.int64) + chars.nrows()
        start = arcs.start + tf.gather(rows, arcs.start)
        end = start + arcs.length
        scores = tf.cast(tf.gather(self._scores, arcs.piece), tf.float64)
        lengths = tf.cast(tf.strings.length(pieces.values, "UTF8_CHAR"), tf.int64)
        behind = pieces.with_values(tf.cumsum(lengths)).values
        last = behind + pieces.value_rowids()  # the node behind each piece
        marks = tf.concat([first, last], 0)
        on_way = tf.tensor_scatter_nd_update(
            tf.zeros([number], tf.bool), marks[:, tf.newaxis],
            tf.ones_like(marks, tf.bool))
        # Pieces that are not in the vocabulary are several characters, each a node.
        unknown = tf.equal(arcs.piece, self._unknown)
        on_way = tf.tensor_scatter_nd_update(
            on_way, end[unknown][:, tf.newaxis], tf.ones_like(end[unknown], tf.bool))
        # The arcs of the way lead from each node of it to the next.
        nodes = tf.where(on_way)[:, 0]
        following = tf.scatter_nd(
            nodes[:-1, tf.newaxis], nodes[1:], [number])
        of_way = tf.gather(on_way, start) & tf.equal(tf.gather(following, start), end)
        gains = tf.scatter_nd(end[of_way][:, tf.newaxis], scores[of_way], [number])
        way = tf.cumsum(gains)
        # Of each text by itself.
        row_of = tf.repeat(tf.range(chars.nrows()), chars.row_lengths() + 1)
        way -= tf.gather(tf.gather(way, first), row_of)
        start, end, scores = (part[~of_way] for part in (start, end, scores))
        lowest = tf.constant(-np.inf, tf.float64)
        known = tf.where(on_way, way, lowest)

        def through():
            """The best score at each node of ways beside it, arc by arc."""
            def step(values, _):
                found = tf.math.unsorted_segment_max(
                    tf.gather(values, start) + scores, end, number)
                found = tf.where(on_way, way, tf.maximum(found, lowest))
                return found, tf.reduce_any(found > values)

            return tf.while_loop(
                lambda _, changed: changed, step, (known, tf.constant(True)))[0]

        beside = tf.math.unsorted_segment_max(
            tf.gather(through(), start) + scores, end, number)
        size = tf.math.unsorted_segment_max(tf.abs(way), row_of, chars.nrows())
        near = on_way & (beside >= way - _ROUNDING * (tf.gather(size, row_of) + 1.0))
        return tf.math.unsorted_segment_max(
            tf.cast(near, tf.int32), row_of, chars.nrows()) > 0

    def _best(self, chars: tf.RaggedTensor, arcs: _Arcs) -> tf.RaggedTensor:
        """The pieces of texts [D], step by step as SentencePiece adds them up."""
        size = chars.bounding_shape(out_type=tf.int64)
        texts, longest = size[0], size[1]
        rows = tf.gather(chars.value_rowids(), arcs.start)
        column = arcs.start - tf.gather(chars.row_starts(), rows)
        width = self.longest + 1
        # [L, D, width]: the score of a piece of each length from each character on.
        steps = tf.tensor_scatter_nd_update(
            tf.fill([longest, texts, width], -np.float32(np.inf)),
            tf.stack([column, rows, arcs.length], 1),
            tf.gather(self._scores, arcs.piece))

        def step(at, best, back):
            here = best[:, :1]
            # As 0.2.3 keeps long texts within float32.
            best = tf.where(tf.abs(here) > _RESET, best - here, best)
            found = best[:, :1] + steps[at]
            better = found > best
            return (at + 1, tf.concat(
                [tf.where(better, found, best)[:, 1:],
                 tf.fill([texts, 1], -np.float32(np.inf))], 1),
                    back.write(at, better))

        start = tf.one_hot(tf.zeros([texts], tf.int32), width, np.float32(0),
                           -np.float32(np.inf))
        _, _, back = tf.while_loop(
            lambda at, *_: at < tf.cast(longest, tf.int32), step,
            (tf.constant(0), start, tf.TensorArray(
                tf.bool, tf.cast(longest, tf.int32), element_shape=[None, width])))
        # [D, L + 1]: the length of the last piece of the best way to each node: that
        # of the last arc that was better, from the nearest start.
        better = tf.transpose(back.stack(), [1, 0, 2])  # [D, L, width]
        lengths = self._last_lengths(better)

        def trace(at, marks):
            on = at > 0
            length = tf.gather(lengths, tf.maximum(at, 0), axis=1, batch_dims=1)
            at = tf.where(on, at - length, at)
            return at, tf.tensor_scatter_nd_update(
                marks, tf.stack([tf.range(texts), tf.cast(at, tf.int64)], 1),
                tf.ones_like(on))

        _, marks = tf.while_loop(
            lambda at, _: tf.reduce_any(at > 0), trace,
            (tf.cast(chars.row_lengths(), tf.int32),
             tf.zeros([texts, longest + 1], tf.bool)))
        return self._cut(chars, marks, arcs, rows, column)

    def _last_lengths(self, better: tf.Tensor) -> tf.Tensor:
        """[D, L, width] whether an arc from l of a length was better → [D, L + 1]."""
        width = self.longest + 1
        # The arc of length n to node t comes from t - n: shifted, by node.
        by_node = tf.stack([
            tf.pad(better[:, :, n], [[0, 0], [n, width - n]])
            for n in range(1, width)], 2)  # [D, L + width, width - 1]
        count = tf.shape(better)[1] + 1
        return tf.argmax(by_node[:, :count], axis=2, output_type=tf.int32) + 1

    def _cut(self, chars, marks, arcs, rows, column):
        """Texts cut before each mark; characters that are no piece stay together."""
        begins = tf.RaggedTensor.from_tensor(
            marks[:, :-1], lengths=chars.row_lengths()).values
        place = tf.gather(chars.row_starts(), rows) + column
        single = tf.equal(arcs.piece, self._unknown)
        unknown = tf.scatter_nd(
            place[single][:, tf.newaxis], tf.ones_like(place[single], tf.int32),
            tf.shape(begins, tf.int64)) > 0
        ends = tf.concat([begins, [True]], 0)[1:]
        alone = begins & ends & unknown  # taken as a character that is no piece
        before = tf.concat([[False], alone], 0)[:-1]
        first = tf.equal(tf.range(tf.size(begins, tf.int64)),
                         tf.gather(chars.row_starts(), chars.value_rowids()))
        begins &= first | ~(alone & before)
        starts = tf.where(begins)[:, 0]
        pieces = tf.RaggedTensor.from_row_starts(chars.values, starts)
        return tf.RaggedTensor.from_value_rowids(
            tf.strings.unicode_encode(pieces, "UTF-8"),
            tf.gather(chars.value_rowids(), starts), chars.nrows())


def _shift(chars: tf.RaggedTensor, kept: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """By how much places move when texts that are not `kept` [N] are left out."""
    left_out = tf.where(kept, tf.zeros([1], tf.int64), chars.row_lengths())
    return tf.gather(tf.gather(tf.cumsum(left_out), chars.value_rowids()), places)
