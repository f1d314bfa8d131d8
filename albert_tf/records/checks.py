"""Checks records before a long run.

Every file is scanned, and its first records are checked: whether they fit the
specification, are masked, and have the special ids. The summaries that
create_pretraining_data.py writes beside its records name the vocabulary and the
sentence objective; the original implementation writes none.
"""

import collections
import concurrent.futures
import dataclasses
import fnmatch
import itertools
import os
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import FileInfo, read_records, scan

_FIRST_RECORDS = 20  # One may have no mask, if its words are longer than its budget.


def _first_records(
        path: str, spec: FeatureSpec, count: Optional[int]) -> Iterator[dict]:
    for number, record in enumerate(itertools.islice(read_records(path), count), 1):
        yield spec.parse_numpy(record, f"{path}, record {number}")


def check_files(paths: Iterable[str], spec: FeatureSpec) -> list[FileInfo]:
    """Scans files and parses the first record of each; returns a FileInfo per path."""
    def check(path):
        # The first record shows at once if a file is of the wrong kind.
        list(_first_records(path, spec, 1))
        return scan(path)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(check, paths))


def explain_read_error(
        paths: Sequence[str], spec: FeatureSpec, error: Exception
) -> InputError | None:
    """Returns the error that names file and record for one that tf.data raised, to be
    raised `from error`; None if that is not about reading records, or if all of `paths`
    can be read now."""
    import tensorflow as tf

    # InvalidArgumentError has many other causes; parse_example uses one of these texts.
    # The error is a UnicodeDecodeError if it would quote a record that is no example.
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
    """Changes a pretraining_spec for records that are masked during training, for which
    token_boundary shows where words start. Their prediction slots, which are empty, are
    not read, and their number may differ."""
    return FeatureSpec(tuple(dataclasses.replace(feature, **(
        {"parsed": True, "limit": 2} if feature.name == "token_boundary" else
        {"parsed": False, "shape": (None,)} if feature.name.startswith("masked_lm_") else
        {})) for feature in spec.features))


def are_masked(paths: Sequence[str], spec: FeatureSpec) -> list[bool]:
    """Returns for each file whether its first records are masked."""
    return [any(record["masked_lm_weights"].any()
                for record in _first_records(path, spec, _FIRST_RECORDS)
                if "masked_lm_weights" in record) for path in paths]


def check_masks(paths: Sequence[str], spec: FeatureSpec, drawn_by: str = "") -> None:
    """Refuses records that are not masked, or are if `drawn_by` is a flag by which
    training draws what to predict."""
    for path, masked in zip(paths, are_masked(paths, spec)):
        if masked == bool(drawn_by):
            raise InputError(f"{path}: the records are " + (
                f"masked already; leave out {drawn_by}, or create them with "
                "--masked_lm_prob=0." if masked else
                "not masked, so there is nothing to predict; give --dynamic_masking, or "
                "create them with --masked_lm_prob above 0."))


def special_ids(
        paths: Sequence[str], spec: FeatureSpec, vocab_size: int,
        summary: Optional[Mapping[str, Any]], given: Mapping[str, Optional[int]],
        drawn_by: str = "--dynamic_masking") -> dict[str, int]:
    """Returns ids by name (cls, sep, mask), and compares them with the first record of
    each file. `summary` is the `special_ids` from `check_vocabulary`, `given` the values
    of the flags cls_id, sep_id and mask_id, or None, and `drawn_by` the flag that needs
    the ids."""
    ids = {name: (summary or {}).get(name) if (value := given[f"{name}_id"]) is None
           else value for name in ("cls", "sep", "mask")}
    if len({id_ for id_ in ids.values() if id_ in range(vocab_size)}) < 3:
        raise InputError(
            f"{drawn_by} needs three different ids below vocab_size {vocab_size}, but "
            "--cls_id, --sep_id and --mask_id (by default from the summary beside "
            f"{paths[0]}) are {', '.join(map(str, ids.values()))}; give those of the "
            "vocabulary, such as 2, 3 and 4 of the released SentencePiece models.")
    for path in paths:
        [arrays] = _first_records(path, spec, 1)
        sequence = arrays["input_ids"][arrays["input_mask"] > 0]
        for name, id_ in zip(("cls", "sep"), sequence[[0, -1]] if len(sequence) else ()):
            if id_ != ids[name]:
                raise InputError(
                    f"{path}, record 1: the sequence has the id {id_} for [{name.upper()}]"
                    f", but --{name}_id is {ids[name]}; give the ids of its vocabulary.")
    return ids


# ---- the summaries beside the records ----------------------------------------


def summaries_of(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Reads the summaries of record files, with a `path`; skips others with a warning."""
    summaries, places = [], {*map(os.path.split, paths)}
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        for name in fnmatch.filter(files.names_in(folder or "."), "summary-*.json"):
            path = os.path.join(folder, name)
            try:
                summary = {**text_files.read_object(path), "path": path}
                vocabulary = summary["vocabulary"]
                vocabulary["size"] = int(vocabulary["size"])
                vocabulary["file"] = os.path.basename(str(vocabulary.get("file")))
                # The files may have been moved together.
                if any((folder, os.path.basename(output)) in places
                       for output in summary["settings"]["output_files"]):
                    summaries.append(summary)
            except (ValueError, KeyError, TypeError) as error:
                logging.warning("%s is ignored: %s", path, error)
    return summaries


def sentence_objective(
        summaries: Iterable[Mapping[str, Any]], given: Optional[str] = None) -> str:
    """Returns the meaning of the records' label, "order", "next" or "none": `given` by
    the user, else by the summaries, else "order"."""
    stated = {"--sentence_objective": given, **{
        each["path"]: each["settings"].get("instances", {}).get("sentence_objective")
        for each in summaries}}
    if len({*stated.values()} - {None}) > 1:
        raise InputError("The records differ in the sentence objective: " + ", ".join(
            f"{source} says {value}" for source, value in stated.items() if value) + "; use "
            "records with the same objective, or give theirs.")
    return next(filter(None, stated.values()), "order")


def check_vocabulary(summaries: Iterable[Mapping[str, Any]], vocab_size: int
                     ) -> Optional[dict[str, Any]]:
    """Compares the vocabularies of records with each other and with the model's; returns
    what the summaries say of it, or None if they name none."""
    known: dict[str, Any] = {}
    for summary in summaries:
        path, vocabulary = summary["path"], summary["vocabulary"]
        if vocabulary["size"] != vocab_size:
            raise InputError(
                f"{path}: the records were made with a vocabulary of {vocabulary['size']} "
                f"tokens, but the config's vocab_size is {vocab_size}; give --config_"
                f"overrides=vocab_size={vocabulary['size']}, or make the records again.")
        # What must be equal, with the value that summaries leave out.
        for name, default in ("sha256", None), ("strip_accents", True), ("rules", {}):
            if known and known.get(name, default) != vocabulary.get(name, default):
                raise InputError(
                    f"{path}: the records were made with a different vocabulary or flags "
                    f"than others: the summaries differ in {name}; make them again.")
        known |= vocabulary
    return known if "sha256" in known else None
