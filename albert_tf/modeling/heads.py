"""Models that are fine-tuned: the encoder with the head of a task.

Every variable carries the name that it has in the release's checkpoints; some
heads of the release stand outside of any scope.
Shapes: B batch, S sequence, H hidden, C choices, K labels; k start_n_top,
m end_n_top.
"""

from typing import Mapping, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer)

Features = Mapping[str, tf.Tensor]

# Of most heads' weights, whatever the config's initializer_range is.
HEAD_INITIALIZER_RANGE = 0.02

# Subtracted from the scores of positions that no answer may have. Finite in
# float32, so that nothing becomes a NaN where all positions are such ones.
IMPOSSIBLE_SCORE = 1e30

# Folded into the step's seed for the head's dropout. The encoder folds in 0, 1, 2
# ..., and never gets here.
_HEAD_SEED = 0x48454144


class OutputLayer(NamedLayer):
    """x · weightsᵀ + bias, with variables `output_weights` and `output_bias`.

    Args:
      scope: path of the variables; "" is the root, where the release has them
        for classification and multiple choice.
      in_size: units of the input.
      out_size: units of the output.
    """

    def __init__(self, scope: str, in_size: int, out_size: int):
        super().__init__(scope or "output")
        self.scope = scope
        self.output_weights = self.make_weight(
            "output_weights", [out_size, in_size],
            tf_keras.initializers.TruncatedNormal(stddev=HEAD_INITIALIZER_RANGE))
        self.output_bias = self.make_weight("output_bias", [out_size], "zeros")

    def make_weight(self, name: str, shape, initializer) -> tf.Variable:
        if self.scope:
            return super().make_weight(name, shape, initializer)
        # "" is the root, whatever scope the model is constructed in.
        with tf.name_scope(""):
            return self.add_weight(name=name, shape=shape, initializer=initializer)

    def call(self, inputs):
        """[N, in] → [N, out]."""
        logits = tf.matmul(inputs, self.output_weights, transpose_b=True)
        return tf.nn.bias_add(logits, self.output_bias)


class _EncoderWithHead(tf_keras.Model):
    """What the models below share.

    Args:
      config: the encoder's shape.
      **options: what else a model takes; stored for get_config.
    """

    def __init__(self, config: AlbertConfig, name: str, options: Mapping[str, object]):
        super().__init__(name=name)
        self.config = config
        self._options = dict(options)
        self.bert = AlbertModel(config)
        self.bert.padding_is_read = False

    def _encode(self, features: Features, training: bool, seed: Optional[tf.Tensor],
                positions: Optional[tf.Tensor] = None):
        """The encoder's outputs, and the seeds of the head's dropout.

        Positions as in AlbertModel.call.
        """
        if not training:
            return self._outputs(features, positions=positions), DropoutSeeds(None)
        if seed is None:
            seed = tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max,
                                     dtype=tf.int32)
        outputs = self._outputs(
            features, training=True, seed=seed, positions=positions)
        return outputs, DropoutSeeds(tf.random.fold_in(seed, _HEAD_SEED))

    def _outputs(self, features: Features, **options):
        """The encoder's outputs; heads compute in float32 whatever it computes in."""
        outputs = self.bert(features, **options)
        hidden = tf.cast(outputs["sequence_output"], tf.float32)
        return {**outputs, "sequence_output": hidden}

    def _pooled(self, features: Features, training: bool, seed: Optional[tf.Tensor]):
        """The pooled output alone, and the seeds of the head's dropout."""
        no_positions = tf.convert_to_tensor(features["input_ids"])[:, :0]
        outputs, seeds = self._encode(features, training, seed, no_positions)
        return outputs["pooled_output"], seeds

    def _freeze_pooler(self):
        """For heads that do not see the pooled output.

        Its weights have no gradient, and the release's optimizer leaves such ones
        alone; as trainable variables they would decay.
        """
        self.bert.pooler.trainable = False

    def get_config(self):
        return {"config": self.config.to_dict(), **self._options}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})


