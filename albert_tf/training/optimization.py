"""Learning rate, gradient clipping, AdamW and LAMB, as in the original implementation.

Sources: LAMB is You et al. 2019, "Large Batch Optimization for Deep Learning", and
`lamb_optimizer.py` of Google's TF1 code, "the original" below. AdamW and the learning
rate are from its `optimization.py` (`AdamWeightDecayOptimizer`, `create_optimizer`).
ALBERT is trained with LAMB, a learning rate of 0.00176 and batches of 4096 (section 4.1
of the paper).

With m and v the running means of the gradient and of its square, every step is

    u = m / (sqrt(v) + epsilon) + weight_decay_rate * w
    w = w - learning_rate * r * u

where r is 1 in AdamW and ||w|| / ||u|| in LAMB. Variables of the group `no_decay` have
neither weight decay nor r. With LAMB's ratio each variable moves by the same fraction
of its own norm, however large its gradients are: one learning rate then suits all
layers, even with the large batches of the paper.

The moments start at 0. Neither optimizer corrects this bias; other libraries do.
Without correction the first update is (1 - beta_1) / sqrt(1 - beta_2), about 3, times
as large. This does no harm, because the learning rate is still low in the warm-up, and
because LAMB's ratio divides by ||u||.

A training loop averages the gradients over the replicas, clips the mean with
`clip_by_global_norm`, so that the step is that of the whole batch on one device, and then
calls `optimizer.apply_gradients(..., skip_gradients_aggregation=True)`. Names, moments
and groups of variables are in training.keras_optimizer.
"""

import math
from typing import Iterable, Mapping, Optional, Sequence, Union

from absl import logging
import tensorflow as tf
import tf_keras

from albert_tf.training.keras_optimizer import (
    Gradient, KerasOptimizer, dense_float32)

# ---- learning rate ---------------------------------------------------------


