"""What Keras asks of an optimizer, and this project of its variables: moments by name,
groups of variables, one update after another. training.optimization has the formulas.
"""

import collections
import math
import re
from typing import Iterable, Optional, Sequence, Union

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


def dense_float32(gradients: Iterable[Gradient]) -> list[Optional[tf.Tensor]]:
    """Returns each gradient as a float32 tensor; rows of the same index are summed."""
    return [None if gradient is None else tf.cast(
        tf.convert_to_tensor(gradient), tf.float32) for gradient in gradients]


def name_of(variable: tf.Variable) -> str:
    """Returns a variable's name in a checkpoint, without ":0"."""
    return variable.name.split(":")[0]


def _matches(patterns: Iterable[str], name: str) -> bool:
    """Returns whether one of the regular expressions occurs in a name."""
    return any(re.search(pattern, name) for pattern in patterns)


class KerasOptimizer(tf_keras.optimizers.Optimizer):
    """An optimizer of Keras with two moments for each variable, kept by name.

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
    """

    has_ratio = False  # whether a ratio scales the update of each variable

    def __init__(self, learning_rate=0.001, weight_decay_rate: float = 0.01,
                 beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6,
                 no_decay: Sequence[str] = NO_DECAY_PATTERNS,
                 excluded: Sequence[str] = (), name: Optional[str] = None):
        # weight_decay=None turns off the weight decay of tf_keras, which changes the
        # variable before the update, unlike the original's.
        super().__init__(name or type(self).__name__, weight_decay=None,
                         jit_compile=False)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.no_decay, self.excluded = tuple(no_decay), tuple(excluded)
        # tf_keras stores its variables by their index in this list. If the order
        # changed, moments of equal shape would be swapped on restoring. Therefore
        # checkpoints track the dictionary of names, `slots`, and not the list.
        variables = list(self._variables)
        del self._variables
        self._variables = self._no_dependency(variables)
        self.slots = {}
        self._moments = self._no_dependency({})

    def moments(self, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable, bool]:
        """Returns m and v of a variable, and whether it is in the group DECAY."""
        return self._moments[self._var_key(variable)]

    # ---- groups of variables

    def group(self, variable: tf.Variable) -> str:
        """Returns the group of a variable: DECAY, NO_DECAY or EXCLUDED."""
        if _matches(self.excluded, name_of(variable)):
            return EXCLUDED
        return NO_DECAY if _matches(self.no_decay, name_of(variable)) else DECAY

    def groups(self, variables: Iterable[tf.Variable]) -> dict[str, list[str]]:
        """Returns the names of the variables by group."""
        groups = {DECAY: [], NO_DECAY: [], EXCLUDED: []}
        for variable in variables:
            groups[self.group(variable)].append(name_of(variable))
        # Moments are stored by name, so two variables must not have the same.
        names = [name for members in groups.values() for name in members]
        for name, count in collections.Counter(names).items():
            if count > 1:
                raise InputError(f"{count} variables are called '{name}'; give each a "
                                 "name of its own, under which its moments are kept.")
        return groups

    def log_groups(self, variables: Iterable[tf.Variable]) -> None:
        """Logs the groups, their sizes, and what is done to them."""
        variables = list(variables)
        sizes = {name_of(variable): math.prod(variable.shape) for variable in variables}
        treatment = {
            DECAY: f"all others; weight decay {self.weight_decay_rate:g}"
                   + ", LAMB's ratio" * self.has_ratio,
            NO_DECAY: f"names with {' or '.join(self.no_decay)}; no weight decay"
                      + ", no ratio" * self.has_ratio,
            EXCLUDED: f"names with {' or '.join(self.excluded)}; not trained",
        }
        for group, names in self.groups(variables).items():
            if names:
                logging.info(
                    "%s, group %s: %d variables, %s parameters (%s).", self.name, group,
                    len(names), f"{sum(sizes[name] for name in names):,}",
                    treatment[group])

    def trained_variables(self, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
        """Returns the variables that are not excluded, in their order. The original
        computes and clips only the gradients of these."""
        return [variable for variable in variables
                if self.group(variable) != EXCLUDED]

    # ---- what Keras calls

    def build(self, var_list: Iterable[tf.Variable]) -> None:
        """Creates the moments, once, in the strategy's scope; `var_list` must contain
        all variables that will have gradients, excluded ones too."""
        if getattr(self, "_built", False):
            return
        var_list = list(var_list)
        self.groups(var_list)  # Checks the names.
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
        name = name_of(variable)
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
        def update(variable, gradient):
            return self.update_step(gradient, variable)

        # Each update waits for the one before it.
        last_update = []
        for gradient, variable in grads_and_vars:
            with tf.control_dependencies(last_update):
                last_update = tf.nest.flatten(distribution.extended.update(
                    variable, update, args=(gradient,), group=False))
        return self.iterations.assign_add(1)
