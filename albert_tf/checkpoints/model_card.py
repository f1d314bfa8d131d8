"""The model card (README.md) of a converted model: YAML that the hubs read, and text. It
only repeats facts that the source's folder holds.
"""

import json
import math
import os
import re

from albert_tf import files
from albert_tf.checkpoints import hub
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.folders import NULL_THRESHOLD
from albert_tf.checkpoints.vocabulary import settings_in

FILE = "README.md"
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


def _carried(checkpoint: Checkpoint) -> str:
    """Returns the lines that are copied from the YAML of the source's card."""
    path = os.path.join(os.path.dirname(checkpoint.source), FILE)
    if not files.exists(path):
        return ""
    with files.open_binary(path) as stream:
        content = stream.read().decode("utf-8", "replace").replace("\r\n", "\n")
    match = re.match(r"---\n(.*?\n)---\n", content, re.DOTALL)
    return "".join(_CARRIED.findall(match[1])) if match else ""


def _scores(checkpoint: Checkpoint, name: str, pipeline: str) -> list[str]:
    """Returns YAML with the scores in eval_results.json beside a run's checkpoint; none
    if they are of another step or their head is not in the folder."""
    task = checkpoint.settings.get("task")
    path = os.path.join(os.path.dirname(checkpoint.source), "eval_results.json")
    results = settings_in(path) or {}
    if not task or pipeline not in _PIPELINES.values() or (
            results.get("step") != checkpoint.step):
        return []
    # YAML takes JSON, but reads 1e-05 as a string.
    scores = [{"type": metric, "value": round(value, 4)}
              for metric, value in sorted(results.items())
              if type(value) in (int, float) and math.isfinite(value)
              and metric not in ("step", "loss", NULL_THRESHOLD)]
    return [f"metrics: {json.dumps([score['type'] for score in scores])}",
            "model-index: " + json.dumps([{"name": name, "results": [{
                "task": {"type": pipeline}, "dataset": {"name": task, "type": task},
                "metrics": scores}]}], ensure_ascii=False)]


def text(checkpoint: Checkpoint, format: str, name: str, source: str = "") -> str:
    """Returns the whole file; `source` is the path that the user gave."""
    config, report, carried = checkpoint.config, checkpoint.report, _carried(checkpoint)
    pipeline = next((
        name for head, name in _PIPELINES.items() if head in checkpoint.heads),
        "sentence-similarity" if format == "sentence_transformers" else
        "feature-extraction")
    lines = [
        f'---\n{carried}library_name: "{_LIBRARY[format]}"',
        f'pipeline_tag: "{pipeline}"', 'tags:\n  - "albert"']
    if source.startswith(hub.HUGGING_FACE) and "base_model:" not in carried:
        base = source.removeprefix(hub.HUGGING_FACE).partition("@")[0]
        lines += [f"base_model: {json.dumps(base, ensure_ascii=False)}"]
    lines += [
        *_scores(checkpoint, name, pipeline), "---", "",
        f"# {name}", "",
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
        lines += ["Not converted:", ""]
        lines += [f"- {why}: {', '.join(f'`{name}`' for name in names[:8])}"
                  + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                  for why, names in report.by_reason().items()]
        lines += [f"- `{name}`: missing from the source" for name in report.missing]
        lines += [f"- {note}" for note in report.notes]
        lines.append("")
    return "\n".join(lines)
