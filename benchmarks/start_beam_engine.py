r"""Starts a Dask cluster on this machine, to try Beam's pipeline on a real engine.

    python -m benchmarks.start_beam_engine --num_workers=2 --memory_limit=1GiB

The cluster has a scheduler and workers on 127.0.0.1. Each worker is a process with one
thread and the given memory. When they are ready, the command prints the flags that make
create_pretraining_data.py use the cluster:

    --runner=DaskRunner --dask_scheduler_file=.../scheduler.json

Stop it with Ctrl-C. The packages of requirements-beam.txt must be installed.
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

flags.DEFINE_integer("num_workers", 2, "Number of worker processes.", lower_bound=1)
flags.DEFINE_string(
    "memory_limit", "1GiB", "Memory of a worker. It writes data beyond that to "
    "disk, and is restarted if that does not help.")
flags.DEFINE_integer("seconds_to_start", 60, "Maximum time of the start.")

_ROOT = pathlib.Path(__file__).parent.parent
_SECONDS_TO_END = 10


@contextlib.contextmanager
def engine(num_workers: int, memory_limit: str, seconds: float) -> Iterator[list[str]]:
    """Runs a cluster.

    Args:
      num_workers: number of processes besides the scheduler.
      memory_limit: memory of a worker, in Dask's format.
      seconds: maximum time of the start.

    Yields:
      The flags that make create_pretraining_data.py use it.
    """
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "The engine needs Dask: run `pip install -r requirements-beam.txt` in a "
            "separate environment.") from error
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
    """Asks a process to end, waits for it, and kills it if needed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(_):
    # End as with Ctrl-C, so that no process is left.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), engine(
            FLAGS.num_workers, FLAGS.memory_limit, FLAGS.seconds_to_start) as given:
        print(f"Ready, until Ctrl-C: {' '.join(given)}", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    script.run(main)
