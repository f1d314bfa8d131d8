"""The release's fine-tuning heads: weights, batches and outputs of small models, in
tests/fixtures/heads. The three classifiers have one encoder, stored once.
"""

import dataclasses
import functools
import json

import numpy as np

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.config import AlbertConfig
from tests import models
from tests.helpers import FIXTURES

CLASSIFIERS = ("cola", "mnli", "sts-b")

# Case → (model of a config, objective).
KINDS = {
    "cola": (functools.partial(models.classifier, num_labels=2),
             models.CLASSIFICATION),
    "mnli": (functools.partial(models.classifier, num_labels=3),
             models.CLASSIFICATION),
    "sts-b": (functools.partial(models.classifier, num_labels=1),
              models.REGRESSION),
    "race": (models.multiple_choice, models.CHOICE),
    "spans": (models.spans, models.SPANS),
    "conditional_spans": (
        functools.partial(models.conditional_spans, start_n_top=5, end_n_top=4),
        models.CONDITIONAL_SPANS),
}
# One of each kind of head.
HEADS = ["cola", "sts-b", "race", "spans", "conditional_spans"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model of the release.

    Attributes:
      config: the encoder's shape.
      weights: name → array.
      values: features and outputs, by the names in golden's head.npz.
    """

    config: AlbertConfig
    weights: dict
    values: dict

    def features(self) -> dict:
        """The batch, as our batches are: labels [B, 1], choices apart."""
        batch = {name: self.values[name] for name in self.values
                 if name in ("input_ids", "input_mask", "segment_ids", "p_mask")}
        if "max_seq_length" in self.values:
            batch = {name: value.reshape(len(value), -1, self.values["max_seq_length"])
                     for name, value in batch.items()}
        for name in ("label_ids", "start_positions", "end_positions", "is_impossible"):
            if name in self.values:
                batch[name] = self.values[name][:, np.newaxis]
        return batch


@functools.cache
def case(name: str) -> Case:
    folder = FIXTURES / "heads"
    parts = {"weights": {}, "values": {}}
    for file in ([f"{name}.npz"] if name not in CLASSIFIERS
                 else [f"{name}.npz", "classifier_encoder.npz"]):
        stored = np.load(folder / file)
        for key in stored:
            part, _, rest = key.partition(":")
            parts[part][rest] = stored[key]
    config = json.loads((folder / "albert_config.json").read_text())
    return Case(AlbertConfig.from_dict(config), **parts)


def build(name, **options):
    """(model with the release's weights, objective)."""
    make, objective = KINDS[name]
    model = make(case(name).config, **options)
    load_tf1_tensors(model, case(name).weights)
    return model, objective


@functools.cache
def without_dropout(name):
    return build(name, **({} if name == "spans" else {"dropout_prob": 0.0}))


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def train_losses(name, features):
    """Outputs in training without dropout, and losses."""
    model, objective = without_dropout(name)
    outputs = model(features, training=True)
    return outputs, objective.losses(
        outputs, features, objective.denominators(features))
