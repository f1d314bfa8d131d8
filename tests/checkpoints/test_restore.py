"""Weights by the release's names: what restoring reports, refuses and writes."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.checkpoints import (
    folders as checkpoint_files, formats, restore as tf1)
from albert_tf.checkpoints.formats import convert
from albert_tf.checkpoints.checkpoint import shapes_of
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.albert import AlbertModel
from tests import models
from tests.checkpoints.test_convert import TINY
from tests.checkpoints.test_folders import write
from tests.golden.model import HEADS, assert_holds
from tests.serving import tiny_models

GROUP = "bert/encoder/transformer/group_{}/inner_group_0"


def pretrainer(**changes):
    return models.AlbertForPreTraining(TINY.replace(**changes))


def numbered_tensors(model, seed=0):
    """Other values for every variable, all different."""
    numbers = np.random.default_rng(seed)
    return {name: numbers.standard_normal(value.shape).astype("f")
            for name, value in tf1.tf1_tensors(model).items()}


def numbered_model():
    model = pretrainer()
    tensors = numbered_tensors(model)
    tf1.load_tf1_tensors(model, tensors)
    return model, tensors


def stored(tmp_path, model):
    """A checkpoint of a model with other values: its tensors and its path."""
    tensors = numbered_tensors(model)
    return tensors, write(tmp_path, tensors)


# ---- the report and the policy ---------------------------------------------


def test_optimizer_state_and_a_classifier_s_head_are_harmless(tmp_path):
    model = pretrainer()
    tensors = numbered_tensors(model)
    state = {f"{name}/{slot}": np.zeros_like(value)
             for name, value in tensors.items() for slot in ("adam_m", "adam_v")}
    state |= {"global_step": np.int64(7), "output_weights": np.zeros([3, 8], "f")}
    path = write(tmp_path, {**tensors, **state})
    report = tf1.restore_tf1(model, path)
    assert report.complete and report.unexpected == []
    assert list(report.dropped) == sorted(state) and len(report.dropped) == 66
    assert_holds(model, tensors)


def check_refused(model, path, *words, **options):
    """Restoring stops with these words, and the model keeps its values."""
    before = tf1.tf1_tensors(model)
    with pytest.raises(InputError) as error:
        tf1.restore_tf1(model, path, **options)
    for word in (path, *words):
        assert word in str(error.value), (word, str(error.value))
    assert "\n" not in str(error.value)
    assert_holds(model, before)


@pytest.mark.parametrize("made, make, words, kind, names", [
    (pretrainer, lambda: pretrainer(vocab_size=22), [
        "a different shape: 2", "cls/predictions/output_bias", "config",
        "bert/embeddings/word_embeddings is [20, 4] in the checkpoint, [22, 4] in the "
        "model", "--allow_partial_init"], "mismatched", [
            "bert/embeddings/word_embeddings", "cls/predictions/output_bias"]),
    (lambda: AlbertModel(TINY), pretrainer, [
        "lacks: 7", HEADS[0], HEADS[2], "and 4 more", "--init_from_group0"],
     "missing", HEADS),
    (lambda: pretrainer(num_hidden_groups=2), pretrainer, [
        "the model does not have: 16", GROUP.format(1), "and 13 more"], "unexpected", [
            name for name in shapes_of(TINY.replace(num_hidden_groups=2), {})
            if GROUP.format(1) in name])])
def test_a_mismatch_stops_unless_allowed(made, make, words, kind, names, tmp_path):
    (tensors, path), model = stored(tmp_path, made()), make()
    check_refused(model, path, *words)
    before = tf1.tf1_tensors(model)
    report = tf1.restore_tf1(model, path, allow_partial=True)
    found = {each: sorted(getattr(report, each)) for each in (
        "mismatched", "missing", "unexpected") if getattr(report, each)}
    assert found == {kind: sorted(names)} and not report.complete
    assert_holds(model, {**before, **{
        name: tensors[name] for name in before if name not in names}})


# ---- a head that may be new ------------------------------------------------


def head_may_be_new(name):
    return not name.startswith("bert/")


@pytest.mark.parametrize("make_head", [
    lambda: models.classifier(TINY, 3), lambda: models.spans(TINY)])
def test_pretrained_encoder_gets_a_new_head(make_head, tmp_path, caplog):
    tensors, path = stored(tmp_path, pretrainer())
    model = make_head()
    before = tf1.tf1_tensors(model)
    head = sorted(name for name in before if head_may_be_new(name))
    report = tf1.restore_tf1(model, path, may_be_new=head_may_be_new)
    assert report.new == head and len(head) == 2
    assert report.complete and not (report.missing or report.mismatched)
    # Pretraining's heads are left over, and so may the pooler be for spans.
    assert report.unexpected == [] and set(HEADS) <= report.dropped.keys()
    assert f"new, start from random values: {', '.join(head)}" in caplog.text
    assert_holds(model, {**tensors, **{name: before[name] for name in head}})
    check_refused(make_head(), path, "lacks: 2", head[0])  # without leave


def test_head_of_another_shape_is_new(tmp_path):
    tensors, path = stored(tmp_path, models.classifier(TINY, 3))
    other = models.classifier(TINY, 2)
    check_refused(other, path, "a different shape: 2",
                  "output_bias is [3] in the checkpoint, [2] in the model")
    before = tf1.tf1_tensors(other)
    report = tf1.restore_tf1(other, path, may_be_new=head_may_be_new)
    head = ["output_bias", "output_weights"]
    assert report.new == head and report.complete
    assert report.dropped["output_bias"] == "[3] does not fit [2]: another task's"
    assert_holds(other, {**tensors, **{name: before[name] for name in head}})


@pytest.mark.parametrize("file, may_be_new", [
    ("task.json", head_may_be_new), ("albert_config.json", lambda name: False)])
def test_outputs_are_put_in_the_order_of_the_labels(file, may_be_new, tmp_path):
    """For training and for use, of a run and of a conversion."""
    make = functools.partial(models.classifier, TINY, 3)
    tensors, path = stored(tmp_path, make())
    (tmp_path / file).write_text(json.dumps({
        **TINY.to_dict(), "task": "custom", "labels": ["a", "b", "c"]}))
    model = make()
    tf1.restore_tf1(model, path, may_be_new=may_be_new, labels=["c", "a", "b"])
    outputs = [name for name in tensors if name.endswith(
        ("output_weights", "output_bias"))]
    assert len(outputs) == 2
    assert_holds(model, {
        **tensors, **{name: tensors[name][[2, 0, 1]] for name in outputs}})


def test_outputs_of_a_foreign_model_are_put_in_order_too(tmp_path, caplog):
    """Hugging Face's MNLI has another order than the task, and capitals."""
    there = tiny_models.write(tmp_path / "run", "classes")
    convert(there, str(tmp_path / "hf"), "hf")
    path = tmp_path / "hf" / "config.json"
    values = json.loads(path.read_text())
    names = ["entailment", "neutral", "contradiction"]
    tensors = formats.read(there).tensors
    for theirs, rows in ((map(str.upper, names), [2, 0, 1]), (
            ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1, 2])):
        path.write_text(json.dumps({**values, "id2label": dict(enumerate(theirs))}))
        model = models.classifier(tiny_models.TINY, 3)
        tf1.restore_tf1(model, str(tmp_path / "hf"), labels=sorted(names))
        assert_holds(model, {name: tensor.read()[rows] if name.startswith("output_")
                             else tensor.read() for name, tensor in tensors.items()})
    assert "assumed to be, in the order of its outputs: contradiction, " in caplog.text


