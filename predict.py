r"""Runs a trained model on text: labels, answers, filled masks, order or vectors.

    python predict.py --model=runs/sst-2 "A fine film."
    python predict.py --model=runs/mrpc "The first text." "The second text."
    python predict.py --model=runs/squad2 "Who wrote it?" "The passage."
    python predict.py --model=runs/race "The passage." "The question?" "One" "Another"
    python predict.py --model=runs/base "ALBERT [MASK] its layers."
    python predict.py --model=runs/sst-2 --input_file=in.txt --output_file=out.jsonl
    tail -f log.txt | python predict.py --model=runs/sst-2 --input_file=-

The model is anything that `albert_tf.load` accepts. An input file holds one text per
line, or two separated by a tab. A .jsonl file holds inputs by name: text, text_pair;
question, passage; passage, question, options; an `id` is copied into the answer. The
first line of a pipe says which of these it is, and whether it is a table. Of a
.csv, .tsv, Parquet or Arrow file the columns are read that the model was trained with,
or those that --text_column, --text_b_column and --id_column name; if there are none,
the columns of Parquet have the names of .jsonl.
Answers are in the order of the inputs: JSON lines, or a table on a terminal. A wrong
line of a file gets `error` and its `line` as its answer, and the exit status is 1. If a
command with --input_file and --output_file is interrupted, run it again to resume.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

import dataclasses
import functools
import sys
import time
from typing import Any, Callable, Iterator, Optional

from absl import flags, logging

from albert_tf import files
from albert_tf.cli import flags as cli_flags
from albert_tf.cli.define import check_needs, define
from albert_tf.errors import InputError
from albert_tf.jobs import progress, work_folder
from albert_tf.options import given, option
from albert_tf.serving.options import Ask
from albert_tf.text import inputs

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Options:
    """The inputs and where the answers go."""

    input_file: Optional[str] = option(
        None, "File of texts to use instead of those on the command line: one per line, "
        ".jsonl, .csv, .tsv or .parquet; - is the standard input.")
    output_file: Optional[str] = option(
        None, "New file to write the answers to, as JSON lines; default: the standard "
        "output.")
    copy_texts: bool = option(
        False, "Copy the texts of --input_file into the answers, under the names of "
        "their columns (default: text, text_pair); run_classifier.py can train on such "
        "answers (docs/DISTILLATION.md).", only_with="input_file")
    work_dir: Optional[str] = option(
        None, "Local folder for the unfinished answers to a file, removed at the end; "
        "default: <output_file>.unfinished. If the output is in a store, such as s3://, "
        "only a command with this flag can be resumed.", only_with="output_file")
    format: str = option(
        "auto", "Format of the standard output; auto: a table on a terminal, else JSON "
        "lines.", choices=["auto", "json", "table"])


define(cli_flags.UsedModel, cli_flags.Columns, Ask, Options)


def _inputs(words: list[str], read: Callable) -> Iterator[inputs.Input]:
    """Yields the inputs. A file that cannot be read to its end ends in an input that is
    the InputError, so that the texts before it are answered."""
    if FLAGS.input_file is None:
        yield inputs.Input(words[0] if len(words) == 1 else words, {}, "", 0)
        return
    last = 0
    try:
        for item in read(FLAGS.input_file):
            last = item.line
            yield item
    except InputError as error:
        if not last:
            raise
        yield inputs.Input(error, {}, "", last + 1)


def _readable(given: Any, answer: dict[str, Any]) -> str:
    """Returns a line of a table: the answer, and then the text that it is for."""
    short = f"no answer to line {answer['line']}: {answer['error']}" if (
        "error" in answer) else "  ".join(map(_shown, answer.values()))
    texts = given.values() if isinstance(given, dict) else [given]
    return f"{short}  | " + " | ".join(
        text if len(text) <= 40 else f"{text[:40]}..." for text in map(
            str, texts if not isinstance(given, (list, tuple)) else given))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        value = [f"{name} {_shown(each)}" for name, each in value.items()]
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value[:8])) + ", ..." * (len(value) > 8) + "]"
    return str(value)


def main(argv):
    words = argv[1:]
    check_needs()
    if (FLAGS.input_file is None) == (not words):
        raise InputError(
            "give texts on the command line or --input_file (- for the standard "
            "input)" + (", not both." if words else "."))
    if path := FLAGS.output_file:
        files.check_new(path, "--output_file")
        if FLAGS.format == "table":
            raise InputError("--format=table is for the standard output, but --output_file "
                             "gets JSON lines; leave one of the two out.")
    if _is_file():
        files.open_binary(FLAGS.input_file).close()
    if path and _is_file() and (FLAGS.work_dir or not files.is_remote(path)):
        _answer_file(path)
    else:
        _answer_stream(words, path)


def _is_file() -> bool:
    return bool(FLAGS.input_file) and not files.is_stream(FLAGS.input_file)


def _load():
    """Returns the model, and a function that reads a file of inputs for it."""
    model = cli_flags.load_model()
    from albert_tf.serving import engines

    engines.use(model, FLAGS.engine, FLAGS.model, FLAGS.task,
                "it is faster for the batches of a file." * _is_file(),
                # An export takes longer than the answer to one input.
                export=FLAGS.input_file is not None)
    columns = cli_flags.columns(model.settings) | {
        "inputs": model.head(FLAGS.task or next(iter(model.tasks()))).names}
    return model, functools.partial(_with_texts, columns) if (
        FLAGS.copy_texts) else functools.partial(inputs.read, **columns)


def _with_texts(columns: dict[str, Any], path: str) -> Iterator[inputs.Input]:
    """Yields the inputs of a file, whose answers get their texts, too."""
    titles = [title if title and not title.isdecimal() else name for title, name in (
        (columns["text_column"], "text"), (columns["text_b_column"], "text_pair"))]
    for item in inputs.read(path, **columns):
        texts = (item.given,) if isinstance(item.given, str) else item.given
        if isinstance(texts, tuple):
            texts = dict(zip(titles, texts))
        yield item._replace(kept={**texts, **item.kept}) if isinstance(
            texts, dict) else item


def _answer_file(path: str) -> None:
    """Answers a file of inputs in a file, and resumes this if it was interrupted."""
    begin, ask = time.monotonic(), given(Ask, FLAGS)
    folder = work_folder.WorkFolder.beside(path, FLAGS.work_dir)
    settings = {**{name: FLAGS[name].value for name in (
        "model", "input_file", "do_lower_case", "copy_texts", "labels")},
        **dataclasses.asdict(ask), **cli_flags.columns({})}
    if FLAGS.engine in ("openvino", "onnxruntime"):
        settings["engine"] = FLAGS.engine
    with folder.used(settings, [FLAGS.input_file, *cli_flags.model_files()]):
        model, read = _load()
        from albert_tf.serving import answer_file

        total = sum(1 for _ in _inputs([], read))
        counts = answer_file.write(
            model, _inputs([], read), path, folder, ask, total)
    logging.info("Wrote %s answers to %s in %s.", f"{counts.answers:,}", path,
                 progress.duration(time.monotonic() - begin))
    counts.check()


def _answer_stream(words: list[str], path: Optional[str]) -> None:
    """Answers inputs as they come, on the standard output or in a file."""
    model, read = _load()
    from albert_tf.serving import answer_file

    table = FLAGS.format == "table" or FLAGS.format == "auto" and (
        not path and sys.stdout.isatty())
    waiting: list[inputs.Input] = []  # without an answer yet
    counts = answer_file.Counts()

    def stream_inputs():
        for item in _inputs(words, read):
            waiting.append(item)
            yield item.given

    def line_of(answer):
        item = waiting.pop(0)
        answer = counts.full(item, answer)
        return _readable(item.given, answer) if table else answer_file.line(answer)

    lines = map(line_of, model.stream(
        stream_inputs(), given(Ask, FLAGS),
        # A stream may be typed or follow a log: each text is answered at once.
        held=1 if FLAGS.input_file and not _is_file() else 1024,
        keep_errors=FLAGS.input_file is not None))
    if path:
        answer_file.write_stream(lines, path)
        logging.info("Wrote %s answers to %s.", f"{counts.answers:,}", path)
    else:
        for line in lines:
            print(line, flush=True)
    counts.check()


if __name__ == "__main__":
    script.run(main, takes_words=True)
