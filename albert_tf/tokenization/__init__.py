"""Splits text into tokens and ids as the original implementation does, with the
position of every token in the text."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "tokenizer": "FullTokenizer PieceSpan",
    "cleaning": "preprocess_text",
    "wordpiece_tokenizer": "basic_tokenize load_vocab",
})
