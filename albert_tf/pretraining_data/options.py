"""What to make of which text: the flags of create_pretraining_data as options."""

import dataclasses
import re

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.tokenization import sequences

SINGLE_SEGMENT_CHOICES = ("random", "split", "skip")
SENTENCE_OBJECTIVES = ("order", "next", "none")
WORD_STARTS = ("release", "sentencepiece")
# Many times what attention can do; a batch of much longer ones would fill the memory.
MAX_SEQ_LENGTH = 1 << 15

# Where an instance's second segment comes from. The label is 1 for the swapped and the
# random ones.
FOLLOWING = "following"  # the text after the first one
SWAPPED = "swapped"  # the text before it
RANDOM_DOCUMENT = "random_document"  # another document
ONE_SEGMENT = "one_segment"  # there is none
ORIGINS = (FOLLOWING, SWAPPED, RANDOM_DOCUMENT, ONE_SEGMENT)
LABEL_1 = (SWAPPED, RANDOM_DOCUMENT)

SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def _require(flag: str, value: object, valid: bool, advice: str) -> None:
    if not valid:
        raise InputError(f"--{flag}={value}: give {advice}.")


@dataclasses.dataclass(frozen=True)
class InstanceOptions:
    """How to cut documents into instances; the release's flags and defaults.

        InstanceOptions(max_seq_length=128, single_segment="split")
    """

    max_seq_length: int = 512  # longest sequence, in pieces, special ones counted
    # Share of the walks over a document (without a sentence objective: of the sequences)
    # that aim at a shorter length, drawn uniformly, since texts of fine-tuning are often
    # shorter.
    short_seq_prob: float = 0.1
    random_next_sentence: bool = False  # the release's flag for the objective "next"
    # What label 1 means (table 5 of the paper). "order": the segments are swapped.
    # "next": the second is from another document; that is random_next_sentence=True,
    # and each sets the other. "none": there are no pairs, but full sentences of one
    # document after another (RoBERTa, section 4.2), all with label 0. By default
    # "order": a random document differs in topic, which masked pieces teach already, so
    # that detecting it is easy and helps little; the order of two segments of one text
    # has to be learned from their coherence (section 4.6).
    sentence_objective: str | None = None
    # What to do with a chunk of one sentence, which has no second segment: "random"
    # takes one from another document (the release), "split" cuts the sentence in two,
    # "skip" leaves it out.
    single_segment: str = "random"
    masking: MaskingOptions = MaskingOptions()

    def __post_init__(self):
        length, share = self.max_seq_length, self.short_seq_prob
        _require("max_seq_length", length, length >= 5, "5 or more, for one piece in "
                 "each of two segments, [CLS] and two [SEP]")
        _require("max_seq_length", length, length <= MAX_SEQ_LENGTH,
                 f"{MAX_SEQ_LENGTH} or less")
        _require("short_seq_prob", share, 0 <= share <= 1,
                 "a probability between 0 and 1")
        objective = self.sentence_objective or (
            "next" if self.random_next_sentence else "order")
        for name, value, choices in (
                ("single_segment", self.single_segment, SINGLE_SEGMENT_CHOICES),
                ("sentence_objective", objective, SENTENCE_OBJECTIVES)):
            _require(name, value, value in choices, f"one of {', '.join(choices)}")
        if self.random_next_sentence and objective != "next":
            raise InputError(
                "--random_next_sentence is the sentence objective next, but "
                f"--sentence_objective={objective}; give one of the two.")
        object.__setattr__(self, "sentence_objective", objective)
        object.__setattr__(self, "random_next_sentence", objective == "next")

    @property
    def max_pieces(self) -> int:
        """Most pieces in a sequence, [CLS] and the [SEP] at segments' ends apart."""
        return self.max_seq_length - (
            sequences.NUM_SPECIAL_SINGLE if self.sentence_objective == "none"
            else sequences.NUM_SPECIAL_PAIR)

    @property
    def needs_random_documents(self) -> bool:
        """Whether second segments may come from other documents."""
        return self.sentence_objective != "none" and (
            self.random_next_sentence or self.single_segment == "random")


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """What create_pretraining_data makes; fields as the flags, globs expanded.

        options = DataOptions(("train.txt",), shard_names("train.tfrecord", 4))
        local.create(options, FullTokenizer(spm_model_file="30k-clean.model"))
    """

    input_files: tuple[str, ...]  # text, in the order in which it is read
    output_files: tuple[str, ...]  # TFRecords, evenly filled
    instances: InstanceOptions = InstanceOptions()
    dupe_factor: int = 40  # walks over each document, with other masks each time
    # Which pieces start a word (tokenization.sequences). "sentencepiece": those that
    # begin with "▁"; "release": also those that begin with "<", punctuation marks, and
    # pieces that hold anything but Latin letters and punctuation.
    word_start: str = "release"
    random_seed: int = 12345  # fixes all that is random

    def __post_init__(self):
        _require("dupe_factor", self.dupe_factor, self.dupe_factor >= 1,
                 "a number of 1 or more")
        _require("word_start", self.word_start, self.word_start in WORD_STARTS,
                 " or ".join(WORD_STARTS))
        if not self.output_files:
            raise InputError("--output_file names no file: give one or more paths.")
        if len(set(self.output_files)) < len(self.output_files):
            raise InputError("--output_file names a file twice; give each once.")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How work is cut up. Records do not depend on it; tests make units small."""

    span_bytes: int = 0  # of text in a unit of tokenizing; 0: by the input's size
    few_bytes: int = 1 << 20  # less takes one process: starting others takes longer
    unit_rows: int = 2048  # fewest instances in a unit of writing
    # Elements of the Beam pipeline (beam_stages), the last in bytes of pieces at least.
    slice_sentences: int = 1 << 16
    block_documents: int = 256
    bucket_bytes: int = 1 << 20


def shard_names(output_file: str, num_shards: int) -> tuple[str, ...]:
    """`name-00000-of-00064` and so on; the name itself for one shard."""
    _require("num_shards", num_shards, 1 <= num_shards <= 99_999,
             "a number from 1 to 99999")
    if num_shards == 1:
        return (output_file,)
    return tuple(f"{output_file}-{number:05d}-of-{num_shards:05d}"
                 for number in range(num_shards))
