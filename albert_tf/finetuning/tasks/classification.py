"""Classification and regression of one text or two: what GLUE and own data share.

A task owns reading (`ClassificationTask.read`), featurizing (`featurize`), scoring
(`score`) and the files of predictions (`write_predictions`).
"""

import dataclasses
import math
import os
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.records import sequences
from albert_tf.tokenization.tokenizer import FullTokenizer

SPLITS = ("train", "dev", "test")


class Example(NamedTuple):
    """One text or pair of texts.

    Attributes:
      guid: the example's name; in GLUE's test sets the index the board expects.
      text_a: the text, as it stands in the file.
      text_b: the second text of a pair.
      label: one of the task's labels, a number for regression, None if unknown.
      where: "file, line 12".
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | float | None = None
    where: str = ""


class ExampleSet(NamedTuple):
    """The examples of a split.

    Attributes:
      examples: in the order of the file.
      paths: the files they came from.
      notes: a sentence for each kind of line that was left out, with its count.
    """

    examples: list[Example]
    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ClassificationTask:
    """What is particular to a task.

    Attributes:
      name: as --task_name has it.
      labels: the label of each class id; () for regression.
      metric_names: keys of what `score` returns.
      main_metric: the one by which the best checkpoint is chosen; higher is
        better.
      readers: split (of SPLITS) -> function that takes the data folder and
        returns the split's ExampleSet.
      positive_label: the label whose F1 is reported.
      submission_file: name of the file for GLUE's board; "" for none.
      submission_range: smallest and largest number that the board takes.
      trained_as: the task whose models predict this one, which has no training
        set of its own; "" if it has.
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

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_outputs(self) -> int:
        """Number of units of the head: of labels, or 1 for regression."""
        return len(self.labels) or 1

    def read(self, data_dir: str, split: str) -> ExampleSet:
        """The examples of a split.

        Args:
          data_dir: the folder of the data.
          split: one of SPLITS.

        Raises:
          InputError: if the task has no such split, or its file is missing,
            empty or wrong; names file and line.
        """
        if split not in self.readers:
            advice = (f"; train with --task_name={self.trained_as}"
                      if self.trained_as and split == "train" else "")
            raise InputError(
                f"--task_name={self.name} has no {split} set, only "
                f"{' and '.join(self.readers) or 'none'}{advice}.")
        found = self.readers[split](data_dir)
        if not found.examples:
            raise InputError(
                f"{', '.join(found.paths)}: there is no example in the {split} set "
                f"of {self.name}.")
        return found


# --- labels

def parse_label(text: str, labels: Sequence[str], where: str) -> str | float:
    """A label as a file has it.

    Args:
      text: the label.
      labels: those there are; none for regression.
      where: "file, line 12".

    Raises:
      InputError: if it is not among `labels`, or not a number for regression.
    """
    text = text.strip()
    if labels:
        if text not in labels:
            raise InputError(
                f"{where}: the label '{text}' is not one of "
                f"{', '.join(map(repr, labels))}.")
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: the label '{text}' is not a number.")
    return value


def labels_of(task: ClassificationTask, examples: Iterable[Example]) -> np.ndarray:
    """Labels [N]: class ids, int64, or numbers, float32.

    Raises:
      InputError: if an example has none.
    """
    ids = {label: i for i, label in enumerate(task.labels)}
    values = []
    for example in examples:
        if example.label is None:
            raise InputError(
                f"{example.where}: there is no label, so this set can be predicted "
                "but not scored.")
        values.append(ids[example.label] if ids else example.label)
    return np.array(values, np.int64 if ids else np.float32)


# --- features

def featurize(example: Example, *, tokenizer: FullTokenizer, labels: Sequence[str],
              max_seq_length: int) -> list[dict[str, list]]:
    """The example as the model's input (the release's convert_single_example).

    Args:
      example: the example.
      tokenizer: the tokenizer.
      labels: the task's labels; none for regression.
      max_seq_length: longest sequence. A pair is cut from its longer text.

    Returns:
      One dict, a list because other tasks make several of an example: input_ids,
      input_mask, segment_ids, not padded, and label_ids, the class id or the
      number; 0 where the label is unknown.

    Raises:
      InputError: if max_seq_length leaves no room.
    """
    return featurize_batch([example], tokenizer=tokenizer, labels=labels,
                           max_seq_length=max_seq_length)[0]


def featurize_batch(examples: Sequence[Example], *, tokenizer: FullTokenizer,
                    labels: Sequence[str], max_seq_length: int
                    ) -> list[list[dict[str, list]]]:
    """[featurize(example, ...) for example in examples], faster."""
    if max_seq_length <= sequences.NUM_SPECIAL_PAIR:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for text: [CLS] and "
            f"two [SEP] take {sequences.NUM_SPECIAL_PAIR}.")
    ids = {label: i for i, label in enumerate(labels)}
    first = tokenizer.encode_batch([tokenizer.prepare(e.text_a) for e in examples])
    second = iter(tokenizer.encode_batch(
        [tokenizer.prepare(e.text_b) for e in examples if e.text_b]))
    features = []
    for example, text_a in zip(examples, first):
        text_b = next(second) if example.text_b else None
        # A second text of no pieces is no second text, even after the cut.
        if text_b:
            text_a, text_b = sequences.truncate_longer_first(
                text_a, text_b, max_seq_length - sequences.NUM_SPECIAL_PAIR)
        else:
            text_a = text_a[:max_seq_length - sequences.NUM_SPECIAL_SINGLE]
        sequence = sequences.assemble(
            text_a, text_b or None, tokenizer.cls_id, tokenizer.sep_id)
        label = 0 if example.label is None else example.label
        if labels and example.label is not None:
            label = ids[label]
        features.append([{
            "input_ids": sequence.tokens,
            "input_mask": [1] * len(sequence.tokens),
            "segment_ids": sequence.segment_ids,
            "label_ids": [label if labels else float(label)],
        }])
    return features


