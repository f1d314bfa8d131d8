"""Examples → features, on all cores, in the order of the examples."""

import sys
from typing import Any, Callable, Iterator, Sequence

import tqdm

from albert_tf import parallel

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
      InputError: as the function raises it, for the first such example; or if
        processes are killed again and again.
    """
    workers = parallel.num_processes(num_workers)
    results = (map(function, examples)
               if workers == 1 or len(examples) < _FEW_EXAMPLES
               else _in_parallel(examples, function, what, workers))
    with tqdm.tqdm(total=len(examples), desc=f"features of {what}", unit=" examples",
                   delay=_BAR_DELAY,
                   mininterval=0.5 if sys.stderr.isatty() else 10) as bar:
        for result in results:
            yield result
            bar.update()


class _EachOf:
    """The function for a chunk of examples; a class, so that it can be pickled."""

    def __init__(self, function: Function):
        self._function = function

    def __call__(self, chunk: Sequence) -> list[list[dict]]:
        return [self._function(example) for example in chunk]


def _in_parallel(examples: Sequence, function: Function, what: str,
                 workers: int) -> Iterator[list[dict]]:
    size = max(1, min(_LARGEST_CHUNK, len(examples) // (8 * workers)))
    chunks = (examples[at:at + size] for at in range(0, len(examples), size))
    with parallel.WorkerPool(_EachOf(function), workers) as pool:
        for results in pool.in_order(chunks, f"features of {what}"):
            yield from results
