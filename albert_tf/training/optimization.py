"""Learning rate, gradient clipping, AdamW and LAMB; the formulas are the original's.

Sources: LAMB is You et al. 2019, "Large Batch Optimization for Deep Learning", and
`lamb_optimizer.py` of Google's TF1 code, "the original" below. AdamW and the learning
rate are from its `optimization.py` (`AdamWeightDecayOptimizer`, `create_optimizer`).
ALBERT is trained with LAMB, a learning rate of 0.00176 and batches of 4096 (section 4.1
of the paper).

With m and v the running means of the gradient and of its square, every step is

    u = m / (sqrt(v) + epsilon) + weight_decay_rate * w
    w = w - learning_rate * r * u

where r is 1 in AdamW and ||w|| / ||u|| in LAMB. Variables whose names match
NO_DECAY_PATTERNS have neither weight decay nor r. With LAMB's ratio each variable moves
by the same fraction of its own norm, however large its gradients are: one learning rate
then suits all layers, even with the large batches of the paper.

The moments start at 0. Neither optimizer corrects this bias; other libraries do.
Without correction the first update is (1 - beta_1) / sqrt(1 - beta_2), about 3, times
as large. This does no harm, because the learning rate is still low in the warm-up, and
because LAMB's ratio divides by ||u||.

A training loop averages the gradients over the replicas, clips the mean with
`clip_by_global_norm`, so that the step is that of the whole batch on one device, and then
calls `optimizer.apply_gradients` on every replica. The original clips on every replica,
and adds up: --replica_gradients=sum.
"""

import collections
import functools
import math
import re
from typing import Callable, Iterable, Mapping, Optional, Sequence, Union

from absl import logging
import tensorflow as tf

from albert_tf.errors import InputError

Gradient = Union[tf.Tensor, tf.IndexedSlices]

# Regular expressions that are searched for in variable names. As in the original, the
# same variables have neither weight decay nor LAMB's ratio.
NO_DECAY_PATTERNS = ("LayerNorm", "layer_norm", "bias")


# ---- learning rate ---------------------------------------------------------


class WarmupPolynomialDecay:
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


def dense_float32(gradients: Iterable[Gradient]) -> list[tf.Tensor]:
    """Returns each gradient as a float32 tensor; rows of the same index are summed."""
    return [tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for gradient in gradients]


