"""Checks records before a long run, without TensorFlow.

Every file is scanned, and its first records are checked: whether they fit the
specification, are masked, and have the special ids. The summaries that
create_pretraining_data.py writes beside its records name the vocabulary and the
sentence objective. Records without a summary, such as those from the original
implementation, are accepted; ids that are out of range are reported when they are read.
"""

import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import itertools
import os
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import FileInfo, read_records, scan

_THREADS = 8
# A short sequence may have no mask, if its words are longer than its budget. If this
# many have none, nothing was masked.
_FIRST_RECORDS = 20
_SUMMARIES = "summary-*.json"


def _first_records(
        path: str, spec: FeatureSpec, count: Optional[int]) -> Iterator[dict]:
    with contextlib.closing(read_records(path)) as records:
        for number, record in enumerate(itertools.islice(records, count), 1):
            arrays = spec.parse_numpy(record, f"{path}, record {number}")
            if "input_mask" in arrays and not arrays["input_mask"].any():
                raise InputError(f"{path}, record {number}: input_mask is 0 everywhere, "
                                 "so that the sequence has no token; write 1 for each "
                                 "token.")
            yield arrays


def check_files(paths: Iterable[str], spec: FeatureSpec) -> list[FileInfo]:
    """Scans files and parses the first record of each; returns a FileInfo per path.

    Raises InputError for a damaged file or a record that does not fit `spec`.
    """
    def check(path):
        # The first record shows at once if a file is of the wrong kind.
        list(_first_records(path, spec, 1))
        return scan(path)

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(check, paths))


def explain_read_error(
        paths: Sequence[str], spec: FeatureSpec, error: Exception
) -> InputError | None:
    """Returns the error that names file and record for one that tf.data raised, whose
    message names no file; to be raised `from error`.

    Reads `paths` up to the first record that is damaged or does not fit `spec`. Returns
    None if `error` is not about reading records, or if all files can be read now.
    TensorFlow raises a UnicodeDecodeError instead of a tf.errors.OpError if its message
    quotes the bytes of a record that is not an example.
    """
    import tensorflow as tf

    # InvalidArgumentError has many other causes; parse_example uses one of these texts.
    parsing = (isinstance(error, tf.errors.InvalidArgumentError) and any(
        sign in str(error) for sign in ("Key: ", "Feature: ", "parse example")))
    if not parsing and not isinstance(error, (
            tf.errors.DataLossError, tf.errors.NotFoundError, UnicodeDecodeError)):
        return None
    for path in paths:
        try:
            for _ in _first_records(path, spec, None):
                continue
        except InputError as found:
            return found
    return None


# ---- masked, or to be masked during training ---------------------------------


def unmasked_spec(spec: FeatureSpec) -> FeatureSpec:
    """Changes a pretraining_spec for records that are masked during training.

    token_boundary is read too, because it shows where words start. The prediction slots
    are empty and not read, and their number may differ.
    """
    def change(feature):
        if feature.name == "token_boundary":
            return dataclasses.replace(feature, parsed=True, limit=2)
        if feature.name.startswith("masked_lm_"):
            return dataclasses.replace(feature, shape=(None,), parsed=False)
        return feature

    return FeatureSpec(tuple(change(feature) for feature in spec.features))


def are_masked(paths: Sequence[str], spec: FeatureSpec) -> list[bool]:
    """Returns for each file whether its first records are masked."""
    def is_masked(path):
        return any(record["masked_lm_weights"].any()
                   for record in _first_records(path, spec, _FIRST_RECORDS)
                   if "masked_lm_weights" in record)

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(is_masked, paths))


def check_masks(paths: Sequence[str], spec: FeatureSpec, drawn_by: str = "") -> None:
    """Raises InputError unless records are masked, or unmasked if `drawn_by` is a flag
    by which training draws what to predict."""
    for path, masked in zip(paths, are_masked(paths, spec)):
        if masked and drawn_by:
            raise InputError(
                f"{path}: the records are masked already; leave out {drawn_by}, or "
                "create the records with --masked_lm_prob=0.")
        if not masked and not drawn_by:
            raise InputError(
                f"{path}: the records are not masked, so there is nothing to "
                "predict; give --dynamic_masking, or create the records with "
                "--masked_lm_prob above 0.")


def special_ids(
        paths: Sequence[str], spec: FeatureSpec, vocab_size: int,
        summary: Optional[Mapping[str, Any]],
        given: Mapping[str, Optional[int]],
        drawn_by: str = "--dynamic_masking") -> dict[str, int]:
    """Returns ids by name (cls, sep, mask), from flags or from the records' summary.

    Raises InputError unless they are below `vocab_size`, differ, and are those of [CLS]
    and [SEP] in the first record of each file. `summary` is the `special_ids` from
    `check_vocabulary`, `given` the values of the flags cls_id, sep_id and mask_id, or
    None, and `drawn_by` the flag that needs the ids.
    """
    ids = {name: given[f"{name}_id"] if given[f"{name}_id"] is not None
           else (summary or {}).get(name) for name in ("cls", "sep", "mask")}
    missing = [f"--{name}_id" for name, value in ids.items() if value is None]
    if missing:
        raise InputError(
            f"{drawn_by} needs {', '.join(missing)}, because no summary beside {paths[0]} "
            "gives the ids of [CLS], [SEP] and [MASK]; give 2, 3 and 4 for the released "
            "SentencePiece vocabularies, or the tokens' line numbers minus 1 for a "
            "WordPiece vocabulary.")
    for name, value in ids.items():
        if not (isinstance(value, int) and 0 <= value < vocab_size):
            raise InputError(
                f"--{name}_id is {value}, which is not in 0..{vocab_size - 1}, because "
                f"vocab_size is {vocab_size}; give an id from the model's vocabulary.")
    if len(set(ids.values())) < len(ids):
        raise InputError("--cls_id, --sep_id and --mask_id are {cls}, {sep} and {mask};"
                         " they must differ, so give three different ids."
                         .format(**ids))
    for path in paths:
        [arrays] = _first_records(path, spec, 1)
        sequence = arrays["input_ids"][arrays["input_mask"] > 0]
        for at, where, name in ((0, "begins", "cls"), (-1, "ends", "sep")):
            if len(sequence) and sequence[at] != ids[name]:
                raise InputError(
                    f"{path}, record 1: the sequence {where} with id {sequence[at]}, "
                    f"but --{name}_id is {ids[name]}; give the ids of the vocabulary "
                    "that the records were made with.")
    return ids


