"""Adds pieces to a SentencePiece model, for text from a different domain.

    extend("30k-clean.model", lines, Options(num_pieces=2000)).model  # the new file

A vocabulary trained on Wikipedia splits the words of medicine or law into fragments.
Pieces that a vocabulary trained on the new text has, and the old one lacks, are added
after the old ones, whose ids and scores do not change. Text without new pieces is
therefore tokenized as before, and the model's embeddings still belong to their pieces.
"""

import collections
import itertools
from typing import Iterable, Iterator, NamedTuple

import sentencepiece

from albert_tf.errors import InputError
from albert_tf.tokenization import train_sentencepiece as train
from albert_tf.tokenization.cleaning import preprocess_batch
from albert_tf.tokenization.tokenizer_json import ends_in_digit_comma, model_proto
from albert_tf.tokenization.sentencepiece_tokenizer import keeps_accents, load


class Options(NamedTuple):
    """The maximum number of pieces to add, and fields of train_sentencepiece.Options."""

    num_pieces: int = 2000
    do_lower_case: bool = True
    input_sentence_size: int = 1_000_000
    num_threads: int = 16


class Extension(NamedTuple):
    """A model with more pieces."""

    model: bytes  # content of the .model file
    vocab: bytes  # of the .vocab file
    pieces: tuple[str, ...]  # the new ones, in the order of their ids
    parts: tuple[tuple[int, ...], ...]  # the old model's ids for each, at least two
    table: bytes  # a line for each new piece: the piece, a tab, its parts
    pieces_before: int  # tokens in the text with the old model
    pieces_after: int


def extend(model_file: str, lines: Iterable[str], options: Options = Options()
           ) -> Extension:
    """Adds to a model the pieces that shorten a text most.

    A new vocabulary is trained on the text. Candidates are pieces that the old one
    lacks, in words that the new one splits into fewer pieces. Those that save most are
    added: the number of occurrences times the number of old pieces replaced, minus one.
    They keep their log probability in the text, by which tokenization chooses (Kudo
    2018, "Subword Regularization", section 3.2).
    """
    old = load(model_file)
    model = old.serialized_model_proto()
    proto = model_proto().FromString(model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise InputError(f"{model_file}: the model is not of type unigram; give one "
                         "that is.")
    strip_accents = not keeps_accents(model)
    # A sample of the lines that are not blank, in their order.
    lines = [line for _, line in sorted(train.sample(
        enumerate(filter(str.strip, lines)), options.input_sentence_size, seed=0))]
    domain = _processor(train.train(lines, train.Options(
        len(proto.pieces) + options.num_pieces, options.do_lower_case,
        input_sentence_size=options.input_sentence_size,
        num_threads=options.num_threads, strip_accents=strip_accents), False).model)
    texts = preprocess_batch(lines, options.do_lower_case, strip_accents)
    # Equal gains are sorted by code points, so that all machines give the same order.
    gains = sorted(_gains(proto, old, domain, texts),
                   key=lambda row: (-row[0], row[1]))[:options.num_pieces]
    if not gains:
        raise InputError("--input_file has no piece that the vocabulary lacks; give "
                         "more text, or use the vocabulary as it is.")
    _, pieces, parts = zip(*gains)
    for piece in pieces:
        proto.pieces.add(piece=piece, score=domain.get_score(domain.piece_to_id(piece)))
    proto.trainer_spec.vocab_size = len(proto.pieces)
    content = proto.SerializeToString(deterministic=True)
    return Extension(
        content, train.vocab_lines(content), pieces, parts,
        "".join(f"{piece}\t{' '.join(map(old.id_to_piece, ids))}\n"
                for piece, ids in zip(pieces, parts)).encode(),
        *(sum(map(len, each.encode(texts))) for each in (old, _processor(content))))


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _gains(proto, old, own, texts: Iterable[str]) -> Iterator[tuple[int, str, tuple]]:
    """Yields (saved tokens, piece, old ids) for each piece that only `own` has."""
    words = collections.Counter(itertools.chain.from_iterable(map(str.split, texts)))
    # The old model splits a piece as it is, without adding "▁" or removing blanks.
    inner = type(proto).FromString(proto.SerializeToString())
    inner.normalizer_spec.add_dummy_prefix = False
    inner.normalizer_spec.remove_extra_whitespaces = False
    parts_of = _processor(inner.SerializeToString()).encode
    counts = collections.Counter()
    for count, before, pieces in zip(
            words.values(), old.encode(list(words)),
            own.encode(list(words), out_type=str)):
        if len(pieces) < len(before):
            counts.update(dict.fromkeys(pieces, count))
    for piece, count in counts.items():
        if old.piece_to_id(piece) == old.unk_id() and not ends_in_digit_comma(piece):
            parts = parts_of(piece)
            if len(parts) > 1 and old.unk_id() not in parts:
                yield count * (len(parts) - 1), piece, tuple(parts)
