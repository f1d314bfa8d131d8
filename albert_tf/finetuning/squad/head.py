"""The two heads of SQuAD, and their answers.

The head of version 1.1 scores every position as start and as end. That of version 2.0
scores ends given the start, and whether there is an answer at all.

Shapes: B batch, S sequence, H hidden, k start_n_top, m end_n_top.
"""

import dataclasses

import numpy as np

from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answering, Request
from albert_tf.finetuning.squad import task as squad
from albert_tf.finetuning.squad.dataset import SquadExample
from albert_tf.modeling.head import Head, Input, dense_shapes, norm_shapes
from albert_tf.text.inputs import Field
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

# Subtracted from the scores of impossible positions. It is finite in float32, so that
# nothing becomes NaN if all positions are impossible.
IMPOSSIBLE_SCORE = 1e30


@dataclasses.dataclass(frozen=True)
class Spans(Head):
    """Scores every position as start and as end (`squad_utils.create_v1_model` in the
    original implementation).

    With `mask_padding`, no answer starts or ends in padding, so that losses and
    predictions do not depend on the length to which a batch is padded. Without it,
    padding counts, as in the original.
    """

    width: int = 2
    mask_padding: bool = True

    name, task, scope, fixed_width = "spans", "answer", "cls/squad", True
    # In evaluation, windows have no known answer, and therefore no loss.
    reads, scored_alone = "sequence_output", True

    @property
    def reads_padding(self):
        return not self.mask_padding

    def serving(self):
        return dataclasses.replace(self, mask_padding=True)

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes `start_logits` and `end_logits` [B, S], which are -1e30 in masked
        padding, and `start_log_probs` and `end_log_probs` [B, S]."""
        import tensorflow as tf

        logits = layers["output_layer"](encoded["sequence_output"])
        if self.mask_padding and features.get("input_mask") is not None:
            # LiteRT has no [..., newaxis] of bools.
            there = tf.expand_dims(tf.cast(features["input_mask"], tf.bool), -1)
            logits = tf.where(there, logits, -IMPOSSIBLE_SCORE)
        start, end = tf.unstack(logits, axis=-1)
        return self.with_log_probs({"start_logits": start, "end_logits": end})

    def with_log_probs(self, logits):
        """Adds `start_log_probs` and `end_log_probs` [B, S] to the logits [B, S]."""
        import tensorflow as tf

        return {**logits, **{f"{side}_log_probs": tf.nn.log_softmax(
            logits[f"{side}_logits"]) for side in ("start", "end")}}

    def predictions(self, outputs):
        return {name: outputs[name] for name in ("start_log_probs", "end_log_probs")}

    def objective(self):
        """Returns the mean of the cross-entropies of start and end, over all S
        positions (`squad_utils.v1_model_fn_builder`). It needs the features
        `start_positions` and `end_positions`, int [B, 1]."""
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

    def answering(self):
        return Questions

    def text_task(self):
        from albert_tf.finetuning.squad.text import Spans

        return Spans


@dataclasses.dataclass(frozen=True)
class ConditionalSpans(Head):
    """Scores starts, ends given the start, and answerability
    (`squad_utils.create_v2_model`)."""

    start_n_top: int = 5  # The number of most probable starts that prediction uses.
    end_n_top: int = 5  # The number of most probable ends that it returns for each start.
    dropout_prob: float = 0.1  # Of the answerability score.

    name, task, fixed_width = "conditional_spans", "answer", True
    reads, scored_alone = "sequence_output", True
    reads_also = (Input("p_mask", pad=1, limit=2, derived=True),
                  Input("start_positions", size=1, served=False))
    has_threshold = True

    def shapes(self, config):
        size = config.hidden_size
        return {**dense_shapes("start_logits/dense", size, 1),
                **dense_shapes("end_logits/dense_0", 2 * size, size),
                **norm_shapes("end_logits/LayerNorm", size),
                **dense_shapes("end_logits/dense_1", size, 1),
                **dense_shapes("answer_class/dense_0", 2 * size, size),
                "answer_class/dense_1/kernel": (size, 1)}

    def layers(self, config):
        from albert_tf.modeling.layers import (
            Dense, LayerNorm, NamedLayer, kernel_initializer)

        def dense(scope, rows, columns, *activation):
            return Dense(scope, rows, columns, kernel_initializer(config), *activation)

        size = config.hidden_size
        start = dense("start_logits/dense", size, 1)
        end, answerability = NamedLayer("end_logits"), NamedLayer("answer_class")
        end.dense_0 = dense("end_logits/dense_0", 2 * size, size)
        end.layer_norm = LayerNorm("end_logits/LayerNorm", size, config.layer_norm_eps)
        end.dense_1 = dense("end_logits/dense_1", size, 1)
        answerability.dense_0 = dense("answer_class/dense_0", 2 * size, size, "tanh")
        answerability.kernel = answerability.make_weight(
            "dense_1/kernel", [size, 1], kernel_initializer(config))
        return {"start_head": start, "end_head": end, "answerability_head": answerability}

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes log-probabilities of starts and ends, and the score of "no answer".

        It also needs the features `p_mask` [B, S], 1 where no answer can start or end,
        and, in training, `start_positions`, int [B] or [B, 1], because ends are then
        scored for the true start.

        Returns:
          `cls_logits` [B], higher if the question has no answer, and in training
          `start_log_probs` and `end_log_probs` [B, S]. Otherwise `start_top_log_probs`
          and `start_top_index` [B, k], the most probable start first, and
          `end_top_log_probs` and `end_top_index` [B, k·m], the m ends of the first
          start first. If fewer than k or m positions are possible, impossible ones with
          log-probability -1e30 are added; their indices may be S or more.
        """
        import tensorflow as tf

        hidden = encoded["sequence_output"]
        p_mask = tf.cast(features["p_mask"], hidden.dtype)
        if not training:
            hidden, p_mask = _extend(
                hidden, p_mask, max(self.start_n_top, self.end_n_top))

        def end_log_probs(starts):
            """Computes the log-probabilities of every position as the end, [B, k, S],
            given starts, int [B, k]."""
            layer = layers["end_head"]
            chosen = tf.one_hot(starts, tf.shape(hidden)[1], dtype=hidden.dtype)
            # The first layer's input is (position, start), concatenated. Its product is
            # the sum of one for each, which is cheaper than all pairs.
            of_position, of_start = tf.split(layer.dense_0.kernel, 2, axis=0)
            positions = tf.einsum("bsh,hg->bsg", hidden, of_position)[:, tf.newaxis]
            of_starts = tf.einsum(
                "bkh,hg->bkg", tf.matmul(chosen, hidden), of_start)[:, :, tf.newaxis]
            pairs = tf.tanh(positions + of_starts + layer.dense_0.bias)  # [B, k, S, H]
            scores = tf.squeeze(layer.dense_1(layer.layer_norm(pairs)), axis=-1)
            return tf.nn.log_softmax(_possible(scores, p_mask[:, tf.newaxis]))

        start_scores = _possible(
            tf.squeeze(layers["start_head"](hidden), axis=-1), p_mask)  # [B, S]
        start_log_probs = tf.nn.log_softmax(start_scores)
        # "No answer" is scored from the expected start and the first token.
        layer = layers["answerability_head"]
        expected = tf.einsum("bs,bsh->bh", tf.nn.softmax(start_scores), hidden)
        expected = layer.dense_0(tf.concat([expected, hidden[:, 0]], axis=-1))
        cls_logits = tf.squeeze(tf.matmul(
            dropout.dropout(expected, self.dropout_prob), layer.kernel), axis=-1)
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
        """Returns the mean of the losses of start and end, plus half of the
        cross-entropy of answerability (`squad_utils.v2_model_fn_builder`). It needs the
        features of Spans, and `is_impossible`, int [B, 1]."""
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
            predicted = tf.cast(outputs["cls_logits"] > 0, tf.int32)
            return {**_accuracies("log_probs", outputs, features),
                    "answerability_accuracy": tf.cast(
                        predicted == impossible, tf.float32)}

        return objectives.mean_over_examples(loss, accuracies, self.predictions)

    def answering(self):
        return UnanswerableQuestions

    text_task = Spans.text_task


