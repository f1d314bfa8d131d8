"""Learning rate, gradient clipping, AdamW and LAMB, as in the original implementation.

Sources: LAMB is You et al. 2019, "Large Batch Optimization for Deep Learning", and
`lamb_optimizer.py` of the original TF1 code, "the release" below; AdamW and the
learning rate are its `optimization.py` (`AdamWeightDecayOptimizer`,
`create_optimizer`). ALBERT trains with LAMB, a learning rate of 0.00176 and batches of
4096 (paper, section 4.1).

With m and v the running means of the gradient and of its square, every step is

    u = m / (sqrt(v) + epsilon) + weight_decay_rate * w
    w = w - learning_rate * r * u

where r is 1 in AdamW and ||w|| / ||u|| in LAMB, and variables of the group `no_decay`
have neither weight decay nor r. LAMB's ratio moves each variable by the same share of
its own norm, however large its gradients are: one learning rate then suits all layers
also at the large batches that the paper trains with.

Neither optimizer corrects the bias of its moments, which start at 0; other libraries
do. Uncorrected, the first update is (1 - beta_1) / sqrt(1 - beta_2), about 3, times as
large: warm-up keeps the learning rate low meanwhile, and LAMB's ratio divides by ||u||.

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

# Regular expressions, searched in variable names. The release keeps weight decay and
# LAMB's ratio from the same variables.
NO_DECAY_PATTERNS = ("LayerNorm", "layer_norm", "bias")


# ---- learning rate ---------------------------------------------------------


def _whole_number(name: str, value, least: int) -> int:
    """`value` as an int, at least `least`, or an InputError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is {value}; give a whole number of at least {least}.")
    return number


def _not_negative(name: str, value) -> float:
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
        self.init_lr = _not_negative("init_lr", init_lr)
        self.num_train_steps = _whole_number("num_train_steps", num_train_steps, 1)
        self.num_warmup_steps = _whole_number("num_warmup_steps", num_warmup_steps, 0)
        self.poly_power = _not_negative("poly_power", poly_power)
        self.start_warmup_step = _whole_number(
            "start_warmup_step", start_warmup_step, 0)
        self.decay_share = _not_negative("decay_share", decay_share)
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


# ---- gradients -------------------------------------------------------------


def clip_by_global_norm(
        gradients: Iterable[Gradient], clip_norm: float = 1.0,
        count_duplicates: bool = False,
        squares: Optional[Mapping[int, tf.Tensor]] = None,
) -> tuple[list[Optional[tf.Tensor]], tf.Tensor]:
    """Scales gradients down together so that their joint norm is at most `clip_norm`.

    With `count_duplicates` the norm is taken over the rows of IndexedSlices as they
    stand, each occurrence of a piece apart, as the release does on CPU and GPU; by
    default rows of one piece are summed first, as on TPUs, where the published models
    were trained. Gradients that reach here dense, such as those summed over parts of a
    batch, have no rows to tell apart; for those of some indices `squares` may give the
    sums of squares to take instead of their own.

    Returns the clipped gradients, dense float32 (None stays None), and the global norm
    before clipping. Where it is not finite every gradient becomes NaN, so that no part
    of a broken step goes unnoticed.
    """
    if not clip_norm > 0:
        raise InputError(f"clip_norm is {clip_norm}; give a number over 0.")
    gradients = list(gradients)
    dense = dense_float32(gradients)
    squares = {**{index: _sum_of_squares(gradient)
                  for index, gradient in enumerate(dense) if gradient is not None},
               **(squares_of_rows(gradients) if count_duplicates else squares or {})}
    if not squares:
        raise ValueError("There is no gradient to clip: all of them are None.")
    norm = tf.sqrt(tf.add_n(list(squares.values())))
    scale = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)
    scale = tf.where(tf.math.is_finite(norm), scale, math.nan)
    return [None if g is None else g * scale for g in dense], norm


def _sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
    """Scalar; without the squares as a tensor of their own, where not compiled."""
    return 2.0 * tf.nn.l2_loss(tensor)


def squares_of_rows(gradients: Iterable[Gradient]) -> dict[int, tf.Tensor]:
    """Index of each gradient that is IndexedSlices → the sum of squares of its rows,
    those of one index apart."""
    return {index: _sum_of_squares(tf.cast(gradient.values, tf.float32))
            for index, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)}


def dense_float32(gradients: Iterable[Gradient]) -> list[Optional[tf.Tensor]]:
    """Each gradient as one float32 tensor; rows of the same index are summed."""
    return [None if gradient is None else tf.cast(
        tf.convert_to_tensor(gradient), tf.float32) for gradient in gradients]


