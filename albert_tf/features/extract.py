"""Writes the vectors of many texts.

    files ─► units of texts ─► rows ─► answer.jsonl, answer.npz or answer.parquet

A row has the `id` of its text, if there is one, and float32 arrays. For the pooling
"pieces" it has the list of tokens, `pieces`, and their `piece_vectors`. JSON lines hold
one row each; a stopped run is resumed after the last finished unit. NPZ and Parquet hold
columns, and are written at the end. In NPZ the tokens of all texts follow each other,
and `piece_counts` holds their numbers. TensorFlow is loaded after all texts are checked.
"""

import collections
import dataclasses
import itertools
import json
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.checkpoint import Vocabulary
from albert_tf.errors import InputError
from albert_tf.features.options import PIECES, Options, Row
from albert_tf.jobs.progress import Progress
from albert_tf.jobs.work_folder import WorkFolder, state_of
from albert_tf.rows import import_pyarrow
from albert_tf.text import inputs as text_inputs
from albert_tf.text.inputs import Input

Reader = Callable[[str], Iterator[Input]]

# Increased whenever vectors or units change: unfinished work is then not resumed.
_VERSION = 2
_UNIT_BYTES = 64 << 20  # most bytes of the vectors of a unit
_FORMATS = (".jsonl", ".npz", ".parquet")


def texts(paths: Iterable[str], read: Reader = text_inputs.read,
          same_ids: bool = False) -> Iterator[Input]:
    """Yields the texts in files, `given` by name: text, text_pair. With `same_ids`, all
    texts must have ids of one type that an array can hold, or none an id."""
    kind: Optional[type] = None
    for each in itertools.chain.from_iterable(map(read, paths)):
        try:
            given = text_inputs.named(each.given, text_inputs.TEXTS)
        except InputError as error:
            raise InputError(f"{each.where}: {error}") from error
        guid = each.kept.get("id")
        kind = kind or type(guid)
        if same_ids and (
                type(guid) is not kind or kind not in (str, int, type(None))
                or kind is int and not -2**63 <= guid < 2**63):
            raise InputError(
                f"{each.where}: the id is {guid!r:.40}; make all ids texts, or all whole "
                "numbers of 64 bits, or write a .jsonl file.")
        yield each._replace(given=given)
    if kind is None:
        raise InputError("--input_file: there is no text in it.")


def _loaded(model: str, options: Options, vocabulary: Optional[Vocabulary]) -> Any:
    from albert_tf.checkpoints.restore import load  # Late: it loads TensorFlow.
    from albert_tf.features import vectors

    return vectors.Features(load(model, vocabulary=vocabulary), options)


def _units(inputs: Iterator[Input], size: int) -> Iterator[list[Input]]:
    return iter(lambda: list(itertools.islice(inputs, size)), [])


def _rows(features: Any, units: Iterable[list[Input]],
          progress: Optional[Progress] = None) -> Iterator[Row]:
    done = cut = 0
    for unit in units:
        rows, of_unit = features.rows(unit)
        done, cut = done + len(rows), cut + of_unit
        yield from rows
        if progress:
            progress.update(done)
    if progress:
        progress.report(done)
    if cut:
        logging.warning("%s", features.cut_note(cut, done))


def stream(model: str, paths: Sequence[str], options: Options = Options(),
           held: int = 1024, vocabulary: Optional[Vocabulary] = None,
           read: Reader = text_inputs.read) -> Iterator[Row]:
    """Yields the rows of texts while they are read, at most `held` texts at a time;
    other arguments are as for `extract`."""
    options = options.of(formats.read(model, vocabulary=vocabulary))
    yield from _rows(_loaded(model, options, vocabulary),
                     _units(texts(paths, read), held))


