"""Writes documents with one sentence per line, and holds some documents out.

The output is what create_pretraining_data.py reads: one sentence per line and a blank
line after every document. The last document has one too, so that documents of two files
are never joined.
"""

import collections
import dataclasses
import hashlib
import itertools
import math
import random
from typing import BinaryIO, Iterable, Iterator, Mapping, Optional, Sized

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.text.readers import Document, without_markup
from albert_tf.text.languages import clean_text, cut_long, split_sentences

_UNIT_CHARS = 1 << 20  # characters of a unit of work, at least


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings for splitting, filtering and holding out documents: flags of
    prepare_corpus.py, with the language as languages.check_language returns it.

        Options(language="de", min_document_sentences=2, heldout_share=0.005)
    """

    language: str = "en"
    heldout_share: Optional[float] = option(
        None, "Fraction of the documents to hold out. Default: 0.05 with --heldout_file.",
        most=1, only_with="heldout_file")
    min_sentence_chars: int = option(0, "Drop sentences with fewer characters.")
    max_sentence_chars: int = option(
        1000, "Split sentences with more characters, at white space if there is any; 0 "
        "never splits.")
    min_document_sentences: int = option(
        1, "Drop documents with fewer sentences.", least=1)
    deduplicate: str = option(
        "documents", "What to drop. documents: exact copies of documents, ignoring case; "
        "sentences: also every sentence seen before (about 100 bytes of memory per "
        "sentence); none: nothing.", choices=("documents", "sentences", "none"))
    random_seed: int = option(
        12345, "Seed that chooses the documents to hold out, and those that "
        "--sampling_exponent repeats or leaves out. If you add input later, documents "
        "held out before stay held out.", least=-2**63, most=2**63 - 1)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The option of the scripts that mix sources, in more even shares than those they have
    (Conneau and Lample, "Cross-lingual language model pretraining", 2019, section 3.1)."""

    sampling_exponent: Optional[float] = option(
        None, "Mix several sources, such as languages, in more even shares. Each pattern "
        "of --input_file is a source, and its share becomes proportional to its number of "
        "sentences raised to this exponent, such as 0.7. The total stays the same: texts "
        "of small sources are repeated, and texts of large ones left out, except those "
        "held out. Default: 1, which takes everything once.", most=1)


def _amounts() -> collections.Counter:
    return collections.Counter(documents=0, sentences=0, characters=0, bytes=0)


@dataclasses.dataclass
class Summary:
    """Counts of what was read, written for training and held out (characters without
    line ends), dropped (reason → count), and of training sentences by source."""

    documents_read: int = 0
    training: collections.Counter = dataclasses.field(default_factory=_amounts)
    heldout: collections.Counter = dataclasses.field(default_factory=_amounts)
    dropped: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    sources: collections.Counter = dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass(frozen=True)
class Splitter:
    """For worker processes: splitter(unit) splits the documents of a unit (`units`) into
    sentences, kept in `folder`, and returns the unit's name."""

    options: Options
    folder: WorkFolder

    def __call__(self, unit: tuple[str, list[Document]]) -> str:
        name, documents = unit
        if documents:
            dropped: collections.Counter[str] = collections.Counter()
            with files.atomic_write(self.folder.file(f"{name}.txt")) as stream:
                for each in documents:
                    sentences = document_sentences(each, self.options, dropped)
                    stream.write(("\n".join(sentences) + "\n\n").encode())
            self.folder.finish(name, {"dropped": dropped, "sources": [
                each.source for each in documents]}, [f"{name}.txt"])
        return name

    def units(self, documents: Iterable[Document]
              ) -> Iterator[tuple[str, list[Document]]]:
        """Yields units of work: a name, and documents, or none if it is finished."""
        held: list[Document] = []
        number = chars = 0
        for document in itertools.chain(documents, [None]):
            if document:
                held.append(document)
                chars += sum(map(len, document.paragraphs))
            if held and (chars >= _UNIT_CHARS or not document):
                name = f"sentences-{number:06d}"
                yield name, [] if self.folder.finished(name) else held
                held, number, chars = [], number + 1, 0

    def read(self, names: Iterable[str], dropped: collections.Counter
             ) -> Iterator[tuple[str, str]]:
        """Yields source and text, a sentence per line, of the documents of finished
        units; adds to `dropped` what was removed."""
        for name in names:
            info = self.folder.known(name) or {}
            dropped.update(info["dropped"])
            with files.open_binary(self.folder.file(f"{name}.txt")) as stream:
                texts = stream.read().decode().split("\n\n")
            yield from zip(info["sources"], texts)


