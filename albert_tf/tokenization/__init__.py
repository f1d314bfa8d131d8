"""Text to pieces to ids as the TF1 release does it, with the place of every piece in
the text."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "FullTokenizer": "tokenizer",
    "PieceSpan": "tokenizer",
    "preprocess_text": "cleaning",
    "basic_tokenize": "wordpiece_tokenizer",
    "load_vocab": "wordpiece_tokenizer",
})
