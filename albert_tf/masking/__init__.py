"""Chooses the n-grams to mask and what replaces them. One set of options serves three
maskers: for one sequence (as the original implementation does), for a batch (data
creation), and in TensorFlow (during training)."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.masking.options import (
        MaskingOptions as MaskingOptions, SpecialIds as SpecialIds)
else:
    __getattr__, __dir__ = lazily(__name__, {
        "options": "MaskingOptions SpecialIds",
    })
