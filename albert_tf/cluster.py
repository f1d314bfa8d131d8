"""Several processes that train one model: which of them writes, and where they start."""

import tensorflow as tf

from albert_tf.errors import InputError


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what there is one of."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


def check_same_step(strategy: tf.distribute.Strategy, step: tf.Variable) -> None:
    """Raises InputError where the workers of a cluster differ in their step.

    Each restores the checkpoint that it sees; training on from different ones
    would mix them without a word.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return

    @tf.function
    def everyones_steps():
        own = tf.reshape(tf.cast(step, tf.int64), [1])
        return tf.distribute.get_replica_context().all_gather(own, axis=0)

    gathered = strategy.run(everyones_steps)
    steps = strategy.experimental_local_results(gathered)[0].numpy().tolist()
    if len(set(steps)) > 1:
        raise InputError(
            f"the workers start at different steps ({steps}): --output_dir must be "
            "one folder that all of them see.")
