"""Worker processes that apply a function to many items; cores and memory to run them.

If a worker is killed, for example for lack of memory, the others do not hang: a new
worker repeats its item, up to a few times. Workers end when their parent ends, even if
that is killed.
"""

import atexit
import collections
import contextlib
import glob
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import signal
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Iterable, Iterator, Optional

from absl import logging

from albert_tf.errors import InputError, Interruption

# More kills than this have a cause that a new worker does not fix.
_MOST_RESTARTS = 3
MOST_PROCESSES = 1024
# The number of items submitted ahead per worker; more results of a slow reader would
# fill the memory.
_AHEAD = 4


def num_cores() -> int:
    """Returns the number of cores that this process may use, for example in a
    container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Returns the bytes of memory that this process may still use.

    This is the smaller of the machine's free memory and what is left in the control
    groups of a container or job; sys.maxsize if neither is known.
    """
    return min([sys.maxsize, *_free_memory(), *_left_by_control_groups()])


def has_accelerator() -> bool:
    """Returns whether the machine seems to have a GPU or TPU, without TensorFlow."""
    return any(glob.glob(device) for device in (
        "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel[0-9]*", "/dev/vfio/[0-9]*"))


def _free_memory() -> Iterator[int]:
    try:
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10
    except (OSError, ValueError):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_by_control_groups(own: str = "/proc/self/cgroup",
                            root: str = "/sys/fs/cgroup") -> Iterator[int]:
    """Yields the memory left in each control group of this process up to the root."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(own).read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            folder = pathlib.Path(root, "memory" if kinds else "")
            limit, used, cache = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes",
                 "total_inactive_file") if kinds
                else ("memory.max", "memory.current", "inactive_file"))
            # In a container the path may be the one outside, and the root its group.
            for at in (folder / path.strip("/"), *(folder / path.strip("/")).parents):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    limit_bytes = int((at / limit).read_text())  # "max" is no number
                    counts = dict(map(
                        str.split, (at / "memory.stat").read_text().splitlines()))
                    yield max(0, limit_bytes - int((at / used).read_text())
                              + int(counts[cache]))
                if at == folder:
                    break


def num_processes(num_workers: int) -> int:
    """Returns the number of processes for --num_workers; 0 means one per core."""
    if not 0 <= num_workers <= MOST_PROCESSES:
        raise InputError(
            f"--num_workers={num_workers} is not between 0 and {MOST_PROCESSES}; give "
            "a number of processes, or 0 for one per core.")
    return num_workers or num_cores()


class WorkerPool(contextlib.AbstractContextManager):
    """Worker processes that apply a function to items, in one or several calls.

        with WorkerPool(function, num_workers) as pool:
            for result in pool.in_order(items, "tokenizing"):

    `function` must be picklable; each process receives it once. With one worker, this
    process does the work.

    For each worker a thread sends one item and waits for the result, through a pipe
    that no other process holds. If a worker is killed, even while it sends a result,
    its pipe ends at once. (Processes from concurrent.futures share one pipe, and wait
    forever for the rest of a result.)
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int):
        self._function = function
        self._num_workers = num_workers
        self._threads: Optional[ThreadPoolExecutor] = None
        self._workers: dict[int, _Worker] = {}  # by thread id
        self._lock = threading.Lock()  # for the attributes below
        self._ended = False
        self._kills = 0

    def __exit__(self, *exception_info) -> None:
        self._stop(kill=exception_info[0] is not None)

    def in_order(self, items: Iterable, what: str) -> Iterator[Any]:
        """Yields function(item) for each item in order; items must be picklable.

        Raises the error of the first item that has one, and Interruption if processes
        are killed repeatedly. `what` names the work in messages ("tokenizing").
        """
        if self._num_workers == 1:
            yield from map(self._function, items)
            return
        self._start()
        todo = iter(items)
        pending: collections.deque[Future] = collections.deque()
        try:
            while True:
                room = _AHEAD * self._num_workers - len(pending)
                for item in itertools.islice(todo, room):
                    pending.append(self._threads.submit(self._apply, item, what))
                if not pending:
                    return
                result = pending[0].result()
                pending.popleft()
                yield result
        finally:
            # An error, or a reader that stops early, leaves work behind.
            if pending:
                self._stop(kill=True)

    def _apply(self, item: Any, what: str) -> Any:
        """Returns the result for an item, in a thread of this process. If the worker is
        killed, a new one repeats the item."""
        while True:
            try:
                return self._worker().ask(item)
            except _Killed:
                with self._lock:
                    if worker := self._workers.pop(threading.get_ident(), None):
                        worker.end()
                    if self._ended:
                        raise
                    self._kills += 1
                    if self._kills > _MOST_RESTARTS:
                        raise Interruption(
                            f"{what}: worker processes were killed {self._kills} "
                            "times, perhaps for lack of memory; start again with "
                            f"--num_workers below {self._num_workers}.") from None
                logging.warning(
                    "%s: a worker process was killed, perhaps for lack of memory. Its "
                    "work is repeated.", what)

    def _worker(self) -> "_Worker":
        """Returns this thread's worker."""
        # A new process must be registered before a different thread ends them all.
        with self._lock:
            if self._ended:
                raise _Killed
            thread_id = threading.get_ident()
            if thread_id not in self._workers:
                self._workers[thread_id] = _Worker(self._context, self._pickled)
            return self._workers[thread_id]

    def _start(self) -> None:
        if self._threads is not None:
            return
        self._pickled = pickle.dumps(self._function)
        # fork is not used: a copy of a process with TensorFlow's threads may hang.
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # The module is imported once for all workers.
            self._context.set_forkserver_preload([type(self._function).__module__])
            _start_helpers()
        self._ended, self._kills = False, 0
        self._threads = ThreadPoolExecutor(self._num_workers)
        # A suspended generator that holds this pool does not end it. Without this,
        # multiprocessing would end the workers, whose work the threads would repeat.
        atexit.register(self._stop, kill=True)

    def _stop(self, kill: bool = False) -> None:
        """Ends the processes; with `kill` at once, without finishing their items."""
        if self._threads is None:
            return
        threads, self._threads = self._threads, None
        atexit.unregister(self._stop)
        if kill:
            with self._lock:
                self._ended = True
                for worker in self._workers.values():
                    worker.process.kill()
        threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()


