"""SQuAD 1.1 and 2.0: file → examples → windows of features, as in the TF1 release.

    {"data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": ...,
         "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

Scoring reads the same file by itself (squad_predictions). Other data sets in this
format, such as CMRC and DRCD in Chinese, are read too.
"""

import json
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning.tasks.squad_alignment import (
    ParagraphAlignment, align_paragraph)
from albert_tf.records.sequences import NUM_SPECIAL_PAIR, assemble
from albert_tf.tokenization.tokenizer import FullTokenizer

# unique_ids of the first feature; the next ones count on.
FIRST_UNIQUE_ID = 1_000_000_000


class SquadExample(NamedTuple):
    """One question about one paragraph.

    Attributes:
      qas_id: the question's id.
      question_text, paragraph_text: as in the file.
      answer_text: the answer of a training example, "" if there is none; None in
        prediction.
      start_position: first character of the answer in the paragraph, -1 if there
        is none; None in prediction.
      is_impossible: whether the paragraph does not hold the answer; always False
        in prediction.
    """

    qas_id: str
    question_text: str
    paragraph_text: str
    answer_text: Optional[str]
    start_position: Optional[int]
    is_impossible: bool


# --- Reading ---------------------------------------------------------------------

def load_dataset(path: str) -> list[dict]:
    """Reads a file in SQuAD's format: its list of articles, checked.

    Answers are checked where there are any; a test set has none.

    Raises:
      InputError: if the file cannot be read, is not JSON or not in SQuAD's format,
        holds no question, or one id twice; names the place.
    """
    data = _parse(path)
    count = sum(1 for _ in _walk(data, path))
    if not count:
        raise InputError(f"{path}: there is no question in it; give another file.")
    return data["data"]


def check_answered(data: list[dict], name: str, version_2_with_negative: bool) -> None:
    """Checks that predictions for `data` can be scored.

    Args:
      data: what load_dataset returns.
      name: the file, for the error message.
      version_2_with_negative: whether questions without answers are allowed.

    Raises:
      InputError: if a question lacks its answers; names it.
    """
    for place, _, question in _walk({"data": data}, name):
        _check_version(place, question, version_2_with_negative)
        answers = question.get("answers")
        if answers is None or not (answers or version_2_with_negative):
            raise InputError(
                f"{place} has no answers, so its prediction cannot be scored; give a "
                "file with answers.")


def has_any_answer(data: list[dict]) -> bool:
    """Whether a question has an answer or is marked as having none: not a test set."""
    return any(question.get("answers") or "is_impossible" in question
               for question in _questions(data))


def count_several_answers(data: list[dict]) -> int:
    """Questions of which read_examples takes the first of several answers."""
    return sum(len(question.get("answers") or ()) > 1
               and not question.get("is_impossible") for question in _questions(data))


def read_examples(path_or_data: str | list[dict], *, is_training: bool,
                  version_2_with_negative: bool,
                  name: str = "The data") -> list[SquadExample]:
    """Examples in the order of the file (the release's read_squad_examples).

    Training sets have one answer to a question, evaluation sets several. Training
    on the latter takes the first one (count_several_answers tells how often); the
    release refuses such a file.

    Args:
      path_or_data: a file, or what load_dataset returned.
      is_training: whether to take the answers.
      version_2_with_negative: whether questions without an answer are allowed
        (SQuAD 2.0). A question without the key is_impossible has an answer.
      name: the file that the data came from, for error messages.

    Raises:
      InputError: as load_dataset; if a question is marked impossible though
        version_2_with_negative is False; in training, if a question has no answer,
        or one that does not stand where the file says.
    """
    if isinstance(path_or_data, str):
        name, path_or_data = path_or_data, load_dataset(path_or_data)
    examples = []
    for place, paragraph, question in _walk({"data": path_or_data}, name):
        _check_version(place, question, version_2_with_negative)
        text, start, impossible = None, None, False
        if is_training:
            impossible = question.get("is_impossible", False)
            text, start = ("", -1) if impossible else _training_answer(
                place, paragraph["context"], question)
        examples.append(SquadExample(
            question["id"], question["question"], paragraph["context"], text, start,
            impossible))
    return examples


def _parse(path: str) -> Any:
    with files.open_binary(path) as stream:
        content = stream.read()
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 ({error.reason}); convert the file to "
            "UTF-8, for example with iconv.") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}: not valid JSON ({error.msg}); the file may "
            "be incomplete: fetch it again.") from error


def _questions(data: list[dict]) -> Iterator[dict]:
    return (question for _, _, question in _walk({"data": data}, "The data"))


