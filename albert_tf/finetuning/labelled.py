"""A base of tasks with one of a few labels for each example: its scores and files."""

import types
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from albert_tf.finetuning import common, metrics
from albert_tf.finetuning.common import Outputs
from albert_tf.finetuning.task import FineTuningTask

# A column of a table of predictions: its title and its cells.
Column = tuple[str, Iterable[str | int]]


class LabelledTask(FineTuningTask):
    """A task whose outputs are the `probabilities` of `labels`, and whose examples have
    a `label`, None if it is unknown, and `where`, their place in a file."""

    labels: tuple[str, ...]  # The label of each class id.
    counted = "examples"  # What they are called in predict_results.json.
    # The titles in a table of predictions, if they are different.
    column_names: Mapping[str, str] = types.MappingProxyType({})

    def label_ids(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the class ids, int64 [N]. Raises InputError without a label."""
        common.check_labelled(examples)
        ids = {label: i for i, label in enumerate(self.labels)}
        return np.array([ids[example.label] for example in examples], np.int64)

    def rows(self, outputs: Outputs, name: str = "probabilities") -> np.ndarray:
        """Returns the probabilities [N, labels]. Raises DivergenceError if one is not
        finite."""
        rows = np.stack(outputs[name])
        metrics.check_finite(rows, "the model's output for example {}".format)
        return rows

    def decisions(self, outputs: Outputs) -> np.ndarray:
        """Returns the class ids [N] of the highest outputs."""
        return self.rows(outputs).argmax(axis=-1)

    def scores(self, examples: Sequence[Any], outputs: Outputs) -> dict[str, float]:
        """Computes the metrics of examples that all have labels."""
        raise NotImplementedError

    def score(self, data, outputs, table):
        return self.scores(data.examples, outputs)

    def failure(self, data, outputs, table):
        return metrics.at_chance(
            self.rows(outputs), self.label_ids(data.examples), self.labels)

    def chance_loss(self, data, table):
        return metrics.entropy(self.label_ids(data.examples))

    def results(self, data, outputs, table):
        known = [i for i, each in enumerate(data.examples) if each.label is not None]
        if not known:
            return {}, ""
        examples = [data.examples[i] for i in known]
        outputs = {name: [rows[i] for i in known] for name, rows in outputs.items()}
        scores = self.scores(examples, outputs)
        bounds = {f"{name}_{bound}": value for name in metrics.SHARES if name in scores
                  for bound, value in zip(("low", "high"), metrics.interval(
                      scores[name], len(known)))}
        return ({self.counted: len(known), **scores, **bounds},
                self.report(examples, outputs))

    # ---- files ---------------------------------------------------------------

    def report(self, examples: Sequence[Any], outputs: Outputs) -> str:
        """Returns a report on examples that all have labels as text; "" for none."""
        return ""

    def predicted(self, folder, data, outputs, table, settings, own):
        return self.write_predictions(
            folder, data.examples, outputs, settings.prediction_file if own else "",
            settings.all_probabilities)

    def write_predictions(
            self, folder: str, examples: Sequence[Any], outputs: Outputs,
            prediction_file: str = "", all_probabilities: bool = False) -> list[str]:
        """Writes `contents`, and a readable table (common.write_predictions): what is
        `described`, the prediction, its probability, and the true label if known.
        Returns the paths. `all_probabilities` adds the probability of each label."""
        rows, chosen = self.rows(outputs), self.decisions(outputs)
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

    def described(self, examples: Sequence[Any], full: bool) -> list[Column]:
        """Returns the first columns of a table of predictions; `full` for all texts."""
        raise NotImplementedError

    def beside(self, examples: Sequence[Any], chosen: np.ndarray) -> list[Column]:
        """Returns columns that follow those of the predictions."""
        return []

    def contents(self, examples: Sequence[Any], rows: np.ndarray, names: Sequence[str]
                 ) -> Mapping[str, str]:
        """Returns the further files of predictions: name → content."""
        raise NotImplementedError

    def named(self, decision: Any) -> str:
        """Returns the name of a decision."""
        return self.labels[decision]

    def shown(self, label: Any) -> str:
        """Returns an example's label as text."""
        return str(label)
