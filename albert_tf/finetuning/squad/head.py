"""The two heads of SQuAD, and the answers they give.

Version 1.1 scores every position as start and as end. Version 2.0 scores ends given the
start, and whether there is an answer at all.

Shapes: B batch, S sequence, H hidden, k start_n_top, m end_n_top.
"""

import dataclasses

from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answering, Request
from albert_tf.finetuning.squad import task as squad
from albert_tf.finetuning.squad.dataset import SquadExample
from albert_tf.modeling.heads import INPUTS, Head, dense_shapes, norm_shapes
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

# Subtracted from the scores of positions that no answer may have. Finite in
# float32, so that nothing becomes a NaN where all positions are such ones.
IMPOSSIBLE_SCORE = 1e30


@dataclasses.dataclass(frozen=True)
class Spans(Head):
    """Scores of every position as start and as end (`squad_utils.create_v1_model`).

    With `mask_padding` no answer starts or ends in padding, so that losses and
    predictions do not depend on the length that a batch is padded to; without it
    padding counts, as in the release.
    """

    width: int = 2
    mask_padding: bool = True

    name, title = "spans", "head of spans, of SQuAD 1.1"
    task, scope, fixed_width = "answer", "cls/squad", True
    # Evaluation has windows whose answer is not known.
    reads, scored_alone = "sequence_output", True

    @property
    def reads_padding(self):
        return not self.mask_padding

    def serving(self):
        return dataclasses.replace(self, mask_padding=True)

    def outputs(self, layers, encoded, features, dropout, training=False):
        """`start_logits`, `end_logits` [B, S], not normalized, at -1e30 in masked
        padding, and `start_log_probs`, `end_log_probs` [B, S]."""
        import tensorflow as tf

        from albert_tf.modeling.layers import of_positions

        logits = of_positions(layers["output_layer"], encoded["sequence_output"])
        if self.mask_padding and features.get("input_mask") is not None:
            there = tf.cast(features["input_mask"], tf.bool)[:, :, tf.newaxis]
            logits = tf.where(there, logits, -IMPOSSIBLE_SCORE)
        start, end = tf.unstack(logits, axis=-1)
        return {"start_logits": start, "end_logits": end,
                "start_log_probs": tf.nn.log_softmax(start),
                "end_log_probs": tf.nn.log_softmax(end)}

    def predictions(self, outputs):
        return {name: outputs[name] for name in ("start_log_probs", "end_log_probs")}

    def objective(self):
        """The mean of the cross-entropies of start and end, over all S positions.
        Features `start_positions`, `end_positions` int [B, 1]. Release:
        `squad_utils.v1_model_fn_builder`."""
        from albert_tf.finetuning import objectives
        from albert_tf.training.losses import cross_entropy, integers

        def loss(outputs, features):
            start, end = (
                cross_entropy(outputs[f"{side}_logits"],
                              integers(features[f"{side}_positions"]))
                for side in ("start", "end"))
            return (start + end) / 2.0

        return objectives.mean_over_examples(
            loss, lambda outputs, features: _accuracies("logits", outputs, features),
            self.predictions)

    def targets(self, features):
        from albert_tf.training.distillation import targets_of

        return targets_of(features, {
            "start_logits": (0.5,), "end_logits": (0.5,)}, "sequence_output")

    def answering(self):
        return Questions

    def text_task(self):
        from albert_tf.finetuning.squad.text import Spans

        return Spans


