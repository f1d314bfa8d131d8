"""Vectors of many texts in one file, in bounded memory.

    files ─► tasks ─► units of 1,024 texts ─► rows ─► parts ─► the output

Each unit is computed separately, so that its vectors depend neither on earlier units
nor on an interruption. Its part stays in a folder for unfinished work until all parts
exist. TensorFlow is loaded after all inputs are checked.
"""

import dataclasses
import os
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

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

NAMES = ("text", "text_pair")
# Increased whenever vectors change; unfinished work of a different version is not
# resumed.
_VERSION = 1
# Maximum number of bytes of the vectors in a unit.
_UNIT_BYTES = 64 << 20
# Maximum number of bytes of small files that are read in one task.
_TASK_BYTES = 8 << 20
_JOINED = "joined"


class Unit(NamedTuple):
    """Texts that are computed separately from others."""

    name: str
    inputs: list[Input]


Reader = Callable[[str], Iterator[Input]]
Task = tuple[int, tuple[str, ...]]  # number, files to read in order


@dataclasses.dataclass(frozen=True)
class Job:
    """What to compute.

    Attributes:
      options: options with all defaults filled in.
      format: key of feature_files.FORMATS.
      text_bytes: bytes of the vectors of a text, or of each token with vectors of
        tokens.
      vocabulary: vocabulary for a model whose folder has none.
      read: yields the inputs in a file.
    """

    model: str
    options: Options
    folder: WorkFolder
    format: str
    text_bytes: int
    vocabulary: Optional[Vocabulary] = None
    unit_texts: int = 1024
    read: Reader = text_inputs.read

    @property
    def files(self) -> feature_files.JsonLines:
        return feature_files.FORMATS[self.format]

    def units(self, task: Task, ids: Optional[feature_files.Ids] = None
              ) -> Iterator[Unit]:
        """Yields the units of a task's texts, which it checks."""
        number, paths = task
        ids = ids or feature_files.Ids()
        texts, size, count = [], 0, 0
        for path in paths:
            for each in self.read(path):
                try:
                    text = text_inputs.named(each.given, NAMES, NAMES[1:])
                except InputError as error:
                    raise InputError(f"{each.where}: {error}") from error
                if self.files.needs_columns:
                    ids.check(each.kept.get("id"), each.where)
                tokens = 1 if PIECES not in self.options.pooling else min(
                    self.options.max_seq_length,
                    sum(map(len, filter(None, text.values()))) + NUM_SPECIAL_PAIR)
                text_size = self.text_bytes * tokens
                if texts and (len(texts) == self.unit_texts
                              or size + text_size > _UNIT_BYTES):
                    yield Unit(_name(number, count), texts)
                    texts, size, count = [], 0, count + 1
                texts.append(each._replace(given=text))
                size += text_size
        if texts:
            yield Unit(_name(number, count), texts)

    def is_finished(self, name: str) -> bool:
        return self.folder.finished(name) is not None

    def part(self, extractor: Any, unit: Unit) -> tuple[bytes, dict[str, int]]:
        """Computes the part of a unit, and counts its texts and those that are cut."""
        rows, cut = extractor.rows(unit.inputs)
        return self.files.part(rows), {"texts": len(rows), "cut": cut}

    def keep(self, name: str, part: bytes, counts: dict[str, int]) -> None:
        """Writes the part of a unit, and its counts."""
        self.folder.keep(name, self.format, part, counts)


def _name(task: int, unit: int) -> str:
    return f"unit-{task:06d}-{unit:06d}"


def tasks_of(paths: Sequence[str]) -> list[Task]:
    """Groups files into tasks; consecutive small files share a task."""
    groups: list[list[str]] = []
    total = 0
    for path in paths:
        size = _TASK_BYTES if path == text_inputs.STANDARD_INPUT or (
            files.is_remote(path)) else files.size(path)
        if not groups or total + size > _TASK_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(path)
        total += size
    return [(number, tuple(group)) for number, group in enumerate(groups)]


