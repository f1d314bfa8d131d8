"""Trains a SentencePiece vocabulary with the settings of the 2019 release.

  python train_sentencepiece.py \\
    --input_file=corpus/train.txt \\
    --output_prefix=corpus/spm

writes corpus/spm.model, which the other scripts take as --spm_model_file, and
corpus/spm.vocab, its pieces in plain text. The text goes through the
preprocessing of the tokenizer first: give the same --do_lower_case to the other
scripts.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import os
import time

from absl import flags, logging

from albert_tf import files, text_files
from albert_tf.jobs import parallel
from albert_tf.errors import InputError
from albert_tf.pretraining_data.spans import MAX_LINE_BYTES
from albert_tf.jobs.progress import Progress, amount
from albert_tf.tokenization import train_sentencepiece

FLAGS = flags.FLAGS

_DEFAULTS = train_sentencepiece.Options()
_MOST = 2 ** 31 - 1  # The trainer's integers.
flags.DEFINE_string(
    "input_file", None, "Text, a sentence to a line: comma-separated paths or globs.",
    required=True)
flags.DEFINE_string(
    "output_prefix", None, "PREFIX.model and PREFIX.vocab are written.",
    required=True)
flags.DEFINE_integer("vocab_size", _DEFAULTS.vocab_size, "Number of pieces.",
                     upper_bound=_MOST)
flags.DEFINE_bool(
    "do_lower_case", _DEFAULTS.do_lower_case,
    "Lower-case the text first.")
flags.DEFINE_bool(
    "strip_accents", _DEFAULTS.strip_accents,
    "Strip accents and other combining marks first, as the release does: schön becomes "
    "schon, ガ becomes カ. With false the model says so, and its readers keep them.")
flags.DEFINE_float(
    "character_coverage", _DEFAULTS.character_coverage,
    "Share of the characters that get a piece of their own; 0.9995 suits Chinese "
    "and Japanese.")
flags.DEFINE_integer(
    "input_sentence_size", _DEFAULTS.input_sentence_size,
    "Train on this many sentences drawn at random, if there are more, always the same "
    "ones. They are held in memory; by default fewer are drawn where it is too small.",
    upper_bound=_MOST)
flags.DEFINE_integer(
    "num_threads", _DEFAULTS.num_threads,
    "Threads of the trainer. The result depends on their number (sums round "
    "differently), so the default is the same on every machine.",
    upper_bound=_MOST)
flags.DEFINE_bool("verbose", False, "Show the trainer's own log.")


def input_sentence_size(paths):
    """The flag, or its default lowered to what fits the memory."""
    wanted, size = FLAGS.input_sentence_size, files.total_size(paths)
    if size is None:  # remote
        return wanted
    text, read_bytes = [], 0
    for _, line in text_files.read_lines(paths[0]):
        text += [line] * bool(line.strip())
        read_bytes += len(line.encode())
        if read_bytes > 1 << 18:
            break
    if not text:
        return wanted
    if any(path.endswith(text_files.COMPRESSED) for path in paths):
        size *= 4  # about
    sentences = min(wanted, size / read_bytes * len(text))
    memory = train_sentencepiece.memory_of_sentence(text)
    free = parallel.available_memory()
    if sentences * memory <= free:
        return wanted
    fits = int(free / memory)
    found = (f"{sentences:,.0f} sentences would take about "
             f"{amount(sentences * memory)} of memory, and {amount(free)} are free")
    if FLAGS["input_sentence_size"].present or fits <= 100:
        raise InputError(
            f"--input_sentence_size={wanted}: {found}; give {fits} at most, or none.")
    logging.warning("%s: --input_sentence_size is lowered to %d, drawn at random.",
                    found, fits)
    return fits


def read(paths):
    """Lines of the files; says when the reading is over and the training starts."""
    on_bytes = Progress.of_bytes("reading", files.total_size(paths))
    for path in paths:
        for number, line in text_files.read_lines(path, on_bytes):
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} million "
                    "characters; the input has a sentence a line: split the text into "
                    "sentences, for example with prepare_corpus.py.")
            yield line
    logging.info("All text is read; training starts.")


def main(argv):
    del argv
    options = train_sentencepiece.Options(
        *(FLAGS[name].value for name in train_sentencepiece.Options._fields))
    train_sentencepiece.check(options)
    paths = files.expand_patterns(FLAGS.input_file, "--input_file")
    options = options._replace(input_sentence_size=input_sentence_size(paths))
    prefix = FLAGS.output_prefix
    if os.path.basename(prefix) in ("", ".", ".."):
        raise InputError(
            f"--output_prefix={prefix} is a folder; give the files' names up to .model "
            f"too, as in {os.path.join(prefix, 'spm')}.")
    files.prepare_outputs({"--output_prefix": [f"{prefix}.model", f"{prefix}.vocab"]},
                          {"--input_file": paths})
    started = time.time()
    # Both files are opened first: a folder that cannot be written shows now.
    with files.atomic_write(f"{prefix}.model") as model_file, \
            files.atomic_write(f"{prefix}.vocab") as vocab_file:
        result = train_sentencepiece.train(read(paths), options)
        model_file.write(result.model)
        vocab_file.write(result.vocab)
    print(f"{options.vocab_size:,} pieces from {result.sentences:,} sentences with "
          f"{result.characters:,} characters in {time.time() - started:.0f} s -> "
          f"{prefix}.model, {prefix}.vocab")


if __name__ == "__main__":
    script.run(main)
