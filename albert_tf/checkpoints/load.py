"""Loads a Keras model from a folder in any format."""

import dataclasses
import math
from typing import Any, Mapping, Optional

import tf_keras

from albert_tf.checkpoints import formats, tokenizer_files
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Report, Vocabulary, finite, head_of, some)
from albert_tf.checkpoints.sentence_transformers import Sentence
from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.models import AlbertWithHeads


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The result of `load`.

    Attributes:
      format: the name of the format that was recognised, such as "hf".
      model: an AlbertModel, or an AlbertWithHeads if the checkpoint has heads.
      tokenizer: a FullTokenizer, or None if the folder has no vocabulary.
      labels: labels of the classes; () if there are none.
      problem_type: what the outputs of a classifier are, as in the Checkpoint.
      report: the report on every tensor: matched, dropped with the reason, missing.
      heads: names of the checkpoint's heads → the width of their outputs.
      settings: content of task.json for a model that was fine-tuned here, else {}.
      sentence: for sentence-transformers, how token vectors are pooled into a sentence
        embedding, else None.
    """

    format: str
    config: AlbertConfig
    model: tf_keras.Model
    tokenizer: Any
    labels: tuple[str, ...]
    report: Report
    heads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sentence: Optional[Sentence] = None
    problem_type: str = ""

    def __repr__(self) -> str:
        """Says in three lines what the model is, what it answers, and what was read."""
        config, tokenizer = self.config, "no tokenizer"
        if self.tokenizer is not None:
            tokenizer = f"{self.tokenizer.vocab_size:,} tokens"
        heads = ", ".join(f"{name} ({width})" for name, width in self.heads.items())
        kind, parameters = "An export", ""
        if self.model is not None:
            total = sum(math.prod(weight.shape) for weight in self.model.weights)
            kind, parameters = type(self.model).__name__, f"{total:,} parameters, "
        labels = f"; labels {some(list(self.labels), 8)}" if self.labels else ""
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
    model = build(checkpoint, allow_nan)
    tokenizer = checkpoint.vocabulary and tokenizer_files.tokenizer_of(
        checkpoint.vocabulary)
    return Loaded(checkpoint.format, checkpoint.config, model, tokenizer,
                  checkpoint.labels, checkpoint.report, checkpoint.heads,
                  checkpoint.settings, checkpoint.sentence, checkpoint.problem_type)


def build(checkpoint: Checkpoint, allow_nan: bool = False) -> tf_keras.Model:
    """Builds the model of a checkpoint, with its weights. Raises InputError if they
    hold NaN or infinity, unless `allow_nan`."""
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
