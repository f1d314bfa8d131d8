"""Schedule, clipping, optimizers: NumPy, the release's outputs, wrong inputs."""

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors, tf1_tensors
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.training import losses, optimization
from albert_tf.training.optimization import WarmupPolynomialDecay, create_optimizer
from tests import models
from tests.helpers import FIXTURES, SHARED

FOLDER = FIXTURES / "optimization"
RUNS = json.loads((FOLDER / "runs.json").read_text())
SCHEDULES = json.loads((FOLDER / "learning_rates.json").read_text())


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_rates_are_the_releases(index):
    schedule = WarmupPolynomialDecay(**{
        name: value for name, value in SCHEDULES[index].items() if name != "steps"})
    stored = np.load(FOLDER / "learning_rates.npz")
    # Before start_warmup_step the release's rates are negative.
    np.testing.assert_allclose(
        [schedule(step) for step in tf.constant(stored[f"steps_{index}"])],
        np.maximum(stored[f"lr_{index}"], 0.0), rtol=1e-6, atol=0)


def test_rate_past_the_end_is_zero_and_never_nan_under_xla():
    step = tf.Variable(0, dtype=tf.int64)
    for num_train_steps in (10, 41, 47, 50, 55):
        rate = tf.function(WarmupPolynomialDecay(1.0, num_train_steps, 0, 0.5),
                           jit_compile=True)
        step.assign(num_train_steps)
        assert float(rate(step)) == 0.0


def test_neighbouring_steps_beyond_float32_are_told_apart():
    start = 2 ** 25
    schedule = WarmupPolynomialDecay(1.0, 2 ** 26, 4, start_warmup_step=start)
    np.testing.assert_allclose(
        [schedule(tf.constant(start + k, tf.int64)) for k in range(5)],
        [0, 0.25, 0.5, 0.75, 0.5], rtol=1e-6)


def test_the_rate_stays_until_its_decay():
    """Warm-up, stable, decay."""
    schedule, power = (WarmupPolynomialDecay(
        2.0, 100, 10, power, decay_share=0.2) for power in (1.0, 2.0))
    assert [float(schedule(step)) for step in (0, 5, 10, 50, 80, 90, 95, 100, 200)] == (
        pytest.approx([0, 1, 2, 2, 2, 1, 0.5, 0, 0], abs=1e-5))
    assert float(power(90)) == pytest.approx(0.5, abs=1e-5)