# --- scores

def decisions(task: ClassificationTask, outputs: np.ndarray) -> np.ndarray:
    """Class ids [N] of the highest output, or the values [N] of a regression.

    Args:
      task: the task.
      outputs: logits or probabilities [N, num_outputs]; [N] also for regression.

    Raises:
      InputError: if an output is not finite.
    """
    outputs = np.asarray(outputs)
    wrong = np.flatnonzero(
        ~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=-1))
    if wrong.size:
        raise InputError(
            f"the model's output for example {wrong[0]} is not a number: it has "
            "diverged; take an earlier checkpoint or train with a lower "
            "--learning_rate.")
    if task.is_regression:
        return outputs.reshape(len(outputs))
    return np.argmax(outputs, axis=-1)


_METRICS = {
    "accuracy": metrics.accuracy, "macro_f1": metrics.macro_f1,
    "matthews": metrics.matthews, "pearson": metrics.pearson,
    "spearman": metrics.spearman, "mse": metrics.mean_squared_error,
}
# GLUE's score of a task with two metrics is their mean.
_MEANS = {"accuracy_f1_mean": ("accuracy", "f1"),
          "pearson_spearman_mean": ("pearson", "spearman")}


def score(task: ClassificationTask, predictions: np.ndarray, labels: np.ndarray
          ) -> dict[str, float]:
    """The task's metrics over a whole set.

    Args:
      task: the task.
      predictions: class ids [N], or numbers [N] for regression; see `decisions`.
      labels: likewise; see `labels_of`.

    Returns:
      A float for each of task.metric_names, in that order.

    Raises:
      InputError: if there is no example.
    """
    def compute(name: str) -> float:
        if name == "f1":
            return metrics.f1(
                predictions, labels, task.labels.index(task.positive_label))
        if name in _MEANS:
            return sum(map(compute, _MEANS[name])) / len(_MEANS[name])
        return _METRICS[name](predictions, labels)

    return {name: compute(name) for name in task.metric_names}


def report(task: ClassificationTask, predictions: np.ndarray, labels: np.ndarray
           ) -> str:
    """The metrics and, for classes, precision, recall and F1 of each, as text.

    Args and errors as for `score`.
    """
    from sklearn.metrics import classification_report

    scores = score(task, predictions, labels)
    width = max(map(len, scores))
    lines = [f"{task.name}: {len(labels)} examples", ""]
    lines += [f"{name:{width}}  {value:.4f}" for name, value in scores.items()]
    if not task.is_regression:
        lines += ["", classification_report(
            labels, predictions, labels=range(len(task.labels)),
            target_names=task.labels, digits=4, zero_division=0.0).rstrip()]
    return "\n".join(lines) + "\n"


# --- files of predictions

def write_predictions(output_dir: str, task: ClassificationTask,
                      examples: Sequence[Example], outputs: np.ndarray
                      ) -> list[str]:
    """Writes what the model said about a set.

      test_results.tsv    per example the probability of each label, or the value
                          (as the release)
      submit_results.tsv  index, prediction (as the release)
      predictions.tsv     for people: guid, the texts, the prediction, its
                          probability, the true label where it is known; tabs and
                          line ends within a text are written as blanks
      CoLA.tsv and so on  for GLUE's board, under the name it expects

    Args:
      output_dir: where to.
      task: the task.
      examples: N examples.
      outputs: probabilities [N, num_outputs], or values [N] or [N, 1] for
        regression, in the examples' order.

    Returns:
      The paths.

    Raises:
      InputError: if an output is not finite or a file cannot be written.
    """
    if len(outputs) != len(examples):
        raise ValueError(f"{len(outputs)} outputs for {len(examples)} examples")
    chosen = decisions(task, outputs)
    # str of a float32 is the shortest text that reads back as the same number.
    rows = [[str(np.float32(value)) for value in np.atleast_1d(row)]
            for row in outputs]
    names = ([row[0] for row in rows] if task.is_regression
             else [task.labels[i] for i in chosen])
    header = ["index", "prediction"]
    guids = [example.guid for example in examples]
    tables = {
        "test_results.tsv": rows,
        "submit_results.tsv": [header, *zip(guids, names)],
        "predictions.tsv": _readable(task, examples, names, outputs),
    }
    if task.submission_file:
        if task.submission_range:
            names = [f"{value:.3f}" for value in np.clip(
                chosen, *task.submission_range)]
        tables[task.submission_file] = [header, *zip(guids, names)]
    paths = []
    for name, table in tables.items():
        path = os.path.join(output_dir, name)
        with files.atomic_write(path) as stream:
            stream.writelines(("\t".join(row) + "\n").encode() for row in table)
        paths.append(path)
    return paths


def _readable(task: ClassificationTask, examples: Sequence[Example],
              names: Sequence[str], outputs: np.ndarray) -> list[list[str]]:
    pairs = any(example.text_b is not None for example in examples)
    known = any(example.label is not None for example in examples)
    table = [["guid", "text_a", *["text_b"] * pairs, "prediction",
              *["probability"] * (not task.is_regression), *["label"] * known]]
    for example, name, row in zip(examples, names, outputs):
        cells = [example.guid, example.text_a]
        if pairs:
            cells.append(example.text_b or "")
        cells.append(name)
        if not task.is_regression:
            cells.append(f"{np.max(row):.4f}")
        if known:
            cells.append("" if example.label is None else str(example.label))
        table.append([" ".join(cell.split()) for cell in cells])
    return table
