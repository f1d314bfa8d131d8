"""Vectors of many texts in one file.

    files ─► units of 1,024 texts ─► rows ─► the output

Each unit is computed separately, so that its vectors depend neither on earlier units
nor on an interruption. The JSON lines of finished units stay in a folder for unfinished
work until all exist. The rows of other formats are held in memory. TensorFlow is loaded
after all inputs are checked.
"""

import collections
import dataclasses
import itertools
import os
import sys
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.checkpoint import Checkpoint, Vocabulary
from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.features import files as feature_files
from albert_tf.text import inputs as text_inputs
from albert_tf.features.files import Row
from albert_tf.features.options import Options, PIECES
from albert_tf.text.inputs import Input
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR
from albert_tf.jobs.work_folder import WorkFolder, state_of

# Increased whenever vectors change; unfinished work of a different version is not
# resumed.
_VERSION = 1
# Maximum number of bytes of the vectors in a unit.
_UNIT_BYTES = 64 << 20

Reader = Callable[[str], Iterator[Input]]
Unit = list[Input]


@dataclasses.dataclass(frozen=True)
class Job:
    """What to compute.

    Attributes:
      options: options with all defaults filled in.
      text_bytes: bytes of the vectors of a text, or of each token with vectors of
        tokens.
      vocabulary: vocabulary for a model whose folder has none.
      unit_texts: maximum number of texts in a unit.
      read: yields the inputs in a file.
      alike_ids: whether all texts need ids of the same type.
    """

    model: str
    options: Options
    text_bytes: int
    vocabulary: Optional[Vocabulary]
    unit_texts: int
    read: Reader
    alike_ids: bool = False

    def units(self, paths: Sequence[str]) -> Iterator[Unit]:
        """Yields the units of the texts in files, which it checks."""
        ids, texts, size = feature_files.Ids(), [], 0
        for each in itertools.chain.from_iterable(map(self.read, paths)):
            try:
                text = text_inputs.named(each.given, text_inputs.TEXTS)
            except InputError as error:
                raise InputError(f"{each.where}: {error}") from error
            if self.alike_ids:
                ids.check(each.kept.get("id"), each.where)
            tokens = 1 if PIECES not in self.options.pooling else min(
                self.options.max_seq_length,
                sum(map(len, filter(None, text.values()))) + NUM_SPECIAL_PAIR)
            text_size = self.text_bytes * tokens
            if texts and (len(texts) == self.unit_texts
                          or size + text_size > _UNIT_BYTES):
                yield texts
                texts, size = [], 0
            texts.append(each._replace(given=text))
            size += text_size
        if texts:
            yield texts


def stream(model: str, paths: Sequence[str], options: Options, held: int = 1024,
           vocabulary: Optional[Vocabulary] = None,
           read: Reader = text_inputs.read,
           on_load: Callable[[], None] = lambda: None) -> Iterator[Row]:
    """Yields the rows of texts while they are read, at most `held` texts at a time;
    `on_load` is called before the model is loaded."""
    job = _job(formats.read(model, vocabulary=vocabulary), model, options,
               vocabulary=vocabulary, unit_texts=held, read=read)
    units = job.units(paths)
    for first in units:
        on_load()
        yield from _rows(job, _extractor(job), itertools.chain([first], units))


def _rows(job: Job, extractor: Any, units: Iterable[Unit],
          progress: Optional[Progress] = None) -> Iterator[Row]:
    """Yields the rows of units, and logs at the end how many texts are cut."""
    total = all_cut = 0
    for unit in units:
        rows, cut = extractor.rows(unit)
        total, all_cut = total + len(rows), all_cut + cut
        yield from rows
        if progress:
            progress.update(total)
    if not total:
        raise InputError("--input_file: there is no text in it.")
    if progress:
        progress.report(total)
    _report_cut(job, all_cut, total)


def _report_cut(job: Job, cut: int, total: int) -> None:
    """Logs how many of the texts are cut."""
    if cut:
        logging.warning(
            "%s of %s texts are longer than --max_seq_length=%d, and are cut%s.",
            f"{cut:,}", f"{total:,}", job.options.max_seq_length,
            "" if PIECES in job.options.pooling else "; --windows reads all of a text")


def _job(checkpoint: Checkpoint, model: str, options: Options, **fields: Any) -> Job:
    """Returns the job for a model, with the options' defaults filled in; `fields` are
    the other fields of Job."""
    if checkpoint.vocabulary is None:
        raise InputError(f"--model={model}: its folder holds no vocabulary; "
                         "give --spm_model_file or --vocab_file.")
    options = options.of(checkpoint)
    vectors = 1 if PIECES in options.pooling else len(options.pooling)
    return Job(model, options, **fields, text_bytes=(
        4 * checkpoint.config.hidden_size * len(options.layers) * vectors))


