"""Text to pieces to ids as the TF1 release does it, with the place of every piece in
the text."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "tokenizer": "FullTokenizer PieceSpan",
    "cleaning": "preprocess_text",
    "wordpiece_tokenizer": "basic_tokenize load_vocab",
})