def test_encoder_is_never_new(tmp_path):
    tensors = numbered_tensors(pretrainer())
    lost = f"{GROUP.format(0)}/attention_1/self/key/kernel"
    model = models.classifier(TINY, 3)
    check_refused(
        model, write(tmp_path, {n: v for n, v in tensors.items() if n != lost}),
        "lacks: 1", lost, may_be_new=head_may_be_new)
    tensors[lost] = tensors[lost][:, :4]
    check_refused(model, write(tmp_path, tensors), "a different shape: 1", lost,
                  may_be_new=head_may_be_new)
    _, path = stored(tmp_path, pretrainer(num_hidden_groups=2))
    check_refused(model, path, "the model does not have: 16", may_be_new=head_may_be_new)


def test_nothing_that_matches_stops_in_any_case(tmp_path):
    path = write(tmp_path, {"module/weights": np.zeros(3, "f")})
    check_refused(pretrainer(), path, "none of its 1 tensors", allow_partial=True)


# ---- tensors in memory, export ---------------------------------------------


def test_export_is_read_by_tf1_and_here(tmp_path):
    model, tensors = numbered_model()
    path = str(tmp_path / "made" / "model.ckpt")
    tf1.export_tf1(model, path)
    assert sorted(os.listdir(tmp_path / "made")) == [
        "model.ckpt.data-00000-of-00001", "model.ckpt.index"]
    tf1.load_tf1_tensors(model, numbered_tensors(model, seed=1))
    assert tf1.restore_tf1(model, path).complete
    assert_holds(model, tensors)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {name: tf.compat.v1.get_variable(name, value.shape)
                     for name, value in tensors.items()}
        tf.compat.v1.train.Saver(variables).restore(session, path)
        np.testing.assert_equal(session.run(variables), tensors)


