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
from concurrent.futures import Future, ProcessPoolExecutor, process
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
    """

    def __init__(self, function: Callable[[Any], Any], num_workers: int):
        self._function = function
        self._num_workers = num_workers
        self._pool: Optional[ProcessPoolExecutor] = None

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
        todo = iter(items)
        # Handed out and not yet yielded, in order; the future is None where the pool
        # broke before it took the item.
        pending: collections.deque[tuple[Any, Optional[Future]]] = collections.deque()
        for restart in itertools.count():
            try:
                yield from self._results(todo, pending)
                return
            except process.BrokenProcessPool as error:
                if restart == _MOST_RESTARTS:
                    raise Interruption(
                        f"{what}: worker processes were killed {restart + 1} times, "
                        "perhaps for want of memory; start again with a smaller "
                        f"--num_workers than {self._num_workers}.") from error
                logging.warning(
                    "%s: a worker process was killed, perhaps for want of memory; what "
                    "it was doing is done again.", what)
                self._stop()

    def _results(self, todo: Iterator, pending: collections.deque) -> Iterator[Any]:
        """Yields results until all is done; a BrokenProcessPool leaves work pending."""
        self._start()
        try:
            for index, (item, future) in enumerate(pending):
                if not _is_done(future):
                    pending[index] = item, self._submit(item)
            while True:
                room = _AHEAD * self._num_workers - len(pending)
                for item in itertools.islice(todo, room):
                    pending.append((item, None))
                    pending[-1] = item, self._submit(item)
                if not pending:
                    return
                result = pending[0][1].result()
                pending.popleft()
                yield result
        finally:
            # Where an error, or a reader that stops early, leaves work behind.
            if pending:
                self._stop(kill=True)

    def _submit(self, item: Any) -> Future:
        """May start a process, which must be known before a signal ends this one."""
        with _signals_wait():
            return self._pool.submit(_apply, item)

    def _start(self) -> None:
        if self._pool is not None:
            return
        # Not fork: a copy of a process with TensorFlow's threads may hang for ever.
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # Imported once, for all workers.
            context.set_forkserver_preload([type(self._function).__module__])
            _start_helpers()
        self._pool = ProcessPoolExecutor(
            self._num_workers, context, _start_worker, (pickle.dumps(self._function),))

    def _stop(self, kill: bool = False) -> None:
        """Ends the processes; with `kill` at once, in the middle of what they do."""
        if self._pool is not None:
            for worker in list((self._pool._processes or {}).values()) * kill:
                worker.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


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


def _is_done(future: Optional[Future]) -> bool:
    """Whether there is a result, or an error of the function's own."""
    return (future is not None and future.done() and not future.cancelled()
            and not isinstance(future.exception(), process.BrokenProcessPool))


# --- in a worker

_pickled: bytes = b""
_function: list[Callable] = []


def _start_worker(pickled: bytes) -> None:
    global _pickled
    _pickled = pickled
    # Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this, a worker whose parent was killed would wait for work for ever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _apply(item: Any) -> Any:
    if not _function:
        # Here and not at the start, so that an error reaches the parent.
        _function.append(pickle.loads(_pickled))
    return _function[0](item)
