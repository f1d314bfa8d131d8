r"""Writes the vectors of texts, of each piece or after any pass, to a file.

    python extract_features.py --model=runs/base --input_file=texts.txt \
        --output_file=texts.npz --pooling=mean
    python extract_features.py --model=albert_base --input_file='corpus/*.jsonl.gz' \
        --output_file=pieces.parquet --pooling=pieces --layers=-1,-2 --max_seq_length=128
    cat texts.txt | python extract_features.py --model=runs/base --input_file=-

The model is whatever `albert_tf.load` takes. A file holds a text a line, a tab before a
second one; a file .jsonl objects with text, text_pair, and an id that goes into the
output, whose rows stand in the order of the texts. Its name's end says what it is:
.jsonl, .npz, .parquet; without one, JSON lines go to the standard output. Memory stays
bounded, whatever the number of texts; a run that was stopped is resumed when the same
command is started again. --runner does the same on a cluster.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import sys

from absl import flags

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.cli import flags as cli_flags, model_flags
from albert_tf.errors import InputError
from albert_tf.features import job, options as feature_options
from albert_tf.text import inputs

FLAGS = flags.FLAGS

model_flags.define_flags()
flags.DEFINE_string("input_file", None, "Text files: paths or globs, separated by "
                    "commas; - is the standard input.", required=True)
flags.DEFINE_string("output_file", None, "A new file, .jsonl, .npz or .parquet; default: "
                    "JSON lines to the standard output.")
flags.DEFINE_list(
    "pooling", [], "Some of pooled (the release's pooler), cls (the first piece), mean, "
    "max, mean_sqrt_len_tokens, weightedmean, lasttoken (over the pieces), pieces (each "
    "with its vector), embedding (as a folder of sentence-transformers says). Default: "
    "embedding where there is one, else pooled,mean.")
flags.DEFINE_list("layers", ["-1"], "After which passes: 1 is the first, -1 the last. Of "
                  "several, vectors have an axis more.")
flags.DEFINE_integer("max_seq_length", 0, "Pieces of a text, [CLS] and [SEP] among them; "
                     "default: as in training.", lower_bound=0,
                     upper_bound=cli_flags.MOST)
model_flags.define_batch_size()
flags.adopt_module_key_flags(model_flags)
flags.DEFINE_string(
    "work_dir", None, "Folder for unfinished work, removed at the end; by default "
    "<output_file>.unfinished. Give one on this machine where the output is remote.")
flags.DEFINE_string(
    "runner", None, "Run on a cluster, by Apache Beam: DirectRunner, FlinkRunner, "
    "SparkRunner, DataflowRunner, DaskRunner, PortableRunner, or the full name of "
    "another runner's class. Options of the runner come last, after a --.")


def _layers() -> tuple[int, ...]:
    try:
        return tuple(map(int, FLAGS.layers))
    except ValueError as error:
        raise InputError(f"--layers={','.join(FLAGS.layers)}: give whole numbers, "
                         "separated by commas, as in --layers=-1,-2.") from error


def main(argv):
    if argv[1:] and not FLAGS.runner:
        raise InputError(
            f"'{argv[1]}' is not a flag: flags are written --name=value, and a value "
            "with spaces in quotes. (Words after a -- are options of --runner.)")
    options = feature_options.Options(
        tuple(kind.strip() for kind in FLAGS.pooling), _layers(), FLAGS.max_seq_length,
        FLAGS.batch_size)
    typed = FLAGS.input_file == inputs.STANDARD_INPUT
    paths = [FLAGS.input_file] if typed else files.expand_patterns(
        FLAGS.input_file, "--input_file")
    vocabulary = model_flags.vocabulary()
    if FLAGS["batch_size"].present:
        found = formats.read(FLAGS.model, vocabulary=vocabulary)
        model_flags.check_batch_size(found.config, found.facts.get("task") or {})
    if FLAGS.output_file:
        job.extract(
            FLAGS.model, paths, FLAGS.output_file, options, work_dir=FLAGS.work_dir,
            runner=FLAGS.runner or "", runner_options=argv[1:], vocabulary=vocabulary)
    elif FLAGS.runner:
        raise InputError("--runner needs an --output_file, as workers do not write to "
                         "the standard output.")
    else:
        # Who types waits for each answer.
        job.show(job.stream(
            FLAGS.model, paths, options,
            held=1 if sys.stdin.isatty() and typed else 1024, vocabulary=vocabulary))


if __name__ == "__main__":
    script.run(main, takes_words=True)
