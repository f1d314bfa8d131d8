r"""Classification and regression of one text or two, for GLUE and custom data.

Labels of unequal frequency may have weights in the training loss. For one label, the loss
of a batch of B examples with the class ids y is

    (1 / B) · Σ_i w[y_i] · CE_i        w[c] = v[c] · N / Σ_k n[k] · v[k]

where n[c] of the N training examples have class c, and v are the weights as they are
given, or 1 / n[c] if they are to be balanced (King and Zeng 2001; `class_weight` in
scikit-learn). Their mean over the training examples is 1, so that the loss and the
learning rate keep their scale. If a text has any number of labels, the weight of a label
multiplies the loss of the texts that have it (`pos_weight` in PyTorch): as it is given,
or (N - n) / n if balanced.
"""

import dataclasses
import itertools
import os
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import labels as label_names
from albert_tf.checkpoints.checkpoint import (
    LABEL_THRESHOLD, ONE_LABEL, REGRESSION, SEVERAL_LABELS, head_of)
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.common import ExampleSet, Outputs, as_table, check_labelled
from albert_tf.finetuning.task import LabelledTask
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

SPLITS = ("train", "dev", "test")
BALANCED = "balanced"


class Example(NamedTuple):
    """One text or pair of texts, unchanged from the file."""

    guid: str  # Its id; in GLUE's test sets, the index that the leaderboard expects.
    text_a: str
    text_b: str | None = None
    # One of the labels, a tuple of them, or a number, as the task has; None if unknown.
    label: str | tuple[str, ...] | float | None = None
    where: str = ""  # "file, line 12"
    # The probability of each label, to learn in place of the label.
    probabilities: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class ClassificationTask(LabelledTask):
    """A task of one label for each text.

        examples = glue.TASKS["sst-2"].read("glue", "dev").examples
    """

    name: str  # As in --task_name.
    labels: tuple[str, ...]  # The label of each class id; () for numbers.
    metric_names: tuple[str, ...]  # As in finetuning.metrics.
    main_metric: str
    reader: Callable[[str, str], ExampleSet]  # Folder or file, split → the examples.
    max_seq_length: int = 512
    positive_label: str | None = None  # The label whose F1 is reported; None: the second.
    submission_file: str = ""  # The name of the file for GLUE's leaderboard,
    submission_range: tuple[float, float] | None = None  # which has such numbers only.
    pairs: bool = False  # Whether an example is two texts.
    # The titles of guid, text_a, text_b and label in predictions, if not these.
    column_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The settings of reading the files, on which the features depend.
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    soft: bool = False  # Whether training examples may have probabilities of the labels,
    temperature: float = 1.0  # whose loss has this temperature.
    label_threshold: float = LABEL_THRESHOLD
    separator: str = ","  # What separates several labels of a text in predictions.
    # Of the labels in the training loss: "", BALANCED, or label → weight.
    class_weights: str | Mapping[str, float] = ""

    texts = ("text_a", "text_b")
    problem_type = ONE_LABEL  # What the outputs are, one of checkpoint.PROBLEMS.
    # The loss of a model that knows only how frequent each label is.
    loss_of_chance = staticmethod(metrics.entropy)

    def __post_init__(self):
        if self.class_weights and (self.soft or not self.labels):
            raise InputError(
                "--class_weights are for labels, but this task predicts numbers, or "
                "learns probabilities (--probability_column); leave the flag out.")
        for label in {*self.class_weights} - {*self.labels} if isinstance(
                self.class_weights, Mapping) else ():
            raise InputError(f"--class_weights: '{label}' is not one of the labels "
                             f"{', '.join(self.labels)}; correct it.")

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the examples of one of SPLITS; `where` is the folder of the data."""
        data = self.reader(where, split)
        if not data.examples:
            raise InputError(f"{', '.join(data.paths)}: there is no example in the "
                             f"{split} set of {self.name}; check path and format.")
        known = [each.label for each in data.examples if each.label is not None]
        if self.labels and known:
            logging.info(
                "%s: %d examples with labels: %s.", split, len(known),
                label_names.counted(self.labels, itertools.chain.from_iterable(
                    label if isinstance(label, tuple) else [label] for label in known)))
        if split == "train" and self.soft:
            logging.info("train: %d of %d examples have probabilities of the labels.",
                         sum(each.probabilities is not None for each in data.examples),
                         len(data.examples))
        return data

    def spec(self, config):
        return classification_spec(
            len(self.labels) or 1, config.vocab_size, config.type_vocab_size,
            self.soft or self.problem_type == SEVERAL_LABELS)

    def sources(self, split, data):
        return {f"{split} data {i}": files.sha256(path)
                for i, path in enumerate(data.paths)}

    def feature_settings(self, split):
        return {**self.reading, "task": self.name, "labels": self.labels,
                "problem_type": self.problem_type, "soft": self.soft}

    def featurize(self, example: Example, *, tokenizer: FullTokenizer,
                  is_training: bool = False) -> list[dict[str, list]]:
        """Computes the model's inputs, not padded, and label_ids, the `targets`
        (convert_single_example in the original implementation). A pair that is too long
        is cut from its longer text."""
        [inputs], _ = tokenizer.fitted(
            example.text_a, example.text_b, self.max_seq_length)
        return [{**inputs, "label_ids": self.targets(example)}]

    def targets(self, example: Example) -> list[int] | list[float]:
        """Returns the class id, 0 if it is unknown, or, if the task is `soft`, the
        probability of each label, 1 for a label that is known."""
        if self.soft:
            given = example.probabilities or {example.label: 1.0}
            return [given.get(label, 0.0) for label in self.labels]
        return [0 if example.label is None else self.labels.index(example.label)]

    # --- model and scores

    def head(self, settings):
        return head_of("classification", len(self.labels) or 1,
                       dropout_prob=settings.dropout_prob, problem_type=self.problem_type)

    def objective(self, head, data):
        weights = self.weights(self.label_ids(data.examples)) if (
            self.class_weights) else ()
        if len(weights):
            logging.info("Weights of the labels in the training loss: %s.", ", ".join(
                f"{label_names.shown(label)} {weight:.4g}"
                for label, weight in zip(self.labels, weights)))
        return head.objective(weights, self.temperature)

    def weights(self, ids: np.ndarray) -> Sequence[float]:
        """Returns the factors of the loss [K] for the training examples' `label_ids`, ()
        for equal ones. Labels that are not named have weight 1."""
        if not self.class_weights:
            return ()
        several, total = ids.ndim == 2, len(ids)
        counts = ids.sum(axis=0, dtype=np.float64) if several else (
            np.bincount(ids, minlength=len(self.labels)).astype(np.float64))
        if isinstance(self.class_weights, Mapping):
            relative = np.array([
                self.class_weights.get(label, 1.0) for label in self.labels])
        else:
            # A label without examples has no effect.
            least = np.maximum(counts, 1)
            relative = np.maximum(total - counts, 1) / least if several else 1 / least
        if not several:
            relative = relative * total / (counts @ relative)
        return relative.astype(np.float32)

    def chance_loss(self, data, table):
        if self.soft:
            return None
        ids = self.label_ids(data.examples)
        return self.loss_of_chance(ids, self.weights(ids))

    def score(self, data, outputs, table):
        predictions, labels = self.decisions(outputs), self.label_ids(data.examples)
        positive = self.labels.index(self.positive_label) if self.positive_label else 1
        return {name: metrics.compute(name, predictions, labels, positive)
                for name in self.metric_names}

    def report(self, data, outputs, scores):
        """Returns the metrics, and `details`, as text."""
        predictions, labels = self.decisions(outputs), self.label_ids(data.examples)
        width = max(map(len, scores))
        return "\n".join([
            f"{self.name}: {len(labels)} examples", "", *(
                f"{name:{width}}  {value:.4f}" + (
                    "  (95 %: {:.4f} to {:.4f})".format(
                        *metrics.interval(value, len(labels)))
                    if name in metrics.SHARES else "")
                for name, value in scores.items()),
            *(self.details(outputs, predictions, labels) if self.labels else [])]) + "\n"

    def details(self, outputs: Outputs, predictions: np.ndarray, labels: np.ndarray
                ) -> list[str]:
        """Returns lines on each class, and on what is confused."""
        return ["", metrics.by_class(labels, predictions, self.labels)]

    def kept_options(self):
        return {**({"class_weights": self.class_weights} if self.class_weights else {}),
                **({"probability_column": self.reading["probability_column"],
                    "temperature": self.temperature} if self.soft else {})}

    # --- files of predictions

    def write(self, split, data, outputs, table, step, settings):
        super().write(split, data, outputs, table, step, settings)
        if split == "dev" and self.problem_type == ONE_LABEL:
            metrics.draw_confusions(
                os.path.join(settings.run.output_dir, "eval_report.png"), self.name,
                self.label_ids(data.examples), self.decisions(outputs), self.labels)

    def contents(self, examples, rows, names):
        """Returns the files for programs:

          test_results.tsv    the probability of each label, or the value, of each
                              example (as in the original implementation)
          submit_results.tsv  index, prediction (as in the original); GLUE's tasks only
          CoLA.tsv and so on  for GLUE's leaderboard, under the names that it expects
        """
        # str of a float32 is the shortest text that is read back as the same number.
        contents = {"test_results.tsv": as_table(
            [map(str, row) for row in rows.astype(np.float32)])}
        if self.submission_file:
            guids = ["index", *(example.guid for example in examples)]
            contents["submit_results.tsv"] = as_table(zip(guids, ["prediction", *names]))
            if self.submission_range:
                names = [f"{value:.3f}" for value in np.clip(
                    rows[:, 0], *self.submission_range)]
            contents[self.submission_file] = as_table(zip(guids, ["prediction", *names]))
        return contents

    def described(self, examples, full):
        pairs = any(example.text_b is not None for example in examples)
        return [(self.column_names.get(name, name),
                 [getattr(example, name) or "" for example in examples])
                for name in ("guid", "text_a", *["text_b"] * pairs)]


@dataclasses.dataclass(frozen=True)
class SeveralLabels(ClassificationTask):
    """A task of any number of labels for each text: those whose probability is at least
    `label_threshold`. Ids and decisions are 1 or 0 for each label, int64 [N, K]."""

    problem_type = SEVERAL_LABELS
    loss_of_chance = staticmethod(metrics.entropy_by_label)

    def targets(self, example):
        given = example.probabilities or dict.fromkeys(example.label or (), 1.0)
        return [given.get(label, 0.0) for label in self.labels]

    def label_ids(self, examples):
        check_labelled(examples)
        return np.array([[label in example.label for label in self.labels]
                         for example in examples], np.int64)

    def decisions(self, outputs):
        return (self.rows(outputs) >= self.label_threshold).astype(np.int64)

    def failure(self, data, outputs, table):
        given, labels = self.decisions(outputs), self.label_ids(data.examples)
        return "" if labels.any(axis=0).sum() < 2 or (given != given[0]).any() else (
            f"all {len(given)} predictions are "
            f"'{self.named(given[0]) or 'none of the labels'}'")

    def details(self, outputs, predictions, labels):
        best = metrics.best_threshold(self.rows(outputs), labels)
        return ["", f"Labels are given from a probability of {self.label_threshold:g} on. "
                f"Of all thresholds, {best[0]:.4g} has the highest micro_f1 on this set, "
                f"{best[1]:.4f} (--label_threshold).",
                *super().details(outputs, predictions, labels)]

    def named(self, decision):
        return self.shown(itertools.compress(self.labels, decision))

    def shown(self, label):
        return self.separator.join(label)


@dataclasses.dataclass(frozen=True)
class Numbers(ClassificationTask):
    """A task of a number for each text, float32 [N]."""

    problem_type, output = REGRESSION, "logits"

    def read(self, where, split):
        data = super().read(where, split)
        if split == "dev" and len({each.label for each in data.examples}) == 1:
            raise InputError(
                f"{', '.join(data.paths)}: the label of all {len(data.examples)} examples "
                f"is {data.examples[0].label}, so that {self.main_metric} cannot be "
                "computed; give others.")
        return data

    def targets(self, example):
        return [float(example.label or 0)]

    def label_ids(self, examples):
        check_labelled(examples)
        return np.array([example.label for example in examples], np.float32)

    def decisions(self, outputs):
        return self.rows(outputs)[:, 0]

    def failure(self, data, outputs, table):
        given, labels = self.decisions(outputs), self.label_ids(data.examples)
        # Such a model is no better than one that always predicts the mean.
        return f"all {len(given)} predictions are about {np.mean(given):.3g}" if (
            np.std(given) < 0.01 * np.std(labels)) else ""

    @staticmethod
    def loss_of_chance(labels, weights):
        return float(np.var(labels))

    def named(self, decision):
        return str(np.float32(decision))


def classification_spec(
        num_labels: int, vocab_size: int, type_vocab_size: int = 2,
        by_label: bool = False) -> FeatureSpec:
    """Returns the specification of one sequence [None] and one label [1], 0 if unknown
    (as in the original implementation). A task with one label is a regression, whose
    label is a float. With `by_label`, there is a float for each label."""
    label = (Feature("label_ids", "float32", (num_labels,)) if by_label else
             Feature("label_ids", "float32", (1,)) if num_labels == 1 else
             Feature("label_ids", "int64", (1,), limit=num_labels,
                     limited_by="num_labels"))
    return FeatureSpec((*model_inputs((None,), vocab_size, type_vocab_size), label))
