"""Labels: matching those of a model with those of a task, and what they may contain.

    order(("pos", "neg"), ("neg", "pos"), "hf/sentiment")  # [1, 0]
"""

import collections
import dataclasses
import functools
import re
import unicodedata
from typing import Any, Iterable, Mapping, Optional, Sequence, TypeVar

from absl import logging

from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    HEADS, PROBLEMS, REGRESSION, head_of, label_count, some)
from albert_tf.config import refuse
from albert_tf.errors import InputError
from albert_tf.modeling.head import output_shapes

# The file of the labels in an export, and the advice for a label that it cannot hold.
LABELS_FILE = "labels.txt"
RENAME = "rename it in the config.json or task.json of the model"
Model = TypeVar("Model", bound=Any)
# The names that Hugging Face gives to unnamed classes.
_UNNAMED = re.compile(r"LABEL_\d+")
# Soft hyphens, byte-order marks, zero-width blanks and marks of direction. Joiners are
# not among them, which scripts such as Persian and emoji need.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
                        "\u2066-\u206f\ufeff\ufff9-\ufffb]")
_SHOWN, _COUNTED = 8, 50  # labels in a message, and in a list with counts


# ---- characters ------------------------------------------------------------


def cleaned(label: str) -> str:
    """Returns a label without invisible characters, nor white space at its ends."""
    return re.sub(r"^[\s\u200c\u200d]+|[\s\u200c\u200d]+$", "", _INVISIBLE.sub("", label))


def shown(label: str) -> str:
    """Returns a label in quotes, with escapes for what cannot be seen."""
    return f"'{label}'" if label.isprintable() else ascii(label)


def counted(labels: Sequence[str], found: Iterable[str]) -> str:
    """Returns the labels, each with its number in `found`, for a log line."""
    counts = collections.Counter(found)
    return some([f"{shown(label)[1:-1]} {counts[label]:,}" for label in labels],
                _COUNTED)


def check_lines(labels: Sequence[str], where: str, advice: str) -> None:
    """Raises InputError if a label has a line end, with `where` it is and `advice`."""
    for label in labels:
        if re.search(r"[\r\n]", label):
            raise InputError(f"{where}: the label {shown(label)} has a line end, which "
                             f"files of labels cannot hold; {advice}.")


# ---- order -----------------------------------------------------------------


def named(labels: Sequence[str]) -> list[str]:
    """Returns the labels without Hugging Face's names of unnamed classes."""
    return [label for label in labels if not _UNNAMED.fullmatch(label)]


def relabelled(model: Model, labels: Sequence[str]) -> Model:
    """Returns a Checkpoint with these labels for outputs that it does not name."""
    labels = tuple(map(cleaned, labels))
    if not labels or labels == model.labels:
        return model
    width = label_count(model.heads)
    if width == 1 and model.problem_type in ("", REGRESSION):
        width = 0
    given, source = f"--labels={','.join(labels)}: ", model.report.source
    if named(model.labels):
        raise InputError(f"{given}the labels of {source} are "
                         f"{some(model.labels, _SHOWN)}; leave the flag out.")
    if not width == len(labels) == len({*labels} - {""}):
        raise InputError(f"{given}{source} has {width or 'no'} outputs that have labels; "
                         "give each of them a label, once, or leave the flag out.")
    return dataclasses.replace(model, labels=labels)


def ordered(labels: Sequence[str], theirs: Sequence[str],
            tensors: Mapping[str, Tensor], source: str) -> Mapping[str, Tensor]:
    """Returns the tensors of a model, whose labels are `theirs`, with the outputs of its
    head in the order of `labels`, if it has one for each (`order`)."""
    outputs = [name for head in map(head_of, HEADS) if head.has_labels
               for name in output_shapes(head.scope, 1, 1)
               if name in tensors and tensors[name].shape[0] == len(labels)]
    rows = order(tuple(theirs) if len(theirs) == len(labels) else (), tuple(labels),
                 source) if labels and outputs else None
    return {**tensors, **{name: tensors[name].then(lambda array: array[rows])
                          for name in outputs if rows}}


@functools.cache  # What is logged is said once.
def order(theirs: tuple[str, ...], ours: tuple[str, ...], source: str
          ) -> Optional[list[int]]:
    """Returns the output of the model `source` for each of our labels, or None if its
    outputs are in the order of ours. Labels are matched by name, if necessary without
    regard to case, and those without an equal in their order, with a warning.
    """
    if theirs == ours:
        return None
    if not named(theirs):
        logging.warning(
            "%s does not name its labels. They are assumed to be, in the order of its "
            "outputs: %s. If their order is different, give it with --labels.", source,
            some(ours, _SHOWN))
        return None
    # What is equal for all spellings, such as "not good" and NOT_GOOD.
    keys, wanted = ([re.sub(r"[\s_-]+", "_", unicodedata.normalize(
        "NFC", cleaned(label))).casefold() for label in labels] for labels in (theirs, ours))
    if len({*keys}) < len(keys) or len({*wanted}) < len(wanted):
        keys, wanted = list(theirs), list(ours)
    places = {key: place for place, key in enumerate(keys)}
    rest = iter(sorted({*range(len(keys))} - {*map(places.get, wanted)}))
    result = [places[key] if key in places else next(rest) for key in wanted]
    other = [f"{theirs[place]} is taken for {ours[i]}" for i, place in enumerate(result)
             if keys[place] != wanted[i]]
    if other:
        logging.warning(
            "%s has other labels than this task: %s. If this is wrong, give --labels in "
            "the order of the model's, which is %s.", source, some(other, _SHOWN),
            some(theirs, _SHOWN))
    if result == sorted(result):
        return None
    logging.info("%s has its labels in the order %s. Its outputs are reordered to %s.",
                 source, some(theirs, _SHOWN), some(ours, _SHOWN))
    return result


# ---- in files ---------------------------------------------------------------


def outputs_of(values: Mapping[str, Any], heads: Mapping[str, int], where: str
               ) -> dict[str, Any]:
    """Returns what a file says of the head's outputs: fields of a Checkpoint."""
    problem = "classification" in heads and values.get("problem_type") or ""
    refuse({"problem_type": problem}, where, problem_type=("", *PROBLEMS))
    labels, count = values.get("labels") or (), label_count(heads)
    if not isinstance(labels, (list, tuple)) or count and labels and (
            len(labels) != count) or not all(
                isinstance(label, (str, int, float)) for label in labels):
        raise InputError(f"{where}: the labels are {labels!r:.60}, but the head has "
                         f"{count} outputs; give a text for each output, or none.")
    return {"labels": tuple(map(str, labels)) if count else (), "problem_type": problem}