def stream(model: str, paths: Sequence[str], options: Options, held: int = 1024,
           vocabulary: Optional[Vocabulary] = None,
           read: Reader = text_inputs.read,
           on_load: Callable[[], None] = lambda: None) -> Iterator[Row]:
    """Yields the rows of texts while they are read, at most `held` texts at a time;
    `on_load` is called before the model is loaded."""
    job = _job(formats.read(model, vocabulary=vocabulary), model, options,
               folder=WorkFolder(""), format=".jsonl", vocabulary=vocabulary,
               unit_texts=held, read=read)
    extractor, total, all_cut = None, 0, 0
    for unit in job.units((0, tuple(paths))):
        if extractor is None:
            on_load()
            extractor = _extractor(job)
        rows, cut = extractor.rows(unit.inputs)
        total, all_cut = total + len(rows), all_cut + cut
        yield from rows
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
            vocabulary: Optional[Vocabulary] = None,
            unit_texts: int = Job.unit_texts,
            read: Reader = text_inputs.read) -> None:
    """Writes the vectors of the texts in files, or resumes a run that was stopped.

        extract("runs/base", ["texts.txt"], "texts.parquet", Options(("mean",)))

    Args:
      model: a model that `load` accepts.
      input_files: files for `read`; STANDARD_INPUT, which must be the only
        one, is never resumed.
      output_file: a new file; the end of its name is one of feature_files.FORMATS and
        selects the format.
      work_dir: folder for unfinished work, by default the output's name and
        ".unfinished".
      vocabulary: vocabulary for a model whose folder has none.
      unit_texts: maximum number of texts in a unit.
      read: yields the inputs in a file.
    """
    typed = text_inputs.STANDARD_INPUT in input_files
    if typed and len(input_files) > 1:
        raise InputError("--input_file=- is the standard input, which cannot be "
                         "combined with other files; give files.")
    # 1. Check the files; a finished output of the same command needs no work.
    kind = feature_files.format_of(output_file)
    sources = [] if typed else list(input_files)
    files.prepare_outputs({"--output_file": [output_file]}, {"--input_file": sources})
    folder = WorkFolder.beside(output_file, work_dir, (*sources, model))
    if files.exists(output_file):
        if (folder.known(_JOINED) or {}).get("mark") == _mark(output_file):
            logging.info("%s is already complete.", output_file)
            return folder.remove()
        raise InputError(f"--output_file={output_file} exists already; give a new "
                         "name, or remove the file.")
    if not files.is_remote(output_file):
        files.make_directory(os.path.dirname(output_file) or ".", "--output_file")
    # 2. Read the model's config, and check all inputs.
    checkpoint = formats.read(model, vocabulary=vocabulary)
    job = _job(checkpoint, model, options, folder=folder, format=kind.end,
               vocabulary=vocabulary, unit_texts=unit_texts, read=read)
    tasks = tasks_of(input_files)
    names, texts = ([], None) if typed else _scan(job, tasks)
    # 3. Compute the missing parts, unless model or inputs have changed, and join them.
    state = [os.urandom(8).hex()] if typed else state_of(
        [*sources, *checkpoint.files()])
    with folder.used(_settings(job), state, keeps=lambda error: not typed):
        names = _compute(job, tasks, texts)
        counts = [job.folder.known(name) or {} for name in names]
        _report_cut(job, *(sum(each.get(key, 0) for each in counts)
                           for key in ("cut", "texts")))
        _join(job, names, output_file)


def _settings(job: Job) -> dict[str, Any]:
    columns = getattr(job.read, "keywords", {})
    options = dataclasses.asdict(job.options)
    for name in ("windows", "truncated"):  # Earlier versions did not have them.
        if not options[name]:
            del options[name]
    return {**options, "model": job.model, "format": job.format,
            "unit_texts": job.unit_texts, "version": _VERSION,
            **({"do_lower_case": job.vocabulary.do_lower_case} if job.vocabulary else {}),
            **{name: value for name, value in columns.items() if value is not None}}


def _scan(job: Job, tasks: Iterable[Task]) -> tuple[list[str], int]:
    """Checks all inputs; returns the names of the units and the number of texts."""
    progress, ids = Progress("checking", "texts", None), feature_files.Ids()
    names, texts = [], 0
    for task in tasks:
        for unit in job.units(task, ids):
            names.append(unit.name)
            texts += len(unit.inputs)
            progress.update(texts)
    if not names:
        raise InputError("--input_file: there is no text in it.")
    return names, texts


def _compute(job: Job, tasks: Iterable[Task], texts: Optional[int]) -> list[str]:
    """Computes the missing parts; returns the names of all units."""
    progress, done, names, extractor = None, 0, [], None
    for task in tasks:
        for unit in job.units(task):
            names.append(unit.name)
            if not job.is_finished(unit.name):
                # The model is loaded first, so that this does not count for the speed.
                extractor = extractor or _extractor(job)
                progress = progress or Progress("embedding", "texts", texts, done)
                job.keep(unit.name, *job.part(extractor, unit))
            done += len(unit.inputs)
            if progress:
                progress.update(done)
    if not names:
        raise InputError("--input_file: there is no text in it.")
    if progress:
        progress.report(done)
    return names


def _join(job: Job, names: Sequence[str], output_file: str) -> None:
    """Joins all parts to the output."""
    paths = [job.folder.file(f"{name}{job.format}") for name in names]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise RuntimeError(f"{len(missing)} parts are missing, such as {missing[0]}.")
    with files.staged(output_file) as (temporary,):
        with files.open_binary(temporary, "wb") as opened:
            job.files.join(paths, opened)
        # Lets a restarted run recognise the output if this one is killed before
        # cleanup.
        job.folder.finish(_JOINED, {"mark": _mark(temporary)}, {})
    logging.info("Wrote %s.", output_file)


def _mark(path: str) -> list[int]:
    """Returns properties of a file that do not change when it is renamed."""
    if files.is_remote(path):
        return [files.size(path)]
    status = os.stat(path)
    return [status.st_size, status.st_ino, status.st_mtime_ns]


def show(rows: Iterable[Row]) -> None:
    """Writes rows to the standard output, as JSON lines."""
    try:
        for row in rows:
            print(feature_files.line(row), flush=True)
    except BrokenPipeError:  # For example with `| head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
