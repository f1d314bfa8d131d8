"""The encoder, its heads and the models made of both, every variable under its name in
the release."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "albert": "AlbertModel",
    "encoder": "Computation",
    "models": "AlbertForTask AlbertWithHeads",
    "pretraining": "AlbertForPreTraining",
})
