"""Several replicas and processes that train one model: their devices, the batches of
each, which process writes, where they start."""

import re
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.training import cluster
from albert_tf.training.phases import Schedule


# ---- devices ---------------------------------------------------------------


def make_strategy(name: str, tpu: Optional[str] = None, num_gpus: Optional[int] = None,
                  num_virtual_cpus: int = 0) -> tf.distribute.Strategy:
    """A strategy over the devices that there are.

    Args:
      name: one_device, mirrored, multi_worker_mirrored or tpu.
      num_gpus: None takes one, if any, for one_device, all for mirrored.
      num_virtual_cpus: splits the CPU into so many devices, if not 0: tests several
        replicas without accelerators.
    """
    if num_virtual_cpus:
        if name not in ("one_device", "mirrored") or num_gpus:
            raise InputError(
                "--num_virtual_cpus stands alone: without --tpu, --num_gpus and "
                "multi_worker_mirrored.")
        return _virtual_cpus(num_virtual_cpus)
    if name == "multi_worker_mirrored":
        workers = cluster.Cluster.from_environment()
        workers.resolve()
        workers.meet()
        return _connect(name, None, num_gpus or 0)
    # Listing devices starts TensorFlow, which several workers must not do before
    # their strategy is made.
    if name != "tpu":
        found = len(tf.config.list_physical_devices("GPU"))
        if num_gpus is None:
            num_gpus = min(found, 1) if name == "one_device" else found
        if not 0 <= num_gpus <= found:
            raise InputError(
                f"--num_gpus is {num_gpus}, but TensorFlow sees {found} GPUs here.")
    return _connect(name, tpu, num_gpus or 0)


def _connect(name: str, tpu: Optional[str], num_gpus: int) -> tf.distribute.Strategy:
    """A strategy of tf-models-official, which may have to reach other machines."""
    from official.common import distribute_utils

    if tpu and "://" in tpu and not cluster.reachable(tpu.partition("://")[2], 10.0):
        raise InputError(
            f"--tpu={tpu}: nothing answers at that address; give that of a Cloud TPU "
            "which is running, as grpc://HOST:8470, or its name.")
    try:
        return distribute_utils.get_distribution_strategy(
            name, num_gpus=num_gpus, tpu_address=tpu)
    # What asks for a TPU by name raises whatever its libraries do.
    except Exception if name == "tpu" else (ValueError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if name == "tpu":
            raise InputError(
                f"--tpu={tpu}: there is no such TPU, or it cannot be reached from here "
                f"({reason}); give the name or address of a running Cloud TPU, or "
                "'local' on its own machine.") from error
        raise InputError(f"--distribution_strategy={name}: {reason}") from error


def _virtual_cpus(count: int) -> tf.distribute.Strategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"--num_virtual_cpus={count}: {error}") from error
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


# ---- batches ---------------------------------------------------------------


class Pipeline(NamedTuple):
    """One of the num_shards input pipelines that share the data; each host has one. It
    feeds `replicas` replicas, each with batches of its own of `batch_size` rows."""

    batch_size: int
    replicas: int = 1
    shard_index: int = 0
    num_shards: int = 1


