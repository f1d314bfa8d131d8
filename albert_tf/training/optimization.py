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

A training loop clips each replica's gradients with `clip_by_global_norm`, averages them
over the replicas, and then calls `optimizer.apply_gradients(...,
skip_gradients_aggregation=True)`.
"""

import collections
import math
import operator
import re
from typing import Iterable, Mapping, Optional, Sequence, Union

from absl import logging
import tensorflow as tf
import tf_keras

from albert_tf.errors import InputError

Gradient = Union[tf.Tensor, tf.IndexedSlices, None]

# Groups of variables: with weight decay and LAMB's ratio; with neither; not trained.
DECAY, NO_DECAY, EXCLUDED = "decay", "no_decay", "excluded"

# Regular expressions that are searched for in variable names. As in the original, the
# same variables have neither weight decay nor LAMB's ratio.
NO_DECAY_PATTERNS = ("LayerNorm", "layer_norm", "bias")


# ---- learning rate ---------------------------------------------------------


def _whole_number(name: str, value, least: int) -> int:
    """Returns `value` as an int of at least `least`, or raises InputError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is {value}; give a whole number of at least {least}.")
    return number


def _not_negative(name: str, value) -> float:
    """Returns `value` as a float; raises InputError if it is negative or not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name} is {value}; give a number of at least 0.")
    return number


@tf_keras.utils.register_keras_serializable("albert_tf")
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
        self.init_lr = _not_negative("init_lr", init_lr)
        self.num_train_steps = _whole_number("num_train_steps", num_train_steps, 1)
        self.num_warmup_steps = _whole_number("num_warmup_steps", num_warmup_steps, 0)
        self.poly_power = _not_negative("poly_power", poly_power)
        self.start_warmup_step = _whole_number(
            "start_warmup_step", start_warmup_step, 0)
        self.decay_share = _not_negative("decay_share", decay_share)
        if not 0 < self.decay_share <= 1:
            raise InputError(f"decay_share is {decay_share}; give a number above 0, at "
                             "most 1.")

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

    def get_config(self) -> dict:
        return {name: getattr(self, name) for name in (
            "init_lr", "num_train_steps", "num_warmup_steps", "poly_power",
            "start_warmup_step", "decay_share")}


# ---- gradients -------------------------------------------------------------


def clip_by_global_norm(
        gradients: Iterable[Gradient], clip_norm: float = 1.0,
        count_duplicates: bool = False,
        squares: Optional[Mapping[int, tf.Tensor]] = None,
) -> tuple[list[Optional[tf.Tensor]], tf.Tensor]:
    """Scales gradients down together so that their joint norm is at most `clip_norm`.

    A token that occurs several times in a batch has several rows in the gradient of the
    embeddings. By default rows of the same token are summed before the norm is taken,
    as on TPUs, where the published models were trained. With `count_duplicates` each
    row of IndexedSlices counts separately, as in the original on CPU and GPU. Gradients
    that are dense already, such as those summed over parts of a batch, have no such
    rows; `squares` can then give the sum of squares to use for the gradient of an
    index.

    Returns the clipped gradients, dense float32 (None stays None), and the global norm
    before clipping. If the norm is not finite, every gradient becomes NaN, so that the
    faulty step is noticed.
    """
    if not clip_norm > 0:
        raise InputError(f"clip_norm is {clip_norm}; give a number over 0.")
    # The square of the joint norm is the sum of the squares of all gradients.
    gradients = list(gradients)
    dense = dense_float32(gradients)
    squares = {**{index: _sum_of_squares(gradient)
                  for index, gradient in enumerate(dense) if gradient is not None},
               **(squares_of_rows(gradients) if count_duplicates else squares or {})}
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


def dense_float32(gradients: Iterable[Gradient]) -> list[Optional[tf.Tensor]]:
    """Returns each gradient as a float32 tensor; rows of the same index are summed."""
    return [None if gradient is None else tf.cast(
        tf.convert_to_tensor(gradient), tf.float32) for gradient in gradients]


# ---- optimizers ------------------------------------------------------------


def _name(variable: tf.Variable) -> str:
    """Returns a variable's name in a checkpoint, without ":0"."""
    return variable.name.split(":")[0]


def _matches(patterns: Iterable[str], name: str) -> bool:
    """Returns whether one of the regular expressions occurs in a name."""
    return any(re.search(pattern, name) for pattern in patterns)


def _pattern_tuple(name: str, patterns: Union[str, Iterable[str]]) -> tuple[str, ...]:
    """Returns regular expressions as a tuple, even a single string; raises InputError
    if one is invalid."""
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{name}: '{pattern}' is not a regular expression "
                             f"({error}); correct it.") from error
    return patterns


