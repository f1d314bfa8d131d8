"""What the encoder and the heads are made of: dense layers, LayerNorm, dropout.

Every variable carries the name that it has in the release's checkpoints, and
exists as soon as the model is constructed; all kernels are two-dimensional.
"""

import copy
import math
from typing import Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.modeling.kernels import fast, plain
from albert_tf.modeling.kernels.recompute import after


# Of the output layers of tasks, whatever the config's initializer_range is.
TASK_INITIALIZER_RANGE = 0.02


class NamedLayer(tf_keras.layers.Layer):
    """A layer whose variables are named as in the release's checkpoints, where `scope`
    is its path."""

    def __init__(self, scope: str, **kwargs):
        # Each layer casts what it must; Keras would cast all inputs to float32.
        super().__init__(name=scope.replace("/", "_"), autocast=False, **kwargs)
        self.scope = scope

    def _trackable_children(self, save_type="checkpoint", **options):
        # In a SavedModel a layer is its variables: Keras would store a function for
        # each, which takes many times as long, and cannot store those of ours.
        if save_type == "savedmodel":
            return tf.Module._trackable_children(self, save_type)
        return super()._trackable_children(save_type, **options)

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        """Adds a trainable variable `<scope>/<name>`."""
        # A trailing slash makes the scope absolute, whatever scope encloses it.
        with tf.name_scope(f"{self.scope}/"):
            return self.add_weight(name=name, shape=shape, initializer=initializer)


def kernel_initializer(config: AlbertConfig):
    """Truncated normal of the config's range; a new object for each weight."""
    return tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def sizes(tensor: tf.Tensor) -> list:
    """Its shape: ints where they are known, else tensors."""
    return [tf.shape(tensor)[axis] if size is None else size
            for axis, size in enumerate(tensor.shape)]


def product(inputs: tf.Tensor, kernel: tf.Tensor,
            bias: Optional[tf.Tensor] = None) -> tf.Tensor:
    """[..., in] × [in, out] + bias [out] → [..., out], as one flat product."""
    def flat(inputs):
        output = tf.matmul(inputs, kernel)
        # Right behind a product TensorFlow makes the bias part of it.
        return output if bias is None else fast.add_bias(output, bias)

    if inputs.shape.rank == 2:
        return flat(inputs)
    # [B·S, in] × [in, out] is faster than a batched one.
    shape, (in_size, out_size) = inputs.shape, kernel.shape
    output = flat(tf.reshape(inputs, [-1, in_size]))
    output = tf.reshape(output, tf.concat([tf.shape(inputs)[:-1], [out_size]], axis=0))
    output.set_shape(shape[:-1].concatenate([out_size]))
    return output


class Dense(NamedLayer):
    """x · kernel + bias over the last axis: [..., in] → [..., out], in x's type."""

    def __init__(self, scope: str, in_size: int, out_size: int, initializer,
                 hidden_act: str = "linear"):
        super().__init__(scope)
        self.kernel = self.make_weight("kernel", [in_size, out_size], initializer)
        self.bias = self.make_weight("bias", [out_size], "zeros")
        self.hidden_act = hidden_act

    def call(self, inputs):
        output = product(inputs, tf.cast(self.kernel, inputs.dtype),
                         tf.convert_to_tensor(self.bias))
        return plain.activation(self.hidden_act)(output)


class LayerNorm(NamedLayer):
    """Normalization over the last axis, with gain `gamma` and offset `beta`."""

    def __init__(self, scope: str, size: int,
                 epsilon: float = plain.LAYER_NORM_EPSILON):
        super().__init__(scope)
        self.epsilon = epsilon
        self.beta = self.make_weight("beta", [size], "zeros")
        self.gamma = self.make_weight("gamma", [size], "ones")

    def call(self, inputs):
        return plain.normalize(inputs, self.gamma, self.beta, self.epsilon)