def _walk(data: Any, name: str) -> Iterator[tuple[str, dict, dict]]:
    """(place in words, paragraph, question) of each question, each checked."""
    seen: set[str] = set()
    articles = _get(data, "data", list, f"{name}: the file")
    for a, article in enumerate(articles, 1):
        place = f"{name}, article {a}"
        for p, paragraph in enumerate(_get(article, "paragraphs", list, place), 1):
            where = f"{place}, paragraph {p}"
            _get(paragraph, "context", str, where)
            for q, question in enumerate(_get(paragraph, "qas", list, where), 1):
                key = _get(question, "id", str, f"{where}, question {q}")
                here = f"{where}, question {key!r}"
                _get(question, "question", str, here)
                if key in seen:
                    raise InputError(
                        f"{here}: an earlier question has this id; give each one its "
                        "own.")
                seen.add(key)
                if "is_impossible" in question:
                    _get(question, "is_impossible", bool, here)
                if "answers" in question:
                    for answer in _get(question, "answers", list, here):
                        _get(answer, "text", str, f"{here}, answer")
                yield here, paragraph, question


_KINDS = {list: "a list", str: "a string", bool: "true or false", int: "a number"}


def _get(holder: Any, key: str, kind: type, place: str) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if type(value) is kind:
        return value
    problem = (f"has no '{key}'" if value is None
               else f"has a '{key}' that is not {_KINDS[kind]}")
    raise InputError(
        f"{place} {problem}, so this is not SQuAD's format; give a file like SQuAD's "
        "train-v1.1.json.")


def _check_version(place: str, question: dict, version_2_with_negative: bool) -> None:
    if question.get("is_impossible") and not version_2_with_negative:
        raise InputError(
            f"{place} is marked as impossible to answer, as in SQuAD 2.0; add "
            "--version_2_with_negative.")


def _training_answer(place: str, context: str, question: dict) -> tuple[str, int]:
    answers = question.get("answers") or []
    if not answers or not answers[0]["text"]:
        raise InputError(
            f"{place} has no answer to train on; give a file for training, or mark a "
            "question without an answer with \"is_impossible\": true.")
    text = answers[0]["text"]
    start = _get(answers[0], "answer_start", int, f"{place}, answer")
    there = context[start:start + len(text)] if start >= 0 else ""
    if there != text:
        raise InputError(
            f"{place}: the answer {text[:60]!r} does not stand at character {start} of "
            f"its paragraph, where there is {there[:60]!r}; correct its answer_start.")
    return text, start


# --- Features --------------------------------------------------------------------

def check_window_sizes(
        max_seq_length: int, doc_stride: int, max_query_length: int) -> None:
    """Checks that a window holds the longest question and some of the paragraph.

    Raises:
      InputError: if not; names the flag.
    """
    if max_query_length < 1:
        raise InputError(
            f"--max_query_length={max_query_length} is not positive; give at least 1.")
    if doc_stride < 1:
        raise InputError(f"--doc_stride={doc_stride} is not positive; give at least 1.")
    least = max_query_length + NUM_SPECIAL_PAIR + 1
    if max_seq_length < least:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for the paragraph "
            f"beside a question of --max_query_length={max_query_length} pieces; give "
            f"at least {least}.")


def featurize(example: SquadExample, *, tokenizer: FullTokenizer, max_seq_length: int,
              doc_stride: int, max_query_length: int,
              is_training: bool) -> list[dict[str, list[int]]]:
    """Windows of one example (the release's convert_examples_to_features).

        [CLS] question [SEP] pieces of the window [SEP]
          0      0       0     1   ...      1       1      segment_ids
          0      1       1     0   ...      0       1      p_mask

    Args:
      example: a question with its paragraph.
      tokenizer: SentencePiece as in the release; also WordPiece, by its offsets.
      max_seq_length: pieces of a window, special ones included.
      doc_stride: pieces from one window's start to the next; a window's own length
        where that is less.
      max_query_length: what is kept of the question, from its start.
      is_training: whether to set the answer's position.

    Returns:
      A dict for each window, in their order; values are lists of ints without
      padding. input_ids, input_mask, segment_ids, p_mask (1 where no answer can
      be) have one entry per piece. start_positions, end_positions (positions of the
      answer's first and last piece), is_impossible and paragraph_len (pieces of the
      window, special ones and question included) have one. In training, a window
      that does not hold the whole answer is impossible, with positions 0, in
      SQuAD 1.1 too; in prediction these three are 0. tok_start_to_orig_index and
      tok_end_to_orig_index (first and last character in the paragraph) and
      token_is_max_context (1 where no other window shows more context around the
      piece) have one entry per piece of the paragraph, that is from position
      paragraph_len - 1 - their length on.

      Empty if the paragraph has no alignment (see align_paragraph), or if none of
      its pieces stands for the answer; see examples_without_features.

    Raises:
      InputError: as check_window_sizes.
    """
    check_window_sizes(max_seq_length, doc_stride, max_query_length)
    paragraph = align_paragraph(example.paragraph_text, tokenizer)
    if paragraph is None:
        return []
    answer = None
    if is_training and not example.is_impossible:
        answer = _answer_pieces(example, paragraph)
        if answer[0] > answer[1]:
            return []
    question = tokenizer.encode(
        tokenizer.prepare(example.question_text))[:max_query_length]
    spans = _window_spans(len(paragraph.piece_ids),
                          max_seq_length - len(question) - NUM_SPECIAL_PAIR, doc_stride)
    return [{**_window(question, paragraph, span, answer, tokenizer),
             "is_impossible": [int(is_training and not _holds(span, answer))],
             "token_is_max_context": is_max_context}
            for span, is_max_context in zip(spans, _max_context(spans))]