class AlbertForSequenceClassification(_EncoderWithHead):
    """One linear layer on the pooled output (`classifier_utils.create_model`).

    Args:
      config: the encoder's shape.
      num_labels: classes; 1 for regression.
      dropout_prob: of the pooled output, in training.
    """

    def __init__(self, config: AlbertConfig, num_labels: int,
                 dropout_prob: float = 0.1):
        super().__init__(config, "classifier", {
            "num_labels": num_labels, "dropout_prob": dropout_prob})
        self.dropout_prob = dropout_prob
        self.output_layer = OutputLayer("", config.hidden_size, num_labels)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, tf.Tensor]:
        """Scores of the labels.

        Args:
          features: `input_ids`, `input_mask`, `segment_ids` int [B, S].
          training: whether dropout is on.
          seed: int32 [2]; equal seeds drop equal units. By default every
            training call draws a new one.

        Returns:
          A dict: `logits` [B, K].

        Raises:
          InputError: if S is over max_position_embeddings.
        """
        pooled, seeds = self._pooled(features, training, seed)
        pooled = seeds.dropout(pooled, self.dropout_prob)
        return {"logits": self.output_layer(pooled)}


class AlbertForMultipleChoice(_EncoderWithHead):
    """One score for each choice of an example (`race_utils.create_model`).

    Args:
      config: the encoder's shape.
      dropout_prob: of the pooled output, in training.
    """

    def __init__(self, config: AlbertConfig, dropout_prob: float = 0.1):
        super().__init__(config, "multiple_choice", {"dropout_prob": dropout_prob})
        self.dropout_prob = dropout_prob
        self.output_layer = OutputLayer("", config.hidden_size, 1)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, tf.Tensor]:
        """Scores of the choices.

        Args:
          features: `input_ids`, `input_mask`, `segment_ids` int [B, C, S].
          training: whether dropout is on.
          seed: as for AlbertForSequenceClassification.

        Returns:
          A dict: `logits` [B, C].

        Raises:
          InputError: if S is over max_position_embeddings.
        """
        ids = features["input_ids"]
        choices, length = tf.unstack(tf.shape(ids))[1:]
        flat = {}
        for name in ("input_ids", "input_mask", "segment_ids"):
            flat[name] = tf.reshape(features[name], [-1, length])  # [B·C, S]
            flat[name].set_shape([
                ids.shape[0] and ids.shape[1] and ids.shape[0] * ids.shape[1],
                ids.shape[2]])
        pooled, seeds = self._pooled(flat, training, seed)
        pooled = seeds.dropout(pooled, self.dropout_prob)
        logits = tf.reshape(self.output_layer(pooled), [-1, choices])
        logits.set_shape(ids.shape[:2])
        return {"logits": logits}


