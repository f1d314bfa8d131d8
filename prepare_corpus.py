"""Turns text into a corpus for pretraining: a sentence a line, a blank line after each
document, some documents held out for evaluation.

  python prepare_corpus.py \\
    --input_file='books/*.txt' \\
    --output_file=corpus/train.txt \\
    --heldout_file=corpus/heldout.txt

Input may be plain text (UTF-8; one document per file, or with
--document_separator=blank_line one per block of lines), the output of
wikiextractor (--input_file='extracted/*/wiki_*'), JSON lines (.jsonl), or the
passages of SQuAD's JSON and RACE's files; each also compressed (.gz, .bz2, .xz,
.zst). --input_format=python takes the English prose that comes with the running
Python instead of files. Counts of what was read, written and dropped are printed,
and written as JSON beside the output.
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import contextlib
import time

from absl import flags, logging

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.text import prepare, python_prose, readers, sentences

FLAGS = flags.FLAGS

# Languages that are written without accents or other marks, or nearly so.
_WITHOUT_MARKS = ("en", "zh", "id", "ms", "sw", "la")

flags.DEFINE_string("input_file", "", "Input files: comma-separated paths or globs.")
flags.DEFINE_enum(
    "input_format", "auto", [*readers.FORMATS, "python"],
    "auto goes by the name and beginning of each file; squad: an article's paragraphs "
    "are a document, in their order; race: a passage is one, and --input_file may name "
    "folders, such as RACE/dev; python needs no --input_file: it takes the "
    "documentation of the running Python and of the packages installed in it, and "
    "drops repeated sentences (--deduplicate=sentences).")
flags.DEFINE_string("json_field", "text", "JSON lines: the field with the text.")
flags.DEFINE_enum(
    "document_separator", "file", readers.DOCUMENT_SEPARATORS,
    "Plain text: what ends a document. file suits a folder of books or articles; "
    "blank_line suits files in which every block of lines is a document.")
flags.DEFINE_enum(
    "line_breaks", "auto", readers.LINE_BREAKS,
    "Plain text and JSON: what a single line end means. keep: a new paragraph; "
    "join: nothing, the lines are wrapped; auto: join the lines of blocks that "
    "look wrapped to a page.")
flags.DEFINE_bool(
    "keep_titles", False,
    "wikiextractor: keep the title that stands as the first line of an article.")
flags.DEFINE_string(
    "language", "en", "Language of the text, an ISO 639 code: en, de, zh, ja, ...")
flags.DEFINE_string("output_file", None, "Where the corpus goes.", required=True)
flags.DEFINE_string(
    "heldout_file", None, "Where documents held out for evaluation go.")
flags.DEFINE_float(
    "heldout_share", None, "Share of the documents to hold out [0.05].",
    lower_bound=0, upper_bound=1)
flags.DEFINE_integer(
    "heldout_documents", None, "Or the number of documents to hold out.",
    lower_bound=1)
flags.DEFINE_integer(
    "random_seed", 12345,
    "Chooses the documents held out; further input never reshuffles them.")
flags.DEFINE_integer(
    "min_sentence_chars", 0, "Drop shorter sentences.", lower_bound=0)
flags.DEFINE_integer(
    "max_sentence_chars", 1000,
    "Cut longer sentences, at white space where there is any; 0: never.",
    lower_bound=0)
flags.DEFINE_integer(
    "min_document_sentences", 1, "Drop documents with fewer sentences.",
    lower_bound=1)
flags.DEFINE_enum(
    "deduplicate", "documents", prepare.DEDUPLICATION,
    "Drop exact copies of documents; or also every sentence seen before, in "
    "upper or lower case (about 100 bytes of memory per sentence); or nothing.")
flags.DEFINE_string(
    "summary_file", None,
    "Where the counts go as JSON [--output_file with .summary.json added].")


def preparation_options() -> prepare.Options:
    """The flags as one value, checked against each other."""
    share, number = FLAGS.heldout_share, FLAGS.heldout_documents
    if share is not None and number is not None:
        raise InputError(
            "--heldout_share and --heldout_documents exclude each other: give one.")
    if FLAGS.heldout_file is None and (share is not None or number is not None):
        raise InputError(
            "documents are to be held out, but --heldout_file does not say where "
            "they go.")
    if share is None:
        share = 0.05 if FLAGS.heldout_file and number is None else 0.0
    if 0 < FLAGS.max_sentence_chars < max(20, FLAGS.min_sentence_chars):
        raise InputError(
            f"--max_sentence_chars={FLAGS.max_sentence_chars} is too small: give 0 "
            "for no limit, or at least 20 and at least --min_sentence_chars.")
    if not -2**63 <= FLAGS.random_seed < 2**63:
        raise InputError("--random_seed must fit into 64 bits.")
    python = FLAGS.input_format == "python"
    language = sentences.check_language(FLAGS.language)
    if language.split("-")[0] not in _WITHOUT_MARKS:
        logging.warning(
            "--language=%s: tokenizers strip accents and other combining marks by "
            "default, which changes words (German schön becomes schon, Japanese ガ "
            "becomes カ); --strip_accents=false of train_sentencepiece.py keeps them.",
            language)
    return prepare.Options(
        language, FLAGS.min_sentence_chars,
        FLAGS.max_sentence_chars, FLAGS.min_document_sentences,
        "sentences" if python else FLAGS.deduplicate, share, number or 0,
        FLAGS.random_seed)


def input_paths() -> list[str]:
    """The input files."""
    if FLAGS.input_format == "python":
        if FLAGS.input_file:
            raise InputError(
                "--input_format=python reads no files: leave --input_file out.")
        return []
    return files.expand_patterns(
        FLAGS.input_file, "--input_file",
        inside="**/*.txt" if FLAGS.input_format == "race" else "")


def summary_path() -> str:
    return FLAGS.summary_file or f"{FLAGS.output_file}.summary.json"


def main(argv):
    del argv
    options = preparation_options()
    paths = input_paths()
    files.prepare_outputs(
        {f"--{name}": [path] for name, path in (
            ("output_file", FLAGS.output_file), ("heldout_file", FLAGS.heldout_file),
            ("summary_file", summary_path())) if path or name == "output_file"},
        {"--input_file": paths})
    layout = readers.Layout(
        *(FLAGS[name].value for name in readers.Layout._fields))
    summary = prepare.Summary()
    started = time.time()
    with contextlib.ExitStack() as stack:
        training = stack.enter_context(files.atomic_write(FLAGS.output_file))
        heldout = FLAGS.heldout_file and stack.enter_context(
            files.atomic_write(FLAGS.heldout_file))
        if FLAGS.input_format == "python":
            progress = Progress("reading", "files", None)
            documents = (
                readers.Document(name, readers.paragraphs_of([text], "keep"))
                for name, text in python_prose.documents(on_file=progress.add))
        else:
            on_bytes = Progress.of_bytes("reading", files.total_size(paths))
            documents = readers.read_documents(
                paths, layout, summary.dropped, on_bytes)
        prepare.prepare(documents, options, training, heldout, summary)
    report(summary, time.time() - started)


def report(summary: prepare.Summary, seconds: float) -> None:
    """Prints the counts and writes them as JSON."""
    for name, side, path in (("training", summary.training, FLAGS.output_file),
                             ("held out", summary.heldout, FLAGS.heldout_file)):
        if path:
            print(f"{name}: {side.documents:,} documents, {side.sentences:,} "
                  f"sentences, {side.characters:,} characters -> {path}")
    if FLAGS.heldout_file:
        print(f"held-out share of the characters: {summary.heldout_share():.2%}")
    print(f"read: {summary.documents_read:,} documents in {seconds:.1f} s")
    for reason, count in summary.dropped.items():
        print(f"  {reason}: {count:,}")
    if summary.documents_read == 1:
        logging.warning(
            "The input is a single document; if blank lines separate documents in "
            "it, give --document_separator=blank_line.")
    text_files.write_json(
        summary_path(), {**summary.as_dict(), "seconds": round(seconds, 2)})


if __name__ == "__main__":
    script.run(main)
