"""Loads a Keras model from a folder in any format."""

import dataclasses
import math
from typing import Any, Optional

import tf_keras

from albert_tf.checkpoints import formats, tokenizer_files
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Vocabulary, finite, head_of, some)
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.models import AlbertWithHeads


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded(Checkpoint):
    """The result of `load`: the Checkpoint, with what was made of it.

    Attributes:
      model: an AlbertModel, or an AlbertWithHeads if the checkpoint has heads.
      tokenizer: a FullTokenizer, or None if the folder has no vocabulary.
    """

    model: tf_keras.Model = None
    tokenizer: Any = None

    def __repr__(self) -> str:
        """Says in three lines what the model is, what it answers, and what was read."""
        config, kind, parameters = self.config, "An export", ""
        tokenizer = f"{self.tokenizer.vocab_size:,} tokens" if (
            self.tokenizer) else "no tokenizer"
        heads = ", ".join(f"{name} ({width})" for name, width in self.heads.items())
        if self.model is not None:
            total = sum(math.prod(weight.shape) for weight in self.model.weights)
            kind, parameters = type(self.model).__name__, f"{total:,} parameters, "
        labels = f"; labels {some(self.labels, 8)}" if self.labels else ""
        return (
            f"{kind} from {self.format}: {config.num_hidden_layers} "
            f"layers of width {config.hidden_size}, {config.num_attention_heads} heads, "
            f"{parameters}{tokenizer}\n"
            f"Heads: {heads or 'none'}{labels}\n"
            f"{self.report.summary(0).splitlines()[0]}")


def load(path: str, config: formats.Config = None, head: str = "",
         allow_nan: bool = False, vocabulary: Optional[Vocabulary] = None) -> Loaded:
    """Loads the model in a folder, with its heads, tokenizer and labels. Arguments are
    as for serving.predict.load, whose model can also answer."""
    checkpoint = formats.read(path, config, head, vocabulary)
    return Loaded(**vars(checkpoint), model=build(checkpoint, allow_nan),
                  tokenizer=checkpoint.vocabulary and tokenizer_files.tokenizer_of(
                      checkpoint.vocabulary))


def build(checkpoint: Checkpoint, allow_nan: bool = False) -> tf_keras.Model:
    """Builds the model of a checkpoint, with its weights."""
    # A model from elsewhere may have been trained with answers in padding.
    options = {"mask_padding": bool(checkpoint.settings),
               "problem_type": checkpoint.problem_type,
               **{name: value for name, value in checkpoint.flags.items()
                  if name in ("start_n_top", "end_n_top")}}
    heads = [head_of(name, width, **options)
             for name, width in checkpoint.heads.items()]
    model = (AlbertWithHeads(checkpoint.config, heads) if heads
             else AlbertModel(checkpoint.config))
    tensors = checkpoint.tensors if allow_nan else finite(
        checkpoint.tensors, checkpoint.source)
    for variable in model.weights:
        variable.assign(tensors[variable.name.removesuffix(":0")].read())
    return model
