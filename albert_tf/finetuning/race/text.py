"""The features of questions with options, as of race.task, in TensorFlow's graph."""

import tensorflow as tf

from albert_tf.finetuning.text import TextTask, as_many, chosen, first_of
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR


class Choices(TextTask):
    """The text task of a passage, a question and its options (race.task), N questions
    with C options each."""

    inputs = {"passage": 1, "question": 1, "options": 2}

    def prepared(self, inputs):
        texts = as_many(inputs)
        passages = self.ids(texts["passage"])
        choices = tf.shape(texts["options"])[1]
        question = tf.repeat(self.ops.prepare(texts["question"]), choices)
        option = self.ops.prepare(tf.reshape(texts["options"], [-1]))
        # The option fills the question's gaps; without gaps, it follows the question.
        parts = tf.strings.split(question, "_")
        rows = parts.value_rowids()
        has_gaps = tf.gather(parts.row_lengths() > 1, rows)
        is_last = tf.equal(tf.range(1, tf.size(rows, tf.int64) + 1),
                           tf.gather(parts.row_limits(), rows))
        glue = tf.where(has_gaps, "", " ")
        option = tf.where(has_gaps & is_last, "", tf.gather(option, rows))
        parts = parts.with_values(tf.strings.join([parts.values, glue, option]))
        endings = self.ops.ids(tf.strings.reduce_join(parts, axis=-1))
        room = self.max_seq_length - NUM_SPECIAL_PAIR
        endings = endings[:, -min(self.task.max_qa_length, room):]
        rows = tf.repeat(tf.range(passages.nrows()), choices)
        features = self.packed(
            first_of(tf.gather(passages, rows), room - endings.row_lengths()), endings,
            optional=False)
        return {name: tf.reshape(values, [-1, choices, tf.shape(values)[1]])
                for name, values in features.items()}, None

    def answers(self, inputs, context, outputs):
        return chosen(outputs["probabilities"], self.task.labels)
