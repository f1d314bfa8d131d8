"""More pieces for a SentencePiece model, for a text of another domain.

    extension = extend("30k-clean.model", lines, Options(num_pieces=2000))
    extension.model                       # the bytes of the new .model file
    extension.parts[0]                    # (7, 912): old ids of the first new piece

A model that continues on medicine or law with a vocabulary of Wikipedia reads its words
in fragments. The pieces that a vocabulary of the new text's own would have, and the old
one lacks, come behind the old ones, whose ids and scores stay: text without new pieces
is tokenized as before, and the model's weights stay those of their pieces.
"""

import collections
import itertools
import random
import re
from typing import Iterable, NamedTuple

import sentencepiece

from albert_tf.errors import InputError
from albert_tf.tokenization import train_sentencepiece
from albert_tf.tokenization.cleaning import preprocess_batch
from albert_tf.tokenization.tokenizer_json import model_proto
from albert_tf.tokenization.sentencepiece_tokenizer import keeps_accents, load


class Options(NamedTuple):
    """How many pieces are added at most, and of which text; the other fields are those
    of train_sentencepiece.Options."""

    num_pieces: int = 2000
    do_lower_case: bool = True
    input_sentence_size: int = 1_000_000
    num_threads: int = 16


class Extension(NamedTuple):
    """A model with more pieces.

    Attributes:
      model, vocab: contents of the .model and the .vocab file.
      pieces: those that are new, in the order of their ids.
      parts: for each of them the old model's ids of its text, two at least.
      table: both for people, a line a new piece: the piece, a tab, what it replaces.
      pieces_before, pieces_after: how many pieces the text has by either model.
    """

    model: bytes
    vocab: bytes
    pieces: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    table: bytes
    pieces_before: int
    pieces_after: int


def extend(model_file: str, lines: Iterable[str], options: Options = Options()
           ) -> Extension:
    """Adds to a model the pieces that shorten a text most.

    A vocabulary is trained on the text. Of the pieces that it has in words which it cuts
    into fewer than the old one does, those that the old one lacks are taken, the ones
    first that save most: occurrences times the old pieces each replaces, less one. They
    keep the log probability that they have in the text, which is what they compete with
    in tokenization (Kudo 2018, "Subword Regularization", section 3.2).
    """
    if options.num_pieces < 1:
        raise InputError(f"--num_pieces={options.num_pieces} must be 1 or more.")
    old = load(model_file)
    model = old.serialized_model_proto()
    proto = model_proto().FromString(model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise InputError(
            f"{model_file}: its pieces have no log probabilities, as it is not of the "
            "type unigram; take the release's or one of train_sentencepiece.py.")
    strip_accents = not keeps_accents(model)
    lines = _sample(lines, options.input_sentence_size)
    own = sentencepiece.SentencePieceProcessor(
        model_proto=train_sentencepiece.train(lines, train_sentencepiece.Options(
            len(proto.pieces) + options.num_pieces, options.do_lower_case,
            input_sentence_size=options.input_sentence_size,
            num_threads=options.num_threads, strip_accents=strip_accents),
            exactly=False).model)
    texts = preprocess_batch(lines, options.do_lower_case, strip_accents)
    found = _gains(proto, old, own, texts)
    if not found:
        raise InputError("--input_file holds no piece that the vocabulary lacks: it "
                         "needs no extension, or more text.")
    # Of equal gains the first in Unicode's order, on every machine.
    found = sorted(found, key=lambda row: (-row[0], row[1]))[:options.num_pieces]
    for _, piece, _ in found:
        proto.pieces.add(piece=piece, score=own.get_score(own.piece_to_id(piece)))
    proto.trainer_spec.vocab_size = len(proto.pieces)
    content = proto.SerializeToString(deterministic=True)
    new = sentencepiece.SentencePieceProcessor(model_proto=content)
    return Extension(
        content, train_sentencepiece.vocab_lines(content),
        tuple(piece for _, piece, _ in found), tuple(parts for _, _, parts in found),
        "".join(f"{piece}\t{' '.join(map(old.id_to_piece, parts))}\n"
                for _, piece, parts in found).encode(),
        *(sum(map(len, processor.encode(texts))) for processor in (old, new)))


def _gains(proto, old, own, texts: Iterable[str]) -> list[tuple[int, str, tuple]]:
    """(old pieces saved, piece, their ids) of each piece that is `own`'s alone."""
    words = collections.Counter(itertools.chain.from_iterable(map(str.split, texts)))
    # A piece is cut up as it stands: with its "▁", or without one.
    inner = type(proto).FromString(proto.SerializeToString())
    inner.normalizer_spec.add_dummy_prefix = False
    inner.normalizer_spec.remove_extra_whitespaces = False
    parts_of = sentencepiece.SentencePieceProcessor(
        model_proto=inner.SerializeToString()).encode
    counts = collections.Counter()
    for (word, count), before, pieces in zip(
            words.items(), old.encode(list(words)), own.encode(list(words), out_type=str)):
        if len(pieces) < len(before):
            counts.update(dict.fromkeys(pieces, count))
    found = []
    for piece, count in counts.items():
        # The tokenizer splits a digit and a comma off any piece that ends so.
        if old.piece_to_id(piece) == old.unk_id() and not re.search(r"\d,$", piece):
            parts = parts_of(piece)
            if len(parts) > 1 and old.unk_id() not in parts:
                found.append((count * (len(parts) - 1), piece, tuple(parts)))
    return found


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Up to `size` lines that are not blank, each as likely as any other, in their
    order (Vitter's algorithm R)."""
    generator = random.Random(0)
    kept: list[tuple[int, str]] = []
    for number, line in enumerate(filter(str.strip, lines)):
        if number < size:
            kept.append((number, line))
        elif (place := generator.randrange(number + 1)) < size:
            kept[place] = (number, line)
    return [line for _, line in sorted(kept)]
