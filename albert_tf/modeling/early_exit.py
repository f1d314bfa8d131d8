"""Early exit: answers before the last pass, by one head that all passes share.

With shared layers a pass changes the hidden states less and less (paper, Figure 1), and
every pass speaks the same language: one head reads all of them, where a model whose
layers differ would need one for each.

    pass 1 ─► pass 2 ─► ... ─► pass L ─► pooler ─► output layer: the ordinary answer
      └─► exit ─┴─► exit ─ ...           the same exit head after each pass before

The last pass keeps its own head, so that a model with exits is an ordinary one with four
tensors besides (`exit/...`), and answers as such wherever exits are not asked for.

Shapes: B batch, S sequence, L passes, H hidden, K labels.
"""

from typing import Sequence

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.heads import OutputLayer
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, NamedLayer, kernel_initializer)


class ExitHead(NamedLayer):
    """A pooler and an output layer on the first piece after a pass: "exit/...".

    `weight` is what the exits' loss counts in what the encoder learns; with 0 it learns
    as without exits, and the head alone learns to read it.
    """

    def __init__(self, config: AlbertConfig, num_labels: int, weight: float = 1.0):
        if config.num_hidden_layers < 2:
            raise InputError("early exit needs a pass before the last one, but the "
                             "config has num_hidden_layers=1.")
        super().__init__("exit")
        self.weight, self._every = weight, config.inner_group_num
        size = config.hidden_size
        self.pooler = Dense(
            "exit/pooler/dense", size, size, kernel_initializer(config), "tanh")
        self.output_layer = OutputLayer("exit", size, num_labels)

    def call(self, first, seeds: DropoutSeeds = DropoutSeeds(None),
             dropout_prob: float = 0.0):
        """Of the first pieces [B, H] or [B, L - 1, H]: logits [B, K] or
        [B, L - 1, K]."""
        pooled = seeds.dropout(self.pooler(first), dropout_prob)
        logits = self.output_layer(tf.reshape(pooled, [-1, pooled.shape[-1]]))
        return tf.reshape(logits, tf.concat(
            [tf.shape(first)[:-1], tf.shape(logits)[1:]], axis=0))

    def of_passes(self, encoder_outputs: Sequence[tf.Tensor], *dropout) -> tf.Tensor:
        """AlbertModel's `encoder_outputs` → logits [B, L - 1, K] after each pass but
        the last."""
        first = tf.stack([tf.cast(output[:, 0], tf.float32) for output in
                          encoder_outputs[self._every - 1:-1:self._every]], axis=1)
        if self.weight != 1.0:
            first = self.weight * first + (1.0 - self.weight) * tf.stop_gradient(first)
        logits = self(first, *dropout)
        logits.set_shape([None, first.shape[1], self.output_layer.output_bias.shape[0]])
        return logits
