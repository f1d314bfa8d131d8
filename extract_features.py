r"""Writes the vectors of texts, or of each token, after any layer, to a file.

    python extract_features.py --model=runs/base --input_file=texts.txt \
        --output_file=texts.npz --pooling=mean
    python extract_features.py --model=albert_base --input_file='corpus/*.jsonl.gz' \
        --output_file=pieces.parquet --pooling=pieces --layers=-1,-2 \
        --max_seq_length=128
    cat texts.txt | python extract_features.py --model=runs/base --input_file=-

The model is any model that `albert_tf.load` accepts. An input file holds one text per
line, optionally with a second text after a tab. A .jsonl file holds objects with text,
text_pair, and an id that is copied to the output. Of a .csv, .tsv, Parquet or Arrow file
the columns are read that the model was trained with, or those that --text_column,
--text_b_column and --id_column name; if there are none, the columns of Parquet have the
names of .jsonl. The output has the texts' order, and its format is that of its name's
end: .jsonl, .npz or .parquet. Without an output file, JSON lines are written to the
standard output. If the command is interrupted while it writes a .jsonl file, run it again
to resume. A .npz or .parquet file is written at the end, so all vectors must fit in
memory, twice: for many texts write JSON lines, or several files.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import functools
import sys

from absl import flags

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.cli import checks, flags as cli_flags, model_flags
from albert_tf.errors import InputError
from albert_tf.features import job, options as feature_options
from albert_tf.text import inputs

FLAGS = flags.FLAGS

model_flags.define_flags()
flags.DEFINE_string("input_file", None, "Comma-separated paths or globs of text files, "
                    "or - for the standard input.", required=True)
flags.DEFINE_string("output_file", None, "New output file: .jsonl, which resumes, "
                    ".npz or .parquet, whose vectors must fit in memory; default: write "
                    "JSON lines to the standard output.")
flags.DEFINE_list(
    "pooling", [], "Comma-separated kinds of vectors: pooled (the model's pooler), cls "
    "(the first token), mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken (over "
    "the tokens), pieces (a vector for each token), embedding (as defined by a folder "
    "of sentence-transformers). Default: embedding if it is defined, else "
    "pooled,mean.")
flags.DEFINE_list("layers", ["-1"], "Comma-separated numbers of the layers to use: 1 "
                  "is the first, -1 the last. With several layers the vectors have an "
                  "additional axis.")
flags.DEFINE_integer("max_seq_length", 0, "Maximum number of tokens in a text, with "
                     "[CLS] and [SEP]; 0: as in training.", lower_bound=0,
                     upper_bound=cli_flags.MOST)
model_flags.define_batch_size()
model_flags.define_length_flags()
model_flags.define_columns()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_string(
    "work_dir", None, "Folder for unfinished JSON lines, removed at the end; "
    "default: <output_file>.unfinished. If the output is remote, give a folder on this machine.")


def _layers() -> tuple[int, ...]:
    try:
        return tuple(map(int, FLAGS.layers))
    except ValueError as error:
        raise InputError(f"--layers={','.join(FLAGS.layers)}: give whole numbers, "
                         "separated by commas, as in --layers=-1,-2.") from error


def main(argv):
    script.check_packages("tensorflow", "tf_keras")
    checks.check_needs("work_dir", FLAGS.output_file, "--output_file")
    checks.say_unused("work_dir", (FLAGS.output_file or ".jsonl").endswith(".jsonl"),
                      "with a .npz or .parquet file, which is written at the end")
    options = feature_options.Options(
        tuple(kind.strip() for kind in FLAGS.pooling), _layers(), FLAGS.max_seq_length,
        FLAGS.batch_size, FLAGS.windows, FLAGS.truncated)
    typed = FLAGS.input_file == inputs.STANDARD_INPUT
    paths = [FLAGS.input_file] if typed else files.expand_patterns(
        FLAGS.input_file, "--input_file")
    vocabulary = model_flags.vocabulary()
    checkpoint = formats.read(FLAGS.model, vocabulary=vocabulary)
    settings = checkpoint.facts.get("task") or {}
    model_flags.check_batch_size(checkpoint.config, settings)
    read = functools.partial(inputs.read, **model_flags.columns(settings))
    if FLAGS.output_file:
        job.extract(
            FLAGS.model, paths, FLAGS.output_file, options, work_dir=FLAGS.work_dir,
            vocabulary=vocabulary, read=read)
    else:
        # A user who types texts should see each answer immediately.
        job.show(job.stream(
            FLAGS.model, paths, options,
            held=1 if sys.stdin.isatty() and typed else 1024, vocabulary=vocabulary,
            read=read, on_load=model_flags.log_hardware))


if __name__ == "__main__":
    script.run(main)
