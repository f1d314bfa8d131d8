"""Finds and writes the tokenizer beside a checkpoint, in each format's files."""

import dataclasses
import json
import os
import re
from typing import Any, Mapping, Optional

from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.tokenization import (
    hf_tokenizer, sentencepiece_tokenizer, tokenizer_json)
from albert_tf.tokenization.cleaning import Rules
from albert_tf.tokenization.hf_tokenizer import HfTokenizer
from albert_tf.tokenization.tokenizer import FullTokenizer

_CONFIG = "tokenizer_config.json"
KERAS_MODEL = os.path.join("assets", "tokenizer", "vocabulary.spm")
# Hugging Face's names of WordPiece's special tokens.
_WORD_PIECE = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
               "pad_token": "[PAD]", "unk_token": "[UNK]"}
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
# Hugging Face's tokenizers, without "Fast" at the end → the type of their models.
_CLASSES = {"AlbertTokenizer": "Unigram", **dict.fromkeys(
    ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
    "WordPiece"), **dict.fromkeys(
        ("PreTrainedTokenizer", "TokenizersBackend"), None)}
_FILES = {"Unigram": "spiece.model", "WordPiece": "vocab.txt"}
# Settings that are not supported with any other value.
_ONLY = {"remove_space": True, "do_basic_tokenize": True, "never_split": None,
         "word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}

_VOWEL_SIGN = "\u0939\u093f"
# Tokenizers that clean text differently split it differently. It has no punctuation,
# which "added tokens" would be.
_PROBE = "Ż\u0301A \u0939\u093f ½ ﬁ Ａ\u3000\u2028b\x01c"


def find(folder: str) -> Optional[Vocabulary]:
    """Returns the vocabulary in a folder of any format, or None. Raises InputError if
    it is not supported, contradicts other files, or is not the model's."""
    if not files.is_folder(folder):
        return None
    task = vocabulary.task_settings(folder)
    where = os.path.join(
        folder, vocabulary.TASK_FILE if task else vocabulary.VOCABULARY_FILE)
    stored = task["vocabulary"] if task else vocabulary.settings_in(where) or {}
    path = os.path.join(folder, str(stored.get("file")))
    if not files.exists(path) or not (task or "kind" in stored):
        found = None if task else _in_files(folder)
    else:
        # A model that was trained here.
        found = Vocabulary(
            path, (task.get("flags", {}) if task else stored).get("do_lower_case", True),
            (task.get("vocabulary_flag") == "vocab_file" if task
             else stored["kind"] == "WordPiece"),
            stored.get("strip_accents"), Rules.of(stored.get("rules", {}), where))
    if found:
        check_given(found, folder)
    return found


def _in_files(folder: str) -> Optional[Vocabulary]:
    """Returns the vocabulary in a folder without a task.json: tokenizer.json, else
    spiece.model or vocab.txt, else one with a similar name."""
    names = files.names_in(folder)
    where, path = (os.path.join(folder, name) for name in (_CONFIG, "tokenizer.json"))
    config = text_files.read_object(where) if _CONFIG in names else {}
    named = _kind(config, where)
    # keras-hub has a file of the same name, which describes a Keras object.
    in_json = tokenizer_json.read(path)[0]["model"]["type"] if (
        "tokenizer.json" in names
        and "class_name" not in text_files.read_object(path)) else None
    kinds = [kind for kind, name in _FILES.items() if name in names]
    kind = in_json or named or (kinds[0] if kinds else None)
    if kind and (named not in (None, kind) or not in_json and kinds and (
            kind not in kinds or not named and len(kinds) == 2)):
        raise InputError(
            f"{folder} holds tokenizers that contradict each other: " + ", ".join((
                *([f"{config['tokenizer_class']} in {_CONFIG}, which needs "
                   f"{_FILES[named]}"] if named else []),
                *([f"tokenizer.json of {in_json}"] if in_json else []),
                *(_FILES[each] for each in kinds)))
            + "; remove what is not of this model.")
    if in_json:
        return _with_json(folder, kind in kinds, config, in_json)
    if kinds:
        return _plain(os.path.join(folder, _FILES[kind]), kind == "WordPiece", config)
    if files.exists(os.path.join(folder, KERAS_MODEL)):
        return Vocabulary(os.path.join(folder, KERAS_MODEL))
    for inner in (folder, os.path.join(folder, "assets")):
        for pattern in (r".*\.model", r"vocab.*\.txt"):
            matches = [*filter(re.compile(pattern).fullmatch, files.names_in(inner))]
            if len(matches) == 1:
                return _plain(os.path.join(inner, matches[0]),
                              matches[0].endswith(".txt"), config)
    return None


def _kind(config: Mapping[str, Any], path: str) -> Optional[str]:
    """Returns the type of model that a tokenizer_config.json names, or None. Raises
    InputError for what is not supported."""
    name = str(config.get("tokenizer_class") or "TokenizersBackend")
    wrong = [name] if name.removesuffix("Fast") not in _CLASSES else [
        f"{key}={config[key]!r:.40}" for key, only in _ONLY.items()
        if config.get(key) not in (None, only, [])]
    if wrong:
        raise InputError(
            f"{path}: the tokenizer {wrong[0]} is not supported; give a tokenizer that "
            "is (--spm_model_file or --vocab_file), if the model was made with it.")
    return _CLASSES[name.removesuffix("Fast")]


def _plain(path: str, word_piece: bool, config: Mapping[str, Any]) -> Vocabulary:
    """Returns a vocabulary file with the settings of a tokenizer_config.json, which may
    be this project's or Hugging Face's, or of a vocabulary.json."""
    lower = config.get("do_lower_case", True) is not False
    stored = vocabulary.kept_beside(os.path.dirname(path) or ".") or {}
    strips = config.get("strip_accents", stored.get("strip_accents"))
    rules = Rules.of({**stored, **config}.get("rules", {}), path)
    if "tokenizer_class" in config and "rules" not in config:
        if word_piece:
            rules = Rules(
                split_chinese=config.get("tokenize_chinese_chars") is not False,
                strips_cased=strips is True and not lower, max_word_chars=100)
        else:
            strips = config.get("keep_accents") is not True
            rules = Rules(quotes=True, all_marks=strips)
    return Vocabulary(path, lower, word_piece, strips, rules)


def _with_json(folder: str, has_plain: bool, config: Mapping[str, Any], kind: str
               ) -> Vocabulary:
    """Returns the vocabulary of a folder with a tokenizer.json, whose steps decide how
    text is cleaned. Raises InputError if other files contradict it."""
    path, other = (os.path.join(folder, name) for name in (
        "tokenizer.json", _FILES[kind]))
    tokenizer, word_piece = hf_tokenizer.from_json(path), kind == "WordPiece"
    lower, strips = tokenizer.do_lower_case, tokenizer.strip_accents
    steps = {"do_lower_case": lower, **(
        {"strip_accents": strips,
         "tokenize_chinese_chars": tokenizer.normalized("中") != "中"}
        if word_piece else {"keep_accents": not strips})}
    for key, value in steps.items():
        if config.get(key) not in (None, value):
            raise InputError(
                f"{os.path.join(folder, _CONFIG)} says {key}={json.dumps(config[key])}, "
                f"but the steps of {path} mean {json.dumps(value)}; correct {key}, or "
                "remove tokenizer.json if the other file is right.")
    found = Vocabulary(path, lower, word_piece, strips)
    if not has_plain:
        if not word_piece:
            logging.warning(
                "%s splits text as Hugging Face does, which can differ from Google's "
                "code. If the model was made with that code, save its SentencePiece "
                "model as %s.", path, other)
        return found
    rules = Rules(quotes=tokenizer.normalized("``") == '"',
                  all_marks=tokenizer.normalized(_VOWEL_SIGN) == _VOWEL_SIGN[0])
    beside = tokenizer_of(Vocabulary(other, lower, word_piece, strips, rules))
    if list(tokenizer.vocab) != list(beside.vocab):
        raise InputError(f"{path} and {other} hold different vocabularies; remove "
                         "the one that the model was not made with.")
    # The SentencePiece model itself does more: it can be exported.
    same = tokenizer.encode(_PROBE) == beside.encode(_PROBE)
    return found if word_piece or not same else dataclasses.replace(
        found, path=other, rules=rules)


def tokenizer_of(found: Vocabulary) -> FullTokenizer:
    flag = "vocab_file" if found.word_piece else "spm_model_file"
    return FullTokenizer(do_lower_case=found.do_lower_case, rules=found.rules,
                         strip_accents=found.strip_accents, **{flag: found.path})


def check_given(given: Vocabulary, path: str) -> None:
    """Raises InputError if a model's folder says that it was made with a different
    vocabulary than the one given for it or found in it."""
    recorded = vocabulary.kept_beside(path)
    if recorded:
        vocabulary.check(
            {name: recorded[name] for name in ("file", "sha256") if name in recorded},
            {"file": given.path, "sha256": files.sha256(given.path)}, path)


def check(found: Vocabulary, vocab_size: int) -> FullTokenizer:
    """Returns the tokenizer. Raises InputError if its number of tokens differs from the
    number of word embeddings."""
    tokenizer = tokenizer_of(found)
    if tokenizer.vocab_size != vocab_size:
        raise InputError(
            f"{found.path} has {tokenizer.vocab_size} tokens, but there are "
            f"{vocab_size} word embeddings (vocab_size): the model was made with a "
            "different vocabulary; put that one in its folder, or give it.")
    return tokenizer


# ---- writing ---------------------------------------------------------------


def sentencepiece_model(found: Vocabulary) -> bytes:
    """Returns the content of a vocabulary's SentencePiece model."""
    sentencepiece_tokenizer.load(found.path)  # Raises InputError if it is none.
    with files.open_binary(found.path) as stream:
        return stream.read()


def write_plain(found: Vocabulary, folder: str) -> None:
    """Writes the SentencePiece model under its own name, or WordPiece's vocab.txt, and
    settings that are not the original implementation's."""
    name = os.path.basename(found.path)
    tokenizer = tokenizer_of(found)
    if found.word_piece:
        write_word_pieces(found, os.path.join(folder, "vocab.txt"))
    if isinstance(tokenizer, HfTokenizer) and tokenizer.is_json:
        _write_json(tokenizer.to_json(), folder)
        return
    if not found.word_piece:
        name = name if name.endswith(".model") else "spiece.model"
        files.write(os.path.join(folder, name), sentencepiece_model(found))
    if tokenizer.keeps or not tokenizer.do_lower_case:
        write_settings(tokenizer, folder)


def write_settings(tokenizer: FullTokenizer, folder: str) -> None:
    """Writes how a tokenizer cleans text, as `find` reads it."""
    text_files.write_json(os.path.join(folder, _CONFIG), {
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents, **tokenizer.keeps})


def write_word_pieces(found: Vocabulary, path: str) -> None:
    pieces = tokenizer_of(found).vocab
    files.write(path, "".join(f"{piece}\n" for piece in pieces).encode())


def write_huggingface(found: Vocabulary, folder: str, longest: int,
                      always_json: bool = False) -> None:
    """Writes the files that AlbertTokenizer reads, or BertTokenizer for WordPiece;
    `longest` is the maximum number of tokens of a sequence. With `always_json` there is
    a tokenizer.json even if BertTokenizer does not need it."""
    tokenizer = tokenizer_of(found)
    lower, rules = tokenizer.do_lower_case, tokenizer.rules
    strips = tokenizer.strip_accents
    config: dict[str, Any] = {"do_lower_case": lower, "model_max_length": longest,
                              "model_input_names": _INPUTS}
    own = tokenizer.to_json() if isinstance(tokenizer, HfTokenizer) else None
    is_json = tokenizer_json.is_file(found.path)
    if found.word_piece:
        write_word_pieces(found, os.path.join(folder, "vocab.txt"))
        strips = tokenizer.normalized("é") in "eE"
        config |= {"tokenizer_class": "BertTokenizer",
                   "strip_accents": None if strips == lower else strips,
                   "tokenize_chinese_chars": tokenizer.normalized("中") != "中",
                   **_WORD_PIECE,
                   "rules": rules.changed}
        # What BertTokenizer has no setting for.
        if not (always_json or is_json or (
                set(rules.changed) - {"split_chinese", "strips_cased"})):
            own = None
    else:
        config |= {"tokenizer_class": "PreTrainedTokenizerFast" if is_json else
                   "AlbertTokenizer", "keep_accents": not strips,
                   "remove_space": True, "bos_token": "[CLS]", "eos_token": "[SEP]",
                   "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
                   "pad_token": "<pad>", "unk_token": "<unk>"}
        if not own:
            files.write(os.path.join(folder, "spiece.model"), sentencepiece_model(found))
            own = tokenizer_json.from_sentencepiece(found.path, lower, strips, rules)
    if own:
        _write_json(own, folder)
    text_files.write_json(os.path.join(folder, _CONFIG), config)


def _write_json(content: Mapping[str, Any], folder: str) -> None:
    files.write(os.path.join(folder, "tokenizer.json"),
                json.dumps(content, ensure_ascii=False).encode())
