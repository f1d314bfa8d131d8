"""The ALBERT model: embeddings, encoder, pooler.

Shapes below: B batch, S sequence, E embedding, H hidden.
"""

from typing import Any, Mapping, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.encoder import Computation, Encoder
from albert_tf.modeling.head import INPUTS
from albert_tf.modeling.inputs import checked
from albert_tf.modeling.kernels.packing import layout_of
from albert_tf.modeling.kernels.random import DropoutSeeds
from albert_tf.modeling.layers import Dense, LayerNorm, NamedLayer, kernel_initializer

# Added to the attention scores of padding. It is finite, so that a sequence whose mask
# is all zero attends as if nothing were masked, as in the original.
MASKED_SCORE = -10000.0


class Embeddings(NamedLayer):
    """Adds word, token-type and position embeddings; then LayerNorm and dropout. All
    are of width E, which in ALBERT is much smaller than H.

    The meaning of a token without context takes fewer numbers than its meaning in
    context, and V tokens then cost V · E + E · H parameters instead of V · H (section
    3.1 of the paper). Original: `embedding_lookup`, `embedding_postprocessor`.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/embeddings")
        self.dropout_prob = config.hidden_dropout_prob
        width = config.embedding_size

        def table(name, rows):
            return self.make_weight(name, [rows, width], kernel_initializer(config))

        # Three tables, for tokens, segments and positions; their rows are added.
        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table(
            "token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table(
            "position_embeddings", config.max_position_embeddings)
        self.layer_norm = LayerNorm(
            f"{self.scope}/LayerNorm", width, config.layer_norm_eps)

    def call(self, input_ids, segment_ids, seeds: DropoutSeeds, more_sums=None):
        """int32 [B, S], int32 [B, S] → float [B, S, E]. After them come those of
        `more_sums` float [B, P, E], rows whose embeddings are added already."""
        # Gather from the table as a tensor. If rows were gathered from the variable,
        # TensorFlow would copy it for the masked-LM head and for the optimizer.
        output = tf.gather(tf.convert_to_tensor(self.word_embeddings), input_ids)
        # Add which segment each token is in, and its position.
        output += self.segments(segment_ids)
        output += self.position_embeddings[:tf.shape(input_ids)[1]]
        if more_sums is not None:
            output = tf.concat([output, more_sums], axis=1)
        return seeds.dropout(self.layer_norm(output), self.dropout_prob)

    def segments(self, segment_ids) -> tf.Tensor:
        """Looks up the vectors of segments: int32 [B, S] → float [B, S, E]. A model with
        one segment has the same for both texts of a pair."""
        table = self.token_type_embeddings
        return tf.gather(table, tf.minimum(segment_ids, 0) if table.shape[0] == 1
                         else segment_ids)


def attention_bias(mask: tf.Tensor) -> tf.Tensor:
    """Maps a mask [B, S] to a bias for the attention scores, float32 [B, 1, 1, S]: 0
    for tokens, MASKED_SCORE for padding. A mask [B, S, S], with a row of what each
    position attends to, becomes [B, 1, S, S]."""
    unmasked = tf.expand_dims(tf.cast(mask, tf.float32), 1)
    # Not mask[:, None, None, :], which TFLite cannot convert if sizes are unknown.
    if unmasked.shape.rank != 4:
        unmasked = tf.expand_dims(unmasked, 1)
    return (1.0 - unmasked) * MASKED_SCORE


class ConfiguredModel(tf_keras.Model):
    """A Keras model made from a config, which Keras can save and load.

    `model.save("name.keras")` stores the whole model. A SavedModel written by
    tf.saved_model.save needs all of INPUTS, and accepts only the sequence length of the
    last call; use serving.export for all lengths.
    """

    def __init__(self, config: AlbertConfig, name: str, reads_pooler: bool = False):
        super().__init__(name=name)
        if reads_pooler and not config.use_pooler:
            raise InputError("config: use_pooler is false, but this model has a head "
                             "on the pooled output; set it to true.")
        self.config = config

    # Keras would first convert every function below, which takes seconds.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(checked(inputs, self.config), *args, **kwargs)

    def get_config(self):
        return {"config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(AlbertConfig.from_dict(config["config"]))


class AlbertModel(ConfiguredModel):
    """The ALBERT encoder with its pooler (original: `modeling.AlbertModel`).

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
             seed: Optional[tf.Tensor] = None, positions: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None) -> dict[str, Any]:
        """Runs the encoder.

        Args:
          inputs: `input_ids` int [B, S]; optionally `input_mask` int [B, S], 1 for
            tokens and 0 for padding (default all 1), and `segment_ids` int [B, S]
            (default all 0). Hugging Face's names `attention_mask` and `token_type_ids`
            are accepted, too. Other features of records are ignored; unknown names
            raise InputError.
          training: whether dropout is on.
          seed: int32 [2]; equal seeds drop equal units on one kind of device, so that a
            training step depends only on its number, and can be repeated after a
            restart. For a part of a batch int32 [3], whose last value is the index of
            its first row: it drops the same units as the whole batch would. By default
            each training call draws a new seed.
          positions: int [B, Q], Q ≥ 0; the positions at which the caller reads the
            sequence output, by default all. The last layer computes no other outputs.
          computation: its dtype and further ways to compute; by default float32.

        Returns:
          `embedding_output` [B, S, E]; `encoder_outputs`, a list of [B, S, H] in the
          computation's dtype, with inner_group_num tensors for each layer that is run,
          or the last alone (Computation.recompute); `sequence_output` [B, S, H], the
          last of them; `pooled_output` [B, H] float32, from position 0, if the config
          has a pooler. With `positions`, sequence_output and the last of
          encoder_outputs are [B, Q, H], in the order of `positions`.
        """
        computation = computation or Computation()
        input_ids, mask, segment_ids = (
            tf.cast(inputs[name], tf.int32) for name in INPUTS)
        seeds = DropoutSeeds(seed, training)
        # 1. Look up the tokens' vectors, of the small width E.
        embedding_output = self.embeddings(input_ids, segment_ids, seeds)
        return self.encode(embedding_output, mask, attention_bias(mask), seeds,
                           computation, positions)

    def encode(self, embedding_output, mask, bias, seeds: DropoutSeeds,
               computation: Computation, positions=None) -> dict[str, Any]:
        """Runs encoder and pooler on embeddings [B, S, E], of which `mask` [B, S] marks
        the padding; `bias` is that of attention_bias, the rest as in `call`."""
        if positions is not None:
            # Put position 0 before the others: the pooler needs it.
            positions = tf.pad(tf.cast(positions, tf.int32), [[0, 0], [1, 0]])
        # 2. Run the encoder on all positions or, packed, on those that are not padding.
        layout = layout_of(mask, computation.skip_padding,
                           served=computation.constants is not None)
        states = self.encoder(tf.cast(embedding_output, computation.dtype),
                              bias, seeds, computation, layout, positions)
        # 3. The first token, [CLS], stands for the whole sequence: the pooler reads it.
        first_state = states[-1][:, 0]
        if positions is not None:
            states[-1] = states[-1][:, 1:]
        outputs = {
            "embedding_output": embedding_output,
            "encoder_outputs": states,
            "sequence_output": states[-1],
        }
        if self.pooler is not None:
            outputs["pooled_output"] = self.pooler(tf.cast(first_state, tf.float32))
        return outputs
