"""The encoder: embeddings, the layers of shared blocks, the pooler.

Shapes below: B batch, S sequence, E embedding, H hidden.

Dropout draws from a seed that the caller passes in, so that a training step is
a function of its number and can be repeated after a restart.
"""

import collections
import copy
from typing import Any, Callable, Mapping, NamedTuple, Optional

import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.errors import InputError
from albert_tf.modeling.encoder import (
    AttentionBlock, AttentionWeights, FeedForwardBlock, FeedForwardWeights)
from albert_tf.modeling.kernels import recompute as recomputing
from albert_tf.modeling.kernels.packing import ALL_ROWS, AllRows, rows_of
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, LayerNorm, NamedLayer, kernel_initializer)

# Added to the attention scores of masked positions. Finite, so that a row whose
# mask is all zero attends evenly, as in the release.
MASKED_SCORE = -10000.0


class Embeddings(NamedLayer):
    """Word + token type + position, LayerNorm, dropout.

    Release: `embedding_lookup` and `embedding_postprocessor`.
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
        self.layer_norm = LayerNorm(f"{self.scope}/LayerNorm", width)

    def call(self, input_ids, segment_ids, seeds: DropoutSeeds):
        """int32 [B, S], int32 [B, S] → float [B, S, E]."""
        length = tf.shape(input_ids)[1]
        output = tf.gather(self.word_embeddings, input_ids)
        output += tf.gather(self.token_type_embeddings, segment_ids)
        output += self.position_embeddings[tf.newaxis, :length]
        return seeds.dropout(self.layer_norm(output), self.dropout_prob)


class Encoder(NamedLayer):
    """Projection E → H where they differ, then the layers.

    Release: `transformer_model`. Which parameters a layer uses is the config's
    `attention_index` and `ffn_index`.

    Attributes:
      recompute: whether the backward pass computes each layer once more instead of
        keeping what is in it.
      constants: scope of a block → its weights as `layer_weights` makes them, where
        they were computed before; see model_export. None computes them.
    """

    def __init__(self, config: AlbertConfig):
        super().__init__("bert/encoder")
        self.config = config
        self.recompute = False
        self.constants: Optional[Callable[[str], NamedTuple]] = None
        self.projection = None
        if config.embedding_size != config.hidden_size:
            self.projection = Dense(
                f"{self.scope}/embedding_hidden_mapping_in",
                config.embedding_size, config.hidden_size, kernel_initializer(config))
        layers = range(config.num_hidden_layers)
        self.attention = self._blocks(
            AttentionBlock, {config.attention_index(layer) for layer in layers})
        self.ffn = self._blocks(
            FeedForwardBlock, {config.ffn_index(layer) for layer in layers})

    def _blocks(self, block, indices):
        """Blocks by (index, inner); Keras tracks dictionaries with string keys."""
        return {f"{index}_{inner}": block(self.config, index, inner)
                for index in sorted(indices)
                for inner in range(self.config.inner_group_num)}

    def call(self, embedding_output, attention_bias, seeds: DropoutSeeds,
             rows: AllRows = ALL_ROWS, positions=None):
        """[B, S, E], [B, 1, 1, S] → list of L · inner_group_num tensors [B, S, H].

        With positions int [B, Q] the last of them is [B, Q, H], at those alone.
        """
        hidden = rows.pack(embedding_output)
        if self.projection is not None:
            hidden = self.projection(hidden)
        layers = [(self.attention[f"{self.config.attention_index(layer)}_{inner}"],
                   self.ffn[f"{self.config.ffn_index(layer)}_{inner}"])
                  for layer in range(self.config.num_hidden_layers)
                  for inner in range(self.config.inner_group_num)]
        uses = collections.Counter(block.scope for pair in layers for block in pair)
        weights = {
            block.scope: iter(self._weights(block, hidden.dtype, uses[block.scope]))
            for block in (*self.attention.values(), *self.ffn.values())}
        outputs = []
        for number, (attention, ffn) in enumerate(layers, start=1):
            read = positions if number == len(layers) else None
            hidden = self._layer(attention, ffn, hidden, (
                *next(weights[attention.scope]), *next(weights[ffn.scope])),
                attention_bias, seeds, rows, read)
            outputs.append(rows.unpack(hidden) if read is None else hidden)
        return outputs

    def _weights(self, block, dtype, uses):
        if self.constants is None:
            return block.layer_weights(dtype, uses)
        constants = self.constants(block.scope)
        return [type(constants)(*map(tf.convert_to_tensor, constants))] * uses

    def _layer(self, attention, ffn, hidden, weights, attention_bias, seeds, rows,
               positions):
        """One layer, of which `weights` are those of both blocks."""
        start = copy.copy(seeds)
        first = len(AttentionWeights._fields)

        def layer(hidden, *weights):
            own = start.after(hidden)  # The same units are dropped each time.
            hidden = attention(hidden, attention_bias, own,
                               AttentionWeights(*weights[:first]), rows, positions)
            hidden = ffn(hidden, own, FeedForwardWeights(*weights[first:]),
                         rows if positions is None else ALL_ROWS)
            seeds.follow(own)
            return hidden

        if self.recompute:
            return recomputing.recomputed(layer, hidden, *weights)
        return layer(hidden, *weights)


class AlbertModel(tf_keras.Model):
    """The ALBERT encoder with its pooler (release: `modeling.AlbertModel`).

    Args:
      config: the model's shape.

    Attributes:
      activation_dtype: type of the layers' products and activations: float32,
        bfloat16 or float16. Variables, statistics and what is computed outside of the
        layers are float32. Training in float16 needs loss scaling (see loss_scaling),
        and products of queries and keys must stay below 65504. Not part of
        the model: it may be set at any time, and is not saved.
      skip_padding: whether the layers may leave out the rows of padding. XLA cannot
        compile that. Not part of the model either.
      padding_is_read: False where whoever has the model does not read outputs at
        positions of padding; only then is skip_padding of effect, and what stands
        there of no meaning.
    """

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**{"name": "bert", **kwargs})
        self.config = config
        self.activation_dtype = "float32"
        self.skip_padding = False
        self.padding_is_read = True
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense("bert/pooler/dense", config.hidden_size,
                            config.hidden_size, kernel_initializer(config), "tanh")

    def call(self, inputs: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None,
             positions: Optional[tf.Tensor] = None) -> dict[str, Any]:
        """Runs the encoder.

        Args:
          inputs: `input_ids` int [B, S]; optionally `input_mask` int [B, S],
            1 for pieces and 0 for padding (default all 1), and `segment_ids`
            int [B, S] (default all 0). Further keys are ignored.
          training: whether dropout is on.
          seed: int32 [2]; equal seeds drop equal units. By default every
            training call draws a new one.
          positions: int [B, Q], the positions at which the caller reads the sequence
            output; Q may be 0. What nobody reads of the last block is not computed.
            By default all positions.

        Returns:
          A dict: `embedding_output` [B, S, E]; `encoder_outputs`, a list of
          [B, S, H] in activation_dtype, one for each block; `sequence_output`
          [B, S, H], the last of them; `pooled_output` [B, H] float32, of position 0.
          With `positions`, sequence_output and with it the last of encoder_outputs
          are [B, Q, H], at those positions in their order.

        Raises:
          InputError: if S is over max_position_embeddings, or the inputs differ in
            shape.
        """
        input_ids, mask, segment_ids = self._checked(inputs)
        if training and seed is None:
            seed = tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max,
                                     dtype=tf.int32)
        seeds = DropoutSeeds(seed if training else None)
        embedding_output = self.embeddings(input_ids, segment_ids, seeds)
        unmasked = tf.cast(mask, embedding_output.dtype)[:, tf.newaxis, tf.newaxis, :]
        attention_bias = (1.0 - unmasked) * MASKED_SCORE  # [B, 1, 1, S]
        if positions is not None:
            # Position 0 before them, for the pooler.
            positions = tf.pad(tf.cast(positions, tf.int32), [[0, 0], [1, 0]])
        rows = rows_of(mask, self.skip_padding and not self.padding_is_read,
                       served=self.encoder.constants is not None)
        outputs = self.encoder(tf.cast(embedding_output, self.activation_dtype),
                               attention_bias, seeds, rows, positions)
        first = outputs[-1][:, 0]
        if positions is not None:
            outputs[-1] = outputs[-1][:, 1:]
        return {
            "embedding_output": embedding_output,
            "encoder_outputs": outputs,
            "sequence_output": outputs[-1],
            "pooled_output": self.pooler(tf.cast(first, tf.float32)),
        }

    def _checked(self, inputs):
        """input_ids, input_mask and segment_ids, of one shape."""
        input_ids = tf.cast(inputs["input_ids"], tf.int32)
        length = input_ids.shape[1]
        if length is not None and length > self.config.max_position_embeddings:
            raise InputError(
                f"a sequence of {length} pieces is longer than the config's "
                f"max_position_embeddings {self.config.max_position_embeddings}.")
        mask = inputs.get("input_mask")
        mask = tf.ones_like(input_ids) if mask is None else tf.convert_to_tensor(mask)
        segment_ids = inputs.get("segment_ids")
        segment_ids = (tf.zeros_like(input_ids) if segment_ids is None
                       else tf.cast(segment_ids, tf.int32))
        for name, value in (("input_mask", mask), ("segment_ids", segment_ids)):
            # A row too few would be broadcast without a word.
            if not input_ids.shape.is_compatible_with(value.shape):
                raise InputError(
                    f"{name} has the shape {list(value.shape)}, but input_ids has "
                    f"{list(input_ids.shape)}; they must be the same.")
        return input_ids, mask, segment_ids

    def get_config(self):
        return {"config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(AlbertConfig.from_dict(config["config"]))


def compute_as(model: tf_keras.Model, dtype: str, recompute: bool,
               skip_padding: bool = False) -> None:
    """Tells a model's encoders how to compute; to be called before they are traced.

    Args:
      model: one that has AlbertModels in it, or is one.
      dtype: see AlbertModel.activation_dtype.
      recompute: see Encoder.recompute.
      skip_padding: see AlbertModel.skip_padding.

    Raises:
      InputError: if the type is unknown.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype is '{dtype}'; choose one of {', '.join(DTYPES)}.")
    for part in (model, *model.submodules):
        if isinstance(part, AlbertModel):
            part.activation_dtype = dtype
            part.encoder.recompute = recompute
            part.skip_padding = skip_padding
