"""The release's outputs for small models, as tests compare with them.

A case holds a config, the weights, and what the release computed from them.
`fixture_case` reads the reduced copies in tests/fixtures/model, `shared_case` the whole
from ../shared/golden. The former have of the larger arrays only some positions, rows
and columns, named in the case.
"""

import dataclasses
import json

import numpy as np

from albert_tf.config import AlbertConfig
from tests.helpers import FIXTURES, SHARED

# Every structure once: sharing, groups that do not divide, inner groups, E = H,
# three segment ids with one head, another activation.
FIXTURE_CASES = ("shared", "groups_uneven", "inner2_groups2", "no_projection",
                 "type_vocab3_heads1", "tanh")
ALL_CASES = (*FIXTURE_CASES, "emb_gt_hidden", "groups2", "groups_eq_layers", "inner2",
             "linear", "relu")

BATCH_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions",
                  "masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
# Pretraining's, which an encoder by itself has no use for.
HEADS = ["cls/predictions/output_bias", "cls/predictions/transform/LayerNorm/beta",
         "cls/predictions/transform/LayerNorm/gamma",
         "cls/predictions/transform/dense/bias",
         "cls/predictions/transform/dense/kernel",
         "cls/seq_relationship/output_bias", "cls/seq_relationship/output_weights"]
WORDS = "bert/embeddings/word_embeddings"
# The fixtures hold every so-manieth row of a matrix's gradient.
ROW_STEP = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """One config of the release.

    Attributes:
      config: the model's shape.
      weights: name → array.
      forward: inputs and outputs of the encoder; `all_encoder_layers` holds only
        `positions` of the sequence.
      loss: a batch and its losses; `masked_lm_log_probs` holds only `columns`.
      grads: name → gradient of the total loss; of matrices only the rows that
        `gradient_rows` gives.
    """

    config: AlbertConfig
    weights: dict
    forward: dict
    loss: dict
    grads: dict
    positions: np.ndarray
    columns: np.ndarray
    word_rows: np.ndarray
    row_step: int

    def gradient_rows(self, name: str, gradient: np.ndarray) -> np.ndarray:
        """The rows of a whole gradient that `grads` holds."""
        if name == WORDS:
            return gradient[self.word_rows]
        return gradient[::self.row_step] if gradient.ndim == 2 else gradient

    @property
    def encoder_inputs(self) -> dict:
        return {"input_ids": self.forward["input_ids"],
                "input_mask": self.forward["input_mask"],
                "segment_ids": self.forward["token_type_ids"]}

    @property
    def batch(self) -> dict:
        return {name: self.loss[name] for name in BATCH_FEATURES}


def fixture_case(name: str) -> Case:
    stored = np.load(FIXTURES / "model" / f"{name}.npz")
    parts = {"weights": {}, "forward": {}, "loss": {}, "grads": {}}
    indices = {}
    for key in stored:
        part, _, rest = key.partition(":")
        (parts[part] if part in parts else indices)[rest] = stored[key]
    config = json.loads((FIXTURES / "model" / "configs.json").read_text())[name]
    case = Case(AlbertConfig.from_dict(config), **parts, **indices, row_step=ROW_STEP)
    if name == "shared":
        from albert_tf.checkpoints.folders import read_tensors

        case.weights.update(read_tensors(str(FIXTURES / "model" / "model.ckpt")))
    return case


def shared_case(name: str) -> Case:
    from albert_tf.checkpoints.folders import read_tensors

    forward = SHARED / "golden" / "model_forward" / name
    grads = SHARED / "golden" / "pretrain_loss_grads" / name
    config = AlbertConfig.from_json_file(str(forward / "albert_config.json"))
    return Case(
        config, read_tensors(str(forward / "model.ckpt")),
        dict(np.load(forward / "forward.npz")), dict(np.load(grads / "loss.npz")),
        dict(np.load(grads / "grads.npz")), positions=np.arange(20),
        columns=np.arange(config.vocab_size), word_rows=np.arange(config.vocab_size),
        row_step=1)


def assert_holds(model, tensors):
    """A model has just these values."""
    from albert_tf.checkpoints.restore import tf1_tensors

    found = tf1_tensors(model)
    assert set(found) <= set(tensors)
    for name, value in found.items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)
