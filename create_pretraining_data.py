r"""Turns text into TFRecords for pretraining: masked tokens and sentence order.

    python create_pretraining_data.py \
        --input_file='corpus/train-*.txt' \
        --output_file=data/train.tfrecord \
        --spm_model_file=vocabulary/30k-clean.model \
        --max_seq_length=512 --max_predictions_per_seq=20 --dupe_factor=40

The text is UTF-8 with one sentence per line and a blank line between documents, as
prepare_corpus.py writes it. It may be compressed (.gz, .bz2, .xz, .zst). A summary is
written beside the first output: `summary-<name of the output>.json`.

The same flags and text give the same bytes on any number of cores and on a cluster
(--runner). If a run was stopped, run the same command again to resume it. Each process
uses less than 1 GB of memory, whatever the size of the text.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses

from absl import flags

from albert_tf import files
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import check_needs, define, use_recipe
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.options import given
from albert_tf.pretraining_data import local, release
from albert_tf.pretraining_data.options import (
    DataOptions, InstanceOptions, shard_names)
from albert_tf.text import languages
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training.schedules import PRETRAINING_RECIPES

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None,
    "Text files: paths or globs, separated by commas.")
flags.DEFINE_string(
    "output_file", None,
    "TFRecord files to write, separated by commas. The instances are divided equally "
    "among them.")
flags.DEFINE_integer(
    "num_shards", 1,
    "Number of files to split the output into, named <output_file>-00000-of-00064 and "
    "so on.", lower_bound=1, upper_bound=99_999)
flags.DEFINE_integer(
    "num_workers", 0, "Number of worker processes; 0 uses one for each core.",
    lower_bound=0, upper_bound=1024)
flags.DEFINE_string(
    "work_dir", None,
    "Folder for unfinished work, which is removed at the end. Default: <output_file>"
    ".unfinished. If the output is remote, give a folder on this machine.")
flags.DEFINE_string(
    "runner", None,
    "Run on a cluster with this Apache Beam runner (requirements-beam.txt), such as "
    "FlinkRunner, SparkRunner, DataflowRunner, DaskRunner, PortableRunner, or the full "
    "name of its class. Put its options last, after a --: -- --flink_master=host:8081")
flags.DEFINE_bool(
    "reproduce_release", False,
    "Write records identical to those of the original TF1 code for the same seed, in one "
    "process that holds all documents and records in memory. By default the records "
    "have the same distribution but different random numbers.")
flags.DEFINE_string(
    "vocab_file", None,
    "WordPiece vocabulary file, one token per line. Not needed with --spm_model_file.")
flags.DEFINE_string("spm_model_file", None, "SentencePiece model file.")
flags.DEFINE_enum(
    "input_file_mode", "r", ["r", "rb"],
    "Has no effect: both values read UTF-8. Accepted because the original "
    "implementation has this flag.")
flags.DEFINE_bool(
    "do_lower_case", True,
    "Lower-case the text. Use the value that the vocabulary was trained with.")
flags.DEFINE_bool(
    "strip_accents", None,
    "Strip accents and other combining marks. Default: taken from the SentencePiece "
    "model; with --vocab_file the value of --do_lower_case.")
flags.DEFINE_enum(
    "recipe", None, list(PRETRAINING_RECIPES),
    "A named preset; give the same to run_pretraining.py. release: the defaults; roberta: "
    "full sentences without pairs, each text once, to be masked during training; fast: "
    "40 percent of the tokens masked. Explicit flags override it.")
define(MaskingOptions, InstanceOptions, DataOptions, sentence_objective="order")


def options_from_flags() -> DataOptions:
    """Returns the flags as frozen options, with the recipe applied and globs expanded;
    says which flags have no effect."""
    for name in ("input_file", "output_file"):
        if not FLAGS[name].value:
            raise InputError(f"--{name} is missing; give a path.")
    if FLAGS.recipe:
        recipe = PRETRAINING_RECIPES[FLAGS.recipe]
        use_recipe(FLAGS.recipe, {
            **recipe.records, **recipe.slots_at(FLAGS.max_seq_length)}, recipe.source)
    objective = FLAGS["sentence_objective"]
    instances = given(
        InstanceOptions, FLAGS, masking=given(MaskingOptions, FLAGS),
        sentence_objective=objective.value if (
            objective.present or objective.value != objective.default) else None)
    check_needs()
    outputs = files.split_names(FLAGS.output_file)
    if FLAGS.num_shards != 1 and len(outputs) > 1:
        raise InputError(f"--num_shards={FLAGS.num_shards} needs a single --output_file, "
                         "from whose name it makes those of the shards.")
    return given(
        DataOptions, FLAGS, instances=instances,
        input_files=tuple(files.expand_patterns(FLAGS.input_file, "--input_file")),
        output_files=tuple(shard for name in outputs
                           for shard in shard_names(name, FLAGS.num_shards)))


def main(argv):
    if argv[1:] and not FLAGS.runner:
        raise InputError(
            f"'{argv[1]}' is not a flag. Write flags as --name=value, and put a value "
            "with spaces in quotes. (Words after a -- are options of the --runner.)")
    if FLAGS.runner and FLAGS.reproduce_release:
        raise InputError("--reproduce_release works in one process; leave out --runner.")
    options = options_from_flags()
    tokenizer = FullTokenizer(
        FLAGS.vocab_file, cli_flags.lower_case(), FLAGS.spm_model_file,
        FLAGS.strip_accents)
    if FLAGS["strip_accents"].present:
        tokenizer.check_keeps_accents()
    language = languages.of_corpora(options.input_files)
    chosen = FLAGS["word_start"].present
    if not chosen:
        options = dataclasses.replace(options, word_start=(
            language and language.word_start or tokenizer.word_start or "release"))
    languages.warn_of_losses(
        options.input_files,
        strips=tokenizer.strip_accents and FLAGS.strip_accents is None and not (
            language and language.strip_accents),
        by_script=tokenizer.uses_sentencepiece and not (language or chosen)
        and options.word_start == "release")
    if FLAGS.runner:
        from albert_tf.pretraining_data import beam

        beam.run(options, tokenizer, FLAGS.runner, argv[1:])
    elif FLAGS.reproduce_release:
        release.create(options, tokenizer)
    else:
        local.create(
            options, tokenizer, num_workers=FLAGS.num_workers, work_dir=FLAGS.work_dir)


if __name__ == "__main__":
    script.run(main, takes_words=True, first_flags=(
        "input_file output_file spm_model_file vocab_file max_seq_length "
        "max_predictions_per_seq dupe_factor masked_lm_prob sentence_objective "
        "recipe num_shards num_workers work_dir reproduce_release"))
