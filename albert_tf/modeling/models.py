"""Models: the encoder with the heads of a task.

Shapes: B batch, S sequence, P predictions, H hidden, V pieces, C choices, K labels;
k start_n_top, m end_n_top.
"""

from typing import Any, Mapping, Optional

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.albert import AlbertModel, ConfiguredModel
from albert_tf.modeling.early_exit import ExitHead
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.heads import (
    AnswerabilityHead, EndHead, MaskedLanguageModelHead, OutputLayer)
from albert_tf.modeling.kernels.packing import at_positions
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, given_or_drawn, kernel_initializer)

Features = Mapping[str, tf.Tensor]

# Subtracted from the scores of positions that no answer may have. Finite in
# float32, so that nothing becomes a NaN where all positions are such ones.
IMPOSSIBLE_SCORE = 1e30

# Folded into the step's seed for the head's dropout. The encoder folds in 0, 1, 2
# ..., and never gets here.
_HEAD_SEED = 0x48454144


class _EncoderWithHead(ConfiguredModel):
    """What the models below share; AlbertForSpans(mask_padding=False) alone reads
    outputs at positions of padding. Features are `input_ids`, `input_mask`,
    `segment_ids` int [B, S], and what else a model names; other arguments of calls as
    for AlbertModel.call."""

    def __init__(self, config: AlbertConfig, name: str, needs_pooler: bool = True,
                 **options: Any):
        if needs_pooler and not config.use_pooler:
            raise InputError("config: use_pooler is false, but this model has a head "
                             "on the pooled output; set it to true.")
        super().__init__(config, name, **options)
        self.bert = AlbertModel(config)

    def _encode(self, features: Features, training: bool, seed: Optional[tf.Tensor],
                computation: Computation, **options):
        """The encoder's outputs and the seeds of the head's dropout; options as for
        AlbertModel.call. Heads compute in float32 whatever the encoder computes in."""
        seed = given_or_drawn(seed) if training else None
        outputs = self.bert(features, training=training, seed=seed,
                            computation=computation,
                            **{"padding_is_read": False, **options})
        hidden = tf.cast(outputs["sequence_output"], tf.float32)
        return {**outputs, "sequence_output": hidden}, DropoutSeeds(seed, _HEAD_SEED)

    def _encode_first(self, features: Features, *how):
        """`_encode` for heads that read of the last layer the pooled output alone."""
        no_positions = tf.convert_to_tensor(features["input_ids"])[:, :0]
        return self._encode(features, *how, positions=no_positions)

    def _freeze_pooler(self):
        """For heads that do not see the pooled output: the pooler has no gradient then,
        and the release's optimizer leaves such variables alone; trainable ones would
        decay."""
        if self.bert.pooler is not None:
            self.bert.pooler.trainable = False


