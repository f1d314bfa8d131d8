r"""Turns text into TFRecords for pretraining: masked pieces and sentence order.

    python create_pretraining_data.py \
        --input_file='corpus/train-*.txt' \
        --output_file=data/train.tfrecord \
        --spm_model_file=vocabulary/30k-clean.model \
        --max_seq_length=512 --max_predictions_per_seq=20 --dupe_factor=40

The text is UTF-8 with a sentence a line and a blank line between documents, as
prepare_corpus.py writes it; it may be compressed (.gz, .bz2, .xz, .zst). Beside the
first output goes a summary, `summary-<name of the output>` as .json, .txt and .png.

The same flags and text give the same bytes, on any number of cores or on a cluster
(--runner). A run that was stopped is resumed when the same command is started
again. Memory stays below 1 GB for each process, whatever the size of the text.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses

from absl import flags

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import local, release
from albert_tf.pretraining_data.options import (
    DataOptions, InstanceOptions, SENTENCE_OBJECTIVES, SINGLE_SEGMENT_CHOICES,
    WORD_STARTS, shard_names)
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training.recipes import PRETRAINING_RECIPES

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None, "Text files: paths or globs, separated by commas.")
flags.DEFINE_string(
    "output_file", None,
    "TFRecord files to write, separated by commas; all get the same number of "
    "instances.")
flags.DEFINE_integer(
    "num_shards", 1,
    "Cut the output into so many files, named <output_file>-00000-of-00064 and so on.")
flags.DEFINE_integer("num_workers", 0, "Processes; 0 takes one for each core.")
flags.DEFINE_string(
    "work_dir", None,
    "Folder for unfinished work, removed at the end; by default <output_file>"
    ".unfinished. Give one on this machine where the output is remote.")
flags.DEFINE_string(
    "runner", None,
    "Run on a cluster, by Apache Beam (pip install -r requirements-beam.txt): "
    "DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, DaskRunner, "
    "PortableRunner, or the full name of another runner's class. Options of the "
    "runner come last, after a --, as in: -- --flink_master=host:8081")
flags.DEFINE_bool(
    "reproduce_release", False,
    "Make the very records of the 2019 release for its seeds, in its order of random "
    "draws: one process, with all documents and records in memory. Without it they "
    "have the same distribution, and other random numbers.")
flags.DEFINE_string(
    "vocab_file", None,
    "WordPiece vocabulary, a piece a line. Not needed with --spm_model_file.")
flags.DEFINE_string("spm_model_file", None, "SentencePiece model.")
flags.DEFINE_enum(
    "input_file_mode", "r", ["r", "rb"],
    "Kept for commands of the release; both read UTF-8.")
flags.DEFINE_bool(
    "do_lower_case", True, "Lower-case the text; as the vocabulary was trained.")
flags.DEFINE_bool(
    "strip_accents", None, "Strip accents and other combining marks. Default: as the "
    "SentencePiece model says; of lower-cased text with --vocab_file true.")
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
    "half of the cases (ALBERT's sentence order). The same as "
    "--sentence_objective=next.")
flags.DEFINE_enum(
    "sentence_objective", "order", SENTENCE_OBJECTIVES,
    "What the sentence label says (table 5 of the paper). order: whether the segments "
    "change places (ALBERT, the default); next: whether the second one comes from "
    "another document (BERT); none: there are no segments, sequences are filled with "
    "whole sentences (RoBERTa).")
flags.DEFINE_enum(
    "recipe", None, list(PRETRAINING_RECIPES),
    "Records for run_pretraining.py with the same flag. release: the defaults; roberta: "
    "full sentences without pairs, to be masked while training, each text once; fast: "
    "40 percent masked. A flag that is given goes before.")
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
    "word_start", "release", WORD_STARTS,
    "Which SentencePiece pieces start a word. release: also every piece with a "
    "character besides Latin letters, so that words of other scripts are never "
    "masked whole; sentencepiece: those with SentencePiece's mark of a space "
    "alone, for scripts such as Cyrillic, Greek or Hangul. Not for text without "
    "spaces.")
flags.DEFINE_bool(
    "strip_digit_comma_prefix", False,
    "Split '9,' inside a word into '9' and ','; the release puts a mark of a space "
    "before the digit, which the published models expect.")


def from_flags(options: type, **given):
    """Frozen options: those given, and flags of the fields' names."""
    names = {field.name for field in dataclasses.fields(options)} - given.keys()
    return options(**given, **{name: FLAGS[name].value for name in names})


def options_from_flags() -> DataOptions:
    """The flags as frozen options, globs expanded."""
    for name in ("input_file", "output_file"):
        if not FLAGS[name].value:
            raise InputError(f"--{name} is missing: give a path.")
    if FLAGS.recipe:
        recipe = PRETRAINING_RECIPES[FLAGS.recipe]
        script.use_recipe(FLAGS.recipe, {
            **recipe.records, **recipe.slots_at(FLAGS.max_seq_length)}, recipe.source)
    objective = FLAGS["sentence_objective"]
    instances = from_flags(
        InstanceOptions, masking=from_flags(MaskingOptions),
        sentence_objective=objective.value if (
            objective.present or objective.value != objective.default) else None)
    outputs = files.output_names(FLAGS.output_file)
    if FLAGS.num_shards != 1 and len(outputs) > 1:
        raise InputError(
            f"--num_shards={FLAGS.num_shards} names the files itself, but "
            f"--output_file has {len(outputs)} names; give one of them.")
    return from_flags(
        DataOptions, instances=instances,
        input_files=tuple(files.expand_patterns(FLAGS.input_file, "--input_file")),
        output_files=tuple(shard for name in outputs
                           for shard in shard_names(name, FLAGS.num_shards)))


def main(argv):
    if argv[1:] and not FLAGS.runner:
        raise InputError(
            f"'{argv[1]}' is not a flag: flags are written --name=value, and a value "
            "with spaces in quotes. (Words after a -- are options of --runner.)")
    if FLAGS.runner and FLAGS.reproduce_release:
        raise InputError(
            "--reproduce_release works in one process, --runner on a cluster; give one "
            "of the two.")
    options = options_from_flags()
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case,
                              FLAGS.spm_model_file, FLAGS.strip_digit_comma_prefix,
                              FLAGS.strip_accents)
    if FLAGS.runner:
        from albert_tf.pretraining_data import beam

        beam.run(options, tokenizer, FLAGS.runner, argv[1:])
    elif FLAGS.reproduce_release:
        release.create(options, tokenizer)
    else:
        local.create(
            options, tokenizer, num_workers=FLAGS.num_workers, work_dir=FLAGS.work_dir)


if __name__ == "__main__":
    script.run(main, takes_words=True)