# ---- group 0 for all groups ------------------------------------------------


@pytest.mark.parametrize("changes, variables, stored_groups", [
    ({"num_hidden_groups": 2}, 48, 4), ({"parameter_sharing": "ffn"}, 62, 1)])
def test_every_group_gets_group_0(changes, variables, stored_groups, tmp_path):
    tensors, path = stored(tmp_path, pretrainer(num_hidden_groups=stored_groups))
    model = pretrainer(**changes)
    report = tf1.restore_tf1(model, path, init_from_group0=True)
    assert report.complete and len(report.matched) == len(model.weights) == variables
    for name, value in tf1.tf1_tensors(model).items():
        parts = ["group_0" if part.startswith("group_") else part
                 for part in name.split("/")]
        np.testing.assert_array_equal(value, tensors["/".join(parts)], err_msg=name)
    # What was not taken is reported all the same.
    assert list(report.dropped) == sorted(
        name for name in tensors for group in range(1, stored_groups)
        if name.startswith(GROUP.format(group)))


# ---- this project's own checkpoints ----------------------------------------


def training_checkpoint(model):
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=optimizer,
                               step=optimizer.iterations)


def test_own_training_checkpoint_by_name(tmp_path):
    model, tensors = numbered_model()
    prefix = str(tmp_path / "model.ckpt-best")
    checkpoint_files.write_whole(training_checkpoint(model), prefix)
    np.testing.assert_equal(checkpoint_files.read_tensors(prefix), tensors)
    for other in (pretrainer(), AlbertModel(TINY)):
        report = tf1.restore_tf1(other, str(tmp_path))
        assert report.complete and report.source == prefix
        assert_holds(other, tensors)


def test_keras_weights_file_by_name(tmp_path):
    model = pretrainer()
    model.compile(optimizer="adam")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(str(tmp_path / "weights"))
    found = checkpoint_files.read_tensors(str(tmp_path / "weights"))
    assert sorted(found) == sorted(tf1.tf1_tensors(model))


def test_object_checkpoint_whose_names_are_ambiguous(tmp_path):
    module = tf.Module()
    module.one = tf.Variable(1.0, name="same")
    module.two = tf.Variable(2.0, name="same")
    path = tf.train.Checkpoint(model=module).write(str(tmp_path / "model.ckpt"))
    with pytest.raises(InputError, match="two variables.*'same'"):
        checkpoint_files.read_tensors(path)


def test_weights_under_a_mirrored_strategy(tmp_path):
    tensors, path = stored(tmp_path, pretrainer())
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = pretrainer()
        saved = training_checkpoint(model)
    tf1.restore_tf1(model, path)
    for variable in model.weights:
        for copy in strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(copy, tensors[variable.name[:-2]])
    other = numbered_tensors(model, seed=1)
    with strategy.scope():
        tf1.load_tf1_tensors(model, other)
        assert_holds(model, other)
    prefix = str(tmp_path / "run" / "model.ckpt-best")
    checkpoint_files.write_whole(saved, prefix)
    single = pretrainer()
    assert tf1.restore_tf1(single, prefix).complete
    assert_holds(single, other)


# ---- the config beside checkpoints -----------------------------------------


def test_config_beside_checkpoints(tmp_path):
    config = AlbertConfig.from_dict({**TINY.to_dict(), "gap_size": 0})
    for _ in range(2):
        tf1.write_config(str(tmp_path), config)
    with pytest.raises(InputError, match=f"{tmp_path}.*hidden_size is 8 there and 16"):
        tf1.write_config(str(tmp_path), TINY.replace(hidden_size=16))
    assert tf1.read_config(str(tmp_path)) == config


# ---- damage ----------------------------------------------------------------


def test_a_damaged_checkpoint_or_numbers_that_are_none_change_no_weight(tmp_path):
    model = pretrainer()
    tensors, path = stored(tmp_path, model)
    data = pathlib.Path(path + ".data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[8] ^= 1
    data.write_bytes(content)
    check_refused(model, path, "tensor ")
    tensors["bert/pooler/dense/bias"][1] = np.inf
    check_refused(model, write(tmp_path, tensors), "pooler/dense/bias holds NaN or inf")
