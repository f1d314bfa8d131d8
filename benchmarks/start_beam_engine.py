r"""Starts a Dask cluster on this machine, to try Beam's pipeline on a real engine.

    python -m benchmarks.start_beam_engine --num_workers=2 --memory_limit=1GiB

A scheduler and workers, each a process of its own with one thread and so much memory,
on 127.0.0.1. When they are ready, the flags are printed that give this engine to
create_pretraining_data.py:

    --runner=DaskRunner --dask_scheduler_file=.../scheduler.json

They end with Ctrl-C. The packages of requirements-beam.txt must be installed.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Iterator

from absl import flags

from albert_tf.cli import script
from albert_tf.errors import InputError

FLAGS = flags.FLAGS

flags.DEFINE_integer("num_workers", 2, "Worker processes.", lower_bound=1)
flags.DEFINE_string(
    "memory_limit", "1GiB", "Memory of a worker: it writes to disk what takes more, "
    "and is started again if that does not help.")
flags.DEFINE_integer("seconds_to_start", 60, "Time that the start may take.")

_ROOT = pathlib.Path(__file__).parent.parent
_SECONDS_TO_END = 10


@contextlib.contextmanager
def engine(num_workers: int, memory_limit: str, seconds: float) -> Iterator[list[str]]:
    """A running cluster.

    Args:
      num_workers: processes besides the scheduler's.
      memory_limit: of a worker, as Dask takes it.
      seconds: how long the start may take.

    Yields:
      The flags that name it to create_pretraining_data.py.

    Raises:
      InputError: if Dask is missing or does not start.
    """
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "The engine needs Dask: pip install -r requirements-beam.txt, in an "
            "environment of its own.") from error
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="beam-engine-"))
        file = os.path.join(folder, "scheduler.json")

        def start(kind, *arguments):
            log = stack.enter_context(open(os.path.join(folder, f"{kind}.log"), "wb"))
            path = os.pathsep.join(
                filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments,
                 "--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path})
            stack.callback(_end, process)
            return process

        processes = [
            start("scheduler", "--port", "0"),
            start("worker", "--nworkers", str(num_workers), "--nthreads", "1",
                  "--memory-limit", memory_limit, "--local-directory", folder)]
        deadline = time.monotonic() + seconds
        while not os.path.exists(file):
            _check(processes, deadline, folder)
            time.sleep(0.1)
        with distributed.Client(scheduler_file=file) as client:
            while len(client.scheduler_info()["workers"]) < num_workers:
                _check(processes, deadline, folder)
                time.sleep(0.1)
        yield ["--runner=DaskRunner", f"--dask_scheduler_file={file}"]


def _check(processes: list[subprocess.Popen], deadline: float, folder: str) -> None:
    ended = [each for each in processes if each.poll() is not None]
    if not ended and time.monotonic() < deadline:
        return
    lines = [line for log in sorted(pathlib.Path(folder).glob("*.log"))
             for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise InputError(
        f"The engine {'ended' if ended else 'did not start in time'}: "
        f"{lines[-1].strip() if lines else 'it wrote nothing'}")


def _end(process: subprocess.Popen) -> None:
    """Asks a process to end, waits a while, and kills it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(_):
    # Ends as with Ctrl-C, so that no process is left.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), engine(
            FLAGS.num_workers, FLAGS.memory_limit, FLAGS.seconds_to_start) as given:
        print(f"Ready, until Ctrl-C: {' '.join(given)}", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    script.run(main)
