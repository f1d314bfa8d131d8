"""Finds and writes the tokenizer beside a checkpoint, in each format's files."""

import dataclasses
import json
import os
import re
from typing import Any, Iterable, Mapping, Optional, Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.checkpoint import Checkpoint, with_rows
from albert_tf.config import refuse
from albert_tf.errors import InputError, reading
from albert_tf.tokenization import hf_tokenizer
from albert_tf.tokenization.cleaning import AddedToken, Rules
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.tokenizer import FullTokenizer, load, model_proto

_CONFIG, _JSON = "tokenizer_config.json", "tokenizer.json"
KERAS_MODEL = os.path.join("assets", "tokenizer", "vocabulary.spm")
# Where a vocabulary may be, in the order of preference: the folder, the pattern of the
# file's name, and whether its tokens are word pieces.
_PLACES = (("", r"spiece\.model", False), ("", r"vocab\.txt", True),
           (os.path.dirname(KERAS_MODEL), r"vocabulary\.spm", False),
           ("", r".*\.model", False), ("", r"vocab.*\.txt", True),
           ("assets", r".*\.model", False), ("assets", r"vocab.*\.txt", True))
# Hugging Face's names of special tokens.
_WORD_PIECE = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
               "pad_token": "[PAD]", "unk_token": "[UNK]"}
_SENTENCE_PIECE = {"remove_space": True, "bos_token": "[CLS]", "eos_token": "[SEP]",
                   **_WORD_PIECE, "pad_token": "<pad>", "unk_token": "<unk>"}
# Hugging Face's tokenizers, without "Fast" at the end → whether their tokens are word
# pieces, None if other files tell it.
_CLASSES = {"AlbertTokenizer": False, **dict.fromkeys(
    ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
    True), **dict.fromkeys(("PreTrainedTokenizer", "TokenizersBackend"), None)}
# Settings that are not supported with any other value.
_ONLY: dict[str, tuple[Any, ...]] = {
    "remove_space": (None, True), "do_basic_tokenize": (None, True),
    "never_split": (None, []), "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece")}
_SPM = "spiece.model"


def find(folder: str, given: Optional[FullTokenizer] = None) -> Optional[FullTokenizer]:
    """Returns the tokenizer of the model in a folder, or None: the one that is `given`, or
    that of a model which was trained here, by its record, else tokenizer.json, which is
    taken for the spiece.model beside it if the two do the same, else one of _PLACES."""
    record = vocabulary.kept_beside(folder)
    path = os.path.join(folder, str(record.get("file")))
    where = os.path.join(folder, f"{vocabulary.TASK_FILE} or {vocabulary.VOCABULARY_FILE}")
    found = given or (_plain(path, record["kind"] == "WordPiece", record, where)
                      if "kind" in record and files.exists(path) else
                      _in_files(folder, record))
    if found:
        vocabulary.check_file(record, found.vocabulary_path, folder)
    return found


def _in_files(folder: str, record: Mapping[str, Any]) -> Optional[FullTokenizer]:
    names = files.names_in(folder)
    where, path = (os.path.join(folder, name) for name in (_CONFIG, _JSON))
    config = vocabulary.settings_in(where)
    kind = str(config.get("tokenizer_class") or "TokenizersBackend").removesuffix("Fast")
    refuse({**config, "tokenizer_class": kind}, where, tokenizer_class=_CLASSES,
           **_ONLY)
    added = _added(folder)
    # keras-hub has a file of the same name, which describes a Keras object.
    if _JSON in names and "class_name" not in text_files.read_object(path):
        return _in_json(path, added)
    for inner, pattern, word_piece in _PLACES:
        place = os.path.join(folder, inner) if inner else folder
        matches = [*filter(re.compile(pattern).fullmatch, files.names_in(place))]
        if len(matches) == 1 and _CLASSES[kind] in (None, word_piece):
            return _plain(os.path.join(place, matches[0]), word_piece,
                          {**record, **config}, where, added)
    return None


