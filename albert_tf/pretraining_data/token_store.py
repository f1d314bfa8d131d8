"""Finds documents and tokens in the parts that `token_parts` writes.

What is needed is read where it lies, so that no part is in memory as a whole.
"""

from typing import Iterator

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data import token_parts
from albert_tf.pretraining_data.part_files import PartFiles
from albert_tf.pretraining_data.token_parts import (
    DOCUMENT, Documents, LENGTH, MARK, sums_before)
from albert_tf.pretraining_data.work_folder import WorkFolder

# Without a sentence objective instances depend on it: they end where a slice ends.
SENTENCES_PER_SLICE = 1 << 20


def slice_borders(first_sentence: np.ndarray,
                  num_sentences: int = SENTENCES_PER_SLICE) -> list[int]:
    """Where slices of a span's documents begin, and their number: 0, ..., D.

    Args:
      first_sentence: of each document and behind the last, int64 [D + 1].
      num_sentences: a slice takes documents until it has so many, at least one.
    """
    borders, last = [0], len(first_sentence) - 1
    while borders[-1] < last:
        reached = np.searchsorted(
            first_sentence, first_sentence[borders[-1]] + num_sentences)
        borders.append(int(min(reached, last)))
    return borders


def random_places(
        documents: Documents, numbers: np.ndarray, places: np.ndarray,
        targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Text from a random place of each of K documents in memory.

    A text goes from a sentence at random on for as many sentences as reach the target,
    at least one, at most to the end of the document.

    Args:
      documents: D documents.
      numbers: which of them, int64 [K].
      places: random numbers (counter_random.word), uint64 [K].
      targets: pieces wanted, int64 [K].

    Returns:
      The first token of each text, and how many pieces it has, int64 [K].
    """
    first = documents.first_sentence[numbers]
    limit = documents.first_sentence[numbers + 1]
    start = first + keyed_random.below(places, limit - first)
    before = sums_before(documents.sentence_lengths)
    ends = _ends(before, start, targets, limit)
    return (documents.first_token[numbers] + before[start] - before[first],
            before[ends] - before[start])


def _ends(before: np.ndarray, start: np.ndarray, target: np.ndarray,
          limit: np.ndarray) -> np.ndarray:
    """Where texts end that begin with sentences `start`: int64 [K].

    Args:
      before: pieces before each sentence.
      start: int64 [K].
      target: pieces wanted, int64 [K].
      limit: where the documents end, int64 [K].
    """
    ends = np.searchsorted(before, before[start] + target)
    return np.clip(ends, start + 1, limit)


class TokenStore:
    """The parts in a folder, all of them written; documents are numbered through.

    Attributes:
      num_parts: how many parts there are.
      num_documents: documents of all parts.
      first_document: int64 [num_parts]; the number of each part's first document.
      dtype: of tokens; None if there is no document.
    """

    def __init__(self, folder: WorkFolder):
        """Looks at the sizes of the files.

        Raises:
          InputError: if a file of a part is missing.
        """
        self._files = PartFiles(folder)
        self.num_parts = self._files.num_parts("documents")
        sizes = [self._num_documents(number) for number in range(self.num_parts)]
        first = sums_before(np.array(sizes, np.int64))
        self.first_document, self.num_documents = first[:-1], int(first[-1])
        self.dtype = None
        if self.num_documents:
            number = int(np.flatnonzero(sizes)[0])
            num_tokens = int(self._rows(number, sizes[number], 1)["first_token"][0])
            self.dtype = np.dtype(
                f"<u{self._files.size(number, 'tokens') // num_tokens}")

    def close(self) -> None:
        """Closes files; they are opened again when they are needed."""
        self._files.close()

    def part(self, number: int) -> Documents:
        """The documents of a part.

        All but the tokens is read into memory, about 4 bytes a sentence and 40 a
        document. Tokens are mapped: what is not looked at takes no memory.
        """
        return self._documents(
            number, self._rows(number, 0, self._num_documents(number) + 1))

    def slices(self, number: int, num_sentences: int = SENTENCES_PER_SLICE
               ) -> Iterator[tuple[int, int, Documents]]:
        """The documents of a part in slices, for parts of any size.

        Args:
          number: the part.
          num_sentences: a slice takes documents until it has so many sentences, as
            slice_borders says.

        Yields:
          The number in the part of the slice's first document, the place in the
          part's tokens of its first token, and the slice.
        """
        total = self._num_documents(number)
        first = 0
        while first < total:
            # A document has a sentence or more.
            rows = self._rows(number, first, min(num_sentences, total - first) + 1)
            reached = np.searchsorted(
                rows["first_sentence"], rows["first_sentence"][0] + num_sentences)
            rows = rows[:min(reached, len(rows) - 1) + 1]
            yield first, int(rows["first_token"][0]), self._documents(number, rows)
            first += len(rows) - 1

    def read(self, parts: np.ndarray, starts: np.ndarray,
             lengths: np.ndarray) -> np.ndarray:
        """Tokens from anywhere.

        Args:
          parts: number of a part, [K].
          starts: place of the first token in the part's tokens, [K].
          lengths: how many tokens, [K].

        Returns:
          The tokens of all K places, in the order given, one after the other.
        """
        if not len(parts):
            return np.zeros(0, self.dtype or np.uint16)
        return self._files.read("tokens", self.dtype, parts, starts, lengths)

    def second_segment(
            self, documents: np.ndarray, places: np.ndarray,
            targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Text from a random place of each of K documents, as random_places.

        Args:
          documents: numbers of documents in the store, int64 [K].
          places: random numbers, uint64 [K].
          targets: pieces wanted, int64 [K].

        Returns:
          Where it lies: part, uint32 [K], and first token in the part, uint64 [K];
          and how many pieces it has, int64 [K].
        """
        found = [self._second_segment(documents[i:i + 4096], places[i:i + 4096],
                                      targets[i:i + 4096])
                 for i in range(0, max(1, len(documents)), 4096)]
        part, start, length = map(np.concatenate, zip(*found))
        return part.astype(np.uint32), start.astype(np.uint64), length

    def _second_segment(self, documents, places, targets):
        if not len(documents):
            return (np.zeros(0, np.int64),) * 3
        part = np.searchsorted(self.first_document, documents, side="right") - 1
        own = documents - self.first_document[part]
        rows = self._files.read(
            "documents", DOCUMENT, part, own, np.full(len(part), 2))
        first, limit = rows["first_sentence"][::2], rows["first_sentence"][1::2]
        start = first + keyed_random.below(places, limit - first)
        # From the last mark on, or from the document's beginning if that is later.
        marked = start - start % token_parts.SENTENCES_PER_MARK
        near = np.maximum(first, marked)
        position = rows["first_token"][::2].copy()
        far = np.flatnonzero(marked > first)
        if len(far):
            marks = self._files.read(
                "marks", MARK, part[far], marked[far] // token_parts.SENTENCES_PER_MARK,
                np.ones(len(far), np.int64))
            # Behind each document before this one there is a separator.
            position[far] = marks.astype(np.int64) + own[far]
        # A sentence has a piece or more.
        last = np.minimum(limit, start + np.maximum(targets, 1))
        before = sums_before(self._files.read(
            "lengths", LENGTH, part, near, last - near))
        shift = sums_before(last - near)[:-1] - near
        ends = _ends(before, start + shift, targets, last + shift)
        return (part, position + before[start + shift] - before[near + shift],
                before[ends] - before[start + shift])

    def _documents(self, number: int, rows: np.ndarray) -> Documents:
        first, last = rows[0], rows[-1]
        sentence, token = int(first["first_sentence"]), int(first["first_token"])
        lengths = self._files.array(
            number, "lengths", LENGTH, sentence,
            int(last["first_sentence"]) - sentence)
        tokens = self._files.mapped(
            number, "tokens", self.dtype or np.dtype(np.uint16), token,
            int(last["first_token"]) - token)
        return Documents.of(tokens, lengths, rows)

    def _num_documents(self, number: int) -> int:
        return self._files.size(number, "documents") // DOCUMENT.itemsize - 1

    def _rows(self, number: int, first: int, count: int) -> np.ndarray:
        return self._files.array(number, "documents", DOCUMENT, first, count)
