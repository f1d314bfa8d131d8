"""Flags of create_pretraining_data.py: its files, and how documents become instances."""

import dataclasses
import re

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.options import check, option
from albert_tf.tokenization import sequences

SENTENCE_OBJECTIVES = ("order", "next", "none")

# Where an instance's second segment comes from. The label is 1 for SWAPPED and
# RANDOM_DOCUMENT, else 0.
FOLLOWING = "following"  # the text after the first segment
SWAPPED = "swapped"  # the text before the first segment
RANDOM_DOCUMENT = "random_document"  # of a document drawn at random
ONE_SEGMENT = "one_segment"  # there is no second segment
ORIGINS = (FOLLOWING, SWAPPED, RANDOM_DOCUMENT, ONE_SEGMENT)
LABEL_1 = (SWAPPED, RANDOM_DOCUMENT)

SHARD = re.compile(r"-\d{5}-of-\d{5}$")  # how the names of shards end


@dataclasses.dataclass(frozen=True)
class InstanceOptions:
    """How documents are cut into instances. The defaults are those of the original.

        InstanceOptions(max_seq_length=128, single_segment="skip")
    """

    max_seq_length: int = option(
        512, "Length of a sequence in tokens, with special tokens.", least=5,
        most=1 << 15)  # Longer ones would fill the memory.
    # Texts in fine-tuning are often shorter. It is decided once for each walk over a
    # document; without a sentence objective, once for each sequence.
    short_seq_prob: float = option(
        0.1, "Probability of aiming at sequences shorter than --max_seq_length, with a "
        "uniformly drawn length, in a pass over a document.", most=1)
    random_next_sentence: bool = option(
        False, "The same as --sentence_objective=next, which it sets and which sets it.")
    sentence_objective: str | None = option(
        None, "What the sentence label means (table 5 of the paper). order: 1 if the "
        "segments are swapped (ALBERT, the default); next: 1 if the second is from another "
        "document (BERT); none: no segments, but whole sentences (RoBERTa, section 4.2).",
        choices=SENTENCE_OBJECTIVES)
    single_segment: str = option(
        "random", "What to do with a chunk of one sentence. random: take a second segment "
        "from a different document, with label 1, as the original implementation does "
        "even for sentence order; skip: leave it out.", choices=("random", "skip"),
        needs="sentence_objective=order sentence_objective=next")
    masking: MaskingOptions = MaskingOptions()

    def __post_init__(self):
        check(self)
        # Two flags can name the objective; they must not contradict each other.
        objective = self.sentence_objective or (
            "next" if self.random_next_sentence else "order")
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
    """The fields are flags of create_pretraining_data.py, with globs expanded.

        options = DataOptions(("train.txt",), shard_names("train.tfrecord", 4))
        local.create(options, FullTokenizer(spm_model_file="30k-clean.model"))
    """

    input_files: tuple[str, ...]  # text, in the order of reading
    output_files: tuple[str, ...]  # TFRecord files, evenly filled
    instances: InstanceOptions = InstanceOptions()
    dupe_factor: int = option(
        40, "Number of times that each document is used, each time with different masks.",
        least=1)
    word_start: str = option(
        "release", "Which SentencePiece tokens start a word. sentencepiece: only those "
        "with its space mark, for scripts such as Cyrillic, Greek or Hangul, but not for "
        "text without spaces. release: also every token with a character that is not a "
        "Latin letter, so that words in other scripts are never masked whole. Default: by "
        "the corpus' language (prepare_corpus.py --language), or the vocabulary's.",
        choices=("release", "sentencepiece"), needs="spm_model_file")
    random_seed: int = option(
        12345, "Seed for all random choices, including n-gram sizes.", least=-2**63,
        most=2**63 - 1)

    def __post_init__(self):
        check(self)
        if len(set(self.output_files)) != max(len(self.output_files), 1):
            raise InputError("--output_file names no file, or a file twice; give one or "
                             "more paths, each once.")


def shard_names(output_file: str, num_shards: int) -> tuple[str, ...]:
    """Returns the names of the shards, `name-00000-of-00064` and so on; for one shard
    the name itself."""
    return (output_file,) if num_shards == 1 else tuple(
        f"{output_file}-{number:05d}-of-{num_shards:05d}" for number in range(num_shards))
