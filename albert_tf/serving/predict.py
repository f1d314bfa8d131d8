"""Texts in, answers out, with any model that `albert_tf.load` takes.

    texts ─► sequences, as in training ─► batches by length ─► model ─► answers, in order

An answer is a dict of JSON values; a task's keys are the same here, in the lines of
predict.py, in the replies of serve.py and in the outputs of exported models.
"""

import dataclasses
import functools
import itertools
import os
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf

from albert_tf import files, text_files
from albert_tf.checkpoints import formats, load as loading
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.finetuning.race import task as race
from albert_tf.finetuning.squad import task as squad
from albert_tf.finetuning.tagging import task as tagging, scoring
from albert_tf.finetuning.squad.dataset import SquadExample
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.models import IMPOSSIBLE_SCORE
from albert_tf.serving import early_exit, portable
from albert_tf.text import inputs as text_inputs
from albert_tf.features import vectors
from albert_tf.serving.saved_model import EXIT_INPUT, check_threshold
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.tokenization import sequences
from albert_tf.tokenization.tokenizer import FullTokenizer

MASK = "[MASK]"
_STREAMED = 1024  # texts that are held at a time
COMPUTATION = Computation(skip_padding=True)
Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """One input, ready for the model: `sequences`, each the model's inputs without
    padding, that `answer` makes an answer of, given the model's outputs for them."""

    sequences: Sequence[Mapping[str, Any]]
    answer: Callable[[Sequence[Mapping[str, np.ndarray]]], Answer]
    head: "Head"

    @property
    def length(self) -> int:
        return max(len(row["input_ids"]) for row in self.sequences)


