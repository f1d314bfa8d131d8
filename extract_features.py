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

import dataclasses
import sys
from typing import Optional

from absl import flags

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import check_needs, define
from albert_tf.features import extract
from albert_tf.features.extract import Options
from albert_tf.options import given, option

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of a run."""

    input_file: str = option(
        None, "Comma-separated paths or globs of text files, or - for the standard "
        "input.", required=True)
    output_file: Optional[str] = option(
        None, "New output file: .jsonl, which resumes, .npz or .parquet, whose vectors "
        "must fit in memory; default: write JSON lines to the standard output.")
    work_dir: Optional[str] = option(
        None, "Folder for unfinished JSON lines, removed at the end; default: "
        "<output_file>.unfinished. If the output is remote, give a folder on this "
        "machine.", only_with="output_file")


define(cli_flags.UsedModel, Files, Options, cli_flags.Columns,
       without="labels engine")


def main(argv):
    script.check_packages("tensorflow", "tf_keras")
    check_needs()
    options = given(Options, FLAGS)
    is_stream = files.is_stream(FLAGS.input_file)
    paths = [FLAGS.input_file] if is_stream else files.expand_patterns(
        FLAGS.input_file, "--input_file")
    vocabulary = cli_flags.vocabulary()
    checkpoint = formats.read(FLAGS.model, vocabulary=vocabulary)
    columns = cli_flags.columns(checkpoint.settings)
    if FLAGS.output_file:
        extract.extract(FLAGS.model, paths, FLAGS.output_file, options,
                        work_dir=FLAGS.work_dir, vocabulary=vocabulary, columns=columns)
        return
    features = extract.load(FLAGS.model, options.of(checkpoint), vocabulary)
    # A user who types texts should see each answer immediately.
    held = 1 if is_stream and sys.stdin.isatty() else 1024
    for row in extract.stream(features, extract.texts(paths, columns), held):
        print(extract.line(row), flush=True)


if __name__ == "__main__":
    script.run(main)
