"""The head that labels every token, and its answers.

Shapes: B batch, S sequence, H hidden, K labels.
"""

import dataclasses

from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answering, Request
from albert_tf.finetuning.tagging import scoring, task as tagging
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.modeling.head import Head
from albert_tf.text.inputs import Field


@dataclasses.dataclass(frozen=True)
class TokenClassification(Head):
    """A label for every token, as in Hugging Face's class of this name; the original
    implementation has no such head. Outputs at padding are meaningless."""

    dropout_prob: float = 0.1  # Of the encoder's outputs in training.

    name, task = "token_classification", "tag"
    reads, has_labels = "sequence_output", True

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes `logits` [B, S, K]."""
        hidden = dropout.dropout(encoded["sequence_output"], self.dropout_prob)
        return {"logits": layers["output_layer"](hidden)}

    def predictions(self, outputs):
        """Computes the best label of each token and its probability, [B, S]."""
        import tensorflow as tf

        logits = tf.cast(outputs["logits"], tf.float32)
        return {"tags": tf.argmax(logits, axis=-1),
                "probabilities": tf.reduce_max(tf.nn.softmax(logits), axis=-1)}

    def served(self, outputs):
        import tensorflow as tf

        return {"logits": outputs["logits"],
                "probabilities": tf.nn.softmax(outputs["logits"])}

    def output_names(self, labels):
        return labels or [str(i) for i in range(self.width)]

    def objective(self):
        """Returns the mean of the cross-entropy over words. It needs the feature
        `label_ids`, int [B, S]: label + 1 at the tokens that are trained, else 0."""
        import tensorflow as tf

        from albert_tf.finetuning import objectives
        from albert_tf.training.losses import cross_entropy, hits

        def labels(features):
            return tf.maximum(features["label_ids"] - 1, 0)

        def accuracy(outputs, features):
            return {"accuracy": hits(outputs["logits"], labels(features))}

        return objectives.mean_over_examples(
            lambda outputs, features: cross_entropy(outputs["logits"], labels(features)),
            accuracy, lambda outputs: {
                **self.predictions(outputs),
                # 64-bit integers are slow on TPUs.
                "tags": tf.argmax(outputs["logits"], axis=-1, output_type=tf.int32)},
            _word_weights)

    def answering(self):
        return Tags

    def text_task(self):
        from albert_tf.finetuning.tagging.text import Tags

        return Tags


def _word_weights(features):
    """Returns float32 [B, S]: 1 for the tokens that have a label, else 0."""
    import tensorflow as tf

    from albert_tf.training.losses import example_weights

    return (tf.cast(features["label_ids"] > 0, tf.float32)
            * example_weights(features)[:, tf.newaxis])


class Tags(Answering):
    """Answers with a tag for each word of a text, and with the entities that the tags
    mark. The text is split into words as --split_words of run_tagger.py says, and read
    in windows."""

    fields = (Field("text"),)
    in_windows = True

    def __init__(self, model, head):
        super().__init__(model, head)
        labels = self.labels or tuple(map(str, range(head.width)))
        self.task = tagging.TaggingTask(
            labels, self.setting("scheme", scoring.scheme_of_labels(labels)),
            Reading(split_words=self.setting("split_words", "punctuation")),
            max_seq_length=self.max_length,
            doc_stride=self.setting("doc_stride", tagging.TaggingTask.doc_stride))

    def check(self, inputs):
        texts = [each.get("text") if isinstance(each, dict) else each for each in inputs]
        tag = scoring.tag_at_ends(
            [text for text in texts if isinstance(text, str)], self.task.labels)
        if tag:
            raise InputError(
                f"most texts end in a tag of the model, such as {tag}: they are lines of "
                "words and tags. Give their file to run_tagger.py --do_predict as "
                "--test_file, which reads the words.")

    def request(self, given, top_k):
        example = self.task.reading.sentence(given["text"])
        if not example.words:
            raise InputError("the text has no word that could get a tag; give a text "
                             "with words.")
        windows = self.task.featurize(example, tokenizer=self.tokenizer)
        columns = {name: [row[name] for row in windows]
                   for name in ("word_index", "word_place")}

        def answer(outputs):
            [tagged] = self.task.tagged(
                [example], {name: [row[name] for row in outputs] for name in outputs[0]},
                {**columns, "example_index": [0] * len(windows)})
            return self.task.answer(example, tagged)

        return Request(windows, answer, self)
