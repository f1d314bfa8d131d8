"""Writes the vectors of many texts: files ─► units of texts ─► rows ─► an output file.

A row has the `id` of its text, if there is one, and float32 arrays, for the pooling
"pieces" the tokens, `pieces`, and their `piece_vectors`. In NPZ the tokens of all texts
follow each other, and `piece_counts` holds their numbers. In NPZ and Parquet all ids are
texts, unless all are whole numbers of 64 bits.
"""

import dataclasses
import functools
import itertools
import json
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.sentence_transformers import (
    EMBEDDING, PIECES, POOLED, POOLING)
from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.options import option
from albert_tf.rows import is_empty
from albert_tf.text import inputs as text_inputs
from albert_tf.text.inputs import Input
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR
from albert_tf.tokenization.tokenizer import FullTokenizer

Row = Mapping[str, Any]  # the vectors of a text, by name

WINDOWS = (
    "Read texts that are too long in overlapping windows, and average the windows' "
    "logits or vectors; by default they are cut, as in training.")
TRUNCATED = "Add `truncated` to each answer: true if a text of it was cut."
# Increased whenever vectors or units change: unfinished work is then not resumed.
_VERSION = 2
_UNIT_BYTES = 64 << 20  # most bytes of the vectors of a unit


@dataclasses.dataclass(frozen=True)
class Options:
    """The vectors to compute: flags of extract_features.py."""

    pooling: list[str] = option(
        (), "Comma-separated kinds of vectors: pooled (the model's pooler), cls (the "
        "first token), mean, max, mean_sqrt_len_tokens, weightedmean, lasttoken (over "
        "the tokens), pieces (a vector for each token), embedding (as defined by a "
        "folder of sentence-transformers). Default: embedding if it is defined, else "
        "pooled,mean.")
    layers: list[Any] = option(
        ("-1",), "Comma-separated numbers of the layers to use: 1 is the first, -1 the "
        "last, 0 the input of the first. With several layers the vectors have an "
        "additional axis.")
    max_seq_length: int = option(
        0, "Maximum number of tokens in a text, with [CLS] and [SEP]; 0: as in "
        "training.")
    batch_size: int = option(
        32, "Maximum number of sequences that are computed together.", least=1)
    windows: bool = option(False, WINDOWS)
    truncated: bool = option(False, TRUNCATED)

    def of(self, checkpoint: Checkpoint) -> "Options":
        """Returns the options for a model, with defaults filled in. Raises InputError
        if the model does not support them."""
        config, sentence = checkpoint.config, checkpoint.sentence
        if checkpoint.tokenizer is None:
            raise InputError(f"--model={checkpoint.source}: its folder holds no "
                             "vocabulary; give --spm_model_file or --vocab_file.")
        pooled = [POOLED] * config.use_pooler
        kinds = [*POOLING, *pooled, *[EMBEDDING] * bool(sentence),
                 *[PIECES] * (not self.windows)]
        pooling = tuple(dict.fromkeys(map(str.strip, self.pooling))) or (
            (EMBEDDING,) if sentence else (*pooled, "mean"))
        most, longest = config.num_hidden_layers, config.max_position_embeddings
        layers = {str(layer): layer % (most + 1) for layer in range(-most, most + 1)}
        length = self.max_seq_length or min(
            checkpoint.flags.get("max_seq_length", 512), longest)
        least = NUM_SPECIAL_PAIR + 1
        for flag, values, known, shown in (
                ("pooling", pooling, kinds,
                 ", ".join(kinds) + " with --windows" * self.windows),
                ("layers", map(str, self.layers), layers,
                 f"0 to {most}, and -1, the last, to -{most}"),
                ("max_seq_length", [length], range(least, longest + 1),
                 f"{least} to {longest}")):
            for value in values:
                if value not in known:
                    raise InputError(f"--{flag}={value}: this model has {shown}.")
        return dataclasses.replace(
            self, pooling=pooling, max_seq_length=length,
            layers=tuple(layers[str(layer)] for layer in self.layers or (-1,)))


def texts(paths: Iterable[str], columns: Mapping[str, Any] = {}, blank: bool = True
          ) -> Iterator[Input]:
    """Yields the texts in files, `given` by name: text, text_pair. `columns` are
    arguments of text.inputs.read; `blank` says whether texts without a word are yielded,
    too."""
    found = False
    for each in itertools.chain.from_iterable(
            text_inputs.read(path, **columns) for path in paths):
        try:
            given = text_inputs.named(each.given, text_inputs.TEXTS)
        except InputError as error:
            raise InputError(f"{each.where}: {error}") from error
        if not blank and all(map(is_empty, filter(None, given.values()))):
            continue
        found = True
        yield each._replace(given=given)
    if not found:
        raise InputError("--input_file: there is no text in it.")


