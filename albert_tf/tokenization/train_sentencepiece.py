"""Trains a SentencePiece vocabulary with the settings of the original implementation, or
adds pieces to one, for text from a different domain.

    train(open("wiki.txt"), Options(vocab_size=8000)).model  # the .model file's bytes
    extend("30k-clean.model", lines, ExtendOptions(num_pieces=2000)).model

A vocabulary trained on Wikipedia splits the words of medicine or law into fragments.
`extend` adds pieces after the old ones, whose ids and scores do not change: text without
new pieces is tokenized as before, and the embeddings still belong to their pieces.
"""

import collections
import dataclasses
import itertools
import json
import random
import re
import subprocess
import sys
from typing import Iterable, Iterator, NamedTuple, TypeVar

from absl import logging
from sentencepiece import SentencePieceProcessor as Processor

from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.tokenization.cleaning import ends_in_digit_comma, preprocess_text
from albert_tf.tokenization.tokenizer import SentencePieceTokenizer, marked, model_proto

# The first pieces in the vocabulary are these, behind <pad> and <unk>; data and models
# rely on their ids. They are lists, because a quotation mark in a comma-separated string
# would include the symbols after it.
_CONTROL = ["[CLS]", "[SEP]", "[MASK]"]
_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
# Maximum number of characters in a line, which is cut between words if it is longer. The
# trainer's time grows with the square of text without blanks, and of text that a line
# repeats.
_LONGEST = 1 << 12
_PART = re.compile(rf"\S.{{,{_LONGEST - 1}}}(?!\S)|\S{{{_LONGEST}}}")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings for the training, by default those of the original implementation. The
    model itself neither lower-cases nor strips accents, so users of it must."""

    vocab_size: int = option(
        30000, "Number of pieces in the vocabulary.", least=3 + len(_CONTROL + _SYMBOLS))
    do_lower_case: bool = option(True, "Lower-case the text before training.")
    character_coverage: float = option(
        0.99995, "Fraction of the text's characters that the pieces must cover; 0.9995 "
        "suits Chinese and Japanese.", least=0.98, most=1)
    input_sentence_size: int = option(
        10_000_000, "Maximum number of sentences to train on. If there are more, a random "
        "sample is drawn, which is the same in every run. The sentences are held in "
        "memory: give fewer if they do not fit.", least=101)
    num_threads: int = option(
        16, "Number of trainer threads. The result depends on it, because sums round "
        "differently; therefore the default is the same on every machine.", least=1,
        most=1024)
    verbose: bool = option(False, "Show the log of the SentencePiece trainer.")
    strip_accents: bool = option(
        True, "Strip accents and other combining marks before training, as the original "
        "implementation does: schön becomes schon, ガ becomes カ. false is recorded in the "
        "model, and scripts that read the model then keep them. If it is not given, the "
        "corpus' language decides (prepare_corpus.py --language).")
    word_start: str = "release"  # kept in the model if another: see FullTokenizer


class Vocabulary(NamedTuple):
    """A trained model, and the size of its text."""

    model: bytes  # content of the .model file
    vocab: bytes  # of the .vocab file; a line has a piece, a tab, its log probability
    sentences: int
    characters: int  # after preprocessing


# The trainer's process, because the trainer ignores signals for minutes: it reads arguments
# and sentences, one per line, and writes the model; or the error, with status 1.
_PROGRAM = """
import io, json, sys, sentencepiece
model, given = io.BytesIO(), sys.stdin.buffer.readline()
if not given:  # The parent was stopped.
    sys.exit(1)
try:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line[:-1] for line in sys.stdin.buffer), model_writer=model,
        **json.loads(given))
except Exception as error:
    sys.stdout.write(str(error))
    sys.exit(1)
sys.stdout.buffer.write(model.getvalue())
"""


def train(lines: Iterable[str], options: Options = Options(),
          exactly: bool = True) -> Vocabulary:
    """Trains a unigram model on lines of text, one sentence each, which it preprocesses
    as the tokenizer does. Equal input and options give an equal result, which may have
    fewer pieces than vocab_size unless `exactly`."""
    counts = collections.Counter(sentences=0, characters=0)
    arguments = dict(
        model_type="unigram", vocab_size=options.vocab_size,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=_CONTROL, user_defined_symbols=_SYMBOLS,
        character_coverage=options.character_coverage,
        input_sentence_size=options.input_sentence_size,
        shuffle_input_sentence=True, num_threads=options.num_threads,
        # This is in bytes; by default the trainer leaves out sentences above 4192.
        max_sentence_length=2**30, hard_vocab_limit=exactly,
        minloglevel=0 if options.verbose else 2)
    # The trainer's own sample would differ in each process.
    chosen = sample(sentences(lines, options, counts), options.input_sentence_size, 12345)
    logging.info("All text has been read. Training starts.")
    given = "\n".join([json.dumps(arguments), *chosen, ""]).encode()
    del chosen
    done = subprocess.run([sys.executable, "-c", _PROGRAM], input=given, check=False,
                          stdout=subprocess.PIPE, start_new_session=True)
    if done.returncode:
        # The trainer puts the line of its code and its condition before the reason.
        said = done.stdout.decode()
        raise InputError(
            f"SentencePiece cannot train --vocab_size={options.vocab_size} on "
            f"{counts['sentences']:,} sentences with {counts['characters']:,} characters: "
            + (said.rpartition("] ")[2] or said or "the trainer was killed, perhaps for "
               "lack of memory; give a smaller --input_sentence_size"))
    model = marked(done.stdout, options.strip_accents, options.word_start)
    return Vocabulary(model, vocab_lines(model), **counts)


def sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Returns all items, or a uniform random sample of `size` if there are more (Vitter
    1985, "Random sampling with a reservoir", algorithm R)."""
    draw = random.Random(seed)
    chosen: list[T] = []
    for number, item in enumerate(items):
        if number < size:
            chosen.append(item)
        elif (place := draw.randrange(number + 1)) < size:
            chosen[place] = item
    return chosen