class AlbertForPreTraining(_EncoderWithHead):
    """Encoder, masked-LM head and sentence-order head (paper, section 3.1).

    >>> model = AlbertForPreTraining(AlbertConfig.named("base", vocab_size=100))
    >>> outputs = model({"input_ids": tf.constant([[2, 45, 4, 3]]),
    ...                  "masked_lm_positions": tf.constant([[2]])})
    >>> outputs["mlm_logits"].shape, outputs["sentence_order_logits"].shape
    (TensorShape([1, 1, 100]), TensorShape([1, 2]))

    The second head classifies two segments as in order (0) or swapped (1). BERT's next
    sentence prediction, whose negatives come from another text, can be solved by topic
    alone and teaches little coherence (paper, section 3.1).

    Release: `get_masked_lm_output`, `get_sentence_order_output`.
    """

    def __init__(self, config: AlbertConfig, name: str = "pretrainer"):
        super().__init__(config, name)
        self.predictions = MaskedLanguageModelHead(config)
        self.seq_relationship = OutputLayer(
            "cls/seq_relationship", config.hidden_size, 2, config.initializer_range)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Features with `masked_lm_positions` int [B, P], as parsed from the records →
        `mlm_logits` [B, P, V] and `sentence_order_logits` [B, 2]; in training also
        `sequence_output` [B, P, H], what the first is made of."""
        outputs = self.bert(
            features, training=training, seed=seed, padding_is_read=False,
            positions=features["masked_lm_positions"], computation=computation)
        return {
            "mlm_logits": self.predictions(
                outputs["sequence_output"], self.bert.embeddings.word_embeddings),
            "sentence_order_logits": self.seq_relationship(outputs["pooled_output"]),
            **_read_by_heads(training, sequence_output=outputs["sequence_output"]),
        }

    def freeze_sentence_layers(self) -> None:
        """Leaves the pooler and the sentence-order head as they are, for training
        without the loss over sentences: weight decay alone would shrink them to
        nothing."""
        self.bert.pooler.trainable = False
        self.seq_relationship.trainable = False


class AlbertForSequenceClassification(_EncoderWithHead):
    """One linear layer on the pooled output (`classifier_utils.create_model`).

    >>> model = AlbertForSequenceClassification(
    ...     AlbertConfig.named("base", vocab_size=100), num_labels=3)
    >>> model({"input_ids": tf.constant([[2, 45, 7, 3]])})["logits"].shape
    TensorShape([1, 3])

    For regression `num_labels` is 1. `dropout_prob` is that of the pooled output. With
    `exit_weight` there is an ExitHead of that weight, too.
    """

    def __init__(self, config: AlbertConfig, num_labels: int,
                 dropout_prob: float = 0.1, exit_weight: Optional[float] = None):
        super().__init__(config, "classifier", num_labels=num_labels,
                         dropout_prob=dropout_prob, exit_weight=exit_weight)
        self.dropout_prob = dropout_prob
        self.output_layer = OutputLayer("", config.hidden_size, num_labels)
        self.exit_head = None if exit_weight is None else ExitHead(
            config, num_labels, exit_weight)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Features → `logits` [B, K], in training what they are made of,
        `pooled_output` [B, H], and `exit_logits` [B, passes - 1, K] if there is an exit
        head."""
        outputs, seeds = self._encode_first(features, training, seed, computation)
        pooled = seeds.dropout(outputs["pooled_output"], self.dropout_prob)
        found = {"logits": self.output_layer(pooled), **_read_by_heads(
            training, pooled_output=outputs["pooled_output"])}
        if self.exit_head is not None:
            found["exit_logits"] = self.exit_head.of_passes(
                outputs["encoder_outputs"], seeds, self.dropout_prob)
        return found


class AlbertForMultipleChoice(_EncoderWithHead):
    """One score for each choice of an example (`race_utils.create_model`).

    >>> model = AlbertForMultipleChoice(AlbertConfig.named("base", vocab_size=100))
    >>> ids = tf.constant([[[2, 45, 7, 3], [2, 45, 8, 3]]])  # Two choices.
    >>> model({"input_ids": ids, "input_mask": tf.ones_like(ids),
    ...        "segment_ids": tf.zeros_like(ids)})["logits"].shape
    TensorShape([1, 2])

    Each choice is a sequence of its own, with text, question and answer.
    """

    def __init__(self, config: AlbertConfig, dropout_prob: float = 0.1):
        super().__init__(config, "multiple_choice", dropout_prob=dropout_prob)
        self.dropout_prob = dropout_prob
        self.output_layer = OutputLayer("", config.hidden_size, 1)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Features, all [B, C, S] → `logits` [B, C], and in training `pooled_output`
        [B, C, H]."""
        ids = features["input_ids"]
        choices, length = tf.unstack(tf.shape(ids))[1:]
        flat = {}
        for name in ("input_ids", "input_mask", "segment_ids"):
            if name not in features:
                continue
            flat[name] = tf.reshape(features[name], [-1, length])  # [B·C, S]
            flat[name].set_shape([
                ids.shape[0] and ids.shape[1] and ids.shape[0] * ids.shape[1],
                ids.shape[2]])
        if training:
            seed = given_or_drawn(seed)
            # The number of a part's first row counts sequences here.
            seed = seed * tf.stack([1, 1, choices])[:seed.shape[0]]
        outputs, seeds = self._encode_first(flat, training, seed, computation)
        pooled = seeds.dropout(outputs["pooled_output"], self.dropout_prob)
        logits = tf.reshape(self.output_layer(pooled), [-1, choices])
        logits.set_shape(ids.shape[:2])
        hidden = outputs["pooled_output"]
        return {"logits": logits, **_read_by_heads(training, pooled_output=tf.reshape(
            hidden, [-1, choices, hidden.shape[-1]]))}


class AlbertForTokenClassification(_EncoderWithHead):
    """A label for every piece, as Hugging Face's class of this name.

    >>> model = AlbertForTokenClassification(
    ...     AlbertConfig.named("base", vocab_size=100), num_labels=5)
    >>> model({"input_ids": tf.constant([[2, 45, 7, 3]])})["logits"].shape
    TensorShape([1, 4, 5])

    `dropout_prob` is that of the encoder's outputs.
    """

    def __init__(self, config: AlbertConfig, num_labels: int,
                 dropout_prob: float = 0.1):
        super().__init__(config, "tagger", needs_pooler=False, num_labels=num_labels,
                         dropout_prob=dropout_prob)
        self._freeze_pooler()
        self.num_labels, self.dropout_prob = num_labels, dropout_prob
        self.output_layer = OutputLayer("", config.hidden_size, num_labels)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Features → `logits` [B, S, K], and in training `sequence_output` [B, S, H];
        those of padding mean nothing."""
        outputs, seeds = self._encode(features, training, seed, computation)
        hidden = seeds.dropout(outputs["sequence_output"], self.dropout_prob)
        logits = _of_positions(self.output_layer, hidden)
        logits.set_shape([*hidden.shape[:2], self.num_labels])
        return {"logits": logits, **_read_by_heads(
            training, sequence_output=outputs["sequence_output"])}


