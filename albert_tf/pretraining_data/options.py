"""How documents are cut into instances: flags of create_pretraining_data.py."""

import dataclasses

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.tokenization import sequences

SINGLE_SEGMENT_CHOICES = ("random", "skip")
SENTENCE_OBJECTIVES = ("order", "next", "none")
# Much longer than attention can handle; longer sequences would also fill the memory.
MAX_SEQ_LENGTH = 1 << 15

# Where an instance's second segment comes from. The label is 1 for SWAPPED and
# RANDOM_DOCUMENT, else 0.
FOLLOWING = "following"  # the text after the first segment
SWAPPED = "swapped"  # the text before the first segment
RANDOM_DOCUMENT = "random_document"  # a different document
ONE_SEGMENT = "one_segment"  # there is no second segment
ORIGINS = (FOLLOWING, SWAPPED, RANDOM_DOCUMENT, ONE_SEGMENT)
LABEL_1 = (SWAPPED, RANDOM_DOCUMENT)


def require(flag: str, value: object, valid: bool, advice: str) -> None:
    if not valid:
        raise InputError(f"--{flag}={value}: give {advice}.")


@dataclasses.dataclass(frozen=True)
class InstanceOptions:
    """How documents are cut into instances; the original's flags and defaults.

        InstanceOptions(max_seq_length=128, single_segment="skip")
    """

    max_seq_length: int = 512  # maximum length in tokens; [CLS] and [SEP] count
    # Probability of a shorter, uniformly drawn target length, because texts in
    # fine-tuning are often shorter. It is decided once for each walk over a document;
    # without a sentence objective, once for each sequence.
    short_seq_prob: float = 0.1
    random_next_sentence: bool = False  # the original's flag for the objective "next"
    # What the sentence label means (Table 5 of the paper). "order": 1 if the segments
    # are swapped. "next": 1 if the second segment is from a different document, as with
    # random_next_sentence=True; setting one of the two sets the other. "none": there
    # are no pairs, but sequences of full sentences (RoBERTa, section 4.2), all with
    # label 0. The default is "order" (see instances._pair_of_chunk).
    sentence_objective: str | None = None
    # What to do with a chunk of a single sentence, which gives no second segment:
    # "random" takes one from a different document, as the original does, "skip" leaves
    # the chunk out.
    single_segment: str = "random"
    masking: MaskingOptions = MaskingOptions()

    def __post_init__(self):
        length, share = self.max_seq_length, self.short_seq_prob
        require("max_seq_length", length, length >= 5, "5 or more, for one token in "
                "each of two segments, [CLS] and two [SEP]")
        require("max_seq_length", length, length <= MAX_SEQ_LENGTH,
                f"{MAX_SEQ_LENGTH} or less")
        require("short_seq_prob", share, 0 <= share <= 1,
                "a probability between 0 and 1")
        # Two flags can name the objective; they must not contradict each other.
        objective = self.sentence_objective or (
            "next" if self.random_next_sentence else "order")
        for name, value, choices in (
                ("single_segment", self.single_segment, SINGLE_SEGMENT_CHOICES),
                ("sentence_objective", objective, SENTENCE_OBJECTIVES)):
            require(name, value, value in choices, f"one of {', '.join(choices)}")
        if self.random_next_sentence and objective != "next":
            raise InputError(
                "--random_next_sentence is the sentence objective next, but "
                f"--sentence_objective={objective}; give one of the two.")
        # A frozen dataclass can be set only this way. From here on the flags agree.
        object.__setattr__(self, "sentence_objective", objective)
        object.__setattr__(self, "random_next_sentence", objective == "next")

    @property
    def max_pieces(self) -> int:
        """Maximum tokens in a sequence, without [CLS] and the [SEP] after segments."""
        return self.max_seq_length - (
            sequences.NUM_SPECIAL_SINGLE if self.sentence_objective == "none"
            else sequences.NUM_SPECIAL_PAIR)
