"""Trains a SentencePiece vocabulary with the settings of the original implementation.

    vocabulary = train(open("wiki.txt"), Options(vocab_size=8000))
    vocabulary.model                           # the bytes of the .model file
"""

import collections
import contextlib
import dataclasses
import io
import json
import os
import random
import re
import subprocess
import sys
from typing import Any, Iterable, Iterator, NamedTuple, Optional, TypeVar

import sentencepiece

from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.tokenization.cleaning import preprocess_text
from albert_tf.tokenization.sentencepiece_tokenizer import marked

# The first pieces in the vocabulary; data and models rely on their ids.
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
# Maximum numbers of characters in a word and in a line. The trainer's time grows with
# the square of text without blanks, and of text that a line repeats.
_LONGEST_WORD, _LONGEST_LINE = 1 << 12, 1 << 14
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}(?=\S)")
_PART = re.compile(rf"\S.{{,{_LONGEST_LINE}}}(?!\S)")
T = TypeVar("T")
FIRST_PIECES = ("<pad>", "<unk>", *CONTROL_SYMBOLS, *USER_SYMBOLS)


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings for the training, by default those of the original implementation. The
    model itself neither lower-cases nor strips accents, so users of it must."""

    vocab_size: int = option(
        30000, "Number of pieces in the vocabulary.", least=len(FIRST_PIECES) + 1)
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
    word_start: Optional[str] = None  # kept in the model: see FullTokenizer


class Vocabulary(NamedTuple):
    """A trained model, and the size of its text."""

    model: bytes  # content of the .model file
    vocab: bytes  # of the .vocab file; a line has a piece, a tab, its log probability
    sentences: int
    characters: int  # after preprocessing


def train(lines: Iterable[str], options: Options = Options(),
          exactly: bool = True) -> Vocabulary:
    """Trains a unigram model on lines of text, one sentence each; skips blank lines.

    The text is preprocessed as by the tokenizer. Equal input and options give an equal
    result. Unless `exactly`, the result may have fewer pieces than vocab_size.
    """
    counts = collections.Counter(sentences=0, characters=0)
    model = _train_apart(
        sentences(lines, options, counts), counts,
        model_type="unigram", vocab_size=options.vocab_size,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        # These are lists, because a quotation mark in a comma-separated string would
        # include the symbols after it.
        control_symbols=list(CONTROL_SYMBOLS), user_defined_symbols=list(USER_SYMBOLS),
        character_coverage=options.character_coverage,
        input_sentence_size=options.input_sentence_size,
        shuffle_input_sentence=True, num_threads=options.num_threads,
        # This is in bytes; by default the trainer leaves out sentences above 4192.
        max_sentence_length=2**30, hard_vocab_limit=exactly,
        minloglevel=0 if options.verbose else 2)
    model = marked(model, options.strip_accents, options.word_start)
    return Vocabulary(model, vocab_lines(model), **counts)


# ---- the trainer's process, because the trainer ignores signals for minutes ----

_SEED = 12345  # for the sample of sentences
_PROGRAM = "from albert_tf.tokenization import train_sentencepiece as t; t.serve()"


def _train_apart(lines: Iterable[str], counts: collections.Counter, **arguments: Any
                 ) -> bytes:
    """Trains in a separate process, which ends with this one; returns the model."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        os.path.abspath(folder) for folder in sys.path)}
    with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            # If the process ends early, its output explains why.
            with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                stream.write(json.dumps(arguments).encode() + b"\n")
                for line in lines:
                    stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
            result = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    if not process.returncode:
        return result
    # The trainer puts the line of its code and its condition before the reason.
    reason = result.decode().rpartition("] ")[2] or result.decode() or (
        "the trainer was killed, perhaps for lack of memory; give a smaller "
        "--input_sentence_size")
    raise InputError(
        f"SentencePiece cannot train --vocab_size={arguments['vocab_size']} on "
        f"{counts['sentences']:,} sentences with {counts['characters']:,} characters: "
        f"{reason}")


def serve() -> None:
    """Runs the trainer's process: reads arguments and sentences, one per line, and writes
    the model; or the error, with status 1."""
    stream, model = sys.stdin.buffer, io.BytesIO()
    arguments = json.loads(stream.readline())
    # The trainer's own sample would differ in each process.
    lines = sample(stream, arguments["input_sentence_size"], _SEED)
    lines.reverse()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # Each line is freed when the trainer has read it.
            sentence_iterator=(lines.pop()[:-1].decode("utf-8", "surrogatepass")
                               for _ in range(len(lines))),
            model_writer=model, **arguments)
    except Exception as error:
        sys.stdout.write(str(error))
        sys.exit(1)
    sys.stdout.buffer.write(model.getvalue())


def sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Returns all items, or a uniform random sample of `size` of them if there are more
    (Vitter 1985, "Random sampling with a reservoir", algorithm R)."""
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
    """Yields the preprocessed sentences of lines, very long ones in parts; counts
    "sentences" and "characters"."""
    for line in lines:
        # NUL would end a sentence inside the trainer.
        text = preprocess_text(line.replace("\0", " "), options.do_lower_case,
                               strip_accents=options.strip_accents)
        if len(text) > _LONGEST_WORD:
            text = _LONG_WORD.sub(r"\g<0> ", text).rstrip()
        if text:
            counts["sentences"] += 1
            counts["characters"] += len(text)
            yield from [text] if len(text) <= _LONGEST_LINE else _PART.findall(text)


def vocab_lines(model: bytes) -> bytes:
    """Returns the content of a .vocab file as the SentencePiece trainer writes it."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n"
                   for i in range(len(processor))).encode()
