"""Creates the same pretraining records as `local`, on a cluster with Apache Beam.

    spans -> Tokenize -> slices of documents -> Plan -> finished instances
               counts -> Number ----------------^  |         (packs)
                                                   |            ^
                          texts and requests for them -> Answer |
    packs -> Write -> files of records -> Join -> shards -> renamed at the end
       counts -> Rank -^

The steps are functions in `beam_stages`. Elements are joined by their keys. Side inputs
are not used, because Beam's Dask runner computes them again in every task.
"""

import dataclasses
import json
import pickle
import time
from typing import Any, Sequence

from albert_tf.jobs import beam as beam_runner
from albert_tf import files
from albert_tf.pretraining_data import beam_stages as stages
from albert_tf.pretraining_data.beam_stages import Job
from albert_tf.pretraining_data.checks import (
    check, check_number, check_room, check_text)
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.options import DataOptions, Sizes
from albert_tf.pretraining_data.spans import Span, plan_spans
from albert_tf.pretraining_data.summary import (
    CorpusCounts, publish, report, summary_of, summary_path)
from albert_tf.tokenization.tokenizer import FullTokenizer


def run(options: DataOptions, tokenizer: FullTokenizer, runner: str = "DirectRunner",
        runner_options: Sequence[str] = (), *,
        sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Creates a pretraining data set with one of Beam's runners.

    Workers need this package, and must reach input and output files by the same names.
    Their memory depends on the runner: the DirectRunner holds everything in this
    process, Dask holds one partition at a time, and others hold a few elements. An
    element is at most a span of text or the instances of a bucket (beam_stages).

        run(options, tokenizer, "FlinkRunner", ["--flink_master=host:8081"])

    Args:
      options, tokenizer, sizes: as for local.create. The tokenizer is sent to
        the workers.
      runner: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, DaskRunner, or the
        full name of another runner's class.
      runner_options: flags of Beam and of the runner.

    Returns:
      The summary, which equals that of local.create, as do the records.
    """
    beam = beam_runner.package()
    check(options, tokenizer)
    begin = time.monotonic()
    spans = plan_spans(options.input_files, sizes.span_bytes)
    folder = files.unfinished_name(beam_runner.absolute(options.output_files[0]))
    encoder = PieceEncoder(tokenizer, options.word_start)
    check_room(options, encoder, sum(span.num_bytes for span in spans))
    job = Job(
        dataclasses.replace(
            options,
            input_files=tuple(map(beam_runner.absolute, options.input_files))),
        folder,
        stages.num_buckets(sum(span.num_bytes for span in spans), options.dupe_factor,
                           sizes.bucket_bytes),
        encoder.dtype.str, sizes)
    files.make_directory(folder, "--output_file")
    try:
        # The encoder is large, so workers read it from a file instead of every task.
        files.write(job.file("encoder"), pickle.dumps(encoder))
        with beam_runner.package_importable():
            _run_pipeline(beam, beam_runner.pipeline(
                beam, runner, runner_options, len(spans)), spans, job)
        summary = _publish(job, options, tokenizer)
    finally:
        files.remove_folder(folder)
    report(options, summary, time.monotonic() - begin)
    return summary


def build(beam, pipeline, spans: Sequence[Span], job: Job):
    """Joins the steps of beam_stages to a pipeline; `beam` is the package apache_beam.

    The last collection has one element, the name of the file with the result.
    """
    packs, results = _instances(beam, pipeline, spans, job)
    ranks = (packs
             | "CountInstances" >> beam.Map(stages.count_pack)
             | "OfBuckets" >> beam.CombinePerKey(sum)
             | "AllBuckets" >> beam.Map(stages.with_others)
             | "GroupBuckets" >> beam.GroupByKey()
             | "Rank" >> beam.FlatMap(stages.number_through))
    written = ({"packs": packs, "ranks": ranks}
               | "JoinRanks" >> beam.CoGroupByKey()
               | "Write" >> beam.FlatMap(stages.write_bucket, job))
    shards = (written
              | "Fragments" >> _of_kind(beam, "fragment")
              | "GroupFragments" >> beam.GroupByKey()
              | "Join" >> beam.Map(stages.join_shard, job))
    return ((*results, written | "ResultsOfWrite" >> _of_kind(beam, "result"), shards)
            | "Results" >> beam.Flatten()
            | "Merge" >> beam.CombinePerKey(stages.merge_results)
            | "Finish" >> beam.Map(stages.write_result, job))


def _instances(beam, pipeline, spans: Sequence[Span], job: Job):
    """Returns packs of instances made from the text, and collections of results."""
    read = (pipeline
            | "Spans" >> beam.Create([tuple(span) for span in spans])
            | "Spread" >> beam.Reshuffle()
            | "Tokenize" >> beam.FlatMap(stages.tokenize_span, job))
    counts = read | "Counts" >> _of_kind(beam, "counts")
    numbers = (counts
               | "CountDocuments" >> beam.Map(stages.count_documents)
               | "AllSpans" >> beam.Map(stages.with_others)
               | "GroupSpans" >> beam.GroupByKey()
               | "Number" >> beam.FlatMap(stages.number_through))
    planned = ({"slices": read | "Slices" >> _of_kind(beam, "slice"),
                "numbers": numbers}
               | "JoinNumbers" >> beam.CoGroupByKey()
               | "Plan" >> beam.FlatMap(stages.plan_span, job))
    packs = planned | "PacksOfPlan" >> _of_kind(beam, "pack")
    results = [counts | "ResultsOfTokenize" >> beam.Map(stages.text_result),
               planned | "ResultsOfPlan" >> _of_kind(beam, "result")]
    if job.options.instances.needs_random_documents:
        answered = ({"texts": planned | "Texts" >> _of_kind(beam, "text"),
                     "requests": planned | "Requests" >> _of_kind(beam, "request")}
                    | "JoinTexts" >> beam.CoGroupByKey()
                    | "Answer" >> beam.FlatMap(stages.answer_requests, job))
        packs = ((packs, answered | "PacksOfAnswer" >> _of_kind(beam, "pack"))
                 | "Packs" >> beam.Flatten())
        results.append(answered | "ResultsOfAnswer" >> _of_kind(beam, "result"))
    return packs, results


def _of_kind(beam, kind: str):
    return beam.FlatMap(stages.of_kind, kind)


def _run_pipeline(beam, pipeline, spans: Sequence[Span], job: Job) -> None:
    build(beam, pipeline, spans, job)
    beam_runner.finish(beam, pipeline)


def _publish(job: Job, options: DataOptions, tokenizer: FullTokenizer
             ) -> dict[str, Any]:
    """Checks the result, and gives files their final names once all are complete."""
    with files.open_binary(job.file("result.json")) as stream:
        result = json.load(stream)
    corpus, instance_counts = CorpusCounts(**result["text"]), job.new_counts()
    check_text(corpus, options)
    instance_counts.merge(result["made"])
    check_number(instance_counts.as_dict(), options)
    summary = summary_of(options, tokenizer, corpus, instance_counts)
    publish({result["shards"][str(shard)]: path
             for shard, path in enumerate(options.output_files)},
            summary, summary_path(options.output_files[0]), job.file)
    return summary
