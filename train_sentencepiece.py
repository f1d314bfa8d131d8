"""Trains a SentencePiece vocabulary with the settings of the original implementation.

  python train_sentencepiece.py \\
    --input_file=corpus/train.txt \\
    --output_prefix=corpus/spm

This writes corpus/spm.model, which the other scripts take as --spm_model_file, and
corpus/spm.vocab, its pieces in plain text. The text is first preprocessed as the
tokenizer does it. Give the same --do_lower_case to the other scripts. The model keeps
what prepare_corpus.py --language says of the text: whether accents are stripped, and how
words start.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import itertools
import os
import time

from absl import flags

from albert_tf import files, rows, text_files
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from albert_tf.options import given
from albert_tf.jobs.progress import Progress
from albert_tf.text import languages, prepare
from albert_tf.tokenization import train_sentencepiece

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None,
    "Text files with one sentence per line: paths or globs, separated by commas.",
    required=True)
flags.DEFINE_string(
    "output_prefix", None,
    "Path of the outputs without their suffix; <output_prefix>.model and "
    "<output_prefix>.vocab are written.",
    required=True)
define(train_sentencepiece.Options, prepare.Sampling)


def read(sources, doing="reading"):
    """Yields (source, line) of the files of all sources."""
    on_bytes = Progress.of_bytes(doing, itertools.chain(*sources.values()))
    for source, paths in sources.items():
        for path in paths:
            for _, line in text_files.read_lines(path, on_bytes):
                yield source, line


def sampled(sources, exponent):
    """Yields the lines of all sources in shares by the exponent."""
    amounts = dict.fromkeys(sources, 0)
    for source, line in read(sources, "counting"):
        amounts[source] += bool(line.strip())
    copies = prepare.Copies(prepare.times_of(amounts, exponent))
    for source, line in read(sources):
        if line.strip():
            yield from itertools.repeat(line, copies.of(source))


def main(argv):
    sources = files.expand_each(FLAGS.input_file, "--input_file")
    paths = list(itertools.chain(*sources.values()))
    rows.check_sentences(paths)
    if prepare.is_sampled(FLAGS.sampling_exponent, sources):
        lines = sampled(sources, FLAGS.sampling_exponent)
    else:
        lines = (line for _, line in read(sources))
    prefix = FLAGS.output_prefix
    if os.path.basename(prefix) in ("", ".", ".."):
        raise InputError(f"--output_prefix={prefix} is a folder; add the name of the files "
                         f"without .model, as in {os.path.join(prefix, 'spm')}.")
    files.prepare_outputs({"--output_prefix": [f"{prefix}.model", f"{prefix}.vocab"]},
                          {"--input_file": paths})
    chosen = FLAGS["strip_accents"].present
    if language := languages.of_corpora(paths):
        options = given(
            train_sentencepiece.Options, FLAGS, word_start=language.word_start,
            strip_accents=FLAGS.strip_accents if chosen else language.strip_accents)
    else:
        languages.warn_of_losses(paths, not chosen, by_script=True)
        options = given(train_sentencepiece.Options, FLAGS)
    started = time.time()
    # Both files are opened before the training, so that a folder that cannot be
    # written is reported now.
    with files.atomic_write(f"{prefix}.model") as model_file, \
            files.atomic_write(f"{prefix}.vocab") as vocab_file:
        result = train_sentencepiece.train(lines, options)
        model_file.write(result.model)
        vocab_file.write(result.vocab)
    print(f"{options.vocab_size:,} pieces from {result.sentences:,} sentences with "
          f"{result.characters:,} characters in {time.time() - started:.0f} s -> "
          f"{prefix}.model, {prefix}.vocab")


if __name__ == "__main__":
    script.run(main)