def extract(model: str, input_files: Sequence[str], output_file: str,
            options: Options = Options(), *, work_dir: Optional[str] = None,
            vocabulary: Optional[Vocabulary] = None, unit_texts: int = 1024,
            read: Reader = text_inputs.read) -> None:
    """Writes the vectors of the texts in files into a new .jsonl, .npz or .parquet file.
    If JSON lines are written, a run that was stopped is resumed, unless it reads a
    stream; otherwise all vectors are held in memory.

        extract("runs/base", ["texts.txt"], "texts.parquet", Options(("mean",)))

    `model` is one that `load` accepts, `vocabulary` that of a folder without one,
    `work_dir` the folder for unfinished JSON lines, by default <output_file>.unfinished.
    At most `unit_texts` texts are computed at a time; `read` yields those of a file.
    """
    # 1. Check the files.
    sources = [path for path in input_files if not files.is_stream(path)]
    is_typed, is_lines = len(sources) < len(input_files), output_file.endswith(".jsonl")
    if not output_file.endswith(_FORMATS):
        raise InputError(f"--output_file={output_file}: the format is not known; end "
                         f"the name in one of {', '.join(_FORMATS)}.")
    if output_file.endswith(".parquet"):
        import_pyarrow("Parquet files")
    files.prepare_outputs({"--output_file": [output_file]}, {"--input_file": sources})
    files.check_new(output_file, "--output_file")
    folder = None if is_typed or not is_lines else WorkFolder.beside(
        output_file, work_dir)
    # 2. Check the model's config and all texts.
    checkpoint = formats.read(model, vocabulary=vocabulary)
    options = options.of(checkpoint)
    total = None if is_typed else sum(1 for _ in texts(sources, read, not is_lines))
    # 3. Compute the rows, or those that are missing.
    text_bytes = 4 * checkpoint.config.hidden_size * len(options.layers) * (
        options.max_seq_length if PIECES in options.pooling else len(options.pooling))
    unit_texts = max(1, min(unit_texts, _UNIT_BYTES // text_bytes))
    units = _units(texts(input_files, read, not is_lines), unit_texts)
    if folder is None:
        _write(output_file, _rows(_loaded(model, options, vocabulary), units,
                                  Progress("embedding", "texts", total)))
        logging.info("Wrote %s.", output_file)
        return
    settings = {**dataclasses.asdict(options), "model": model, "unit_texts": unit_texts,
                "version": _VERSION, **getattr(read, "keywords", {}),
                "do_lower_case": vocabulary and vocabulary.do_lower_case}
    counts = collections.Counter[str]()
    with folder.used(settings, state_of([*sources, *checkpoint.files()])):
        features = _loaded(model, options, vocabulary)

        def answer(unit: list[Input]) -> tuple[list[str], dict[str, int]]:
            rows, cut = features.rows(unit)
            return list(map(line, rows)), {"texts": len(rows), "cut": cut}

        folder.write_lines(
            output_file, units, answer,
            ("embedding", "texts", total),
            lambda info: counts.update(texts=info["texts"], cut=info["cut"]))
    if counts["cut"]:
        logging.warning("%s", features.cut_note(counts["cut"], counts["texts"]))
    logging.info("Wrote %s.", output_file)


# ---- formats ---------------------------------------------------------------


def line(row: Row) -> str:
    """Returns a row as JSON."""
    return json.dumps({name: value.tolist() if isinstance(value, np.ndarray) else value
                       for name, value in row.items()}, ensure_ascii=False)


def _write(path: str, rows: Iterable[Row]) -> None:
    if path.endswith(".jsonl"):
        with files.atomic_write(path) as stream:
            stream.writelines(f"{line(row)}\n".encode() for row in rows)
        return
    rows = list(rows)
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if PIECES in columns:
        columns["piece_counts"] = np.array(list(map(len, columns[PIECES])), np.int32)
        for name in (PIECES, "piece_vectors"):
            columns[name] = np.concatenate(list(map(np.asarray, columns[name])))
    columns = {name: np.asarray(values) for name, values in columns.items()}
    if path.endswith(".npz"):
        with files.atomic_write(path) as stream:
            np.savez(stream, **columns)
        return
    pyarrow = import_pyarrow("Parquet files")
    offsets = np.append(0, np.cumsum(columns.pop("piece_counts", 0))).astype(np.int32)
    for name, values in columns.items():
        flat = values.reshape(-1)
        array = pyarrow.array(flat.tolist() if values.dtype.kind == "U" else flat)
        for size in reversed(values.shape[1:]):
            array = pyarrow.FixedSizeListArray.from_arrays(array, size)
        columns[name] = pyarrow.ListArray.from_arrays(
            offsets, array) if name.startswith("piece") else array
    with files.atomic_write(path) as stream:
        pyarrow.parquet.write_table(pyarrow.table(columns), stream)
