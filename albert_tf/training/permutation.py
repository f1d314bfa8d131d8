"""Pretraining by the order of tokens, XLNet's objective (Yang et al. 2019, sections 2.2
to 2.4), for run_pretraining.py --objective=permutation.

Masked tokens are predicted independently of each other, and [MASK] occurs in no text
that the model meets later. Here the tokens of a sequence are put into a random order,
and each of the last ones is predicted from all tokens before it:

    text     the  cat  sat  on  a  mat          seen by the prediction of
    order     0    6    0   0   0   5           mat: the, sat, on, a
                                                cat: the, sat, on, a, mat

Tokens that are not predicted have the order 0 and see each other, as in XLNet's code.
What is predicted must not see itself, but later predictions must see it. Therefore two
streams go through the same layers, as one batch of S + P rows with a mask of attention,
so that kernels, packing, recomputation and depth schedules serve them as any batch:

    content   one row for each token     sees itself and what is before it
    query     one row for each predicted token: its position, its segment, and a learned
              vector in place of the word          sees the content before it

    rows      [ content 1 ... S | query 1 ... P ]
    keys      content: its order ≤ the row's, for queries <;  query: never

The words are predicted from the query rows; [CLS] of the content stream tells the order
of sentences. Positions are ALBERT's absolute ones, and a sequence sees no other one:
XLNet's relative positions and recurrence over segments are not here.

Shapes: B batch, S tokens in a sequence, P predictions, E embedding.
"""

from typing import Mapping

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.masking.in_training import DynamicMasking
from albert_tf.modeling.albert import attention_bias
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.head import INPUTS
from albert_tf.modeling.kernels.random import DropoutSeeds
from albert_tf.modeling.layers import NamedLayer, kernel_initializer
from albert_tf.modeling.parameter_count import QUERY_VECTOR
from albert_tf.modeling.pretraining import AlbertForPreTraining
from albert_tf.training.losses import WeightedValues, pretraining_metrics


# ---- orders ----------------------------------------------------------------


class Orders(DynamicMasking):
    """Draws an order for each sequence, as the random_map of RecordBatches.

        random_map = Orders(MaskingOptions(20, 1 / 6), SpecialIds(2, 3, 4), 128, 30000)

    The spans at the end of the order are the n-grams that dynamic masking would choose,
    in the reverse order of its visits. Special tokens and padding have the order 0.
    """

    draws_per_token = 2

    def __call__(self, features: Mapping[str, tf.Tensor],
                 draws: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns a batch's features with `order` int32 [B, S], the larger the later, and
        with `masked_lm_positions`, `_ids` and `_weights` [B, P] of the predicted tokens,
        in place of `token_boundary`. `draws` are int32 [B, 2 · S]: for each of S words
        its rank in the order of the visits, and the size of the n-gram that begins there.
        """
        visits = self.visits(features, *self.draws_of_tokens(draws))
        length = visits.shape[1]
        # The first visit chose the end of the order. Within a span, tokens are read
        # from left to right.
        places = (length - visits) * length + tf.range(1, length + 1)
        return {**self.predictions(features, visits > 0),
                "order": tf.where(visits > 0, places, 0)}


# ---- two streams -----------------------------------------------------------


def streams_mask(order: tf.Tensor, places: tf.Tensor, input_mask: tf.Tensor
                 ) -> tf.Tensor:
    """Returns which keys each row of the two streams sees, bool [B, S + P, S + P], given
    the places in the order of all tokens [B, S] and of the predicted ones [B, P]."""
    # A row sees what is not later than this: content up to itself, a query less.
    last_seen = tf.concat([order, places - 1], axis=1)
    seen = order[:, tf.newaxis] <= last_seen[:, :, tf.newaxis]  # [B, S + P, S]
    seen &= tf.cast(input_mask, tf.bool)[:, tf.newaxis]
    return tf.pad(seen, [[0, 0], [0, 0], [0, places.shape[1]]])


class AlbertForPermutation(AlbertForPreTraining):
    """AlbertForPreTraining whose words are predicted in a given order.

    >>> model = AlbertForPermutation(AlbertConfig.named("base", vocab_size=100))
    >>> model({"input_ids": tf.constant([[2, 45, 7, 3]]),
    ...        "order": tf.constant([[0, 2, 1, 0]]),
    ...        "masked_lm_positions": tf.constant([[1, 2]])})["mlm_logits"].shape
    TensorShape([1, 2, 100])

    Its features are those of AlbertForPreTraining, without [MASK] in `input_ids`, and
    `order` int [B, S] (see Orders). A slot whose position has the order 0 predicts
    nothing. The variables are those of AlbertForPreTraining and QUERY_VECTOR.
    """

    def __init__(self, config: AlbertConfig, name: str = "pretrainer"):
        super().__init__(config, name)
        # The vector [E] that stands in the place of a predicted word.
        scope, _, vector = QUERY_VECTOR.partition("/")
        self.query = NamedLayer(scope)
        self.query.vector = self.query.make_weight(
            vector, [config.embedding_size], kernel_initializer(config))

    def encoded(self, features, training, seed, computation):
        """Returns the encoder's outputs; `sequence_output` are the query rows, and
        `pooled_output` is that of the content stream."""
        input_ids, mask, segment_ids, order, positions = (
            tf.cast(features[name], tf.int32)
            for name in (*INPUTS, "order", "masked_lm_positions"))
        places = tf.gather(order, positions, batch_dims=1)
        is_used = places > 0  # [B, P]
        # 1. Look up the tokens' vectors, and what a query knows: segment and position.
        tables = self.bert.embeddings
        queries = self.query.vector + tables.segments(
            tf.gather(segment_ids, positions, batch_dims=1)) + tf.gather(
                tables.position_embeddings, positions)
        seeds = DropoutSeeds(seed, training)
        embedded = tables(input_ids, segment_ids, seeds, queries)
        # 2. Run both streams through the layers. The last one computes the queries, and
        #    the first token for the pooler; unused slots read the first token, too.
        rows = tf.concat([mask, tf.cast(is_used, mask.dtype)], axis=1)
        query_rows = input_ids.shape[1] + tf.range(positions.shape[1])
        return self.bert.encode(
            embedded, rows, attention_bias(streams_mask(order, places, mask)), seeds,
            computation or Computation(), tf.where(is_used, query_rows, 0))


# ---- metrics ---------------------------------------------------------------


def metrics(heads, features, losses) -> WeightedValues:
    """Returns the metrics of pretraining, with those of words as `permutation_loss` and
    `permutation_accuracy`: they cannot be compared with those of masked tokens."""
    return {name.replace("masked_lm", "permutation"): values for name, values in
            pretraining_metrics(heads, features, losses).items()}
