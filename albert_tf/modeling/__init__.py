"""The encoder, the heads, and the models that combine them. Every variable has the name
that it has in the original implementation."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "albert": "AlbertModel",
    "encoder": "Computation",
    "models": "AlbertForTask AlbertWithHeads",
    "pretraining": "AlbertForPreTraining",
})