def test_clipping_to_the_dense_norm():
    dense, sparse = tf.constant([1.0, -1.0]), tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [3.0, 4.0], [-2.0, 1.0]]), tf.constant([2, 0, 2]),
        dense_shape=tf.constant([4, 2]))
    clipped, norm = optimization.clip_by_global_norm([dense, sparse], 0.5)
    rows = np.array([[3, 4], [0, 0], [-1, 3], [0, 0]])
    assert float(norm) == pytest.approx(np.sqrt(2 + 25 + 10))
    np.testing.assert_allclose(clipped[0], 0.5 / norm * dense, rtol=1e-6)
    np.testing.assert_allclose(clipped[1], 0.5 / norm * rows, rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_a_norm_that_is_not_finite_shows_in_every_gradient(value):
    clipped, norm = optimization.clip_by_global_norm(
        [tf.constant([value], tf.float32), tf.constant([1.0])])
    assert not np.isfinite(norm)
    assert np.isnan(clipped).all()


# One variable of each kind: decayed, decayed but zero (ratio 1), neither.
TOY = {"layer/kernel": [[0.5, -1.0], [2.0, 0.25]], "layer/zeros": [0.0, 0.0],
       "layer/bias": [0.5, -0.5], "block/LayerNorm/gamma": [1.0, 2.0],
       "table": [[1.0, 1.0], [2.0, -1.0], [0.5, 3.0]]}


def toy_variables(names=tuple(TOY)):
    return [tf.Variable(np.float32(TOY[name]), name=name) for name in names]


def toy_gradients(step, variables):
    """The same for a name and step, whatever the order; one is all zero."""
    gradients = []
    for variable in variables:
        name = variable.name.split(":")[0]
        numbers = np.random.default_rng([step, *name.encode()])
        gradient = numbers.standard_normal(variable.shape).astype("f")
        gradients.append(tf.constant(gradient * (name != "layer/zeros" or step > 1)))
    return gradients


def run(optimizer, variables, steps):
    for step in steps:
        optimizer.apply_gradients(zip(toy_gradients(step, variables), variables))


def values(variables):
    return {variable.name.split(":")[0]: variable.numpy() for variable in variables}


@pytest.mark.parametrize("weight_decay_rate", [0.01, 0.0, 0.3])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_a_first_update_is_that_of_numpy(kind, weight_decay_rate):
    """The release's runs have more of them, all with one rate of decay."""
    variables = toy_variables()
    gradients = toy_gradients(0, variables)
    create_optimizer(0.1, 20, 0, kind, weight_decay_rate=weight_decay_rate
                     ).apply_gradients(zip(gradients, variables))
    for (name, found), g in zip(values(variables).items(), map(np.float64, gradients)):
        weights = np.float64(TOY[name])
        update = 0.1 * g / (np.sqrt(0.001) * np.abs(g) + 1e-6)
        if name not in ("layer/bias", "block/LayerNorm/gamma"):
            update += weight_decay_rate * weights
            if kind == "lamb" and np.any(weights) and np.any(update):
                update *= np.linalg.norm(weights) / np.linalg.norm(update)
        np.testing.assert_allclose(
            found, weights - 0.1 * update, rtol=2e-5, err_msg=name)


def checkpoint_of(variables, optimizer):
    by_name = {v.name.split(":")[0]: v for v in variables}
    return tf.train.Checkpoint(optimizer=optimizer, variables=by_name)


@pytest.mark.parametrize("kind, build_first", [("adamw", True), ("lamb", False)])
def test_a_run_goes_on_from_a_checkpoint_as_if_unbroken(tmp_path, kind, build_first):
    variables, optimizer = toy_variables(), create_optimizer(0.1, 20, 2, kind)
    # Some tools look at what is tracked before the optimizer is built.
    first_half = checkpoint_of(variables, optimizer)
    first_half.write(str(tmp_path / "before"))
    run(optimizer, variables, range(3))
    path = first_half.write(str(tmp_path / "ckpt"))
    run(optimizer, variables, range(3, 6))

    # In another order: `layer/zeros` and `layer/bias` have one shape.
    others, later = toy_variables(list(TOY)[::-1]), create_optimizer(0.1, 20, 2, kind)
    if build_first:
        later.build(others)
    status = checkpoint_of(others, later).read(path)
    if build_first:
        status.assert_consumed()
    assert int(later.iterations) == 3
    run(later, others, range(3, 6))
    status.assert_consumed()
    np.testing.assert_equal(values(others), values(variables))
    for name, slot in optimizer.slots.items():
        np.testing.assert_array_equal(later.slots[name], slot, err_msg=name)


@pytest.fixture(scope="module")
def pretraining():
    """The model of the release's runs, and its loss and gradients on batch k."""
    model = models.AlbertForPreTraining(
        AlbertConfig.from_json_file(str(FOLDER / "albert_config.json")))
    batches = np.load(FOLDER / "batches.npz")

    @tf.function(reduce_retracing=True, autograph=False)
    def loss_and_gradients(batch):
        with tf.GradientTape() as tape:
            loss = losses.pretraining_losses(model(batch), batch)["total_loss"]
        return loss, tape.gradient(loss, model.trainable_variables)

    def on_batch(k):
        return loss_and_gradients({name[:-2]: tf.constant(batches[name])
                                   for name in batches if name.endswith(f"_{k % 4}")})

    return model, on_batch


def check_trajectory(pretraining, run_name, settings, golden, start, rates=None):
    """Runs as the release did, with its rates; compares all that `golden` holds.

    Keys `<name>` are compared after the last step, `<name>@k` after step k.
    """
    model, on_batch = pretraining
    load_tf1_tensors(model, start)
    rates = tf.constant(golden["lr"] if rates is None else rates, tf.float32)
    optimizer = optimization.OPTIMIZERS[settings["optimizer"]](lambda step: rates[step])
    # Of the three tables excluded the release goes on to train the second.
    frozen = [f"bert/embeddings/{kind}_embeddings:0" for kind in ("word", "position")
              if run_name == "adamw_excluded"]
    trained = [variable for variable in model.trainable_variables
               if variable.name not in frozen]
    optimizer.build(trained)

    def clip(gradients):
        squares = {} if settings.get("onehot") else (
            optimization.squares_of_rows(gradients))
        return optimization.clip_by_global_norm(gradients, squares=squares)

    last = len(golden["lr"])
    for k in range(last):
        loss, gradients = on_batch(k)
        assert float(loss) == pytest.approx(golden["loss"][k], abs=1e-5)
        _, norm = clip(gradients)
        assert float(norm) == pytest.approx(golden["global_norm"][k], rel=1e-5)
        kept = [g for g, variable in zip(gradients, model.trainable_variables)
                if any(variable is t for t in trained)]
        clipped, _ = clip(kept)
        optimizer.apply_gradients(zip(clipped, trained))
        slots = {name: slot.numpy() for name, slot in optimizer.slots.items()}
        for name, value in (tf1_tensors(model) | slots).items():
            key = name if k + 1 == last and name in golden else f"{name}@{k + 1}"
            assert k + 1 < last or key in golden, "all must be compared at the end"
            if key in golden:
                np.testing.assert_allclose(
                    value, golden[key], rtol=0, err_msg=f"{name} after {k + 1}",
                    atol=1e-7 if "/adam_" in name else 2e-6)


@pytest.mark.parametrize("run_name", [  # Those of others differ in their rates alone.
    name if name in ("lamb", "lamb_onehot", "adamw", "adamw_excluded")
    else pytest.param(name, marks=pytest.mark.long) for name in RUNS])
def test_run_ends_as_the_releases(pretraining, run_name):
    settings = RUNS[run_name]
    start = "start_zero_bias_init" if settings.get("fresh") else "start"
    check_trajectory(
        pretraining, run_name, settings, dict(np.load(FOLDER / f"{run_name}.npz")),
        dict(np.load(FOLDER / f"{start}.npz")))


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize("run_name", [*RUNS, "lamb_refvars", "adamw_refvars"])
def test_every_step_is_the_releases(pretraining, run_name):
    folder = SHARED / "golden" / "optimization"
    run_info = json.loads((folder / "runs.json").read_text())[run_name]
    golden = dict(np.load(folder / f"trajectory_{run_name}.npz"))
    start = {key[:-2]: value for key, value in golden.items()
             if key.endswith("@0") and "/adam_" not in key}
    # Two runs used the rate of the step after.
    check_trajectory(pretraining, run_name, run_info["settings"], golden, start,
                     rates=run_info.get("lr_used"))


def test_two_variables_of_one_name_cannot_be_built():
    variables = toy_variables(["table", "layer/bias", "table"])
    with pytest.raises(InputError, match="2 variables are called 'table'"):
        create_optimizer(0.1, 20, 2).build(variables)