def prepare(documents: Iterable[tuple[str, str]], options: Options, training: BinaryIO,
            heldout: Optional[BinaryIO], summary: Summary,
            times: Optional[Mapping[str, float]] = None) -> None:
    """Filters documents, each a source and sentences, one per line, and writes them, with
    counts in `summary`.

        with open("train.txt", "wb") as training:
            prepare(documents, Options(), training, None, summary := Summary())

    A hash of the sentences and of the seed decides whether a document is held out, if
    there is `heldout`. Equal texts therefore never are on both sides, and more input does
    not move a document to the other side. `times` (source → number) says how often to
    write the other documents of a source, on average (times_of).
    """
    held_out_below = int((options.heldout_share or 0) * 2**64)
    copies = Copies(times, options.random_seed)
    seen: set[bytes] = set()
    seed = options.random_seed.to_bytes(16, "little", signed=True)
    dropped = summary.dropped
    for source, text in documents:
        summary.documents_read += 1
        if not text:
            dropped["documents without text"] += 1
            continue
        # Case is ignored, because the model usually reads lower-cased text.
        digest = _digest(text.lower().encode())
        if options.deduplicate != "none":
            if digest in seen:
                dropped["duplicate documents"] += 1
                continue
            seen.add(digest)
        if options.deduplicate == "sentences":
            lines = text.split("\n")
            # The key keeps them apart from documents of one sentence.
            unseen: dict[bytes, str] = {}
            for line in lines:
                unseen.setdefault(_digest(line.lower().encode(), b"sentence"), line)
            left = [line for each, line in unseen.items() if each not in seen]
            seen.update(unseen)
            if len(left) < len(lines):
                dropped["duplicate sentences"] += len(lines) - len(left)
                text = "\n".join(left)
        sentences = text.count("\n") + bool(text)
        if sentences < max(options.min_document_sentences, 1):
            dropped["documents with too few sentences"] += 1
            dropped["sentences of documents with too few"] += sentences
            continue
        is_held = heldout is not None and int.from_bytes(
            _digest(digest, seed)[:8], "big") < held_out_below
        count = 1 if is_held else copies.of(source, sentences)
        stream, side = (heldout, summary.heldout) if is_held else (
            training, summary.training)
        content = f"{text}\n\n".encode()
        stream.write(content * count)
        side.update(documents=count, sentences=count * sentences,
                    characters=count * (len(text) - sentences + 1),
                    bytes=count * len(content))
        summary.sources[source] += 0 if is_held else count * sentences
        if count != 1:
            dropped["copies added by --sampling_exponent" if count else
                    "documents left out by --sampling_exponent"] += abs(count - 1)
    for what, stream, side in (("left to train on", training, summary.training),
                               ("held out", heldout, summary.heldout)):
        if stream is not None and not side["documents"]:
            raise InputError(
                f"none of the {summary.documents_read} documents is {what} (dropped: "
                f"{dict(dropped)}); check --heldout_share and the limits of lengths. If "
                "blank lines separate documents, give --document_separator=blank_line.")


def document_sentences(document: Document, options: Options,
                       dropped: collections.Counter) -> list[str]:
    """Returns the sentences of a document, cleaned, filtered and split; counts in
    `dropped` what was removed."""
    sentences = []
    for paragraph in without_markup(document.paragraphs, dropped) if (
            document.markup) else document.paragraphs:
        text, removed = clean_text(paragraph)
        if removed:
            dropped["invisible characters"] += removed
        for sentence in split_sentences(text, options.language):
            if len(sentence) < options.min_sentence_chars:
                dropped["sentences that are too short"] += 1
            elif 0 < options.max_sentence_chars < len(sentence):
                dropped["sentences cut up, not dropped"] += 1
                sentences.extend(cut_long(sentence, options.max_sentence_chars))
            else:
                sentences.append(sentence)
    return sentences


def _digest(data: bytes, key: bytes = b"") -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=key).digest()


# ---- shares of sources -----------------------------------------------------


def is_sampled(exponent: Optional[float], sources: Sized) -> bool:
    """Returns whether --sampling_exponent changes the shares of the patterns in
    --input_file. Raises InputError if there are no several ones."""
    wanted = exponent not in (None, 1)
    if wanted and len(sources) < 2:
        raise InputError(
            f"--sampling_exponent={exponent:g} needs a pattern for each source in "
            "--input_file, as in 'en/*.txt,fi/*.txt'.")
    return wanted


def times_of(amounts: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns how often to take each source, on average, so that its share is
    proportional to its amount raised to `exponent`; logs the shares before and after."""
    powers = {source: amount ** exponent for source, amount in amounts.items()}
    total = max(sum(amounts.values()), 1)
    factor, times = total / max(sum(powers.values()), 1), {}
    for source, amount in amounts.items():
        # Rounded, so that equal amounts have exactly 1.
        times[source] = round(factor * powers[source] / max(amount, 1), 9)
        logging.info("%s: %d sentences, %.2f %%, taken %.3f times: %.2f %%", source, amount,
                     100 * amount / total, times[source],
                     100 * amount * times[source] / total)
    return times


class Copies:
    """Decides how often each text is taken: `times` of its source (by default 1), rounded
    up or down. The next texts make up for it."""

    def __init__(self, times: Optional[Mapping[str, float]] = None, seed: int = 12345):
        self._times, self._draw = times or {}, random.Random(seed)
        self._owed: dict[str, float] = collections.defaultdict(float)

    def of(self, source: str, amount: int = 1) -> int:
        """Returns how often to take the source's next text, which has this amount."""
        times = self._times.get(source, 1)
        owed = self._owed[source] + times * amount
        copies = math.floor(owed / amount + self._draw.random())
        copies = min(max(copies, math.floor(times)), math.ceil(times))
        self._owed[source] = owed - copies * amount
        return copies
