"""A trained model as a SavedModel, and answers from one, without the rest of the
package."""

from albert_tf import lazily

__getattr__, __dir__ = lazily(__name__, {
    "saved_model": "Server",
    "predict": "load",
})