class AlbertForSpans(_EncoderWithHead):
    """Scores of every position as start and as end (`squad_utils.create_v1_model`).

    Args:
      config: the encoder's shape.
      mask_padding: whether positions of padding can be no start and no end, so that
        losses and predictions do not depend on the length that a batch is padded
        to. False counts them in, as the release does.
    """

    def __init__(self, config: AlbertConfig, mask_padding: bool = True):
        super().__init__(config, "spans", {"mask_padding": mask_padding})
        self._freeze_pooler()
        self.mask_padding = mask_padding
        if not mask_padding:
            self.bert.padding_is_read = True
        self.output_layer = OutputLayer("cls/squad", config.hidden_size, 2)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, tf.Tensor]:
        """Scores of the positions.

        Args:
          features: `input_ids`, `input_mask`, `segment_ids` int [B, S].
          training: whether dropout is on; the head has none of its own.
          seed: as for AlbertForSequenceClassification.

        Returns:
          A dict, float32: in training `start_logits`, `end_logits` [B, S], not
          normalized; else `start_log_probs`, `end_log_probs` [B, S]. With
          mask_padding, positions of padding are at -1e30.

        Raises:
          InputError: if S is over max_position_embeddings.
        """
        hidden = self._encode(features, training, seed)[0]["sequence_output"]
        batch, length, size = tf.unstack(tf.shape(hidden))
        logits = self.output_layer(tf.reshape(hidden, [batch * length, size]))
        logits = tf.reshape(logits, [batch, length, 2])
        logits.set_shape([*hidden.shape[:2], 2])
        logits = tf.cast(logits, tf.float32)
        if self.mask_padding:
            there = tf.cast(features["input_mask"], tf.bool)[:, :, tf.newaxis]
            logits = tf.where(there, logits, -IMPOSSIBLE_SCORE)
        start, end = tf.unstack(logits, axis=-1)
        if training:
            return {"start_logits": start, "end_logits": end}
        return {"start_log_probs": tf.nn.log_softmax(start),
                "end_log_probs": tf.nn.log_softmax(end)}


class EndHead(NamedLayer):
    """Scores of the ends, given where the answer starts (`end_logits`)."""

    def __init__(self, config: AlbertConfig):
        super().__init__("end_logits")
        size = config.hidden_size
        self.dense_0 = Dense("end_logits/dense_0", 2 * size, size,
                             kernel_initializer(config))
        self.layer_norm = LayerNorm("end_logits/LayerNorm", size)
        self.dense_1 = Dense("end_logits/dense_1", size, 1, kernel_initializer(config))

    def call(self, hidden, starts):
        """[B, S, H], hidden states of k starts [B, k, H] → [B, k, S]."""
        # The first layer sees (position, start) side by side. Its product falls
        # into one of positions and one of starts, instead of one of all pairs.
        of_position, of_start = tf.split(self.dense_0.kernel, 2, axis=0)
        positions = tf.einsum("bsh,hg->bsg", hidden, of_position)[:, tf.newaxis]
        starts = tf.einsum("bkh,hg->bkg", starts, of_start)[:, :, tf.newaxis]
        pairs = tf.tanh(positions + starts + self.dense_0.bias)  # [B, k, S, H]
        return tf.squeeze(self.dense_1(self.layer_norm(pairs)), axis=-1)


class AnswerabilityHead(NamedLayer):
    """The score of "has no answer" (`answer_class`)."""

    def __init__(self, config: AlbertConfig, dropout_prob: float):
        super().__init__("answer_class")
        self.dropout_prob = dropout_prob
        size = config.hidden_size
        self.dense_0 = Dense("answer_class/dense_0", 2 * size, size,
                             kernel_initializer(config), "tanh")
        self.kernel = self.make_weight(
            "dense_1/kernel", [size, 1], kernel_initializer(config))

    def call(self, hidden, start_probs, seeds: DropoutSeeds):
        """[B, S, H], [B, S] → [B]."""
        start = tf.einsum("bs,bsh->bh", start_probs, hidden)
        features = self.dense_0(tf.concat([start, hidden[:, 0]], axis=-1))
        features = seeds.dropout(features, self.dropout_prob)
        return tf.squeeze(tf.matmul(features, self.kernel), axis=-1)


