"""What a teacher teaches, by hand; a student that learns from one alone; refusals."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import files
from albert_tf.checkpoints import checkpoint as neutral
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.head import Classification
from albert_tf.finetuning.squad.head import ConditionalSpans, Spans
from albert_tf.finetuning.tagging.head import TokenClassification
from albert_tf.modeling.models import AlbertForTask
from albert_tf.training import losses
from albert_tf.training.distillation import (
    Teaching, divergence, pretraining_targets)
from tests import models, tiny_run

CONFIG = tiny_run.config(num_hidden_layers=2, hidden_dropout_prob=0.1,
                         attention_probs_dropout_prob=0.1)
B, S, P = 3, 6, 2


def features():
    draw = np.random.default_rng(1)
    return {
        "input_ids": tf.constant(draw.integers(5, tiny_run.VOCAB_SIZE, (B, S)), tf.int32),
        "input_mask": tf.constant([[1] * S, [1] * S, [1] * 4 + [0] * 2]),
        "segment_ids": tf.zeros([B, S], tf.int32)}


# kind → the student's head (None: those of pretraining), labels, and what is taught with
# its share.
KINDS = {
    "classification": (
        Classification(3), {"label_ids": [[0], [2], [1]]}, {"logits": 1.0}),
    "regression": (
        Classification(1), {"label_ids": [[0.5], [2.0], [1.0]]}, {"logits": 1.0}),
    "token_classification": (
        TokenClassification(4),
        {"label_ids": [[0, 1, 0, 4, 2, 0], [0, 3, 3, 1, 0, 0], [0, 2, 1, 0, 0, 0]]},
        {"logits": 1.0}),
    "spans": (
        Spans(),
        {"start_positions": [[1], [2], [0]], "end_positions": [[3], [2], [1]]},
        {"start_logits": 0.5, "end_logits": 0.5}),
    "conditional_spans": (
        ConditionalSpans(start_n_top=2, end_n_top=2),
        {"start_positions": [[1], [2], [0]], "end_positions": [[3], [2], [1]],
         "is_impossible": [[0], [0], [1]], "p_mask": [[0.0] * S] * B},
        {"start_log_probs": 0.5, "end_log_probs": 0.5, "cls_logits": 0.5}),
    "masked_lm": (
        None,
        {"masked_lm_positions": [[1, 2], [3, 0], [2, 0]],
         "masked_lm_ids": [[7, 8], [9, 0], [10, 0]],
         "masked_lm_weights": [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]],
         "sentence_order_labels": [0, 1, 1]},
        {"mlm_logits": 1.0, "sentence_order_logits": 1.0}),
}


def make(kind, config, **changes):
    head = KINDS[kind][0]
    if head is None:
        return models.AlbertForPreTraining(config)
    if hasattr(head, "dropout_prob"):
        head = dataclasses.replace(head, **changes)
    return AlbertForTask(config, head)


def objective_of(kind):
    head = KINDS[kind][0]
    return losses.PRETRAINING if head is None else head.objective()


def taught_by(teaching, kind):
    """The objective of a kind with a teacher."""
    head = KINDS[kind][0]
    return teaching.around(
        objective_of(kind), pretraining_targets if head is None else head.targets)


def checkpoint_of(model, heads, config, labels=()):
    """A model's weights in the neutral form, larger than a model's first."""
    draw = np.random.default_rng(7)
    tensors = {}
    for variable in model.weights:
        value = variable.numpy() + 0.3 * draw.standard_normal(variable.shape).astype("f")
        tensors[variable.name.removesuffix(":0")] = Tensor.of(value)
    return Checkpoint(
        "release", config, tensors, heads, neutral.Report("teacher"), labels)


@pytest.fixture(scope="module", name="taught")
def _taught():
    """kind → features, student's outputs, teacher's outputs, the Teaching."""
    found = {}
    for kind, (_, labels, _) in KINDS.items():
        tf_keras.utils.set_random_seed(3)
        student = make(kind, CONFIG)
        tf_keras.utils.set_random_seed(4)
        plain = CONFIG.replace(num_hidden_layers=3, hidden_dropout_prob=0.0,
                               attention_probs_dropout_prob=0.0)
        teacher = make(kind, plain, dropout_prob=0.0)
        head = {"regression": "classification"}.get(kind, kind)
        heads = {head: {"classification": 3, "regression": 1, "token_classification": 4,
                        "spans": 2}.get(kind, 1)}
        if kind == "masked_lm":
            heads["sentence_order"] = 2
        checkpoint = checkpoint_of(teacher, heads, CONFIG.replace(num_hidden_layers=3))
        for variable in teacher.weights:
            variable.assign(checkpoint.tensors[variable.name.removesuffix(":0")].read())
        batch = {**features(), **{name: tf.constant(value)
                                  for name, value in labels.items()}}
        outputs = student(batch, training=True, seed=tf.constant([1, 2, 0]))
        said = teacher(batch, training=True, seed=tf.constant([5, 6, 0]))
        found[kind] = batch, outputs, said, checkpoint
    return found


def softened(logits, temperature):
    logits = np.asarray(logits, np.float64) / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def by_hand(kind, own, teacher, temperature):
    if kind == "regression":
        return ((np.asarray(own) - np.asarray(teacher)) ** 2)[:, 0]
    if np.ndim(own) == 1:
        own, teacher = (np.stack([np.zeros(B), x], axis=-1) for x in (own, teacher))
    own, teacher = softened(own, temperature), softened(teacher, temperature)
    own = np.maximum(own, -1e6)  # what is impossible has no share
    return temperature ** 2 * (np.exp(teacher) * (np.maximum(teacher, -1e6) - own)).sum(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_by_hand(taught, kind):
    batch, outputs, said, checkpoint = taught[kind]
    own, shares = objective_of(kind), KINDS[kind][2]
    objective = taught_by(Teaching(checkpoint, 0.25, 3.0), kind)
    denominators = own.denominators(batch)
    labels_alone = float(own.losses(outputs, batch, denominators)["total_loss"])
    learned = objective.losses(outputs, batch, denominators)
    expected = 0.75 * labels_alone
    for name, share in shares.items():
        values = by_hand(kind, outputs[name], said[name], 3.0)
        weights = {"mlm_logits": batch.get("masked_lm_weights"),
                   "logits": batch["label_ids"] > 0 if kind == "token_classification"
                   else None}.get(name)
        weights = np.ones(values.shape) if weights is None else np.asarray(weights)
        expected += 0.25 * share * (values * weights).sum() / weights.sum()
    assert float(learned["total_loss"]) == pytest.approx(expected, rel=2e-5)
    metrics = objective.metrics(outputs, batch, learned)
    assert {f"teacher_loss_{name}" for name in shares} < set(metrics)
    # Evaluation's own numbers are as they were.
    assert set(own.metrics(outputs, batch, learned)) < set(metrics)


def test_nothing_is_to_be_learned_of_a_teacher_that_says_the_same(taught):
    batch, _, said, checkpoint = taught["classification"]
    objective = taught_by(Teaching(checkpoint, 1.0, 2.0), "classification")
    learned = objective.losses(said, batch, {"examples": tf.constant(3.0)})
    assert float(learned["total_loss"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_of_texts_without_labels_the_teacher_alone_is_learned(taught, kind):
    batch, outputs, _, checkpoint = taught[kind]
    own = objective_of(kind)
    first = {**batch, "labelled": tf.constant([[1], [0], [0]])}
    labels = tf.concat([batch["label_ids"][:1], tf.zeros_like(batch["label_ids"][1:])], 0)
    other = {**first, "label_ids": labels}
    denominators = own.denominators(batch)

    def loss(objective, features):
        return float(objective.losses(outputs, features, denominators)["total_loss"])

    assert loss(own, batch) != loss(own, {**batch, "label_ids": labels})
    assert loss(own, first) == loss(own, other)
    alone = own.losses(outputs, batch, denominators)["example_loss"][0] / 3
    assert loss(own, first) == pytest.approx(float(alone))
    both = taught_by(Teaching(checkpoint, 0.5, 2.0), kind)
    whole = taught_by(Teaching(checkpoint, 1.0, 2.0), kind)
    assert loss(both, first) == pytest.approx(
        (float(alone) + loss(whole, first)) / 2, rel=1e-5)
    metrics = own.metrics(outputs, first, own.losses(outputs, first, denominators))
    assert metrics["loss"][1].numpy().tolist() == [1, 0, 0]


def test_padding_teaches_nothing():
    own = tf.constant([[1.0, -1e30, -1e30]])
    teacher = tf.constant([[0.5, 9.0, 1.0]])  # of a model that does not mask it
    assert divergence(own, teacher, 2.0).numpy() == pytest.approx([0])


def test_the_teacher_is_not_trained(taught):
    batch, _, _, checkpoint = taught["classification"]
    objective = taught_by(Teaching(checkpoint), "classification")
    student = make("classification", CONFIG)
    with tf.GradientTape(persistent=True) as tape:
        outputs = student(batch, training=True, seed=tf.constant([1, 2, 0]))
        loss = objective.losses(
            outputs, batch, {"examples": tf.constant(3.0)})["total_loss"]
    own = {variable.ref() for variable in student.weights}
    others = [v for v in tape.watched_variables() if v.ref() not in own]
    assert len(others) > 10 and set(tape.gradient(loss, others)) == {None}
    assert None not in tape.gradient(loss, student.trainable_variables)


@pytest.mark.parametrize("changes, wanted, message", [
    ({"heads": {}}, {}, r"has no classification head \(found: none\)"),
    ({"heads": {"spans": 2}}, {}, r"has no classification head \(found: spans\)"),
    ({"heads": {"classification": 5}}, {}, "has 5 outputs, this task 3"),
    ({}, {"student": CONFIG.replace(vocab_size=9)},
     r"has a vocabulary of \d+ tokens, the student one of 9;"),
    ({}, {"longest": 10 ** 6}, r"has \d+ positions, but --max_seq_length is 1000000"),
])
def test_what_cannot_teach_is_refused(taught, changes, wanted, message):
    checkpoint = dataclasses.replace(taught["classification"][3], **changes)
    with pytest.raises(InputError, match=f"^--teacher=teacher {message}"):
        Teaching(checkpoint).check(**{
            "heads": {"classification": 3}, "student": CONFIG,
            "longest": 8, **wanted})


def test_labels_in_another_order_are_reordered(taught, caplog):
    known = dataclasses.replace(taught["classification"][3], labels=("b", "c", "a"))
    ordered = Teaching(known).with_labels(["a", "b", "c"]).checkpoint
    assert ordered.labels == ("a", "b", "c")
    for name, tensor in known.tensors.items():
        rows = [2, 0, 1] if name in ("output_weights", "output_bias") else slice(None)
        np.testing.assert_array_equal(ordered.tensors[name].read(), tensor.read()[rows])
    assert "teacher has its labels in the order b, c, a. Its outputs are reorder" in (
        caplog.text)


def test_hidden_states_need_a_teacher_of_the_same_width(taught):
    teaching = Teaching(taught["classification"][3], hidden_weight=1.0)
    teaching.check({"classification": 3}, CONFIG, 8)
    with pytest.raises(InputError, match=(
            "^--teacher_hidden_weight: --teacher=teacher has hidden_size "
            f"{CONFIG.hidden_size}, the student has {2 * CONFIG.hidden_size}; ")):
        teaching.check({"classification": 3}, CONFIG.replace(
            hidden_size=2 * CONFIG.hidden_size), 8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_difference_of_hidden_states_by_hand(taught, kind):
    """Half of it is added to the loss; nothing where the states are the same."""
    batch, outputs, said, checkpoint = taught[kind]
    own = objective_of(kind)
    denominators = own.denominators(batch)
    alone, both = (
        taught_by(Teaching(checkpoint, 0.5, 2.0, weight), kind).losses(
            outputs, batch, denominators)["total_loss"].numpy() for weight in (0.0, 0.5))
    name = "sequence_output" if "sequence_output" in outputs else "pooled_output"
    squares = ((outputs[name].numpy() - said[name].numpy()) ** 2).mean(-1)
    if kind == "masked_lm":
        weights = batch["masked_lm_weights"].numpy()
    elif kind == "token_classification":
        weights = (batch["label_ids"].numpy() > 0).astype(float)
    elif squares.ndim == 2:
        mask = batch["input_mask"].numpy()
        weights = mask / mask.sum(1, keepdims=True) / B
    else:
        weights = np.full(B, 1 / B)
    if kind in ("masked_lm", "token_classification"):
        weights = weights / weights.sum()
    assert both - alone == pytest.approx((squares * weights).sum() / 2, rel=1e-4)
    assert both - alone > 1e-3


def test_records_of_another_vocabulary_are_refused(taught, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n")
    checkpoint = dataclasses.replace(
        taught["masked_lm"][3], vocabulary=neutral.Vocabulary(str(path), word_piece=True))
    own = {"file": "vocab.txt", "sha256": files.sha256(str(path))}
    for teaching in (Teaching(checkpoint), Teaching(taught["masked_lm"][3])):
        teaching.check_records(own)
        teaching.check_records(None)
    with pytest.raises(InputError, match=(
            "--teacher=teacher has a different vocabulary than the records, which were "
            "created with other.txt")):
        Teaching(checkpoint).check_records({"file": "other.txt", "sha256": "0" * 64})


def test_labels_that_say_nothing_and_other_names(taught, caplog):
    for labels, said in (
            (("LABEL_0", "LABEL_1", "LABEL_2"), "teacher does not name its labels."),
            (("bad", "so", "good"), "bad is taken for 0, so is taken for 1, good is")):
        known = dataclasses.replace(taught["classification"][3], labels=labels)
        ordered = Teaching(known).with_labels(["0", "1", "2"]).checkpoint
        np.testing.assert_array_equal(ordered.tensors["output_weights"].read(),
                                      known.tensors["output_weights"].read())
        assert said in caplog.text


def test_another_vocabulary_is_refused(taught, tmp_path):
    path = tmp_path / "vocab.txt"
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*marks, *(f"word{i}" for i in range(CONFIG.vocab_size - 5))]
    path.write_text("\n".join(pieces))
    checkpoint = dataclasses.replace(
        taught["classification"][3],
        vocabulary=neutral.Vocabulary(str(path), word_piece=True))
    own = {piece: i for i, piece in enumerate(pieces)}
    Teaching(checkpoint).check_pieces(own)
    own["word3"], own["word4"] = own["word4"], own["word3"]
    with pytest.raises(InputError, match=(
            "a different vocabulary than the student: the id of 'word[34]' is [89] for the "
            "teacher and [89] for the student")):
        Teaching(checkpoint).check_pieces(own)
