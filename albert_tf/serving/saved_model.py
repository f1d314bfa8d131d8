"""Runs an exported model on sequences, in batches of similar length.

It only needs TensorFlow and the folder that `export` wrote: neither the model's code,
nor its checkpoint, nor Keras.
"""

import contextlib
import numbers
import os
from typing import Any, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError

LABELS_FILE = "labels.txt"
# Advice for a label that this file cannot hold.
RENAME = "rename it in the config.json or task.json of the model"
SIGNATURE = "serving_default"
# Signatures of an export that takes text: one takes ids, one converts text to ids.
IDS_SIGNATURE, TOKENIZE_SIGNATURE = "ids", "tokenize"

# Values at positions of padding; all other inputs have 0.
_PADDING = {"p_mask": 1}


class Server:
    """A SavedModel, loaded once and used for many requests. Threads may share one.

    >>> server = Server(export_dir)  # The folder that `export` wrote.
    >>> server.labels
    ('no', 'maybe', '好')
    >>> server.predict([{"input_ids": [2, 7, 3], "input_mask": [1, 1, 1],
    ...                  "segment_ids": [0, 0, 0]}])["logits"][0].shape
    (3,)

    Attributes:
      labels: labels in the order of the logits; () if there are none.
    """

    def __init__(self, export_dir: str):
        files.check_in_tensorflow(export_dir)
        if not files.exists(os.path.join(export_dir, "saved_model.pb")):
            raise InputError(f"{export_dir} holds no saved_model.pb; give a folder "
                             "that export_model.py wrote.")
        try:
            self._loaded = _load(export_dir)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(f"{export_dir} cannot be loaded "
                             f"({str(error).splitlines()[0]}); export the model again."
                             ) from error
        if SIGNATURE not in self._loaded.signatures:
            raise InputError(f"{export_dir} has no signature {SIGNATURE}; give a "
                             "folder that export_model.py wrote.")
        signatures = self._loaded.signatures
        self._serve = signatures[
            IDS_SIGNATURE if IDS_SIGNATURE in signatures else SIGNATURE]
        self._inputs = tuple(self._serve.structured_input_signature[1])
        path = os.path.join(export_dir, "assets", LABELS_FILE)
        self.labels = tuple(line for _, line in text_files.read_lines(path)) if (
            files.exists(path)) else ()

    def predict(self, features: Sequence[Mapping[str, Sequence[int]]],
                batch_size: int = 32) -> dict[str, list[np.ndarray]]:
        """Returns the model's outputs for sequences, in their order: name → arrays.

        Sequences of similar length share a batch of up to `batch_size`, padded to the
        longest of them. The result does not depend on the batches except for float
        rounding. Log-probabilities of positions are [S], without padding.

        Args:
          features: the features of each sequence, without padding, as the tasks'
            `featurize` makes them: `input_ids`, `input_mask`, `segment_ids` and, for
            models of SQuAD 2.0, `p_mask`, all [S]. Further keys are ignored.
          batch_size: maximum number of sequences that are computed together.

        Raises:
          InputError: the model does not accept the inputs.
        """
        if not (isinstance(batch_size, numbers.Integral) and batch_size > 0):
            raise InputError(
                f"batch_size is {batch_size!r}; give a whole number of 1 or more.")
        lengths = [self._length(i, row) for i, row in enumerate(features)]
        order = np.argsort(lengths, kind="stable")
        results: dict[str, list] = {
            name: [None] * len(lengths) for name in self._serve.structured_outputs}
        for start in range(0, len(order), batch_size):
            chosen = order[start:start + batch_size]
            batch = self._batch(features, chosen, lengths)
            try:
                outputs = self._serve(**batch)
            except tf.errors.InvalidArgumentError as error:
                raise InputError(
                    "the model does not accept these inputs; check for an id that is "
                    "not in its vocabulary, or more positions than it has "
                    f"({error.message.splitlines()[0]}).") from error
            for name, values in outputs.items():
                # An axis of unknown size is that of the positions.
                per_position = (
                    self._serve.structured_outputs[name].shape[1:] == [None])
                for i, value in zip(chosen, values.numpy()):
                    results[name][i] = value[:lengths[i]] if per_position else value
        return results

    def _length(self, i: int, row: Mapping[str, Sequence[int]]) -> int:
        missing = [name for name in self._inputs if name not in row]
        if missing:
            raise InputError(
                f"sequence {i} has no {missing[0]}, which the model needs; add it.")
        sizes = {name: len(row[name]) for name in self._inputs}
        if len(set(sizes.values())) > 1 or not sizes["input_ids"]:
            raise InputError(
                f"sequence {i}: its inputs must have the same length of 1 or more, but "
                "have "
                f"{', '.join(f'{name} {size}' for name, size in sizes.items())}.")
        return sizes["input_ids"]

    def _batch(self, features, chosen, lengths) -> dict[str, tf.Tensor]:
        shape = [len(chosen), max(lengths[i] for i in chosen)]
        batch = {}
        for name in self._inputs:
            values = np.full(shape, _PADDING.get(name, 0), np.int32)
            for row, i in zip(values, chosen):
                row[:lengths[i]] = _whole_numbers(features[i][name], i, name)
            batch[name] = tf.constant(values)
        return batch


def _whole_numbers(given: Sequence[int], i: int, name: str) -> np.ndarray:
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        values = np.asarray(given)
        if np.array_equal(whole := values.astype(np.int32), values):
            return whole
    raise InputError(f"sequence {i}: {name} must be whole numbers.")


def check_probability(value: Any, name: str) -> None:
    """Raises InputError if the value of the option `name` is not a probability."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (
            0 <= value <= 1):  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; give a probability from 0 to 1.")


def _load(export_dir: str):
    """Loads the SavedModel, without TensorFlow's warning about custom gradients."""
    from albert_tf.tokenization import in_graph

    if files.exists(os.path.join(export_dir, "assets", in_graph.TOKENIZER_FILE)):
        in_graph.tensorflow_text()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        return tf.saved_model.load(export_dir)
    finally:
        logging.set_verbosity(verbosity)
