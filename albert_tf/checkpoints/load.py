"""A model from whatever folder, in one line."""

import dataclasses
from typing import Any, Optional

import tf_keras

from albert_tf.checkpoints import formats, neutral, tokenizer_files
from albert_tf.checkpoints.neutral import Checkpoint, Report
from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.models import AlbertForConditionalSpans, AlbertWithHeads


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What `load` returns.

    Attributes:
      format: the name of the format that was found, such as "hf".
      model: an AlbertModel, or an AlbertWithHeads if the checkpoint has heads.
      tokenizer: a FullTokenizer; None where the folder has no vocabulary.
      labels: of the classes; () where there are none.
      report: every tensor: matched, dropped with the reason, missing.
    """

    format: str
    config: AlbertConfig
    model: tf_keras.Model
    tokenizer: Optional[Any]
    labels: tuple[str, ...]
    report: Report


def load(path: str, config: formats.Config = None, head: str = "",
         allow_nan: bool = False) -> Loaded:
    """The model in a folder, with its heads, tokenizer and labels.

        loaded = albert_tf.load("albert-base-v2")
        ids = [loaded.tokenizer.encode("ALBERT shares its layers.")]
        loaded.model({"input_ids": ids}, training=False)["sequence_output"]

    Args:
      path: of the release, of a run here, of Hugging Face, keras-hub or tf-models, a
        SavedModel or a module of TensorFlow Hub; the format is recognised.
      config: where the folder has none: an AlbertConfig, its file, or a published name.
      head: as for formats.read.
      allow_nan: accept weights that are NaN or infinite.
    """
    checkpoint = formats.read(path, config, head)
    model = build(checkpoint, allow_nan)
    tokenizer = checkpoint.vocabulary and tokenizer_files.tokenizer_of(
        checkpoint.vocabulary)
    return Loaded(checkpoint.format, checkpoint.config, model, tokenizer,
                  checkpoint.labels, checkpoint.report)


def build(checkpoint: Checkpoint, allow_nan: bool = False) -> tf_keras.Model:
    """The model of a checkpoint, with its weights."""
    config, heads = checkpoint.config, checkpoint.heads
    options = checkpoint.facts.get("model", {})
    if "conditional_spans" in heads:
        model = AlbertForConditionalSpans(config, **options)
    elif heads:
        model = AlbertWithHeads(config, heads, **options)
    else:
        model = AlbertModel(config)
    tensors = checkpoint.tensors if allow_nan else neutral.finite(
        checkpoint.tensors, checkpoint.source)
    for variable in model.weights:
        variable.assign(tensors[variable.name.removesuffix(":0")].read())
    return model
