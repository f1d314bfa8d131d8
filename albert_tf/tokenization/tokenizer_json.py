"""Hugging Face's tokenizer.json: what is read of it, and how it is written.

A file written for a SentencePiece model tokenizes as the original implementation does,
as far as the format permits. It has steps and no special cases, so the digit-comma rule
("▁1999," becomes "▁1999" and ",") is imitated by scores so low that those tokens are
never chosen. The model's own symbols, such as "(", remain ordinary tokens, because
"added tokens" would be cut out of the text before it is split into words.
"""

import base64
import functools
import itertools
import sys
import unicodedata
from typing import Any, Mapping, Sequence

from albert_tf import files, text_files
from albert_tf.errors import InputError, reading
from albert_tf.tokenization.cleaning import ORIGINAL, AddedToken, Rules

UNDERLINE = "\u2581"  # It represents a blank; SentencePiece puts it before each word.
SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# This is subtracted from the scores of tokens that end in a digit and a comma.
_PENALTY = 100.0


def model_proto():
    """Imports and returns SentencePiece's message class ModelProto, which is generated
    for one version of protobuf and may not run with the version of TensorFlow."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise
    except Exception as error:  # protobuf raises VersionError, older versions TypeError
        raise InputError(
            f"The installed sentencepiece does not run with this protobuf ({error}); "
            "install sentencepiece==0.2.0, which runs with all versions.") from error
    return sentencepiece_model_pb2.ModelProto


def is_json(content: bytes) -> bool:
    """Returns whether a file's content is JSON; a SentencePiece model never begins
    with "{"."""
    return content.lstrip()[:1] == b"{"


def is_file(path: str) -> bool:
    """Returns whether a vocabulary file is a tokenizer.json, whatever its name."""
    if not files.exists(path) or files.is_folder(path):
        return False
    with files.open_binary(path) as stream:
        return is_json(stream.read(256))


def ends_in_digit_comma(piece: str) -> bool:
    """Returns whether the digit-comma rule splits a token."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


# ---- reading ---------------------------------------------------------------


