"""One training step and one evaluation step, on every replica of a strategy.

The replicas together compute the step that one device would compute from the whole
batch: losses are divided by the denominators of the whole batch, gradients are averaged
over the replicas and then clipped to a global norm, and dropout depends on the row in
the whole batch. With --replica_gradients=sum each replica clips the gradients of its
own mean loss, and their sum is applied, as in the original implementation on TPU.
"""

import dataclasses
import functools
import time
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np
import orbit
import tensorflow as tf
import tf_keras

from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast
from albert_tf.training import optimization
from albert_tf.training.devices import replica_variable
from albert_tf.training.loss_scaling import LossScaling
from albert_tf.training.losses import Objective, Predictions, WeightedValues
from albert_tf.training.options import StepOptions
from albert_tf.training.stops import StopVotes


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, as the training loop needs it.

        Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")

    Attributes:
      model: called as model(features, training=..., seed=..., computation=...), without
        AutoGraph.
      objective: what it learns.
      training_objective: the objective in training, if evaluation has a simpler one.
      best_metric: the evaluation metric, higher is better, by which the best checkpoint
        is chosen.
      score: predictions of all examples, as Evaluator.predict returns them → further
        evaluation metrics.
      may_be_new: whether a variable of this name may be missing from the initial
        checkpoint, such as those of a new head, which is trained from scratch.
      labels: the labels of its outputs, in their order, with which those of an initial
        checkpoint are matched; () if it has none.
      on_report: called with the step and the metrics whenever progress is logged.
    """

    model: tf_keras.Model
    objective: Objective
    best_metric: str
    score: Optional[Callable[[Predictions], Mapping[str, float]]] = None
    may_be_new: Callable[[str], bool] = lambda name: False
    on_report: Callable[[int, Mapping[str, float]], None] = (
        lambda step, metrics: None)
    training_objective: Optional[Objective] = None
    labels: Sequence[str] = ()


# ---- metrics ---------------------------------------------------------------


def metric_sums(metrics: WeightedValues) -> dict[str, tf.Tensor]:
    """Returns the weighted sum and the sum of weights, [2], of each metric."""
    sums = {}
    for name, (values, weights) in metrics.items():
        values = tf.cast(values, tf.float32)
        weights = tf.broadcast_to(tf.cast(weights, tf.float32), tf.shape(values))
        sums[name] = tf.stack([tf.reduce_sum(values * weights), tf.reduce_sum(weights)])
    return sums


class MeanMetrics:
    """Weighted means over steps and replicas; create it in the strategy's scope."""

    def __init__(self, names: Iterable[str] = ()):
        self._means = {name: tf_keras.metrics.Mean(name) for name in names}

    def update(self, sums: Mapping[str, tf.Tensor]) -> None:
        """Adds [weighted sum, sum of weights] of each metric; in replica context."""
        for name, pair in sums.items():
            self._means[name].update_state(
                tf.math.divide_no_nan(pair[0], pair[1]), sample_weight=pair[1])

    def reset(self) -> None:
        for mean in self._means.values():
            mean.reset_state()

    def result(self, empty: bool = True) -> dict[str, float]:
        """Returns the means. A mean without weight is 0, or absent if not `empty`."""
        return {name: float(mean.result()) for name, mean in self._means.items()
                if empty or float(tf.convert_to_tensor(mean.count)) > 0}


def _names_of(sums: Callable[[Any], Mapping[str, Any]], dataset: Any) -> list[str]:
    """Returns the names of the metrics of a batch, by tracing `sums` once."""
    spec = replica_spec(dataset.element_spec)
    return list(own_function(sums).get_concrete_function(spec).structured_outputs)


# ---- static shapes ---------------------------------------------------------


def own_function(python_function: Callable[..., Any], autograph: bool = False,
                 **options: Any) -> Any:
    """Returns a tf.function for one static shape. Steps do not need AutoGraph, which
    takes a third of the tracing time.

    TensorFlow warns if the same Python function is traced often, even by separate
    tf.functions. It counts each partial separately, which avoids the warning.
    """
    return tf.function(
        functools.partial(python_function), autograph=autograph, **options)


