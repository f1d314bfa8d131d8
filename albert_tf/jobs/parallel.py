"""Worker processes that apply a function to many items; cores and memory to run them.

A killed worker, for example for lack of memory, ends the run with a sentence. Each has a
pipe of its own: in the one pipe of ProcessPoolExecutor, a worker that is killed while it
writes would leave half a message, for whose rest the parent would wait without end.
"""

import collections
import contextlib
import glob
import itertools
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection
from multiprocessing.pool import ExceptionWithTraceback
from typing import Any, Callable, Iterable, Iterator

from albert_tf.errors import Interruption

# The number of items submitted ahead per worker; more results of a slow reader would
# fill the memory.
_AHEAD = 4


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1)


def available_memory(own: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Returns the bytes of memory that this process may still use: the machine's, or
    what is left in the control groups of a container or job; sys.maxsize if neither is
    known."""
    free, path = [sys.maxsize], None
    with contextlib.suppress(OSError):  # There is no such file on a Mac.
        free += [int(size) << 10 for size in re.findall(
            r"^MemAvailable: *(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.M)]
        path = re.search(r"^0::/*(.*)$", pathlib.Path(own).read_text(), re.M)
    group = pathlib.Path(root, path[1] if path else "")
    # In a container the path may be the one outside, and the root its group.
    for at in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError, KeyError):
            counts = dict(map(str.split, (at / "memory.stat").read_text().splitlines()))
            free.append(max(0, int((at / "memory.max").read_text())  # "max" is no number
                            - int((at / "memory.current").read_text())
                            + int(counts["inactive_file"])))
    return min(free)


def has_accelerator() -> bool:
    """Returns whether the machine seems to have a GPU or TPU, without TensorFlow."""
    return any(glob.glob(device) for device in (
        "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"))


class WorkerPool(contextlib.AbstractContextManager):
    """Worker processes that apply a function to items, in one or several calls.

        with WorkerPool(function, num_workers) as pool:
            for result in pool.in_order(items, "tokenizing"):

    `function` and items must be picklable. With one worker, this process does the work.
    Otherwise each process has a thread here and a pipe to it.
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int):
        self._function, self._num_workers = function, num_workers
        self._threads = ThreadPoolExecutor(num_workers)
        self._own = threading.local()  # `pipe` to the thread's process
        self._processes: list[Any] = []
        self._ended = False

    def __exit__(self, *exception_info) -> None:
        """Ends the processes, also in the middle of an item that nobody waits for."""
        self._ended = True
        for waits in (False, True):  # A process that is starting comes late.
            self._threads.shutdown(waits, cancel_futures=True)
            for process in self._processes:
                process.kill()
                process.join()

    def in_order(self, items: Iterable, what: str) -> Iterator[Any]:
        """Yields function(item) for each item in order. Raises the error of the first
        item that has one, and Interruption, which names the work by `what`, if a process
        is killed."""
        if self._num_workers == 1:
            yield from map(self._function, items)
            return
        todo, pending = iter(items), collections.deque[Future]()
        while True:
            for item in itertools.islice(
                    todo, _AHEAD * self._num_workers - len(pending)):
                pending.append(self._threads.submit(self._ask, item))
            if not pending:
                return
            try:
                result, error = pending.popleft().result()
            except (EOFError, OSError) as ended:
                raise Interruption(
                    f"{what}: a worker process was killed, perhaps for lack of memory; "
                    "run the same command again, with --num_workers below "
                    f"{self._num_workers} if memory is short.") from ended
            if error is not None:
                raise error
            yield result

    def _ask(self, item: Any) -> tuple[Any, BaseException | None]:
        """Returns what a process sends for an item; in the process's thread, where a
        signal cannot interrupt its start."""
        if not hasattr(self._own, "pipe"):
            self._own.pipe = self._new_process()
        if self._ended:  # The other processes have just been killed.
            raise EOFError
        self._own.pipe.send(item)
        return self._own.pipe.recv()

    def _new_process(self) -> connection.Connection:
        # fork is not used: a copy of a process with TensorFlow's threads may hang.
        context: Any = multiprocessing.get_context("spawn")
        if "forkserver" in multiprocessing.get_all_start_methods():  # not on Windows
            from multiprocessing import resource_tracker

            context = multiprocessing.get_context("forkserver")
            # The module is imported once for all workers; that of a partial's function.
            function = getattr(self._function, "func", self._function)
            context.set_forkserver_preload([function.__module__])
            # When it is started later, it unblocks Ctrl-C, which is blocked in processes
            # from the beginning.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(
            there, pickle.dumps(self._function)), daemon=True)
        process.start()
        there.close()  # Else a killed process would not close it.
        self._processes.append(process)
        return here


# ---- in a worker -------------------------------------------------------------


def _work(pipe: connection.Connection, pickled: bytes) -> None:
    """Sends (result, None) or (None, error) for each item that comes, until this process
    is killed or that of the pool ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    function = None
    with contextlib.suppress(EOFError):
        while True:
            item = pipe.recv()
            try:
                # It is not loaded at the start, so that errors reach the parent.
                function = function or pickle.loads(pickled)
                pipe.send((function(item), None))
            except BaseException as error:
                shown = ExceptionWithTraceback(error, error.__traceback__)
                try:
                    pickle.loads(pickle.dumps(shown))
                except Exception:  # Such an error would look like a killed worker.
                    shown = RuntimeError(str(error))
                pipe.send((None, shown))
