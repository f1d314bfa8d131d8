"""Whether records are masked already, and what masking them while training needs.

Nothing here loads TensorFlow: it is checked before any long work.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
from typing import Any, Mapping, Optional, Sequence

from albert_tf.errors import InputError
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import read_records

_THREADS = 8
# A short sequence may have no mask where its words are longer than its budget; so
# many of them have none only where nothing was masked.
_FIRST_RECORDS = 20


def unmasked_spec(spec: FeatureSpec) -> FeatureSpec:
    """What is read of records that are masked while training.

    token_boundary tells where words start. The prediction slots, empty, are of no
    matter, nor is their number.

    Args:
      spec: from records.pretraining_spec.
    """
    def change(feature):
        if feature.name == "token_boundary":
            return dataclasses.replace(feature, parsed=True, limit=2)
        if feature.name.startswith("masked_lm_"):
            return dataclasses.replace(feature, shape=(None,), parsed=False)
        return feature

    return FeatureSpec(tuple(change(feature) for feature in spec.features))


def check(paths: Sequence[str], spec: FeatureSpec, dynamic_masking: bool) -> None:
    """Checks that records are masked, or are not where they will be in training.

    Looks at the first records of each file.

    Args:
      paths: record files.
      spec: what is read of them.
      dynamic_masking: whether masks are made while training.

    Raises:
      InputError: names the first file that is not so, or is damaged.
    """
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        masked = pool.map(lambda path: _is_masked(path, spec), paths)
        for path, found in zip(paths, masked):
            if found and dynamic_masking:
                raise InputError(
                    f"{path}: the records are masked already; leave out "
                    "--dynamic_masking, or create them with --masked_lm_prob=0.")
            if not found and not dynamic_masking:
                raise InputError(
                    f"{path}: the records are not masked, so there is nothing to "
                    "predict; give --dynamic_masking, or create them with "
                    "--masked_lm_prob above 0.")


def _is_masked(path: str, spec: FeatureSpec) -> bool:
    with contextlib.closing(read_records(path)) as found:
        for number, record in enumerate(itertools.islice(found, _FIRST_RECORDS), 1):
            arrays = spec.parse_numpy(record, f"{path}, record {number}")
            weights = arrays.get("masked_lm_weights")
            if weights is not None and weights.any():
                return True
    return False


def special_ids(
        paths: Sequence[str], spec: FeatureSpec, vocab_size: int,
        summary: Optional[Mapping[str, Any]],
        given: Mapping[str, Optional[int]]) -> dict[str, int]:
    """Ids by name (cls, sep, mask): those given, else those in the records' summary.

    Args:
      paths: record files.
      spec: what is read of them.
      vocab_size: ids must be below it.
      summary: `special_ids` of record_vocabulary.check_vocabulary, where it tells.
      given: values of the flags cls_id, sep_id and mask_id, or None.

    Raises:
      InputError: if an id is not known or out of range, two are the same, or [CLS]
        and [SEP] do not stand where the first record of a file has them.
    """
    ids = {name: given[f"{name}_id"] if given[f"{name}_id"] is not None
           else (summary or {}).get(name) for name in ("cls", "sep", "mask")}
    missing = [f"--{name}_id" for name, value in ids.items() if value is None]
    if missing:
        raise InputError(
            f"--dynamic_masking needs {', '.join(missing)}, because no summary beside "
            f"{paths[0]} tells the ids of [CLS], [SEP] and [MASK]; they are 2, 3 and "
            "4 in the released SentencePiece vocabularies, and the numbers of their "
            "lines less 1 in a WordPiece vocabulary.")
    for name, value in ids.items():
        if not (isinstance(value, int) and 0 <= value < vocab_size):
            raise InputError(
                f"--{name}_id is {value}, which is not in 0..{vocab_size - 1}, as "
                f"vocab_size {vocab_size} says.")
    if len(set(ids.values())) < len(ids):
        raise InputError(
            f"--cls_id, --sep_id and --mask_id are "
            f"{ids['cls']}, {ids['sep']} and {ids['mask']}; they must differ.")
    for path in paths:
        with contextlib.closing(read_records(path)) as found:
            arrays = spec.parse_numpy(next(found), f"{path}, record 1")
        pieces = arrays["input_ids"][arrays["input_mask"] > 0]
        for at, where, name in ((0, "begins", "cls"), (-1, "ends", "sep")):
            if len(pieces) and pieces[at] != ids[name]:
                raise InputError(
                    f"{path}, record 1: the sequence {where} with id {pieces[at]}, but "
                    f"--{name}_id is {ids[name]}; give the ids of the "
                    "vocabulary that the records were made with.")
    return ids
