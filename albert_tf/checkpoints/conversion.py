"""Converts models from one format to another, with heads, labels and tokenizer."""

import dataclasses
import os
from typing import Sequence

from albert_tf import files, text_files
from albert_tf.checkpoints import (
    formats, huggingface, keras_hub, model_card, release, sentence_transformers,
    tf_models)
from albert_tf.checkpoints.checkpoint import (
    TYPES, Report, finite, head_of, without_heads)
from albert_tf.checkpoints.folders import NULL_THRESHOLD_FILE
from albert_tf.checkpoints.labels import relabelled
from albert_tf.checkpoints.table import refuse
from albert_tf.checkpoints.vocabulary import TASK_FILE
from albert_tf.errors import InputError
from albert_tf.files import StrPath

FORMATS = {module.NAME: module for module in (
    release, huggingface, keras_hub, tf_models, sentence_transformers)}


def convert(input: StrPath, output: StrPath, format: str, config: formats.Config = None,
            head: str = "", encoder_only: bool = False, dtype: str = "float32",
            optimizer_state: bool = False, allow_nan: bool = False, pooling: str = "",
            max_seq_length: int = 0, labels: Sequence[str] = ()) -> Report:
    """Converts the model at `input` to a new folder in the given format.

        report = convert("runs/sst-2", "sst-2-hf", "hf")
        print(report.summary())

    The output folder is written completely or not at all. TensorFlow is loaded only for
    "tf1" and "tf_models".

    Args:
      input, config, head, allow_nan: as for `load`.
      output: path of a folder that does not exist yet.
      format: one of FORMATS: tf1, hf, keras_hub, tf_models, sentence_transformers.
      encoder_only: leave the heads out.
      dtype: for "hf", the type of the numbers in the file: float32, bfloat16, float16.
      optimizer_state: for "tf1", also write the optimizer's moments and the step.
      pooling, max_seq_length: for "sentence_transformers", as for its `with_modules`.
      labels: of a model that does not name them, in the order of its outputs.

    Returns the report: which tensors were matched, dropped or missing.
    """
    refuse({"format": format, "dtype": dtype}, "convert", "give one of these",
           format=FORMATS, dtype=TYPES)
    for name, is_set, only in (
            ("dtype", dtype != "float32", huggingface),
            ("optimizer_state", optimizer_state, release),
            ("pooling", pooling, sentence_transformers),
            ("max_seq_length", max_seq_length, sentence_transformers)):
        if is_set and format != only.NAME:
            raise InputError(f"--{name} is only for --format={only.NAME}; leave it out.")
    target, input, output = FORMATS[format], os.fspath(input), os.fspath(output)
    (files.check_in_tensorflow if target in (release, tf_models)
     else files.check_local)(output, "--output")
    files.new_folder(output, "--output")
    checkpoint = relabelled(formats.read(input, config, head), labels)
    if head and head not in checkpoint.heads:
        raise InputError(
            f"--head={head}: {input} has no such head (its heads: "
            f"{', '.join(checkpoint.heads) or 'none'}); leave the flag out.")
    if encoder_only:
        checkpoint = without_heads(checkpoint, "only the encoder is converted")
    if not allow_nan:
        checkpoint = dataclasses.replace(
            checkpoint, tensors=finite(checkpoint.tensors, checkpoint.source))
    notes = checkpoint.report.notes
    try:
        if target is sentence_transformers:
            checkpoint = target.with_modules(checkpoint, pooling, max_seq_length)
        elif checkpoint.sentence:
            notes.append("the pooling of token vectors into a sentence embedding "
                         f"({checkpoint.sentence}) is not written")
        if not checkpoint.vocabulary:
            notes.append(
                "no tokenizer is written, because the model's folder holds no "
                "vocabulary; copy its spiece.model or vocab.txt there and convert again")
        checkpoint = target.check(checkpoint)
    except InputError as error:
        raise InputError(f"{checkpoint.source}: {error}") from error
    with files.staged(output) as (staged,):
        files.make_directory(staged, output)
        target.write(checkpoint, staged, *(
            [dtype] if target is huggingface else
            [optimizer_state] if target is release else ()))
        if checkpoint.kept_settings and target not in (keras_hub, sentence_transformers):
            text_files.write_json(os.path.join(staged, TASK_FILE),
                                  checkpoint.kept_settings, ensure_ascii=False)
        threshold = os.path.join(
            os.path.dirname(checkpoint.source), NULL_THRESHOLD_FILE)
        if files.exists(threshold) and any(
                head_of(head).task == "answer" for head in checkpoint.heads):
            files.copy(threshold, os.path.join(staged, NULL_THRESHOLD_FILE))
        files.write(os.path.join(staged, model_card.FILE), model_card.text(
            checkpoint, format, os.path.basename(os.path.normpath(output)),
            input).encode())
    return checkpoint.report
