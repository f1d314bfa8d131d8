"""The features of examples: computed on all cores, saved to a file, loaded into memory.

The file `<name>-<digest>.npz` holds the columns of a FeatureTable. The digest is that
of all that they are made of, so that a change of it gives a file of its own.
"""

import functools
import glob
import hashlib
import json
import os
import types
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError, reading
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import Progress
from albert_tf.records.spec import FeatureSpec


# Starting processes takes longer than computing this many examples.
_FEW_EXAMPLES = 1000
_LARGEST_CHUNK = 256
_DIGITS = 16  # of a digest in a file's name

Function = Callable[[Any], list[dict]]


def featurize_all(
        examples: Sequence, function: Function, *, what: str, num_workers: int = 0
) -> Iterator[list[dict[str, np.ndarray]]]:
    """Applies a function to every example, in parallel if there are enough of them.

    The results, as arrays, come in the order of the examples for any number of
    processes. With several processes, a script needs `if __name__ == "__main__"`.

    `function` takes an example and returns one dict for each of its records. Each
    process receives it once, with all it holds (the tokenizer). `what` names the set in
    messages. num_workers=0 is one process per CPU core, or this one for a small set.
    """
    workers, size = num_workers or parallel.num_cores(), 1
    if len(examples) < _FEW_EXAMPLES:
        workers = 1
    else:
        logging.info("Computing the features of %s: %s examples, %d process%s.", what,
                     f"{len(examples):,}", workers, "es" * (workers > 1))
    if workers > 1:
        size = max(1, min(_LARGEST_CHUNK, len(examples) // (8 * workers)))
    chunks = (examples[at:at + size] for at in range(0, len(examples), size))
    progress = Progress(f"features of {what}", "examples", len(examples))
    with parallel.WorkerPool(functools.partial(_featurized, function), workers) as pool:
        for results in pool.in_order(chunks, f"features of {what}"):
            for result in results:
                yield result
                progress.add(1)


def _featurized(function: Function, chunk: Sequence
                ) -> list[list[dict[str, np.ndarray]]]:
    # Arrays are faster to transfer between processes than lists.
    return [[{name: np.asarray(values) for name, values in features.items()}
             for features in function(example)] for example in chunk]


def digest_of(code: Iterable[str], spec: FeatureSpec, **made_of: Any) -> str:
    """Returns the digest of all that features are made of: the modules in the folders
    `code`, the features of a record, and JSON values, such as flags and digests."""
    modules = [files.sha256(path) for folder in code
               for path in sorted(glob.glob(os.path.join(folder, "*.py")))]
    shapes = [[f.name, f.dtype, f.shape, f.limit, f.parsed] for f in spec.features]
    return hashlib.sha256(json.dumps(
        [modules, shapes, made_of], sort_keys=True).encode()).hexdigest()[:_DIGITS]


def load_or_create(path: str, spec: FeatureSpec,
                   create: Callable[[], Iterable[Mapping[str, Any]]]) -> FeatureTable:
    """Returns the features in a file, local or remote; if there is none, computes them
    with `create`, which gives one dict per record, and writes the file.

    Several processes may write the same path: the file appears whole.
    """
    if files.exists(path):
        with files.open_binary(path) as stream, reading(path, binary=True):
            table = FeatureTable.of_arrays(spec, np.load(stream))
        logging.info("Reusing the features of %d records in %s.", table.num_rows, path)
        return table
    table = FeatureTable.from_values(spec, create())
    if not table.num_rows:
        raise InputError(f"{path}: there is no example to compute features from; check "
                         "the input.")
    end = f"{files.INCOMPLETE}-{os.urandom(4).hex()}"
    with files.staged(path, end=end) as [staged], files.open_binary(
            staged, "wb") as stream:
        # TensorFlow's files of a store have no position, and do not count bytes.
        np.savez(types.SimpleNamespace(
            read=None, flush=stream.flush,
            write=lambda data: stream.write(data) or len(data)), **table.arrays())
    logging.info("Wrote the features of %d records to %s.", table.num_rows, path)
    return table