# ---- the summaries beside the records ----------------------------------------


class RecordSummary(NamedTuple):
    """A summary that describes record files."""

    path: str
    content: dict[str, Any]
    records: list[str]  # the requested record files that it describes, not empty

    def get(self, *keys: str) -> Optional[Any]:
        """Returns the value at a path of keys, or None."""
        return _get(self.content, *keys)


def summaries_of(paths: Iterable[str]) -> list[RecordSummary]:
    """Reads the summaries of record files; skips damaged ones with a warning."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(path)
    summaries = []
    for folder, inside in folders.items():
        # The original implementation, for example, writes no summary.
        for name in fnmatch.filter(files.names_in(folder or "."), _SUMMARIES):
            path = os.path.join(folder, name)
            try:
                content = text_files.read_json(path)
            except InputError as error:
                logging.warning("%s is ignored: %s", path, error)
                continue
            outputs = _get(content, "settings", "output_files")
            names = {os.path.basename(str(output)) for output in outputs or ()}
            records = [record for record in inside if os.path.basename(record) in names]
            if records:
                summaries.append(RecordSummary(path, content, records))
    return summaries


def _get(content: Any, *keys: str) -> Optional[Any]:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def sentence_objective(
        summaries: Iterable[RecordSummary], given: Optional[str] = None) -> str:
    """Returns the meaning of the records' label: "order", "next" or "none".

    The paper compares models trained on each (table 5). The meaning is `given` by the
    user, else taken from the summaries, else "order". Raises InputError if they differ.
    """
    known, source = given, f"--sentence_objective={given}"
    for summary in summaries:
        instances = summary.get("settings", "instances")
        if not isinstance(instances, dict):
            continue
        # Older summaries have a flag for two objectives.
        stated = instances.get("sentence_objective") or (
            "next" if instances.get("random_next_sentence") else "order")
        if known is None:
            known, source = stated, f"{summary.records[0]} with {stated}"
        elif stated != known:
            raise InputError(
                f"{summary.records[0]} was made with the sentence objective {stated}, "
                f"as {summary.path} says, but {source}"
                + (f" is given; give --sentence_objective={stated} or other records."
                   if given else "; use records with the same objective."))
    return known or "order"


# What the summary says of the tokenizer and its file, besides its identity.
_TOKENIZER = ("kind", "do_lower_case", "path")


def check_vocabulary(
        summaries: Iterable[RecordSummary], vocab_size: int
) -> Optional[dict[str, Any]]:
    """Compares the vocabularies that records were made with to the model's.

    Returns their `file`, `sha256`, `size` and, if known, `special_ids`, or None if no
    summary names a vocabulary. Raises InputError if vocabularies differ.
    """
    known, known_from = None, ""
    for summary in summaries:
        first = summary.records[0]
        size = summary.get("vocabulary", "size")
        if isinstance(size, int) and size != vocab_size:
            raise InputError(
                f"{first} was made with a vocabulary of {size} tokens, as "
                f"{summary.path} says, but the config's vocab_size is {vocab_size}; "
                f"set it to {size} (--config_overrides=vocab_size={size}), or make the "
                "records with the model's vocabulary.")
        digest = summary.get("vocabulary", "sha256")
        if not isinstance(digest, str):
            continue
        if known and known["sha256"] != digest:
            raise InputError(
                f"{known_from} and {first} were made with vocabularies of different "
                "content, as the summaries beside them say; make them with the same "
                "vocabulary.")
        strips = summary.get("vocabulary", "strip_accents") is not False
        rules = summary.get("vocabulary", "rules") or {}
        if known and known.get("strip_accents", True) != strips:
            raise InputError(
                f"{known_from} and {first} differ in --strip_accents, as the summaries "
                "beside them say; make them with the same value.")
        if known and known.get("rules", {}) != rules:
            raise InputError(
                f"{known_from} and {first} were made with tokenizers that clean text "
                "differently, as the summaries beside them say; make them with the same "
                "tokenizer.")
        special = summary.get("vocabulary", "special_ids") or (
            known or {}).get("special_ids")
        known_from, known = first, {
            "file": os.path.basename(str(summary.get("vocabulary", "file"))),
            "sha256": digest, "size": vocab_size,
            **{name: value for name in _TOKENIZER
               if (value := summary.get("vocabulary", name)) is not None},
            **({"special_ids": special} if special else {}),
            **({} if strips else {"strip_accents": False}),
            **({"rules": rules} if rules else {})}
    return known