class TokenScores(NamedLayer):
    """Scores of every token at some positions (`get_masked_lm_output`).

    The output weights are the word embeddings, passed in by the caller: a table of its
    own would cost V · E parameters once more.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("cls/predictions")
        self.transform = Dense(
            f"{self.scope}/transform/dense", config.hidden_size,
            config.embedding_size, kernel_initializer(config), config.hidden_act)
        self.layer_norm = LayerNorm(
            f"{self.scope}/transform/LayerNorm", config.embedding_size,
            config.masked_lm_layer_norm_eps or config.layer_norm_eps)
        self.output_bias = self.make_weight("output_bias", [config.vocab_size], "zeros")

    def call(self, masked, word_embeddings):
        """Outputs at the masked positions [B, P, H], [V, E] → logits [B, P, V]."""
        batch, num_predictions, _ = tf.unstack(tf.shape(masked))
        masked = tf.reshape(masked, [-1, masked.shape[-1]])
        # Few positions: in float32 whatever type the layers compute in.
        hidden = self.layer_norm(self.transform(tf.cast(masked, tf.float32)))
        logits = tf.matmul(hidden, word_embeddings, transpose_b=True)  # [B·P, V]
        logits = tf.nn.bias_add(logits, self.output_bias)
        return tf.reshape(logits, [batch, num_predictions, self.output_bias.shape[0]])


class OutputLayer(NamedLayer):
    """x · weightsᵀ + bias, [N, in] → [N, out]: `output_weights`, `output_bias`.

    The scope "" is the root, where the release has them for classification and multiple
    choice.
    """

    def __init__(self, scope: str, in_size: int, out_size: int,
                 initializer_range: float = TASK_INITIALIZER_RANGE):
        super().__init__(scope or "output")
        self.scope = scope
        self.output_weights = self.make_weight(
            "output_weights", [out_size, in_size],
            tf_keras.initializers.TruncatedNormal(stddev=initializer_range))
        self.output_bias = self.make_weight("output_bias", [out_size], "zeros")

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        if self.scope:
            return super().make_weight(name, shape, initializer)
        # "" is the root, whatever scope the model is constructed in.
        with tf.name_scope(""):
            return self.add_weight(name=name, shape=shape, initializer=initializer)

    def call(self, inputs):
        logits = tf.matmul(inputs, self.output_weights, transpose_b=True)
        return tf.nn.bias_add(logits, self.output_bias)


def _not_negative(seed: tf.Tensor) -> tf.Tensor:
    """From negative seeds XLA draws other numbers than TensorFlow."""
    return tf.bitwise.bitwise_and(seed, tf.int32.max)


class _Draws:
    """Random numbers of one dropout: those of a row are a function of the seed and the
    row's number in the whole batch, so that parts of a batch draw what the whole would
    (with Philox, whose numbers are numbered; TPUs have a faster one of their own).
    """

    _WORDS = 4  # of 32 bits, that a count of Philox's counter gives

    def __init__(self, seed: tf.Tensor, first_row: tf.Tensor):
        self._key, self._counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        self._first_row = tf.cast(first_row, tf.uint64)

    def _counter_at(self, blocks, series=0):
        """Where rows begin that have `blocks` of the counter each."""
        low = self._counter[0] + self._first_row * tf.cast(blocks, tf.uint64)
        return tf.stack([low, self._counter[1] + tf.constant(series, tf.uint64)])

    def keep(self, shape, rate: float) -> tf.Tensor:
        """Which units of a tensor [R, ...] stay: bool of `shape`."""
        known = tf.get_static_value(tf.convert_to_tensor(shape))
        # A batch of millions has more units than 32 bits can count.
        rows, *others = tf.unstack(tf.cast(shape, tf.int64)) if known is None else (
            map(int, known))
        units = math.prod(others)
        # Whatever the type of what is dropped from, so that the same units are.
        if fast.on_cpu() and rate < 255 / 256:
            numbers, threshold = self._bytes(rows, units), self._byte_threshold(rate)
        else:
            blocks = -(-units // self._WORDS)
            numbers, threshold = tf.raw_ops.StatelessRandomUniformV2(
                shape=[rows, blocks * self._WORDS], key=self._key,
                counter=self._counter_at(blocks), dtype=tf.float32,
                alg=tf.raw_ops.StatelessRandomGetAlg()), rate
        return tf.reshape(numbers[:, :units], shape) >= threshold

    def _bytes(self, rows, units):
        """A byte for each unit, [rows, at least units]. A float each would cost a CPU
        ten times as much."""
        blocks = -(-units // (4 * self._WORDS))
        found = fast.random_bytes(self._key, self._counter_at(blocks), rows * blocks)
        return tf.reshape(found, [rows, blocks * 4 * self._WORDS])

    def _byte_threshold(self, rate):
        """256 · rate, rounded down or, as one more word decides, up: a byte is below it
        with just the probability `rate`."""
        level = math.floor(256 * rate)
        rest = tf.constant(int((256 * rate - level) * 2 ** 32), tf.uint32)
        word = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1], key=self._key, counter=self._counter_at(0, series=1),
            dtype=tf.uint32, alg=tf.random.Algorithm.PHILOX.value)[0]
        return tf.cast(level, tf.uint8) + tf.cast(word < rest, tf.uint8)


def given_or_drawn(seed: Optional[tf.Tensor]) -> tf.Tensor:
    """`seed`, or a new one."""
    if seed is not None:
        return tf.convert_to_tensor(seed, tf.int32)
    return tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max,
                             dtype=tf.int32)


class DropoutSeeds:
    """Gives each dropout of one forward pass a seed of its own.

    Args:
      seed: int32 [2], or [3] for a part of a batch, with the number of the part's first
        row in the whole; None drops nothing.
      purpose: other numbers for another purpose.
    """

    def __init__(self, seed: Optional[tf.Tensor], purpose: Optional[int] = None):
        self._seed = None
        self.next_draw = 0  # Its number.
        self.drawn = 0
        if seed is not None:
            self._first_row = seed[2] if seed.shape[0] == 3 else tf.constant(0)
            seed = seed[:2] if purpose is None else tf.random.fold_in(seed[:2], purpose)
            self._seed = _not_negative(seed)

    def draw(self, shape, rate: float) -> Optional[plain.Dropped]:
        """Which of the units of a tensor [rows, ...] stay; None if all do."""
        if self._seed is None or rate == 0.0:
            return None
        seed = _not_negative(tf.random.fold_in(self._seed, self.next_draw))
        self.skip(1)
        return plain.Dropped(_Draws(seed, self._first_row).keep(shape, rate), rate)

    def after(self, tensor: tf.Tensor, next_draw) -> "DropoutSeeds":
        """A copy that has drawn nothing yet, continues with the draw of a number, an
        int or int32 [], and draws only once `tensor` is there.

        No draw needs an input, so that otherwise all of a step could be made at its
        beginning, and those of recomputed layers be kept from the first time.
        """
        found = copy.copy(self)
        found.next_draw, found.drawn = next_draw, 0
        if self._seed is not None:
            found._seed = after(self._seed, tensor)
        return found

    def skip(self, count: int) -> None:
        """Continues as if `count` more had been drawn."""
        self.next_draw += count
        self.drawn += count

    def dropout(self, inputs: tf.Tensor, rate: float) -> tf.Tensor:
        """Zeroes a share `rate` of `inputs` and scales up the rest."""
        return plain.drop(inputs, self.draw(tf.shape(inputs), rate))


def of_positions(layer, hidden: tf.Tensor) -> tf.Tensor:
    """An OutputLayer at every position: [B, S, H] → [B, S, K]."""
    batch, length, size = tf.unstack(tf.shape(hidden))
    output = layer(tf.reshape(hidden, [-1, size]))
    width = output.shape[-1]
    output = tf.reshape(output, [batch, length, width])
    output.set_shape([*hidden.shape[:2], width])
    return output
