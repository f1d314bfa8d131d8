"""The interface of a fine-tuning task, a base of tasks with one label for each example,
and the settings of a run, which `finetuning.course` runs.
"""

import abc
import dataclasses
import math
import os
from typing import Any, Callable, Iterable, Mapping, Optional, Self, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning import common, metrics
from albert_tf.finetuning.common import Outputs
from albert_tf.finetuning.features import FeatureTable
from albert_tf.modeling.head import Head
from albert_tf.options import option
from albert_tf.records.spec import FeatureSpec
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training.log import Callback
from albert_tf.training.options import OPTIMIZERS, RunOptions


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a fine-tuning run, the same for every task."""

    run: RunOptions  # Without num_train_steps, num_train_epochs gives them.
    config: AlbertConfig
    tokenizer: FullTokenizer
    vocabulary: str  # The path of the tokenizer's file.
    make_strategy: Callable[[], Any]  # Returns the tf.distribute strategy of the devices.
    data: Mapping[str, str]  # Split → the path of its data, for `FineTuningTask.read`.
    kept: Mapping[str, Any]  # The contents of task.json.
    # Split → the path of its file of features, to which a digest and .npz are added.
    features: Mapping[str, str]
    do_train: bool = option(False, "Train the model.")
    do_eval: bool = option(
        False, "Evaluate each checkpoint during training, and the best checkpoint at the "
        "end.")
    do_predict: bool = option(False, "Write the predictions of the best checkpoint.")
    learning_rate: float = option(
        5e-5, "Peak learning rate, reached at the end of warm-up.", needs="do_train")
    optimizer: str = option(
        "adamw", "Optimizer; without bias correction, as in the original "
        "implementation.", choices=OPTIMIZERS, needs="do_train")
    dropout_prob: float = option(
        0.1, "Dropout rate of the input of the task's head.", below=1, kept=True,
        needs="do_train")
    max_seq_length: int = option(
        512, "Maximum length of a sequence in tokens; longer ones are cut, or split "
        "(tags).", least=8, kept=True)
    do_lower_case: bool = option(True, "Lower-case the text.", kept=True)
    num_lengths: int = option(
        8, "Number of lengths, chosen to fit the data, to one of which each sequence is "
        "padded; 1: pad all to --max_seq_length, as in the original implementation. "
        "Evaluation and prediction do not depend on it. Training sees every example "
        "equally often, but groups batches by length.", flag="num_length_buckets",
        least=1, most=64)
    predict_batch_size: int = option(
        8, "Examples per prediction batch.", least=1, needs="do_predict")
    num_workers: int = option(
        0, "Number of processes that compute features; 0: one per CPU core.",
        most=1024)
    num_seeds: int = option(
        1, "Number of runs, seeded from --random_seed upward, each in its own folder in "
        "--output_dir, as results on small data vary with the seed. seeds.json lists "
        "median, best and spread; the best checkpoint is copied to --output_dir.",
        least=1, most=1000, needs="do_train", only_with="do_eval")
    export_dir: str = ""  # For a SavedModel of the best checkpoint.
    prediction_file: Optional[str] = option(
        None, "File for the predictions of --do_predict: .tsv, .csv or .jsonl; .csv and "
        ".jsonl keep the texts unchanged. Default: predictions.tsv in --output_dir.",
        only_with="do_predict")
    all_probabilities: bool = option(
        False, "Add the probability of each label to the predictions.",
        needs="do_predict")
    num_warmup_steps: int = -1  # -1: given by warmup_proportion.
    num_train_epochs: float = 0.0
    warmup_proportion: float = 0.1
    num_evaluations: int = 0  # In training; 0: given by run.save_checkpoints_steps.
    # Values for options.json besides those of `run`.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Raises InputError if a batch does not fit into memory: flag of its size → contents.
    check_memory: Callable[..., None] = lambda **batches: None
    callbacks: Sequence[Callback] = ()  # See training.log.
    # Whether a run that began with other data or options continues, with a warning.
    changes_allowed: bool = True

    @property
    def several(self) -> bool:
        """True if each run has its own folder."""
        return self.do_train and self.num_seeds > 1

    def scheduled(self, num_examples: int) -> Self:
        """Returns the settings with the numbers of steps and of warm-up steps for a
        training set (run_squad_v1.py in the original implementation, which counts
        questions, not their windows)."""
        steps = self.run.num_train_steps or int(
            num_examples / self.run.train_batch_size * self.num_train_epochs)
        if steps < 1:
            raise InputError(
                f"{num_examples} training examples, --num_train_epochs="
                f"{self.num_train_epochs:g} and --train_batch_size="
                f"{self.run.train_batch_size} give no training step; increase "
                "--num_train_epochs, or give a smaller batch.")
        warmup, interval = self.num_warmup_steps, self.run.save_checkpoints_steps
        if warmup < 0:
            warmup = int(steps * self.warmup_proportion)
        if not self.run.num_train_steps:
            logging.info("%g epochs of %d examples are %d steps, %d of them warm-up.",
                         self.num_train_epochs, num_examples, steps, warmup)
        if self.num_evaluations:
            interval = -(-steps // self.num_evaluations)
            logging.info("The model is evaluated every %d steps (--save_checkpoints_steps"
                         "=%d).", interval, interval)
        return dataclasses.replace(
            self, num_warmup_steps=warmup, run=dataclasses.replace(
                self.run, num_train_steps=steps, save_checkpoints_steps=interval))


class FineTuningTask(abc.ABC):
    """The definition of a task. In its methods, `data` is what `read` returned, `table`
    has its features, and `outputs` are the predictions: name → an array for each row."""

    main_metric: str  # Chooses the best checkpoint; higher is better.
    metric_names: Sequence[str]  # The metrics of `score` that are reported.
    max_seq_length: int  # Of a sequence, with special tokens.
    # The names of these sets; the training set's is "train".
    evaluation_split, prediction_split = "dev", "test"
    in_windows = False  # Whether longer texts are read in windows, not cut.
    # How many vectors, as wide as the encoder, the head computes for each token.
    vectors_of_piece = 0
    texts: Sequence[str] = ()  # The fields of an example that hold its texts.

    def chosen_by(self, metric: str) -> Self:
        """Returns the task, a dataclass, with another metric that chooses the best
        checkpoint, one of which a higher value is better."""
        able = [name for name in self.metric_names if name not in metrics.LOWER_IS_BETTER]
        if metric not in able:
            raise InputError(f"--metric={metric}: give one of {', '.join(able)}; the "
                             f"default is {self.main_metric}.")
        return (self if metric == self.main_metric
                else dataclasses.replace(self, main_metric=metric))  # type: ignore

    # ---- data and features -------------------------------------------------

    @abc.abstractmethod
    def read(self, where: str, split: str) -> Any:
        """Reads and checks a split. Returns an ExampleSet, or what has its fields."""

    @abc.abstractmethod
    def spec(self, config: AlbertConfig) -> FeatureSpec:
        """Returns the specification of a record."""

    @abc.abstractmethod
    def featurize(self, example: Any, *, tokenizer: FullTokenizer,
                  is_training: bool = False) -> list[dict[str, Any]]:
        """Computes the features of an example; returns one dict per record."""

    def length_of(self, example: Any, tokenizer: FullTokenizer) -> int:
        """Returns the number of tokens of an example that is neither cut nor divided."""
        whole = dataclasses.replace(self, max_seq_length=2 ** 31)  # type: ignore
        return len(whole.featurize(example, tokenizer=tokenizer)[0]["input_ids"])

    def records(self, featurized: Iterable[list[dict[str, Any]]]
                ) -> Iterable[dict[str, Any]]:
        """Returns the records of all examples, given the results of `featurize`; those
        of windows have the number of their example, which may have none."""
        return ({**record, "example_index": [index]} if self.in_windows else record
                for index, records in enumerate(featurized) for record in records)

    def sources(self, split: str, data: Any) -> dict[str, str]:
        """Returns the inputs of a split's features: name → digest of the content."""
        return {f"{split} data" + f" {i}" * (len(data.paths) > 1): files.sha256(path)
                for i, path in enumerate(data.paths)}

    @abc.abstractmethod
    def feature_settings(self, split: str) -> dict[str, Any]:
        """Returns what features depend on besides vocabulary and length."""

    def check_features(self, sets: Mapping[str, Any],
                       tables: Mapping[str, FeatureTable], settings: Settings) -> None:
        """Reports examples without features, if the task can have any."""

    # ---- model and results -------------------------------------------------

    @abc.abstractmethod
    def head(self, settings: Settings) -> Head:
        """Returns the head on the encoder, which defines outputs and objective."""

    def objective(self, head: Head, data: Any) -> Any:
        """Returns the training.losses.Objective of training on a set; that of
        evaluation is the head's."""
        return head.objective()

    @abc.abstractmethod
    def score(self, data: Any, outputs: Outputs, table: FeatureTable
              ) -> Mapping[str, float]:
        """Computes the evaluation set's metrics, including `main_metric`."""

    def scoring(self) -> dict[str, Any]:
        """Returns the settings that the scores of the same outputs depend on."""
        return {}

    def failure(self, data: Any, outputs: Outputs, table: FeatureTable) -> str:
        """Returns what shows that the model has not learned, "" if nothing does."""
        return ""

    def chance_loss(self, data: Any, table: FeatureTable) -> Optional[float]:
        """Returns the training loss of a model that has learned nothing, if known."""
        return None

    def results(self, data: Any, outputs: Outputs, table: FeatureTable
                ) -> tuple[Mapping[str, float], str]:
        """Returns the scores of a set, {} without labels, and a report, "" for none."""
        return self.score(data, outputs, table), ""

    def write_predictions(
            self, folder: str, data: Any, outputs: Outputs, table: FeatureTable,
            prediction_file: str = "", all_probabilities: bool = False) -> list[str]:
        """Writes the predictions of a set to a folder, and a readable table to
        `prediction_file` if it is given; returns the paths. `all_probabilities` adds the
        probability of each label to the table."""
        raise NotImplementedError

    def write(self, split: str, data: Any, outputs: Outputs, table: FeatureTable,
              step: int, settings: Settings) -> None:
        """Writes predictions and, if labels are known, a report; of a set to predict
        also the scores. Only one process of a cluster calls this."""
        folder, own = settings.run.output_dir, split == self.prediction_split
        paths = self.write_predictions(
            folder if own else os.path.join(folder, "eval_predictions"), data, outputs,
            table, own and settings.prediction_file or "", settings.all_probabilities)
        scores, report = self.results(data, outputs, table)
        name, contents = f"{'predict' if own else 'eval'}_report.txt", {}
        for line in report.splitlines():
            logging.info("%s", line)
        if report:
            contents[name] = report
        if own and scores:
            logging.info("%s of %d examples: %s", split, len(data.examples), ", ".join(
                f"{name} {value:.6g}" for name, value in scores.items()))
            contents[common.PREDICT_RESULTS] = common.as_json({"step": step, **{
                name: value for name, value in scores.items() if math.isfinite(value)}})
        elif own:
            logging.info("The %s set has no labels; it is not scored.", split)
            # Remaining files would have the results of a different set.
            for old in (common.PREDICT_RESULTS, name):
                files.remove(os.path.join(folder, old))
        logging.info("Wrote %s.", ", ".join(
            [*paths, *common.write_files(folder, contents)]))

    def kept_options(self) -> dict[str, Any]:
        """Returns the task's values for options.json besides Settings.options."""
        return {}


