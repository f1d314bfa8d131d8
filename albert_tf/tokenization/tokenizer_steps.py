"""Reads from Hugging Face's tokenizer.json how its steps clean and split text.

The tokenizers library applies the steps in turn: normalizer, pre_tokenizer, model,
post_processor. A file may combine them at will, but FullTokenizer has a fixed order of
steps. `cleaning_of` returns its settings for a file, or refuses the first step that it
cannot do exactly. The only exception is white space, which is always collapsed.

    Unigram     Replace `` and '', NFKD and StripAccents, Lowercase, Precompiled, white
                space; then Metaspace
    WordPiece   BertNormalizer, or NFD, Lowercase and StripAccents, or none of them;
                then BertPreTokenizer
"""

import re
from typing import Any, Mapping, NamedTuple, Sequence

from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import ORIGINAL, Rules

UNDERLINE = "\u2581"  # It represents a blank; SentencePiece puts it before each word.
_ADVICE = ("; give the tokenizer in another form (spiece.model or vocab.txt) or a "
           "different model")
# The order of steps that SentencePieceTokenizer does, by the letters of _unigram_step.
_UNIGRAM_ORDER = "s*q*s*(kl?[am])?l?p?s*(uv)?"
# As from_sentencepiece writes them: with the white space and accents of Python.
_OWN_ORDER = "wt(km)?l?p?st"
_WORD_PIECE_ORDER = "(b|(l?dl?a)?l?)"
_MODEL_KEYS = {
    "Unigram": {"type", "vocab", "unk_id", "byte_fallback"},
    "WordPiece": {"type", "vocab", "unk_token", "continuing_subword_prefix",
                  "max_input_chars_per_word"}}
_SPLITS = {"Unigram": ("Metaspace", "WhitespaceSplit, Metaspace"),
           "WordPiece": ("BertPreTokenizer",)}


class Cleaning(NamedTuple):
    """The settings of a FullTokenizer that the steps of a file stand for."""

    lower: bool
    strips: bool
    rules: Rules = ORIGINAL


def flat(step: Any, key: str) -> Any:
    """Returns the steps of a normalizer or pre_tokenizer without its Sequences; `key` is
    the name of their list. The result is not a list of objects if the file is damaged.
    """
    if step is None:
        return []
    if not isinstance(step, dict) or key not in step:
        return [step]
    inner = step[key]
    return [each for one in inner for each in flat(one, key)] if isinstance(
        inner, list) else inner


def cleaning_of(value: Mapping[str, Any], path: str) -> Cleaning:
    """Returns the settings for the content of a tokenizer.json. Raises InputError for a
    step that FullTokenizer does not have."""
    kind = value["model"]["type"]
    _check_model(value["model"], path)
    _check_added_tokens(value, path)
    _check_post_processor(value.get("post_processor"), path)
    normalizer = flat(value.get("normalizer"), "normalizers")
    splits = flat(value.get("pre_tokenizer"), "pretokenizers")
    if kind == "WordPiece":
        _check_splits(kind, splits, path)
        return _word_piece(normalizer, value["model"], path)
    letters = list(map(_unigram_step, normalizer))
    if letters[-2:] != ["u", "v"]:
        _check_splits(kind, splits, path)
        _check_metaspace(splits[-1], value["model"]["vocab"], path)
    elif splits:
        raise _refused("pre_tokenizer", splits[0], path)
    if re.fullmatch(_OWN_ORDER, "".join(letter or "?" for letter in letters)):
        return Cleaning("l" in letters, "k" in letters)
    _check_order(normalizer, letters, _UNIGRAM_ORDER, path)
    quotes = [step["pattern"]["String"] for step, letter in zip(normalizer, letters)
              if letter == "q"]
    if quotes and sorted(quotes) != ["''", "``"]:
        raise _refused("normalizer", normalizer[letters.index("q")], path)
    strips, lower = "k" in letters, "l" in letters
    return Cleaning(lower, strips, Rules(
        quotes=bool(quotes), all_marks="a" in letters,
        final_sigma=not lower or "m" in letters))


# ---- Unigram ---------------------------------------------------------------


def _unigram_step(step: Mapping[str, Any]) -> str:
    """Returns the letter of a step in _UNIGRAM_ORDER and _OWN_ORDER, or ""."""
    kind = step.get("type")
    if kind == "Replace":
        pattern = step.get("pattern")
        text = pattern.get("String") if isinstance(pattern, dict) else None
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        content = step.get("content")
        if text in ("``", "''") and content == '"':
            return "q"
        if (text, content) == (" ", UNDERLINE):
            return "v"
        if regex == " {2,}" and content in (" ", UNDERLINE):
            return "s"
        if isinstance(regex, str) and regex.startswith("[\\x{"):
            if (regex.endswith("]+"), content) == (True, " "):
                return "w"
            if (regex.endswith("]"), content) == (True, ""):
                return "m"
        return "t" if (regex, content) == ("^ | $", "") else ""
    if kind == "Prepend":
        return "u" if step.get("prepend") == UNDERLINE else ""
    return {"NFKD": "k", "StripAccents": "a", "Lowercase": "l", "Precompiled": "p",
            "Strip": "s"}.get(kind, "")


def _check_metaspace(step: Mapping[str, Any], vocab: Sequence[Sequence[Any]],
                     path: str) -> None:
    """Raises InputError for a Metaspace that splits otherwise than SentencePiece."""
    scheme = step.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if step.get("add_prefix_space", True) else "never"
    if step.get("replacement", UNDERLINE) != UNDERLINE or scheme not in (
            "always", "first") or (step.get("split", True) and any(
                UNDERLINE in piece.lstrip(UNDERLINE) for piece, _ in vocab)):
        raise _refused("pre_tokenizer", step, path)


