"""Examples → features, on all cores, in the order of the examples."""

import collections
import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import process
from typing import Any, Callable, Iterator, Sequence

import tqdm

from albert_tf.errors import InputError

# Starting processes takes longer than so many examples.
_FEW_EXAMPLES = 1000
_LARGEST_CHUNK = 256
_BAR_DELAY = 2.0  # seconds; shorter jobs show no bar

Function = Callable[[Any], list[dict]]


def featurize_all(
        examples: Sequence, function: Function, *, what: str, num_workers: int = 0
) -> Iterator[list[dict]]:
    """Applies a function to every example, in parallel where that pays.

    The results do not depend on the number of processes. Where they are several,
    a script needs its `if __name__ == "__main__"`.

    Args:
      examples: what to featurize; can be pickled.
      function: example → its features, one dict for each record that it makes. Can
        be pickled; each process receives it once, with what it holds (tokenizer).
      what: the set's name, for the progress bar and messages ("train").
      num_workers: processes; 0 takes as many as there are cores. A small set is
        done in this process.

    Yields:
      The function's result of each example, in the order of the examples.

    Raises:
      InputError: as the function raises it, for the first such example; or if a
        process was killed.
    """
    if num_workers < 0:
        raise InputError(
            f"--num_workers={num_workers}: give a number of processes, or 0 for one "
            "per core.")
    workers = num_workers or _num_cores()
    results = (map(function, examples)
               if workers == 1 or len(examples) < _FEW_EXAMPLES
               else _in_parallel(examples, function, what, workers))
    with tqdm.tqdm(total=len(examples), desc=f"features of {what}", unit=" examples",
                   delay=_BAR_DELAY,
                   mininterval=0.5 if sys.stderr.isatty() else 10) as bar:
        for result in results:
            yield result
            bar.update()


def _num_cores() -> int:
    # A container or a batch system may have given this process only some.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_parallel(examples: Sequence, function: Function, what: str,
                 workers: int) -> Iterator[list[dict]]:
    size = max(1, min(_LARGEST_CHUNK, len(examples) // (8 * workers)))
    chunks = (examples[at:at + size] for at in range(0, len(examples), size))
    # Not fork: a copy of a process with TensorFlow's threads may hang for ever.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in methods else "spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, context, _start_worker, (pickle.dumps(function),))
    pending: collections.deque[concurrent.futures.Future] = collections.deque()
    try:
        # A few chunks ahead, so that a slow reader does not fill up the memory.
        for chunk in itertools.islice(chunks, 4 * workers):
            pending.append(pool.submit(_apply, chunk))
        while pending:
            results = pending.popleft().result()
            for chunk in itertools.islice(chunks, 1):
                pending.append(pool.submit(_apply, chunk))
            yield from results
    except process.BrokenProcessPool as error:
        raise InputError(
            f"a process that was making the features of {what} was killed, perhaps "
            "for want of memory; start again with a smaller --num_workers than "
            f"{workers}.") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# --- in a worker

_pickled: bytes = b""
_function: list[Function] = []


def _start_worker(pickled: bytes) -> None:
    global _pickled
    _pickled = pickled
    # Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _apply(chunk: Sequence) -> list[list[dict]]:
    if not _function:
        # Here and not at the start, so that an error reaches the parent.
        _function.append(pickle.loads(_pickled))
    return [_function[0](example) for example in chunk]
