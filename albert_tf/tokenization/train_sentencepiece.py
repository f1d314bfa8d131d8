"""Training a SentencePiece vocabulary with the settings of the 2019 release.

    vocabulary = train(open("wiki.txt"), Options(vocab_size=8000))
    vocabulary.model                           # the bytes of the .model file
"""

import io
import re
from typing import Iterable, Iterator, NamedTuple

import sentencepiece

from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import preprocess_text

# The pieces that stand first, whose ids the data and the models rely on.
CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
FIRST_PIECES = ("<pad>", "<unk>", *CONTROL_SYMBOLS, *USER_SYMBOLS)


class Options(NamedTuple):
    """Settings of the training; the defaults are the release's."""

    vocab_size: int = 30000  # FIRST_PIECES among them
    # Accents are stripped in any case: the model itself does neither, so its callers
    # must.
    do_lower_case: bool = True
    # Share of the text's characters that get a piece; the others become <unk>.
    character_coverage: float = 0.99995
    # Sentences drawn at random to train on, if there are more; they are held in memory.
    # The trainer's own seed of that draw is fixed: equal text gives an equal draw.
    input_sentence_size: int = 10_000_000
    # A part of the result, since sums in another order round differently; hence not the
    # number of cores.
    num_threads: int = 16
    verbose: bool = False  # shows the trainer's own log


class Vocabulary(NamedTuple):
    """A trained model: the contents of the .model and the .vocab file (per line a
    piece, a tab, its log probability), and the number of sentences that were offered
    and of their characters after preprocessing."""

    model: bytes
    vocab: bytes
    sentences: int
    characters: int


def train(lines: Iterable[str], options: Options = Options(),
          exactly: bool = True) -> Vocabulary:
    """Trains a unigram model on lines of text, a sentence each; blank ones are skipped.

    The text goes through the preprocessing that the tokenizer applies. Equal input and
    options give an equal result. Unless `exactly`, a text may give fewer pieces than
    vocab_size.
    """
    check(options)
    source = _Source(lines, options.do_lower_case)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=source.sentences(), model_writer=model,
            model_type="unigram", vocab_size=options.vocab_size,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            # As lists: in one comma-separated string a bare quote would swallow
            # the symbols after it.
            control_symbols=list(CONTROL_SYMBOLS),
            user_defined_symbols=list(USER_SYMBOLS),
            character_coverage=options.character_coverage,
            input_sentence_size=options.input_sentence_size,
            shuffle_input_sentence=True, num_threads=options.num_threads,
            # Bytes; by default the trainer leaves out sentences above 4192.
            max_sentence_length=2**30, hard_vocab_limit=exactly,
            minloglevel=0 if options.verbose else 2)
    except Exception as error:
        if source.error is not None:
            raise source.error
        raise _explained(error, source, options) from error
    if source.error is not None:
        raise source.error
    return Vocabulary(model.getvalue(), vocab_lines(model.getvalue()),
                      source.count, source.characters)


def check(options: Options) -> None:
    """Raises InputError for settings that cannot work."""
    if options.vocab_size <= len(FIRST_PIECES):
        raise InputError(
            f"--vocab_size={options.vocab_size} leaves no room beside the "
            f"{len(FIRST_PIECES)} fixed pieces: choose a few hundred at least.")
    if not 0.98 <= options.character_coverage <= 1:
        raise InputError(
            f"--character_coverage={options.character_coverage} is not between 0.98 "
            "and 1.")
    if not 1 <= options.num_threads <= 1024:
        raise InputError(
            f"--num_threads={options.num_threads} is not between 1 and 1024.")
    if options.input_sentence_size <= 100:
        raise InputError(
            f"--input_sentence_size={options.input_sentence_size}: more than 100 "
            "sentences are needed.")


class _Source:
    """Preprocessed sentences, counted; keeps the error that ended them, because the
    trainer may lose an exception that is raised inside its iterator."""

    def __init__(self, lines: Iterable[str], lower: bool):
        self._lines, self._lower = lines, lower
        self.count = 0
        self.characters = 0
        self.error: BaseException | None = None

    def sentences(self) -> Iterator[str]:
        try:
            for line in self._lines:
                # NUL ends a sentence inside the trainer.
                text = preprocess_text(line.replace("\0", " "), lower=self._lower)
                if text:
                    self.count += 1
                    self.characters += len(text)
                    yield text
        except BaseException as error:
            self.error = error
            raise


def _explained(error: Exception, source: _Source, options: Options) -> InputError:
    """The trainer's exception in a sentence for the user."""
    if not source.count:
        return InputError(
            "there is no text to train a vocabulary on: --input_file holds blank "
            "lines only.")
    text = f"{source.count:,} sentences with {source.characters:,} characters"
    largest = re.search(r"value\s*<=\s*(\d+)", str(error))
    if largest:
        return InputError(
            f"--vocab_size={options.vocab_size} is more than the text allows "
            f"({text}): give --vocab_size={largest.group(1)} at most, or more text.")
    smallest = re.search(r"smaller than required_chars\.?\s*(\d+) vs (\d+)", str(error))
    if smallest:
        return InputError(
            f"--vocab_size={options.vocab_size} is less than the "
            f"{smallest.group(2)} single characters of the text: give more, or a "
            "smaller --character_coverage.")
    return InputError(
        f"SentencePiece cannot train on this text ({text}): {error}")


def vocab_lines(model: bytes) -> bytes:
    """The content of a .vocab file as the SentencePiece trainer writes it."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if tuple(pieces[:len(FIRST_PIECES)]) != FIRST_PIECES:
        raise RuntimeError(
            f"the vocabulary starts with {pieces[:len(FIRST_PIECES)]}, not with "
            f"{list(FIRST_PIECES)}")
    return "".join(f"{piece}\t{processor.get_score(i):g}\n"
                   for i, piece in enumerate(pieces)).encode("utf-8")
