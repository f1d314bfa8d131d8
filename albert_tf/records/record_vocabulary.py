"""Which vocabulary records were made with, and whether it is of the model's size."""

from typing import Any, Iterable, Optional

from albert_tf.errors import InputError
from albert_tf.records.record_summaries import RecordSummary


def check_vocabulary(
        summaries: Iterable[RecordSummary], vocab_size: int
) -> Optional[dict[str, Any]]:
    """Compares the vocabulary that records were made with to the model's.

    Records without a summary, such as the release's, pass: ids out of range show when
    they are read.

    Args:
      summaries: those beside the records.
      vocab_size: of the model's config.

    Returns:
      `file`, `sha256`, `size` and, where it is told, `special_ids` of the
      vocabulary, or None where no summary tells.

    Raises:
      InputError: if a summary tells another size, or two tell vocabularies of other
        content; names both and the files.
    """
    known, known_from = None, ""
    for summary in summaries:
        first = summary.records[0]
        size = summary.get("vocabulary", "size")
        if isinstance(size, int) and size != vocab_size:
            raise InputError(
                f"{first} was made with a vocabulary of {size} pieces, as "
                f"{summary.path} says, but the config's vocab_size is {vocab_size}; "
                f"set it to {size} (--config_overrides=vocab_size={size}), or make the "
                "records with the model's vocabulary.")
        digest = summary.get("vocabulary", "sha256")
        if not isinstance(digest, str):
            continue
        if known and known["sha256"] != digest:
            raise InputError(
                f"{known_from} and {first} were made with vocabularies of different "
                "content, as the summaries beside them say; make them with one.")
        special_ids = summary.get("vocabulary", "special_ids") or (
            known or {}).get("special_ids")
        known_from, known = first, {
            "file": str(summary.get("vocabulary", "file")), "sha256": digest,
            "size": vocab_size,
            **({"special_ids": special_ids} if special_ids else {})}
    return known
