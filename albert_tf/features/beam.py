"""Vectors on a cluster: computes the parts of a job with Apache Beam's RunInference.

    files ─► units of texts ─► RunInference ─► parts in the folder for unfinished work

A batch of RunInference is a unit, so that the same texts share batches as on one
machine. The parts are joined on the machine that started the pipeline.
"""

import dataclasses
import logging
from typing import Any, Callable, Iterator, Sequence

from albert_tf.jobs import beam as beam_runner
from albert_tf.jobs.work_folder import WorkFolder


def prepared(runner: str, runner_options: Sequence[str], tasks: Sequence[tuple]
             ) -> Callable[[Any], None]:
    """Checks a runner's name and options; returns a function that runs a job's tasks on
    it."""
    beam = beam_runner.package()
    pipeline = beam_runner.pipeline(beam, runner, runner_options, len(tasks))

    def run(job) -> None:
        build(beam, pipeline, tasks, dataclasses.replace(
            job, model=beam_runner.absolute(job.model),
            folder=WorkFolder(beam_runner.absolute(job.folder.path))))
        with beam_runner.package_importable():
            beam_runner.finish(beam, pipeline)

    return run


def build(beam, pipeline, tasks: Sequence[tuple], job) -> None:
    """Adds the steps to a pipeline; `beam` is the package apache_beam."""
    from apache_beam.ml.inference import base

    class Handler(base.ModelHandler):
        """A model in a worker, which turns units into parts."""

        def load_model(self):
            from albert_tf.features import vectors

            return vectors.load(job.model, job.options, job.vocabulary)

        def run_inference(self, batch, model, inference_args=None
                          ) -> Iterator[base.PredictionResult]:
            for unit in batch:
                yield base.PredictionResult(unit.name, job.part(model, unit))

        def should_skip_batching(self):
            # Beam's Dask runner loses the last batch of BatchElements.
            return True

    logging.getLogger("apache_beam.ml").setLevel(logging.WARNING)
    absolute = [(number, tuple(map(beam_runner.absolute, paths)))
                for number, paths in tasks]
    (pipeline  # pylint: disable=expression-not-assigned
     | "Files" >> beam.Create(absolute)
     | "SpreadFiles" >> beam.Reshuffle()
     | "Read" >> beam.FlatMap(job.unfinished)
     | "SpreadUnits" >> beam.Reshuffle()
     | "Batch" >> beam.Map(lambda unit: [unit])
     | "Embed" >> base.RunInference(Handler())
     | "Keep" >> beam.Map(lambda result: job.keep(result.example, *result.inference)))