class AlbertForConditionalSpans(_EncoderWithHead):
    """Start, end given the start, and answerability (`squad_utils.create_v2_model`).

    Args:
      config: the encoder's shape.
      start_n_top: k, starts that prediction follows.
      end_n_top: m, ends that it keeps for each of them.
      dropout_prob: of the answerability head, in training.

    Raises:
      InputError: if start_n_top or end_n_top is under 1.
    """

    def __init__(self, config: AlbertConfig, start_n_top: int = 5, end_n_top: int = 5,
                 dropout_prob: float = 0.1):
        for name, value in (("start_n_top", start_n_top), ("end_n_top", end_n_top)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more.")
        super().__init__(config, "conditional_spans", {
            "start_n_top": start_n_top, "end_n_top": end_n_top,
            "dropout_prob": dropout_prob})
        self._freeze_pooler()
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.start_head = Dense("start_logits/dense", config.hidden_size, 1,
                                kernel_initializer(config))
        self.end_head = EndHead(config)
        self.answerability_head = AnswerabilityHead(config, dropout_prob)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, tf.Tensor]:
        """Log-probabilities of starts and ends, and the score of "no answer".

        Args:
          features: `input_ids`, `input_mask`, `segment_ids` int [B, S]; `p_mask`
            [B, S], 1 where no answer may start or end; in training
            `start_positions` int [B] or [B, 1].
          training: whether dropout is on, and whether the ends are those of the
            true start.
          seed: as for AlbertForSequenceClassification.

        Returns:
          A dict: `cls_logits` [B], higher where the question has no answer, and
          in training `start_log_probs`, `end_log_probs` [B, S]; else
          `start_top_log_probs`, `start_top_index` [B, k] with the likeliest start
          first, and `end_top_log_probs`, `end_top_index` [B, k·m] with the m ends
          of the first start first. Where fewer than k or m positions are
          possible, impossible ones with log-probability -1e30 fill up; their
          indices may be S or more if S is under k or m.

        Raises:
          InputError: if S is over max_position_embeddings.
        """
        outputs, seeds = self._encode(features, training, seed)
        hidden = outputs["sequence_output"]
        p_mask = tf.cast(features["p_mask"], hidden.dtype)
        if not training:
            hidden, p_mask = _extend(
                hidden, p_mask, max(self.start_n_top, self.end_n_top))
        start_scores = _possible(
            tf.squeeze(self.start_head(hidden), axis=-1), p_mask)  # [B, S]
        start_log_probs = tf.nn.log_softmax(start_scores)
        cls_logits = self.answerability_head(
            hidden, tf.nn.softmax(start_scores), seeds)
        if training:
            starts = tf.reshape(features["start_positions"], [-1, 1])
            return {
                "start_log_probs": start_log_probs,
                "end_log_probs": self._end_log_probs(hidden, p_mask, starts)[:, 0],
                "cls_logits": cls_logits,
            }
        start_top, start_index = tf.math.top_k(start_log_probs, self.start_n_top)
        end_top, end_index = tf.math.top_k(
            self._end_log_probs(hidden, p_mask, start_index), self.end_n_top)
        pairs = [-1, self.start_n_top * self.end_n_top]
        return {
            "start_top_log_probs": start_top,
            "start_top_index": start_index,
            "end_top_log_probs": tf.reshape(end_top, pairs),
            "end_top_index": tf.reshape(end_index, pairs),
            "cls_logits": cls_logits,
        }

    def _end_log_probs(self, hidden, p_mask, starts):
        """Of every position as the end, given `starts` int [B, k]: [B, k, S]."""
        chosen = tf.one_hot(starts, tf.shape(hidden)[1], dtype=hidden.dtype)
        scores = self.end_head(hidden, tf.matmul(chosen, hidden))
        return tf.nn.log_softmax(_possible(scores, p_mask[:, tf.newaxis]))


def _possible(scores, p_mask):
    """Scores with those of impossible positions sunk."""
    return scores * (1.0 - p_mask) - IMPOSSIBLE_SCORE * p_mask


def _extend(hidden, p_mask, length: int):
    """Adds impossible positions up to `length`, so that the k best exist."""
    missing = tf.maximum(length - tf.shape(hidden)[1], 0)
    if hidden.shape[1] is not None:
        missing = max(length - hidden.shape[1], 0)
        if not missing:
            return hidden, p_mask
    return (tf.pad(hidden, [[0, 0], [0, missing], [0, 0]]),
            tf.pad(p_mask, [[0, 0], [0, missing]], constant_values=1.0))
