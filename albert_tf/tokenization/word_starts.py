"""Which pieces start a word, by which whole words are masked.

SentencePiece marks a space before a piece with "▁", WordPiece marks a piece that
continues a word with "##". The release has a rule of its own for SentencePiece.
"""

_LATIN = frozenset("abcdefghijklmnopqrstuvwxyz")
# Without ' < = >: a piece that holds one of these always starts a word, whereas
# one of several others, such as "**", does not.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')


def _release(piece: str) -> bool:
    """The release's _is_start_piece_sp: true for a piece that begins with "▁" or "<",
    is a punctuation mark, or holds any character besides Latin letters and punctuation;
    so every piece of a non-Latin script, and every number, starts a word."""
    if piece.startswith(("▁", "<")) or piece in _PUNCTUATION:
        return True
    return not all(c.lower() in _LATIN or c.lower() in _PUNCTUATION for c in piece)


_RULES = {
    "release": _release,
    "sentencepiece": lambda piece: piece.startswith("▁"),
    # The release's _is_start_piece_bert.
    "wordpiece": lambda piece: not piece.startswith("##"),
}


class WordStarts(dict):
    """piece → whether it starts a word by a rule, "release", "sentencepiece" or
    "wordpiece"; each piece is looked at once.

        >>> starts = WordStarts("wordpiece")
        >>> starts["un"], starts["##aff"]
        (True, False)
    """

    def __init__(self, rule: str):
        super().__init__()
        self._rule = rule

    def __missing__(self, piece: str) -> bool:
        self[piece] = starts = _RULES[self._rule](piece)
        return starts
