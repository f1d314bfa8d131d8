"""The summaries that create_pretraining_data.py leaves beside its records.

What they tell is optional: records without one, such as the release's, are as good.
"""

import glob
import os
from typing import Any, Iterable, NamedTuple, Optional

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

_PATTERN = "summary-*.json"


class RecordSummary(NamedTuple):
    """A summary that tells of record files.

    Attributes:
      path: where it lies.
      content: the JSON object.
      records: those of the record files asked for that it tells of, not empty.
    """

    path: str
    content: dict[str, Any]
    records: list[str]

    def get(self, *keys: str) -> Optional[Any]:
        """The value at a path of keys, or None."""
        return _get(self.content, *keys)


def summaries_of(paths: Iterable[str]) -> list[RecordSummary]:
    """The summaries that tell of record files; damaged ones are left out, aloud."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(path)
    summaries = []
    for folder, inside in folders.items():
        for path in _found(folder):
            content = _read(path)
            outputs = _get(content, "settings", "output_files")
            names = {os.path.basename(str(output)) for output in outputs or ()}
            records = [record for record in inside if os.path.basename(record) in names]
            if records:
                summaries.append(RecordSummary(path, content, records))
    return summaries


def _found(folder: str) -> list[str]:
    plain = folder if files.is_remote(folder) else glob.escape(folder)
    try:
        return files.expand_patterns([os.path.join(plain, _PATTERN)], "summaries")
    except InputError:
        return []


def _read(path: str) -> Any:
    try:
        return files.read_json(path)
    except InputError as error:
        logging.warning("%s is left out: %s", path, error)
        return None


def _get(content: Any, *keys: str) -> Optional[Any]:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def sentence_objective(
        summaries: Iterable[RecordSummary], given: Optional[str] = None) -> str:
    """What the label of records tells: "order", "next" or "none".

    The paper compares models trained on each (Table 5).

    Args:
      summaries: those beside the records.
      given: what the user says, if anything.

    Returns:
      `given`, else what the summaries tell, else "order".

    Raises:
      InputError: if a summary tells another than `given` or another summary; names
        both.
    """
    known, source = given, f"--sentence_objective={given}"
    for summary in summaries:
        instances = summary.get("settings", "instances")
        if not isinstance(instances, dict):
            continue
        # Older summaries know two objectives.
        told = instances.get("sentence_objective") or (
            "next" if instances.get("random_next_sentence") else "order")
        if known is None:
            known, source = told, f"{summary.records[0]} with {told}"
        elif told != known:
            raise InputError(
                f"{summary.records[0]} was made with the sentence objective {told}, as "
                f"{summary.path} says, but {source}"
                + (f" is given; give --sentence_objective={told}, or other records."
                   if given else "; train and evaluate on records of one objective."))
    return known or "order"