def _answer_pieces(
        example: SquadExample, paragraph: ParagraphAlignment) -> tuple[int, int]:
    """First and last piece of the answer; the last before the first: there is none."""
    last = example.start_position + len(example.answer_text) - 1
    return (paragraph.piece_of_start[example.start_position],
            paragraph.piece_of_end[last])


def _holds(span: tuple[int, int], answer: Optional[tuple[int, int]]) -> bool:
    """Whether a window (begin, end) shows the whole answer (first, last piece)."""
    return answer is not None and span[0] <= answer[0] and answer[1] < span[1]


def _window(question: list[int], paragraph: ParagraphAlignment, span: tuple[int, int],
            answer: Optional[tuple[int, int]],
            tokenizer: FullTokenizer) -> dict[str, list[int]]:
    """A window's features, but for what other windows or the purpose determine."""
    begin, end = span
    input_ids, segment_ids = assemble(
        question, paragraph.piece_ids[begin:end], tokenizer.cls_id, tokenizer.sep_id)
    first = len(question) + 2  # behind [CLS] question [SEP]
    positions = ([first + piece - begin for piece in answer]
                 if _holds(span, answer) else [0, 0])
    return {
        "input_ids": input_ids,
        "input_mask": [1] * len(input_ids),
        "segment_ids": segment_ids,
        "p_mask": [0] + [1] * (first - 1) + [0] * (end - begin) + [1],
        "start_positions": positions[:1],
        "end_positions": positions[1:],
        "paragraph_len": [len(input_ids)],
        "tok_start_to_orig_index": paragraph.starts[begin:end],
        "tok_end_to_orig_index": paragraph.ends[begin:end],
    }


def number_features(features_per_example: Iterable[Sequence[dict]]) -> Iterator[dict]:
    """All features in order, with what only the whole set determines.

    Args:
      features_per_example: what featurize returns, in the order of the examples.

    Yields:
      The features, each with its unique_ids, counted on from FIRST_UNIQUE_ID, and
      example_index, its example's place in the list of examples (one without
      features keeps its place).
    """
    unique_id = FIRST_UNIQUE_ID
    for index, features in enumerate(features_per_example):
        for feature in features:
            yield {"unique_ids": [unique_id], **feature, "example_index": [index]}
            unique_id += 1


def examples_without_features(
        examples: Sequence[SquadExample],
        features_per_example: Iterable[Sequence[dict]]) -> list[SquadExample]:
    """Examples that featurize drops: to be counted, and answered with ""."""
    return [example for example, features
            in zip(examples, features_per_example, strict=True) if not features]


def _window_spans(
        num_pieces: int, window: int, doc_stride: int) -> list[tuple[int, int]]:
    """(begin, end) of windows of `window` pieces; the last one may be shorter."""
    spans = [(0, min(window, num_pieces))]
    while spans[-1][1] < num_pieces:
        begin = spans[-1][0] + min(window, doc_stride)
        spans.append((begin, min(begin + window, num_pieces)))
    return spans


def _max_context(spans: list[tuple[int, int]]) -> list[list[int]]:
    """Per window and piece, whether no other window shows more context around it.

    Context is the lesser number of pieces to the left and right, plus a hundredth
    of the window's length; of equal windows the first counts (the release's
    _check_is_max_context).
    """
    if len(spans) == 1:
        return [[1] * spans[0][1]]
    begin, end = np.array(spans).T[:, :, None]  # [windows, 1]
    piece = np.arange(spans[-1][1])             # [pieces]
    score = np.minimum(piece - begin, end - 1 - piece) + 0.01 * (end - begin)
    score[(piece < begin) | (piece >= end)] = -np.inf
    best = np.argmax(score, axis=0)
    return [(best[first:last] == window).astype(int).tolist()
            for window, (first, last) in enumerate(spans)]
