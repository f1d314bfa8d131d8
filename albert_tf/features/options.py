"""The options of vectors of texts: how token vectors are pooled, and from which
layers."""

import dataclasses

from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.sentence_transformers import POOLED, POOLING
from albert_tf.errors import InputError
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

PIECES, EMBEDDING = "pieces", "embedding"
KINDS = (POOLED, *POOLING, PIECES, EMBEDDING)


@dataclasses.dataclass(frozen=True)
class Options:
    """The vectors to compute.

    Attributes:
      pooling: some of KINDS; () stands for the vectors of `predict`: `embedding` for a
        folder of sentence-transformers, else `pooled` and `mean`.
      layers: numbers of layers: 1 is the first, -1 the last. For several layers the
        vectors have an additional axis, in this order.
      max_seq_length: maximum length of a text in tokens; 0 stands for that of training.
      batch_size: maximum number of sequences that are computed together.
      windows: whether longer texts are read in overlapping windows, whose vectors are
        averaged.
      truncated: whether rows have `truncated`, true if the text was cut.
    """

    pooling: tuple[str, ...] = ()
    layers: tuple[int, ...] = (-1,)
    max_seq_length: int = 0
    batch_size: int = 32
    windows: bool = False
    truncated: bool = False

    def of(self, checkpoint: Checkpoint) -> "Options":
        """Returns the options for a model, with defaults filled in. Raises InputError
        if the model does not support them."""
        config, sentence = checkpoint.config, checkpoint.facts.get("sentence")
        pooling = self.pooling or ((EMBEDDING,) if sentence else (
            *((POOLED,) if config.use_pooler else ()), "mean"))
        for kind in pooling:
            why = ("this kind is not known" if kind not in KINDS else
                   "the model has no pooler" if kind == POOLED and not config.use_pooler
                   else "only folders of sentence-transformers define it"
                   if kind == EMBEDDING and not sentence else
                   "--windows averages the vectors of a text, not those of its tokens"
                   if kind == PIECES and self.windows else
                   "it is given twice" if pooling.count(kind) > 1 else "")
            if why:
                raise InputError(f"--pooling={kind}: {why}; give one or more of "
                                 f"{', '.join(KINDS)}.")
        most, layers = config.num_hidden_layers, []
        for layer in self.layers:
            if not 1 <= abs(layer) <= most:
                raise InputError(f"--layers={layer}: the model has {most} layers; give "
                                 f"1 to {most}, or -1, the last, to -{most}.")
            layers.append(layer if layer > 0 else most + 1 + layer)
        if not layers or len(set(layers)) < len(layers):
            raise InputError(f"--layers={','.join(map(str, self.layers))}: give at "
                             "least one layer, and each layer only once.")
        flags = (checkpoint.facts.get("task") or {}).get("flags", {})
        longest = config.max_position_embeddings
        length = self.max_seq_length or min(flags.get("max_seq_length", 512), longest)
        if not NUM_SPECIAL_PAIR < length <= longest:
            raise InputError(f"--max_seq_length={length}: give {NUM_SPECIAL_PAIR + 1} "
                             f"to {longest}, the model's number of positions.")
        return dataclasses.replace(self, pooling=tuple(pooling), layers=tuple(layers),
                                   max_seq_length=length)
