"""Turns text into a corpus for pretraining: one sentence per line, a blank line after
each document, and some documents held out for evaluation.

  python prepare_corpus.py \\
    --input_file='books/*.txt' \\
    --output_file=corpus/train.txt \\
    --heldout_file=corpus/heldout.txt

The input may be plain text (UTF-8; one document per file, or with
--document_separator=blank_line one per block of lines), the output of wikiextractor
(--input_file='extracted/*/wiki_*'), JSON lines (.jsonl), or Parquet or Arrow (.parquet,
.arrow). Text may be compressed (.gz, .bz2, .xz, .zst). The script prints the counts of
what was read, written and dropped, and writes them as JSON beside the output. --language
divides sentences as the language does, and leaves a file beside the corpus from which the
next scripts take what the language needs.

If it was stopped, run the same command again to resume it. The same flags and text give
the same bytes on any number of cores.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import contextlib
import itertools
import os
import time
from typing import Iterator

from absl import flags, logging

from albert_tf import files, text_files
from albert_tf.cli.define import check_needs, define
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import Progress
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.options import given
from albert_tf.text import languages, prepare, readers

FLAGS = flags.FLAGS

_FEW_BYTES = 1 << 22  # less text takes one process: starting more is slower

flags.DEFINE_string(
    "input_file", None, "Input files: paths or globs, separated by commas.", required=True)
define(readers.Layout)
flags.DEFINE_string(
    "language", None, "ISO 639 code of the text's language: en, de, zh, ja, ... "
    "<output_file>.language.json then says whether the language needs its accents, and "
    "how words start, which train_sentencepiece.py and create_pretraining_data.py follow. "
    "Default: sentences end as in English.")
flags.DEFINE_string(
    "output_file", None, "File to write the corpus to.", required=True)
flags.DEFINE_string(
    "heldout_file", None, "File to write the documents held out for evaluation to.")
define(prepare.Sampling, prepare.Options)
flags.DEFINE_integer(
    "num_workers", 0, "Number of worker processes; 0 uses one for each core.",
    lower_bound=0, upper_bound=1024)
flags.DEFINE_string(
    "work_dir", None,
    "Folder for unfinished work, which is removed at the end. Default: <output_file>"
    ".unfinished. If the output is remote, give a folder on this machine.")
flags.DEFINE_string(
    "summary_file", None,
    "File to write the counts to as JSON. Default: <output_file>.summary.json.")


def preparation_options() -> prepare.Options:
    """Returns the flags as options; raises InputError if they contradict each other."""
    check_needs()
    share = FLAGS.heldout_share
    if share is None:
        share = 0.05 if FLAGS.heldout_file else 0.0
    if 0 < FLAGS.max_sentence_chars < max(20, FLAGS.min_sentence_chars):
        raise InputError(
            f"--max_sentence_chars={FLAGS.max_sentence_chars} is too small; give 0 "
            "for no limit, or at least 20 and at least --min_sentence_chars.")
    return given(prepare.Options, FLAGS, heldout_share=share,
                 language=languages.check_language(FLAGS.language or "en"))


def read(sources: dict[str, list[str]], layout: readers.Layout,
         summary: prepare.Summary) -> Iterator[readers.Document]:
    """Yields the documents of all sources."""
    on_bytes = Progress.of_bytes("reading", itertools.chain(*sources.values()))
    for source, paths in sources.items():
        for document in readers.read_documents(
                paths, layout, summary.dropped, on_bytes):
            yield document._replace(source=source)


def main(argv):
    options = preparation_options()
    layout = given(readers.Layout, FLAGS)
    sources = files.expand_each(FLAGS.input_file, "--input_file")
    inputs = list(itertools.chain(*sources.values()))
    summary_file = FLAGS.summary_file or f"{FLAGS.output_file}.summary.json"
    sampled = prepare.is_sampled(FLAGS.sampling_exponent, sources)
    outputs = list(filter(None, (FLAGS.output_file, FLAGS.heldout_file)))
    files.prepare_outputs(
        {f"--{name}": [path] for name, path in (
            ("output_file", FLAGS.output_file), ("heldout_file", FLAGS.heldout_file),
            ("summary_file", summary_file)) if path or name == "output_file"}
        | {"the language of --output_file": map(languages.file_of, outputs)},
        {"--input_file": inputs})
    workers = FLAGS.num_workers or parallel.num_cores()
    if not any(map(files.is_remote, inputs)) and (
            sum(map(files.size, inputs)) < _FEW_BYTES):
        workers = 1
    folder = WorkFolder.beside(FLAGS.output_file, FLAGS.work_dir)
    # What the sentences depend on.
    settings = {**vars(layout), "version": 2, "input_file": [*sources], **{
        name: getattr(options, name) for name in (
            "language", "min_sentence_chars", "max_sentence_chars")}}
    splitter, summary = prepare.Splitter(options, folder), prepare.Summary()
    started = time.time()
    with folder.used(settings, inputs), contextlib.ExitStack() as stack:
        training, heldout = (path and stack.enter_context(files.atomic_write(path))
                             for path in (FLAGS.output_file, FLAGS.heldout_file))
        pool = stack.enter_context(
            parallel.WorkerPool(splitter, workers))
        names = pool.in_order(
            splitter.units(read(sources, layout, summary)), "splitting")
        amounts, times = {}, {}
        if sampled:
            names = list(names)
            counted = prepare.Summary()
            with open(os.devnull, "wb") as nowhere:
                prepare.prepare(splitter.read(names, counted.dropped), options, nowhere,
                                nowhere if heldout else None, counted)
            amounts = {source: counted.sources[source] for source in sources}
            times = prepare.times_of(amounts, FLAGS.sampling_exponent)
        prepare.prepare(splitter.read(names, summary.dropped), options, training,
                        heldout, summary, times)
        for path in outputs:
            if FLAGS.language:
                languages.Language.of(options.language).write(path)
            elif files.exists(languages.file_of(path)):  # that of a former run
                files.remove(languages.file_of(path))
    report(summary, summary_file, time.time() - started, amounts)


def report(summary: prepare.Summary, path: str, seconds: float,
           amounts: dict[str, int]) -> None:
    """Prints the counts and writes them as JSON, with those of sampled sources."""
    for name, side, file in (("training", summary.training, FLAGS.output_file),
                             ("held out", summary.heldout, FLAGS.heldout_file)):
        if file:
            print(name + ": {documents:,} documents, {sentences:,} sentences, "
                  "{characters:,} characters -> ".format(**side) + file)
    held = summary.heldout["characters"]
    share = held / max(summary.training["characters"] + held, 1)
    if FLAGS.heldout_file:
        print(f"held-out share of the characters: {share:.2%}")
    print(f"read: {summary.documents_read:,} documents in {seconds:.1f} s")
    for reason, count in summary.dropped.items():
        print(f"  {reason}: {count:,}")
    if summary.documents_read == 1:
        logging.warning(
            "The input is a single document. If blank lines separate documents in "
            "it, give --document_separator=blank_line.")
    sources = {source: {"sentences": amount, "written": summary.sources[source]}
               for source, amount in amounts.items()}
    text_files.write_json(path, {
        "documents_read": summary.documents_read, "training": summary.training,
        "heldout": summary.heldout, "heldout_share_of_characters": round(share, 6),
        "dropped": summary.dropped, **({"sources": sources} if sources else {}),
        "seconds": round(seconds, 2)})


if __name__ == "__main__":
    script.run(main)