# ---- WordPiece -------------------------------------------------------------


def _word_piece(normalizer: Sequence[Mapping[str, Any]], model: Mapping[str, Any],
                path: str) -> Cleaning:
    longest = model.get("max_input_chars_per_word", 100)
    if type(longest) is not int or longest < 1:
        raise InputError(f"{path}: max_input_chars_per_word of its model is "
                         f"{longest!r:.40}, not a whole number of 1 or more; copy or "
                         "download the file again.")
    letters = [{"BertNormalizer": "b", "NFD": "d", "StripAccents": "a",
                "Lowercase": "l"}.get(step.get("type"), "") for step in normalizer]
    _check_order(normalizer, letters, _WORD_PIECE_ORDER, path)
    if letters != ["b"]:
        strips = "d" in letters
        return Cleaning("l" in letters, strips, Rules(
            clean=False, split_chinese=False, final_sigma=False, all_marks=strips,
            strips_cased=strips and "l" not in letters, max_word_chars=longest))
    clean, chinese, strips, lower = (
        normalizer[0].get(name, default) for name, default in (
            ("clean_text", True), ("handle_chinese_chars", True),
            ("strip_accents", None), ("lowercase", True)))
    if not {type(clean), type(chinese), type(lower)} <= {bool} or not (
            strips is None or type(strips) is bool):
        raise InputError(f"{path}: the options of its BertNormalizer are not true or "
                         "false; copy or download the file again.")
    strips = lower if strips is None else strips
    return Cleaning(lower, strips, Rules(
        clean=clean, drop_private=clean, split_chinese=chinese, final_sigma=False,
        strips_cased=strips and not lower, max_word_chars=longest))


# ---- checks ----------------------------------------------------------------


def _check_order(steps: Sequence[Mapping[str, Any]], letters: Sequence[str],
                 order: str, path: str) -> None:
    """Raises InputError for the first step that is not known, or not in the order."""
    for step, letter in zip(steps, letters):
        if not letter:
            raise _refused("normalizer", step, path)
    if not re.fullmatch(order, "".join(letters)):
        names = ", ".join(str(step.get("type")) for step in steps)
        raise InputError(f"{path}: its normalizer has the steps {names} in this order, "
                         f"which is not supported{_ADVICE}.")


def _check_splits(kind: str, steps: Sequence[Mapping[str, Any]], path: str) -> None:
    if not steps:
        raise InputError(
            f"{path}: it has no pre_tokenizer, so text is not divided into words; that "
            f"is not supported for {kind}{_ADVICE}.")
    names = [str(step.get("type")) for step in steps]
    if ", ".join(names) not in _SPLITS[kind]:
        others = [step for step, name in zip(steps, names)
                  if name not in " ".join(_SPLITS[kind])]
        raise _refused("pre_tokenizer", (others or steps)[0], path)


def _check_model(model: Mapping[str, Any], path: str) -> None:
    kind = model["type"]
    wanted = {"unk_token": "[UNK]", "continuing_subword_prefix": "##"} if (
        kind == "WordPiece") else {"fuse_unk": True}
    for name, value in model.items():
        if name in wanted and value != wanted[name] or (
                name not in {*wanted, *_MODEL_KEYS[kind]} and value not in (None, False)):
            raise InputError(f"{path}: its model has {name}={value!r:.40}, which is not "
                             f"supported{_ADVICE}.")


def _check_added_tokens(value: Mapping[str, Any], path: str) -> None:
    """Raises InputError for added tokens that are not in the vocabulary, or that are
    ordinary text and would be cut out of it."""
    vocab = value["model"]["vocab"]
    is_list = isinstance(vocab, list)
    for token in value.get("added_tokens") or ():
        content, i = token["content"], token.get("id")
        known = (type(i) is int and 0 <= i < len(vocab) and vocab[i][0] == content
                 if is_list else vocab.get(content, -1) == i)
        if not known:
            raise InputError(
                f"{path}: its added token {content!r:.40} has the id {i!r:.20}, but is "
                f"not at that place of the vocabulary of {len(vocab)} tokens; this is "
                f"not supported{_ADVICE}.")
        if not is_list and not token.get("special", True):
            raise InputError(
                f"{path}: its added token {content!r:.40} is found in text before the "
                f"text is divided into words, which is not supported{_ADVICE}.")


def _check_post_processor(step: Any, path: str) -> None:
    """Raises InputError unless sequences are [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    kind = step.get("type") if isinstance(step, dict) else step
    if kind == "TemplateProcessing":
        parts = {name: "".join(
            "A" if each == {"Sequence": {"id": "A", "type_id": 0}} else
            "B" if each == {"Sequence": {"id": "B", "type_id": 1}} else
            str((each.get("SpecialToken") or {}).get("id"))
            for each in step.get(name) or () if isinstance(each, dict))
            for name in ("single", "pair")}
        if parts == {"single": "[CLS]A[SEP]", "pair": "[CLS]A[SEP]B[SEP]"}:
            return
    if kind not in (None, "BertProcessing"):
        raise _refused("post_processor", step, path)


def _refused(part: str, step: Any, path: str) -> InputError:
    """Returns the error for a step, named with its options."""
    options = ", ".join(
        f"{name}={option!r:.60}" for name, option in step.items() if name != "type"
    ) if isinstance(step, dict) else ""
    kind = step.get("type") if isinstance(step, dict) else repr(step)
    return InputError(
        f"{path}: its {part} has the step {kind}" + (
            f" ({options:.120})" if options else "")
        + f", which is not supported here{_ADVICE}.")