class AlbertForSpans(_EncoderWithHead):
    """Scores of every position as start and as end (`squad_utils.create_v1_model`).

    >>> model = AlbertForSpans(AlbertConfig.named("base", vocab_size=100))
    >>> ids = tf.constant([[2, 45, 7, 3]])
    >>> outputs = model({"input_ids": ids, "input_mask": tf.ones_like(ids)})
    >>> outputs["start_log_probs"].shape, outputs["end_log_probs"].shape
    (TensorShape([1, 4]), TensorShape([1, 4]))

    With `mask_padding` no answer starts or ends in padding, so that losses and
    predictions do not depend on the length that a batch is padded to; without it
    padding counts, as in the release.
    """

    def __init__(self, config: AlbertConfig, mask_padding: bool = True):
        super().__init__(config, "spans", needs_pooler=False, mask_padding=mask_padding)
        self._freeze_pooler()
        self.mask_padding = mask_padding
        self.output_layer = OutputLayer("cls/squad", config.hidden_size, 2)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """In training `start_logits`, `end_logits` [B, S], not normalized, and
        `sequence_output`; else `start_log_probs`, `end_log_probs` [B, S]. Masked padding
        is at -1e30."""
        hidden = self._encode(
            features, training, seed, computation,
            padding_is_read=not self.mask_padding)[0]["sequence_output"]
        batch, length, size = tf.unstack(tf.shape(hidden))
        logits = self.output_layer(tf.reshape(hidden, [batch * length, size]))
        logits = tf.reshape(logits, [batch, length, 2])
        logits.set_shape([*hidden.shape[:2], 2])
        logits = tf.cast(logits, tf.float32)
        if self.mask_padding and "input_mask" in features:
            there = tf.cast(features["input_mask"], tf.bool)[:, :, tf.newaxis]
            logits = tf.where(there, logits, -IMPOSSIBLE_SCORE)
        start, end = tf.unstack(logits, axis=-1)
        if training:
            return {"start_logits": start, "end_logits": end,
                    **_read_by_heads(training, sequence_output=hidden)}
        return {"start_log_probs": tf.nn.log_softmax(start),
                "end_log_probs": tf.nn.log_softmax(end)}


