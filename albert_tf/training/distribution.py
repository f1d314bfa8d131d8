"""Several processes that train one model: which of them writes, where they start."""

import re
from typing import Optional

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


def check_same_start(strategy: tf.distribute.Strategy, step: int) -> None:
    """Checks that the workers of a cluster are about to start at the same step.

    To be called before anything is restored, which the workers do together.

    Args:
      strategy: the current one.
      step: where this worker is about to start.

    Raises:
      InputError: if another worker is about to start elsewhere; on every worker.
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
        "see its log; the same command, started on all of them, goes on at the latest "
        f"checkpoint in {output_dir}.")
