"""Loss scaling, without which float16 gradients become 0 (Micikevicius et al. 2018).

float16 holds numbers from 6e-8 to 65504, and most gradients of a loss are smaller.
Therefore the loss is multiplied by a scale before the backward pass, and the gradients
are divided by it as soon as they are float32. The scale is kept as large as possible: a
step whose loss or gradient is not finite is skipped and halves the scale; GROWTH_STEPS
good steps double it. The numbers are those of tf_keras's LossScaleOptimizer, which is
not used, as it wraps the optimizer: checkpoints would have other names in float16.
"""

import tensorflow as tf

from albert_tf.training.devices import replica_variable

INITIAL_SCALE = 2.0 ** 15
SMALLEST_SCALE = 1.0
# A loss times this is still finite in float32.
LARGEST_SCALE = 2.0 ** 100
GROWTH_STEPS = 2000


class LossScaling(tf.Module):
    """The state of loss scaling; create it in the strategy's scope and save it.

        scaled = loss * scaling.scale                    # within the gradient tape
        gradients = [scaling.unscale(gradient) for gradient in gradients]
        scaling.update(tf.math.is_finite(loss))

    `scale` is a power of two, so that scaling does not round; `good_steps` counts the
    good steps since it last changed, `skipped_steps` those skipped since step 0.
    """

    def __init__(self):
        super().__init__(name="loss_scaling")
        self.scale = replica_variable(INITIAL_SCALE, tf.float32, "scale")
        self.good_steps = replica_variable(0, tf.int64, "good_steps")
        self.skipped_steps = replica_variable(0, tf.int64, "skipped_steps")

    def unscale(self, gradient):
        """Divides a float32 gradient, dense or IndexedSlices, by the scale."""
        # The inverse of a power of two is also one, so that this is exact.
        factor = 1.0 / self.scale
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                gradient.values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    def update(self, good: tf.Tensor) -> None:
        """Updates the state after a step, in replica context; `good`, a bool scalar and
        the same on all, says whether the step's loss and gradients were finite."""
        scale, steps = tf.identity(self.scale), self.good_steps + 1
        grows = good & (steps >= GROWTH_STEPS)
        self.scale.assign(tf.where(
            good, tf.where(grows, tf.minimum(2.0 * scale, LARGEST_SCALE), scale),
            tf.maximum(0.5 * scale, SMALLEST_SCALE)))
        self.good_steps.assign(tf.where(good & ~grows, steps, 0))
        self.skipped_steps.assign_add(tf.cast(~good, tf.int64))

    def values(self) -> dict[str, float]:
        """Returns the metrics `loss_scale` and `skipped_steps`."""
        return {"loss_scale": float(self.scale.numpy()),
                "skipped_steps": float(self.skipped_steps.numpy())}