class MomentsOptimizer(tf_keras.optimizers.Optimizer):
    """The common part of AdamW and LAMB: moments, groups of variables, the update.

        optimizer = create_optimizer(0.00176, num_train_steps=125000,
                                     num_warmup_steps=3125, optimizer="lamb")
        optimizer.build(model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    The moments of a variable are called `<variable>/adam_m` and `<variable>/adam_v`, as
    in the original. Checkpoints store them by these names, so that the order of the
    variables does not matter, nor whether a checkpoint is restored before or after
    `build`.

    Args:
      learning_rate: a number or a schedule. A step uses schedule(k), where k is the
        value of `iterations` before the step; afterwards `learning_rate` returns it.
      weight_decay_rate: fraction of a variable that is added to its update.
      beta_1, beta_2: decay of the running means of the gradient and of its square.
      epsilon: added to the square root of the latter.
      no_decay: regular expressions; variables whose name contains a match have no
        weight decay, and no ratio in LAMB.
      excluded: likewise; these variables are not trained and have no moments.
      jit_compile: compile the update of each variable with XLA, on GPUs only.
    """

    def __init__(self, learning_rate=0.001, weight_decay_rate: float = 0.01,
                 beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6,
                 no_decay: Sequence[str] = NO_DECAY_PATTERNS,
                 excluded: Sequence[str] = (), jit_compile: bool = False,
                 name: Optional[str] = None):
        # weight_decay=None turns off the weight decay of tf_keras, which changes the
        # variable before the update, unlike the original's.
        super().__init__(name or type(self).__name__, weight_decay=None,
                         jit_compile=jit_compile)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay_rate = _not_negative("weight_decay_rate", weight_decay_rate)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.no_decay = _pattern_tuple("no_decay", no_decay)
        self.excluded = _pattern_tuple("excluded", excluded)
        # tf_keras stores its variables by their index in this list. If the order
        # changed, moments of equal shape would be swapped on restoring. Therefore
        # checkpoints track the dictionary of names, `slots`, and not the list.
        variables = list(self._variables)
        del self._variables
        self._variables = self._no_dependency(variables)
        self.slots = {}
        self._moments = self._no_dependency({})
        self.groups_logged = False

    def group(self, variable: tf.Variable) -> str:
        """Returns the group of a variable: DECAY, NO_DECAY or EXCLUDED."""
        if _matches(self.excluded, _name(variable)):
            return EXCLUDED
        return NO_DECAY if _matches(self.no_decay, _name(variable)) else DECAY

    def trained_variables(self, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
        """Returns the variables that are not excluded, in their order. The original
        computes and clips only the gradients of these."""
        return [variable for variable in variables
                if self.group(variable) != EXCLUDED]

    def build(self, var_list: Iterable[tf.Variable]) -> None:
        """Creates the moments, once, in the strategy's scope; `var_list` must contain
        all variables that will have gradients, excluded ones too."""
        if getattr(self, "_built", False):
            return
        var_list = list(var_list)
        # This raises InputError if names or patterns are wrong.
        parameter_groups(var_list, self)
        super().build(var_list)
        self._built = True
        # Each variable gets m and v, and whether weight decay and ratio apply to it.
        for variable in self.trained_variables(var_list):
            self._moments[self._var_key(variable)] = (
                self._add_slot(variable, "adam_m"),
                self._add_slot(variable, "adam_v"),
                self.group(variable) == DECAY)

    def _add_slot(self, variable: tf.Variable, kind: str) -> tf.Variable:
        """Creates a float32 variable of zeros, `<variable>/<kind>`, on the device of
        its variable."""
        name = _name(variable)
        strategy = tf.distribute.get_strategy()
        # A trailing slash makes the scope absolute, whatever scope encloses it.
        with strategy.extended.colocate_vars_with(variable), tf.name_scope(f"{name}/"):
            slot = tf.Variable(
                tf.zeros(variable.shape, tf.float32), trainable=False, name=kind)
        self._variables.append(slot)
        self.slots[f"{name}/{kind}"] = slot
        return slot

    def apply_gradients(self, grads_and_vars, name=None,
                        skip_gradients_aggregation=False, **kwargs):
        """Applies gradients as tf_keras does, but makes sparse ones dense, and drops
        those of excluded variables."""
        grads_and_vars = list(grads_and_vars)
        with tf.init_scope():
            # Build with all variables, since patterns are checked against their names.
            self.build([variable for _, variable in grads_and_vars])
        pairs = [(gradient, variable)
                 for gradient, variable in zip(
                     dense_float32(gradient for gradient, _ in grads_and_vars),
                     (variable for _, variable in grads_and_vars))
                 if self.trained_variables([variable])]
        return super().apply_gradients(
            pairs, name=name, skip_gradients_aggregation=skip_gradients_aggregation,
            **kwargs)

    def _distributed_apply_gradients_fn(self, distribution, grads_and_vars, **kwargs):
        """Updates as tf_keras does, but one variable after another: otherwise a graph
        would start all of them at once, and hold several tensors for each."""
        if self.jit_compile:
            return super()._distributed_apply_gradients_fn(
                distribution, grads_and_vars, **kwargs)

        def update(variable, gradient):
            return self.update_step(gradient, variable)

        # Each update waits for the one before it.
        last_update = []
        for gradient, variable in grads_and_vars:
            with tf.control_dependencies(last_update):
                last_update = tf.nest.flatten(distribution.extended.update(
                    variable, update, args=(gradient,), group=False))
        return self.iterations.assign_add(1)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Updates one variable and its moments from a gradient of its shape; the scalar
        that it returns is available when the update is complete."""
        m, v, has_decay = self._moments[self._var_key(variable)]
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

    def get_config(self) -> dict:
        return {
            "name": self.name,
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            "no_decay": list(self.no_decay), "excluded": list(self.excluded),
            **{name: getattr(self, name) for name in (
                "weight_decay_rate", "beta_1", "beta_2", "epsilon", "jit_compile")}}


@tf_keras.utils.register_keras_serializable("albert_tf")
class AdamW(MomentsOptimizer):
    """Adam with weight decay in the update (original: `AdamWeightDecayOptimizer`)."""


@tf_keras.utils.register_keras_serializable("albert_tf")
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


# ---- groups of variables ---------------------------------------------------


def parameter_groups(variables: Iterable[tf.Variable],
                     optimizer: MomentsOptimizer) -> dict[str, list[str]]:
    """Returns the names of the variables by group: `decay`, `no_decay`, `excluded`.
    Raises InputError for equal names and for patterns that cannot be meant."""
    groups = {DECAY: [], NO_DECAY: [], EXCLUDED: []}
    for variable in variables:
        groups[optimizer.group(variable)].append(_name(variable))
    # Moments are stored by name, so two variables must not have the same.
    names = [name for members in groups.values() for name in members]
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise InputError(f"{count} variables are called '{name}'; give each a name "
                             "of its own, under which its moments are kept.")
    # A pattern that excludes nothing, or everything, is surely a mistake.
    for pattern in optimizer.excluded:
        if not any(_matches([pattern], name) for name in names):
            raise InputError(
                f"excluded: '{pattern}' matches no variable; give a pattern that is "
                "found in the name of a variable.")
    if names and len(groups[EXCLUDED]) == len(names):
        raise InputError("excluded: the patterns match every variable, so that nothing "
                         "would be trained; leave some out.")
    return groups


def log_parameter_groups(variables: Iterable[tf.Variable],
                         optimizer: MomentsOptimizer) -> dict[str, list[str]]:
    """Logs the groups and their sizes, once for each optimizer; returns the groups."""
    variables = list(variables)
    groups = parameter_groups(variables, optimizer)
    if optimizer.groups_logged:
        return groups
    optimizer.groups_logged = True
    # For each group, say which variables are in it and what is done to them.
    sizes = {_name(variable): math.prod(variable.shape) for variable in variables}
    treatment = {
        DECAY: f"all others; weight decay {optimizer.weight_decay_rate:g}",
        NO_DECAY: f"names with {' or '.join(optimizer.no_decay)}; no weight decay",
        EXCLUDED: f"names with {' or '.join(optimizer.excluded)}; not trained",
    }
    if isinstance(optimizer, Lamb):
        treatment[DECAY] += ", LAMB's ratio"
        treatment[NO_DECAY] += ", no ratio"
    for group, names in groups.items():
        if names:
            logging.info(
                "%s, group %s: %d variables, %s parameters (%s).",
                optimizer.name, group, len(names),
                f"{sum(sizes[name] for name in names):,}", treatment[group])
    return groups


def create_optimizer(
        init_lr: float, num_train_steps: int, num_warmup_steps: int,
        optimizer: str = "lamb", poly_power: float = 1.0, start_warmup_step: int = 0,
        weight_decay_rate: float = 0.01, excluded: Sequence[str] = (),
        jit_compile: bool = False, decay_share: float = 1.0) -> MomentsOptimizer:
    """Makes the optimizer of a run, with its schedule (original: `create_optimizer`).

    `optimizer` is "lamb" or "adamw"; for the rest see WarmupPolynomialDecay and
    MomentsOptimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer is '{optimizer}'; choose one of "
                         f"{', '.join(sorted(OPTIMIZERS))}.")
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
        schedule, weight_decay_rate=weight_decay_rate, excluded=excluded,
        jit_compile=jit_compile)
