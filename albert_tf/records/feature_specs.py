"""The features of fine-tuning: what an example of each kind of task consists of.

Names are the release's. Sequences are stored without padding: None is the number
of pieces of the example, and batches are padded to a common length later.
"""

from albert_tf.records.spec import Feature, FeatureSpec


def _sequences(
        shape: tuple, vocab_size: int, type_vocab_size: int) -> tuple[Feature, ...]:
    return (
        Feature("input_ids", "int64", shape, limit=vocab_size,
                limited_by="vocab_size"),
        Feature("input_mask", "int64", shape, limit=2),
        Feature("segment_ids", "int64", shape, limit=type_vocab_size,
                limited_by="type_vocab_size"),
    )


def classification_spec(
        num_labels: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """One sequence, one label (the release's classifier).

    Args:
      num_labels: classes; 1 is regression, whose label is a float.
      vocab_size: ids must be below it; 0 does not check.
      type_vocab_size: segment ids must be below it; 0 does not check.

    Returns:
      input_ids, input_mask, segment_ids [None]; label_ids [1], 0 where unknown.
    """
    label = (Feature("label_ids", "float32", (1,)) if num_labels == 1 else
             Feature("label_ids", "int64", (1,), limit=num_labels,
                     limited_by="num_labels"))
    return FeatureSpec((*_sequences((None,), vocab_size, type_vocab_size), label))


def choice_spec(
        num_choices: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """A sequence per choice, one of which is right (RACE).

    Args:
      num_choices: C. An example's choices are padded to its longest.
      vocab_size: ids must be below it; 0 does not check.
      type_vocab_size: segment ids must be below it; 0 does not check.

    Returns:
      input_ids, input_mask, segment_ids [C, None]; label_ids [1], 0 where unknown.
    """
    return FeatureSpec((
        *_sequences((num_choices, None), vocab_size, type_vocab_size),
        Feature("label_ids", "int64", (1,), limit=num_choices,
                limited_by="num_choices")))


def span_spec(vocab_size: int, type_vocab_size: int = 2, *,
              max_seq_length: int = 0) -> FeatureSpec:
    """A window of a paragraph with a question, and a span as the answer (SQuAD).

    Args:
      vocab_size: ids must be below it; 0 does not check.
      type_vocab_size: segment ids must be below it; 0 does not check.
      max_seq_length: positions must be below it; 0 does not check.

    Returns:
      In batches: unique_ids, start_positions, end_positions, is_impossible [1];
      input_ids, input_mask, segment_ids, p_mask (1 where no answer can be, padded
      with 1) [None]. On disk only, to turn predictions into text: example_index,
      paragraph_len [1], tok_start_to_orig_index, tok_end_to_orig_index,
      token_is_max_context [None], each of a length of its own.
    """
    def single(name, **kwargs):
        return Feature(name, "int64", (1,), **kwargs)

    def sequence(name, **kwargs):
        return Feature(name, "int64", (None,), **kwargs)

    position = {"limit": max_seq_length, "limited_by": "max_seq_length"}
    return FeatureSpec((
        single("unique_ids"),
        *_sequences((None,), vocab_size, type_vocab_size),
        sequence("p_mask", limit=2, pad_value=1),
        single("start_positions", **position),
        single("end_positions", **position),
        single("is_impossible", limit=2),
        single("example_index", parsed=False),
        single("paragraph_len", parsed=False),
        sequence("tok_start_to_orig_index", parsed=False),
        sequence("tok_end_to_orig_index", parsed=False),
        sequence("token_is_max_context", parsed=False, limit=2),
    ))
