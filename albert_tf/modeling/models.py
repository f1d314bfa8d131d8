"""Models of the encoder and heads: one head to train, or all heads of a checkpoint.

    features ─► encoder ─► hidden states ─► Head.outputs
                           at the positions that the head reads

Shapes: B batch, S sequence, C choices, H hidden, K width.
"""

import dataclasses
from typing import Mapping, Optional, Sequence

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel, ConfiguredModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.head import INPUTS, Head
from albert_tf.modeling.kernels.packing import PADDED
from albert_tf.modeling.kernels.plain import sizes
from albert_tf.modeling.kernels.random import DropoutSeeds

# Folded into the step's seed for the head's dropout. The encoder folds in 0, 1, 2 ...
# and never reaches this number.
_HEAD_SEED = 0x48454144


class AlbertWithHeads(ConfiguredModel):
    """The encoder with all heads of a checkpoint, as `albert_tf.load` builds it.

    >>> from albert_tf.finetuning.classification.head import Classification
    >>> from albert_tf.modeling.heads import MaskedLanguageModel
    >>> model = AlbertWithHeads(AlbertConfig.named("base", vocab_size=100),
    ...                         [MaskedLanguageModel(), Classification(3)])
    >>> outputs = model({"input_ids": tf.constant([[2, 45, 7, 3]])})
    >>> outputs["mlm_logits"].shape, outputs["logits"].shape
    (TensorShape([1, 4, 100]), TensorShape([1, 3]))

    Attributes:
      heads: the heads by name.
      head_layers: the Keras layers of each head, by the same names.
    """

    head: Optional[Head] = None  # the one that `call` computes by default; None: all

    def __init__(self, config: AlbertConfig, heads: Sequence[Head],
                 name: str = "albert"):
        reads_pooler = any(head.reads == "pooled_output" for head in heads)
        super().__init__(config, name, reads_pooler)
        self.bert = AlbertModel(config)
        layers = {head.name: head.layers(config) for head in heads}
        # Each layer is an attribute, with a single head under its own name, because
        # checkpoints of runs contain these names. Plain dicts of layers would be saved
        # in the checkpoints, too, and are therefore hidden from Keras.
        for head, of_head in layers.items():
            for name, layer in of_head.items():
                setattr(self, name if len(layers) == 1 else f"{head}_{name}", layer)
        object.__setattr__(self, "heads", {head.name: head for head in heads})
        object.__setattr__(self, "head_layers", layers)
        if not reads_pooler and self.bert.pooler is not None:
            # The pooler then has no gradient. The original implementation's optimizer
            # does not change such variables, but here weight decay would.
            self.bert.pooler.trainable = False

    def get_config(self):
        return {**super().get_config(), "heads": {
            name: dataclasses.asdict(head) for name, head in self.heads.items()}}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        heads = [Head.kinds[name](**values) for name, values in config["heads"].items()]
        return cls(AlbertConfig.from_dict(config["config"]), heads)

    def call(self, features: Mapping[str, tf.Tensor], training: bool = False,
             seed: Optional[tf.Tensor] = None,
             computation: Optional[Computation] = None,
             head: Optional[Head] = None) -> dict[str, tf.Tensor]:
        """Runs the encoder and every head, or one head alone.

        Args:
          features: as for AlbertModel.call, [B, S] or, for multiple choice, [B, C, S],
            and other inputs of the heads. `masked_lm_positions` are by default all
            positions.
          training, seed, computation: as for AlbertModel.call.
          head: the only head to compute, one of `heads` or the result of its
            `serving()`.

        Returns:
          the outputs of the head, for which the last layer computes only the hidden
          states that it reads. Without one, the outputs of each head, `sequence_output`
          [B, S, H] and, if there is a pooler, `pooled_output` [B, H]; for multiple choice
          [B, C, S, H] and [B, C, H].
        """
        head = head or self.head
        # 1. Flatten examples with several sequences, [B, C, S], to rows [B·C, S].
        has_choices = len(features["input_ids"].shape) == 3
        if has_choices:
            _, choices, length = sizes(features["input_ids"])
            features = {name: tf.reshape(features[name], [-1, length]) for name in INPUTS}
            if seed is not None:
                # It holds the number of a part's first row, which counts sequences here.
                seed = tf.convert_to_tensor(seed, tf.int32)
                seed *= tf.stack([1, 1, choices])[:seed.shape[0]]
        # 2. Run the encoder. Heads always compute in float32, whatever type it uses.
        computation = computation or Computation()
        if head is None or head.reads_padding:
            computation = dataclasses.replace(computation, skip_padding=False)
        positions = features.get(head.positions) if head else None
        if head and head.reads == "pooled_output":
            positions = features["input_ids"][:, :0]
        encoded = self.bert(features, training=training, seed=seed,
                            computation=computation, positions=positions)
        encoded |= {"sequence_output": tf.cast(encoded["sequence_output"], tf.float32),
                    "word_embeddings": self.bert.embeddings.word_embeddings}
        # 3. Compute the outputs of the head, or of all at the positions that they read.
        dropout = DropoutSeeds(seed, training, _HEAD_SEED)
        outputs = {name: encoded[name] for name in ("sequence_output", "pooled_output")
                   if name in encoded and not head}
        for each in (head,) if head else self.heads.values():
            read = encoded
            if not head and features.get(each.positions) is not None:
                read = {**encoded, "sequence_output": PADDED.at(
                    encoded["sequence_output"], features[each.positions])}
            outputs |= each.outputs(
                self.head_layers[each.name], read, features, dropout, training)
        # 4. Reshape the values of rows [B·C, ...] to those of examples [B, C, ...].
        if has_choices:
            outputs = {name: tf.reshape(values, [-1, choices, *sizes(values)[1:]])
                       for name, values in outputs.items()}
        return outputs


class AlbertForTask(AlbertWithHeads):
    """The encoder with the head of one task; computes nothing else.

    >>> from albert_tf.finetuning.classification.head import Classification
    >>> model = AlbertForTask(
    ...     AlbertConfig.named("base", vocab_size=100), Classification(3))
    >>> model({"input_ids": tf.constant([[2, 45, 7, 3]])})["logits"].shape
    TensorShape([1, 3])
    """

    def __init__(self, config: AlbertConfig, head: Head):
        super().__init__(config, [head], head.name)
        self.head = head

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = AlbertWithHeads.from_config(config)
        return cls(model.config, *model.heads.values())
