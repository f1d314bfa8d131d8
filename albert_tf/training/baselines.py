"""Scores of guessing without a model, on the records that a model is tested on.

A masked-LM accuracy says little alone, because text repeats itself, and because one masked
token in ten is not hidden: a model has to beat these two guesses. Where the input shows a
token instead of [MASK], both of them repeat it. The module does not need TensorFlow.
"""

import collections
import math
from typing import Iterable, NamedTuple, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import read_records


class Baselines(NamedTuple):
    """Scores of guessing, each in [0, 1].

    Attributes:
      most_frequent_piece: masked-LM accuracy of guessing the most frequent token for
        each [MASK].
      most_frequent_follower: masked-LM accuracy of guessing for each [MASK] the maskable
        token that most often follows the left neighbour in the input; if the neighbour
        is [MASK], too, or was never seen, the most frequent token.
      larger_class: share of the larger sentence-order class.
      predictions: number of masked positions that were counted.
      examples: number of records that were counted.
    """

    most_frequent_piece: float
    most_frequent_follower: float
    larger_class: float
    predictions: int
    examples: int


def _parsed(paths: Iterable[str], spec: FeatureSpec):
    """Yields the features of each record, as NumPy arrays."""
    for path in paths:
        for number, data in enumerate(read_records(path), 1):
            yield spec.parse_numpy(data, f"{path}, record {number}")


def _original(record) -> np.ndarray:
    """Returns the sequence without padding, as it was before masking."""
    ids = record["input_ids"].copy()
    masked = record["masked_lm_weights"] > 0
    ids[record["masked_lm_positions"][masked]] = record["masked_lm_ids"][masked]
    return ids[:int(record["input_mask"].sum())]


def count_baselines(train_paths: Sequence[str], test_paths: Sequence[str],
                    spec: FeatureSpec, mask_id: int) -> Baselines:
    """Learns both guesses from the training records and scores them on test records.

        spec = pretraining_spec(max_seq_length=512, max_predictions_per_seq=20)
        count_baselines(["train.tfrecord"], ["test.tfrecord"], spec, mask_id=4)
    """
    token_counts, pair_counts = collections.Counter(), collections.Counter()
    for record in _parsed(train_paths, spec):
        masked = record["masked_lm_weights"] > 0
        token_counts.update(record["masked_lm_ids"][masked].tolist())
        ids = _original(record).tolist()
        pair_counts.update(zip(ids, ids[1:]))
    if not token_counts:
        raise InputError(
            f"{', '.join(train_paths)}: no record has a masked token, so that there is "
            "nothing to guess; give other records.")
    top = token_counts.most_common(1)[0][0]
    best: dict[int, tuple[int, int]] = {}
    for (left, right), count in pair_counts.items():
        # [SEP] follows many tokens, but a position that holds it is never masked.
        if right in token_counts:
            best[left] = max(best.get(left, (0, 0)), (count, right))
    followers = {left: right for left, (_, right) in best.items()}

    predictions = top_hits = follower_hits = examples = swapped = 0
    for record in _parsed(test_paths, spec):
        masked = record["masked_lm_weights"] > 0
        labels = record["masked_lm_ids"][masked]
        places = record["masked_lm_positions"][masked]
        shown, left = record["input_ids"][places], record["input_ids"][places - 1]
        hidden = shown == mask_id
        guesses = [top if i == mask_id else followers.get(i, top)
                   for i in left.tolist()]
        predictions += len(labels)
        top_hits += int((labels == np.where(hidden, top, shown)).sum())
        follower_hits += int((labels == np.where(hidden, guesses, shown)).sum())
        examples += 1
        swapped += int(record["next_sentence_labels"][0])
    return Baselines(
        most_frequent_piece=top_hits / max(predictions, 1),
        most_frequent_follower=follower_hits / max(predictions, 1),
        larger_class=max(swapped, examples - swapped) / max(examples, 1),
        predictions=predictions, examples=examples)


def wilson_interval(share: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the confidence interval of a share of independent trials (Wilson, 1927).

    `z` is the quantile of the normal distribution, 1.96 for 95 %.
    """
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(
        share * (1 - share) / trials + z * z / (4 * trials * trials))
    return middle - half, middle + half
