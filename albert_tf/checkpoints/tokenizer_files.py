"""Finds and writes the tokenizer beside a checkpoint, in each format's files."""

import json
import os
from typing import Any, Mapping, Optional

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.tokenization import sentencepiece_tokenizer, tokenizer_json
from albert_tf.tokenization.tokenizer import FullTokenizer

_CONFIG = "tokenizer_config.json"
_KERAS_MODEL = os.path.join("assets", "tokenizer", "vocabulary.spm")
# Hugging Face's names of WordPiece's special tokens.
_WORD_PIECE = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
               "pad_token": "[PAD]", "unk_token": "[UNK]"}
_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def find(folder: str) -> Optional[Vocabulary]:
    """Returns the vocabulary in a folder of any format, or None."""
    if not files.is_folder(folder):
        return None
    task = vocabulary.task_settings(folder)
    if task:
        path = os.path.join(folder, task["vocabulary"]["file"])
        return Vocabulary(path, task.get("flags", {}).get("do_lower_case", True),
                          task.get("vocabulary_flag") == "vocab_file",
                          task["vocabulary"].get("strip_accents")) if (
                              files.exists(path)) else None
    # An export has its config among its assets.
    config = next((text_files.read_object(path) for path in (
        os.path.join(folder, _CONFIG), os.path.join(folder, "assets", _CONFIG))
                   if files.exists(path)), {})
    lower = config.get("do_lower_case", True) is not False
    names = files.names_in(folder)
    # SentencePiece's setting is keep_accents, WordPiece's is strip_accents.
    strips = False if config.get("keep_accents") is True else None
    word_strips = False if config.get("strip_accents") is False else (
        (vocabulary.settings_in(os.path.join(folder, vocabulary.VOCABULARY_FILE)) or {}
         ).get("strip_accents"))
    if "Bert" in str(config.get("tokenizer_class")) and "vocab.txt" in names:
        return Vocabulary(os.path.join(folder, "vocab.txt"), lower, True, word_strips)
    if "spiece.model" in names:
        return Vocabulary(os.path.join(folder, "spiece.model"), lower,
                          strip_accents=strips)
    if "tokenizer.json" in names:
        path = os.path.join(folder, "tokenizer.json")
        # keras-hub has a file of the same name, which describes a Keras object.
        if "class_name" not in (value := text_files.read_object(path)):
            kind = tokenizer_json.read(path)["model"]["type"]
            lower = config.get("do_lower_case", tokenizer_json.lower_cases(value))
            return Vocabulary(path, lower, kind == "WordPiece")
    if files.exists(os.path.join(folder, _KERAS_MODEL)):
        return Vocabulary(os.path.join(folder, _KERAS_MODEL))
    for where in (folder, os.path.join(folder, "assets")):
        for end, word_piece in ((".model", False), (".txt", True)):
            matches = [name for name in files.names_in(where) if name.endswith(end)
                       and (not word_piece or name.startswith("vocab"))]
            if len(matches) == 1:
                return Vocabulary(os.path.join(where, matches[0]), lower, word_piece,
                                  word_strips if word_piece else None)
    return None


def tokenizer_of(found: Vocabulary) -> FullTokenizer:
    flag = "vocab_file" if found.word_piece else "spm_model_file"
    return FullTokenizer(do_lower_case=found.do_lower_case,
                         strip_accents=found.strip_accents, **{flag: found.path})


def check_given(given: Vocabulary, path: str) -> None:
    """Raises InputError if a model's folder says that it was made with a different
    vocabulary than the one given for it."""
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
    with files.open_binary(found.path) as stream:
        content = stream.read()
    sentencepiece_tokenizer.load(found.path)
    return (tokenizer_json.to_sentencepiece(found.path)
            if tokenizer_json.is_json(content) else content)


def write_plain(found: Vocabulary, folder: str) -> None:
    """Writes the SentencePiece model under its own name, or WordPiece's vocab.txt."""
    name = os.path.basename(found.path)
    if found.word_piece:
        write_word_pieces(found, os.path.join(folder, "vocab.txt"))
    else:
        name = name if name.endswith(".model") else "spiece.model"
        files.write(os.path.join(folder, name), sentencepiece_model(found))


def write_word_pieces(found: Vocabulary, path: str) -> None:
    pieces = tokenizer_of(found).vocab
    files.write(path, "".join(f"{piece}\n" for piece in pieces).encode())


def write_huggingface(found: Vocabulary, folder: str, longest: int) -> None:
    """Writes the files that AlbertTokenizer reads, or BertTokenizer for WordPiece."""
    config: dict[str, Any] = {"do_lower_case": found.do_lower_case,
                              "model_max_length": longest, "model_input_names": _INPUTS}
    if found.word_piece:
        write_word_pieces(found, os.path.join(folder, "vocab.txt"))
        config |= {"tokenizer_class": "BertTokenizer",
                   "strip_accents": found.strip_accents,
                   "tokenize_chinese_chars": True, **_WORD_PIECE}
    else:
        files.write(os.path.join(folder, "spiece.model"), sentencepiece_model(found))
        strips = tokenizer_of(found).strip_accents
        content = tokenizer_json.from_sentencepiece(
            found.path, found.do_lower_case, strips)
        files.write(os.path.join(folder, "tokenizer.json"),
                    json.dumps(content, ensure_ascii=False).encode())
        config |= {"tokenizer_class": "AlbertTokenizer", "keep_accents": not strips,
                   "remove_space": True, "bos_token": "[CLS]", "eos_token": "[SEP]",
                   "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
                   "pad_token": "<pad>", "unk_token": "<unk>"}
    text_files.write_json(os.path.join(folder, _CONFIG), config)


def write_keras_hub(found: Vocabulary, folder: str, task: str, longest: int
                    ) -> Optional[Mapping[str, Any]]:
    """Writes keras-hub's tokenizer and preprocessor, and returns the preprocessor's
    description. Returns None for WordPiece, which AlbertTokenizer does not support."""
    if found.word_piece:
        return None
    files.make_directory(os.path.join(folder, os.path.dirname(_KERAS_MODEL)), folder)
    files.write(os.path.join(folder, _KERAS_MODEL), sentencepiece_model(found))

    def described(kind: str, module: str, values: Mapping[str, Any], dtype: str):
        return {"module": f"keras_hub.src.models.albert.{module}", "class_name": kind,
                "config": {"name": module, "trainable": True, "dtype": {
                    "module": "keras", "class_name": "DTypePolicy",
                    "config": {"name": dtype}, "registered_name": None}, **values},
                "registered_name": f"keras_hub>{kind}"}

    tokenizer = described(
        "AlbertTokenizer", "albert_tokenizer", {
            "config_file": "tokenizer.json", "proto": None, "sequence_length": None,
            "add_bos": False, "add_eos": False}, "int32")
    kind, module, more = {
        "masked_lm": ("AlbertMaskedLMPreprocessor", "albert_masked_lm_preprocessor", {
            "mask_selection_rate": 0.15, "mask_selection_length": 96,
            "mask_token_rate": 0.8, "random_token_rate": 0.1}),
    }.get(task, ("AlbertTextClassifierPreprocessor",
                 "albert_text_classifier_preprocessor", {}))
    preprocessor = described(kind, module, {
        "tokenizer": tokenizer, "config_file": "preprocessor.json",
        "sequence_length": longest, "truncate": "round_robin", **more}, "float32")
    text_files.write_json(os.path.join(folder, "tokenizer.json"), tokenizer)
    text_files.write_json(os.path.join(folder, "preprocessor.json"), preprocessor)
    return preprocessor
