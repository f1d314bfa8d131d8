"""The random numbers of dropout: which units stay, for each dropout of a forward pass.

Equal seeds drop equal units, in every dtype and layout, and in parts of a batch as in
the whole: the units depend only on the seed, on the dropout's index in the forward pass
and on the row's index in the batch.
"""

import copy
import math
from typing import Optional

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from albert_tf.modeling.kernels import fast, plain, tpu

_WORDS = 4  # of 32 bits, for each count of Philox's counter


def _not_negative(seed: tf.Tensor) -> tf.Tensor:
    # XLA and TensorFlow draw different numbers for negative seeds.
    return tf.bitwise.bitwise_and(seed, tf.int32.max)


def random_bytes(key: tf.Tensor, counter: tf.Tensor, blocks) -> tf.Tensor:
    """Returns uint8 [16 · blocks], the numbers of TensorFlow's Philox for a key and a
    counter, uint64 [1] and [2], in a third of its time if `blocks` is an int."""
    # Nothing is compiled within a graph that XLA compiles as a whole (--jit_compile);
    # TensorFlow has no public function that tells. XLA cannot cast the bits of complex
    # numbers, therefore the cast happens outside.
    if (isinstance(blocks, int) and fast.MIN_SIZE // 16 <= blocks < 2 ** 31
            and fast.device_kind() == "CPU"
            and not control_flow_util.GraphOrParentsInXlaContext(
                tf.compat.v1.get_default_graph())):
        numbers = fast.island(_philox, key[0], counter, blocks)
    else:
        numbers = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[4 * blocks], key=key, counter=counter, dtype=tf.uint32,
            alg=tf.random.Algorithm.PHILOX.value)
    return tf.reshape(tf.bitcast(numbers, tf.uint8), [-1])


def _philox(key, counter, blocks):
    """Computes Philox 4x32-10 (Salmon et al. 2011) for `blocks` counters: complex128
    [blocks], four words in each number, because XLA compiles a single output into one
    loop."""
    def low(number):
        return tf.cast(number, tf.uint32)

    def high(number):
        return low(tf.bitwise.right_shift(number, tf.constant(32, tf.uint64)))

    def product(factor, word):
        return tf.constant(factor, tf.uint64) * tf.cast(word, tf.uint64)

    def pair(first, second):
        bits = tf.cast(first, tf.uint64) | tf.bitwise.left_shift(
            tf.cast(second, tf.uint64), tf.constant(32, tf.uint64))
        return tf.bitcast(bits, tf.float64)

    first = counter[0] + tf.cast(tf.range(blocks), tf.uint64)
    second = counter[1] + tf.cast(first < counter[0], tf.uint64)
    words = low(first), high(first), low(second), high(second)
    keys = low(key), high(key)
    for _ in range(10):
        left, right = product(0xD2511F53, words[0]), product(0xCD9E8D57, words[2])
        words = (high(right) ^ words[1] ^ keys[0], low(right),
                 high(left) ^ words[3] ^ keys[1], low(left))
        keys = (keys[0] + tf.constant(0x9E3779B9, tf.uint32),
                keys[1] + tf.constant(0xBB67AE85, tf.uint32))
    return tf.complex(pair(*words[:2]), pair(*words[2:]))


