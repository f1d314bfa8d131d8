"""Reading SQuAD 1.1 and 2.0: a file is read and checked once for all uses.

    {"data": [{"paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "is_impossible": ...,
         "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

Other data sets in this format, such as CMRC and DRCD in Chinese, can be read, too, and
Parquet and Arrow files and JSON lines in which each question is a row, as the library
`datasets` writes them: id, question, context, answers {text: [...], answer_start: [...]}.
"""

import dataclasses
from typing import Any, Iterator, NamedTuple, Optional

from albert_tf import row_files, text_files
from albert_tf.errors import InputError
from albert_tf.finetuning.squad import languages
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.rows import rows, typed


class SquadExample(NamedTuple):
    """One question about one paragraph.

    Attributes:
      answer_text, start_position: a training example's answer and the position of its
        first character in the paragraph, "" and -1 if there is none; None in
        prediction.
      is_impossible: whether the paragraph has no answer; always False in prediction.
    """

    qas_id: str
    question_text: str
    paragraph_text: str
    answer_text: Optional[str]
    start_position: Optional[int]
    is_impossible: bool


class Question(NamedTuple):
    """A question, unchanged from the file."""

    where: str  # "dev.json, article 1, paragraph 2, question 'q3'", or the row
    paragraph: str
    content: dict[str, Any]


class SquadDataset:
    """The questions of a file. Answers are checked if there are any.

        dataset = SquadDataset.read("dev-v1.1.json")
        examples = dataset.examples(is_training=False, version_2=False)

    A question that is marked as impossible has no answer. If the file gives it some,
    they are left out, in training and in scores.

    Attributes:
      articles: the questions in the form of the list under "data", which the official
        metrics take.
      num_contradictions: the number of questions that are marked as impossible and have
        an answer in the file.
    """

    def __init__(self, content: Any, name: str = "The data"):
        """`content` is the parsed JSON, or a tuple of questions; `name` is the file's
        name in errors."""
        self.questions: list[Question] = list(
            content if isinstance(content, tuple) else _of_articles(content, name))
        self.num_contradictions, places = 0, dict[str, str]()
        for i, question in enumerate(self.questions):
            content = question.content
            if content["id"] in places:
                raise InputError(f"{question.where}: {places[content['id']]} has the "
                                 "same id; give each question its own id.")
            places[content["id"]] = question.where
            if content.get("is_impossible") and content.get("answers"):
                self.num_contradictions += any(
                    answer["text"].strip() for answer in content["answers"])
                self.questions[i] = question._replace(content={**content, "answers": []})
        self.articles = [{"paragraphs": [{"qas": [question.content]}]}
                         for question in self.questions]

    @classmethod
    def read(cls, path: str) -> "SquadDataset":
        return cls(questions_of(path), path)

    def examples(self, *, is_training: bool, version_2: bool) -> list[SquadExample]:
        """Returns the examples in file order (read_squad_examples in the original
        implementation).

        Training uses the first of several answers, which must be at the place that the
        file gives; the original refuses several. With `version_2`, questions may have
        no answer; those without the key is_impossible have one.
        """
        examples = []
        for question in self.questions:
            _check_version(question, version_2)
            content, answer = question.content, (None, None)
            impossible = is_training and content.get("is_impossible", False)
            if is_training:
                answer = ("", -1) if impossible else _training_answer(question)
            examples.append(SquadExample(content["id"], content["question"],
                                         question.paragraph, *answer, impossible))
        return examples

    def training_notes(self) -> list[str]:
        """Counts the questions whose answers are not all trained as they are."""
        answers = [q.content["answers"] for q in self.questions if q.content.get("answers")]
        counts = {
            "several answers; training takes the first":
            sum(len(each) > 1 for each in answers),
            "an answer with blanks at its ends; training leaves the blanks out":
            sum(each[0]["text"] != each[0]["text"].strip() for each in answers)}
        return [f"{count} of {len(self.questions)} questions have {what}."
                for what, count in counts.items() if count]

    def has_answers(self) -> bool:
        """Returns whether any question has an answer."""
        return any(q.content.get("answers") for q in self.questions)

    def has_any_answer(self) -> bool:
        """Returns whether any question has an answer or is marked as having none, which
        is false for a test set."""
        return any(q.content.get("answers") or "is_impossible" in q.content
                   for q in self.questions)

    def check_answered(self, version_2: bool) -> None:
        """Raises InputError if the prediction for a question cannot be scored."""
        for question in self.questions:
            _check_version(question, version_2)
            answers = question.content.get("answers")
            if answers is None or not (answers or version_2):
                raise InputError(
                    f"{question.where} has no answers, so that its prediction cannot be "
                    "scored; give a file with answers, or --version_2_with_negative if "
                    "the file marks questions without one.")


def questions_of(path: str) -> tuple[Question, ...]:
    """Reads a file in SQuAD's JSON, or of rows: JSON lines, Parquet or Arrow. Lines are
    told by the first one, an object without SQuAD's key "paragraphs" (quotation marks
    in a text are escaped)."""
    first = "" if row_files.is_row_file(path) else next((
        line.strip() for _, line in text_files.read_lines(path) if line.strip()), "{")
    if not first or first.startswith("{") and first.endswith("}") and (
            '"context"' in first and '"paragraphs"' not in first):
        questions = _of_rows(path)
    else:
        questions = tuple(_of_articles(text_files.read_json(
            path, "the file may be incomplete; download it again"), path))
    if not questions:
        raise InputError(f"{path}: there is no question in the file; give a different "
                         "file.")
    return questions