def clip_by_global_norm(
        gradients: Iterable[Gradient], clip_norm: float = 1.0,
        squares: Optional[Mapping[int, tf.Tensor]] = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scales gradients down together so that their joint norm is at most `clip_norm`.

    A token that occurs several times in a batch has several rows in the gradient of the
    embeddings. By default rows of the same token are summed before the norm is taken,
    as on TPUs, where the published models were trained. `squares` gives the sum of
    squares to use instead for the gradient of an index: those of `squares_of_rows`
    count each row separately, as in the original on CPU and GPU.

    Returns the clipped gradients, dense float32, and the global norm before clipping.
    If the norm is not finite, every gradient becomes NaN, so that the faulty step is
    noticed.
    """
    # The square of the joint norm is the sum of the squares of all gradients.
    dense = dense_float32(gradients)
    squares = {**dict(enumerate(map(_sum_of_squares, dense))), **(squares or {})}
    # One factor for all keeps the direction of the step: 1, or less for a large norm.
    norm = tf.sqrt(tf.add_n(list(squares.values())))
    scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)
    scale = tf.where(tf.math.is_finite(norm), scale, math.nan)
    return [gradient * scale for gradient in dense], norm


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


def name_of(variable: tf.Variable) -> str:
    """Returns a variable's name in a checkpoint, without ":0"."""
    return variable.name.split(":")[0]


class MomentsOptimizer(tf.Module):
    """The common part of AdamW and LAMB: the moments and the update of a variable.

        optimizer = create_optimizer(0.00176, num_train_steps=125000,
                                     num_warmup_steps=3125, optimizer="lamb")
        optimizer.build(model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    The moments of a variable are called `<variable>/adam_m` and `<variable>/adam_v`, as
    in the original. Checkpoints store them by these names, so that the order of the
    variables does not matter, nor whether a checkpoint is restored before or after
    `build`.

    Args:
      schedule: step → learning rate. A step uses schedule(k), where k is the value of
        `iterations` before the step; afterwards `learning_rate` holds it.
      weight_decay_rate: fraction of a variable that is added to its update.
      beta_1, beta_2: decay of the running means of the gradient and of its square.
      epsilon: added to the square root of the latter.
      no_decay: regular expressions; variables whose name contains a match have no
        weight decay, and no ratio in LAMB.
    """

    def __init__(self, schedule: Callable[[tf.Tensor], tf.Tensor],
                 weight_decay_rate: float = 0.01, beta_1: float = 0.9,
                 beta_2: float = 0.999, epsilon: float = 1e-6,
                 no_decay: Sequence[str] = NO_DECAY_PATTERNS):
        super().__init__()
        self.schedule, self.weight_decay_rate = schedule, weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.no_decay = "|".join(no_decay)
        # Checkpoints know these attributes by the names that Keras' optimizers have.
        self._iterations = tf.Variable(
            0, trainable=False, dtype=tf.int64, name="iteration")
        self._current_learning_rate = tf.Variable(
            schedule(self._iterations), trainable=False, name="current_learning_rate")
        self.slots: dict[str, tf.Variable] = {}

    @property
    def iterations(self) -> tf.Variable:
        """The number of steps done, int64."""
        return self._iterations

    @property
    def learning_rate(self) -> tf.Variable:
        """The learning rate of the latest step."""
        return self._current_learning_rate

    def build(self, variables: Iterable[tf.Variable]) -> None:
        """Creates the moments, once, in the strategy's scope; `variables` must contain
        all that will have gradients."""
        if self.slots:
            return
        variables = list(variables)
        for name, count in collections.Counter(map(name_of, variables)).items():
            if count > 1:
                raise InputError(f"{count} variables are called '{name}'; give each a "
                                 "name of its own, under which its moments are kept.")
        strategy = tf.distribute.get_strategy()
        for variable in variables:
            name = name_of(variable)
            # On the device of the variable. A trailing slash makes the scope absolute,
            # whatever scope encloses it.
            with (strategy.extended.colocate_vars_with(variable),
                  tf.name_scope(f"{name}/")):
                for kind in ("adam_m", "adam_v"):
                    self.slots[f"{name}/{kind}"] = tf.Variable(
                        tf.zeros(variable.shape, tf.float32), trainable=False,
                        name=kind)

    def has_decay(self, variable: tf.Variable) -> bool:
        """Returns True if weight decay, and in LAMB the ratio, apply to a variable."""
        return not self.no_decay or not re.search(self.no_decay, name_of(variable))

    def apply_gradients(
            self, grads_and_vars: Iterable[tuple[Gradient, tf.Variable]]) -> None:
        """Takes a step: updates each variable. In a strategy, call it on every replica,
        with the gradients of the whole batch."""
        gradients, variables = zip(*grads_and_vars)
        self._current_learning_rate.assign(self.schedule(self._iterations))
        with tf.init_scope():
            self.build(variables)
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update_all, tf.distribute.get_strategy(), dense_float32(gradients),
            variables)

    def _update_all(self, strategy, gradients, variables):
        """Updates one variable after another: otherwise a graph would start all updates
        at once, and hold several tensors for each."""
        last_update = []
        for gradient, variable in zip(gradients, variables):
            name = name_of(variable)
            update = functools.partial(
                self.update_step, has_decay=self.has_decay(variable))
            with tf.control_dependencies(last_update):
                last_update = tf.nest.flatten(strategy.extended.update(
                    variable, update, group=False, args=(
                        self.slots[f"{name}/adam_m"], self.slots[f"{name}/adam_v"],
                        gradient)))
        self._iterations.assign_add(1)

    def update_step(self, variable: tf.Variable, m: tf.Variable, v: tf.Variable,
                    gradient: tf.Tensor, has_decay: bool) -> tf.Tensor:
        """Updates one variable and its moments from a gradient of its shape; the scalar
        that it returns is available when the update is complete."""
        # 1. m and v move a little towards this gradient and its square. m is assigned
        #    before v is computed, to hold fewer tensors at a time.
        m.assign(self.beta_1 * m + (1.0 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient))
        # 2. The direction: the mean gradient, relative to the usual size of gradients.
        #    Neither moment is corrected for its start at 0.
        update = m / (tf.sqrt(v) + self.epsilon)
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

    def ratio(self, weights: tf.Tensor, update: tf.Tensor) -> Union[float, tf.Tensor]:
        """Returns a factor for the update of a variable, besides the learning rate."""
        return 1.0


class AdamW(MomentsOptimizer):
    """Adam with weight decay in the update (original: `AdamWeightDecayOptimizer`)."""


class Lamb(MomentsOptimizer):
    """LAMB (You et al. 2019; original: `LAMBOptimizer`). The ratio is not clipped."""

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
        weight_decay_rate: float = 0.01, decay_share: float = 1.0) -> MomentsOptimizer:
    """Makes the optimizer of a run, with its schedule (original: `create_optimizer`).

    `optimizer` is "lamb" or "adamw"; for the rest see WarmupPolynomialDecay and
    MomentsOptimizer.
    """
    schedule = WarmupPolynomialDecay(
        init_lr, num_train_steps, num_warmup_steps, poly_power, start_warmup_step,
        decay_share)
    # This is allowed, but probably a mistake.
    if num_warmup_steps > num_train_steps:
        logging.warning(
            "The warm-up of %d steps is longer than the training of %d: the learning "
            "rate never reaches %g.", num_warmup_steps, num_train_steps, init_lr)
    return OPTIMIZERS[optimizer](schedule, weight_decay_rate=weight_decay_rate)