class _Killed(Exception):
    """A worker ended before it sent its result."""


class _Worker:
    """A process that applies a function, and this process's end of its pipe."""

    def __init__(self, context, pickled: bytes):
        self._pipe, other = context.Pipe()
        with other:
            self.process = context.Process(
                target=_work, args=(other, pickled), daemon=True)
            self.process.start()

    def ask(self, item: Any) -> Any:
        """Returns the function's result or raises its error; raises _Killed if the
        process has ended."""
        pickled = pickle.dumps(item)
        try:
            self._pipe.send_bytes(pickled)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise _Killed from None
        done, result = pickle.loads(answer)
        if done:
            return result
        error, where = result
        raise error from RuntimeError(f"in a worker process:\n{where}")

    def end(self) -> None:
        """Closes its pipe, which ends the process, and waits for that."""
        self._pipe.close()
        self.process.join()
        self.process.close()


def _start_helpers() -> None:
    """Starts the processes that start workers and clean up after them.

    Ctrl-C is blocked in them and in all workers from the beginning. Semaphores that a
    killed process left are removed without a warning.
    """
    from multiprocessing import forkserver, resource_tracker  # not on Windows

    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    sys.warnoptions.append(quiet)
    try:
        # It ends by unblocking Ctrl-C, and the fork server would start it.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        sys.warnoptions.remove(quiet)


# ---- in a worker -------------------------------------------------------------

def _work(pipe: multiprocessing.connection.Connection, pickled: bytes) -> None:
    """Answers an item with (True, result) or (False, (error, where it was raised))."""
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    function = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            item = pipe.recv_bytes()
            try:
                if function is None:
                    # This is not done at the start, so that errors reach the parent.
                    function = pickle.loads(pickled)
                answer = pickle.dumps((True, function(pickle.loads(item))))
            except BaseException as error:  # Every error is raised in the parent.
                where = traceback.format_exc()
                try:
                    answer = pickle.dumps((False, (error, where)))
                except Exception:
                    answer = pickle.dumps((False, (RuntimeError(str(error)), where)))
            pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """Ends this worker when its parent is killed, instead of after its item."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
