"""Hugging Face's tokenizer.json, read as a SentencePiece model and written from one.

What is written cuts text as the release does, as far as its format can say it. Its
library applies the steps of `normalizer` in turn, and no special case: so the
digit-comma rule ("▁1999," becomes "▁1999" and ",") is imitated by scores that no path
takes, and the model's own symbols, "(" for example, stay pieces among others, since
"added tokens" would be cut out of the text before it is divided into words.
"""

import base64
import functools
import sys
import unicodedata
from typing import Any, Mapping

from albert_tf import files, text_files
from albert_tf.errors import InputError

UNDERLINE = "\u2581"  # Stands for a blank; SentencePiece puts it before each word.
SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# Taken off the scores of pieces that end in a digit and a comma.
_PENALTY = 100.0


def model_proto():
    """SentencePiece's message ModelProto, imported when it is first wanted.

        model_proto().FromString(content).trainer_spec.model_type

    Its package carries code that one major version of protobuf made and only that one
    runs; TensorFlow decides which one is installed.
    """
    import google.protobuf

    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise
    except Exception as error:  # of protobuf: VersionError, or TypeError of older ones
        raise InputError(
            f"The installed sentencepiece does not run with protobuf "
            f"{google.protobuf.__version__} ({error}); install sentencepiece==0.2.0, "
            "which runs with all.") from error
    return sentencepiece_model_pb2.ModelProto


def is_json(content: bytes) -> bool:
    """Whether a file's content is JSON; a SentencePiece model never begins so."""
    return content.lstrip()[:1] == b"{"


def _is_split(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


# ---- reading ---------------------------------------------------------------


def read(path: str) -> dict[str, Any]:
    """The content of a tokenizer.json, checked; its `model` is Unigram or WordPiece."""
    value = text_files.read_object(path)
    model = value.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not (kind == "Unigram" and isinstance(vocab, list)
            or kind == "WordPiece" and isinstance(vocab, dict)) or not vocab:
        raise InputError(
            f"{path}: its model is {kind or 'not named'}; of Hugging Face's tokenizers "
            "those of kind Unigram (SentencePiece) and WordPiece can be read.")
    for name, found in (("normalizer", _steps(value)),
                        ("added_tokens", value.get("added_tokens") or [])):
        if not isinstance(found, list) or not all(
                isinstance(each, dict) for each in found):
            raise InputError(f"{path}: its {name} is not laid out as Hugging Face's "
                             "tokenizers write it; copy or download it again.")
    return value


def _steps(value: Mapping[str, Any]) -> Any:
    """The steps of normalization, one after the other."""
    given = value.get("normalizer") or []
    return given.get("normalizers", [given]) if isinstance(given, dict) else given


def word_pieces(path: str) -> dict[str, int]:
    """The vocabulary of a tokenizer.json with a WordPiece model."""
    value = read(path)
    vocab = value["model"]["vocab"]
    if value["model"]["type"] != "WordPiece":
        raise InputError(f"{path}: holds a SentencePiece model; give it as "
                         "--spm_model_file.")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise InputError(f"{path}: the ids of its pieces are not 0, 1, 2, ...; write "
                         "it anew.")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def to_sentencepiece(path: str) -> bytes:
    """The SentencePiece model that a tokenizer.json was made from, as far as it tells:
    pieces, scores, kinds and the table of normalization."""
    value = read(path)
    made, model = model_proto()(), value["model"]
    if model["type"] != "Unigram":
        raise InputError(f"{path}: holds a WordPiece model; give it as --vocab_file.")
    kinds = made.SentencePiece
    try:
        vocab = [(str(piece), float(score)) for piece, score in model["vocab"]]
        special = {token["content"]: token.get("special", True)
                   for token in value.get("added_tokens") or ()}
        made.trainer_spec.unk_id = model.get("unk_id") or 0
        made.normalizer_spec.precompiled_charsmap = next(
            (base64.b64decode(step["precompiled_charsmap"], validate=True)
             for step in _steps(value) if step.get("type") == "Precompiled"), b"")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: its pieces and scores, unk_id, added_tokens or "
                         "precompiled_charsmap are damaged; copy or download it again."
                         ) from error
    lowered = [score for piece, score in vocab if _is_split(piece)]
    ordinary = [score for piece, score in vocab if not _is_split(piece)]
    # Whoever wrote the file may have taken the penalty off, or not.
    penalty = _PENALTY if lowered and max(lowered) < min(ordinary) - 50 else 0.0
    for i, (piece, score) in enumerate(vocab):
        if i == model.get("unk_id"):
            kind = kinds.UNKNOWN
        elif special.get(piece) or piece in SPECIAL:
            kind = kinds.CONTROL
        elif piece in special or score == 0.0:
            kind = kinds.USER_DEFINED
        else:
            kind = kinds.NORMAL
        made.pieces.add(piece=piece, type=kind,
                        score=score + penalty if _is_split(piece) else score)
    names = [piece for piece, _ in vocab]
    made.trainer_spec.model_type = made.trainer_spec.UNIGRAM
    made.trainer_spec.vocab_size = len(vocab)
    made.trainer_spec.pad_id = names.index("<pad>") if "<pad>" in names else -1
    made.trainer_spec.bos_id = made.trainer_spec.eos_id = -1
    made.normalizer_spec.name = "nmt_nfkc"
    return made.SerializeToString()


