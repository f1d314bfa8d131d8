"""The options of data creation: the flags of create_pretraining_data.py."""

import dataclasses
import re

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.tokenization import sequences

SINGLE_SEGMENT_CHOICES = ("random", "skip")
SENTENCE_OBJECTIVES = ("order", "next", "none")
WORD_STARTS = ("release", "sentencepiece")
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

# How the names of shards end, see shard_names.
SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def _require(flag: str, value: object, valid: bool, advice: str) -> None:
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
    # label 0. The default is "order". A random document differs in topic, and topics
    # are learned from masked tokens already, so "next" is easy and helps little. The
    # order of two segments of one text has to be learned from their coherence (section
    # 4.6).
    sentence_objective: str | None = None
    # What to do with a chunk of a single sentence, which gives no second segment:
    # "random" takes one from a different document, as the original does, "skip" leaves
    # the chunk out.
    single_segment: str = "random"
    masking: MaskingOptions = MaskingOptions()

    def __post_init__(self):
        length, share = self.max_seq_length, self.short_seq_prob
        _require("max_seq_length", length, length >= 5, "5 or more, for one token in "
                 "each of two segments, [CLS] and two [SEP]")
        _require("max_seq_length", length, length <= MAX_SEQ_LENGTH,
                 f"{MAX_SEQ_LENGTH} or less")
        _require("short_seq_prob", share, 0 <= share <= 1,
                 "a probability between 0 and 1")
        # Two flags can name the objective; they must not contradict each other.
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
        # A frozen dataclass can be set only this way. From here on the flags agree.
        object.__setattr__(self, "sentence_objective", objective)
        object.__setattr__(self, "random_next_sentence", objective == "next")

    @property
    def max_pieces(self) -> int:
        """Maximum tokens in a sequence, without [CLS] and the [SEP] after segments."""
        return self.max_seq_length - (
            sequences.NUM_SPECIAL_SINGLE if self.sentence_objective == "none"
            else sequences.NUM_SPECIAL_PAIR)


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """The input and output of create_pretraining_data.py; the fields are its flags, with
    file patterns expanded.

        options = DataOptions(("train.txt",), shard_names("train.tfrecord", 4))
        local.create(options, FullTokenizer(spm_model_file="30k-clean.model"))
    """

    input_files: tuple[str, ...]  # text, in the order of reading
    output_files: tuple[str, ...]  # TFRecord files, evenly filled
    instances: InstanceOptions = InstanceOptions()
    dupe_factor: int = 40  # walks over each document, each with different masks
    # Which tokens start a word (tokenization.sequences). "sentencepiece": those that
    # begin with "▁". "release", the original's rule: also those that begin with "<",
    # punctuation marks, and tokens with anything but Latin letters and punctuation.
    word_start: str = "release"
    random_seed: int = 12345  # determines everything that is random

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
    """Sizes of the units of work; tests use small ones. Second segments from other
    documents depend on the first two, and the rest of the records on none."""

    span_bytes: int = 0  # of text; 0: by the input's size
    slice_codes: int = 8 << 20  # minimum tokens of text in memory at a time
    pack_bytes: int = 16 << 20  # minimum size of the tokens of instances in memory
    bucket_bytes: int = 1 << 20  # minimum size of the tokens of a bucket
    few_bytes: int = 1 << 20  # less text takes one process: starting more is slower


def shard_names(output_file: str, num_shards: int) -> tuple[str, ...]:
    """Returns the names of the shards, `name-00000-of-00064` and so on; for one shard
    the name itself."""
    _require("num_shards", num_shards, 1 <= num_shards <= 99_999,
             "a number from 1 to 99999")
    if num_shards == 1:
        return (output_file,)
    return tuple(f"{output_file}-{number:05d}-of-{num_shards:05d}"
                 for number in range(num_shards))
