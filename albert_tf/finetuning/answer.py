"""The steps from an input to an answer, a dict of JSON values, that all heads share.

    input ─► Request: sequences, as in training ─► batches, padded ─► Head.predictions
          ◄─ Request.answer ◄──────────────────────────────────────────────┘

TensorFlow is imported only when it is needed.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.modeling.head import INPUTS, Head
from albert_tf.text.inputs import TEXTS, Field
from albert_tf.tokenization.tokenizer import FullTokenizer

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Request:
    """One input, ready for the model."""

    sequences: Sequence[Mapping[str, Any]]  # The model's inputs, without padding.
    # The model's outputs for the sequences → the answer.
    answer: Callable[[Sequence[Mapping[str, np.ndarray]]], Answer]
    by: "Answering"
    cut: int = 0  # How many tokens of the texts the model does not read.

    @property
    def length(self) -> int:
        return max(len(row["input_ids"]) for row in self.sequences)


class Answering:
    """Answers with one head of a model: inputs → requests → outputs → answers."""

    fields: Sequence[Field] = TEXTS  # Of an input, optional texts last.
    in_windows = False  # Whether longer texts are always read in windows, not cut.
    averages = False  # Whether they can be, with the `mean` of the windows' outputs.

    def __init__(self, model: Any, head: Optional[Head]):
        """`model` is a loaded Checkpoint; without a head, the answers are made from its
        hidden states."""
        from albert_tf.modeling.encoder import Computation

        self.head = head and head.serving()
        self.model, self.config = model.model, model.config
        self.bert = getattr(model.model, "bert", model.model)
        self.tokenizer: FullTokenizer = model.tokenizer
        self.labels, self._settings = model.labels, model.settings
        self.use(getattr(model, "engine", None))
        self.computation = Computation(skip_padding=True)
        self.inputs = head.inputs if head else INPUTS
        self._pads = {"input_ids": self.tokenizer.pad_id} | {
            each.name: each.pad for each in (head.reads_also if head else ())}
        self.max_length = min(self.setting("max_seq_length", 512),
                              model.config.max_position_embeddings)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def limit(self) -> str:
        """The length above which texts are cut, in words."""
        return f"the {self.max_length} tokens that the model reads"

    def cut_note(self, cut: int, total: int) -> str:
        """Returns a sentence on the number of inputs that are cut."""
        return (f"{cut:,} of {total:,} texts are longer than {self.limit}, and are cut"
                + self.averages * "; --windows (windows=True) reads all of a text" + ".")

    def setting(self, name: str, default: Any) -> Any:
        """Returns the value of a flag that the model was trained with."""
        return self._settings.get("flags", {}).get(name, default)

    def check(self, inputs: Sequence[Any]) -> None:
        """Raises InputError if inputs that come together are not what it takes."""

    def request(self, given: Mapping[str, Any], top_k: int, windows: bool = False
                ) -> Request:
        """Tokenizes an input, a text for each name; with `windows`, which is for those
        that average, in as many sequences as it needs."""
        rows, cut = self.tokenizer.fitted(
            given["text"], given.get("text_pair"), self.max_length, windows)
        return Request(rows, lambda outputs: self.answer(
            self.mean(outputs) if len(outputs) > 1 else outputs[0]), self, cut)

    def mean(self, outputs: Sequence[Mapping[str, np.ndarray]]
             ) -> Mapping[str, np.ndarray]:
        return {name: np.mean([row[name] for row in outputs], axis=0)
                for name in outputs[0]}

    def answer(self, outputs: Mapping[str, np.ndarray]) -> Answer:
        """Makes the answer from the outputs for a sequence."""
        raise NotImplementedError

    def head_outputs(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.model.call(
            features, computation=self.computation, head=self.head)

    def outputs(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """Computes the model's outputs for a batch, as tensors."""
        return self.head.predictions(self.head_outputs(features))

    def exchanged(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """Computes what transformers' class for this head returns, by its names there,
        from INPUTS and what cannot be derived of them. Their rank is the head's."""
        return {"logits": self.head_outputs(features)["logits"]}

    def of_exchanged(self, exchanged: Mapping[str, Any], batch: Mapping[str, Any]
                     ) -> Mapping[str, Any]:
        """Returns what `outputs` returns, from what `exchanged` returns for a batch."""
        return self.head.predictions(exchanged)

    @functools.cached_property
    def function(self):
        """Compiles `outputs` to a graph for any batch and length."""
        import tensorflow as tf

        # With unknown sizes, no length needs a trace of its own.
        return tf.function(self.outputs, autograph=False, reduce_retracing=True,
                           input_signature=[{
                               name: tf.TensorSpec([None, None], tf.int32, name)
                               for name in self.inputs}])

    def use(self, engine: Any, suits: Optional[Callable[..., bool]] = None) -> None:
        """Computes batches with a serving.runtimes.Engine instead of TensorFlow: those
        for which `suits` is true, or all."""
        self._engine, self._suits = engine, suits

    def compute(self, batch: Mapping[str, np.ndarray], here: bool = False
                ) -> dict[str, np.ndarray]:
        """Computes the outputs for a padded batch; `here`: by TensorFlow."""
        if self._engine and not here and (self._suits is None or self._suits(batch)):
            outputs = self._engine(batch)
            if self._engine.exchanges:
                outputs = {name: np.asarray(value) for name, value in
                           self.of_exchanged(outputs, batch).items()}
        else:
            import tensorflow as tf

            outputs = {name: value.numpy() for name, value in self.function({
                name: tf.constant(value) for name, value in batch.items()}).items()}
        if not all(np.isfinite(value).all() for value in outputs.values()):
            raise InputError("the model's outputs are not finite: its weights are "
                             "damaged, or its training diverged. Use a different "
                             "checkpoint.")
        return outputs

    def warm_up(self) -> None:
        """Traces the graph now instead of during the first request."""
        self.compute(batch := self.shortest())
        if self._suits is not None:  # TensorFlow computes the other batches.
            self.compute(batch, here=True)

    def shortest(self) -> dict[str, np.ndarray]:
        """Makes a batch of one sequence of one token."""
        sizes = {each.name: each.size or 1 for each in (
            self.head.reads_also if self.head else ())}
        return self.padded([{name: [0] * sizes.get(name, 1) for name in self.inputs}])

    def padded(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Makes a batch of sequences, each padded to the longest."""
        batch = {}
        for name in self.inputs:
            longest = max(len(row[name]) for row in rows)
            values = np.full([len(rows), longest], self._pads.get(name, 0), np.int32)
            for padded, row in zip(values, rows):
                padded[:len(row[name])] = row[name]
            batch[name] = values
        return batch


def answers(requests: Sequence[Request], batch_size: int = 32) -> list[Answer]:
    """Answers requests. Sequences of similar length share a batch, which is padded to
    the longest of them."""
    rows_by: dict[Answering, list] = {}
    for number, request in enumerate(requests):
        rows_by.setdefault(request.by, []).extend(
            (number, i, row) for i, row in enumerate(request.sequences))
    outputs: list[list] = [[None] * len(request.sequences) for request in requests]
    for answering, rows in rows_by.items():
        rows.sort(key=lambda row: len(row[-1]["input_ids"]))
        for start in range(0, len(rows), batch_size):
            part = rows[start:start + batch_size]
            computed = answering.compute(answering.padded([row for _, _, row in part]))
            for place, (number, i, _) in enumerate(part):
                outputs[number][i] = {
                    name: values[place] for name, values in computed.items()}
    return [request.answer(given) for request, given in zip(requests, outputs)]


def chosen(probabilities: np.ndarray, labels: Sequence[str]) -> Answer:
    """Chooses the most probable label; classes without names are named by number."""
    best = int(np.argmax(probabilities))
    return {"label": labels[best] if labels else str(best),
            "probability": float(probabilities[best]),
            "probabilities": by_label(probabilities, labels)}


def by_label(probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Returns label → probability [K], in the order of the outputs. Classes without
    names are named by number. If two labels of a foreign model are the same, each label
    has its number before it."""
    names = list(labels) or [str(i) for i in range(len(probabilities))]
    if len({*names}) < len(names):
        names = [f"{i}: {label}" for i, label in enumerate(names)]
    return dict(zip(names, map(float, probabilities)))
