"""Heads: the layers of a task on the encoder, one object for each.

A `Head` holds the names and shapes of its variables in a checkpoint, its layers, its
outputs, what it learns, what a teacher teaches it, and how an answer is made of its
outputs. Training, evaluation, prediction, export, conversion and distillation all use
that one object:

    shapes ──► checkpoints: conversion, restoring
    layers, outputs ──► modeling.models ──► predictions ──► scores, answers
                                       └──► served ──► exported models
    objective, targets ──► training, distillation

Here are the two heads of pretraining (paper, section 3.1); those of tasks are in the
tasks' folders, `albert_tf/finetuning/*/head.py`. Checkpoints are converted without
TensorFlow, so a module of heads loads it inside the methods that need it.

Shapes: B batch, S sequence, P predictions, H hidden, E embedding, V tokens, K width.
"""

import dataclasses
from typing import Any, ClassVar, Mapping, Sequence

from albert_tf.config import AlbertConfig

INPUTS = ("input_ids", "input_mask", "segment_ids")

Shapes = dict[str, tuple[int, ...]]
Tensors = Mapping[str, Any]
Layers = Mapping[str, Any]


# ---- names and shapes in a checkpoint --------------------------------------


def dense_shapes(scope: str, rows: int, columns: int) -> Shapes:
    """Names and shapes of a layer `Dense` in a checkpoint."""
    return {f"{scope}/kernel": (rows, columns), f"{scope}/bias": (columns,)}


def norm_shapes(scope: str, size: int) -> Shapes:
    """Names and shapes of a `LayerNorm` in a checkpoint."""
    return {f"{scope}/gamma": (size,), f"{scope}/beta": (size,)}


def output_shapes(scope: str, rows: int, columns: int) -> Shapes:
    """Names and shapes of an `OutputLayer`; the scope "" is the root."""
    scope = scope and f"{scope}/"
    return {f"{scope}output_weights": (rows, columns), f"{scope}output_bias": (rows,)}


# ---- the definition --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Head:
    """One head: by default a linear layer of `width` outputs on the pooled output.

    Subclasses override what is different. All methods are functions of their arguments:
    the variables belong to the model that called `layers`.

    Attributes:
      width: how many outputs it has; heads with `fixed_width` have always the same.
      name: as checkpoints and `albert_tf.load` call it.
      title: what a sentence to a user calls it.
      task: what a model with it can do, as predict.py calls it.
      scope: of its output layer in a checkpoint; "" is the root.
      reads: the encoder's output that it reads, "pooled_output" or "sequence_output".
      positions: the feature that says at which positions it reads, "" for all.
      inputs: the features that it needs to answer.
      rank: axes of these features in training and in exports.
      has_threshold: whether it leaves some inputs unanswered, from a threshold on.
      scored_alone: whether evaluation computes no loss: the outputs differ from those
        of training, and the predictions are scored as a whole.
    """

    width: int = 1

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    task: ClassVar[str] = ""
    scope: ClassVar[str] = ""
    fixed_width: ClassVar[bool] = False
    reads: ClassVar[str] = "pooled_output"
    positions: ClassVar[str] = ""
    inputs: ClassVar[tuple[str, ...]] = INPUTS
    rank: ClassVar[int] = 2
    has_threshold: ClassVar[bool] = False
    scored_alone: ClassVar[bool] = False
    # Every kind of head that has been defined, by its name.
    kinds: ClassVar[dict[str, type["Head"]]] = {}

    def __init_subclass__(cls) -> None:
        Head.kinds[cls.name] = cls

    @property
    def reads_padding(self) -> bool:
        """Tells whether outputs at positions of padding count."""
        return False

    def shapes(self, config: AlbertConfig) -> Shapes:
        """Returns the names and shapes of its variables in a checkpoint."""
        return output_shapes(self.scope, self.width, config.hidden_size)

    def layers(self, config: AlbertConfig) -> Layers:
        """Makes its Keras layers, whose variables carry the names of `shapes`."""
        from albert_tf.modeling.layers import OutputLayer

        return {"output_layer": OutputLayer(self.scope, config.hidden_size, self.width)}

    def outputs(self, layers: Layers, encoded: Tensors, features: Tensors, dropout: Any,
                training: bool = False) -> Tensors:
        """Computes its outputs from those of the encoder.

        Args:
          layers: what `layers` returned.
          encoded: of AlbertModel.call, and `word_embeddings` [V, E]. `sequence_output`
            is float32, but in AlbertForPreTraining in the computation's dtype.
          features: the model's.
          dropout: layers.DropoutSeeds of this call, which drop nothing but in training.
          training: whether the true answers are known and used.
        """
        raise NotImplementedError

    def predictions(self, outputs: Tensors) -> Tensors:
        """Returns the outputs that scores and answers need, [B, ...]."""
        return outputs

    def served(self, outputs: Tensors) -> Tensors:
        """Returns the outputs that an exported model gives."""
        return self.predictions(outputs)

    def output_names(self, labels: Sequence[str]) -> Sequence[str]:
        """Returns the names of its outputs if it chooses one of them, by default
        numbers."""
        return ()

    def serving(self) -> "Head":
        """Returns this head as it answers."""
        return self

    # Of heads that are fine-tuned.

    def objective(self) -> Any:
        """Returns the training.losses.Objective that it learns."""
        raise NotImplementedError

    def targets(self, features: Tensors) -> Mapping[str, Any]:
        """Maps each output to how it is learned from a teacher
        (training.distillation)."""
        raise NotImplementedError

    def answering(self) -> Any:
        """Returns the finetuning.answer.Answering that turns its outputs into
        answers."""
        raise NotImplementedError

    def text_task(self) -> Any:
        """Returns the finetuning.text.TextTask by which an exported model takes text;
        with None it takes ids."""
        return None