# A column of a table of predictions: its title and its cells.
Column = tuple[str, Iterable[str | int]]


class LabelledTask(FineTuningTask):
    """A task whose outputs are the `probabilities` of `labels`, and whose examples have
    a `label`, None if it is unknown, and `where`, their place in a file."""

    labels: tuple[str, ...]  # The label of each class id.
    output = "probabilities"  # The name of the output that decides, [N, labels].
    counted = "examples"  # What they are called in predict_results.json.
    # The titles in a table of predictions, if they are different.
    column_names: Mapping[str, str] = {}

    def label_ids(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the class ids, int64 [N]. Raises InputError without a label."""
        common.check_labelled(examples)
        ids = {label: i for i, label in enumerate(self.labels)}
        return np.array([ids[example.label] for example in examples], np.int64)

    def rows(self, outputs: Outputs) -> np.ndarray:
        """Returns `output` [N, labels], after a check that it is finite."""
        rows = np.stack(outputs[self.output])
        metrics.check_finite(rows, "the model's output for example {}".format)
        return rows.reshape(len(rows), -1)

    def decisions(self, outputs: Outputs) -> np.ndarray:
        """Returns the class ids [N] of the highest outputs."""
        return self.rows(outputs).argmax(axis=-1)

    def failure(self, data, outputs, table):
        probabilities, labels = self.rows(outputs), self.label_ids(data.examples)
        counts = np.bincount(labels)
        if np.count_nonzero(counts) < 2:
            return ""
        chosen = probabilities.argmax(axis=-1)
        if np.all(chosen == chosen[0]):
            return f"all {len(labels)} predictions are '{self.labels[chosen[0]]}'"
        of_labels = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        loss = float(-np.log(np.maximum(of_labels, 1e-30)).mean())
        accuracy, share = np.mean(chosen == labels), counts.max() / len(labels)
        chance = metrics.entropy(labels)
        return "" if loss < chance or accuracy > share else (
            f"the loss is {loss:.3f} and the accuracy {accuracy:.3f}, no better than "
            f"those of guessing ({chance:.3f} and {share:.3f})")

    def chance_loss(self, data, table):
        return metrics.entropy(self.label_ids(data.examples))

    def results(self, data, outputs, table):
        known = [i for i, each in enumerate(data.examples) if each.label is not None]
        if not known:
            return {}, ""
        data = data._replace(examples=[data.examples[i] for i in known])
        outputs = {name: [rows[i] for i in known] for name, rows in outputs.items()}
        scores = self.score(data, outputs, table)
        bounds = {f"{name}_{bound}": value for name in metrics.SHARES if name in scores
                  for bound, value in zip(("low", "high"), metrics.interval(
                      scores[name], len(known)))}
        return ({self.counted: len(known), **scores, **bounds},
                self.report(data, outputs, scores))

    def report(self, data: Any, outputs: Outputs, scores: Mapping[str, float]) -> str:
        """Returns a report on examples that all have labels as text; "" for none."""
        return ""

    # ---- files of predictions

    def write_predictions(self, folder, data, outputs, table, prediction_file="",
                          all_probabilities=False):
        """Writes `contents`, and a readable table (common.write_predictions): what is
        `described`, the prediction, its probability, and the true label if known."""
        rows, chosen, examples = self.rows(outputs), self.decisions(outputs), data.examples
        names = list(map(self.named, chosen))
        columns: list[Column] = [*self.described(examples, bool(prediction_file)),
                                 ("prediction", names)]
        if chosen.dtype.kind == "i" and chosen.ndim == 1:
            columns.append(("probability", [f"{np.max(row):.4f}" for row in rows]))
        columns += self.beside(examples, chosen)
        if all_probabilities:
            columns += [(f"probability of {label}", map(str, values.astype(np.float32)))
                        for label, values in zip(self.labels, rows.T)]
        if any(example.label is not None for example in examples):
            columns.append((self.column_names.get("label", "label"), [
                "" if example.label is None else self.shown(example.label)
                for example in examples]))
        titles, cells = zip(*columns)
        return common.write_predictions(
            folder, self.contents(examples, rows, names),
            [titles, *zip(*cells, strict=True)], prediction_file)

    @abc.abstractmethod
    def described(self, examples: Sequence[Any], full: bool) -> list[Column]:
        """Returns the first columns of a table of predictions; `full` for all texts."""

    def beside(self, examples: Sequence[Any], chosen: np.ndarray) -> list[Column]:
        """Returns columns that follow those of the predictions."""
        return []

    @abc.abstractmethod
    def contents(self, examples: Sequence[Any], rows: np.ndarray, names: Sequence[str]
                 ) -> Mapping[str, str]:
        """Returns the further files of predictions: name → content."""

    def named(self, decision: Any) -> str:
        """Returns the name of a decision."""
        return self.labels[decision]

    def shown(self, label: Any) -> str:
        """Returns an example's label as text."""
        return str(label)
