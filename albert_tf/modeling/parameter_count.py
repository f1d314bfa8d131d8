"""The names and shapes of an encoder's variables, and the number of their parameters.

No model is built and TensorFlow is not needed, so that xxlarge is as quick as base.
"""

import dataclasses
import math
import re

from albert_tf.config import AlbertConfig
from albert_tf.modeling.head import Shapes, dense_shapes, norm_shapes
from albert_tf.modeling.heads import MASKED_LM, SENTENCE_ORDER

Shape = tuple[int, ...]

WORDS = "bert/embeddings/word_embeddings"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"
POOLER = "bert/pooler/dense"
BLOCK = "bert/encoder/transformer/group_{}/inner_group_{}/"
# What stands in the place of a predicted word in pretraining with
# --objective=permutation. No other model has this variable.
QUERY_VECTOR = "permutation/query_vector"


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """The number of parameters of each part of a model."""

    embeddings: int  # word, token type and position tables, and their LayerNorm
    projection: int  # from width E to H; 0 if there is none
    attention: int  # all attention sub-layers, with their LayerNorm
    feed_forward: int  # all feed-forward sub-layers, with their LayerNorm
    pooler: int  # the dense layer on the first token
    # Masked-LM and sentence-order heads; the word embeddings are their output weights.
    heads: int

    @property
    def without_pooler(self) -> int:
        return self.embeddings + self.projection + self.attention + self.feed_forward

    @property
    def with_pooler(self) -> int:
        """The number of parameters of AlbertModel."""
        return self.without_pooler + self.pooler

    @property
    def with_heads(self) -> int:
        """The number of parameters of AlbertForPreTraining."""
        return self.with_pooler + self.heads


def encoder_shapes(config: AlbertConfig) -> Shapes:
    """Returns the shapes of an encoder's tensors by their names in the original
    implementation, in the order of the computation."""
    width, size = config.embedding_size, config.hidden_size
    shapes = {WORDS: (config.vocab_size, width),
              "bert/embeddings/token_type_embeddings": (config.type_vocab_size, width),
              "bert/embeddings/position_embeddings": (
                  config.max_position_embeddings, width),
              **norm_shapes("bert/embeddings/LayerNorm", width)}
    if config.projects_embeddings:
        shapes |= dense_shapes(PROJECTION, width, size)
    attention, ffn = (
        [BLOCK.format(index, inner)
         for index in sorted(set(map(index_of, range(config.num_hidden_layers))))
         for inner in range(config.inner_group_num)]
        for index_of in (config.attention_index, config.ffn_index))
    for block in attention:
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= dense_shapes(f"{block}attention_1/{part}", size, size)
        shapes |= norm_shapes(f"{block}LayerNorm", size)
    for block in ffn:
        part, inner_size = f"{block}ffn_1/intermediate", config.intermediate_size
        shapes |= {**dense_shapes(f"{part}/dense", size, inner_size),
                   **dense_shapes(f"{part}/output/dense", inner_size, size),
                   **norm_shapes(f"{block}LayerNorm_1", size)}
    if config.use_pooler:
        shapes |= dense_shapes(POOLER, size, size)
    return shapes


def count_parameters(config: AlbertConfig) -> ParameterCount:
    """Counts the parameters of a model of this config.

    >>> count_parameters(AlbertConfig.named("base")).with_pooler
    11683584
    """
    shapes = encoder_shapes(config)

    def count(part: str) -> int:
        return sum(math.prod(shape) for name, shape in shapes.items()
                   if re.search(part, name))

    return ParameterCount(
        embeddings=count("^bert/embeddings/"), projection=count(f"^{PROJECTION}/"),
        attention=count("_group_.*/(attention_1|LayerNorm)/"),
        feed_forward=count("_group_.*/(ffn_1|LayerNorm_1)/"),
        pooler=count(f"^{POOLER}/"),
        heads=sum(math.prod(shape) for head in (MASKED_LM, SENTENCE_ORDER)
                  for shape in head.shapes(config).values()))
