"""Which vocabulary records were made with, and whether it is of the model's size."""

import glob
import json
import os
from typing import Any, Iterable, Optional

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

# create_pretraining_data.py writes it beside its first output.
_SUMMARIES = "summary-*.json"


def check_vocabulary(paths: Iterable[str], vocab_size: int) -> Optional[dict[str, Any]]:
    """Compares the vocabulary that records were made with to the model's.

    It is named in the summary that create_pretraining_data.py leaves beside its
    outputs. Records without one, such as the release's, pass: ids out of range
    show when they are read.

    Args:
      paths: record files.
      vocab_size: of the model's config.

    Returns:
      `file`, `sha256` and `size` of the vocabulary, or None where no summary tells.

    Raises:
      InputError: if a summary tells another size, or two tell vocabularies of other
        content; names both and the files.
    """
    known, known_from = None, ""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, inside in folders.items():
        for summary_path in _summaries(folder):
            summary = _read(summary_path)
            made = [path for path in inside if os.path.basename(path) in _outputs(summary)]
            size = _get(summary, "vocabulary", "size")
            if made and isinstance(size, int) and size != vocab_size:
                raise InputError(
                    f"{made[0]} was made with a vocabulary of {size} pieces, as "
                    f"{summary_path} says, but the config's vocab_size is "
                    f"{vocab_size}; set it to {size} (--config_overrides="
                    f"vocab_size={size}), or make the records with the model's "
                    "vocabulary.")
            digest = _get(summary, "vocabulary", "sha256")
            if not (made and isinstance(digest, str)):
                continue
            if known and known["sha256"] != digest:
                raise InputError(
                    f"{known_from} and {made[0]} were made with vocabularies of "
                    "different content, as the summaries beside them say; make them "
                    "with one.")
            known_from, known = made[0], {
                "file": str(_get(summary, "vocabulary", "file")), "sha256": digest,
                "size": vocab_size}
    return known


def _summaries(folder: str) -> list[str]:
    plain = folder if files.is_remote(folder) else glob.escape(folder)
    try:
        return files.expand_patterns([os.path.join(plain, _SUMMARIES)], "summaries")
    except InputError:
        return []


def _read(path: str) -> Any:
    try:
        return json.loads("\n".join(line for _, line in files.read_lines(path)))
    except (json.JSONDecodeError, InputError) as error:
        logging.warning("%s is left out: %s", path, error)
        return None


def _get(summary: Any, *keys: str) -> Optional[Any]:
    for key in keys:
        summary = summary.get(key) if isinstance(summary, dict) else None
    return summary


def _outputs(summary: Any) -> set[str]:
    """Names of the record files that a summary tells of."""
    outputs = _get(summary, "settings", "output_files")
    return {os.path.basename(str(path)) for path in outputs or ()}