class WarmupPolynomialDecay(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay to 0 (original: `create_optimizer`).

        WarmupPolynomialDecay(0.00176, 125000, 3125)(1000)  # 0.00176 * 1000 / 3125

    The decay counts from step 0, not from the end of the warm-up, so the learning rate
    drops a little when the warm-up ends. It is computed in float32, and multiplies by
    the reciprocal instead of dividing, as in the original's graphs: towards the end,
    1 - step / num_train_steps has so few digits left that any difference shows.

    Args:
      init_lr: learning rate that the warm-up reaches and the decay starts from.
      num_train_steps: step from which the learning rate is 0 (unless still warming up).
      num_warmup_steps: length of the warm-up; 0 for none.
      poly_power: power of the decay; 1.0 is linear.
      start_warmup_step: step at which the warm-up starts. Before it the learning rate
        is 0 (negative in the original). Without warm-up it has no effect.
      decay_share: fraction of the steps, at the end, in which the learning rate decays.
        Below 1 it stays at init_lr between warm-up and decay, and a run can be
        continued from there with more steps (warmup-stable-decay: Hu et al., 2024,
        "MiniCPM").
    """

    def __init__(self, init_lr: float, num_train_steps: int, num_warmup_steps: int = 0,
                 poly_power: float = 1.0, start_warmup_step: int = 0,
                 decay_share: float = 1.0):
        self.init_lr, self.poly_power = init_lr, poly_power
        self.num_train_steps, self.num_warmup_steps = num_train_steps, num_warmup_steps
        self.start_warmup_step, self.decay_share = start_warmup_step, decay_share

    def __call__(self, step) -> tf.Tensor:
        """Returns the learning rate, float32, of step `step`; both are scalars."""
        # 1. What fraction of the training is still to come. Steps are compared and
        #    subtracted as integers: float32 cannot tell them apart beyond 2^24.
        step = tf.cast(step, tf.int64)
        init_lr = tf.constant(self.init_lr, tf.float32)
        progress = (tf.cast(tf.minimum(step, self.num_train_steps), tf.float32)
                    * (1.0 / tf.constant(self.num_train_steps, tf.float32)))
        # XLA does not round the product before it subtracts: at the end the remainder
        # may be slightly negative, and a root of it would be NaN.
        remainder = tf.where(
            step < self.num_train_steps, tf.maximum(1.0 - progress, 0.0), 0.0)
        # 2. The decay takes all steps, or only the last ones, after a constant phase.
        if self.decay_share < 1:
            remainder = tf.minimum(remainder / self.decay_share, 1.0)
        rate = init_lr * tf.pow(remainder, self.poly_power)
        if not self.num_warmup_steps:
            return rate
        # 3. During the warm-up the learning rate grows linearly from 0 instead.
        warmup_step = step - self.start_warmup_step
        warmup_progress = (tf.cast(tf.maximum(warmup_step, 0), tf.float32)
                           * (1.0 / tf.constant(self.num_warmup_steps, tf.float32)))
        return tf.where(
            warmup_step < self.num_warmup_steps, init_lr * warmup_progress, rate)


# ---- gradients -------------------------------------------------------------


def clip_by_global_norm(
        gradients: Iterable[Gradient], clip_norm: float = 1.0,
        squares: Optional[Mapping[int, tf.Tensor]] = None,
) -> tuple[list[Optional[tf.Tensor]], tf.Tensor]:
    """Scales gradients down together so that their joint norm is at most `clip_norm`.

    A token that occurs several times in a batch has several rows in the gradient of the
    embeddings. By default rows of the same token are summed before the norm is taken,
    as on TPUs, where the published models were trained. `squares` gives the sum of
    squares to use instead for the gradient of an index: those of `squares_of_rows`
    count each row separately, as in the original on CPU and GPU.

    Returns the clipped gradients, dense float32 (None stays None), and the global norm
    before clipping. If the norm is not finite, every gradient becomes NaN, so that the
    faulty step is noticed.
    """
    # The square of the joint norm is the sum of the squares of all gradients.
    dense = dense_float32(gradients)
    squares = {**{index: _sum_of_squares(gradient)
                  for index, gradient in enumerate(dense) if gradient is not None},
               **(squares or {})}
    if not squares:
        raise ValueError("There is no gradient to clip: all of them are None.")
    # One factor for all keeps the direction of the step: 1, or less for a large norm.
    norm = tf.sqrt(tf.add_n(list(squares.values())))
    scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)
    scale = tf.where(tf.math.is_finite(norm), scale, math.nan)
    return [None if g is None else g * scale for g in dense], norm


def _sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
    """Returns Σ x², a scalar, without storing the squares as a tensor."""
    return 2.0 * tf.nn.l2_loss(tensor)


def squares_of_rows(gradients: Iterable[Gradient]) -> dict[int, tf.Tensor]:
    """Maps the index of each gradient that is IndexedSlices to the sum of squares of
    its rows; several rows of one token are not summed before."""
    return {index: _sum_of_squares(tf.cast(gradient.values, tf.float32))
            for index, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)}


# ---- optimizers ------------------------------------------------------------


class MomentsOptimizer(KerasOptimizer):
    """The common part of AdamW and LAMB: the update of a variable.

        optimizer = create_optimizer(0.00176, num_train_steps=125000,
                                     num_warmup_steps=3125, optimizer="lamb")
        optimizer.build(model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    Its arguments are those of KerasOptimizer.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Updates one variable and its moments from a gradient of its shape; the scalar
        that it returns is available when the update is complete."""
        m, v, has_decay = self.moments(variable)
        # 1. m and v move a little towards this gradient and its square. m is assigned
        #    before v is computed, to hold fewer tensors at a time.
        m.assign(self.beta_1 * m + (1.0 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient))
        # 2. The direction: the mean gradient, relative to the usual size of gradients.
        #    Neither moment is corrected for its start at 0.
        update = self.direction(m, v)
        weights = tf.cast(variable, tf.float32)
        if has_decay:
            # 3. Weight decay pulls the weights towards 0. It is no part of the moments.
            update += self.weight_decay_rate * weights
            # 4. LAMB's trust ratio gives the update the norm of the weights, whatever
            #    its own norm was. In AdamW the ratio is 1.
            update *= self.ratio(weights, update)
        # 5. Take the step, whose length the learning rate scales.
        rate = tf.cast(self.learning_rate, tf.float32)
        assignment = variable.assign_sub(
            tf.cast(rate * update, variable.dtype), read_value=False)
        with tf.control_dependencies([] if assignment is None else [assignment]):
            return tf.identity(rate)

    def direction(self, m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """Returns the update of a variable before weight decay, from its moments."""
        return m / (tf.sqrt(v) + self.epsilon)

    def ratio(self, weights: tf.Tensor, update: tf.Tensor) -> Union[float, tf.Tensor]:
        """Returns a factor for the update of a variable, besides the learning rate."""
        return 1.0


class AdamW(MomentsOptimizer):
    """Adam with weight decay in the update (original: `AdamWeightDecayOptimizer`)."""


class Lamb(MomentsOptimizer):
    """LAMB (You et al. 2019; original: `LAMBOptimizer`). The ratio is not clipped."""

    has_ratio = True

    def ratio(self, weights, update):
        """||weights|| / ||update||, or 1 where either is 0: float32 scalar."""
        # Each variable has one ratio. A kernel that all layers share therefore has one
        # for all of its uses together.
        weights_norm = tf.sqrt(_sum_of_squares(weights))
        update_norm = tf.sqrt(_sum_of_squares(update))
        # A variable of zeros has norm 0, but must be able to leave it: its ratio is 1.
        return tf.where((weights_norm > 0) & (update_norm > 0),
                        weights_norm / update_norm, 1.0)


OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}


def create_optimizer(
        init_lr: float, num_train_steps: int, num_warmup_steps: int,
        optimizer: str = "lamb", poly_power: float = 1.0, start_warmup_step: int = 0,
        weight_decay_rate: float = 0.01, excluded: Sequence[str] = (),
        decay_share: float = 1.0) -> MomentsOptimizer:
    """Makes the optimizer of a run, with its schedule (original: `create_optimizer`).

    `optimizer` is "lamb" or "adamw"; for the rest see WarmupPolynomialDecay and
    KerasOptimizer.
    """
    schedule = WarmupPolynomialDecay(
        init_lr, num_train_steps, num_warmup_steps, poly_power, start_warmup_step,
        decay_share)
    # This is allowed, but probably a mistake.
    if schedule.num_warmup_steps > schedule.num_train_steps:
        logging.warning(
            "The warm-up of %d steps is longer than the training of %d: the learning "
            "rate never reaches %g.", schedule.num_warmup_steps,
            schedule.num_train_steps, schedule.init_lr)
    return OPTIMIZERS[optimizer](
        schedule, weight_decay_rate=weight_decay_rate, excluded=excluded)
