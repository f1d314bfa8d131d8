"""Schedules: functions of a step's number. So far the learning rate alone."""

import math
import operator

import tensorflow as tf
import tf_keras

from albert_tf.errors import InputError


def _whole_number(name: str, value, least: int) -> int:
    """`value` as an int, at least `least`, or an InputError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is {value}; give a whole number of at least {least}.")
    return number


def not_negative(name: str, value) -> float:
    """`value` as a finite float of at least 0, or an InputError that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name} is {value}; give a number of at least 0.")
    return number


@tf_keras.utils.register_keras_serializable("albert_tf")
class WarmupPolynomialDecay(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to 0 (release: `create_optimizer`).

        WarmupPolynomialDecay(0.00176, 125000, 3125)(1000)  # 0.00176 * 1000 / 3125

    The decay counts from step 0, not from the end of the warm-up, so the rate drops a
    little where the warm-up ends. It is computed in float32 with a reciprocal in place
    of the division, as in the release's graphs: towards the end 1 - step /
    num_train_steps has few digits left and shows any difference.

    Args:
      init_lr: rate that the warm-up ramps to and the decay starts from.
      num_train_steps: step from which the rate is 0 (unless still warming up).
      num_warmup_steps: 0 for none.
      poly_power: power of the decay; 1.0 is linear.
      start_warmup_step: step at which the warm-up starts. Before it the rate is 0 (the
        release gets a negative one). Without warm-up it has no effect.
      decay_share: the part of the steps, at the end, in which the rate decays. Below 1
        it stays at init_lr between warm-up and decay, so that a run can be continued
        from there with more steps (warmup-stable-decay: Hu et al., 2024, "MiniCPM").
    """

    def __init__(self, init_lr: float, num_train_steps: int, num_warmup_steps: int = 0,
                 poly_power: float = 1.0, start_warmup_step: int = 0,
                 decay_share: float = 1.0):
        self.init_lr = not_negative("init_lr", init_lr)
        self.num_train_steps = _whole_number("num_train_steps", num_train_steps, 1)
        self.num_warmup_steps = _whole_number("num_warmup_steps", num_warmup_steps, 0)
        self.poly_power = not_negative("poly_power", poly_power)
        self.start_warmup_step = _whole_number(
            "start_warmup_step", start_warmup_step, 0)
        self.decay_share = not_negative("decay_share", decay_share)
        if not 0 < self.decay_share <= 1:
            raise InputError(f"decay_share is {decay_share}; give a number over 0, and 1 "
                             "at most.")

    def __call__(self, step) -> tf.Tensor:
        """Rate of step `step`, an integer scalar: float32 scalar."""
        # Whole numbers are compared and subtracted as such: float32 cannot tell
        # neighbouring steps apart beyond 2^24.
        step = tf.cast(step, tf.int64)
        init_lr = tf.constant(self.init_lr, tf.float32)
        done = (tf.cast(tf.minimum(step, self.num_train_steps), tf.float32)
                * (1.0 / tf.constant(self.num_train_steps, tf.float32)))
        # XLA does not round the product before it subtracts: at the end it may
        # find a remainder of either sign, and a root of a negative one is NaN.
        left = tf.where(step < self.num_train_steps, tf.maximum(1.0 - done, 0.0), 0.0)
        if self.decay_share < 1:
            left = tf.minimum(left / self.decay_share, 1.0)
        rate = init_lr * tf.pow(left, self.poly_power)
        if not self.num_warmup_steps:
            return rate
        warm_steps = step - self.start_warmup_step
        warm = (tf.cast(tf.maximum(warm_steps, 0), tf.float32)
                * (1.0 / tf.constant(self.num_warmup_steps, tf.float32)))
        return tf.where(warm_steps < self.num_warmup_steps, init_lr * warm, rate)

    def get_config(self) -> dict:
        return {name: getattr(self, name) for name in (
            "init_lr", "num_train_steps", "num_warmup_steps", "poly_power",
            "start_warmup_step", "decay_share")}
