"""The names and shapes of an encoder's variables, and the number of their parameters.

No model is built and TensorFlow is not needed, so that xxlarge is as quick as base.
"""

import math
import re

from albert_tf.config import AlbertConfig
from albert_tf.modeling.head import Shapes, dense_shapes, norm_shapes
from albert_tf.modeling.heads import MASKED_LM, SENTENCE_ORDER

WORDS = "bert/embeddings/word_embeddings"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"
POOLER = "bert/pooler/dense"
BLOCK = "bert/encoder/transformer/group_{}/inner_group_{}/"
# What stands in the place of a predicted word in pretraining with
# --objective=permutation. No other model has this variable.
QUERY_VECTOR = "permutation/query_vector"


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
         for index in sorted({*config.block_indices(kind)})
         for inner in range(config.inner_group_num)]
        for kind in ("attention", "ffn"))
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


def count_parameters(config: AlbertConfig) -> dict[str, int]:
    """Counts the parameters of a model's parts. "encoder" is embeddings and layers,
    "with pooler" all of AlbertModel, "with heads" all of AlbertForPreTraining, whose
    output weights are the word embeddings.

    >>> count_parameters(AlbertConfig.named("base"))["with pooler"]
    11683584
    """
    shapes = encoder_shapes(config)
    for head in (MASKED_LM, SENTENCE_ORDER):
        shapes |= head.shapes(config)
    # Each LayerNorm counts as a part of what is before it.
    return {part: sum(math.prod(shape) for name, shape in shapes.items()
                      if re.match(names, name)) for part, names in {
        "embeddings": "bert/embeddings/",
        "projection E to H": PROJECTION,
        "attention sub-layers": ".*_group_.*/(attention_1|LayerNorm)/",
        "feed-forward sub-layers": ".*_group_.*/(ffn_1|LayerNorm_1)/",
        "encoder": "bert/(embeddings|encoder)/",
        "pooler": POOLER,
        "with pooler": "bert/",
        "pretraining heads": "cls/",
        "with heads": ""}.items()}