def sentences(lines: Iterable[str], options: Options, counts: collections.Counter
              ) -> Iterator[str]:
    """Yields the preprocessed sentences of lines, very long ones in parts."""
    for line in lines:
        # NUL would end a sentence inside the trainer.
        text = preprocess_text(line.replace("\0", " "), options.do_lower_case,
                               strip_accents=options.strip_accents)
        if text:
            counts["sentences"] += 1
            counts["characters"] += len(text)
            yield from [text] if len(text) <= _LONGEST else _PART.findall(text)


def vocab_lines(model: bytes) -> bytes:
    """Returns the content of a .vocab file as the SentencePiece trainer writes it."""
    processor = Processor(model_proto=model)
    return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
                   for i in range(len(processor))).encode()


# ---- a vocabulary with further pieces --------------------------------------


@dataclasses.dataclass(frozen=True)
class ExtendOptions:
    """Settings for `extend`; the options are flags of extend_vocabulary.py."""

    num_pieces: int = option(2000, "Maximum number of pieces to add.", least=1)
    do_lower_case: bool = option(
        True, "Lower-case the text. Use the value that the model was trained with.")
    input_sentence_size: int = option(
        1_000_000, "Maximum number of sentences to use. If there are more, a random "
        "sample is drawn.", least=101)


class Extension(NamedTuple):
    """A model with more pieces."""

    model: bytes  # content of the .model file
    vocab: bytes  # of the .vocab file
    pieces: tuple[str, ...]  # the new ones, in the order of their ids
    parts: tuple[tuple[int, ...], ...]  # the old model's ids for each, at least two
    table: bytes  # a line for each new piece: the piece, a tab, its parts
    pieces_before: int  # tokens in the text with the old model
    pieces_after: int


def extend(model_file: str, lines: Iterable[str], options: ExtendOptions = ExtendOptions()
           ) -> Extension:
    """Adds to a model the pieces that shorten a text most.

    A new vocabulary is trained on the text. Candidates are pieces that the old one
    lacks, in words that the new one splits into fewer pieces. Those that save most are
    added: the number of occurrences times the number of old pieces replaced, minus one.
    They keep their log probability in the text, by which tokenization chooses (Kudo
    2018, "Subword Regularization", section 3.2).
    """
    tokenizer = SentencePieceTokenizer(None, options.do_lower_case, model_file)
    old = tokenizer.processor
    proto = model_proto().FromString(old.serialized_model_proto())
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise InputError(f"{model_file}: the model is not of type unigram; give one "
                         "that is.")
    lines = sample(filter(str.strip, lines), options.input_sentence_size, seed=0)
    domain = Processor(model_proto=train(lines, Options(
        len(proto.pieces) + options.num_pieces, options.do_lower_case,
        input_sentence_size=options.input_sentence_size,
        strip_accents=tokenizer.strip_accents), exactly=False).model)
    texts = tokenizer.prepare_batch(lines)
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
        content, vocab_lines(content), pieces, parts,
        "".join(f"{piece}\t{' '.join(map(old.id_to_piece, ids))}\n"
                for piece, ids in zip(pieces, parts)).encode(),
        *(sum(map(len, each.encode(texts))) for each in (old, Processor(model_proto=content))))


def _gains(proto, old, own, texts: Iterable[str]) -> Iterator[tuple[int, str, tuple]]:
    """Yields (saved tokens, piece, old ids) for each piece that only `own` has."""
    words = collections.Counter(itertools.chain.from_iterable(map(str.split, texts)))
    # The old model splits a piece as it is, without adding "▁" or removing blanks.
    inner = type(proto).FromString(proto.SerializeToString())
    inner.normalizer_spec.add_dummy_prefix = False
    inner.normalizer_spec.remove_extra_whitespaces = False
    parts_of = Processor(model_proto=inner.SerializeToString()).encode
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
