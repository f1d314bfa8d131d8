"""Records and files for the tests of this folder."""

import numpy as np

from albert_tf import records
from tests.helpers import serialized

S, P = 6, 2
SPEC = records.pretraining_spec(S, P)


def example(number, length=S, predictions=P):
    """A record that can be told by its first input id; ids above 2**14, too."""
    positions = np.arange(length)
    return dict(
        input_ids=number + positions * 7001, input_mask=(positions < 4).astype(int),
        segment_ids=(positions > 2).astype(int), token_boundary=positions % 2,
        masked_lm_positions=np.arange(predictions),
        masked_lm_ids=[number] * predictions,
        masked_lm_weights=[0.5] * predictions, next_sentence_labels=[number % 2])


def write(path, examples=range(5), spec=SPEC):
    """Writes numbered examples, others, or bytes; returns the path."""
    with records.RecordWriter(str(path)) as writer:
        for each in examples:
            each = example(each) if isinstance(each, int) else each
            writer.write(each if isinstance(each, bytes) else serialized(spec, each))
    return str(path)


def frame_size(path):
    return path.stat().st_size // 5


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)