class Batches:
    """Every replica's batches, for training and for evaluation.

        batches = RecordBatches(...)         # or FeatureBatches(...)
        [dataset] = batches.train(start_step=0)

    Where they come from is a subclass: records for pretraining
    (`input_pipeline.RecordBatches`), features sorted by length for fine-tuning
    (`length_batching.FeatureBatches`). Batches have one of `num_shapes` static shapes
    in training and of `num_evaluation_shapes` (0 evaluates nothing) in evaluation; each
    has datasets of its own, so that accelerators compile a step for each. Both batch
    sizes are rows of all replicas together.
    """

    num_shapes = 1
    num_evaluation_shapes = 0
    # The length of each step's sequences, where it changes, for estimates of time.
    lengths: Optional[Schedule] = None

    def __init__(self, train_batch_size: int, eval_batch_size: int):
        self.train_batch_size = train_batch_size
        self.eval_batch_size = eval_batch_size

    # ---- what a subclass gives ---------------------------------------------

    def training_dataset(self, shape: int, start_step: int,
                         pipeline: Pipeline) -> tf.data.Dataset:
        """What a pipeline yields of one shape from step `start_step` on: for each step
        of that shape as many batches in a row as it feeds replicas."""
        raise NotImplementedError

    def evaluation_dataset(self, shape: int,
                           pipeline: Pipeline) -> tuple[tf.data.Dataset, int]:
        """What a pipeline yields of one shape, and how many batches each replica takes
        of it: the same number in every pipeline."""
        raise NotImplementedError

    def shape_of_step(self, step: int) -> int:
        """The shape of a training step's batch, in 0..num_shapes-1."""
        del step
        return 0

    def parts(self, shape: int, parts: int, replicas: int) -> int:
        """Into how many parts each replica cuts a batch of this shape, if it is to
        cut the largest into `parts`."""
        del shape, replicas
        return parts

    def explain_error(self, error: Exception) -> Optional[InputError]:
        """A sentence that names file and record, for an error of reading a batch."""
        del error
        return None

    # ---- what the loop takes -----------------------------------------------

    def train(self, start_step: int) -> list[Any]:
        """Distributed datasets, one for each shape, that begin with `start_step`."""
        strategy = tf.distribute.get_strategy()
        return [strategy.distribute_datasets_from_function(
            lambda context, shape=shape: self.training_dataset(
                shape, start_step, _pipeline(context, self.train_batch_size)))
                for shape in range(self.num_shapes)]

    def evaluation(self) -> list[tuple[Any, int]]:
        """(distributed dataset, batches that each replica takes) for each shape."""
        def distributed(shape):
            steps = []

            def dataset(context):
                made, count = self.evaluation_dataset(
                    shape, _pipeline(context, self.eval_batch_size))
                steps.append(count)
                return made

            return tf.distribute.get_strategy().distribute_datasets_from_function(
                dataset), steps[0]

        return [distributed(shape) for shape in range(self.num_evaluation_shapes)]


def _pipeline(context: tf.distribute.InputContext, batch_size: int) -> Pipeline:
    return Pipeline(
        context.get_per_replica_batch_size(batch_size),
        context.num_replicas_in_sync // context.num_input_pipelines,
        context.input_pipeline_id, context.num_input_pipelines)


def dataset_options() -> tf.data.Options:
    """What every dataset here has: a fixed order, and no sharding by tf.data."""
    options = tf.data.Options()
    options.deterministic = True
    # The tuning thread sleeps for up to a minute, and dropping an iterator waits for
    # it; without it AUTOTUNE takes as many threads as there are cores.
    options.autotune.enabled = False
    # Sharding is done here; tf.data must not do it once more.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF)
    return options


# ---- several processes -----------------------------------------------------


def num_processes(strategy: tf.distribute.Strategy) -> int:
    """How many read the data, each its part of every batch."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return 1
    return sum(map(len, resolver.cluster_spec().as_dict().values()))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what there is one of."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


def check_same_start(strategy: tf.distribute.Strategy, step: int) -> None:
    """Checks that the workers of a cluster are about to start at the same step.

    To be called before anything is restored, which the workers do together; all of them
    raise the InputError.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return

    @tf.function
    def everyones_steps():
        own = tf.constant([step], tf.int64)
        return tf.distribute.get_replica_context().all_gather(own, axis=0)

    gathered = strategy.run(everyones_steps)
    steps = strategy.experimental_local_results(gathered)[0].numpy().tolist()
    if len(set(steps)) > 1:
        raise InputError(
            f"the workers start at different steps ({steps}): --output_dir must be "
            "one folder that all of them see.")


def explain_error(error: Exception, output_dir: str) -> Optional[InputError]:
    """A sentence for an exchange that broke off because another worker is gone."""
    broken = re.search("Collective ops is aborted by: (.*)", str(error))
    if broken is None:
        return None
    return InputError(
        f"another worker has ended or cannot be reached ({broken[1].rstrip(' .:')}); "
        "see its log; the same command, started on all of them, resumes from the "
        f"latest checkpoint in {output_dir}.")