def _accuracies(kind, outputs, features):
    """Returns whether each start and end is right; `kind` is "logits" or
    "log_probs"."""
    from albert_tf.training.losses import hits, integers

    return {f"{side}_accuracy": hits(outputs[f"{side}_{kind}"],
                                     integers(features[f"{side}_positions"]))
            for side in ("start", "end")}


def _possible(scores, p_mask):
    """Returns scores that are very low at impossible positions."""
    return scores * (1.0 - p_mask) - IMPOSSIBLE_SCORE * p_mask


def _extend(hidden, p_mask, length: int):
    """Adds impossible positions up to `length`, because top_k needs k positions."""
    import tensorflow as tf

    if hidden.shape[1] is not None and hidden.shape[1] >= length:
        return hidden, p_mask
    # This pads too far and then cuts, because `length` must not be a scalar here:
    # tf2onnx would merge it with the list of the same number that top_k takes.
    size = tf.concat([[-1], tf.maximum(tf.shape(hidden)[1:2], [length])], axis=0)
    return (tf.slice(tf.pad(hidden, [[0, 0], [0, length], [0, 0]]), [0, 0, 0],
                     tf.concat([size, [-1]], axis=0)),
            tf.slice(tf.pad(p_mask, [[0, 0], [0, length]], constant_values=1.0),
                     [0, 0], size))


