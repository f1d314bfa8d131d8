"""A file that grows by whole pieces, in order, and goes on after an interruption.

Pieces are files that are made apart, by other processes say. What was appended may be
removed at once, so that the disk holds little more than the file itself.
"""

import os
from typing import BinaryIO, Iterable

import google_crc32c

from albert_tf import files
from albert_tf.errors import Interruption

_READ_BYTES = 1 << 20


class GrowingFile:
    """Appends pieces to a local file.

    Args:
      path: the file; it may be there from an interrupted run.
      pieces: [size, CRC-32C] of the pieces that it may hold, in order. As many as are
        found whole and unchanged are kept, and what comes after them is cut off.

    Attributes:
      num_pieces: pieces that the file holds.
    """

    def __init__(self, path: str, pieces: Iterable[list[int]] = ()):
        self.path = path
        self.num_pieces = 0
        self._size = self._crc = 0
        if os.path.exists(path):
            with files.open_binary(path) as stream:
                for piece in pieces:
                    if not self._holds(stream, piece):
                        break
                    self.num_pieces += 1
        with self._open() as stream:
            stream.truncate(self._size)

    def _holds(self, stream: BinaryIO, piece: list[int]) -> bool:
        """Whether the next bytes are this piece; they are counted if so."""
        size, crc = 0, 0
        whole = self._crc
        while size < piece[0] and (
                data := stream.read(min(_READ_BYTES, piece[0] - size))):
            size += len(data)
            crc = google_crc32c.extend(crc, data)
            whole = google_crc32c.extend(whole, data)
        if [size, crc] != piece:
            return False
        self._size, self._crc = self._size + size, whole
        return True

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "r+b" if os.path.exists(self.path) else "w+b")
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> Interruption:
        return Interruption(
            f"{self.path}: cannot be written: {error.strerror or error}.")

    def append(self, piece: str) -> None:
        """Appends a file, and removes it.

        Raises:
          Interruption: if there is no room; the file then holds what it held.
        """
        size, crc = self._size, self._crc
        try:
            with self._open() as stream, files.open_binary(piece) as source:
                stream.seek(size)
                while data := source.read(_READ_BYTES):
                    stream.write(data)
                    size += len(data)
                    crc = google_crc32c.extend(crc, data)
        except OSError as error:
            raise self._error(error) from error
        self._size, self._crc = size, crc
        self.num_pieces += 1
        files.remove(piece)

    @property
    def sum(self) -> list[int]:
        """[size, CRC-32C], as work_folder.has_sum takes it."""
        return [self._size, self._crc]
