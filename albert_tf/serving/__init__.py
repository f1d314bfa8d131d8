"""Using a trained model: in Python, over HTTP, as a SavedModel, and as one file for
other engines."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "saved_model": "Server",
    "predict": "load",
})
