"""Writes the vectors of many texts: files ─► units of texts ─► rows ─► an output file.

A row has the `id` of its text, if there is one, and float32 arrays, for the pooling
"pieces" the tokens, `pieces`, and their `piece_vectors`. In NPZ the tokens of all texts
follow each other, and `piece_counts` holds their numbers.
"""

import dataclasses
import itertools
import json
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.errors import InputError
from albert_tf.features.options import PIECES, Options, Row
from albert_tf.jobs.progress import Progress
from albert_tf.jobs.work_folder import WorkFolder, state_of
from albert_tf.rows import import_pyarrow
from albert_tf.text import inputs as text_inputs
from albert_tf.text.inputs import Input
from albert_tf.tokenization.tokenizer import FullTokenizer

Reader = Callable[[str], Iterator[Input]]

# Increased whenever vectors or units change: unfinished work is then not resumed.
_VERSION = 2
_UNIT_BYTES = 64 << 20  # most bytes of the vectors of a unit


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


def _loaded(model: str, options: Options, vocabulary: Optional[FullTokenizer],
            config: formats.Config = None) -> Any:
    from albert_tf.checkpoints.restore import load  # Late: it loads TensorFlow.
    from albert_tf.features import vectors

    return vectors.Features(load(model, config, vocabulary=vocabulary), options)


def stream(model: str, paths: Sequence[str], options: Options = Options(),
           held: int = 1024, vocabulary: Optional[FullTokenizer] = None,
           read: Reader = text_inputs.read, same_ids: bool = False,
           progress: Optional[Progress] = None, config: formats.Config = None
           ) -> Iterator[Row]:
    """Yields the rows of texts while they are read, at most `held` texts at a time;
    other arguments are as for `extract`, `texts` and formats.read."""
    options = options.of(formats.read(model, config, vocabulary=vocabulary))
    features = _loaded(model, options, vocabulary, config)
    inputs = texts(paths, read, same_ids)
    while unit := list(itertools.islice(inputs, held)):
        yield from features.rows(unit)
        if progress:
            progress.update(features.texts)
    if progress:
        progress.report(features.texts)
    features.tell_cut()


def extract(model: str, input_files: Sequence[str], output_file: str,
            options: Options = Options(), *, work_dir: Optional[str] = None,
            vocabulary: Optional[FullTokenizer] = None, unit_texts: int = 1024,
            read: Reader = text_inputs.read) -> None:
    """Writes the vectors of the texts in files into a new .jsonl, .npz or .parquet file.
    If JSON lines are written, a run that was stopped is resumed, unless it reads a
    stream; otherwise all vectors are held in memory.

        extract("runs/base", ["texts.txt"], "texts.parquet", Options(("mean",)))

    `vocabulary` is the tokenizer of a folder without one, `work_dir` the folder for unfinished
    JSON lines. At most `unit_texts` texts are computed at a time; `read` yields those of
    a file.
    """
    # 1. Check the files, the model's config and all texts.
    is_typed, is_lines = (
        any(map(files.is_stream, input_files)), output_file.endswith(".jsonl"))
    if not output_file.endswith((".jsonl", ".npz", ".parquet")):
        raise InputError(f"--output_file={output_file}: the format is not known; end "
                         "the name in .jsonl, .npz or .parquet.")
    if output_file.endswith(".parquet"):
        import_pyarrow("Parquet files")
    files.check_new(output_file, "--output_file")
    folder = None if is_typed or not is_lines else WorkFolder.beside(
        output_file, work_dir)
    checkpoint = formats.read(model, vocabulary=vocabulary)
    options = options.of(checkpoint)
    progress = "embedding", "texts", None if is_typed else sum(
        1 for _ in texts(input_files, read, not is_lines))
    # 2. Compute the rows, or those that are missing.
    text_bytes = 4 * checkpoint.config.hidden_size * len(options.layers) * (
        options.max_seq_length if PIECES in options.pooling else len(options.pooling))
    unit_texts = max(1, min(unit_texts, _UNIT_BYTES // text_bytes))
    if folder is None:
        _write(output_file, stream(model, input_files, options, unit_texts, vocabulary,
                                   read, not is_lines, Progress(*progress)))
    else:
        settings = {
            **dataclasses.asdict(options), "model": model, "unit_texts": unit_texts,
            "version": _VERSION, **getattr(read, "keywords", {}),
            "do_lower_case": vocabulary and vocabulary.do_lower_case}
        with folder.used(settings, state_of([*input_files, *checkpoint.files()])):
            features = _loaded(model, options, vocabulary)
            folder.write_lines(
                output_file, texts(input_files, read), unit_texts,
                lambda unit: (map(line, features.rows(unit)), {}), progress)
            features.tell_cut()
    logging.info("Wrote %s.", output_file)


# ---- formats ---------------------------------------------------------------


def line(row: Row) -> str:
    """Returns a row as JSON."""
    return json.dumps(row, ensure_ascii=False, default=np.ndarray.tolist)


def _write(path: str, rows: Iterable[Row]) -> None:
    with files.atomic_write(path) as stream:
        if path.endswith(".jsonl"):
            stream.writelines(f"{line(row)}\n".encode() for row in rows)
            return
        rows = list(rows)
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        if PIECES in columns:
            columns["piece_counts"] = np.array(list(map(len, columns[PIECES])), np.int32)
            for name in (PIECES, "piece_vectors"):
                columns[name] = np.concatenate(columns[name])
        columns = {name: np.asarray(values) for name, values in columns.items()}
        if path.endswith(".npz"):
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
        pyarrow.parquet.write_table(pyarrow.table(columns), stream)