def load(model: str, options: Options, vocabulary: Optional[FullTokenizer],
         config: formats.Config = None) -> Any:
    """Loads a model to compute the vectors of `options`, which are filled in."""
    from albert_tf.checkpoints import restore  # Late: it loads TensorFlow.
    from albert_tf.features import vectors

    return vectors.Features(
        restore.load(model, config, vocabulary=vocabulary), options)


def stream(features: Any, inputs: Iterator[Input], held: int = 1024,
           progress: Optional[Progress] = None) -> Iterator[Row]:
    """Yields the rows of texts while they are read, at most `held` texts at a time;
    `features` is what `load` returns."""
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
            columns: Mapping[str, Any] = {}) -> None:
    """Writes the vectors of the texts in files into a new .jsonl, .npz or .parquet file.
    If JSON lines are written, a run that was stopped is resumed, unless it reads a
    stream; otherwise all vectors are held in memory.

        extract("runs/base", ["texts.txt"], "texts.parquet", Options(("mean",)))

    `vocabulary` is the tokenizer of a folder without one, `work_dir` the folder for unfinished
    JSON lines. At most `unit_texts` texts are computed at a time; `columns` are arguments
    of text.inputs.read.
    """
    # 1. Check the files, the model's config and all texts.
    is_stream = any(map(files.is_stream, input_files))
    if not output_file.endswith((".jsonl", ".npz", ".parquet")):
        raise InputError(f"--output_file={output_file}: the format is not known; end "
                         "the name in .jsonl, .npz or .parquet.")
    if output_file.endswith(".parquet"):
        import pyarrow.parquet  # noqa: F401  (Before the work.)
    files.check_new(output_file, "--output_file")
    folder = None if is_stream or not output_file.endswith(".jsonl") else (
        WorkFolder.beside(output_file, work_dir))
    checkpoint = formats.read(model, vocabulary=vocabulary)
    options = options.of(checkpoint)
    read = functools.partial(texts, input_files, columns)
    progress = "embedding", "texts", None if is_stream else sum(1 for _ in read())
    # 2. Compute the rows, or those that are missing.
    text_bytes = 4 * checkpoint.config.hidden_size * len(options.layers) * (
        options.max_seq_length if PIECES in options.pooling else len(options.pooling))
    unit_texts = max(1, min(unit_texts, _UNIT_BYTES // text_bytes))
    if folder is None:
        _write(output_file, stream(load(model, options, vocabulary), read(), unit_texts,
                                   Progress(*progress)))
    else:
        settings = {
            **dataclasses.asdict(options), "model": model, "unit_texts": unit_texts,
            "version": _VERSION, **columns,
            "do_lower_case": vocabulary and vocabulary.do_lower_case}
        with folder.used(settings, [*input_files, *checkpoint.files()]):
            features = load(model, options, vocabulary)
            folder.write_lines(
                output_file, read(), unit_texts,
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
        columns: dict[str, Any] = {}
        if any("id" in row for row in rows):  # An array has one type.
            ids = [row.get("id", "") for row in rows]
            columns["id"] = ids if all(type(each) is int and -2**63 <= each < 2**63
                                       for each in ids) else list(map(str, ids))
        columns |= {name: [row[name] for row in rows] for name in rows[0] if name != "id"}
        if PIECES in columns:
            columns["piece_counts"] = np.array(list(map(len, columns[PIECES])), np.int32)
            for name in (PIECES, "piece_vectors"):
                columns[name] = np.concatenate(columns[name])
        columns = {name: np.asarray(values) for name, values in columns.items()}
        if path.endswith(".npz"):
            np.savez(stream, **columns)
            return
        import pyarrow.parquet

        offsets = np.append(0, np.cumsum(columns.pop("piece_counts", 0))).astype(np.int32)
        for name, values in columns.items():
            array = pyarrow.array(values.reshape(-1))
            for size in reversed(values.shape[1:]):
                array = pyarrow.FixedSizeListArray.from_arrays(array, size)
            columns[name] = pyarrow.ListArray.from_arrays(
                offsets, array) if name.startswith("piece") else array
        pyarrow.parquet.write_table(pyarrow.table(columns), stream)
