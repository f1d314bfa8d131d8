"""The number of parameters of a config, by arithmetic; and the paper's figures.

No model is built, so xxlarge is counted as quickly as base, without TensorFlow.
"""

import dataclasses

from albert_tf.config import NAMED, SHARING, AlbertConfig


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters of the parts of a model.

    Attributes:
      embeddings: word, token type and position tables, and their LayerNorm.
      projection: from width E to H; 0 where they are equal.
      attention: all attention sub-layers, with their LayerNorm.
      feed_forward: all feed-forward sub-layers, with their LayerNorm.
      pooler: the dense layer on the first piece.
      heads: masked-LM and sentence-order head; the masked-LM head's output
        weights are the word embeddings.
    """

    embeddings: int
    projection: int
    attention: int
    feed_forward: int
    pooler: int
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
    """Counts the parameters of a model of this config."""
    embedding, hidden = config.embedding_size, config.hidden_size
    layers = range(config.num_hidden_layers)
    attention_blocks = len({config.attention_index(layer) for layer in layers})
    ffn_blocks = len({config.ffn_index(layer) for layer in layers})
    rows = config.vocab_size + config.type_vocab_size + config.max_position_embeddings
    layer_norm = 2 * hidden
    return ParameterCount(
        embeddings=rows * embedding + 2 * embedding,
        projection=_dense(embedding, hidden) if embedding != hidden else 0,
        attention=attention_blocks * config.inner_group_num * (
            4 * _dense(hidden, hidden) + layer_norm),
        feed_forward=ffn_blocks * config.inner_group_num * (
            _dense(hidden, config.intermediate_size)
            + _dense(config.intermediate_size, hidden) + layer_norm),
        pooler=_dense(hidden, hidden),
        heads=(_dense(hidden, embedding) + 2 * embedding + config.vocab_size
               + _dense(hidden, 2)),
    )


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """A model whose size the paper gives.

    Attributes:
      table: number of the paper's table.
      label: the model, as the table's row and column say.
      config: the model's shape.
      millions: the paper's figure.
    """

    table: int
    label: str
    config: AlbertConfig
    millions: int


# Table 1: named sizes.
_TABLE_1 = {
    "bert-base": 108, "bert-large": 334, "bert-xlarge": 1270,
    "base": 12, "large": 18, "xlarge": 60, "xxlarge": 235,
}
# Table 3: embedding size → nothing shared, everything shared (base).
_TABLE_3 = {64: (87, 10), 128: (89, 12), 256: (93, 16), 768: (108, 31)}
# Table 4: embedding size → what is shared (base).
_TABLE_4 = {
    768: {"all": 31, "attention": 83, "ffn": 57, "none": 108},
    128: {"all": 12, "attention": 64, "ffn": 38, "none": 89},
}


def paper_rows() -> list[PaperRow]:
    """The models of the paper's Tables 1, 3 and 4, in its order."""

    def base(embedding_size, sharing):
        return AlbertConfig.named("base", embedding_size=embedding_size,
                                  parameter_sharing=sharing)

    rows = [PaperRow(1, name, AlbertConfig.named(name), millions)
            for name, millions in _TABLE_1.items()]
    for column, sharing in enumerate(("none", "all")):
        rows += [PaperRow(3, f"base, E={size}, shared: {sharing}", base(size, sharing),
                          figures[column]) for size, figures in _TABLE_3.items()]
    rows += [PaperRow(4, f"base, E={size}, shared: {sharing}", base(size, sharing),
                      figures[sharing])
             for size, figures in _TABLE_4.items() for sharing in SHARING]
    return rows


def agreement(count: ParameterCount, millions: int) -> str:
    """Which count rounds to the paper's figure; "" if none does.

    The paper does not say whether it counts the pooler. Both are tried, with it
    first.
    """
    for name, exact in (("with pooler", count.with_pooler),
                        ("without pooler", count.without_pooler)):
        # The paper gives BERT-xlarge to three digits only.
        unit = 10 if millions >= 1000 else 1
        if round(exact / (unit * 1e6)) * unit == millions:
            return name
    return ""


def named_counts() -> dict[str, ParameterCount]:
    """Counts of all published sizes by name."""
    return {name: count_parameters(AlbertConfig.named(name)) for name in NAMED}