def _extractor(job: Job):
    from albert_tf.features import vectors  # Late: it loads TensorFlow.

    return vectors.load(job.model, job.options, job.vocabulary)


def extract(model: str, input_files: Sequence[str], output_file: str,
            options: Options = Options(), *, work_dir: Optional[str] = None,
            vocabulary: Optional[Vocabulary] = None, unit_texts: int = 1024,
            read: Reader = text_inputs.read) -> None:
    """Writes the vectors of the texts in files. If JSON lines are written, a run that
    was stopped is resumed; otherwise all vectors are held in memory.

        extract("runs/base", ["texts.txt"], "texts.parquet", Options(("mean",)))

    Args:
      model: a model that `load` accepts.
      input_files: files for `read`; STANDARD_INPUT, which must be the only
        one, is never resumed.
      output_file: a new file; the end of its name is one of feature_files.WRITERS and
        selects the format.
      work_dir: folder for unfinished JSON lines, by default the output's name and
        ".unfinished".
      vocabulary: vocabulary for a model whose folder has none.
      unit_texts: maximum number of texts in a unit.
      read: yields the inputs in a file.
    """
    typed = text_inputs.STANDARD_INPUT in input_files
    if typed and len(input_files) > 1:
        raise InputError("--input_file=- is the standard input, which cannot be "
                         "combined with other files; give files.")
    # 1. Check the files.
    end = feature_files.format_of(output_file)
    sources = [] if typed else list(input_files)
    files.prepare_outputs({"--output_file": [output_file]}, {"--input_file": sources})
    if files.exists(output_file):
        raise InputError(f"--output_file={output_file} exists already; give a new "
                         "name, or remove the file.")
    resumes = end == feature_files.LINES and not typed
    folder = WorkFolder.beside(output_file, work_dir) if resumes else None
    if not files.is_remote(output_file):
        files.make_directory(os.path.dirname(output_file) or ".", "--output_file")
    # 2. Read the model's config, and check all inputs.
    checkpoint = formats.read(model, vocabulary=vocabulary)
    job = _job(checkpoint, model, options, vocabulary=vocabulary, unit_texts=unit_texts,
               read=read, alike_ids=end != feature_files.LINES)
    total = None if typed else _count(job, sources)
    # 3. Compute the rows, or those that are missing.
    if folder:
        state = state_of([*sources, *checkpoint.files()])
        with folder.used(_settings(job), state):
            _write_lines(job, folder, sources, total, output_file)
    else:
        feature_files.WRITERS[end](output_file, _rows(
            job, _extractor(job), job.units(input_files),
            Progress("embedding", "texts", total)))
    logging.info("Wrote %s.", output_file)


def _settings(job: Job) -> dict[str, Any]:
    columns = getattr(job.read, "keywords", {})
    return {**dataclasses.asdict(job.options), "model": job.model,
            "unit_texts": job.unit_texts, "version": _VERSION,
            **({"do_lower_case": job.vocabulary.do_lower_case} if job.vocabulary else {}),
            **{name: value for name, value in columns.items() if value is not None}}


def _count(job: Job, paths: Sequence[str]) -> int:
    """Checks all inputs; returns the number of texts."""
    progress, texts = Progress("checking", "texts", None), 0
    for unit in job.units(paths):
        texts += len(unit)
        progress.update(texts)
    if not texts:
        raise InputError("--input_file: there is no text in it.")
    return texts


def _write_lines(job: Job, folder: WorkFolder, paths: Sequence[str],
                 total: Optional[int], output_file: str) -> None:
    """Writes JSON lines; computes those of units that are not finished."""
    extractor, counts = _extractor(job), collections.Counter[str]()

    def answer(unit: Unit) -> tuple[list[str], dict[str, int]]:
        rows, cut = extractor.rows(unit)
        return list(map(feature_files.line, rows)), {"texts": len(rows), "cut": cut}

    folder.write_lines(
        output_file, job.units(paths), answer,
        lambda done: Progress("embedding", "texts", total, done),
        lambda info: counts.update(texts=info["texts"], cut=info["cut"]))
    _report_cut(job, counts["cut"], counts["texts"])


def show(rows: Iterable[Row]) -> None:
    """Writes rows to the standard output, as JSON lines."""
    try:
        for row in rows:
            print(feature_files.line(row), flush=True)
    except BrokenPipeError:  # For example with `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