def _of_rows(path: str) -> tuple[Question, ...]:
    """Returns the questions in a file of rows. If some have answers, those without have
    none in their passage, as in SQuAD 2.0 (is_impossible)."""
    questions = []
    for where, row in rows(
            path, ("id", "question", "context"), ("answers", "is_impossible"),
            kind="" if row_files.is_row_file(path) else "jsonl",
            advice="questions need id, question, context and, to train, answers"):
        if isinstance(answers := row.get("answers"), dict):
            typed(answers, f"{where}, answers", text=[str], answer_start=list)
            texts, starts = answers["text"], answers["answer_start"]
            if len(texts) != len(starts):
                raise InputError(f"{where}: 'answers' has {len(texts)} texts but "
                                 f"{len(starts)} starts; correct it.")
            row["answers"] = [{"text": text, "answer_start": start}
                              for text, start in zip(texts, starts)]
        if not isinstance(row.get("is_impossible"), bool):
            row.pop("is_impossible", None)
        questions.append(_question(where, typed(row, where, context=str)["context"], {
            name: row[name] for name in ("id", "question", "answers", "is_impossible")
            if row.get(name) is not None}))
    has_answers = any(q.content.get("answers") for q in questions)
    for content in (q.content for q in questions):
        if has_answers and content.get("answers") == []:
            content.setdefault("is_impossible", True)
        elif not has_answers and "is_impossible" not in content:
            content.pop("answers", None)  # A test set, which is not scored.
    return tuple(questions)


def _of_articles(content: Any, name: str) -> Iterator[Question]:
    """Yields all questions, and raises InputError for the first wrong one."""
    for a, article in enumerate(typed(content, name, data=[dict])["data"], 1):
        place = f"{name}, article {a}"
        for p, paragraph in enumerate(typed(article, place, paragraphs=[dict])[
                "paragraphs"], 1):
            where = f"{place}, paragraph {p}"
            typed(paragraph, where, context=str, qas=[dict])
            for q, content in enumerate(paragraph["qas"], 1):
                typed(content, f"{where}, question {q}", id=str)
                yield _question(where, paragraph["context"], content)


def _question(where: str, context: str, content: dict[str, Any]) -> Question:
    """Returns a question after checking its values."""
    where = f"{where}, question {typed(content, where, id=str)['id']!r}"
    typed(content, where, question=str, is_impossible=(bool, None),
          answers=([dict], None))
    for answer in content.get("answers") or ():
        typed(answer, f"{where}, answer", text=str)
    return Question(where, context, content)


def _check_version(question: Question, version_2: bool) -> None:
    if question.content.get("is_impossible") and not version_2:
        raise InputError(f"{question.where} is marked as impossible to answer, as in "
                         "SQuAD 2.0; add --version_2_with_negative.")


def _training_answer(question: Question) -> tuple[str, int]:
    """Returns the text of the answer and the position of its first character, without
    blanks at its ends, which would be learned as the token behind them. Raises
    InputError if the text is not there."""
    answers = question.content.get("answers") or []
    if not answers or not answers[0]["text"].strip():
        raise InputError(
            f"{question.where} has no answer to train on; give a training file, or "
            "mark questions without an answer with \"is_impossible\": true.")
    text = answers[0]["text"]
    start = typed(answers[0], f"{question.where}, answer", answer_start=int)[
        "answer_start"]
    there = question.paragraph[start:start + len(text)] if start >= 0 else ""
    if there != text:
        raise InputError(
            f"{question.where}: the answer {text[:60]!r} is not at character {start} "
            f"of its paragraph, which has {there[:60]!r} there; correct its "
            "answer_start.")
    return text.strip(), start + len(text) - len(text.lstrip())


@dataclasses.dataclass
class QuestionSet:
    """The questions of a file, with notes for the user, whether predictions can be
    scored, and how answers are compared (see languages)."""

    dataset: SquadDataset
    examples: list[SquadExample]
    paths: tuple[str, ...] = ()
    answered: bool = True
    language: str = languages.ENGLISH
    notes: tuple[str, ...] = ()
    # A task, a model's outputs, and the answers from them.
    last: Optional[tuple[Any, ...]] = None


def span_spec(vocab_size: int, type_vocab_size: int = 2, *,
              max_seq_length: int = 0) -> FeatureSpec:
    """Returns the specification of a window: a question, a part of the paragraph, and a
    span as the answer.

    The features that are not parsed turn predictions into text; these sequences differ
    in length. Positions are below max_seq_length, unless that is 0.
    """
    def single(name, **kwargs):
        return Feature(name, "int64", (1,), **kwargs)

    def sequence(name, **kwargs):
        return Feature(name, "int64", (None,), **kwargs)

    position = {"limit": max_seq_length, "limited_by": "max_seq_length"}
    return FeatureSpec((
        single("unique_ids"),
        *model_inputs((None,), vocab_size, type_vocab_size),
        # 1 where no answer can start or end.
        sequence("p_mask", limit=2, pad_value=1),
        single("start_positions", **position),
        single("end_positions", **position),
        single("is_impossible", limit=2),
        single("example_index", parsed=False),
        single("paragraph_len", parsed=False),
        sequence("tok_start_to_orig_index", parsed=False),
        sequence("tok_end_to_orig_index", parsed=False),
        sequence("token_is_max_context", parsed=False, limit=2),
    ))