def replica_spec(element_spec: Any) -> Any:
    """Returns the spec of one replica's batch in a distributed dataset's spec."""
    def first(spec):
        if isinstance(spec, tf.TensorSpec):
            return spec
        return spec._component_specs[0] if hasattr(spec, "_component_specs") else (
            spec._value_specs[0])

    return {name: first(spec) for name, spec in element_spec.items()}


def shape_key(dataset: Any) -> frozenset:
    """Returns a key that is equal for datasets whose batches can share a graph."""
    return frozenset(replica_spec(dataset.element_spec).items())


# ---- training --------------------------------------------------------------


class Trainer(orbit.StandardTrainer):
    """Trains a task's model. Each static shape and depth of a batch is traced once.

        trainer = Trainer(task, optimizer, batches.train(start_step=0), StepOptions())
        trainer.train(tf.constant(100))  # 100 steps; returns their mean metrics

    Args:
      optimizer: built; its `iterations` number the steps.
      datasets: distributed datasets of each replica's features, one for each static
        shape of a batch.
      on_step: called after every step, if the loop runs on the host.
      on_compile: called before the first step of a shape and depth, with their number.
      shape_of_step: step → number of the dataset that its batch comes from.
      passes_of_step: step → number of layers that it runs, None for all.
      scaling: for float16. A step whose loss or gradient is not finite then does not
        change weights and moments, and does not count in the metrics. It still uses its
        step number and its batch, so that the schedule and the data continue as usual.

    Attributes:
      stop: a variable that another thread may set, see stops.StopSignals.
    """

    def __init__(self, task: Task, optimizer: optimization.MomentsOptimizer,
                 datasets: Sequence[Any], options: StepOptions,
                 on_step: Optional[Callable[[], None]] = None,
                 shape_of_step: Callable[[int], int] = lambda step: 0,
                 passes_of_step: Callable[[int], Optional[int]] = lambda step: None,
                 scaling: Optional[LossScaling] = None,
                 computation: Computation = Computation(),
                 on_compile: Callable[[int, Optional[int]], None] = (
                     lambda shape, passes: None)):
        self.strategy = tf.distribute.get_strategy()
        super().__init__(list(datasets), orbit.StandardTrainerOptions(
            use_tf_while_loop=self.runs_on_device))
        self.task, self.optimizer, self.options = task, optimizer, options
        self.scaling, self.computation = scaling, computation
        self._on_step, self._on_compile = on_step, on_compile
        self._shape_of_step, self._passes_of_step = shape_of_step, passes_of_step
        self.stop = replica_variable(False, tf.bool, "stop")
        self._begin = (0.0, 0)
        # First step since the start whose loss or gradient is not finite, with float16
        # even at the smallest loss scale; -1 for none.
        self.first_bad_step = replica_variable(-1, tf.int64, "first_bad_step")
        self.stop_votes = None
        if options.count_duplicate_rows and self.strategy.num_replicas_in_sync > 1:
            raise InputError("--sparse_gradient_norm is for one device; leave it out.")
        if (isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
                and self.strategy.num_replicas_in_sync > 1):
            self.stop_votes = StopVotes()
        self._names = _names_of(lambda features: self._forward(
            computation, features, self._objective.denominators(features), None)[1],
                                self.train_dataset[0])
        self.metrics = MeanMetrics([*self._names, "gradient_norm", "learning_rate"])

    @functools.cached_property
    def runs_on_device(self) -> bool:
        """True if the loop runs on the device, as on TPUs. Otherwise it runs on the
        host, where progress can be shown after any step and starting a step is fast."""
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
        """Returns True if XLA compiles the step of one replica or, for `several`, the
        computation of each replica.

        XLA cannot compile the exchange between replicas that are not TPUs. Therefore it
        compiles the whole step of a single replica, but only the part before the
        exchange of several.
        """
        return (self.options.jit_compile and not self.runs_on_device
                and several == (self.strategy.num_replicas_in_sync > 1))

    def create_train_loop_fn(self):
        specs = [shape_key(dataset) for dataset in self.train_dataset]

        @functools.cache
        def loop_of(spec, passes):
            computation = dataclasses.replace(self.computation, passes=passes)
            step = functools.partial(self.train_step, computation,
                                     self.options.gradient_accumulation_steps)
            if self.runs_on_device:
                return own_function(
                    orbit.utils.create_tf_while_loop_fn(step), autograph=True)
            return orbit.utils.create_loop_fn(own_function(step))

        compiled = set()

        def loop_by_shape(iterators, num_steps):
            step = int(self.optimizer.iterations.numpy())
            end = step + int(num_steps)
            while step < end:
                kind, count = self.kind_of_step(step), 1
                # On TPUs, as many steps as possible run without the host.
                while (self.runs_on_device and step + count < end
                       and self.kind_of_step(step + count) == kind):
                    count += 1
                shape, passes = kind
                if kind not in compiled:
                    compiled.add(kind)
                    self._on_compile(shape, passes)
                loop_of(specs[shape], passes)(iterators[shape], tf.constant(count))
                step += count
                if self._on_step is not None and not self.runs_on_device:
                    self._on_step()

        return loop_by_shape

    def kind_of_step(self, step: int) -> tuple[int, Optional[int]]:
        """Returns the shape and the passes of a step; steps of one kind share a
        graph."""
        return self._shape_of_step(step), self._passes_of_step(step)

    def train_loop_begin(self):
        self.metrics.reset()
        self._begin = time.monotonic(), int(self.optimizer.iterations.numpy())

    def train_step(self, computation, parts, iterator):
        step = functools.partial(self._replica_step, computation, parts)
        if self._compiles(several=False):
            step = own_function(step, jit_compile=True)
        self.strategy.run(step, args=(next(iterator),))

    def train_loop_end(self):
        result = self.current_metrics()  # Waits for the device before time is measured.
        begin, first = self._begin
        steps = int(self.optimizer.iterations.numpy()) - first
        seconds = max(time.monotonic() - begin, 1e-9)
        return {**result, "steps_per_second": steps / seconds}

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

        def split(tensor):
            return tf.reshape(
                tensor, tf.concat([[parts, -1], tf.shape(tensor)[1:]], axis=0))

        def cut(tensor, whole, part):
            row = tensor[part]
            row.set_shape([whole.shape[0] // parts if whole.shape[0] else None,
                           *whole.shape[1:]])
            return row

        split_features = {name: split(value) for name, value in features.items()}
        rows = tf.shape(next(iter(features.values())))[0] // parts

        def part_values(part):
            batch = {name: cut(value, features[name], part)
                     for name, value in split_features.items()}
            loss, gradients, sums = self._part_gradients(
                computation, batch, denominators, seed + tf.stack([0, 0, part * rows]))
            return [loss, [tf.convert_to_tensor(g) for g in gradients], sums]

        def goes_on(part, _):
            return (part < parts) & ~self.stop.read_value() if stops else part < parts

        def body(part, state):
            return part + 1, tf.nest.map_structure(tf.add, state, part_values(part))

        stops = self.stops
        zeros = [tf.zeros([]), [tf.zeros(each.shape) for each in self._variables],
                 {name: tf.zeros([2]) for name in self._names}]
        done, sums = tf.while_loop(goes_on, body, [0, zeros], parallel_iterations=1)
        return *sums, done < parts if stops else None

    def _exchanged(self, context, loss, gradients, dropped):
        """Returns the loss, the clipped gradients, their norm, and whether any replica
        has dropped the step (None: it cannot), of all replicas."""
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
        votes = [] if self.stop_votes is None else [
            tf.maximum(self.stop_votes.own, sum(stops, 0.0))]
        # One exchange for everything. If any loss is not finite, the mean is not.
        loss, norm, gradients, stops, votes = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [loss, norm, gradients, stops, votes])
        if votes:
            self.stop_votes.mean.assign(votes[0])
        dropped = stops[0] > 0 if stops else None
        if summed:
            return loss, [gradient * replicas for gradient in gradients], norm, dropped
        return loss, *clip(gradients), dropped

    def _replica_step(self, computation, parts, features):
        """Runs one training step on one replica."""
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
        """Updates weights and metrics on one replica."""
        # 1. Remember the first step that is not finite; the loop checks it before it
        #    saves. With loss scaling such steps are normal until the smallest scale.
        good = tf.math.is_finite(loss + norm)
        bad = ~good & self.scaling.at_smallest if self.scaling else ~good
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


