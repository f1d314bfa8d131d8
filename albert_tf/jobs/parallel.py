"""Processes that apply a function to many items; what the machine has to run them.

A worker that is killed, for lack of memory say, does not hang the others: another one
repeats its item, a few times at most. Workers end with their parent, however that ends.
"""

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

# More kills than that have a cause which starting again does not mend.
_MOST_RESTARTS = 3
MOST_PROCESSES = 1024
_AHEAD = 4  # items handed out for each worker: a slow reader must not fill memory


def num_cores() -> int:
    """Cores that this process may use; a container may have given it only some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has free, and no more
    than what the control groups of a container or a job leave; sys.maxsize where
    neither can be asked."""
    return min([sys.maxsize, *_free_memory(), *_left_by_control_groups()])


def has_accelerator() -> bool:
    """Whether the machine seems to have a GPU or TPU; asked without TensorFlow."""
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
    """What each group of this process, from its own up to the root, has left."""
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
            # In a container the path may be that outside, and its own group the root.
            for at in (folder / path.strip("/"), *(folder / path.strip("/")).parents):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    most = int((at / limit).read_text())  # "max" is no number
                    counts = dict(map(
                        str.split, (at / "memory.stat").read_text().splitlines()))
                    yield max(0, most - int((at / used).read_text())
                              + int(counts[cache]))
                if at == folder:
                    break


def num_processes(num_workers: int) -> int:
    """--num_workers as a number of processes: 0 stands for one per core."""
    if not 0 <= num_workers <= MOST_PROCESSES:
        raise InputError(
            f"--num_workers={num_workers}: give a number of processes, at most "
            f"{MOST_PROCESSES}, or 0 for one per core.")
    return num_workers or num_cores()


class WorkerPool(contextlib.AbstractContextManager):
    """Processes that apply a function to items, in one call or several.

        with WorkerPool(function, num_workers) as pool:
            for result in pool.in_order(items, "tokenizing"):

    `function` can be pickled; each process receives it once, with what it holds. With
    one worker, this process does the work.

    A thread for each worker hands it one item and waits for the result, through a pipe
    that no other process holds: a worker that is killed, even while it sends a result,
    is at once known by the end of its pipe. (concurrent.futures' processes share one
    pipe: half a result in it is waited for without end.)
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int):
        self._function = function
        self._num_workers = num_workers
        self._threads: Optional[ThreadPoolExecutor] = None
        self._workers: dict[int, _Worker] = {}  # by their threads
        self._lock = threading.Lock()  # of what follows
        self._ended = False
        self._kills = 0

    def __exit__(self, *exception_info) -> None:
        self._stop(kill=exception_info[0] is not None)

    def in_order(self, items: Iterable, what: str) -> Iterator[Any]:
        """function(item) of each item, in the order of the items, which can be pickled.

        An error is that of the first item with one; processes killed again and again
        raise an Interruption. `what` names the work in messages ("tokenizing").
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
            # Where an error, or a reader that stops early, leaves work behind.
            if pending:
                self._stop(kill=True)

    def _apply(self, item: Any, what: str) -> Any:
        """The result for an item, in a thread of this process; a worker that is killed
        is replaced, and does it again."""
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
                            f"{what}: worker processes were killed {self._kills} times, "
                            "perhaps for want of memory; start again with a smaller "
                            f"--num_workers than {self._num_workers}.") from None
                logging.warning(
                    "%s: a worker process was killed, perhaps for want of memory; what "
                    "it was doing is done again.", what)

    def _worker(self) -> "_Worker":
        """This thread's."""
        # A process must be known before another thread ends them all.
        with self._lock:
            if self._ended:
                raise _Killed
            own = threading.get_ident()
            if own not in self._workers:
                self._workers[own] = _Worker(self._context, self._pickled)
            return self._workers[own]

    def _start(self) -> None:
        if self._threads is not None:
            return
        self._pickled = pickle.dumps(self._function)
        # Not fork: a copy of a process with TensorFlow's threads may hang for ever.
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # Imported once, for all workers.
            self._context.set_forkserver_preload([type(self._function).__module__])
            _start_helpers()
        self._ended, self._kills = False, 0
        self._threads = ThreadPoolExecutor(self._num_workers)

    def _stop(self, kill: bool = False) -> None:
        """Ends the processes; with `kill` at once, in the middle of what they do."""
        if self._threads is None:
            return
        threads, self._threads = self._threads, None
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
    """A worker ended before it gave its result."""


class _Worker:
    """A process that applies a function, and this process's end of its pipe."""

    def __init__(self, context, pickled: bytes):
        self._pipe, other = context.Pipe()
        with other:
            self.process = context.Process(
                target=_work, args=(other, pickled), daemon=True)
            self.process.start()

    def ask(self, item: Any) -> Any:
        """The function's result, or its error; _Killed if the process has ended."""
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
        """Waits for its end, which comes with that of its pipe."""
        self._pipe.close()
        self.process.join()
        self.process.close()


def _start_helpers() -> None:
    """Starts the processes that start and tidy up after workers. Ctrl-C is blocked in
    them and in all workers, from their first moment; they say nothing of semaphores
    that a killed process left, which they remove."""
    from multiprocessing import forkserver  # not on Windows

    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    sys.warnoptions.append(quiet)
    try:
        with _signals_wait(signal.SIGINT):
            forkserver.ensure_running()
    finally:
        sys.warnoptions.remove(quiet)


@contextlib.contextmanager
def _signals_wait(*numbers: int) -> Iterator[None]:
    """Within the block a signal, by default SIGINT or SIGTERM, waits for its end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, numbers or (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a worker

def _work(pipe: multiprocessing.connection.Connection, pickled: bytes) -> None:
    """Answers each item with (True, result) or (False, (error, where it was raised))."""
    # Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    function = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            item = pipe.recv_bytes()
            try:
                if function is None:
                    # Here and not at the start, so that an error reaches the parent.
                    function = pickle.loads(pickled)
                answer = pickle.dumps((True, function(pickle.loads(item))))
            except BaseException as error:  # the parent's, whatever it is
                where = traceback.format_exc()
                try:
                    answer = pickle.dumps((False, (error, where)))
                except Exception:
                    answer = pickle.dumps((False, (RuntimeError(str(error)), where)))
            pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """Without this, a worker whose parent was killed would finish its item first."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
