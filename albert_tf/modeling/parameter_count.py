"""The number of parameters of a config, by arithmetic.

No model is built, so xxlarge is counted as quickly as base, without TensorFlow.
"""

import dataclasses

from albert_tf.config import AlbertConfig


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters of the parts of a model."""

    embeddings: int  # word, token type and position tables, and their LayerNorm
    projection: int  # from width E to H; 0 where there is none
    attention: int  # all attention sub-layers, with their LayerNorm
    feed_forward: int  # all feed-forward sub-layers, with their LayerNorm
    pooler: int  # the dense layer on the first piece
    # Masked-LM and sentence-order head; output weights are the word embeddings.
    heads: int

    @property
    def without_pooler(self) -> int:
        return self.embeddings + self.projection + self.attention + self.feed_forward

    @property
    def with_pooler(self) -> int:
        """All of AlbertModel."""
        return self.without_pooler + self.pooler

    @property
    def with_heads(self) -> int:
        """All of AlbertForPreTraining."""
        return self.with_pooler + self.heads


def _dense(in_size: int, out_size: int) -> int:
    return in_size * out_size + out_size


def count_parameters(config: AlbertConfig) -> ParameterCount:
    """Counts the parameters of a model of this config.

    >>> count_parameters(AlbertConfig.named("base")).with_pooler
    11683584
    """
    embedding, hidden = config.embedding_size, config.hidden_size
    layers = range(config.num_hidden_layers)
    attention_blocks = len({config.attention_index(layer) for layer in layers})
    ffn_blocks = len({config.ffn_index(layer) for layer in layers})
    rows = config.vocab_size + config.type_vocab_size + config.max_position_embeddings
    layer_norm = 2 * hidden
    return ParameterCount(
        embeddings=rows * embedding + 2 * embedding,
        projection=_dense(embedding, hidden) if config.projects_embeddings else 0,
        attention=attention_blocks * config.inner_group_num * (
            4 * _dense(hidden, hidden) + layer_norm),
        feed_forward=ffn_blocks * config.inner_group_num * (
            _dense(hidden, config.intermediate_size)
            + _dense(config.intermediate_size, hidden) + layer_norm),
        pooler=_dense(hidden, hidden) if config.use_pooler else 0,
        heads=(_dense(hidden, embedding) + 2 * embedding + config.vocab_size
               + _dense(hidden, 2)),
    )
