"""The model that is pretrained: encoder, masked-LM head, sentence-order head.

Shapes: B batch, S sequence, P predictions, H hidden, V tokens.
"""

from typing import Mapping, Optional

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel, ConfiguredModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.heads import MASKED_LM, SENTENCE_ORDER


class AlbertForPreTraining(ConfiguredModel):
    """Encoder, masked-LM head and sentence-order head (paper, section 3.1).

    >>> model = AlbertForPreTraining(AlbertConfig.named("base", vocab_size=100))
    >>> outputs = model({"input_ids": tf.constant([[2, 45, 4, 3]]),
    ...                  "masked_lm_positions": tf.constant([[2]])})
    >>> outputs["mlm_logits"].shape, outputs["sentence_order_logits"].shape
    (TensorShape([1, 1, 100]), TensorShape([1, 2]))

    Original: `run_pretraining.model_fn_builder`.
    """

    def __init__(self, config: AlbertConfig, name: str = "pretrainer"):
        super().__init__(config, name, reads_pooler=True)
        self.bert = AlbertModel(config)
        # Named as in the original's checkpoints.
        self.predictions = MASKED_LM.layers(config)["predictions"]
        self.seq_relationship = SENTENCE_ORDER.layers(config)["output_layer"]

    def call(self, features: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, tf.Tensor]:
        """Runs encoder and heads.

        Args:
          features: as for AlbertModel.call, and `masked_lm_positions` int [B, P], by
            default all positions.
          training, seed, computation: as for AlbertModel.call.

        Returns:
          `mlm_logits` [B, P, V] and `sentence_order_logits` [B, 2].
        """
        # 1. Run the encoder.
        encoded = self.encoded(features, training, seed, computation)
        # 2. Predict the masked tokens, with the word embeddings as output weights, and
        #    the order of the two segments.
        encoded["word_embeddings"] = self.bert.embeddings.word_embeddings
        return {
            **MASKED_LM.outputs({"predictions": self.predictions}, encoded, features),
            **SENTENCE_ORDER.outputs(
                {"output_layer": self.seq_relationship}, encoded, features)}

    def encoded(self, features, training, seed, computation) -> dict:
        """Returns the encoder's outputs, as `AlbertModel.call` does. Its last layer
        computes only the masked positions and the first one, since nothing else is
        read."""
        return self.bert(features, training=training, seed=seed, computation=computation,
                         positions=features.get("masked_lm_positions"))
