"""Long steps in slices, so that the host hears of a step's parts.

    batch ─► parts 0 to 5 ─► parts 6 to 11 ─► ... ─► update
                   └─ progress, signals ─┘

A step of one call gives no sign until it ends, which may take hours on a CPU. Such a
step is computed in several calls, each of some parts of the batch. Its sums lie in
variables between the calls.
"""

import functools
import math
import time
from typing import Any, Callable, Iterable, Optional, Sequence

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.training.devices import replica_variable

# Steps of several parts with more operations than this on each replica run in slices:
# about 10 s on two slow cores.
_LONG_STEP = 1e12
# A slice takes about this long, or one part: a signal waits for its end.
_SECONDS_OF_SLICE = 1.0


def is_long(config: AlbertConfig, shape: Sequence[int], passes: Optional[int]) -> bool:
    """Returns whether a step is so long that it runs in slices.

    Its duration must not decide, nor anything else that is measured: sums in slices
    differ from those of one call in the last digit, as TensorFlow optimizes another
    graph, and a resumed run must be equal to one without a stop.

    Args:
      shape: the shape of a replica's `input_ids`.
      passes: the number of layers that the step runs; None for all.
    """
    of_token = config.hidden_size * (
        4 * config.hidden_size + 2 * config.intermediate_size)
    layers = (passes or config.num_hidden_layers) * config.inner_group_num
    # Each weight is used by a product and a sum, three times: forward, and backward for
    # the input and the weights.
    return 6 * math.prod(shape) * layers * of_token > _LONG_STEP


class Slices:
    """The slices of a step, each of about a second, or of one part if this is longer.

    Attributes:
      parts: the number of parts of a step.
      on_parts: called between slices with the number of parts done and that of all.
      votes: the workers' votes, if there are several; they take equal slices.
    """

    def __init__(self, parts: int, on_parts: Callable[[int, int], None],
                 votes: Optional["StopVotes"] = None):
        self.parts, self._on_parts, self._votes = parts, on_parts, votes
        self._seconds_of_part: Optional[float] = None
        self._is_traced = False

    def run(self, add: Callable[[int, int], None]) -> None:
        """Computes all parts; `add` computes those from its first to before its second
        argument, and returns when they are done."""
        done = 0
        while done < self.parts:
            count = min(self.parts - done, max(1, int(
                _SECONDS_OF_SLICE / self._seconds_of_part))
                if self._seconds_of_part else 1)
            start = time.monotonic()
            add(done, done + count)
            seconds = (time.monotonic() - start) / count
            if self._votes is not None:
                seconds = self._votes.exchange(seconds)
            if self._is_traced:  # The time of the first call is that of tracing.
                self._seconds_of_part = max(seconds, 1e-6)
            self._is_traced, done = True, done + count
            if done < self.parts:
                self._on_parts(done, self.parts)


class StopVotes:
    """Votes of the workers to stop. They can only stop together, at the same place;
    therefore each step's exchange of gradients also averages their votes, and between
    the parts of a step and the batches of an evaluation `exchange` does."""

    def __init__(self):
        self._strategy = tf.distribute.get_strategy()
        self.own = replica_variable(0.0, name="stop_vote")
        self.mean = replica_variable(0.0, name="mean_stop_vote")

    def cast(self) -> None:
        """Votes to stop, on behalf of this worker."""
        self.own.assign(1.0)

    def any(self) -> bool:
        """Returns True if any worker had voted before the last exchange."""
        return bool(self.mean.numpy() > 0)

    def exchange(self, seconds: float = 0.0) -> float:
        """Averages the votes now, and returns the mean of the workers' `seconds`."""
        vote, mean = self._strategy.experimental_local_results(
            self._exchange(tf.constant(seconds)))[0].numpy()
        self.mean.assign(vote)
        return float(mean)

    @functools.cached_property
    def _exchange(self):
        def replica_means(seconds):
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.MEAN, tf.stack([self.own, seconds]))

        return tf.function(
            lambda seconds: self._strategy.run(replica_means, args=(seconds,)),
            autograph=False)


class PartSums:
    """Sums of the loss, the gradients and the metrics over the parts of a batch; each
    replica has its own. Create it in the strategy's scope."""

    def __init__(self, variables: Iterable[tf.Variable], names: Iterable[str]):
        def zeros(shape):
            return replica_variable(tf.zeros(shape))

        self._sums = [zeros([]), [zeros(each.shape) for each in variables],
                      {name: zeros([2]) for name in names}]

    def assign(self, sums) -> None:
        for variable, value in zip(tf.nest.flatten(self._sums), tf.nest.flatten(sums)):
            variable.assign(value)

    def read(self) -> list[Any]:
        """Returns loss, gradients and metrics."""
        # tf.identity places them on the replica's device, which an exchange needs.
        return tf.nest.map_structure(
            lambda variable: tf.identity(tf.convert_to_tensor(variable)), self._sums)
