"""A model from one format into another, with heads, labels and tokenizer."""

import dataclasses
import os

from albert_tf import files
from albert_tf.checkpoints import (
    formats, huggingface, keras_hub, model_card, release, sentence_transformers,
    tf_models)
from albert_tf.checkpoints.checkpoint import TYPES, Report, finite, without_heads
from albert_tf.errors import InputError

FORMATS = {module.NAME: module for module in (
    release, huggingface, keras_hub, tf_models, sentence_transformers)}


def convert(input: str, output: str, format: str, config: formats.Config = None,
            head: str = "", encoder_only: bool = False, dtype: str = "float32",
            optimizer_state: bool = False, allow_nan: bool = False, pooling: str = "",
            max_seq_length: int = 0) -> Report:
    """Writes the model that a path holds as a new folder of another format.

        report = convert("runs/sst-2", "sst-2-hf", "hf")
        print(report.summary())

    Whatever is wrong is found before anything is written; the folder appears whole or
    not at all. No TensorFlow is loaded.

    Args:
      input: any path that `load` takes.
      output: a folder that is not there yet.
      format: one of FORMATS: tf1, hf, keras_hub, tf_models, sentence_transformers.
      config, head: as for `load`.
      encoder_only: leave the heads out.
      dtype: of the numbers in a file of "hf": float32, bfloat16 or float16.
      optimizer_state: for "tf1", the optimizer's moments and the step go along.
      allow_nan: accept weights that are NaN or infinite.
      pooling, max_seq_length: for "sentence_transformers", as its `with_modules`.
    """
    if format not in FORMATS:
        raise InputError(f"format '{format}' is not known; give one of "
                         f"{', '.join(FORMATS)}.")
    if dtype not in TYPES:
        raise InputError(f"dtype '{dtype}' is not known; give one of "
                         f"{', '.join(TYPES)}.")
    for name, given, of in (("dtype", dtype != "float32", "hf"),
                            ("optimizer_state", optimizer_state, "tf1"),
                            ("pooling", pooling, sentence_transformers.NAME),
                            ("max_seq_length", max_seq_length,
                             sentence_transformers.NAME)):
        if given and format != of:
            raise InputError(f"--{name} goes with --format={of} alone; leave it out.")
    if files.exists(output):
        raise InputError(f"{output} is there already; give a new folder.")
    found = formats.read(input, config, head)
    if encoder_only:
        found = without_heads(
            found, dict.fromkeys(found.heads, "only the encoder was asked for"))
    if not allow_nan:
        found = dataclasses.replace(
            found, tensors=finite(found.tensors, found.source))
    target = FORMATS[format]
    if "early_exit" in found.heads and target is not release:
        found = without_heads(
            found, {"early_exit": f"{format} has no exits from a pass before the last"})
    try:
        if target is sentence_transformers:
            found = target.with_modules(found, pooling, max_seq_length)
        elif "sentence" in found.facts:
            found.report.notes.append(f"how a text's vector comes of its pieces' "
                                      f"({found.facts['sentence']}) is not written")
        found = target.check(found)
    except InputError as error:
        raise InputError(f"{found.source}: {error}") from error
    with files.staged(output) as (staged,):
        files.make_directory(staged, output)
        options = {"hf": {"dtype": dtype}, "tf1": {"optimizer_state": optimizer_state}}
        target.write(found, staged, **options.get(format, {}))
        files.write(os.path.join(staged, model_card.FILE),
                    model_card.text(found, format, os.path.basename(
                        os.path.normpath(output)), os.fspath(input)).encode())
    return found.report
