"""Starts Apache Beam's runners by name, and turns their reports into errors.

Beam is an optional dependency that is imported when a run begins
(requirements-beam.txt).
"""

import contextlib
import importlib
import os
import pathlib
import re
import socket
from typing import Iterator, Sequence

from albert_tf import files
from albert_tf.errors import InputError

# Beam knows the short names of all other runners.
_RUNNERS = {"DaskRunner": "apache_beam.runners.dask.dask_runner.DaskRunner"}
# Other runners pass on options that only the engine's job server knows.
_WITHOUT_JOB_SERVER = ("DirectRunner", "DaskRunner")
# The number of Dask's tasks grows with the square of the partitions, but a partition is
# in memory as a whole.
_DASK_PARTITIONS = 4
# The message of an error in the report of a worker.
_INPUT_ERROR = re.compile(
    r"\b(?:InputError|Interruption): (.+?)(?: \[while running '.*)?$", re.MULTILINE)

_NO_JAR = re.compile(r"Unable to fetch remote job server jar at (\S+?):? ")
# Found in errors of gRPC and of the clients of clusters if there is no connection.
_NO_SERVICE = re.compile(r"FutureTimeoutError|StatusCode\.UNAVAILABLE|"
                         r"Connection ?refused|failed to connect|urlopen error")


def package():
    """Returns the package apache_beam; raises InputError if it is not installed."""
    try:
        import apache_beam
    except ImportError as error:
        raise InputError(
            "--runner needs Apache Beam: pip install -r requirements-beam.txt, in a "
            "separate environment.") from error
    return apache_beam


def absolute(path: str) -> str:
    """Returns an absolute path, because workers have other working directories."""
    return path if files.is_remote(path) else os.path.abspath(path)


@contextlib.contextmanager
def package_importable() -> Iterator[None]:
    """Lets processes that a runner starts here import this package."""
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
    """Returns an empty pipeline; raises InputError for an unknown runner or option.

    Args:
      beam: the result of `package`.
      runner: DirectRunner, FlinkRunner, SparkRunner, DataflowRunner, DaskRunner, or the
        full name of another runner's class.
      runner_options: flags of Beam and of the runner.
      num_parts: number of parts into which the input can be divided.
    """
    _check_endpoint(runner_options)
    flags = [f"--runner={_RUNNERS.get(runner, runner)}", *runner_options]
    if runner == "DaskRunner":
        try:
            importlib.import_module("distributed")
        except ImportError as error:
            raise InputError(
                "--runner=DaskRunner needs Dask: pip install -r "
                "requirements-beam.txt.") from error
        # This module defines the runner's flags.
        importlib.import_module("apache_beam.runners.dask.dask_runner")
        if not any(flag.startswith(("--dask_npartitions", "--dask_partition_size"))
                   for flag in runner_options):
            # By default 128 elements are one partition, which leaves workers idle.
            flags.append(f"--dask_npartitions={min(num_parts, _DASK_PARTITIONS)}")
    try:
        options = beam.options.pipeline_options.PipelineOptions(flags)
        new_pipeline = beam.Pipeline(options=options)
    except ValueError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"--runner={runner}: {reason}.") from error
    if runner in _WITHOUT_JOB_SERVER:
        unknown = set(options.get_all_options(retain_unknown_options=True)).difference(
            options.get_all_options())
        if unknown:
            raise InputError(
                f"--{min(unknown)} is not an option of {runner} or of Beam; check its "
                "name.")
    return new_pipeline


def _not_started(error: Exception) -> InputError | None:
    """Returns the error for a runner that cannot be started or reached, which Beam
    reports by several tracebacks; None for other errors."""
    text = f"{type(error).__name__}: {error}"
    if match := _NO_JAR.search(text):
        engine = "spark" if "spark" in match[1] else "flink"
        return InputError(
            f"--runner: its job server cannot be downloaded from {match[1]}; check the "
            f"network, or download that file elsewhere and give -- "
            f"--{engine}_job_server_jar=FILE, or --job_endpoint=HOST:PORT of a job "
            "server that runs.")
    if isinstance(error, FileNotFoundError) and "java" in str(error):
        return InputError("--runner: it needs Java, which is not installed; install a "
                          "Java runtime, such as the package default-jre.")
    if isinstance(error, NotImplementedError) and "job_endpoint" in str(error):
        return InputError("--runner: give the address of its job server, last: -- "
                          "--job_endpoint=HOST:PORT.")
    if isinstance(error, OSError) or _NO_SERVICE.search(text):
        reason = " ".join(text.split())[:200]
        return InputError(f"--runner: its service does not answer ({reason}); check "
                          "its address and the network.")
    return None


def _check_endpoint(runner_options: Sequence[str]) -> None:
    """Raises InputError if nothing answers at a --job_endpoint, for which Beam would
    wait for minutes."""
    for option in runner_options:
        address = re.fullmatch(r"--job_endpoint=(?:\w+://)?(.+):(\d{1,5})", option)
        if not address:
            continue
        try:
            socket.create_connection((address[1], int(address[2])), 10).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"{option}: nothing answers there ({error}); start the job server, or "
                "correct the address.") from error


def finish(beam, made) -> None:
    """Runs a pipeline to its end; raises a worker's InputError here."""
    result = None
    try:
        result = made.run()
        state = result.wait_until_finish()
    except Exception as error:
        input_error = _INPUT_ERROR.search(f"{type(error).__name__}: {error}")
        if input_error:
            raise InputError(input_error.group(1)) from error
        raise _not_started(error) or error  # noqa: B904
    finally:
        client = getattr(result, "client", None)  # Dask's results have one.
        if client is not None:
            client.close()
    if state != beam.runners.runner.PipelineState.DONE:
        raise RuntimeError(f"The pipeline ended in the state {state}.")