def _keep(seed: tf.Tensor, first_row: tf.Tensor, shape, rate: float) -> tf.Tensor:
    """Draws which units of a tensor [R, ...] stay, the part from `first_row` on of a
    whole batch: bool of `shape`. The generator is Philox, whose counter can start
    anywhere. TPUs use their own, and draw by replica and part (kernels.tpu.keep)."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    first_row = tf.cast(first_row, tf.uint64)

    def counter_at(blocks, series=0):  # of the first row; each takes `blocks` counts
        low = counter[0] + first_row * tf.cast(blocks, tf.uint64)
        return tf.stack([low, counter[1] + tf.constant(series, tf.uint64)])

    # In int64, since a large batch has more units than int32 can count.
    rows, *row_shape = (
        tf.cast(size, tf.int64) if tf.is_tensor(size) else size for size in shape)
    units = math.prod(row_shape)
    # One random number for each unit. The choice does not depend on the tensor's dtype,
    # so that the same units are dropped in every dtype.
    if fast.device_kind() == "CPU" and rate < 255 / 256:
        # A byte for each unit: floats would take ten times as long on a CPU.
        blocks = -(-units // (4 * _WORDS))
        numbers = tf.reshape(random_bytes(key, counter_at(blocks), rows * blocks),
                             [rows, blocks * 4 * _WORDS])
        # 256 · rate is rounded up as often as its remainder says, by one more random
        # number, so that the probability of a byte below it is exactly `rate`.
        level = math.floor(256 * rate)
        rest = tf.constant(int((256 * rate - level) * 2 ** 32), tf.uint32)
        word = tf.bitcast(random_bytes(key, counter_at(0, series=1), 1)[:4], tf.uint32)
        threshold = tf.cast(level, tf.uint8) + tf.cast(word < rest, tf.uint8)
    else:
        blocks, threshold = -(-units // _WORDS), rate
        numbers = tf.raw_ops.StatelessRandomUniformV2(
            shape=[rows, blocks * _WORDS], key=key, counter=counter_at(blocks),
            dtype=tf.float32, alg=tf.raw_ops.StatelessRandomGetAlg())
    return tf.reshape(numbers[:, :units], shape) >= threshold


def after(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, but not before `other`, a tensor of floats, exists.

    XLA orders operations only by their data. Therefore this adds a number that XLA
    cannot simplify: it is 0 unless the first number in `other` is NaN.
    """
    first = tf.reshape(other, [-1])[0]
    zero = tf.where(tf.equal(first, first), tf.zeros([], first.dtype), first)
    return tensor + tf.cast(zero, tensor.dtype)


class DropoutSeeds:
    """Gives each dropout of a forward pass its own seed; without `training`, none drops.

    `seed` is int32 [2]; for a part of a batch int32 [3], whose last value is the index of
    the part's first row in the batch. None draws a new one. A different `purpose`, a
    number, gets different random numbers from one seed.
    """

    def __init__(self, seed: Optional[tf.Tensor], training: bool = True,
                 purpose: Optional[int] = None):
        self._seed = None
        self.next_draw = 0  # index of the next dropout in the forward pass
        if training:
            if seed is None:
                seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
            seed = tf.convert_to_tensor(seed, tf.int32)
            self._first_row = seed[2] if seed.shape[0] == 3 else tf.constant(0)
            seed = seed[:2] if purpose is None else tf.random.fold_in(seed[:2], purpose)
            self._seed = _not_negative(seed)

    def draw(self, shape, rate: float) -> Optional[plain.Dropped]:
        """Draws which units of a tensor [rows, ...] stay; returns None if all do."""
        if self._seed is None or rate == 0.0:
            return None
        # The seed depends only on the dropout's index, so that a step can be repeated.
        seed = _not_negative(tf.random.fold_in(self._seed, self.next_draw))
        self.next_draw += 1
        if fast.device_kind() == "TPU":
            keep = tpu.keep(tf.random.fold_in(seed, self._first_row), shape, rate)
        else:
            keep = _keep(seed, self._first_row, shape, rate)
        return plain.Dropped(keep, rate)

    def after(self, tensor: tf.Tensor, next_draw) -> "DropoutSeeds":
        """Returns a copy that starts with the dropout of index `next_draw` (an int or
        int32 []), and that draws only after `tensor` has been computed.

        Drawing needs no input. TensorFlow could therefore draw for all layers at the
        start of a step, or keep the draws of layers that are recomputed; both would
        cost memory.
        """
        seeds = copy.copy(self)
        seeds.next_draw = next_draw
        # Make the seed depend on the tensor, and with it everything that is drawn.
        if self._seed is not None:
            seeds._seed = after(self._seed, tensor)
        return seeds

    def dropout(self, inputs: tf.Tensor, rate: float) -> tf.Tensor:
        """Zeroes a share `rate` of `inputs` and scales up the rest."""
        return plain.drop(inputs, self.draw(plain.sizes(inputs), rate))