# ---- pretraining -----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Head):
    """Scores of every token at the masked positions (`get_masked_lm_output`)."""

    name, title = "masked_lm", "head for masked tokens"
    task, fixed_width = "fill-mask", True
    reads, positions = "sequence_output", "masked_lm_positions"
    inputs = (*INPUTS, "masked_lm_positions")

    def shapes(self, config):
        scope, width = "cls/predictions", config.embedding_size
        return {**dense_shapes(f"{scope}/transform/dense", config.hidden_size, width),
                **norm_shapes(f"{scope}/transform/LayerNorm", width),
                f"{scope}/output_bias": (config.vocab_size,)}

    def layers(self, config):
        from albert_tf.modeling.layers import TokenScores

        return {"predictions": TokenScores(config)}

    def outputs(self, layers, encoded, features, dropout=None, training=False):
        """`mlm_logits` [B, P, V] of the hidden states [B, P, H]."""
        return {"mlm_logits": layers["predictions"](
            encoded["sequence_output"], encoded["word_embeddings"])}

    def predictions(self, outputs):
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(outputs["mlm_logits"])}


@dataclasses.dataclass(frozen=True)
class SentenceOrder(Head):
    """Classifies two segments as in order (0) or swapped (1).

    BERT's next sentence prediction takes its negatives from another text, so that the
    topic alone gives them away. Two segments of one text, in either order, have the
    same topic: what is left to learn is how a text hangs together (section 3.1).
    Release: `get_sentence_order_output`.
    """

    width: int = 2

    name, title = "sentence_order", "head for the order of sentences"
    task, scope = "order", "cls/seq_relationship"

    def layers(self, config):
        from albert_tf.modeling.layers import OutputLayer

        return {"output_layer": OutputLayer(
            self.scope, config.hidden_size, self.width, config.initializer_range)}

    def outputs(self, layers, encoded, features, dropout=None, training=False):
        """`sentence_order_logits` [B, 2] of the pooled output [B, H]."""
        return {"sentence_order_logits": layers["output_layer"](encoded["pooled_output"])}

    def predictions(self, outputs):
        import tensorflow as tf

        return {"probabilities": tf.nn.softmax(outputs["sentence_order_logits"])}

    def served(self, outputs):
        return {"logits": outputs["sentence_order_logits"], **self.predictions(outputs)}


MASKED_LM, SENTENCE_ORDER = MaskedLanguageModel(), SentenceOrder()