# ---- optimizers ------------------------------------------------------------


def _name(variable: tf.Variable) -> str:
    """A variable's name as in a checkpoint, without ":0"."""
    return variable.name.split(":")[0]


def _found(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _checked(name: str, patterns: Union[str, Iterable[str]]) -> tuple[str, ...]:
    """Regular expressions as a tuple; a single string counts as one."""
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{name}: '{pattern}' is not a regular expression "
                             f"({error}); correct it.") from error
    return patterns


class MomentsOptimizer(tf_keras.optimizers.Optimizer):
    """What AdamW and LAMB share: moments, groups of variables, the update.

        optimizer = create_optimizer(0.00176, num_train_steps=125000,
                                     num_warmup_steps=3125, optimizer="lamb")
        optimizer.build(model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    The moments of a variable are called `<variable>/adam_m` and `<variable>/adam_v` as
    in the release, and checkpoints find them under these names: neither the order of
    the variables nor whether a checkpoint is restored before `build` matters.

    Args:
      learning_rate: a rate or a schedule; step k is made with schedule(k), where k is
        `iterations` before the step. Afterwards `learning_rate` is that rate.
      weight_decay_rate: share of a variable that is added to its update.
      beta_1, beta_2: decay of the means of the gradients and of their squares.
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
        # weight_decay=None turns off tf_keras's own, which acts on the variable
        # before the update and so differs from the release's.
        super().__init__(name or type(self).__name__, weight_decay=None,
                         jit_compile=jit_compile)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay_rate = _not_negative("weight_decay_rate", weight_decay_rate)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.no_decay = _checked("no_decay", no_decay)
        self.excluded = _checked("excluded", excluded)
        # tf_keras tracks its variables by their place in this list; a checkpoint
        # restored with variables in another order would swap moments of equal
        # shape. Here the dictionary of names below is tracked in its stead.
        variables = list(self._variables)
        del self._variables
        self._variables = self._no_dependency(variables)
        self.slots = {}
        self._moments = self._no_dependency({})
        self.groups_logged = False

    def group(self, variable: tf.Variable) -> str:
        """DECAY, NO_DECAY or EXCLUDED."""
        if _found(self.excluded, _name(variable)):
            return EXCLUDED
        return NO_DECAY if _found(self.no_decay, _name(variable)) else DECAY

    def trained_variables(self, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
        """The variables that are not excluded, in their order: the release computes and
        clips the gradients of these alone."""
        return [variable for variable in variables
                if self.group(variable) != EXCLUDED]

    def build(self, var_list: Iterable[tf.Variable]) -> None:
        """Creates the moments, once, in the strategy's scope; `var_list` holds all
        variables that gradients will come for, excluded ones too."""
        if getattr(self, "_built", False):
            return
        var_list = list(var_list)
        parameter_groups(var_list, self)
        super().build(var_list)
        self._built = True
        for variable in self.trained_variables(var_list):
            self._moments[self._var_key(variable)] = (
                self._add_slot(variable, "adam_m"),
                self._add_slot(variable, "adam_v"),
                self.group(variable) == DECAY)

    def _add_slot(self, variable: tf.Variable, kind: str) -> tf.Variable:
        """A float32 variable of zeros `<variable>/<kind>`, beside its variable."""
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
        """As in tf_keras; sparse gradients are made dense, excluded ones dropped."""
        grads_and_vars = list(grads_and_vars)
        with tf.init_scope():
            # Before anything is dropped: the patterns are checked against all.
            self.build([variable for _, variable in grads_and_vars])
        kept = [(gradient, variable)
                for gradient, variable in zip(
                    dense_float32(gradient for gradient, _ in grads_and_vars),
                    (variable for _, variable in grads_and_vars))
                if self.trained_variables([variable])]
        return super().apply_gradients(
            kept, name=name, skip_gradients_aggregation=skip_gradients_aggregation,
            **kwargs)

    def _distributed_apply_gradients_fn(self, distribution, grads_and_vars, **kwargs):
        """As in tf_keras, but one variable after the other: a graph would begin all of
        them at once, and hold several tensors for each."""
        if self.jit_compile:
            return super()._distributed_apply_gradients_fn(
                distribution, grads_and_vars, **kwargs)

        def update(variable, gradient):
            return self.update_step(gradient, variable)

        done = []
        for gradient, variable in grads_and_vars:
            with tf.control_dependencies(done):
                done = tf.nest.flatten(distribution.extended.update(
                    variable, update, args=(gradient,), group=False))
        return self.iterations.assign_add(1)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Updates one variable and its moments from a gradient of its shape; the scalar
        returned is there when the update is done."""
        first, second, decayed = self._moments[self._var_key(variable)]
        # 1. m and v move a little towards this gradient and its square. m is assigned
        #    before v is computed, to hold fewer tensors at a time.
        first.assign(self.beta_1 * first + (1.0 - self.beta_1) * gradient)
        second.assign(
            self.beta_2 * second + (1.0 - self.beta_2) * tf.square(gradient))
        # 2. The direction: the mean gradient, measured by how large gradients usually
        #    are. Neither moment is corrected for having started at 0.
        update = self.direction(first, second)
        weights = tf.cast(variable, tf.float32)
        if decayed:
            # 3. Weight decay pulls the weights towards 0, apart from the moments.
            update += self.weight_decay_rate * weights
            # 4. LAMB's trust ratio: the step is as long as the weights, times the
            #    learning rate, whatever the length of the update; 1 in AdamW.
            update *= self.ratio(weights, update)
        # 5. The step.
        rate = tf.cast(self.learning_rate, tf.float32)
        updated = variable.assign_sub(
            tf.cast(rate * update, variable.dtype), read_value=False)
        with tf.control_dependencies([] if updated is None else [updated]):
            return tf.identity(rate)

    def direction(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """The update of a variable before weight decay, from its moments."""
        return first / (tf.sqrt(second) + self.epsilon)

    def ratio(self, weights: tf.Tensor, update: tf.Tensor) -> Union[float, tf.Tensor]:
        """What the update of a variable is multiplied with, beside the rate."""
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
    """Adam with weight decay in the update (release: `AdamWeightDecayOptimizer`)."""


@tf_keras.utils.register_keras_serializable("albert_tf")
class Lamb(MomentsOptimizer):
    """LAMB (You et al. 2019; release: `LAMBOptimizer`): the ratio is not clipped."""

    def ratio(self, weights, update):
        """||weights|| / ||update||, or 1 where either is 0: float32 scalar."""
        # One ratio for each variable as a whole: with shared layers a kernel's is that
        # of all passes through it.
        weights_norm = tf.sqrt(_sum_of_squares(weights))
        update_norm = tf.sqrt(_sum_of_squares(update))
        # A variable that is all 0 still takes the update as it is.
        return tf.where((weights_norm > 0) & (update_norm > 0),
                        weights_norm / update_norm, 1.0)


OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}


