"""Checks records before a long run, without TensorFlow.

Every file is scanned, and its first records are checked: whether they fit the
specification, are masked, and have the special ids. The summaries that
create_pretraining_data.py writes beside its records name the vocabulary and the
sentence objective. Records without a summary, such as those from the original
implementation, are accepted; ids that are out of range are reported when they are read.
"""

import collections
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
            yield spec.parse_numpy(record, f"{path}, record {number}")


def check_files(paths: Iterable[str], spec: FeatureSpec) -> list[FileInfo]:
    """Scans files and parses the first record of each; returns a FileInfo per path."""
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
    if parsing or isinstance(error, (
            tf.errors.DataLossError, tf.errors.NotFoundError, UnicodeDecodeError)):
        try:
            for path in paths:
                collections.deque(_first_records(path, spec, None), maxlen=0)
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
    return [any(record["masked_lm_weights"].any()
                for record in _first_records(path, spec, _FIRST_RECORDS)
                if "masked_lm_weights" in record) for path in paths]


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

    Compares them with the first record of each file. `summary` is the `special_ids`
    from `check_vocabulary`, `given` the values of the flags cls_id, sep_id and mask_id,
    or None, and `drawn_by` the flag that needs the ids.
    """
    ids = {name: (summary or {}).get(name) if (value := given[f"{name}_id"]) is None
           else value for name in ("cls", "sep", "mask")}
    if len(set(ids.values())) < 3 or not all(
            isinstance(id_, int) and 0 <= id_ < vocab_size for id_ in ids.values()):
        raise InputError(
            f"{drawn_by} needs three different ids below vocab_size {vocab_size}, but "
            "--cls_id, --sep_id and --mask_id (by default from the summary beside "
            f"{paths[0]}) are {', '.join(map(str, ids.values()))}; give 2, 3 and 4 "
            "for the released SentencePiece vocabularies, or the tokens' line numbers "
            "minus 1 for a WordPiece vocabulary.")
    for path in paths:
        [arrays] = _first_records(path, spec, 1)
        sequence = arrays["input_ids"][arrays["input_mask"] > 0]
        for name, id_ in zip(("cls", "sep"), sequence[[0, -1]] if len(sequence) else ()):
            if id_ != ids[name]:
                raise InputError(
                    f"{path}, record 1: the sequence has the id {id_} for [{name.upper()}]"
                    f", but --{name}_id is {ids[name]}; give the ids of the vocabulary "
                    "that the records were made with.")
    return ids


# ---- the summaries beside the records ----------------------------------------


class RecordSummary(NamedTuple):
    """A summary that describes record files."""

    path: str
    settings: dict[str, Any]
    vocabulary: dict[str, Any]
    records: list[str]  # the requested record files that it describes, not empty


def summaries_of(paths: Sequence[str]) -> list[RecordSummary]:
    """Reads the summaries of record files; skips others with a warning."""
    summaries = []
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        # The original implementation, for example, writes no summary.
        for name in fnmatch.filter(files.names_in(folder or "."), _SUMMARIES):
            path = os.path.join(folder, name)
            try:
                content = text_files.read_object(path)
                settings, vocabulary = content["settings"], content["vocabulary"]
                names = set(map(os.path.basename, settings["output_files"]))
            except (InputError, KeyError, TypeError) as error:
                logging.warning("%s is ignored: %s", path, error)
                continue
            records = [record for record in paths if os.path.dirname(record) == folder
                       and os.path.basename(record) in names]
            if records:
                summaries.append(RecordSummary(path, settings, vocabulary, records))
    return summaries


def sentence_objective(
        summaries: Iterable[RecordSummary], given: Optional[str] = None) -> str:
    """Returns the meaning of the records' label: "order", "next" or "none".

    The paper compares models trained on each (table 5). The meaning is `given` by the
    user, else taken from the summaries, else "order".
    """
    known, source = given, "--sentence_objective"
    for summary in summaries:
        stated = summary.settings.get("instances", {}).get("sentence_objective")
        if stated and known and stated != known:
            raise InputError(
                f"{summary.records[0]} was made with the sentence objective {stated}, "
                f"as {summary.path} says, but {source} says {known}; use records with "
                "the same objective"
                + (f", or give --sentence_objective={stated}." if given else "."))
        if not known:
            known, source = stated, summary.path
    return known or "order"


# What is kept of a vocabulary, and what of it must be equal in all summaries, with the
# value that they leave out.
_KEPT = ("file", "sha256", "size", "kind", "do_lower_case", "path", "special_ids",
         "strip_accents", "rules")
_EQUAL = {"sha256": None, "strip_accents": True, "rules": {}}


def check_vocabulary(
        summaries: Iterable[RecordSummary], vocab_size: int
) -> Optional[dict[str, Any]]:
    """Compares the vocabularies that records were made with to the model's.

    Returns their `file`, `sha256`, `size` and, if known, `special_ids`, or None if no
    summary names a vocabulary.
    """
    known: dict[str, Any] = {}
    known_from = ""
    for summary in summaries:
        first, size = summary.records[0], summary.vocabulary.get("size")
        if isinstance(size, int) and size != vocab_size:
            raise InputError(
                f"{first} was made with a vocabulary of {size} tokens, as "
                f"{summary.path} says, but the config's vocab_size is {vocab_size}; "
                f"set it to {size} (--config_overrides=vocab_size={size}), or make the "
                "records with the model's vocabulary.")
        if not summary.vocabulary.get("sha256"):
            continue
        vocabulary = {name: value for name in _KEPT
                      if (value := summary.vocabulary.get(name)) is not None}
        vocabulary["file"] = os.path.basename(str(vocabulary.get("file")))
        for name, default in _EQUAL.items():
            if known and known.get(name, default) != vocabulary.get(name, default):
                raise InputError(
                    f"{known_from} and {first} were made with different vocabularies "
                    f"or flags: the summaries beside them differ in {name}; make them "
                    "with the same ones.")
        known, known_from = {**known, **vocabulary, "size": vocab_size}, first
    return known or None
