"""Splits text into tokens and ids as the original implementation does, with the
position of every token in the text."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.tokenization.tokenizer import (
        FullTokenizer as FullTokenizer, PieceSpan as PieceSpan)
else:
    __getattr__, __dir__ = lazily(__name__, {"tokenizer": "FullTokenizer PieceSpan"})
