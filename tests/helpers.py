"""Where tests find their data; a Python process of its own."""

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

_shared = pathlib.Path(os.environ.get(
    "ALBERT_TF_SHARED", ROOT.parent / "shared"))
# The folder of reference outputs and real data beside the project, or None.
SHARED = _shared if (_shared / "golden" / "README.md").is_file() else None


# Which has no package for Windows.
HAS_TENSORFLOW_TEXT = importlib.util.find_spec("tensorflow_text") is not None


def run_python(*words, env=(), **options) -> subprocess.CompletedProcess:
    """Runs `python WORDS` in the project's folder; `env` is added to this process's."""
    return subprocess.run([sys.executable, *map(str, words)], **{
        "cwd": ROOT, "text": True, "capture_output": True, "check": False,
        "env": {**os.environ, **dict(env)}, **options})


@functools.cache
def tokenizer(kind="spm"):
    """The fixtures' SentencePiece model, or their WordPiece vocabulary."""
    from albert_tf.tokenization.tokenizer import FullTokenizer

    return FullTokenizer(spm_model_file=str(FIXTURES / "spm" / "en4k.model")) if (
        kind == "spm") else FullTokenizer(
            vocab_file=str(FIXTURES / "tokenization" / "wp_vocab.txt"))


@functools.cache
def load_export(folder):
    """A SavedModel, with the operations that its tokenizer needs."""
    import tensorflow as tf

    if HAS_TENSORFLOW_TEXT:
        import tensorflow_text  # noqa: F401
    return tf.saved_model.load(str(folder))


def ask_export(folder, rows):
    """The outputs of an exported model for rows of ids, as one padded batch."""
    import tensorflow as tf

    exported = load_export(folder)
    serve = exported.signatures.get("ids") or exported.signatures["serving_default"]
    names = serve.structured_input_signature[1]
    longest = max(len(row["input_ids"]) for row in rows)
    found = serve(**{name: tf.constant([
        [*row[name], *[int(name == "p_mask")] * (longest - len(row[name]))]
        for row in rows], tf.int32) for name in names})
    return {name: values.numpy() for name, values in found.items()}


def serialized(spec, values):
    """A record of one example: name → its values."""
    from albert_tf.records import encode

    [record] = encode.serialize(
        spec, {name: np.reshape(value, [1, -1]) for name, value in values.items()})
    return record
