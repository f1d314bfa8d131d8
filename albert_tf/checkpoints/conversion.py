"""Converts models from one format to another, with heads, labels and tokenizer, and
writes the model card (README.md), which only repeats facts that the source's folder holds.
"""

import dataclasses
import json
import math
import os
import re
from typing import Sequence

from albert_tf import files, text_files
from albert_tf.checkpoints import (
    formats, huggingface, keras_hub, release, sentence_transformers, tf_models)
from albert_tf.checkpoints.checkpoint import (
    TYPES, Checkpoint, Report, finite, head_of, without_heads)
from albert_tf.checkpoints.folders import NULL_THRESHOLD, NULL_THRESHOLD_FILE
from albert_tf.checkpoints.labels import relabelled
from albert_tf.checkpoints.vocabulary import TASK_FILE, settings_in
from albert_tf.config import refuse
from albert_tf.errors import InputError
from albert_tf.files import StrPath

FORMATS = {module.NAME: module for module in (
    release, huggingface, keras_hub, tf_models, sentence_transformers)}
_CARD = "README.md"
# Entries of the source's card that are also true of the converted model.
_CARRIED = re.compile(r"^(?:license|license_name|license_link|language|base_model|"
                      r"datasets):.*\n(?:[ -].*\n)*", re.MULTILINE)
_LIBRARY = {"hf": "transformers", "keras_hub": "keras-hub", "tf_models": "tf-keras",
            "tf1": "tensorflow", "sentence_transformers": "sentence-transformers"}
# Head → the hub's name of its task.
_PIPELINES = {"classification": "text-classification",
              "token_classification": "token-classification",
              "multiple_choice": "multiple-choice", "spans": "question-answering",
              "conditional_spans": "question-answering", "masked_lm": "fill-mask"}


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
    files.check_new(output, "--output")
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
        threshold = os.path.join(os.path.dirname(checkpoint.source), NULL_THRESHOLD_FILE)
        if files.exists(threshold) and "answer" in (
                head_of(head).task for head in checkpoint.heads):
            files.copy(threshold, os.path.join(staged, NULL_THRESHOLD_FILE))
        name = os.path.basename(os.path.normpath(output))
        files.write(os.path.join(staged, _CARD),
                    card(checkpoint, format, name, input).encode())
    return checkpoint.report


# ---- the model card ---------------------------------------------------------


def card(checkpoint: Checkpoint, format: str, name: str, source: str = "") -> str:
    """Returns the text of a model card; `source` is the path that the user gave."""
    config, report, carried = checkpoint.config, checkpoint.report, ""
    path, results = (os.path.join(os.path.dirname(checkpoint.source), each)
                     for each in (_CARD, "eval_results.json"))
    if files.exists(path):
        with files.open_binary(path) as stream:
            content = stream.read().decode("utf-8", "replace").replace("\r\n", "\n")
        if match := re.match(r"---\n(.*?\n)---\n", content, re.DOTALL):
            carried = "".join(_CARRIED.findall(match[1]))
    pipeline = next((
        name for head, name in _PIPELINES.items() if head in checkpoint.heads),
        "sentence-similarity" if format == "sentence_transformers" else
        "feature-extraction")
    lines = [f'---\n{carried}library_name: "{_LIBRARY[format]}"',
             f'pipeline_tag: "{pipeline}"', 'tags:\n  - "albert"']
    if source.startswith(formats.HUGGING_FACE) and "base_model:" not in carried:
        base = source.removeprefix(formats.HUGGING_FACE).partition("@")[0]
        lines += [f"base_model: {json.dumps(base, ensure_ascii=False)}"]
    task, stored = checkpoint.settings.get("task"), settings_in(results) or {}
    # Scores of another step, or of a head that is left out, are not the model's.
    if task and pipeline in _PIPELINES.values() and stored.get("step") == checkpoint.step:
        # YAML takes JSON, but reads 1e-05 as a string.
        scores = [{"type": metric, "value": round(value, 4)}
                  for metric, value in sorted(stored.items())
                  if type(value) in (int, float) and math.isfinite(value)
                  and metric not in ("step", "loss", NULL_THRESHOLD)]
        lines += [f"metrics: {json.dumps([score['type'] for score in scores])}",
                  "model-index: " + json.dumps([{"name": name, "results": [{
                      "task": {"type": pipeline}, "dataset": {"name": task, "type": task},
                      "metrics": scores}]}], ensure_ascii=False)]
    lines += [
        "---", "", f"# {name}", "",
        f"An ALBERT of {config.num_hidden_layers} layers, hidden size "
        f"{config.hidden_size}, vocabulary of {config.vocab_size} tokens, converted by "
        f"albert_tf from {checkpoint.format} to {format}.", ""]
    if checkpoint.labels:
        lines += ["Labels: " + ", ".join(
            " ".join(label.split()) for label in checkpoint.labels), ""]
    if checkpoint.vocabulary and not checkpoint.vocabulary.word_piece:
        if format == "keras_hub":
            lines += ["keras-hub's tokenizer neither lower-cases nor removes accents. "
                      "Clean text first, for example with "
                      "`albert_tf.tokenization.cleaning.preprocess_text`.", ""]
        elif format in ("hf", "sentence_transformers"):
            lines += ["`tokenizer.json` divides text as Google's original "
                      "implementation does, except for a piece that ends in a digit "
                      "and a comma inside a number: the original splits it again.", ""]
    if report.dropped or report.missing or report.notes:
        lines += ["Not converted:", "", *(
            f"- {why}: {', '.join(f'`{name}`' for name in names[:8])}"
            + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            for why, names in report.by_reason().items()), *(
                f"- `{name}`: missing from the source" for name in report.missing), *(
                    f"- {note}" for note in report.notes), ""]
    return "\n".join(lines)
