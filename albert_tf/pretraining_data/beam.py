"""Creates the same pretraining records as `local`, on a cluster with Apache Beam
(requirements-beam.txt).

    spans --scatter--> parts of packs --GroupByKey--> buckets --write--> records
    files of records --divide--> outputs --join--> shards, renamed at the end
"""

import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import pickle
import re
import time
from typing import Any, Iterator, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.local import Sizes, Worker
from albert_tf.pretraining_data.options import DataOptions
from albert_tf.pretraining_data.spans import Span, plan_spans
from albert_tf.pretraining_data.summary import (
    InstanceCounts, check, check_counts, published)
from albert_tf.tokenization.tokenizer import FullTokenizer

_COUNTS = -1  # the key of counts among the buckets
# The message of an error in the report of a worker.
_INPUT_ERROR = re.compile(
    r"\b(?:InputError|Interruption): (.+?)(?: \[while running '.*)?$", re.MULTILINE)


def run(options: DataOptions, tokenizer: FullTokenizer, runner: str = "DirectRunner",
        runner_options: Sequence[str] = (), *,
        sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Creates a pretraining data set, as local.create does, with one of Beam's runners.
    Workers need this package, and must reach input and output files by the same names.

        run(options, tokenizer, "FlinkRunner", ["--flink_master=host:8081"])
    """
    try:
        import apache_beam as beam
    except ImportError as error:
        raise InputError(
            "--runner needs Apache Beam: pip install -r requirements-beam.txt, in a "
            "separate environment.") from error
    check(options, tokenizer)
    started = time.monotonic()
    spans = plan_spans(options.input_files, sizes.span_bytes)
    # Workers have other working directories.
    inputs = tuple(path if files.is_remote(path) else os.path.abspath(path)
                   for path in (*options.input_files, options.output_files[0]))
    folder = f"{inputs[-1]}.beam{files.INCOMPLETE}"
    files.remove(folder)  # what a killed run left
    files.make_directory(folder)
    try:
        # The encoder is large, so workers read it from a file instead of every task.
        worker = pickle.dumps(Worker(
            dataclasses.replace(options, input_files=inputs[:-1]),
            PieceEncoder(tokenizer, options.word_start),
            local.num_buckets(spans, options.dupe_factor, sizes), sizes,
            WorkFolder(folder)))
        path = f"{folder}/{hashlib.sha256(worker).hexdigest()}"
        files.write(path, worker)
        pipeline = new_pipeline(runner, runner_options, len(spans))
        _ = (pipeline
             | "Spans" >> beam.Create([tuple(span) for span in spans])
             | "Spread" >> beam.Reshuffle()
             | "Scatter" >> beam.FlatMap(scatter, path)
             | "Buckets" >> beam.GroupByKey()
             | "Write" >> beam.Map(write, path)
             | "AllBuckets" >> beam.GroupByKey()
             | "Divide" >> beam.FlatMap(divide, path)
             | "SpreadOutputs" >> beam.Reshuffle()
             | "Join" >> beam.Map(join, path))
        finish(pipeline)
        counts = InstanceCounts()
        counts.merge(text_files.read_object(f"{folder}/counts"))
        check_counts(counts, options)
        with published(options, tokenizer, counts, started) as (summary, outputs):
            for number, path in enumerate(outputs):
                files.rename(f"{folder}/shard-{number}", path)
    finally:
        files.remove(folder)
    return summary


def new_pipeline(runner: str, runner_options: Sequence[str], num_parts: int):
    """Returns an empty pipeline for a runner's name, or the full name of its class, and
    the number of parts into which the input can be divided."""
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

    # Processes that a runner starts here import this package.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (
        str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    flags = [f"--runner={runner}", *runner_options]
    try:
        if runner == "DaskRunner":  # Beam does not know its short name.
            flags[0] = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"
            import distributed  # noqa: F401
            import apache_beam.runners.dask.dask_runner  # noqa: F401  Defines flags.

            # By default 128 elements are one partition, which leaves workers idle.
            flags.insert(1, f"--dask_npartitions={min(num_parts, 4)}")
        return Pipeline(options=PipelineOptions(flags))
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"--runner={runner}: {reason}.") from error


def finish(pipeline) -> None:
    """Runs a pipeline to its end; raises a worker's InputError here, and one for what a
    runner says that fails or cannot be started."""
    result = None
    try:
        result = pipeline.run()
        if (state := result.wait_until_finish()) != "DONE":
            raise RuntimeError(f"the pipeline ended in the state {state}")
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        found = _INPUT_ERROR.search(text)
        raise InputError(found[1] if found else (
            f"--runner: the pipeline failed ({text.rstrip('.')}); check the runner's "
            "options, such as -- --job_endpoint=HOST:PORT, and the network.")) from error
    finally:
        if client := getattr(result, "client", None):  # Dask's results have one.
            client.close()


# ---- the steps, without Beam -------------------------------------------------


@functools.lru_cache(maxsize=1)
def _worker(path: str) -> Worker:
    """Returns the settings that all workers share. Their file, in the folder for
    unfinished work, has the same path for all, but no other run's."""
    with files.open_binary(path) as stream:
        return pickle.load(stream)


def scatter(span: Any, path: str) -> Iterator[tuple[int, Any]]:
    """Yields (bucket, its rows and codes in a pack) and the counts of a span, which is
    given by its fields."""
    counts = InstanceCounts()
    for pack in _worker(path).packs(Span(*span), counts):
        for bucket in np.flatnonzero(np.diff(pack.first_row)).tolist():
            (row, end), (code, end_code) = (
                first[bucket:bucket + 2] for first in (pack.first_row, pack.first_code))
            yield bucket, (
                pack.rows[row:end].tobytes(), pack.codes[code:end_code].tobytes())
    yield _COUNTS, vars(counts)


def write(element: tuple[int, Any], path: str) -> tuple[int, Any]:
    """Writes the records of a bucket; returns (0, (bucket, file, number of records,
    counts)). The counts of spans are passed on."""
    bucket, parts = element
    if bucket == _COUNTS:
        return 0, (bucket, "", 0, list(parts))
    worker, counts = _worker(path), InstanceCounts()
    output = f"{worker.folder.path}/bucket-{bucket}"
    rows, codes = (
        np.frombuffer(b"".join(data), dtype)
        for data, dtype in zip(zip(*parts), (local.ROW, worker.encoder.dtype)))
    # An engine may run a step twice, which writes the same file.
    with files.atomic_write(output) as stream:
        stream.writelines(worker.records(rows, codes, counts))
    return 0, (bucket, output, len(rows), [vars(counts)])


def divide(element: tuple[int, Any], path: str) -> Iterator[tuple[int, Any]]:
    """Yields what each output consists of from (0, what `write` returned for all
    buckets); writes the counts to a file for the process that started the pipeline."""
    written = sorted(element[1], key=lambda each: each[0])
    worker, counts = _worker(path), InstanceCounts()
    for each in itertools.chain.from_iterable(parts for *_, parts in written):
        counts.merge(each)
    text_files.write_json(f"{worker.folder.path}/counts", vars(counts))
    yield from enumerate(local.divided(
        [each[1:3] for each in written], len(worker.options.output_files)))


def join(element: tuple[int, Any], path: str) -> None:
    """Writes an output from (its number, what it consists of)."""
    number, parts = element
    with files.atomic_write(f"{_worker(path).folder.path}/shard-{number}") as output:
        local.join(parts, output)