def _added(folder: str) -> list[AddedToken]:
    """Returns the tokens that files beside a vocabulary add to it, or that are in it."""
    found = []
    for name in (_CONFIG, "special_tokens_map.json", "added_tokens.json"):
        path = os.path.join(folder, name)
        content = vocabulary.settings_in(path)
        with reading(path):
            if name == "added_tokens.json":
                found += [AddedToken(token, int(token_id), special=False)
                          for token, token_id in content.items()]
                continue
            found += [AddedToken.of({"id": int(token_id), **token}) for token_id, token in (
                content.get("added_tokens_decoder") or {}).items()]
            for key in ("additional_special_tokens", "extra_special_tokens"):
                given = content.get(key) or ()
                found += map(AddedToken.of, given.values() if isinstance(
                    given, Mapping) else given)
    special = {*_SENTENCE_PIECE.values(), *_WORD_PIECE.values()}
    return [token for token in found if token.content not in special]


def _plain(path: str, word_piece: bool, config: Mapping[str, Any], where: str,
           added: Sequence[AddedToken] = ()) -> FullTokenizer:
    """Returns a vocabulary's tokenizer by `config`, which is from the file `where`: our
    record of it, or a tokenizer_config.json, ours or another's."""
    lower, strips = config.get("do_lower_case", True), config.get("strip_accents")
    rules = Rules.of(config.get("rules", {}), where)
    if "tokenizer_class" in config and "rules" not in config:
        if word_piece:
            rules = Rules(
                split_chinese=config.get("tokenize_chinese_chars") is not False,
                strips_cased=strips is True and lower is False, max_word_chars=100)
        else:
            strips = config.get("keep_accents") is not True
            rules = Rules(quotes=True, all_marks=strips)
            added = [*added, *(AddedToken(symbol, normalized=False, special=False)
                               for symbol in _symbols(path))]
    given = path, lower is not False, None if word_piece else path, strips
    tokenizer = FullTokenizer(*given, rules)
    if "rules" in config or not added:
        return tokenizer
    added = added if word_piece else _beyond(tokenizer, added)
    return FullTokenizer(*given, rules._replace(added=tuple(added)))


def _symbols(path: str) -> set[str]:
    """Returns a SentencePiece model's user-defined symbols."""
    pieces = model_proto().FromString(load(path).serialized_model_proto()).pieces
    return {piece.piece for piece in pieces if piece.type == piece.USER_DEFINED}


def _beyond(tokenizer: FullTokenizer, added: Iterable[AddedToken]) -> list[AddedToken]:
    """Returns the added tokens that the SentencePiece model does not find by itself."""
    symbols = _symbols(tokenizer.vocabulary_path)
    return [token for token in added if token.special or token.content not in symbols
            or tokenizer.prepare(token.content) != token.content]


def _in_json(path: str, added: Sequence[AddedToken]) -> FullTokenizer:
    """Returns a tokenizer.json's tokenizer, or an equal one by the spiece.model beside."""
    tokenizer = FullTokenizer(path, rules=Rules(added=tuple(added)))
    other = os.path.join(os.path.dirname(path), _SPM)
    if not tokenizer.uses_sentencepiece:
        return tokenizer
    if not files.exists(other):
        logging.warning(
            "%s splits text as Hugging Face does, which can differ from Google's code. If "
            "the model was made with that code, save its SentencePiece model as %s.",
            path, other)
        return tokenizer
    sign = "\u0939\u093f"  # a vowel sign
    beside = FullTokenizer(None, tokenizer.do_lower_case, other, tokenizer.strip_accents,
                           Rules(quotes=tokenizer.normalized("``") == '"',
                                 all_marks=tokenizer.normalized(sign) == sign[0]))
    # Tokenizers that clean text differently split it differently. It has no punctuation,
    # which "added tokens" would be.
    probe = f"Ż\u0301A {sign} ½ ﬁ Ａ\u3000\u2028b\x01c"
    # The SentencePiece model itself does more: it can be exported.
    same = not _beyond(beside, tokenizer.added) and [*tokenizer.vocab] == [
        *beside.vocab] and tokenizer.encode(probe) == beside.encode(probe)
    return beside if same else tokenizer


def check(tokenizer: FullTokenizer, vocab_size: int) -> None:
    """Raises InputError unless there are as many tokens as word embeddings, or these are
    padded to a multiple of 8, 16, 32, 64 or 128."""
    padding = vocab_size - tokenizer.vocab_size
    behind = [token.content for token in tokenizer.added if token.id >= vocab_size]
    if behind or padding and not any(
            not vocab_size % multiple and 0 < padding < multiple
            for multiple in (8, 16, 32, 64, 128)):
        raise InputError(
            f"{tokenizer.vocabulary_path} has {tokenizer.vocab_size} tokens"
            + (f" (files beside it add {', '.join(behind)})" if behind else "")
            + f", but there are {vocab_size} word embeddings (vocab_size): the model was "
            "made with a different vocabulary; put that one in its folder, or give it.")
    if padding:
        logging.warning(
            "%s has %d tokens. The other %d of the %d word embeddings are taken for "
            "padding, and left out.", tokenizer.vocabulary_path, tokenizer.vocab_size,
            padding, vocab_size)


