"""What stands on the encoder: the heads, and the models made of both.

Shapes: B batch, S sequence, P predictions, E embedding, H hidden, V pieces.
"""

from typing import Mapping, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.layers import Dense, LayerNorm, NamedLayer, kernel_initializer


class MaskedLanguageModelHead(NamedLayer):
    """Scores of every piece at the masked positions (`get_masked_lm_output`).

    The output weights are the word embeddings, passed in by the caller.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("cls/predictions")
        self.transform = Dense(
            f"{self.scope}/transform/dense", config.hidden_size,
            config.embedding_size, kernel_initializer(config), config.hidden_act)
        self.layer_norm = LayerNorm(
            f"{self.scope}/transform/LayerNorm", config.embedding_size)
        self.output_bias = self.make_weight("output_bias", [config.vocab_size], "zeros")

    def call(self, masked, word_embeddings):
        """Outputs at the masked positions [B, P, H], [V, E] → logits [B, P, V]."""
        batch, num_predictions, _ = tf.unstack(tf.shape(masked))
        rows = tf.reshape(masked, [-1, masked.shape[-1]])
        # Few rows: in float32 whatever type the layers compute in.
        hidden = self.layer_norm(self.transform(tf.cast(rows, tf.float32)))  # [B·P, E]
        logits = tf.matmul(hidden, word_embeddings, transpose_b=True)
        logits = tf.nn.bias_add(logits, self.output_bias)
        return tf.reshape(logits, [batch, num_predictions, self.output_bias.shape[0]])


class SentenceOrderHead(NamedLayer):
    """Scores of "in order" (0) and "swapped" (1) (`get_sentence_order_output`)."""

    def __init__(self, config: AlbertConfig):
        super().__init__("cls/seq_relationship")
        self.output_weights = self.make_weight(
            "output_weights", [2, config.hidden_size], kernel_initializer(config))
        self.output_bias = self.make_weight("output_bias", [2], "zeros")

    def call(self, pooled_output):
        """[B, H] → logits [B, 2]."""
        logits = tf.matmul(pooled_output, self.output_weights, transpose_b=True)
        return tf.nn.bias_add(logits, self.output_bias)


class AlbertForPreTraining(tf_keras.Model):
    """Encoder, masked-LM head and sentence-order head (paper, section 3.1).

    Args:
      config: the model's shape.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**{"name": "pretrainer", **kwargs})
        self.config = config
        self.bert = AlbertModel(config)
        self.bert.padding_is_read = False
        self.predictions = MaskedLanguageModelHead(config)
        self.seq_relationship = SentenceOrderHead(config)

    def call(self, features: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None) -> dict[str, tf.Tensor]:
        """Runs the encoder and both heads.

        Args:
          features: `input_ids`, `input_mask`, `segment_ids` int [B, S] and
            `masked_lm_positions` int [B, P], as parsed from the records.
          training: whether dropout is on.
          seed: int32 [2], see AlbertModel.call.

        Returns:
          A dict: `mlm_logits` [B, P, V] and `sentence_order_logits` [B, 2].

        Raises:
          InputError: if S is over max_position_embeddings.
        """
        outputs = self.bert(features, training=training, seed=seed,
                            positions=features["masked_lm_positions"])
        return {
            "mlm_logits": self.predictions(
                outputs["sequence_output"], self.bert.embeddings.word_embeddings),
            "sentence_order_logits": self.seq_relationship(outputs["pooled_output"]),
        }

    def freeze_sentence_layers(self) -> None:
        """Leaves the pooler and the sentence-order head as they are.

        For training without the loss over sentences: weight decay alone would shrink
        them to nothing.
        """
        self.bert.pooler.trainable = False
        self.seq_relationship.trainable = False

    def get_config(self):
        return {"config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(AlbertConfig.from_dict(config["config"]))
