"""Worker processes that apply a function to many items; cores and memory to run them.

A killed worker, for example for lack of memory, ends the run with a sentence. Workers
end when their parent ends, even if that is killed.

Results pass through files. A worker that is killed while it writes to the pipe of
ProcessPoolExecutor would leave half a message there, for whose rest the parent would wait
without end. The names of files are short enough to be written at once.
"""

import atexit
import collections
import contextlib
import glob
import itertools
import multiprocessing
import os
import pathlib
import pickle
import re
import shutil
import signal
import sys
import tempfile
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Callable, Iterable, Iterator, Optional

from albert_tf.errors import Interruption

MOST_PROCESSES = 1024
_HAS_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()  # not Windows
# The number of items submitted ahead per worker; more results of a slow reader would
# fill the memory.
_AHEAD = 4


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Returns the bytes of memory that this process may still use: the machine's, or
    what is left in the control groups of a container or job; sys.maxsize if neither is
    known."""
    return min([sys.maxsize, *_free_memory(), *_left_by_control_groups()])


def has_accelerator() -> bool:
    """Returns whether the machine seems to have a GPU or TPU, without TensorFlow."""
    return any(glob.glob(device) for device in (
        "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"))


def _free_memory() -> Iterator[int]:
    with contextlib.suppress(OSError):  # There is no such file on a Mac.
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10


def _left_by_control_groups(own: str = "/proc/self/cgroup",
                            root: str = "/sys/fs/cgroup") -> Iterator[int]:
    """Yields the memory left in each control group of this process up to the root."""
    with contextlib.suppress(OSError):
        path = re.search(r"^0::/*(.*)$", pathlib.Path(own).read_text(), re.M)
        group = pathlib.Path(root, path[1] if path else "")
        # In a container the path may be the one outside, and the root its group.
        for at in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError, KeyError):
                counts = dict(map(
                    str.split, (at / "memory.stat").read_text().splitlines()))
                yield max(0, int((at / "memory.max").read_text())  # "max" is no number
                          - int((at / "memory.current").read_text())
                          + int(counts["inactive_file"]))


class WorkerPool(contextlib.AbstractContextManager):
    """Worker processes that apply a function to items, in one or several calls.

        with WorkerPool(function, num_workers) as pool:
            for result in pool.in_order(items, "tokenizing"):

    `function` must be picklable; each process receives it once. With one worker, this
    process does the work.
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int):
        self._function = function
        self._num_workers = num_workers
        self._executor: Optional[ProcessPoolExecutor] = None

    def __exit__(self, *exception_info) -> None:
        self._end(at_once=exception_info[0] is not None)

    def in_order(self, items: Iterable, what: str) -> Iterator[Any]:
        """Yields function(item) for each item in order; items must be picklable.

        Raises the error of the first item that has one, and Interruption if a process
        is killed. `what` names the work in messages ("tokenizing").
        """
        if self._num_workers == 1:
            yield from map(self._function, items)
            return
        executor, todo = self._started(), iter(items)
        pending: collections.deque[Future] = collections.deque()
        try:
            while True:
                room = _AHEAD * self._num_workers - len(pending)
                for item in itertools.islice(todo, room):
                    pending.append(self._thread.submit(
                        executor.submit, _apply, item).result())
                if not pending:
                    return
                path = pathlib.Path(pending[0].result())
                pending.popleft()
                result = pickle.loads(path.read_bytes())
                path.unlink()
                yield result
        except BrokenProcessPool as error:
            raise Interruption(
                f"{what}: a worker process was killed, perhaps for lack of memory; "
                "run the same command again, with --num_workers below "
                f"{self._num_workers} if memory is short.") from error
        finally:
            # An error, or a reader that stops early, leaves work behind.
            if pending:
                self._end(at_once=True)

    def _started(self) -> ProcessPoolExecutor:
        if self._executor:
            return self._executor
        # fork is not used: a copy of a process with TensorFlow's threads may hang.
        block: tuple = ()
        if _HAS_FORKSERVER:
            context = multiprocessing.get_context("forkserver")
            # The module is imported once for all workers.
            context.set_forkserver_preload([type(self._function).__module__])
            from multiprocessing import resource_tracker  # not on Windows

            # When it is started later, it unblocks Ctrl-C.
            resource_tracker.ensure_running()
            block = signal.pthread_sigmask, (signal.SIG_BLOCK, [signal.SIGINT])
        else:
            context = multiprocessing.get_context("spawn")
        end, self._alive = context.Pipe(duplex=False)
        self._folder = tempfile.mkdtemp(prefix="albert_tf-")
        self._executor = ProcessPoolExecutor(
            self._num_workers, context, _begin,
            (pickle.dumps(self._function), end, self._folder))
        # Submitting starts processes: in a thread, because a signal that interrupted this
        # would leave some that nobody knows. Ctrl-C is blocked in them from the beginning.
        self._thread = ThreadPoolExecutor(1, "", *block)
        # For a suspended generator that holds this pool and does not end it.
        atexit.register(self._end, at_once=True)
        return self._executor

    def _end(self, at_once: bool = False) -> None:
        """Ends the processes; `at_once`: without finishing their items."""
        if not self._executor:
            return
        executor, self._executor = self._executor, None
        atexit.unregister(self._end)
        self._thread.shutdown()
        if at_once:
            self._alive.close()
        executor.shutdown(cancel_futures=True)
        self._alive.close()
        shutil.rmtree(self._folder, ignore_errors=True)


# ---- in a worker -------------------------------------------------------------

_pickled, _folder, _function = b"", "", None


def _begin(pickled: bytes, end: connection.Connection, folder: str) -> None:
    """Prepares a worker, which ends when the other side of the pipe `end` is closed, and
    writes its results to files in `folder`."""
    global _pickled, _folder
    _pickled, _folder = pickled, folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    threading.Thread(target=_end_with_pool, args=(end,), daemon=True).start()


def _end_with_pool(end: connection.Connection) -> None:
    """Ends this worker, even in an item, when its pool ends or its parent is killed."""
    connection.wait([end])
    while os.path.exists(_folder):  # Its items may still write there.
        shutil.rmtree(_folder, ignore_errors=True)
    os._exit(1)


def _apply(item: Any) -> str:
    """Returns the name of a file with the result for an item."""
    global _function
    try:
        # It is not loaded at the start, so that errors reach the parent.
        _function = _function or pickle.loads(_pickled)
        number, path = tempfile.mkstemp(dir=_folder)
        with open(number, "wb") as stream:
            pickle.dump(_function(item), stream, pickle.HIGHEST_PROTOCOL)
        return path
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # Such an error would look like a killed worker.
            raise RuntimeError(str(error)) from error
        raise
