"""The last steps of the Beam pipeline: buckets of instances to shards of records.

Functions of one element, as in `beam_stages`, where the elements are told.
"""

import json
import shutil
from typing import Any, Iterable, Iterator, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.pretraining_data import shuffle
from albert_tf.pretraining_data.beam_stages import (
    Job, number_documents, pieces_at, starts_of)
from albert_tf.pretraining_data.instance_records import ROWS_PER_BATCH, RecordMaker
from albert_tf.pretraining_data.plans import PLAN
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts


def count_pack(element: Any) -> tuple[int, int]:
    """(bucket, pack) → bucket, number of instances."""
    bucket, (rows, _, _) = element
    return bucket, len(rows) // PLAN.itemsize


def with_others(element: Any) -> tuple[int, Any]:
    """An element, to be brought together with all others."""
    return 0, element


def rank_buckets(element: Any) -> Iterator[tuple[int, Any]]:
    """(0, (bucket, instances) of all buckets) → bucket, (its first rank, instances
    in all)."""
    return number_documents(element)


class _Bucket(NamedTuple):
    """Instances in the order of their ranks.

    Attributes:
      plans: PLAN [N].
      tokens_a, tokens_b: pieces of all segments.
      starts_a, starts_b: int64 [N]; where an instance's begin in them.
    """

    plans: np.ndarray
    tokens_a: np.ndarray
    starts_a: np.ndarray
    tokens_b: np.ndarray
    starts_b: np.ndarray

    @classmethod
    def of(cls, packs: Iterable[tuple[bytes, bytes, bytes]], dtype: str) -> "_Bucket":
        rows, tokens_a, tokens_b = (
            np.frombuffer(b"".join(data), kind)
            for data, kind in zip(zip(*packs), (PLAN, dtype, dtype)))
        places = np.lexsort((rows["mask"], rows["order"]))
        return cls(rows[places], tokens_a, starts_of(rows["length_a"])[places],
                   tokens_b, starts_of(rows["length_b"])[places])

    def rows(self, own: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some of the plans, and their pieces."""
        plans = self.plans[own]
        return (plans,
                pieces_at(self.tokens_a, self.starts_a[own], plans["length_a"]),
                pieces_at(self.tokens_b, self.starts_b[own], plans["length_b"]))


def write_bucket(element: Any, job: Job) -> Iterator[Any]:
    """(bucket, its packs and ranks) → files of its records, and counts."""
    number, given = element
    (first_rank, total), = given["ranks"]
    bucket = _Bucket.of(given["packs"], job.token_dtype)
    maker = RecordMaker(job.options.instances, job.encoder().tokenizer)
    counts = job.new_counts()
    for shard, first, end in shuffle.shards_of_ranks(
            first_rank, first_rank + len(bucket.plans), total,
            len(job.options.output_files)):
        path = job.unique_file(f"piece-{shard:05d}-{number:06d}")
        with files.atomic_write(path) as stream:
            for at in range(first - first_rank, end - first_rank, ROWS_PER_BATCH):
                own = slice(at, min(at + ROWS_PER_BATCH, end - first_rank))
                stream.write(maker.frames(*bucket.rows(own), counts))
        yield "piece", shard, (first, path)
    yield "result", 0, {"made": counts.to_json()}


def join_shard(element: Any, job: Job) -> tuple[int, Any]:
    """(shard, its pieces) → 0, result: the shard as one file."""
    shard, pieces = element
    path = job.unique_file(f"shard-{shard:05d}")
    with files.atomic_write(path) as stream:
        for _, piece in sorted(pieces):
            with files.open_binary(piece) as source:
                shutil.copyfileobj(source, stream, 1 << 22)
    return 0, {"shards": {str(shard): path}}


def merge_results(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several results as one: "text", "made" and "shards", those that occur."""
    merged: dict[str, Any] = {}
    for result in results:
        for name, kind in (("text", CorpusCounts), ("made", InstanceCounts)):
            if name in result and name in merged:
                counts = kind.from_json(merged[name])
                counts.merge(kind.from_json(result[name]))
                merged[name] = counts.to_json()
            elif name in result:
                merged[name] = result[name]
        if "shards" in result:
            merged["shards"] = {**merged.get("shards", {}), **result["shards"]}
    return merged


def write_result(element: Any, job: Job) -> str:
    """(0, the merged result) → file for the process that started the pipeline."""
    path = job.file("result.json")
    with files.atomic_write(path) as stream:
        stream.write(json.dumps(element[1]).encode())
    return path