def lower_cases(value: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json lower-cases its text."""
    return any(step.get("type") == "Lowercase" or step.get("lowercase") is True
               for step in _steps(value))


# ---- writing ---------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _class_of(test) -> str:
    """A regular expression's class of all characters that pass a test."""
    codes = [code for code in range(sys.maxunicode + 1)
             if not 0xD800 <= code < 0xE000 and test(chr(code))]
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(
        f"\\x{{{first:X}}}" + (f"-\\x{{{last:X}}}" if last > first else "")
        for first, last in ranges) + "]"


def _is_combining(char: str) -> bool:
    return unicodedata.combining(char) != 0


def from_sentencepiece(model_file: str, do_lower_case: bool = True,
                       strip_accents: bool = True) -> dict[str, Any]:
    """The content of a tokenizer.json that cuts text as FullTokenizer does with a
    SentencePiece model."""
    with files.open_binary(model_file) as stream:
        content = stream.read()
    if is_json(content):
        content = to_sentencepiece(model_file)
    model = model_proto().FromString(content)
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}

    def replaced(pattern: str, by: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": by}

    space = _class_of(str.isspace)
    steps = [replaced(f"{space}+", " "), replaced("^ | $", "")]
    if strip_accents:
        steps += [{"type": "NFKD"}, replaced(_class_of(_is_combining), "")]
    if do_lower_case:
        steps.append({"type": "Lowercase"})
    table = model.normalizer_spec.precompiled_charsmap
    if table:
        steps.append({"type": "Precompiled",
                      "precompiled_charsmap": base64.b64encode(table).decode()})
    steps += [replaced(" {2,}", " "), replaced("^ | $", "")]
    spaces = {"type": "Metaspace", "replacement": UNDERLINE, "prepend_scheme": "always",
              "split": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": ids[piece], "content": piece, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for piece in SPECIAL if piece in ids],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": spaces, "decoder": spaces,
        "post_processor": _pairs(ids["[CLS]"], ids["[SEP]"]),
        "model": {"type": "Unigram", "unk_id": model.trainer_spec.unk_id,
                  "vocab": [[piece.piece, piece.score - _PENALTY
                             if _is_split(piece.piece) else piece.score]
                            for piece in model.pieces],
                  "byte_fallback": False}}


def _pairs(cls_id: int, sep_id: int) -> dict[str, Any]:
    """[CLS] A [SEP], and [CLS] A [SEP] B [SEP] with types 0 and 1."""
    def special(piece, kind):
        return {"SpecialToken": {"id": piece, "type_id": kind}}

    def text(name, kind):
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)]
    return {"type": "TemplateProcessing", "single": single,
            "pair": [*single, text("B", 1), special("[SEP]", 1)],
            "special_tokens": {
                piece: {"id": piece, "ids": [i], "tokens": [piece]}
                for piece, i in (("[CLS]", cls_id), ("[SEP]", sep_id))}}
