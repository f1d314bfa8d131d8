"""Names in exported SavedModels, and a check of values that models are asked with."""

import numbers
from typing import Any

from albert_tf.errors import InputError

LABELS_FILE = "labels.txt"
# Advice for a label that this file cannot hold.
RENAME = "rename it in the config.json or task.json of the model"
SIGNATURE = "serving_default"
# Signatures of an export that takes text: one takes ids, one converts text to ids.
IDS_SIGNATURE, TOKENIZE_SIGNATURE = "ids", "tokenize"


def check_probability(value: Any, name: str) -> None:
    """Raises InputError if the value of the option `name` is not a probability."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (
            0 <= value <= 1):  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; give a probability from 0 to 1.")
