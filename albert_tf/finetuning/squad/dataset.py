"""Reading SQuAD 1.1 and 2.0: a file is read and checked once for all uses.

    {"data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": ...,
         "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

Other data sets in this format, such as CMRC and DRCD in Chinese, can be read, too, and
Parquet and Arrow files and JSON lines in which each question is a row, as the library
`datasets` writes them: id, question, context, answers {text: [...], answer_start: [...]}.
"""

import dataclasses
import itertools
from typing import Any, Iterator, NamedTuple, Optional

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.rows import kind_of, rows, typed


class SquadExample(NamedTuple):
    """One question about one paragraph."""

    qas_id: str
    question_text: str
    paragraph_text: str
    # A training example's answer and the position of its first character in the
    # paragraph, "" and -1 if there is none; None in prediction.
    answer_text: Optional[str] = None
    start_position: Optional[int] = None
    # Whether the paragraph has no answer, and the answers; None if the file does not say.
    is_impossible: Optional[bool] = None
    answers: Optional[list[dict[str, Any]]] = None
    where: str = ""  # "dev.json, article 1, paragraph 2, question 'q3'", or the row.

    @property
    def truths(self) -> list[str]:
        return [answer["text"] for answer in self.answers or ()]


@dataclasses.dataclass
class QuestionSet:
    """The questions of a file, with notes for the user, whether predictions can be
    scored, and how answers are compared (see scoring)."""

    examples: list[SquadExample]
    paths: tuple[str, ...] = ()
    answered: bool = True
    language: str = "en"
    notes: tuple[str, ...] = ()
    # A task, a model's outputs, and the answers from them.
    last: Optional[tuple[Any, ...]] = None


# ---- files -----------------------------------------------------------------


def read_questions(path: str) -> list[SquadExample]:
    """Reads a file in SQuAD's JSON, or of rows: JSON lines, Parquet or Arrow. Lines are
    told by the first one, an object without SQuAD's key "paragraphs" (quotation marks
    in a text are escaped)."""
    first = "" if kind_of(path, "jsonl") == "parquet" else next((
        line.strip() for _, line in text_files.read_lines(path) if line.strip()), "{")
    if not first or first.startswith("{") and first.endswith("}") and (
            '"context"' in first and '"paragraphs"' not in first):
        questions = _of_rows(path)
    else:
        questions = [*questions_in(text_files.read_object(
            path, "the file may be incomplete; download it again"), path)]
    if not questions:
        raise InputError(f"{path}: there is no question in the file; give a different "
                         "file.")
    return questions


def _of_rows(path: str) -> list[SquadExample]:
    """Returns the questions in a file of rows. If some have answers, those without have
    none in their passage, as in SQuAD 2.0 (is_impossible)."""
    questions = []
    for where, row in rows(
            path, ("id", "question", "context"), ("answers", "is_impossible"),
            kind=kind_of(path, "jsonl"),
            advice="questions need id, question, context and, to train, answers"):
        if isinstance(answers := row.get("answers"), dict):
            typed(answers, f"{where}, answers", text=[str], answer_start=list)
            row["answers"] = [{"text": text, "answer_start": start}
                              for text, start in itertools.zip_longest(
                                  answers["text"], answers["answer_start"])]
        questions.append(_question(where, typed(row, where, context=str)["context"], row))
    # Without any answer it is a test set, which is not scored.
    default = True if any(question.answers for question in questions) else None
    return [question if question.answers != [] or question.is_impossible is not None
            else question._replace(is_impossible=default, answers=default and [])
            for question in questions]


def questions_in(content: Any, name: str) -> Iterator[SquadExample]:
    """Yields the questions in the parsed JSON of a file, whose name is for errors."""
    for a, article in enumerate(typed(content, name, data=[dict])["data"], 1):
        place = f"{name}, article {a}"
        for p, paragraph in enumerate(typed(article, place, paragraphs=[dict])[
                "paragraphs"], 1):
            where = f"{place}, paragraph {p}"
            typed(paragraph, where, context=str, qas=[dict])
            for q, content in enumerate(paragraph["qas"], 1):
                typed(content, f"{where}, question {q}", id=str)
                yield _question(where, paragraph["context"], content)


def _question(where: str, context: str, content: dict[str, Any]) -> SquadExample:
    """Returns a question after checking its values."""
    where = f"{where}, question {typed(content, where, id=str)['id']!r}"
    typed(content, where, question=str, is_impossible=(bool, None),
          answers=([dict], None))
    for answer in content.get("answers") or ():
        typed(answer, f"{where}, answer", text=str)
    return SquadExample(
        content["id"], content["question"], context, answers=content.get("answers"),
        is_impossible=content.get("is_impossible"), where=where)


def to_train(example: SquadExample) -> SquadExample:
    """Returns a question with the first of its answers, without blanks at its ends,
    which would be learned as the token behind them; the original implementation refuses
    several. Raises InputError if the text is not where the file says."""
    if example.is_impossible:
        return example._replace(answer_text="", start_position=-1)
    if not example.answers or not example.truths[0].strip():
        raise InputError(
            f"{example.where} has no answer to train on; give a training file, or "
            "mark questions without an answer with \"is_impossible\": true.")
    text, start = example.truths[0], typed(
        example.answers[0], f"{example.where}, answer", answer_start=int)["answer_start"]
    there = example.paragraph_text[start:start + len(text)] if start >= 0 else ""
    if there != text:
        raise InputError(
            f"{example.where}: the answer {text[:60]!r} is not at character {start} of "
            f"its paragraph, which has {there[:60]!r} there; correct its answer_start.")
    return example._replace(
        answer_text=text.strip(),
        start_position=start + len(text) - len(text.lstrip()))
