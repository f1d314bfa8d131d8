"""Compares a step on an accelerator with the same step on the CPU, in several ways.

A small model makes one step of plain gradient descent without clipping (which replicas
would do individually), so the difference of two updates is that of the gradients. It is
reported relative to the update's norm, and each number type has a bound. (LAMB's first
update is nearly the sign of the gradient and says little about its accuracy.)
"""

import numpy as np
from absl import logging

from albert_tf.config import AlbertConfig
from benchmarks import contestants

# The largest allowed difference of two updates, relative to the update. Devices may
# compute float32 products in TensorFloat-32 or, on TPUs, in bfloat16 (8 to 11 bits).
BOUNDS = {"float32": 2e-2, "bfloat16": 0.1, "float16": 2e-2}
SMALL = AlbertConfig(
    vocab_size=1000, embedding_size=32, hidden_size=128, num_hidden_layers=4,
    num_attention_heads=4, intermediate_size=512, max_position_embeddings=64,
    # With weights of this size attention matters: two more heads change a quarter of the
    # update. There is no dropout, whose random numbers differ between devices.
    initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_BATCH, _LENGTH = 8, 64


def update_of(strategy, config: AlbertConfig = SMALL, dtype: str = "float32",
              jit_compile: bool = False) -> dict[str, np.ndarray]:
    """Returns what one step of gradient descent at learning rate 1 subtracts from the
    weights, by name, and the "loss"."""
    import tensorflow as tf
    import tf_keras

    from albert_tf.modeling.pretraining import AlbertForPreTraining
    from albert_tf.modeling.encoder import Computation
    from albert_tf.training import losses, optimization, steps
    from albert_tf.training.steps import LossScaling
    from albert_tf.training.options import StepOptions

    class Descent(optimization.MomentsOptimizer):
        def direction(self, m, v):
            return tf.identity(m)  # With beta_1 = 0, the gradient.

    batch = contestants.random_batch(config, _BATCH, _LENGTH)
    with strategy.scope():
        tf_keras.utils.set_random_seed(1)
        model = AlbertForPreTraining(config)
        model(batch)
        before = {v.name: v.numpy() for v in model.trainable_variables}
        optimizer = Descent(
            lambda step: tf.constant(1.0), weight_decay_rate=0.0, beta_1=0.0)
        optimizer.build(model.trainable_variables)

        def dataset(context):
            size = context.get_per_replica_batch_size(_BATCH)
            return tf.data.Dataset.from_tensor_slices(batch).repeat().batch(
                size, drop_remainder=True)

        trainer = steps.Trainer(
            steps.Task(model, losses.PRETRAINING, "masked_lm_accuracy"),
            optimizer, [strategy.distribute_datasets_from_function(dataset)],
            StepOptions(dtype=dtype, jit_compile=jit_compile, clip_norm=1e9),
            scaling=LossScaling() if dtype == "float16" else None,
            computation=Computation(dtype))
        metrics = trainer.train(tf.constant(1))
    update = {v.name: before[v.name] - v.numpy() for v in model.trainable_variables}
    return {**update, "loss": np.float32(
        metrics["masked_lm_loss"] + metrics["sentence_order_loss"])}


def difference(found, expected) -> float:
    """Returns the norm of the difference of two updates over the norm of `expected`."""
    def norm(values):
        return float(np.sqrt(sum(np.sum(np.square(v, dtype=np.float64))
                                 for v in values)))

    names = [name for name in expected if name != "loss"]
    return norm(found[n] - expected[n] for n in names) / norm(
        expected[n] for n in names)


def ways(devices: list[str], tpu: bool) -> list[tuple[str, list[str], str, bool]]:
    """Returns (name, devices, type, XLA) of each step to compare."""
    one = devices[:1]
    found = [("plain", one, "float32", False), ("bfloat16", one, "bfloat16", False),
             ("float16", one, "float16", False), ("XLA", one, "float32", True),
             ("two replicas", devices[:2], "float32", False)]
    # TPUs compile every step, have no float16, and are used as a whole.
    return [(name, devices, dtype, False) for name, _, dtype, _ in found[:2]
            ] if tpu else found


def compare(devices: list[str], make_strategy, tpu: bool) -> list[dict]:
    """Returns a row for each way to compute the step."""
    import tensorflow as tf

    expected = update_of(tf.distribute.OneDeviceStrategy("CPU:0"))
    rows = []
    for name, used, dtype, jit_compile in ways(devices, tpu):
        found = update_of(make_strategy(used), dtype=dtype, jit_compile=jit_compile)
        row = {"step": name, "devices": len(used), "dtype": dtype,
               "loss": float(found["loss"]), "loss_on_cpu": float(expected["loss"]),
               "difference": difference(found, expected), "bound": BOUNDS[dtype]}
        # NaN counts as out of bounds.
        row["right"] = bool(row["difference"] <= row["bound"])
        rows.append(row)
        logging.info(
            "%-12s loss %.5f (CPU %.5f), update differs by %.1e, at most %.0e: %s",
            name, row["loss"], row["loss_on_cpu"], row["difference"], row["bound"],
            "right" if row["right"] else "WRONG")
    return rows
