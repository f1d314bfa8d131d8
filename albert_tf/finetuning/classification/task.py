"""Classification and regression of one text or two, for GLUE and custom data."""

import dataclasses
import functools
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
from albert_tf.finetuning.classification import (
    report as reporting, weights as weighting)
from albert_tf.finetuning.common import (
    ExampleSet, Outputs, as_table, check_labelled)
from albert_tf.finetuning.labelled import LabelledTask
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

SPLITS = ("train", "dev", "test")
# What a note says of lines whose label was cleaned.
UNCLEAN = "have invisible characters in the label, which are removed"


class Example(NamedTuple):
    """One text or pair of texts, unchanged from the file.

    Attributes:
      guid: the example's id; in GLUE's test sets, the index that the leaderboard
        expects.
      text_a, text_b: the text, and the second text of a pair.
      label: one of the task's labels, a tuple of them if a text has any number, a
        number for regression, None if unknown.
      where: "file, line 12".
      probabilities: the probability of each label, to learn in place of the label; None
        if there are none.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | float | None = None
    where: str = ""
    probabilities: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class ClassificationTask(LabelledTask):
    """A task with its files, features, metrics and files of predictions.

        task = glue.TASKS["sst-2"]
        examples = task.read("glue", "dev").examples
        [features] = task.featurize(
            examples[0], tokenizer=tokenizer, max_seq_length=128)

    Attributes:
      name: the task's name, as in --task_name.
      labels: the label of each class id; () for regression.
      multi_label: whether a text has any number of the labels.
      label_threshold: the probability from which on a label is then given.
      separator: what separates the labels of a text in predictions.
      metric_names: the metrics of `score`, named as in finetuning.metrics.
      main_metric: the metric that chooses the best checkpoint; higher is better.
      readers: split (one of SPLITS) → a function that takes the data folder and returns
        the split's ExampleSet.
      positive_label: the label whose F1 is reported.
      submission_file: the name of the file for GLUE's leaderboard; "" for none.
      submission_range: the smallest and largest number that the leaderboard accepts.
      trained_as: the task whose models predict this one, if it has no training set;
        "" if it has one.
      of_glue: whether submit_results.tsv is written.
      column_names: the titles that guid, text_a, text_b and label have in files of
        predictions, if not these.
      pairs: whether an example is two texts.
      reading: the settings of reading the files, on which the features depend.
      soft: whether training examples may have probabilities of the labels.
      temperature: the temperature of the loss of probabilities.
      class_weights: the weights of the labels in the training loss (see weights): "" for
        equal ones, "balanced", or label → weight.
    """

    name: str
    labels: tuple[str, ...]
    metric_names: tuple[str, ...]
    main_metric: str
    readers: Mapping[str, Callable[[str], ExampleSet]]
    positive_label: str | None = None
    submission_file: str = ""
    submission_range: tuple[float, float] | None = None
    trained_as: str = ""
    pairs: bool = False
    of_glue: bool = True
    column_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    soft: bool = False
    temperature: float = 1.0
    multi_label: bool = False
    label_threshold: float = LABEL_THRESHOLD
    separator: str = ","
    class_weights: str | Mapping[str, float] = ""

    def __post_init__(self):
        weighting.check(self.class_weights, self.labels)
        if self.class_weights and self.soft:
            raise InputError(
                "--class_weights are for labels, but training examples may have "
                "probabilities (--probability_column); leave one of the two out.")

    texts = ("text_a", "text_b")

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def problem_type(self) -> str:
        """The meaning of the outputs of the head, one of checkpoint.PROBLEMS."""
        return REGRESSION if self.is_regression else (
            SEVERAL_LABELS if self.multi_label else ONE_LABEL)

    @property
    def num_outputs(self) -> int:
        """The number of units of the head: one per label, or 1 for regression."""
        return len(self.labels) or 1

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the examples of one of SPLITS; `where` is the folder of the data."""
        found = self._read(where, split)
        known = [example.label for example in found.examples
                 if example.label is not None]
        if self.labels and known:
            logging.info(
                "%s: %d examples with labels: %s.", split, len(known),
                label_names.counted(self.labels, itertools.chain.from_iterable(
                    known) if self.multi_label else known))
        if split == "train" and self.soft:
            logging.info("train: %d of %d examples have probabilities of the labels.",
                         sum(example.probabilities is not None
                             for example in found.examples), len(found.examples))
        return found

    def _read(self, data_dir: str, split: str) -> ExampleSet:
        if split not in self.readers:
            advice = (f"; train with --task_name={self.trained_as}"
                      if self.trained_as and split == "train" else "")
            raise InputError(
                f"--task_name={self.name} has no {split} set, only "
                f"{' and '.join(self.readers) or 'none'}{advice}.")
        examples = self.readers[split](data_dir)
        if not examples.examples:
            raise InputError(f"{', '.join(examples.paths)}: there is no example in the "
                             f"{split} set of {self.name}; check the file.")
        labels = {example.label for example in examples.examples}
        undefined = [name for name in self.metric_names if name in metrics.CORRELATIONS]
        if split == "dev" and undefined and len(labels) == 1 and None not in labels:
            what = (f"{', '.join(examples.paths)}: the label of all "
                    f"{len(examples.examples)} examples is {labels.pop()}, so that "
                    f"{' and '.join(undefined)} cannot be computed")
            if self.is_regression:
                raise InputError(f"{what}; give a set with different labels, or leave "
                                 "--do_eval out.")
            return examples._replace(
                notes=(*examples.notes, f"{what} and will be 0."))
        return examples

    def spec(self, config):
        return classification_spec(
            self.num_outputs, config.vocab_size, config.type_vocab_size,
            self.multi_label or self.soft)

    def featurizer(self, split, settings):
        return functools.partial(
            self.featurize, tokenizer=settings.tokenizer,
            max_seq_length=settings.max_seq_length)

    def sources(self, split, data):
        return {f"{split} data {i}": files.sha256(path)
                for i, path in enumerate(data.paths)}

    def feature_settings(self, split):
        return {**self.reading, "task": self.name, "labels": self.labels,
                **({"multi_label": True} if self.multi_label else {}),
                **({"soft": True} if self.soft else {})}

    def featurize(self, example: Example, *, tokenizer: FullTokenizer,
                  max_seq_length: int) -> list[dict[str, list]]:
        """Computes the model's input (convert_single_example in the original
        implementation). A pair that is too long is cut from its longer text.

        Returns:
          A list of one dict (other tasks have several): input_ids, input_mask and
          segment_ids, not padded, and label_ids, the class id or number, or 1 or 0 for
          each label if a text has any number; 0 if unknown. If training examples may
          have probabilities, label_ids are those of the labels, 1 for the label.
        """
        features = tokenizer.features(example.text_a, example.text_b, max_seq_length)
        if example.probabilities is not None:
            ids = [example.probabilities[label] for label in self.labels]
        elif self.multi_label or self.soft:
            given = example.label or () if self.multi_label else (example.label,)
            ids = [float(label in given) for label in self.labels]
        elif self.is_regression:
            ids = [float(example.label or 0)]
        else:
            ids = [0 if example.label is None else self.labels.index(example.label)]
        return [{**features, "label_ids": ids}]

    def length_of(self, example: Example, tokenizer: FullTokenizer) -> int:
        """Returns the number of tokens of an example that is not cut."""
        return len(tokenizer.features(
            example.text_a, example.text_b, 2 ** 31)["input_ids"])

    # --- model

    def head(self, settings):
        return head_of("classification", self.num_outputs,
                       dropout_prob=settings.dropout_prob,
                       problem_type=SEVERAL_LABELS if self.multi_label else "")

    def objective(self, head, data):
        weights = self._weights(data)
        if len(weights):
            logging.info("Weights of the labels in the training loss: %s.", ", ".join(
                f"{label_names.shown(label)} {weight:.4g}"
                for label, weight in zip(self.labels, weights)))
        return head.objective(weights, self.temperature)

    def _weights(self, data: ExampleSet) -> Sequence[float]:
        """Returns the weights of the labels in the loss; () for equal ones."""
        return weighting.weights(
            self.class_weights, self.labels, self.label_ids(data.examples)
            ) if self.class_weights else ()

    def label_ids(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the labels: class ids, int64 [N]; 1 or 0 for each label, int64
        [N, K], if a text has any number; or numbers, float32 [N]. Raises InputError if
        an example has no label."""
        if self.labels and not self.multi_label:
            return super().label_ids(examples)
        check_labelled(examples)
        if self.is_regression:
            return np.array([example.label for example in examples], np.float32)
        return np.array([[label in example.label for label in self.labels]
                         for example in examples], np.int64)

    def decisions(self, outputs: Outputs) -> np.ndarray:
        """Returns the class ids [N] of the highest outputs; 1 or 0 for each label,
        [N, K], if a text has any number; or the values [N] of a regression."""
        rows = self.rows(outputs)
        if self.multi_label:
            return (rows >= self.label_threshold).astype(np.int64)
        return rows[:, 0] if self.is_regression else rows.argmax(axis=-1)

    def rows(self, outputs):
        """Returns the probabilities [N, labels], or the values [N, 1] of a regression.
        """
        if not self.is_regression:
            return super().rows(outputs)
        return super().rows({"probabilities": outputs["logits"]}).reshape(-1, 1)

    def failure(self, data, outputs, table):
        if not (self.multi_label or self.is_regression):
            return super().failure(data, outputs, table)
        given, labels = self.decisions(outputs), self.label_ids(data.examples)
        if self.multi_label:
            return "" if labels.any(axis=0).sum() < 2 or (given != given[0]).any() else (
                f"all {len(given)} predictions are "
                f"'{self.named(given[0]) or 'none of the labels'}'")
        # Such a model is no better than one that always predicts the mean.
        if np.std(given) < 0.01 * np.std(labels):
            return f"all {len(given)} predictions are about {np.mean(given):.3g}"
        return ""

    def chance_loss(self, data, table):
        """Returns the loss of a model that knows only how frequent each label is; None
        if training examples may have probabilities."""
        if self.soft:
            return None
        labels, weights = self.label_ids(data.examples), self._weights(data)
        if self.multi_label:
            return metrics.entropy_by_label(labels, weights)
        return (float(np.var(labels)) if self.is_regression
                else metrics.entropy(labels, weights))

    def metrics_of(self, predictions, labels):
        positive = (1 if self.positive_label is None
                    else self.labels.index(self.positive_label))
        return {name: metrics.compute(name, predictions, labels, positive)
                for name in self.metric_names}

    def report(self, examples, outputs):
        """Returns the metrics and, for classes, the precision, recall and F1 of each,
        and what is confused, as text; if a text has any number of them, also the
        threshold that would have given the highest micro F1."""
        predictions, labels = self.decisions(outputs), self.label_ids(examples)
        scores = self.metrics_of(predictions, labels)
        width = max(map(len, scores))
        lines = [f"{self.name}: {len(labels)} examples", "",
                 *(f"{name:{width}}  {value:.4f}" + (
                     "  (95 %: {:.4f} to {:.4f})".format(
                         *metrics.interval(value, len(labels)))
                     if name in metrics.SHARES else "")
                   for name, value in scores.items())]
        if self.multi_label:
            best = metrics.best_threshold(self.rows(outputs), labels)
            lines += ["", f"Labels are given from a probability of "
                      f"{self.label_threshold:g} on. Of all thresholds, {best[0]:.4g} "
                      f"has the highest micro_f1 on this set, {best[1]:.4f} "
                      "(--label_threshold)."]
        if not self.is_regression:
            lines += ["", reporting.by_class(labels, predictions, self.labels)]
        return "\n".join(lines) + "\n"

    # --- files of predictions

    def write(self, split, data, outputs, table, step, settings):
        super().write(split, data, outputs, table, step, settings)
        if split == "dev" and self.problem_type == ONE_LABEL:
            reporting.draw(
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
        header, guids = ("index", "prediction"), [example.guid for example in examples]
        if self.of_glue:
            contents["submit_results.tsv"] = as_table(
                [header, *zip(guids, names)])
        if self.submission_file:
            if self.submission_range:
                names = [f"{value:.3f}" for value in np.clip(
                    rows[:, 0], *self.submission_range)]
            contents[self.submission_file] = as_table(
                [header, *zip(guids, names)])
        return contents

    def described(self, examples, full):
        columns = [(self.column_names.get(name, name),
                    [getattr(example, name) or "" for example in examples])
                   for name in ("guid", "text_a", "text_b")]
        pairs = any(example.text_b is not None for example in examples)
        return columns if pairs else columns[:2]

    def named(self, decision):
        """Returns the label of a class id, or those that are 1 of [K], separated, or a
        number."""
        if self.is_regression:
            return str(np.float32(decision))
        if not self.multi_label:
            return self.labels[decision]
        return self.shown([
            label for label, given in zip(self.labels, decision) if given])

    def shown(self, label):
        return self.separator.join(label) if self.multi_label else str(label)


def classification_spec(
        num_labels: int, vocab_size: int, type_vocab_size: int = 2,
        by_label: bool = False) -> FeatureSpec:
    """Returns the specification of one sequence [None] and one label [1], 0 if unknown
    (as in the original implementation).

    A task with one label is a regression, whose label is a float. With `by_label`,
    there is a float for each label.
    """
    label = (Feature("label_ids", "float32", (num_labels,)) if by_label else
             Feature("label_ids", "float32", (1,)) if num_labels == 1 else
             Feature("label_ids", "int64", (1,), limit=num_labels,
                     limited_by="num_labels"))
    return FeatureSpec((*model_inputs((None,), vocab_size, type_vocab_size), label))
