"""Answers texts with any model that `albert_tf.load` accepts.

Answers are in the order of the texts. An answer is a dict of JSON values. A task's keys
are the same here, in the lines of predict.py, in the replies of serve.py and in the
outputs of exported models.
"""

import collections
import dataclasses
import itertools
import os
from typing import (
    Any, Iterable, Iterator, Mapping, Optional, Sequence, Unpack, overload)

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import checkpoint, formats, huggingface, restore
from albert_tf.checkpoints.checkpoint import SEVERAL_LABELS
from albert_tf.checkpoints.folders import NULL_THRESHOLD, NULL_THRESHOLD_FILE, folder_of
from albert_tf.checkpoints.vocabulary import settings_in
from albert_tf.errors import InputError
from albert_tf.features.vectors import Vectors
from albert_tf.finetuning.answer import Answer, Answering, Request, answers, chosen
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.modeling.head import Head
from albert_tf.serving import engines, runtimes
from albert_tf.serving.options import Ask, AskOptions
from albert_tf.text import inputs as text_inputs
from albert_tf.tokenization import sequences
from albert_tf.tokenization.tokenizer import FullTokenizer

# Tasks that are the default only if the model has no head for another, in this order.
_LAST = ("fill-mask", "order", "embed")
MASK = "[MASK]"
_SCORES = 2**26  # scores that are held at a time


