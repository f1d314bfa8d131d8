"""Starts Apache Beam's runners by name, and turns their reports into errors.

Beam is an optional dependency that is imported when a run begins
(requirements-beam.txt).
"""

import os
import pathlib
import re
from typing import Sequence

from albert_tf.errors import InputError

# The message of an error in the report of a worker.
_INPUT_ERROR = re.compile(
    r"\b(?:InputError|Interruption): (.+?)(?: \[while running '.*)?$", re.MULTILINE)
# Found in the errors of a runner that cannot be started or reached.
_NOT_STARTED = re.compile(
    r"job server jar|job_endpoint|java\b|FutureTimeoutError|StatusCode\.UNAVAILABLE|"
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


def pipeline(beam, runner: str, runner_options: Sequence[str], num_parts: int):
    """Returns an empty pipeline for a runner's name, or the full name of its class;
    `num_parts` is the number of parts into which the input can be divided."""
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
        return beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(flags))
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"--runner={runner}: {reason}.") from error


def finish(beam, made) -> None:
    """Runs a pipeline to its end; raises a worker's InputError here."""
    result = None
    try:
        result = made.run()
        state = result.wait_until_finish()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if input_error := _INPUT_ERROR.search(text):
            raise InputError(input_error.group(1)) from error
        if isinstance(error, OSError) or _NOT_STARTED.search(text):
            raise InputError(
                f"--runner: it cannot be started or reached ({text[:300]!r}); check "
                "its options, such as -- --job_endpoint=HOST:PORT, and the network."
            ) from error
        raise
    finally:
        client = getattr(result, "client", None)  # Dask's results have one.
        if client is not None:
            client.close()
    if state != beam.runners.runner.PipelineState.DONE:
        raise RuntimeError(f"The pipeline ended in the state {state}.")