def read(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the content of a tokenizer.json, whose model is Unigram or WordPiece, and
    the ids of its tokens, without the AddedTokens behind them. Refuses what would give
    other sequences than [CLS] A [SEP] B [SEP]."""
    value = text_files.read_object(path)
    with reading(path, binary=True):
        model = value["model"]
        kind, vocab = model["type"], model["vocab"]
        words = kind == "WordPiece"
        wrong = [] if kind in ("Unigram", "WordPiece") else [f"the model {kind}"]
        ids = (dict(sorted(vocab.items(), key=lambda item: item[1])) if words or wrong
               else {piece: i for i, (piece, _) in enumerate(vocab)})
        if not ids or list(ids.values()) != list(range(len(vocab))):
            wrong.append("a vocab without tokens, or with ids that are not 0, 1, 2, ...")
        if not words and type(model.get("unk_id")) is not int:
            wrong.append("a model without unk_id")
        wrong += [f"{name}={model[name]!r:.40}" for name, wanted in (
            ("unk_token", "[UNK]"), ("continuing_subword_prefix", "##"))
            if words and model.get(name, wanted) != wanted]
        value["added_tokens"] = [AddedToken.of({**token})._asdict()
                                 for token in value.get("added_tokens") or ()]
        step = value.get("post_processor") or {"type": "BertProcessing"}
        if step["type"] != "BertProcessing" and (
                step.get("single"), step.get("pair")) != (_SINGLE, _PAIR):
            wrong.append(f"a post_processor ({step['type']}) that does not make [CLS] A "
                         "[SEP] B [SEP]")
    if wrong:
        raise InputError(
            f"{path}: {wrong[0]} is not supported; give the tokenizer in another form "
            "(spiece.model or vocab.txt) or a different model.")
    return value, ids


# ---- writing ---------------------------------------------------------------


# [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
_PAIR = [{kind: {"id": name, "type_id": segment}} for kind, name, segment in (
    ("SpecialToken", "[CLS]", 0), ("Sequence", "A", 0), ("SpecialToken", "[SEP]", 0),
    ("Sequence", "B", 1), ("SpecialToken", "[SEP]", 1))]
_SINGLE = _PAIR[:3]


@functools.cache
def _class_of(test) -> str:
    """Returns a regular expression's class of all characters that pass a test."""
    codes = [code for code in range(sys.maxunicode + 1)
             if not 0xD800 <= code < 0xE000 and test(chr(code))]
    runs = [[code for _, code in run] for _, run in itertools.groupby(
        enumerate(codes), lambda pair: pair[1] - pair[0])]
    return "[" + "".join(
        f"\\x{{{run[0]:X}}}" + (f"-\\x{{{run[-1]:X}}}" if run[1:] else "")
        for run in runs) + "]"


def from_sentencepiece(model_file: str, do_lower_case: bool = True,
                       strip_accents: bool = True, rules: Rules = ORIGINAL
                       ) -> dict[str, Any]:
    """Returns the content of a tokenizer.json that tokenizes as FullTokenizer does with
    a SentencePiece model."""
    with files.open_binary(model_file) as stream:
        model = model_proto().FromString(stream.read())

    def replaced(pattern: str, by: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": by}

    steps = [{"type": "Replace", "pattern": {"String": quote}, "content": '"'}
             for quote in ("``", "''") if rules.quotes]
    if not rules.changed:
        steps += [replaced(f"{_class_of(str.isspace)}+", " "), replaced("^ | $", "")]
    if strip_accents:
        steps += [{"type": "NFKD"}, {"type": "StripAccents"} if rules.all_marks else
                  replaced(_class_of(unicodedata.combining), "")]
    if do_lower_case:
        steps.append({"type": "Lowercase"})
    table = model.normalizer_spec.precompiled_charsmap
    if table:
        steps.append({"type": "Precompiled",
                      "precompiled_charsmap": base64.b64encode(table).decode()})
    steps += [replaced(" {2,}", " "), {"type": "Strip", "strip_left": True,
                                       "strip_right": True} if rules.changed
              else replaced("^ | $", "")]
    spaces = {"type": "Metaspace", "replacement": UNDERLINE, "prepend_scheme": "always",
              "split": True}
    return _content(
        {piece.piece: i for i, piece in enumerate(model.pieces)}, SPECIAL,
        {"type": "Sequence", "normalizers": steps}, spaces, spaces,
        {"type": "Unigram", "unk_id": model.trainer_spec.unk_id,
         "vocab": [[piece.piece, piece.score - _PENALTY
                    if ends_in_digit_comma(piece.piece) else piece.score]
                   for piece in model.pieces],
         "byte_fallback": model.trainer_spec.byte_fallback})


def from_word_pieces(ids: Mapping[str, int], do_lower_case: bool, strip_accents: bool,
                     rules: Rules) -> dict[str, Any]:
    """Returns the content of a tokenizer.json for a WordPiece vocabulary."""
    return _content(
        ids, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        {"type": "BertNormalizer", "clean_text": True,
         "handle_chinese_chars": rules.split_chinese, "strip_accents": strip_accents and (
             do_lower_case or rules.strips_cased), "lowercase": do_lower_case},
        {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##",
                                       "cleanup": True},
        {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": rules.max_word_chars, "vocab": ids})


def _content(ids: Mapping[str, int], names: Sequence[str], normalizer: Any,
             pre_tokenizer: Any, decoder: Any, model: Any) -> dict[str, Any]:
    """Returns the content of a file with these steps, and those special tokens of
    `names` that have an id."""
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": ids[piece], **AddedToken(piece, ids[piece])._asdict()}
                         for piece in names if piece in ids],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder,
        "post_processor": {
            "type": "TemplateProcessing", "single": _SINGLE, "pair": _PAIR,
            "special_tokens": {
                piece: {"id": piece, "ids": [ids.get(piece, 0)], "tokens": [piece]}
                for piece in ("[CLS]", "[SEP]")}},
        "model": model}
