"""Heads: the layers that a task adds to the encoder, one object for each task.

    shapes ──► checkpoints: conversion, restoring
    layers, outputs ──► modeling.models ──► predictions ──► scores, answers
                                       └──► served ──► exported models
    objective ──► training

The heads of pretraining are in `modeling/heads.py`, those of other tasks in
`albert_tf/finetuning/*/head.py`. They import TensorFlow only inside methods, because
checkpoints are converted without it.

Shapes: B batch, S sequence, H hidden, V tokens, K width.
"""

import dataclasses
from typing import Any, ClassVar, Mapping, NamedTuple, Sequence

from albert_tf.config import AlbertConfig

INPUTS = ("input_ids", "input_mask", "segment_ids")


class Input(NamedTuple):
    """A feature that a head reads besides INPUTS, int [B, S] or [B, size]."""

    name: str
    size: int | None = None  # how many numbers a sequence has; None: one for each token
    pad: int = 0  # what fills up shorter sequences
    limit: int = 0  # numbers are at least 0 and below it; 0 for no limit
    # Whether Answering.exchanged computes it from INPUTS, as in others' ONNX graphs.
    derived: bool = False
    served: bool = True  # whether prediction needs it, not only training


Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Tensors = Mapping[str, Any]
Layers = Mapping[str, Any]


# ---- names and shapes in a checkpoint --------------------------------------


def dense_shapes(scope: str, rows: int, columns: int) -> Shapes:
    """Returns the names and shapes of a `Dense` layer's variables in a checkpoint."""
    return {f"{scope}/kernel": (rows, columns), f"{scope}/bias": (columns,)}


def norm_shapes(scope: str, size: int) -> Shapes:
    """Returns the names and shapes of a `LayerNorm`'s variables in a checkpoint."""
    return {f"{scope}/gamma": (size,), f"{scope}/beta": (size,)}


def output_shapes(scope: str, rows: int, columns: int) -> Shapes:
    """Returns the names and shapes of an `OutputLayer`'s variables in a checkpoint."""
    scope = scope and f"{scope}/"
    return {f"{scope}output_weights": (rows, columns), f"{scope}output_bias": (rows,)}


# ---- the definition --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Head:
    """One head: by default a linear layer of `width` outputs on the pooled output.

    Subclasses override what differs. The methods depend only on their arguments: the
    variables belong to the model that called `layers`.
    """

    width: int = 1  # number of outputs

    # The same for all heads of a class; subclasses set what differs from these values.
    name: ClassVar[str] = ""  # in checkpoints and in `albert_tf.load`
    task: ClassVar[str] = ""  # what a model with it does, in the words of predict.py
    scope: ClassVar[str] = ""  # of its output layer in a checkpoint; "" is the root
    fixed_width: ClassVar[bool] = False  # whether `width` is always the same
    reads: ClassVar[str] = "pooled_output"  # or "sequence_output", of the encoder
    positions: ClassVar[str] = ""  # the feature with what positions it reads; "": all
    reads_padding: ClassVar[bool] = False  # whether hidden states at padding matter
    reads_also: ClassVar[tuple[Input, ...]] = ()  # the features besides INPUTS
    has_labels: ClassVar[bool] = False  # whether checkpoints name its outputs' labels
    rank: ClassVar[int] = 2  # of its features in training and in exports
    # Whether it leaves an input unanswered above a threshold.
    has_threshold: ClassVar[bool] = False
    # Whether evaluation computes no loss, because its outputs differ from those of
    # training; predictions are then scored all together.
    scored_alone: ClassVar[bool] = False
    # All classes of heads, by name. Each adds itself when it is defined.
    kinds: ClassVar[dict[str, type["Head"]]] = {}

    def __init_subclass__(cls) -> None:
        Head.kinds[cls.name] = cls

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features that prediction needs."""
        return (*INPUTS, *(each.name for each in self.reads_also if each.served))

    def shapes(self, config: AlbertConfig) -> Shapes:
        """Returns the names and shapes of its variables in a checkpoint."""
        return output_shapes(self.scope, self.width, config.hidden_size)

    def layers(self, config: AlbertConfig) -> Layers:
        """Makes its Keras layers, whose variables have the names in `shapes`."""
        from albert_tf.modeling.layers import OutputLayer

        return {"output_layer": OutputLayer(self.scope, config.hidden_size, self.width)}

    def outputs(self, layers: Layers, encoded: Tensors, features: Tensors, dropout: Any,
                training: bool = False) -> Tensors:
        """Computes its outputs from those of the encoder.

        Args:
          layers: what `layers` returned.
          encoded: what AlbertModel.call returned, and `word_embeddings` [V, E].
            `sequence_output` is float32, except in AlbertForPreTraining, where it has
            the computation's dtype.
          features: the model's inputs.
          dropout: random.DropoutSeeds of this call; they drop units only in training.
          training: whether the correct answers are available and used.
        """
        raise NotImplementedError

    def predictions(self, outputs: Tensors) -> Tensors:
        """Returns the outputs that scores and answers need, [B, ...]."""
        return outputs

    def served(self, outputs: Tensors) -> Tensors:
        """Returns the outputs of an exported model."""
        return self.predictions(outputs)

    def output_names(self, labels: Sequence[str]) -> Sequence[str]:
        """Returns the names of the outputs among which it chooses, from the task's
        labels; none if it does not choose."""
        return ()

    def serving(self) -> "Head":
        """Returns the head to use for prediction, by default this one."""
        return self

    # Only heads that are fine-tuned have the methods below.

    def objective(self) -> Any:
        """Returns its training.losses.Objective."""
        raise NotImplementedError

    def answering(self) -> Any:
        """Returns the finetuning.answer.Answering that turns its outputs into
        answers."""
        raise NotImplementedError

    def text_task(self) -> Any:
        """Returns the finetuning.text.TextTask with which an exported model accepts
        text; if None, the model accepts token ids."""
        return None
