"""The files that data creation reads and writes, its units, and names of shards."""

import dataclasses
import re

from albert_tf.errors import InputError
from albert_tf.options import check, option
from albert_tf.pretraining_data.options import InstanceOptions

# How the names of shards end, see shard_names.
SHARD = re.compile(r"-\d{5}-of-\d{5}$")


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
        "with SentencePiece's space mark; use it for scripts such as Cyrillic, Greek or "
        "Hangul, but not for text without spaces. release: also every token with a "
        "character that is not a Latin letter, so that words in other scripts are never "
        "masked whole. If it is not given, the corpus' language decides "
        "(prepare_corpus.py --language), or else that of the vocabulary's text.",
        choices=("release", "sentencepiece"))
    random_seed: int = option(
        12345, "Seed for all random choices, including n-gram sizes.", least=-2**63,
        most=2**63 - 1)

    def __post_init__(self):
        check(self)
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
    if not 1 <= num_shards <= 99_999:
        raise InputError(f"--num_shards={num_shards}: give a number from 1 to 99999.")
    if num_shards == 1:
        return (output_file,)
    return tuple(f"{output_file}-{number:05d}-of-{num_shards:05d}"
                 for number in range(num_shards))
