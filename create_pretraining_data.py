r"""Turns text into TFRecords for pretraining: masked pieces and sentence order.

    python create_pretraining_data.py \
        --input_file='corpus/train-*.txt' \
        --output_file=data/train.tfrecord \
        --spm_model_file=vocabulary/30k-clean.model \
        --max_seq_length=512 --max_predictions_per_seq=20 --dupe_factor=40

The text is UTF-8 with a sentence a line and a blank line between documents, as
prepare_corpus.py writes it. Beside the first output goes a summary,
`summary-<name of the output>.json`. The same flags and text give the same bytes.
"""

from absl import flags

from albert_tf import command_line, files, pretraining_data
from albert_tf.errors import InputError
from albert_tf.masking import MaskingOptions
from albert_tf.pretraining_instances import SINGLE_SEGMENT_CHOICES, InstanceOptions
from albert_tf.tokenization import FullTokenizer

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None, "Text files: paths or globs, separated by commas.")
flags.DEFINE_string(
    "output_file", None,
    "TFRecord files to write, separated by commas; instances go to them in turn.")
flags.DEFINE_string(
    "vocab_file", None,
    "WordPiece vocabulary, a piece a line. Not needed with --spm_model_file.")
flags.DEFINE_string("spm_model_file", None, "SentencePiece model.")
flags.DEFINE_enum(
    "input_file_mode", "r", ["r", "rb"],
    "Kept for commands of the release; both read UTF-8.")
flags.DEFINE_bool(
    "do_lower_case", True,
    "Lower-case the text; as the vocabulary was trained.")
flags.DEFINE_bool(
    "do_whole_word_mask", True,
    "Mask words whole; if false, each piece counts as a word.")
flags.DEFINE_bool(
    "do_permutation", False,
    "Also let further n-grams change places and predict them; this doubles the "
    "prediction slots of a record: pretrain with twice --max_predictions_per_seq.")
flags.DEFINE_bool(
    "favor_shorter_ngram", True,
    "Draw n-gram sizes in proportion to 1/n; if false, the other way round.")
flags.DEFINE_bool(
    "random_next_sentence", False,
    "If true, the second segment comes from another document in half of the cases "
    "(BERT's next-sentence prediction); if false, the segments change places in "
    "half of the cases (ALBERT's sentence order).")
flags.DEFINE_integer("max_seq_length", 512, "Pieces in a sequence.")
flags.DEFINE_integer("ngram", 3, "Words in the longest n-gram masked together.")
flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "Most pieces masked in a sequence.")
flags.DEFINE_integer(
    "random_seed", 12345, "Fixes everything random, also the n-gram sizes.")
flags.DEFINE_integer(
    "dupe_factor", 40, "Times to walk over each document, with other masks.")
flags.DEFINE_float(
    "masked_lm_prob", 0.15,
    "Share of a sequence's pieces to mask; 0 writes unmasked records with "
    "token_boundary, for masking while training.")
flags.DEFINE_float(
    "short_seq_prob", 0.1,
    "Share of the walks over a document that make sequences of a shorter length.")
flags.DEFINE_enum(
    "single_segment", "random", SINGLE_SEGMENT_CHOICES,
    "A chunk of one sentence has no second segment. random: take one from another "
    "document, label 1, as the release does also for sentence order; split: cut "
    "the sentence in two before a random word; skip: leave it out, counted.")
flags.DEFINE_enum(
    "word_start", "release", ["release", "sentencepiece"],
    "Which SentencePiece pieces start a word. release: also every piece with a "
    "character besides Latin letters, so that words of other scripts are never "
    "masked whole; sentencepiece: those with SentencePiece's mark of a space "
    "alone, for scripts such as Cyrillic, Greek or Hangul. Not for text without "
    "spaces.")
flags.DEFINE_bool(
    "strip_digit_comma_prefix", False,
    "Split '9,' inside a word into '9' and ','; the release puts a mark of a space "
    "before the digit, which the published models expect.")


def options_from_flags() -> pretraining_data.DataOptions:
    """The flags as frozen options, globs expanded.

    Raises:
      InputError: names the flag that is missing or wrong.
    """
    for name in ("input_file", "output_file"):
        if not FLAGS[name].value:
            raise InputError(f"--{name} is missing: give a path.")
    masking = MaskingOptions(
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        masked_lm_prob=FLAGS.masked_lm_prob,
        ngram=FLAGS.ngram,
        favor_shorter_ngram=FLAGS.favor_shorter_ngram,
        do_whole_word_mask=FLAGS.do_whole_word_mask,
        do_permutation=FLAGS.do_permutation)
    instances = InstanceOptions(
        max_seq_length=FLAGS.max_seq_length,
        short_seq_prob=FLAGS.short_seq_prob,
        random_next_sentence=FLAGS.random_next_sentence,
        single_segment=FLAGS.single_segment,
        masking=masking)
    outputs = [name.strip() for name in FLAGS.output_file.split(",")]
    return pretraining_data.DataOptions(
        input_files=tuple(files.expand_patterns(FLAGS.input_file, "--input_file")),
        output_files=tuple(name for name in outputs if name),
        instances=instances,
        dupe_factor=FLAGS.dupe_factor,
        word_start=FLAGS.word_start,
        random_seed=FLAGS.random_seed)


def main(_):
    options = options_from_flags()
    tokenizer = FullTokenizer(
        vocab_file=FLAGS.vocab_file,
        do_lower_case=FLAGS.do_lower_case,
        spm_model_file=FLAGS.spm_model_file,
        strip_digit_comma_prefix=FLAGS.strip_digit_comma_prefix)
    pretraining_data.create(options, tokenizer)


if __name__ == "__main__":
    command_line.run(main)