# ---- evaluation ------------------------------------------------------------


class Evaluator:
    """Evaluates a task's model on every example of the evaluation datasets, once.

        Evaluator(task, batches.evaluation()).evaluate()  # {"masked_lm_accuracy": ...}

    Each static shape of a batch is traced once, also if it occurs in several datasets.
    `predictions` holds the predictions of the last evaluation. `datasets` comes from
    Batches.evaluation; if it is empty, the evaluator only predicts.
    """

    def __init__(self, task: Task, datasets: Sequence[tuple[Any, int]] = (),
                 computation: Computation = Computation()):
        self.strategy = tf.distribute.get_strategy()
        self.task, self.computation = task, computation
        self.predictions: Predictions = {}
        self._datasets = datasets
        # The compiled step for each shape of a batch.
        self._steps: dict[frozenset, Any] = {}
        self.metrics = None
        if datasets:
            self.metrics = MeanMetrics(_names_of(
                lambda features: self._metric_sums(self._outputs(features), features),
                datasets[0][0]))

    @property
    def num_steps(self) -> int:
        """The number of batches per replica."""
        return sum(steps for _, steps in self._datasets)

    def evaluate(self, on_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Returns the metrics over all examples: the objective's means and the task's
        score. `on_batch` is called after each batch."""
        self.metrics.reset()
        self.predictions = self.predict(self._datasets, on_batch)
        metrics = self.metrics.result()
        if self.task.score is not None:
            metrics |= self.task.score(self.predictions)
        return metrics

    def predict(self, datasets: Sequence[tuple[Any, int]],
                on_batch: Callable[[], None] = lambda: None) -> Predictions:
        """Returns the objective's predictions for every example; labels may be 0."""
        rows: dict[str, dict[int, np.ndarray]] = {}
        progress, done = Progress("evaluating" if datasets is self._datasets else
                                  "predicting", "batches",
                                  sum(steps for _, steps in datasets)), 0
        for dataset, steps in datasets:
            step = self._steps.setdefault(shape_key(dataset), own_function(self._step))
            iterator = iter(dataset) if steps else None
            for number in range(steps):
                batch = {name: value.numpy() for name, value in step(iterator).items()}
                indices = batch.pop("example_index", ())
                for name, values in batch.items():
                    rows.setdefault(name, {}).update(
                        (int(index), value) for index, value in zip(indices, values)
                        if index >= 0)
                done += 1
                if not number:  # The first batch of a length was traced.
                    progress.restart(done)
                progress.update(done)
                on_batch()
        return {name: [by_index[index] for index in sorted(by_index)]
                for name, by_index in rows.items()}

    def _outputs(self, features):
        return self.task.model(features, training=False, computation=self.computation)

    def _metric_sums(self, outputs, features):
        objective = self.task.objective
        losses = objective.losses(outputs, features, objective.denominators(features))
        return metric_sums(objective.metrics(outputs, features, losses))

    def _replica_step(self, features):
        """Evaluates one replica's batch; returns the predictions of its examples."""
        outputs = self._outputs(features)
        if self.metrics is not None:
            self.metrics.update(self._metric_sums(outputs, features))
        if self.task.objective.predictions is None:
            return {}
        return {**self.task.objective.predictions(outputs, features),
                "example_index": features["example_index"]}

    def _step(self, iterator):
        predictions = self.strategy.run(self._replica_step, args=(next(iterator),))
        # Gathers the examples of all replicas, also of other hosts. It happens in the
        # graph, because outside it each gather would be traced again.
        return {name: self.strategy.gather(value, axis=0)
                for name, value in predictions.items()}
