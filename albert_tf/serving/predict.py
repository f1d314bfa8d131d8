"""Texts in, answers out, with any model that `albert_tf.load` takes.

    texts ─► sequences, as in training ─► batches by length ─► model ─► answers, in order

An answer is a dict of JSON values; a task's keys are the same here, in the lines of
predict.py, in the replies of serve.py and in the outputs of exported models.
"""

import dataclasses
import itertools
import os
from typing import Any, Iterable, Iterator, Mapping, Optional

from albert_tf import files, text_files
from albert_tf.checkpoints import checkpoint, formats, load as loading
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.features.vectors import Vectors
from albert_tf.finetuning.answer import Answer, Answering, Request, answers
from albert_tf.finetuning.classification.head import EXIT_INPUT, ExitClasses
from albert_tf.modeling.heads import Head
from albert_tf.serving import portable
from albert_tf.serving.pretrained import MASK, Masks, Order
from albert_tf.serving.saved_model import check_threshold
from albert_tf.text import inputs as text_inputs

_STREAMED = 1024  # texts that are held at a time
# What a model does if no head of a task is asked for, in this order.
_LAST = ("fill-mask", "order", "embed")
# Heads of pretraining answer here, those of tasks in their folders.
_PRETRAINED = {"masked_lm": Masks, "sentence_order": Order}


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

    def tasks(self) -> dict[str, Optional[Head]]:
        """Maps each task that the model can do, its default first, to the head that
        does it; None stands for its hidden states."""
        heads: dict[str, Optional[Head]] = {"embed": None}
        for name, width in self.heads.items():
            head = (self.model.heads[name] if self.model is not None
                    else checkpoint.head_of(name, width))
            heads.setdefault(head.task, head)
        own = [task for task in heads if task and task not in _LAST]
        return {task: heads[task] for task in (*own, *_LAST) if task in heads
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

    def head(self, task: str, exits: bool = False) -> Answering:
        """Returns the object that answers a task; makes it once."""
        tasks = self.tasks()
        if task not in tasks:
            raise InputError(
                f"this model cannot {task}: it has no head for it; it can "
                f"{', '.join(tasks)}." if task in checkpoint.tasks() else
                f"the task '{task}' is not known; this model can {', '.join(tasks)}.")
        if self.tokenizer is None:
            raise InputError(
                "the model's folder holds no vocabulary: copy it there (a file "
                "NAME.model of SentencePiece, or vocab.txt), or give predict.py, "
                "serve.py or export_model.py --spm_model_file or --vocab_file.")
        answering = self.__dict__.setdefault("_answering", {})
        if (task, exits) not in answering:
            head = tasks[task]
            kind = ExitClasses if exits else Vectors if head is None else (
                _PRETRAINED.get(head.name) or head.answering())
            answering[task, exits] = kind(self, head)
        return answering[task, exits]


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