class Head:
    """A task of a model: inputs → requests → outputs.

    Attributes:
      names: of the inputs, those in `optional` last.
      types: of the model's inputs, where they are not int32.
    """

    names: tuple[str, ...] = ("text", "text_pair")
    optional: tuple[str, ...] = ("text_pair",)
    padding: Mapping[str, int] = {}
    types: Mapping[str, type] = {}
    computation = COMPUTATION

    def __init__(self, loaded: "Model"):
        self.model, self.config = loaded.model, loaded.config
        self.tokenizer: FullTokenizer = loaded.tokenizer
        self.labels, self.settings = loaded.labels, loaded.settings
        self.heads, self.engine = loaded.heads, loaded.engine
        self.bert = getattr(loaded.model, "bert", loaded.model)
        self.max_length = min(self.setting("max_seq_length", 512),
                              loaded.config.max_position_embeddings)

    def setting(self, name: str, default: Any) -> Any:
        """A flag that the model was trained with."""
        return self.settings.get("flags", {}).get(name, default)

    def request(self, given: Mapping[str, Any], top_k: int) -> Request:
        row = self.tokenizer.features(
            given["text"], given.get("text_pair"), self.max_length)
        return Request([row], lambda outputs: self.answer(outputs[0]), self)

    def answer(self, outputs: Mapping[str, np.ndarray]) -> Answer:
        raise NotImplementedError

    def compute(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for a padded batch."""
        found = self.engine(batch) if self.engine else {
            name: value.numpy() for name, value in self.function(
                {name: tf.constant(value) for name, value in batch.items()}).items()}
        if not all(np.isfinite(value).all() for value in found.values()):
            raise InputError("the model gives numbers that are not finite: its weights "
                             "are damaged, or the training diverged.")
        return found

    def warm_up(self) -> None:
        """Makes the graph, which else the first answer waits for."""
        row = {name: [0] for name in self.inputs}
        self.compute(_padded([row], self))

    @functools.cached_property
    def function(self):
        """`outputs` as a graph."""
        # Sizes are unknown, so that no length is traced anew.
        return tf.function(self.outputs, autograph=False, reduce_retracing=True,
                           input_signature=[{
                               name: tf.TensorSpec(
                                   [None, None], self.types.get(name, np.int32), name)
                               for name in self.inputs}])

    inputs: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")

    def outputs(self, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raise NotImplementedError

    def encoded(self, features, **options):
        return self.bert(features, computation=self.computation, padding_is_read=False,
                         **options)

    def pooled(self, features):
        return self.encoded(features, positions=features["input_ids"][:, :0])[
            "pooled_output"]


class Classes(Head):
    """One label of several for a text or a pair, or a number."""

    def outputs(self, features):
        logits = self.model.output_layers["classification"](self.pooled(features))
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def answer(self, outputs):
        if len(outputs["logits"]) == 1:
            return {"score": float(outputs["logits"][0])}
        return chosen(outputs["probabilities"], self.labels)


class ExitClasses(Classes):
    """As Classes, of a sequence each after as many passes as it needs to be sure."""

    inputs = (*Head.inputs, EXIT_INPUT)
    types = {EXIT_INPUT: np.float32}

    def outputs(self, features):
        features = dict(features)
        threshold = features.pop(EXIT_INPUT)[:, 0]
        return early_exit.answers(
            self.model, self.model.output_layers["classification"], features, threshold,
            self.computation)

    def answer(self, outputs):
        return {**super().answer(outputs), "passes": int(outputs["passes"])}


class Order(Head):
    """Whether two passages stand in their order."""

    optional = ()

    def outputs(self, features):
        logits = self.model.output_layers["sentence_order"](self.pooled(features))
        return {"probabilities": tf.nn.softmax(logits)}

    def answer(self, outputs):
        return chosen(outputs["probabilities"], ORDER_LABELS)


class Vectors(Head):
    """A text or pair as vectors: the pooled output and the mean over pieces; of a
    folder of sentence-transformers the one that it defines."""

    def __init__(self, loaded):
        super().__init__(loaded)
        self.sentence = loaded.sentence

    def outputs(self, features):
        return vectors.of(
            self.encoded(features), features["input_mask"], self.sentence)

    def answer(self, outputs):
        return {name: outputs[name].tolist() for name in sorted(outputs, reverse=True)}


class Masks(Head):
    """The likeliest pieces for each [MASK] of a text."""

    inputs = (*Head.inputs, "masked_lm_positions")

    def request(self, given, top_k):
        first, second = (None if given.get(name) is None else self._ids(given[name])
                         for name in self.names)
        masks = sum((part or []).count(self.tokenizer.mask_id)
                    for part in (first, second))
        if not masks:
            raise InputError(f"the text has no {MASK} to fill.")
        special = (sequences.NUM_SPECIAL_PAIR if second
                   else sequences.NUM_SPECIAL_SINGLE)
        first, second = sequences.truncate_longer_first(
            first, second or [], self.max_length - special)
        ids, segments = sequences.assemble(
            first, second or None, self.tokenizer.cls_id, self.tokenizer.sep_id)
        places = [i for i, piece in enumerate(ids) if piece == self.tokenizer.mask_id]
        if len(places) < masks:
            raise InputError(f"a {MASK} stands behind the {self.max_length} pieces "
                             "that the model reads; give a shorter text.")
        row = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": segments,
               "masked_lm_positions": places}
        return Request([row], lambda outputs: {"masks": [
            self._likeliest(scores, top_k) for scores in
            outputs[0]["probabilities"][:len(places)]]}, self)

    def _ids(self, text: str) -> list[int]:
        """Ids of a text with masks; what follows one without a blank is the rest of
        its word."""
        tokenizer, ids = self.tokenizer, []
        for number, part in enumerate(text.split(MASK)):
            pieces = tokenizer.tokenize(tokenizer.prepare(part))
            if number:
                ids.append(tokenizer.mask_id)
                if pieces and not part[:1].isspace() and (
                        bare := pieces[0].removeprefix("▁")) != pieces[0]:
                    pieces[:1] = [bare] if bare in tokenizer.vocab else (
                        pieces[:1] if bare else [])
            ids += tokenizer.convert_tokens_to_ids(pieces)
        return ids

    def _likeliest(self, scores: np.ndarray, top_k: int) -> list[Answer]:
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [{"piece": piece, "probability": float(scores[i])} for i, piece in zip(
            best, self.tokenizer.convert_ids_to_tokens(best))]

    def outputs(self, features):
        hidden = self.encoded(
            features, positions=features["masked_lm_positions"])["sequence_output"]
        return {"probabilities": tf.nn.softmax(self.model.predictions(
            tf.cast(hidden, tf.float32), self.bert.embeddings.word_embeddings))}


class Choices(Head):
    """One of several options that answer a question about a passage, as RACE has
    them."""

    names, optional = ("passage", "question", "options"), ()

    def __init__(self, loaded):
        super().__init__(loaded)
        self.task = race.RaceTask(
            max_seq_length=self.max_length, max_qa_length=self.setting(
                "max_qa_length", race.RaceTask.max_qa_length))

    def request(self, given, top_k):
        options = given["options"]
        example = race.RaceExample(
            "", 0, "", given["passage"], given["question"], tuple(options), None, "")
        [made] = self.task.featurize(example, tokenizer=self.tokenizer)
        rows = [{name: made[name][i] for name in self.inputs}
                for i in range(len(options))]
        labels = [race.LETTERS[i] if i < len(race.LETTERS) else str(i + 1)
                  for i in range(len(options))]

        def answer(outputs):
            scores = np.array([row["logits"] for row in outputs], np.float32)
            scores = np.exp(scores - scores.max())
            return chosen(scores / scores.sum(), labels)

        return Request(rows, answer, self)

    def outputs(self, features):
        layer = self.model.output_layers["multiple_choice"]
        return {"logits": layer(self.pooled(features))[:, 0]}


class Questions(Head):
    """The words of a passage that answer a question, in windows as in training."""

    names, optional = ("question", "passage"), ()
    padding = {"p_mask": 1}
    version_2 = False

    def __init__(self, loaded):
        super().__init__(loaded)
        least = {name: self.setting(name, getattr(squad.SquadTask, name)) for name in (
            "doc_stride", "max_query_length", "n_best_size", "max_answer_length",
            "start_n_top", "end_n_top")}
        # A short model has room for a shorter question.
        least["max_query_length"] = min(
            least["max_query_length"],
            max(1, self.max_length - sequences.NUM_SPECIAL_PAIR - 1))
        self.max_length = min(self.max_length, self.setting("max_seq_length", 384))
        self.task = squad.SquadTask(
            self.version_2, max_seq_length=self.max_length, **least)
        self.threshold = loaded.threshold

    def request(self, given, top_k):
        example = SquadExample(
            "", given["question"], given["passage"], None, None, False)
        windows = self.task.featurize(
            example, tokenizer=self.tokenizer, is_training=False)
        columns = list(squad.number_features([windows]))

        def answer(outputs):
            found = self.task.rank(
                [example],
                {name: [row[name] for row in outputs] for name in outputs[0]},
                {name: [row[name] for row in columns] for name in columns[0]})
            start, end, score = found.best[""]
            odds = None if found.null_odds is None else found.null_odds[""]
            if odds is not None and odds >= self.threshold:
                start = end = 0
            return {"answer": example.paragraph_text[start:end], "start": start,
                    "end": end, "score": score} | (
                        {} if odds is None else {"null_odds": odds})

        if not windows:  # As a passage without a piece.
            raise InputError("the passage holds no text that could be an answer.")
        return Request(windows, answer, self)

    def outputs(self, features):
        # Padding is masked, so that a score does not depend on the batch.
        hidden = tf.cast(self.encoded(features)["sequence_output"], tf.float32)
        layer = self.model.output_layers["spans"]
        scores = tf.reshape(layer(tf.reshape(hidden, [-1, self.config.hidden_size])), [
            tf.shape(hidden)[0], tf.shape(hidden)[1], 2])
        scores = tf.where(tf.expand_dims(tf.cast(features["input_mask"], tf.bool), -1),
                          scores, -IMPOSSIBLE_SCORE)
        return {f"{name}_log_probs": tf.nn.log_softmax(scores[..., i])
                for i, name in enumerate(("start", "end"))}


class UnanswerableQuestions(Questions):
    """As Questions, for models that may find that there is no answer."""

    version_2 = True
    inputs = (*Head.inputs, "p_mask")

    def outputs(self, features):
        return dict(self.model(features, computation=self.computation))


class Tags(Head):
    """A tag for each word of a text, and the entities that tags name; text is split
    into words as run_tagger's --split_words says, and read in windows."""

    names, optional = ("text",), ()

    def __init__(self, loaded):
        super().__init__(loaded)
        labels = self.labels or tuple(map(str, range(
            self.heads["token_classification"])))
        self.task = tagging.TaggingTask(
            labels, self.setting("scheme", scoring.scheme_of_labels(labels)),
            Reading(split=self.setting("split_words", Reading.split)),
            max_seq_length=self.max_length,
            doc_stride=self.setting("doc_stride", tagging.TaggingTask.doc_stride))

    def request(self, given, top_k):
        example = self.task.sentence(given["text"])
        windows = self.task.featurize(example, tokenizer=self.tokenizer)
        columns = {name: [row[name] for row in windows]
                   for name in ("word_index", "word_place")}

        def answer(outputs):
            [found] = self.task.tagged(
                [example], {name: [row[name] for row in outputs] for name in outputs[0]},
                {**columns, "example_index": [0] * len(windows)})
            return self.task.answer(example, found)

        return Request(windows, answer, self)

    def outputs(self, features):
        hidden = tf.cast(self.encoded(features)["sequence_output"], tf.float32)
        layer = self.model.output_layers["token_classification"]
        logits = layer(tf.reshape(hidden, [-1, self.config.hidden_size]))
        shape = tf.shape(hidden)[:2]
        return {"tags": tf.reshape(tf.argmax(logits, axis=-1), shape),
                "probabilities": tf.reshape(
                    tf.reduce_max(tf.nn.softmax(logits), axis=-1), shape)}


# Task, the head of a checkpoint that it needs, and who does it; a model's first is what
# it does by default.
HEADS: tuple[tuple[str, str, type[Head]], ...] = (
    ("classify", "classification", Classes),
    ("tag", "token_classification", Tags),
    ("answer", "spans", Questions),
    ("answer", "conditional_spans", UnanswerableQuestions),
    ("choose", "multiple_choice", Choices),
    ("fill-mask", "masked_lm", Masks),
    ("order", "sentence_order", Order),
    ("embed", "", Vectors),
)
TASKS = tuple(dict.fromkeys(task for task, _, _ in HEADS))


def chosen(probabilities: np.ndarray, labels: Sequence[str]) -> Answer:
    """The likeliest of labels; classes without names go by their number."""
    best = int(np.argmax(probabilities))
    return {"label": labels[best] if labels else str(best),
            "probability": float(probabilities[best]),
            "probabilities": [float(value) for value in probabilities]}


@dataclasses.dataclass(frozen=True)
class Model(loading.Loaded):
    """What `albert_tf.load` returns: a Loaded that answers.

        albert_tf.load("runs/sst-2").predict("A fine film.")["label"]  # '1'
        model.predict(["What is it?"], ["A passage."])       # questions, passages
        model.predict([{"text": "Paris is [MASK]."}], top_k=3)
    """

    threshold: float = 0.0  # null odds from which on a question is left unanswered
    # What computes in the model's place: that of an export for other engines.
    engine: Optional[portable.Engine] = None

    def tasks(self) -> dict[str, type[Head]]:
        """What the model can do, by the task's name."""
        return {task: does for task, head, does in HEADS
                if (not head or head in self.heads)
                and (self.engine is None or task == self.engine.task)}

    def predict(self, texts: Any, text_pairs: Any = None, *, task: str = "",
                top_k: int = 5, batch_size: int = 32,
                exit_threshold: Optional[float] = None) -> Answer | list[Answer]:
        """Answers, in the order of the texts; for one text its answer alone.

        Args:
          texts: a text, or a dict of the task's inputs, or a list of these.
          text_pairs: second texts, where there are such: passages of questions.
          task: one of `tasks`; by default that of the model's head. Of a pretrained
            model a text with [MASK] is filled, a pair put in order, others become
            vectors.
          top_k: pieces for a mask.
          batch_size: sequences that are computed together.
          exit_threshold: of a model with exits, 0 to 1: a text is done after the first
            pass that gives a label a higher probability; `passes` says which.
        """
        if text_pairs is not None:
            first, second = ([value] if isinstance(value, (str, Mapping)) else
                             list(value) for value in (texts, text_pairs))
            if len(first) != len(second):
                raise InputError(f"there are {len(first)} texts, but {len(second)} "
                                 "text_pairs; each text needs its own.")
            inputs: Iterable = list(zip(first, second))
        else:
            inputs = [texts] if isinstance(texts, (str, Mapping)) else texts
        if not hasattr(inputs, "__iter__") or isinstance(inputs, bytes):
            raise InputError(f"{texts!r:.40} is neither a text nor a list of texts.")
        found = list(self.stream(inputs, task=task, top_k=top_k, batch_size=batch_size,
                                 exit_threshold=exit_threshold))
        return found[0] if isinstance(texts, (str, Mapping)) else found

    def stream(self, inputs: Iterable[Any], *, task: str = "", top_k: int = 5,
               batch_size: int = 32, held: int = _STREAMED,
               exit_threshold: Optional[float] = None) -> Iterator[Answer]:
        """Answers as inputs come, at most `held` of which wait for each other; further
        arguments as for `predict`, a pair as a tuple."""
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; give 1 or more.")
        if exit_threshold is not None:
            self.check_exits(exit_threshold, task)
        numbered = enumerate(inputs)
        while part := list(itertools.islice(numbered, held)):
            requests = []
            for number, given in part:
                try:
                    requests.append(self.request(given, task, top_k, exit_threshold))
                except InputError as error:
                    raise InputError(f"input {number + 1}: {error}") from error
            yield from answers(requests, batch_size)

    def request(self, given: Any, task: str = "", top_k: int = 5,
                exit_threshold: Optional[float] = None) -> Request:
        """An input, checked and tokenized."""
        if not isinstance(top_k, int) or not 1 <= top_k <= self.config.vocab_size:
            raise InputError(f"top_k is {top_k!r}; give 1 to {self.config.vocab_size}.")
        exits = exit_threshold is not None
        if exits:
            self.check_exits(exit_threshold, task)
        head = self.head(task or self._task_of(given), exits)
        made = head.request(text_inputs.named(given, head.names, head.optional), top_k)
        return dataclasses.replace(made, sequences=[
            {**row, EXIT_INPUT: [exit_threshold]} for row in made.sequences
            ]) if exits else made

    def check_exits(self, threshold: Any, task: str = "") -> None:
        """Raises InputError where the model cannot answer with exits."""
        check_threshold(threshold)
        if self.engine is not None:
            raise InputError(f"{EXIT_INPUT}: an export for {self.format} makes all "
                             "passes; leave it out, or ask the model itself.")
        if "early_exit" not in self.heads:
            raise InputError(f"{EXIT_INPUT}: the model has no exit head; leave it "
                             "out, or train with --early_exit.")
        if task not in ("", "classify"):
            raise InputError(f"{EXIT_INPUT} is for classify, not for {task}: leave "
                             "it out.")
        if self.heads["early_exit"] == 1:
            raise InputError(f"{EXIT_INPUT}: the model gives a number, which has "
                             "no probability to compare with it; leave it out.")

    def _task_of(self, given: Any) -> str:
        tasks = self.tasks()
        first = next(iter(tasks))
        if first not in ("fill-mask", "order"):
            return first
        values = (given,) if isinstance(given, str) else (
            tuple(given.values()) if isinstance(given, Mapping) else given)
        if not isinstance(values, (tuple, list)):
            return "embed"
        if "fill-mask" in tasks and any(MASK in str(value) for value in values):
            return "fill-mask"
        return "order" if "order" in tasks and len(values) == 2 else "embed"

    def head(self, task: str, exits: bool = False) -> Head:
        """What does a task, made once."""
        tasks = self.tasks()
        if task not in tasks:
            raise InputError(
                f"this model cannot {task}: it has no head for it; it can "
                f"{', '.join(tasks)}." if task in TASKS else
                f"the task '{task}' is not known; this model can {', '.join(tasks)}.")
        if self.tokenizer is None:
            raise InputError(
                "the model's folder holds no vocabulary: copy it there (a file "
                "NAME.model of SentencePiece, or vocab.txt), or give predict.py, "
                "serve.py or export_model.py --spm_model_file or --vocab_file.")
        made = self.__dict__.setdefault("_heads", {})
        if (task, exits) not in made:
            made[task, exits] = (ExitClasses if exits else tasks[task])(self)
        return made[task, exits]


def answers(requests: Sequence[Request], batch_size: int = 32) -> list[Answer]:
    """Answers to requests: sequences of like length share a batch, padded to the
    longest of them."""
    rows = [(request, i) for request in requests for i in range(len(request.sequences))]
    by_head: dict[Head, list] = {}
    for request, i in rows:
        by_head.setdefault(request.head, []).append((request, i))
    outputs: dict[tuple[int, int], Mapping[str, np.ndarray]] = {}
    for head, own in by_head.items():
        own.sort(key=lambda row: len(row[0].sequences[row[1]]["input_ids"]))
        for start in range(0, len(own), batch_size):
            part = own[start:start + batch_size]
            given = [request.sequences[i] for request, i in part]
            found = head.compute(_padded(given, head))
            for place, (request, i) in enumerate(part):
                outputs[id(request), i] = {
                    name: values[place] for name, values in found.items()}
    return [request.answer([outputs[id(request), i]
                            for i in range(len(request.sequences))])
            for request in requests]


def _padded(rows: Sequence[Mapping[str, Any]], head: Head) -> dict[str, np.ndarray]:
    batch = {}
    for name in head.inputs:
        longest = max(len(row[name]) for row in rows)
        values = np.full([len(rows), longest], head.padding.get(name, 0),
                         head.types.get(name, np.int32))
        if name == "input_ids":
            values[:] = head.tokenizer.pad_id
        for to, row in zip(values, rows):
            to[:len(row[name])] = row[name]
        batch[name] = values
    return batch


def load(path: str, config: formats.Config = None, head: str = "",
         allow_nan: bool = False, vocabulary: Optional[Vocabulary] = None) -> Model:
    """The model in a folder, with its heads, tokenizer and labels, ready to answer.

        loaded = albert_tf.load("albert-base-v2")
        batch = loaded.tokenizer(["ALBERT shares its layers."])
        loaded.model(batch)["sequence_output"]
        loaded.predict("ALBERT [MASK] its layers.")

    Args:
      path: of the release, of a run here, of Hugging Face, keras-hub or tf-models, a
        SavedModel, an export for other engines, or a module of TensorFlow Hub; the
        format is recognised.
      config: where the folder has none: an AlbertConfig, its file, or a published name.
      head: as for formats.read.
      allow_nan: accept weights that are NaN or infinite.
      vocabulary: the file of the tokenizer, for a folder without one.
    """
    if portable.recognise(path):
        return Model(**portable.read(path, vocabulary))
    found = loading.load(path, config, head, allow_nan, vocabulary)
    return Model(**{field.name: getattr(found, field.name)
                    for field in dataclasses.fields(loading.Loaded)},
                 threshold=_threshold(os.fspath(path)))


def _threshold(folder: str) -> float:
    """The null odds from which on questions are left unanswered, as the evaluation
    found them; 0 where there is none."""
    asset = os.path.join(folder, "assets", "null_score_diff_threshold.txt")
    results = os.path.join(folder, "eval_results.json")
    if files.exists(asset):
        return float(next(text_files.read_lines(asset))[1])
    if files.exists(results):
        value = text_files.read_object(results).get("null_score_diff_threshold")
        return float(value) if isinstance(value, (int, float)) else 0.0
    return 0.0
