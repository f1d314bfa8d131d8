"""The encoder, the heads, and the models that combine them. Every variable has the name
that it has in the original implementation."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.modeling.albert import AlbertModel as AlbertModel
    from albert_tf.modeling.encoder import Computation as Computation
    from albert_tf.modeling.models import (
        AlbertForTask as AlbertForTask, AlbertWithHeads as AlbertWithHeads)
    from albert_tf.modeling.pretraining import (
        AlbertForPreTraining as AlbertForPreTraining)
else:
    __getattr__, __dir__ = lazily(__name__, {
        "albert": "AlbertModel",
        "encoder": "Computation",
        "models": "AlbertForTask AlbertWithHeads",
        "pretraining": "AlbertForPreTraining",
    })