def fitted(checkpoint: Checkpoint, tokenizer: FullTokenizer) -> Checkpoint:
    """Returns the checkpoint with a tokenizer, without word embeddings that are padding.
    Raises InputError unless there are as many tokens as others (`check`)."""
    tokens, size = tokenizer.vocab_size, checkpoint.config.vocab_size
    check(tokenizer, size)
    if tokens < size:
        checkpoint.report.notes.append(
            f"{size - tokens} of the {size} word embeddings are padding, and left out")
        checkpoint = with_rows(checkpoint, tokens, lambda rows: rows[:tokens])
    return dataclasses.replace(checkpoint, tokenizer=tokenizer)


def copy_sentencepiece(tokenizer: FullTokenizer, path: str) -> None:
    """Copies a SentencePiece model without added tokens to `path`."""
    if isinstance(tokenizer, HfTokenizer):
        raise InputError(
            f"{tokenizer.vocabulary_path}: this format cannot hold a tokenizer.json or added "
            "tokens; give another one, such as hf.")
    files.copy(tokenizer.vocabulary_path, path)


def write_plain(tokenizer: FullTokenizer, folder: str) -> None:
    """Writes the vocabulary and how the tokenizer cleans text, as `find` reads them."""
    name = os.path.basename(tokenizer.vocabulary_path)
    _write_own(tokenizer, folder, name if name.endswith(".model") else _SPM)
    if hf_tokenizer.is_file(tokenizer.vocabulary_path):
        _write_json(tokenizer.to_json(), folder)
    text_files.write_json(os.path.join(folder, _CONFIG), {
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents, **tokenizer.keeps})


def _write_own(tokenizer: Any, folder: str, name: str) -> None:
    """Writes vocab.txt, or the SentencePiece model under this name if there is one."""
    if not tokenizer.uses_sentencepiece:
        files.write(os.path.join(folder, "vocab.txt"), "".join(
            f"{piece}\n" for piece in tokenizer.to_json()["model"]["vocab"]).encode())
    elif not hf_tokenizer.is_file(tokenizer.vocabulary_path):
        files.copy(tokenizer.vocabulary_path, os.path.join(folder, name))


def write_huggingface(tokenizer: FullTokenizer, folder: str, longest: int,
                      segments: int = 2) -> None:
    """Writes the files that AlbertTokenizer reads, or BertTokenizer for WordPiece, for
    sequences of at most `longest` tokens. For one of `segments`, transformers gives no
    segment ids, which a pair would have from two."""
    path, lower = tokenizer.vocabulary_path, tokenizer.do_lower_case
    _write_own(tokenizer, folder, _SPM)
    if isinstance(tokenizer, HfTokenizer) and not tokenizer.uses_sentencepiece:
        strips = tokenizer.normalized("é") in "eE"
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "strip_accents": None if strips == lower else strips,
            "tokenize_chinese_chars": tokenizer.normalized("中") != "中",
            **_WORD_PIECE}
    else:
        config = {"tokenizer_class": "PreTrainedTokenizerFast" if hf_tokenizer.is_file(
            path) else "AlbertTokenizer",
                  "keep_accents": not tokenizer.strip_accents, **_SENTENCE_PIECE}
    _write_json((tokenizer if isinstance(tokenizer, HfTokenizer) else HfTokenizer(
        None, lower, path, tokenizer.strip_accents, tokenizer.rules)).to_json(), folder)
    text_files.write_json(os.path.join(folder, _CONFIG), {
        "do_lower_case": lower, "model_max_length": longest,
        "model_input_names": ["input_ids", *["token_type_ids"] * (segments > 1),
                              "attention_mask"], **config})


def _write_json(content: Mapping[str, Any], folder: str) -> None:
    files.write(os.path.join(folder, _JSON),
                json.dumps(content, ensure_ascii=False).encode())
