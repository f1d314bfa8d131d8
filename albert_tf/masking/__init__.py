"""Which n-grams are hidden and behind what: one set of options and odds; drawn one by
one (the release), for a batch (data creation), in TensorFlow (while training)."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "options": "MaskingOptions SpecialIds",
})