class AlbertForConditionalSpans(_EncoderWithHead):
    """Start, end given the start, and answerability (`squad_utils.create_v2_model`).

    >>> model = AlbertForConditionalSpans(
    ...     AlbertConfig.named("base", vocab_size=100), start_n_top=2, end_n_top=1)
    >>> ids = tf.constant([[2, 45, 7, 3]])
    >>> outputs = model({"input_ids": ids, "p_mask": tf.constant([[0, 1, 0, 1]])})
    >>> outputs["start_top_index"].shape, outputs["cls_logits"].shape
    (TensorShape([1, 2]), TensorShape([1]))

    Prediction follows the `start_n_top` likeliest starts and keeps the `end_n_top`
    likeliest ends of each. `dropout_prob` is that of the answerability head.
    """

    def __init__(self, config: AlbertConfig, start_n_top: int = 5, end_n_top: int = 5,
                 dropout_prob: float = 0.1):
        for name, value in (("start_n_top", start_n_top), ("end_n_top", end_n_top)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more.")
        super().__init__(config, "conditional_spans", needs_pooler=False,
                         start_n_top=start_n_top, end_n_top=end_n_top,
                         dropout_prob=dropout_prob)
        self._freeze_pooler()
        self.start_n_top = start_n_top
        self.end_n_top = end_n_top
        self.start_head = Dense("start_logits/dense", config.hidden_size, 1,
                                kernel_initializer(config))
        self.end_head = EndHead(config)
        self.answerability_head = AnswerabilityHead(config, dropout_prob)

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Log-probabilities of starts and ends, and the score of "no answer".

        Further features are `p_mask` [B, S], 1 where no answer may start or end, and in
        training, where the ends are those of the true start, `start_positions` int [B]
        or [B, 1].

        Returns:
          `cls_logits` [B], higher where the question has no answer, and in training
          `start_log_probs`, `end_log_probs` [B, S], `sequence_output` [B, S, H]; else
          `start_top_log_probs`, `start_top_index` [B, k] with the likeliest start first, and
          `end_top_log_probs`, `end_top_index` [B, k·m] with the m ends of the first
          start first. Where fewer than k or m positions are possible, impossible ones
          with log-probability -1e30 fill up; their indices may be S or more.
        """
        outputs, seeds = self._encode(features, training, seed, computation)
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
            return {"start_log_probs": start_log_probs, "cls_logits": cls_logits,
                    **_read_by_heads(training, sequence_output=hidden),
                    "end_log_probs": self._end_log_probs(hidden, p_mask, starts)[:, 0]}
        start_top, start_index = tf.math.top_k(start_log_probs, self.start_n_top)
        end_top, end_index = tf.math.top_k(
            self._end_log_probs(hidden, p_mask, start_index), self.end_n_top)
        pairs = [-1, self.start_n_top * self.end_n_top]
        return {"start_top_log_probs": start_top, "start_top_index": start_index,
                "end_top_log_probs": tf.reshape(end_top, pairs),
                "end_top_index": tf.reshape(end_index, pairs), "cls_logits": cls_logits}

    def _end_log_probs(self, hidden, p_mask, starts):
        """Of every position as the end, given `starts` int [B, k]: [B, k, S]."""
        chosen = tf.one_hot(starts, tf.shape(hidden)[1], dtype=hidden.dtype)
        scores = self.end_head(hidden, tf.matmul(chosen, hidden))
        return tf.nn.log_softmax(_possible(scores, p_mask[:, tf.newaxis]))


class AlbertWithHeads(_EncoderWithHead):
    """The encoder with all heads that a checkpoint holds, and all that they give: what
    `albert_tf.load` makes.

    >>> model = AlbertWithHeads(AlbertConfig.named("base", vocab_size=100),
    ...                         {"masked_lm": 1, "classification": 3})
    >>> outputs = model({"input_ids": tf.constant([[2, 45, 7, 3]])})
    >>> outputs["mlm_logits"].shape, outputs["logits"].shape
    (TensorShape([1, 4, 100]), TensorShape([1, 3]))

    Args:
      heads: masked_lm, sentence_order, classification, multiple_choice,
        token_classification, spans, early_exit → the width of their outputs.
      mask_padding: as for AlbertForSpans.
      dropout_prob: of what the heads of tasks get, in training.
    """

    def __init__(self, config: AlbertConfig, heads: Mapping[str, int],
                 mask_padding: bool = False, dropout_prob: float = 0.1):
        super().__init__(
            config, "albert", needs_pooler=not {*heads}.isdisjoint(
                ("sentence_order", "classification", "multiple_choice")),
            heads=dict(heads), mask_padding=mask_padding, dropout_prob=dropout_prob)
        self.mask_padding, self.dropout_prob = mask_padding, dropout_prob
        self.predictions = (
            MaskedLanguageModelHead(config) if "masked_lm" in heads else None)
        self.exit_head = (ExitHead(config, heads["early_exit"])
                          if "early_exit" in heads else None)
        scopes = {"sentence_order": "cls/seq_relationship", "spans": "cls/squad"}
        self.output_layers = {
            head: OutputLayer(scopes.get(head, ""), config.hidden_size, width)
            for head, width in heads.items() if head not in ("masked_lm", "early_exit")}

    def call(self, features: Features, training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Features [B, S], for multiple choice [B, C, S], and `masked_lm_positions`
        [B, P], by default all positions.

        Returns:
          `sequence_output` [B, S, H], `pooled_output` [B, H] if there is a pooler, for
          multiple choice [B, C, S, H] and [B, C, H]; and of the heads `mlm_logits`
          [B, P, V], `sentence_order_logits` [B, 2], `logits` [B, K], [B, C] or
          [B, S, K], `start_logits`, `end_logits`, `start_log_probs`, `end_log_probs`
          [B, S]; with an exit head `exit_logits` [B, passes - 1, K].
        """
        ids = tf.convert_to_tensor(features["input_ids"])
        features = {**features, "input_ids": ids}
        choices = tf.shape(ids)[:2] if "multiple_choice" in self.output_layers else None
        if choices is not None:
            features = {name: tf.reshape(features[name], [-1, tf.shape(ids)[2]])
                        for name in ("input_ids", "input_mask", "segment_ids")
                        if features.get(name) is not None}
        outputs, seeds = self._encode(features, training, seed, computation,
                                      padding_is_read=True)
        found = {name: outputs[name] for name in ("sequence_output", "pooled_output")
                 if name in outputs}
        sequence, pooled = (seeds.dropout(found[name], self.dropout_prob)
                            if name in found else None
                            for name in ("sequence_output", "pooled_output"))
        if self.predictions is not None:
            positions = features.get("masked_lm_positions")
            hidden = outputs["sequence_output"]
            found["mlm_logits"] = self.predictions(
                hidden if positions is None else at_positions(hidden, positions),
                self.bert.embeddings.word_embeddings)
        if self.exit_head is not None:
            found["exit_logits"] = self.exit_head.of_passes(
                outputs["encoder_outputs"], seeds, self.dropout_prob)
        for head, layer in self.output_layers.items():
            if head == "sentence_order":
                found["sentence_order_logits"] = layer(outputs["pooled_output"])
            elif head == "spans":
                found |= self._spans(_of_positions(layer, sequence), features)
            elif head == "token_classification":
                found["logits"] = _of_positions(layer, sequence)
            else:
                found["logits"] = layer(pooled)
        if choices is not None:
            found = {name: tf.reshape(
                value, tf.concat([choices, tf.shape(value)[1:]], axis=0))
                     for name, value in found.items()}
            found["logits"] = found["logits"][..., 0]
        return found

    def _spans(self, logits, features):
        found = dict(zip(("start_logits", "end_logits"), tf.unstack(logits, axis=-1)))
        mask = features.get("input_mask") if self.mask_padding else None
        for name in ("start", "end"):
            scores = found[f"{name}_logits"]
            if mask is not None:
                scores = tf.where(tf.cast(mask, tf.bool), scores, -IMPOSSIBLE_SCORE)
            found[f"{name}_log_probs"] = tf.nn.log_softmax(scores)
        return found


def _of_positions(layer, hidden):
    """[B, S, H] → [B, S, K]."""
    batch, length, size = tf.unstack(tf.shape(hidden))
    found = layer(tf.reshape(hidden, [-1, size]))
    return tf.reshape(found, [batch, length, found.shape[-1]])


def _possible(scores, p_mask):
    """Scores with those of impossible positions sunk."""
    return scores * (1.0 - p_mask) - IMPOSSIBLE_SCORE * p_mask


def _read_by_heads(training: bool, **hidden: tf.Tensor) -> dict[str, tf.Tensor]:
    """Hidden states that a student may learn of its teacher."""
    return {name: tf.cast(value, tf.float32) for name, value in hidden.items()
            if training}


def _extend(hidden, p_mask, length: int):
    """Adds impossible positions up to `length`, so that the k best exist."""
    if hidden.shape[1] is not None and hidden.shape[1] >= length:
        return hidden, p_mask
    # Padded too far, then cut: tf2onnx makes one of the number `length` and the list of
    # it that top_k takes, so it must not be a number here.
    size = tf.concat([[-1], tf.maximum(tf.shape(hidden)[1:2], [length])], axis=0)
    return (tf.slice(tf.pad(hidden, [[0, 0], [0, length], [0, 0]]), [0, 0, 0],
                     tf.concat([size, [-1]], axis=0)),
            tf.slice(tf.pad(p_mask, [[0, 0], [0, length]], constant_values=1.0),
                     [0, 0], size))