# ---- groups of variables ---------------------------------------------------


def parameter_groups(variables: Iterable[tf.Variable],
                     optimizer: MomentsOptimizer) -> dict[str, list[str]]:
    """Names of the variables by group: `decay`, `no_decay`, `excluded`."""
    groups = {DECAY: [], NO_DECAY: [], EXCLUDED: []}
    for variable in variables:
        groups[optimizer.group(variable)].append(_name(variable))
    names = [name for members in groups.values() for name in members]
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise InputError(f"{count} variables are called '{name}'; give each a name "
                             "of its own, under which its moments are kept.")
    for pattern in optimizer.excluded:
        if not any(_found([pattern], name) for name in names):
            raise InputError(
                f"excluded: '{pattern}' matches no variable; give a pattern that is "
                "found in the name of a variable.")
    if names and len(groups[EXCLUDED]) == len(names):
        raise InputError("excluded: the patterns match every variable, so that nothing "
                         "would be trained; leave some out.")
    return groups


def log_parameter_groups(variables: Iterable[tf.Variable],
                         optimizer: MomentsOptimizer) -> dict[str, list[str]]:
    """Logs the groups with their sizes, once for an optimizer; returns them."""
    variables = list(variables)
    groups = parameter_groups(variables, optimizer)
    if optimizer.groups_logged:
        return groups
    optimizer.groups_logged = True
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
    """The optimizer of a run with its schedule (release: `create_optimizer`).

    `optimizer` is "lamb" or "adamw"; for the rest see WarmupPolynomialDecay and
    MomentsOptimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer is '{optimizer}'; choose one of "
                         f"{', '.join(sorted(OPTIMIZERS))}.")
    schedule = WarmupPolynomialDecay(
        init_lr, num_train_steps, num_warmup_steps, poly_power, start_warmup_step,
        decay_share)
    if schedule.num_warmup_steps > schedule.num_train_steps:
        logging.warning(
            "The warm-up of %d steps is longer than the training of %d: the rate "
            "never reaches %g.", schedule.num_warmup_steps, schedule.num_train_steps,
            schedule.init_lr)
    return OPTIMIZERS[optimizer](
        schedule, weight_decay_rate=weight_decay_rate, excluded=excluded,
        jit_compile=jit_compile)
