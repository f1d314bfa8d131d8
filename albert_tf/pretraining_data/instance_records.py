"""Planned instances as records: put together, masked, serialized, framed."""

import numpy as np

from albert_tf.masking.batched import mask_batch
from albert_tf.masking.options import SpecialIds
from albert_tf.pretraining_data.release_instances import InstanceOptions
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.records import encode
from albert_tf.records.sequences import assemble_batch
from albert_tf.records.spec import pretraining_spec
from albert_tf.tokenization.tokenizer import FullTokenizer

ROWS_PER_BATCH = 512  # whose arrays stay in the processor's cache


class RecordMaker:
    """Plans and pieces → TFRecords.

    Args:
      options: how long sequences are, and how to mask.
      tokenizer: tells the special ids and the size of the vocabulary.
    """

    def __init__(self, options: InstanceOptions, tokenizer: FullTokenizer):
        self._options = options
        self._special_ids = SpecialIds(
            tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        self._pad_id = tokenizer.pad_id
        self._vocab_size = tokenizer.vocab_size
        self._spec = pretraining_spec(
            options.max_seq_length, options.masking.num_prediction_slots)

    def records(self, plans: np.ndarray, tokens_a: np.ndarray, tokens_b: np.ndarray,
                counts: InstanceCounts) -> list[bytes]:
        """Serialized examples.

        Args:
          plans: PLAN [N].
          tokens_a, tokens_b: TOKEN arrays; the pieces of all first and of all second
            segments, one after the other.
          counts: what is masked is added to them.
        """
        return encode.serialize(
            self._spec, self._features(plans, tokens_a, tokens_b, counts))

    def frames(self, plans: np.ndarray, tokens_a: np.ndarray, tokens_b: np.ndarray,
               counts: InstanceCounts) -> bytes:
        """`records` as they lie in a TFRecord file."""
        return encode.frames(
            self._spec, self._features(plans, tokens_a, tokens_b, counts))

    def _features(self, plans, tokens_a, tokens_b, counts):
        sequences = assemble_batch(
            plans, tokens_a, tokens_b, self._options.max_seq_length,
            self._special_ids.cls, self._special_ids.sep, self._pad_id)
        masked = mask_batch(
            sequences.input_ids, sequences.starts_word, sequences.lengths,
            plans["mask"], self._options.masking, self._special_ids, self._vocab_size)
        counts.add_masks(masked)
        slots = np.arange(self._options.masking.num_prediction_slots)
        return {
            "input_ids": masked.input_ids,
            "input_mask": sequences.input_mask,
            "segment_ids": sequences.segment_ids,
            "token_boundary": masked.token_boundary,
            "masked_lm_positions": masked.masked_lm_positions,
            "masked_lm_ids": masked.masked_lm_ids,
            "masked_lm_weights": (
                slots < masked.num_masked[:, None]).astype(np.float32),
            "next_sentence_labels": plans["label"][:, None],
        }