@dataclasses.dataclass(frozen=True, repr=False)
class Model(checkpoint.Checkpoint):
    """A loaded model that can answer, as returned by `albert_tf.load`.

        albert_tf.load("runs/sst-2").predict("A fine film.")["label"]  # '1'
        model.predict(["What is it?"], ["A passage."])       # questions, passages
        model.predict([{"text": "Paris is [MASK]."}], top_k=3)
    """

    threshold: float = 0.0  # null odds above which a question is left unanswered
    # Computes instead of `model`, for an export for other engines.
    engine: Optional[runtimes.Engine] = None

    def tasks(self) -> dict[str, Optional[Head]]:
        """Returns the tasks that the model can do, its default first → the head that
        does it; None stands for the hidden states."""
        heads: dict[str, Optional[Head]] = {"embed": None}
        for name, width in self.heads.items():
            head = self.model.heads[name] if self.model is not None else (
                checkpoint.head_of(name, width, problem_type=self.problem_type))
            heads.setdefault(head.task, head)
        trained = [task for task in heads if task not in _LAST]
        return {task: heads[task] for task in (*trained, *_LAST) if task in heads
                and (self.engine is None or task == self.engine.task)}

    @overload
    def predict(self, texts: str | Mapping[str, Any], text_pairs: Any = None,
                **options: Unpack[AskOptions]) -> Answer: ...

    @overload
    def predict(self, texts: Iterable[Any], text_pairs: Any = None,
                **options: Unpack[AskOptions]) -> list[Answer]: ...

    def predict(self, texts: Any, text_pairs: Any = None,
                **options: Unpack[AskOptions]) -> Answer | list[Answer]:
        """Returns answers in the order of the texts, or one answer for a single text: a
        list of dicts, or a dict.

        Args:
          texts: a text, or a dict of the task's inputs, or a list of these.
          text_pairs: second texts, if the task has them, such as questions' passages.
          options: task, top_k, batch_size, windows, truncated, label_threshold,
            probability_list, as the flags of predict.py (serving.options.Ask).
        """
        is_one = isinstance(texts, (str, Mapping))
        if not hasattr(texts, "__iter__") or isinstance(texts, bytes):
            raise InputError(f"{texts!r:.40} is neither a text nor a list of texts; "
                             "give one of these.")
        inputs = [texts] if is_one else texts
        if text_pairs is not None:
            sides = [list(inputs), [text_pairs] if isinstance(
                text_pairs, (str, Mapping)) else list(text_pairs)]
            if len({*map(len, sides)}) > 1:
                raise InputError("there are {} texts, but {} text_pairs; each text needs "
                                 "its own.".format(*map(len, sides)))
            inputs = zip(*sides)
        results = list(self.stream(inputs, Ask(**options)))
        return results[0] if is_one else results

    def stream(self, inputs: Iterable[Any], ask: Ask = Ask(), held: int = 1024,
               keep_errors: bool = False,
               cut: Optional[collections.Counter[str]] = None) -> Iterator[Answer]:
        """Yields answers while inputs arrive, of which at most `held` are collected
        first. A pair is a tuple.

        With `keep_errors`, the answer to a wrong input is {"error": a sentence}, and all
        others are answered. Inputs whose texts are cut are counted by task, in `cut` or
        for a warning at the end.
        """
        # A model that cannot do what is asked for is not an error of the inputs.
        self.check(ask)
        numbered, total = enumerate(inputs, 1), 0
        counts = collections.Counter() if cut is None else cut
        while part := list(itertools.islice(numbered, held)):
            self.check(ask, [item for _, item in part])
            requests: dict[int, Request] = {}
            found: dict[int, Answer] = {}
            for total, item in part:
                try:
                    requests[total] = self.request(item, ask)
                except InputError as error:
                    if not keep_errors:
                        raise InputError(f"input {total}: {error}") from error
                    found[total] = {"error": str(error)}
            counts.update(request.by.head.task if request.by.head else "embed"
                          for request in requests.values() if request.cut)
            found |= zip(requests, answers([*requests.values()], ask.batch_size))
            yield from (found[number] for number, _ in part)
        if cut is None:
            self.log_cut(counts, total)

    def log_cut(self, cut: Mapping[str, int], total: int) -> None:
        """Warns of the inputs that are cut, by task."""
        for task, count in cut.items():
            logging.warning("%s", self.head(task).cut_note(count, total))

    def request(self, given: Any, ask: Ask = Ask()) -> Request:
        """Checks and tokenizes an input."""
        head = self.head(ask.task or self._task_of(given))
        request = head.request(
            text_inputs.named(given, head.fields), ask.top_k,
            **({"windows": True} if ask.windows and head.averages else {}))

        def answer(outputs):
            found = request.answer(outputs)
            values = list(found.get("probabilities", {}).values())
            if ask.truncated:
                found["truncated"] = request.cut > 0
            if ask.label_threshold is not None:
                found["labels"] = head.given(values, ask.label_threshold)
            if values and ask.probability_list:
                found["probabilities"] = values
            return found

        return dataclasses.replace(request, answer=answer)

    def check(self, ask: Ask, inputs: Sequence[Any] = ()) -> None:
        """Raises InputError if the model cannot do what is asked for, or if its inputs
        together are not what it takes."""
        task = ask.task or (
            self._task_of("") if ask.windows else next(iter(self.tasks())))
        head = self.head(task)
        if ask.windows and not (head.averages or head.in_windows):
            raise InputError(f"windows: the task {task} cannot average the answers of "
                             "windows; leave it out.")
        if ask.label_threshold is not None and (
                self.problem_type != SEVERAL_LABELS or task != "classify"):
            raise InputError("label_threshold is for models that classify texts with any "
                             "number of labels; leave it out.")
        head.check(inputs)

    def _task_of(self, given: Any) -> str:
        """Returns the default task for an input."""
        tasks = self.tasks()
        first = next(iter(tasks))
        if first not in ("fill-mask", "order"):
            return first
        if "fill-mask" in tasks and MASK in str(given):
            return "fill-mask"
        is_pair = isinstance(given, (tuple, list, Mapping)) and len(given) == 2
        return "order" if is_pair and "order" in tasks else "embed"

    def head(self, task: str) -> Answering:
        """Returns the object that answers a task, which is made once."""
        tasks = self.tasks()
        if task not in tasks:
            raise InputError(f"this model has no head for the task '{task}'; its tasks "
                             f"are {', '.join(tasks)}.")
        if self.tokenizer is None:
            raise InputError(
                "the model's folder holds no vocabulary; copy it there (a SentencePiece "
                "file NAME.model, or vocab.txt), or give --spm_model_file or "
                "--vocab_file.")
        answering = self.__dict__.setdefault("_answering", {})
        if task not in answering:
            head = tasks[task]
            kind = Vectors if head is None else (
                _PRETRAINED.get(head.name) or head.answering())
            answering[task] = kind(self, head)
        return answering[task]