# ---- answers ---------------------------------------------------------------


class Questions(Answering):
    """Answers a question with words of a passage, in windows as in training."""

    fields = (Field("question"), Field("passage"))
    in_windows = True

    def __init__(self, model, head):
        super().__init__(model, head)
        options = {name: self.setting(name, getattr(squad.SquadTask, name)) for name in (
            "doc_stride", "max_query_length", "n_best_size", "max_answer_length",
            "start_n_top", "end_n_top")}
        # A model for short sequences has room for a shorter question only.
        options["max_query_length"] = min(
            options["max_query_length"],
            max(1, self.max_length - NUM_SPECIAL_PAIR - 1))
        self.max_length = min(self.max_length, self.setting("max_seq_length", 384))
        self.task = squad.SquadTask(
            head.has_threshold, max_seq_length=self.max_length, **options)
        self.threshold = model.threshold

    @property
    def limit(self):
        return f"the {self.task.max_query_length} tokens that it reads of a question"

    def exchanged(self, features):
        outputs = self.head_outputs(features)
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def of_exchanged(self, exchanged, batch):
        # A graph from elsewhere may score padding.
        logits = {name: np.where(batch["input_mask"] == 1, exchanged[name],
                                 np.float32(-IMPOSSIBLE_SCORE))
                  for name in ("start_logits", "end_logits")}
        return self.head.predictions(self.head.with_log_probs(logits))

    def request(self, given, top_k):
        example = SquadExample("", given["question"], given["passage"])
        windows = self.task.featurize(example, tokenizer=self.tokenizer)
        columns = list(self.task.records([windows]))

        def answer(outputs):
            predictions = self.task.rank([example], *(
                {name: [row[name] for row in rows] for name in rows[0]}
                for rows in (outputs, columns)))
            start, end, score = predictions.best[""]
            found = {"null_odds": predictions.null_odds[""]} if (
                self.head.has_threshold) else {}
            if found and found["null_odds"] >= self.threshold:
                start = end = 0
            return {"answer": example.paragraph_text[start:end], "start": start,
                    "end": end, "score": score, **found}

        if not windows:  # The passage has no tokens, for example.
            raise InputError("the passage has no text that could be an answer; give a "
                             "passage with words.")
        question = self.tokenizer.encode(given["question"])
        return Request(windows, answer, self, max(
            len(question) - self.task.max_query_length, 0))


class UnanswerableQuestions(Questions):
    """Answers as Questions does, for models that may find that there is no answer."""

    def exchanged(self, features):
        """Computes the head's own outputs, and `start_logits` and `end_logits` [B, S]:
        a program that looks for the span with the highest sum of both finds the best
        answer.

        The score of a position is half of the log-probability of the best span that
        starts, or ends, there. That of position 0, which means no answer, is higher
        than the best of them by half of how far the null odds exceed the threshold.
        """
        import tensorflow as tf

        mask = features["input_mask"]
        place = tf.range(tf.shape(mask)[1])[tf.newaxis]  # [1, S]
        is_passage = ((features["segment_ids"] == 1) & (mask == 1)
                      & (place < tf.reduce_sum(mask, axis=1, keepdims=True) - 1))
        outputs = self.outputs({**features, "p_mask": tf.cast(
            ~(is_passage | (place == 0)), tf.int32)})
        tops = [self.head.start_n_top, 1], [self.head.start_n_top, self.head.end_n_top]
        (starts, ends), scores = ([
            tf.reshape(outputs[f"{side}_top_{name}"], [-1, *top])
            for side, top in zip(("start", "end"), tops)]
                                  for name in ("index", "log_probs"))
        spans = tf.where((starts > 0) & (starts <= ends), sum(scores) / 2.0,
                         -IMPOSSIBLE_SCORE)  # [B, k, m]
        null = tf.reduce_max(spans, axis=[1, 2]) + (
            outputs["cls_logits"] - self.threshold) / 2.0

        def at(positions):
            """Returns the scores [B, S] of the best spans at their positions."""
            found = tf.where(positions[..., tf.newaxis] == place,
                             spans[..., tf.newaxis], -IMPOSSIBLE_SCORE)
            return tf.where(place == 0, null[:, tf.newaxis],
                            tf.reduce_max(found, axis=[1, 2]))

        return {**outputs, "start_logits": at(starts), "end_logits": at(ends)}

    def of_exchanged(self, exchanged, batch):
        return {name: scores for name, scores in exchanged.items()
                if name not in ("start_logits", "end_logits")}
