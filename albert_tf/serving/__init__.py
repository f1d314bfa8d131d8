"""Using a trained model: in Python, over HTTP, as a SavedModel, and as one file for
other engines."""

from typing import TYPE_CHECKING

from albert_tf import lazily

if TYPE_CHECKING:  # The names, for type checkers.
    from albert_tf.serving.predict import load as load
else:
    __getattr__, __dir__ = lazily(__name__, {"predict": "load"})
