"""The two heads of pretraining (section 3.1 of the paper): masked tokens and the order of
sentences.

A head is an object with the shapes, layers and outputs of what a task adds to the
encoder (modeling/head.py). TensorFlow is imported only where it is needed, since
checkpoints are converted without it.

Shapes: B batch, P predictions, H hidden, V tokens.
"""

import dataclasses

from albert_tf.modeling.head import Head, Input, dense_shapes, norm_shapes


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Head):
    """Scores all tokens of the vocabulary at the masked positions (original:
    `get_masked_lm_output`)."""

    name, task, fixed_width = "masked_lm", "fill-mask", True
    reads, positions = "sequence_output", "masked_lm_positions"
    reads_also = (Input(positions, size=1, derived=True),)

    def shapes(self, config):
        # A transform from H back to E, and a bias for each token. The output matrix is
        # the word embeddings, which the encoder has already.
        scope, width = "cls/predictions", config.embedding_size
        return {**dense_shapes(f"{scope}/transform/dense", config.hidden_size, width),
                **norm_shapes(f"{scope}/transform/LayerNorm", width),
                f"{scope}/output_bias": (config.vocab_size,)}

    def layers(self, config):
        from albert_tf.modeling.layers import TokenScores

        return {"predictions": TokenScores(config)}

    def outputs(self, layers, encoded, features, dropout=None, training=False):
        """Returns `mlm_logits` [B, P, V], from hidden states [B, P, H]."""
        return {"mlm_logits": layers["predictions"](
            encoded["sequence_output"], encoded["word_embeddings"])}

    def predictions(self, outputs):
        import tensorflow as tf

        # Only prediction needs probabilities: losses are computed from the logits.
        return {"probabilities": tf.nn.softmax(outputs["mlm_logits"])}


@dataclasses.dataclass(frozen=True)
class SentenceOrder(Head):
    """Classifies two segments as in order (0) or swapped (1); pretraining_data.instances
    says why. Original: `get_sentence_order_output`."""

    width: int = 2

    name, task, scope = "sentence_order", "order", "cls/seq_relationship"

    def layers(self, config):
        from albert_tf.modeling.layers import OutputLayer

        # Initialized with the config's range, unlike the heads of tasks.
        return {"output_layer": OutputLayer(
            self.scope, config.hidden_size, self.width, config.initializer_range)}

    def outputs(self, layers, encoded, features, dropout=None, training=False):
        """Returns `sentence_order_logits` [B, 2], from the pooled output [B, H]."""
        # The pooled output has seen both segments, through [CLS].
        logits = layers["output_layer"](encoded["pooled_output"])
        return {"sentence_order_logits": logits}

    def predictions(self, outputs):
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(outputs["sentence_order_logits"])}

    def served(self, outputs):
        return {"logits": outputs["sentence_order_logits"], **self.predictions(outputs)}


MASKED_LM, SENTENCE_ORDER = MaskedLanguageModel(), SentenceOrder()
