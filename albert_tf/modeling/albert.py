"""The ALBERT model: embeddings, encoder, pooler.

Shapes below: B batch, S sequence, E embedding, H hidden.
"""

from typing import Any, Mapping, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.modeling import inputs as model_inputs
from albert_tf.modeling.encoder import Computation, Encoder
from albert_tf.modeling.kernels.packing import layout_of
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, given_or_drawn, kernel_initializer)

# Added to the attention scores of masked positions. Finite, so that a sequence whose
# mask is all zero attends evenly, as in the release.
MASKED_SCORE = -10000.0


class Embeddings(NamedLayer):
    """Word + token type + position, LayerNorm, dropout; all of width E ≪ H in ALBERT.

    What a piece means without its context takes fewer numbers than what it means within
    one; and a table of V pieces costs V · E + E · H parameters in place of V · H
    (paper, section 3.1). Release: `embedding_lookup`, `embedding_postprocessor`.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/embeddings")
        self.dropout_prob = config.hidden_dropout_prob
        width = config.embedding_size

        def table(name, rows):
            return self.make_weight(name, [rows, width], kernel_initializer(config))

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table(
            "token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table(
            "position_embeddings", config.max_position_embeddings)
        self.layer_norm = LayerNorm(
            f"{self.scope}/LayerNorm", width, config.layer_norm_eps)

    def call(self, input_ids, segment_ids, seeds: DropoutSeeds):
        """int32 [B, S], int32 [B, S] → float [B, S, E]."""
        length = tf.shape(input_ids)[1]
        # Of the table as a tensor: a variable that rows were gathered from is copied
        # by all who read it whole, the head of masked pieces and the optimizer.
        output = tf.gather(tf.convert_to_tensor(self.word_embeddings), input_ids)
        # Which segment a token is in, and where it stands.
        output += tf.gather(self.token_type_embeddings, segment_ids)
        output += self.position_embeddings[tf.newaxis, :length]
        return seeds.dropout(self.layer_norm(output), self.dropout_prob)


def attention_bias(mask: tf.Tensor) -> tf.Tensor:
    """[B, S] → what is added to the scores of attention, float32 [B, 1, 1, S]."""
    # Two new axes in one slice do not convert to TFLite where sizes are unknown.
    unmasked = tf.expand_dims(tf.expand_dims(tf.cast(mask, tf.float32), 1), 1)
    return (1.0 - unmasked) * MASKED_SCORE


class ConfiguredModel(tf_keras.Model):
    """A Keras model of a config, which Keras can store and make again; `options` are
    the constructor's further arguments.

    `model.save("name.keras")` keeps all of it. A SavedModel (tf.saved_model.save) takes
    the length of the last call, and no other: for any length, call serving.export.
    """

    # Features that it may be given beside those that it reads, for its loss.
    beside = model_inputs.BESIDE

    def __init__(self, config: AlbertConfig, name: str, **options: Any):
        super().__init__(name=name)
        self.config = config
        if options:
            self._options = options

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(
            model_inputs.checked(inputs, self.config, self.beside), *args, **kwargs)

    def get_config(self):
        return {"config": self.config.to_dict(), **getattr(self, "_options", {})}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})


class AlbertModel(ConfiguredModel):
    """The ALBERT encoder with its pooler (release: `modeling.AlbertModel`).

    >>> model = AlbertModel(AlbertConfig.named("base", vocab_size=100))
    >>> outputs = model({"input_ids": tf.constant([[2, 45, 7, 3]])})
    >>> outputs["sequence_output"].shape, outputs["pooled_output"].shape
    (TensorShape([1, 4, 768]), TensorShape([1, 768]))

    Its weights are random until a checkpoint is restored
    (`albert_tf.checkpoints.restore_tf1`).
    """

    def __init__(self, config: AlbertConfig, name: str = "bert"):
        super().__init__(config, name)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = None
        if config.use_pooler:
            self.pooler = Dense("bert/pooler/dense", config.hidden_size,
                                config.hidden_size, kernel_initializer(config), "tanh")

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None,
             positions: Optional[tf.Tensor] = None, padding_is_read: bool = True,
             computation: Optional[Computation] = None) -> dict[str, Any]:
        """Runs the encoder.

        Args:
          inputs: `input_ids` int [B, S]; optionally `input_mask` int [B, S], 1 for
            pieces and 0 for padding (default all 1), and `segment_ids` int [B, S]
            (default all 0); also by their names elsewhere, `attention_mask` and
            `token_type_ids`. What records hold besides is ignored, else is refused.
          training: whether dropout is on.
          seed: int32 [2]; equal seeds drop equal units on one kind of device, so that a
            training step is a function of its number and can be repeated after a restart. A part of a
            batch drops what the whole would with [3], the last of them the number of
            its first row. By default every training call draws a new one.
          positions: int [B, Q], Q ≥ 0; where the caller reads the sequence output, by
            default everywhere. Of the last layer no other outputs are computed.
          padding_is_read: False allows outputs without meaning at positions of padding,
            which a computation that skips padding needs.

        Returns:
          `embedding_output` [B, S, E]; `encoder_outputs`, a list of [B, S, H] in the
          computation's dtype, one for each block of the layers that are run (layers ·
          inner_group_num); `sequence_output` [B, S, H], the last
          of them; `pooled_output` [B, H] float32, of position 0, if the config has a
          pooler. With `positions`, sequence_output and the last of encoder_outputs are
          [B, Q, H], in their order.
        """
        computation = computation or Computation()
        input_ids = tf.cast(inputs["input_ids"], tf.int32)
        mask, segment_ids = inputs.get("input_mask"), inputs.get("segment_ids")
        mask = tf.ones_like(input_ids) if mask is None else tf.convert_to_tensor(mask)
        segment_ids = (tf.zeros_like(input_ids) if segment_ids is None
                       else tf.cast(segment_ids, tf.int32))
        seeds = DropoutSeeds(given_or_drawn(seed) if training else None)
        # 1. Tokens to vectors of the small width E.
        embedding_output = self.embeddings(input_ids, segment_ids, seeds)
        if positions is not None:
            # Position 0 before them, for the pooler.
            positions = tf.pad(tf.cast(positions, tf.int32), [[0, 0], [1, 0]])
        # 2. The encoder, on all positions or, packed, on those that are no padding.
        layout = layout_of(mask, computation.skip_padding and not padding_is_read,
                           served=computation.constants is not None)
        outputs = self.encoder(tf.cast(embedding_output, computation.dtype),
                               attention_bias(mask), seeds, computation, layout,
                               positions)
        # 3. The first token, [CLS], stands for the whole sequence: the pooler reads it.
        first = outputs[-1][:, 0]
        if positions is not None:
            outputs[-1] = outputs[-1][:, 1:]
        found = {
            "embedding_output": embedding_output,
            "encoder_outputs": outputs,
            "sequence_output": outputs[-1],
        }
        if self.pooler is not None:
            found["pooled_output"] = self.pooler(tf.cast(first, tf.float32))
        return found
