"""Puts the requests of a server into batches.

While the model computes a batch, requests wait in a bounded queue. The next batch is
the oldest request and those nearest to it in length, which keeps padding small.
Requests are never delayed to fill a batch.
"""

import asyncio
import concurrent.futures
from typing import Callable, Sequence

from albert_tf.finetuning.answer import Answer, Request


class Refused(Exception):
    """An error that becomes a reply with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class Batcher:
    """A queue of requests, which are put into batches. `compute` computes one batch at
    a time, in a separate thread."""

    def __init__(self, compute: Callable[[Sequence[Request], int], list[Answer]],
                 batch_size: int, queue_size: int):
        self._compute, self._batch_size = compute, batch_size
        self._queue_size = queue_size
        self._waiting: list[tuple[Request, asyncio.Future]] = []
        self._came = asyncio.Event()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "model")
        self.batches = self.sequences = 0

    @property
    def waiting(self) -> int:
        return sum(len(request.sequences) for request, _ in self._waiting)

    async def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answers in the order of the requests. Raises Refused if the queue
        is full."""
        more = sum(len(request.sequences) for request in requests)
        if self._waiting and self.waiting + more > self._queue_size:
            raise Refused(503, f"the queue is full ({self.waiting} sequences); try "
                          "again later.")
        pairs = [(request, asyncio.Future()) for request in requests]
        self._waiting += pairs
        self._came.set()
        try:
            return [await future for _, future in pairs]
        finally:
            # If the client has disconnected, its other requests are not computed.
            for _, future in pairs:
                future.cancel()

    async def run(self) -> None:
        """Answers requests until it is cancelled."""
        while True:
            await self._came.wait()
            if batch := self._next():
                await self._do(batch)
            else:
                self._came.clear()

    def _next(self) -> list[tuple[Request, asyncio.Future]]:
        """Takes the next batch out of the queue; [] if no request waits."""
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._waiting:
            return []
        oldest, size, batch = self._waiting[0][0], 0, []
        for each in sorted(
                (each for each in self._waiting if each[0].by is oldest.by),
                key=lambda each: (
                    each[0] is not oldest, abs(each[0].length - oldest.length))):
            if batch and size + len(each[0].sequences) > self._batch_size:
                break
            batch.append(each)
            size += len(each[0].sequences)
        taken = {id(future) for _, future in batch}
        self._waiting = [each for each in self._waiting if id(each[1]) not in taken]
        return batch

    async def _do(self, batch: list[tuple[Request, asyncio.Future]]) -> None:
        """Computes a batch and sets the results or errors of its requests."""
        requests, futures = zip(*batch)
        self.batches += 1
        self.sequences += sum(len(request.sequences) for request in requests)
        try:
            results = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._compute, requests, self._batch_size)
        except Exception as error:
            if len(batch) > 1:  # One request's error must not fail the others.
                for each in batch:
                    await self._do([each])
                return
            if not futures[0].done():
                futures[0].set_exception(error)
            return
        for future, answer in zip(futures, results):
            if not future.done():
                future.set_result(answer)