def load(path: files.StrPath, config: formats.Config = None, head: str = "",
         allow_nan: bool = False, vocabulary: Optional[FullTokenizer] = None,
         engine: str = engines.TENSORFLOW) -> Model:
    """Loads the model in a folder, with its heads, tokenizer and labels.

        loaded = albert_tf.load("albert-base-v2")
        batch = loaded.tokenizer(["ALBERT shares its layers."])
        loaded.model(batch)["sequence_output"]
        loaded.predict("ALBERT [MASK] its layers.")

    Args:
      path: a folder or checkpoint of the original implementation, this project, Hugging
        Face, keras-hub, tf-models or sentence-transformers, an export for other
        engines, or a TensorFlow Hub module; the format is recognised. Also a name on a
        hub (hf://OWNER/NAME, kaggle://HANDLE).
      config: for a folder without a config: an AlbertConfig, its values, its file, or a
        published name.
      head: the head of `output_weights`, as for formats.read.
      allow_nan: accept weights that are NaN or infinite.
      vocabulary: the tokenizer, for a folder without one.
      engine: what answers the task of the model's head, as for engines.use: with
        "auto", the fastest installed engine for short requests. Its export is kept
        beside the model; later changes of `model` do not change it.
    """
    given, path = os.fspath(path), formats.located(path)
    if huggingface.find_export(path) is not None:
        model = Model(**runtimes.read(path, vocabulary))
    else:
        loaded = restore.load(path, config, head, allow_nan, vocabulary)
        threshold = settings_in(os.path.join(
            folder_of(path), NULL_THRESHOLD_FILE)).get(NULL_THRESHOLD)
        model = Model(**vars(loaded), threshold=float(threshold) if isinstance(
            threshold, (int, float)) else 0.0)
    if engine != engines.TENSORFLOW:
        engines.use(model, engine, given)
    return model


# ---- pretraining heads; those for tasks are in the tasks' folders ------------


class Order(Answering):
    """Says whether two passages are in their original order."""

    fields = (text_inputs.Field("text"), text_inputs.Field("text_pair"))

    def exchanged(self, features):
        return {"logits": self.head_outputs(features)["sentence_order_logits"]}

    def of_exchanged(self, exchanged, batch):
        return self.head.predictions({"sentence_order_logits": exchanged["logits"]})

    def answer(self, outputs):
        return chosen(outputs["probabilities"], ORDER_LABELS)


class Masks(Answering):
    """Gives the most likely tokens for each [MASK] of a text."""

    def exchanged(self, features):
        """Computes `logits` [B, S, V], of all positions."""
        positions = tf.range(tf.shape(features["input_ids"])[1])[tf.newaxis]
        return {"logits": self.head_outputs({
            **features, self.head.positions: tf.broadcast_to(
                positions, tf.shape(features["input_ids"]))})["mlm_logits"]}

    def of_exchanged(self, exchanged, batch):
        # Graphs of others may score rows that pad the embeddings, too.
        logits = exchanged["logits"][..., :self.tokenizer.vocab_size]
        return self.head.predictions({"mlm_logits": np.take_along_axis(
            logits, batch[self.head.positions][..., np.newaxis], axis=1)})

    def compute(self, batch):
        if not (self._engine and self._engine.exchanges):
            return super().compute(batch)
        # Such a graph scores all positions, which takes much memory for many rows.
        rows, length = batch["input_ids"].shape
        most = max(1, _SCORES // (length * self.config.vocab_size))
        parts = [super(Masks, self).compute({
            name: value[start:start + most] for name, value in batch.items()})
                 for start in range(0, rows, most)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def request(self, given, top_k):
        first, second = (self._ids(given.get(name) or "") for name in self.names)
        if not (masks := (first + second).count(self.tokenizer.mask_id)):
            raise InputError(f"the text has no {MASK} to fill; add one.")
        [(first, second)], cut = sequences.fitted(first, second, self.max_length)
        row = self.tokenizer.assembled(first, second or None)
        positions = [i for i, token in enumerate(row["input_ids"])
                     if token == self.tokenizer.mask_id]
        if len(positions) < masks:
            raise InputError(f"a {MASK} is after the {self.max_length} tokens that the "
                             "model reads; give a shorter text.")
        row["masked_lm_positions"] = positions
        return Request([row], lambda outputs: {"masks": [
            self._likeliest(scores, top_k) for scores in
            outputs[0]["probabilities"][:len(positions)]]}, self, cut)

    def _ids(self, text: str) -> list[int]:
        """Returns the ids of a text with masks. Text that follows a mask without a
        space continues its word."""
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


_PRETRAINED = {"masked_lm": Masks, "sentence_order": Order}
