"""Training steps, on every replica of a strategy.

The replicas together compute the step that one device would compute from the whole
batch: losses are divided by the denominators of the whole batch, gradients are averaged
over the replicas and then clipped to a global norm, and dropout depends on the row in
the whole batch. (StepOptions.replica_gradients has the original's other way.)
"""

import dataclasses
import functools
import time
from typing import Any, Callable, Optional, Sequence

import orbit
import tensorflow as tf
from absl import logging

from albert_tf.errors import InputError
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast
from albert_tf.modeling.kernels.plain import sizes
from albert_tf.training import optimization
from albert_tf.training.evaluation import (
    MeanMetrics, Task, metric_sums, names_of, own_function, shape_key)
from albert_tf.training.options import StepOptions


INITIAL_SCALE = 2.0 ** 15
SMALLEST_SCALE = 1.0
# A loss times this is still finite in float32.
LARGEST_SCALE = 2.0 ** 100
GROWTH_STEPS = 2000

# The number of a step's dataset, and the number of layers that it runs; None for all.
Kind = tuple[int, Optional[int]]


def replica_variable(value: Any, dtype: tf.DType, name: str) -> tf.Variable:
    """Returns a variable of which every replica keeps its own copy; outside of the
    replicas it has the value of the first. Call it in the strategy's scope."""
    return tf.Variable(
        value, trainable=False, dtype=dtype, name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


class LossScaling(tf.Module):
    """The state of loss scaling, without which float16 gradients become 0 (Micikevicius
    et al. 2018); create it in the strategy's scope and save it.

    float16 holds numbers from 6e-8 to 65504, and most gradients of a loss are smaller.
    Therefore the loss is multiplied by a scale before the backward pass, and the
    gradients are divided by it as soon as they are float32. The scale is kept as large
    as possible: a step whose loss or gradient is not finite is skipped and halves the
    scale; GROWTH_STEPS good steps double it. The numbers are those of tf_keras's
    LossScaleOptimizer, which is not used, as it wraps the optimizer: checkpoints would
    have other names in float16.

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


class Trainer:
    """Trains a task's model. Each static shape and depth of a batch is traced once.

        trainer = Trainer(task, optimizer, batches.train(start_step=0), StepOptions())
        trainer.train(tf.constant(100))  # 100 steps; returns their mean metrics

    Args:
      optimizer: built; its `iterations` number the steps.
      datasets: distributed datasets of each replica's features, one for each static
        shape of a batch.
      on_step: called after each step or, on TPUs, loop of steps, with whether it was
        compiled now.
      kind_of_step: step → the number of the dataset that its batch comes from, and the
        number of layers that it runs, None for all. Steps of one kind share a graph.
      scaling: for float16. A step whose loss or gradient is not finite then does not
        change weights and moments, and does not count in the metrics. It still uses its
        step number and its batch, so that the schedule and the data continue as usual.

    Attributes:
      stop: a variable that another thread may set, see stops.StopSignals.
    """

    def __init__(self, task: Task, optimizer: optimization.MomentsOptimizer,
                 datasets: Sequence[Any], options: StepOptions,
                 on_step: Callable[[bool], None] = lambda compiled: None,
                 kind_of_step: Callable[[int], Kind] = lambda step: (0, None),
                 scaling: Optional[LossScaling] = None,
                 computation: Computation = Computation()):
        self.strategy = tf.distribute.get_strategy()
        self.datasets = list(datasets)
        self.task, self.optimizer, self.options = task, optimizer, options
        self.scaling, self.computation = scaling, computation
        self._on_step, self.kind_of_step = on_step, kind_of_step
        self.stop = replica_variable(False, tf.bool, "stop")
        # First step since the start whose loss or gradient is not finite, with float16
        # even at the smallest loss scale; -1 for none.
        self.first_bad_step = replica_variable(-1, tf.int64, "first_bad_step")
        # The compiled loop of each kind of steps.
        self._loops: dict[Any, Any] = {}
        # Several workers stop together, at the same place: the exchange of each step's
        # gradients also averages their votes.
        self.vote = self.mean_vote = None
        if options.count_duplicate_rows and self.strategy.num_replicas_in_sync > 1:
            raise InputError("--sparse_gradient_norm is for one device; leave it out.")
        if (isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
                and self.strategy.num_replicas_in_sync > 1):
            self.vote = replica_variable(0.0, tf.float32, "stop_vote")
            self.mean_vote = replica_variable(0.0, tf.float32, "mean_stop_vote")
        self._names = names_of(lambda features: self._forward(
            dataclasses.replace(computation, passes=1), features,
            self._objective.denominators(features), None)[1], self.datasets[0])
        self.metrics = MeanMetrics([*self._names, "gradient_norm", "learning_rate"])

    @functools.cached_property
    def runs_on_device(self) -> bool:
        """True on TPUs, which run many steps without the host."""
        return isinstance(self.strategy, tf.distribute.TPUStrategy)

    @property
    def stops(self) -> bool:
        """True if a step of several parts ends after the part in which `stop` becomes
        True. Nothing of such a step remains. XLA would read `stop` only once, before
        the first part."""
        return not self.options.jit_compile and fast.device_kind() != "TPU"

    @property
    def _objective(self):
        return self.task.training_objective or self.task.objective

    @property
    def _variables(self):
        return self.task.model.trainable_variables

    def _compiles(self, several: bool) -> bool:
        """Returns True if XLA compiles the whole step of a single replica or, for
        `several`, the part before their exchange, which XLA cannot compile."""
        return (self.options.jit_compile and not self.runs_on_device
                and several == (self.strategy.num_replicas_in_sync > 1))

    def train(self, num_steps: Any) -> dict[str, float]:
        """Makes `num_steps` steps; returns their metrics and steps_per_second."""
        self.metrics.reset()
        begin, first = time.monotonic(), int(self.optimizer.iterations.numpy())
        step, end = first, first + int(num_steps)
        while step < end:
            kind, count = self.kind_of_step(step), 1
            # On TPUs, as many steps as possible run without the host.
            while (self.runs_on_device and step + count < end
                   and self.kind_of_step(step + count) == kind):
                count += 1
            iterator, spec = self._inputs[kind[0]]
            compiled = len(self._loops)
            self._loop(spec, *kind)(iterator, tf.constant(count))
            step += count
            self._on_step(len(self._loops) > compiled)
        result = self.current_metrics()  # Waits for the device before time is measured.
        seconds = max(time.monotonic() - begin, 1e-9)
        done = int(self.optimizer.iterations.numpy()) - first
        return {**result, "steps_per_second": done / seconds}

    @functools.cached_property
    def _inputs(self):
        return [(iter(dataset), shape_key(dataset)) for dataset in self.datasets]

    def _loop(self, spec: frozenset, shape: int, layers: Optional[int]) -> Any:
        """Returns (iterator, number of steps) → None, for steps of one kind."""
        key = spec, layers
        if key not in self._loops:
            shapes = len(self.datasets)
            logging.info("Compiling the training step%s%s.",
                         f" for length {shape + 1} of {shapes}" if shapes > 1 else "",
                         f" with {layers} layers" if layers else "")
            computation = dataclasses.replace(self.computation, passes=layers)
            step = functools.partial(self._step, computation)
            self._loops[key] = own_function(
                orbit.utils.create_tf_while_loop_fn(step), autograph=True
            ) if self.runs_on_device else orbit.utils.create_loop_fn(own_function(step))
        return self._loops[key]

    def _step(self, computation, iterator):
        step = functools.partial(self._replica_step, computation,
                                 self.options.gradient_accumulation_steps)
        if self._compiles(several=False):
            step = own_function(step, jit_compile=True)
        self.strategy.run(step, args=(next(iterator),))

    def current_metrics(self) -> dict[str, float]:
        """Returns the means since the loop began. With float16 also the loss scale and
        the number of steps skipped so far, and no means if all steps were skipped."""
        if not self.scaling:
            return self.metrics.result()
        return {**self.metrics.result(empty=False), **self.scaling.values()}

    def _forward(self, computation, features, denominators, seed):
        """Returns the loss of a part of a batch and the sums of its metrics."""
        outputs = self.task.model(
            features, training=True, seed=seed, computation=computation)
        losses = self._objective.losses(outputs, features, denominators)
        metrics = self._objective.metrics(outputs, features, losses)
        return losses["total_loss"], metric_sums(metrics)

    def _part_gradients(self, computation, features, denominators, seed):
        """Returns the loss, gradients and metrics of a part of a batch."""
        with tf.GradientTape() as tape:
            loss, sums = self._forward(computation, features, denominators, seed)
            scaled = loss * self.scaling.scale if self.scaling else loss
        gradients = tape.gradient(
            scaled, self._variables, unconnected_gradients="zero")
        if self.scaling:
            gradients = [self.scaling.unscale(gradient) for gradient in gradients]
        return loss, gradients, sums

    def _seed(self, features):
        """Returns the seed of a step's dropout, with the replica's first row."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.fold_in(
            tf.constant([self.options.random_seed, 0], tf.int32),
            tf.cast(self.optimizer.iterations, tf.int32))
        first_row = tf.cast(replica, tf.int32) * tf.shape(
            next(iter(features.values())))[0]
        return tf.concat([seed, [first_row]], axis=0)

    def _gradients(self, computation, parts, features, denominators, seed):
        """Returns the loss, the gradients and the metrics of a batch, summed over its
        parts, and whether the step is dropped (None: it cannot be)."""
        if parts == 1:
            loss, gradients, sums = self._part_gradients(
                computation, features, denominators, seed)
            if not self.options.count_duplicate_rows:
                gradients = optimization.dense_float32(gradients)
            return loss, gradients, sums, None

        split_features = {name: tf.reshape(value, [parts, -1, *sizes(value)[1:]])
                          for name, value in features.items()}
        rows, stops = tf.shape(next(iter(features.values())))[0] // parts, self.stops

        def goes_on(part, _):
            return (part < parts) & ~self.stop.read_value() if stops else part < parts

        def add_part(part, state):
            batch = {name: value[part] for name, value in split_features.items()}
            loss, gradients, sums = self._part_gradients(
                computation, batch, denominators, seed + tf.stack([0, 0, part * rows]))
            values = [loss, [tf.convert_to_tensor(g) for g in gradients], sums]
            return part + 1, tf.nest.map_structure(tf.add, state, values)

        zeros = [tf.zeros([]), [tf.zeros(each.shape) for each in self._variables],
                 {name: tf.zeros([2]) for name in self._names}]
        done, sums = tf.while_loop(goes_on, add_part, [0, zeros], parallel_iterations=1)
        return *sums, done < parts if stops else None

    def _exchanged(self, context, loss, gradients, dropped):
        """Returns the loss, clipped gradients, their norm, and `dropped` of all."""
        def clip(gradients):
            return optimization.clip_by_global_norm(
                gradients, self.options.clip_norm, optimization.squares_of_rows(
                    gradients))

        replicas = context.num_replicas_in_sync
        if replicas == 1:
            return loss, *clip(gradients), dropped
        summed, norm = self.options.replica_gradients == "sum", []
        if summed:
            gradients, norm = clip(gradients)
        stops = [] if dropped is None else [tf.cast(dropped, tf.float32)]
        votes = [] if self.vote is None else [tf.maximum(self.vote, sum(stops, 0.0))]
        # One exchange for everything. If any loss is not finite, the mean is not.
        loss, norm, gradients, stops, votes = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [loss, norm, gradients, stops, votes])
        if votes:
            self.mean_vote.assign(votes[0])
        dropped = stops[0] > 0 if stops else None
        if summed:
            return loss, [gradient * replicas for gradient in gradients], norm, dropped
        return loss, *clip(gradients), dropped

    def _replica_step(self, computation, parts, features):
        # 1. Take the denominators of the losses from the whole batch, so that the
        #    losses of replicas and parts add up to its loss.
        context = tf.distribute.get_replica_context()
        denominators = self._objective.denominators(features)
        if (denominators and context.num_replicas_in_sync > 1
                and self.options.replica_gradients == "mean"):
            denominators = context.all_reduce(
                tf.distribute.ReduceOp.MEAN, denominators)
        # 2. Compute loss and gradients, at once or in parts.
        compute = functools.partial(self._gradients, computation, parts)
        if self._compiles(several=True):
            compute = own_function(compute, jit_compile=True)
        loss, gradients, sums, dropped = compute(
            features, denominators, self._seed(features))
        # 3. Combine them with those of all replicas, and clip the gradients to a global
        #    norm.
        loss, gradients, norm, dropped = self._exchanged(
            context, loss, gradients, dropped)
        # 4. Update weights and metrics, unless a replica has stopped between two parts.
        if dropped is None:
            self._update(loss, gradients, norm, sums)
        else:
            self._choose(~dropped, self._update, (loss, gradients, norm, sums))

    def _update(self, loss, gradients, norm, sums):
        # 1. Remember the first step that is not finite; the loop checks it before it
        #    saves. With loss scaling such steps are normal until the smallest scale.
        good = tf.math.is_finite(loss + norm)
        bad = ~good & (self.scaling.scale <= SMALLEST_SCALE) if self.scaling else ~good
        first = self.first_bad_step
        first.assign(tf.where(
            bad & (first < 0), tf.identity(self.optimizer.iterations), first))
        # 2. Update the weights with the optimizer. With loss scaling, a step that is
        #    not finite only increments the optimizer's step.
        if self.scaling:
            self._choose(good, self._apply, (gradients,), self._skip)
            self.scaling.update(good)
        else:
            self._apply(gradients)
        # 3. Update the metrics, with the learning rate of this step.
        learning_rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        sums = {**sums, "gradient_norm": tf.stack([norm, 1.0]),
                "learning_rate": tf.stack([learning_rate, 1.0])}
        self.metrics.update(sums if not self.scaling else {
            name: tf.where(good, pair, 0.0) for name, pair in sums.items()})

    def _apply(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self._variables))

    def _skip(self):
        self.optimizer.iterations.assign_add(1)

    def _choose(self, condition, function, args, otherwise=lambda: None):
        """Calls a function on each replica if the condition, the same on all replicas,
        is True; else calls `otherwise`."""
        def choose(strategy, condition, *args):
            def call():
                strategy.extended.call_for_each_replica(function, args=args)

            tf.cond(strategy.experimental_local_results(condition)[0], call, otherwise)

        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            tf.cond(condition, lambda: function(*args), otherwise)
        else:
            # An optimizer that merges the replicas' calls, as on CPUs, cannot do so in
            # a branch of one replica. Therefore the branch is taken after the merge.
            tf.distribute.get_replica_context().merge_call(
                choose, args=(condition, *args))