@dataclasses.dataclass(frozen=True)
class ConditionalSpans(Head):
    """Start, end given the start, and answerability (`squad_utils.create_v2_model`).

    Prediction follows the `start_n_top` likeliest starts and keeps the `end_n_top`
    likeliest ends of each. `dropout_prob` is that of answerability.
    """

    start_n_top: int = 5
    end_n_top: int = 5
    dropout_prob: float = 0.1

    name, title = "conditional_spans", "head of SQuAD 2.0"
    task, fixed_width = "answer", True
    reads, scored_alone = "sequence_output", True
    inputs, has_threshold = (*INPUTS, "p_mask"), True

    def __post_init__(self):
        for name in ("start_n_top", "end_n_top"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}; it must be 1 or more.")

    def shapes(self, config):
        size = config.hidden_size
        return {**dense_shapes("start_logits/dense", size, 1),
                **dense_shapes("end_logits/dense_0", 2 * size, size),
                **norm_shapes("end_logits/LayerNorm", size),
                **dense_shapes("end_logits/dense_1", size, 1),
                **dense_shapes("answer_class/dense_0", 2 * size, size),
                "answer_class/dense_1/kernel": (size, 1)}

    def layers(self, config):
        from albert_tf.finetuning.squad.layers import AnswerabilityScore, EndScores
        from albert_tf.modeling.layers import Dense, kernel_initializer

        return {"start_head": Dense("start_logits/dense", config.hidden_size, 1,
                                    kernel_initializer(config)),
                "end_head": EndScores(config),
                "answerability_head": AnswerabilityScore(config, self.dropout_prob)}

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Log-probabilities of starts and ends, and the score of "no answer".

        Further features are `p_mask` [B, S], 1 where no answer may start or end, and in
        training, where the ends are those of the true start, `start_positions` int [B]
        or [B, 1].

        Returns:
          `cls_logits` [B], higher where the question has no answer, and in training
          `start_log_probs`, `end_log_probs` [B, S]; else `start_top_log_probs`,
          `start_top_index` [B, k] with the likeliest start first, and
          `end_top_log_probs`, `end_top_index` [B, k·m] with the m ends of the first
          start first. Where fewer than k or m positions are possible, impossible ones
          with log-probability -1e30 fill up; their indices may be S or more.
        """
        import tensorflow as tf

        hidden = encoded["sequence_output"]
        p_mask = tf.cast(features["p_mask"], hidden.dtype)
        if not training:
            hidden, p_mask = _extend(
                hidden, p_mask, max(self.start_n_top, self.end_n_top))

        def end_log_probs(starts):
            """Of every position as the end, given starts int [B, k]: [B, k, S]."""
            chosen = tf.one_hot(starts, tf.shape(hidden)[1], dtype=hidden.dtype)
            scores = layers["end_head"](hidden, tf.matmul(chosen, hidden))
            return tf.nn.log_softmax(_possible(scores, p_mask[:, tf.newaxis]))

        start_scores = _possible(
            tf.squeeze(layers["start_head"](hidden), axis=-1), p_mask)  # [B, S]
        start_log_probs = tf.nn.log_softmax(start_scores)
        cls_logits = layers["answerability_head"](
            hidden, tf.nn.softmax(start_scores), dropout)
        if training:
            starts = tf.reshape(features["start_positions"], [-1, 1])
            return {"start_log_probs": start_log_probs, "cls_logits": cls_logits,
                    "end_log_probs": end_log_probs(starts)[:, 0]}
        start_top, start_index = tf.math.top_k(start_log_probs, self.start_n_top)
        end_top, end_index = tf.math.top_k(end_log_probs(start_index), self.end_n_top)
        pairs = [-1, self.start_n_top * self.end_n_top]
        return {"start_top_log_probs": start_top, "start_top_index": start_index,
                "end_top_log_probs": tf.reshape(end_top, pairs),
                "end_top_index": tf.reshape(end_index, pairs), "cls_logits": cls_logits}

    def objective(self):
        """The mean of start and end, and half of the answerability cross-entropy.
        Features as for Spans, and `is_impossible` int [B, 1]. Release:
        `squad_utils.v2_model_fn_builder`."""
        import tensorflow as tf

        from albert_tf.finetuning import objectives
        from albert_tf.training.losses import integers

        def negative_log_prob(side, outputs, features):
            log_probs = tf.cast(outputs[f"{side}_log_probs"], tf.float32)
            true = tf.one_hot(integers(features[f"{side}_positions"]),
                              tf.shape(log_probs)[1])
            return -tf.reduce_sum(true * log_probs, axis=-1)

        def loss(outputs, features):
            answerability = tf.nn.sigmoid_cross_entropy_with_logits(
                labels=tf.cast(integers(features["is_impossible"]), tf.float32),
                logits=tf.cast(outputs["cls_logits"], tf.float32))
            start, end = (negative_log_prob(side, outputs, features)
                          for side in ("start", "end"))
            return (start + end) / 2.0 + 0.5 * answerability

        def accuracies(outputs, features):
            impossible = integers(features["is_impossible"])
            said = tf.cast(outputs["cls_logits"] > 0, tf.int32)
            return {**_accuracies("log_probs", outputs, features),
                    "answerability_accuracy": tf.cast(said == impossible, tf.float32)}

        return objectives.mean_over_examples(loss, accuracies, self.predictions)

    def targets(self, features):
        from albert_tf.training.distillation import binary_divergence, targets_of

        return targets_of(features, {
            "start_log_probs": (0.5,), "end_log_probs": (0.5,),
            "cls_logits": (0.5, binary_divergence)}, "sequence_output")

    def answering(self):
        return UnanswerableQuestions

    def text_task(self):
        from albert_tf.finetuning.squad.text import Spans

        return Spans


def _accuracies(kind, outputs, features):
    """Shares of right starts and ends; `kind` of outputs, "logits" or "log_probs"."""
    from albert_tf.training.losses import hits, integers

    return {f"{side}_accuracy": hits(outputs[f"{side}_{kind}"],
                                     integers(features[f"{side}_positions"]))
            for side in ("start", "end")}


def _possible(scores, p_mask):
    """Scores with those of impossible positions sunk."""
    return scores * (1.0 - p_mask) - IMPOSSIBLE_SCORE * p_mask


def _extend(hidden, p_mask, length: int):
    """Adds impossible positions up to `length`, so that the k best exist."""
    import tensorflow as tf

    if hidden.shape[1] is not None and hidden.shape[1] >= length:
        return hidden, p_mask
    # Padded too far, then cut: tf2onnx makes one of the number `length` and the list of
    # it that top_k takes, so it must not be a number here.
    size = tf.concat([[-1], tf.maximum(tf.shape(hidden)[1:2], [length])], axis=0)
    return (tf.slice(tf.pad(hidden, [[0, 0], [0, length], [0, 0]]), [0, 0, 0],
                     tf.concat([size, [-1]], axis=0)),
            tf.slice(tf.pad(p_mask, [[0, 0], [0, length]], constant_values=1.0),
                     [0, 0], size))


# ---- answers ---------------------------------------------------------------


class Questions(Answering):
    """The words of a passage that answer a question, in windows as in training."""

    names, optional = ("question", "passage"), ()
    padding = {"p_mask": 1}
    version_2 = False

    def __init__(self, model, head):
        super().__init__(model, head)
        options = {name: self.setting(name, getattr(squad.SquadTask, name)) for name in (
            "doc_stride", "max_query_length", "n_best_size", "max_answer_length",
            "start_n_top", "end_n_top")}
        # A short model has room for a shorter question.
        options["max_query_length"] = min(
            options["max_query_length"],
            max(1, self.max_length - NUM_SPECIAL_PAIR - 1))
        self.max_length = min(self.max_length, self.setting("max_seq_length", 384))
        self.task = squad.SquadTask(
            self.version_2, max_seq_length=self.max_length, **options)
        self.threshold = model.threshold

    def request(self, given, top_k):
        example = SquadExample(
            "", given["question"], given["passage"], None, None, False)
        windows = self.task.featurize(
            example, tokenizer=self.tokenizer, is_training=False)
        columns = list(squad.number_features([windows]))

        def answer(outputs):
            predictions = self.task.rank(
                [example],
                {name: [row[name] for row in outputs] for name in outputs[0]},
                {name: [row[name] for row in columns] for name in columns[0]})
            start, end, score = predictions.best[""]
            odds = None
            if predictions.null_odds is not None:
                odds = predictions.null_odds[""]
                if odds >= self.threshold:
                    start = end = 0
            return {"answer": example.paragraph_text[start:end], "start": start,
                    "end": end, "score": score} | (
                        {} if odds is None else {"null_odds": odds})

        if not windows:  # As a passage without a token.
            raise InputError("the passage holds no text that could be an answer.")
        return Request(windows, answer, self)


class UnanswerableQuestions(Questions):
    """As Questions, for models that may find that there is no answer."""

    version_2 = True
