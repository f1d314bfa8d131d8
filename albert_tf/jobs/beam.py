"""Apache Beam's runners by name, with their options; how what they report comes back.

Beam is an optional dependency, imported when a run begins (requirements-beam.txt).
"""

import contextlib
import importlib
import os
import pathlib
import re
from typing import Iterator, Sequence

from albert_tf import files
from albert_tf.errors import InputError

# Beam knows the short names of its other runners.
_RUNNERS = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}
# The others pass on options that only the engine's job server knows.
_WITHOUT_JOB_SERVER = ("DirectRunner", "DaskRunner")
# Dask's tasks grow with the square of the partitions; each is in memory as a whole.
_DASK_PARTITIONS = 4
# The message of an error, as it stands in what a worker reports of it.
_INPUT_ERROR = re.compile(
    r"\b(?:InputError|Interruption): (.+?)(?: \[while running '.*)?$", re.MULTILINE)


def package():
    """The package apache_beam."""
    try:
        import apache_beam
    except ImportError as error:
        raise InputError(
            "--runner needs Apache Beam: pip install -r requirements-beam.txt, in an "
            "environment of its own.") from error
    return apache_beam


def absolute(path: str) -> str:
    """Workers have working directories of their own."""
    return path if files.is_remote(path) else os.path.abspath(path)


@contextlib.contextmanager
def package_importable() -> Iterator[None]:
    """Processes that a runner starts here find this package, wherever it lies."""
    root = str(pathlib.Path(__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def pipeline(beam, runner: str, runner_options: Sequence[str], num_parts: int):
    """An empty pipeline.

    Args:
      beam: `package`.
      runner: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, DaskRunner, or the
        full name of another runner's class.
      runner_options: flags of Beam and of the runner.
      num_parts: into which the input can be divided.
    """
    flags = [f"--runner={_RUNNERS.get(runner, runner)}", *runner_options]
    if runner == "DaskRunner":
        try:
            importlib.import_module("distributed")
        except ImportError as error:
            raise InputError(
                "--runner=DaskRunner needs Dask: pip install -r "
                "requirements-beam.txt.") from error
        importlib.import_module("apache_beam.runners.dask.dask_runner")  # Its flags.
        if not any(flag.startswith(("--dask_npartitions", "--dask_partition_size"))
                   for flag in runner_options):
            # By default 128 elements are one partition, that is no work for others.
            flags.append(f"--dask_npartitions={min(num_parts, _DASK_PARTITIONS)}")
    try:
        options = beam.options.pipeline_options.PipelineOptions(flags)
        made = beam.Pipeline(options=options)
    except ValueError as error:
        raise InputError(f"--runner={runner}: {error}") from error
    if runner in _WITHOUT_JOB_SERVER:
        unknown = set(options.get_all_options(retain_unknown_options=True)).difference(
            options.get_all_options())
        if unknown:
            raise InputError(
                f"--{min(unknown)} is not an option of {runner} or of Beam; check its "
                "name.")
    return made


def finish(beam, made) -> None:
    """Runs a pipeline to its end; an InputError of a worker comes back as one."""
    result = None
    try:
        result = made.run()
        state = result.wait_until_finish()
    except Exception as error:
        found = _INPUT_ERROR.search(f"{type(error).__name__}: {error}")
        if found:
            raise InputError(found.group(1)) from error
        raise
    finally:
        client = getattr(result, "client", None)  # of Dask
        if client is not None:
            client.close()
    if state != beam.runners.runner.PipelineState.DONE:
        raise RuntimeError(f"The pipeline ended in the state {state}.")
