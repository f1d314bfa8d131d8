"""Serves a model over HTTP, with TensorFlow Serving's REST interface.

    request ─► checked, tokenized ─► queue ─► batch ─► model ─► reply

While the model computes a batch, requests wait in a bounded queue. The next batch is
the oldest request and those nearest to it in length, which keeps padding small.
Requests are never delayed to fill a batch.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import re
import time
import zlib
from typing import Any, Callable, Sequence

from absl import logging
from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import (
    CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics)
from prometheus_client.aiohttp import make_aiohttp_handler

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.options import options_of
from albert_tf.serving.options import Ask, Limits
from albert_tf.serving.predict import Answer, Model, Request, answers

# aiohttp's settings: a request whose client leaves is dropped, nothing is logged for
# each request, and `_decompressed` says what is wrong with a body.
RUNNING: dict[str, Any] = {
    "handler_cancellation": True, "access_log": None, "auto_decompress": False}
json_reply = functools.partial(web.json_response, dumps=functools.partial(
    json.dumps, ensure_ascii=False, allow_nan=False))
_OPTIONS = [each.name for each in options_of(Ask)  # of an address
            if each.name not in ("task", "batch_size")]


class Refused(InputError):
    """An error that becomes a reply with a different HTTP status than 400."""

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
        self._waiting: dict[asyncio.Future, Request] = {}  # the oldest first
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "model")
        self._working: Any = None  # the task that answers, as long as requests wait

    @property
    def waiting(self) -> int:
        return sum(len(request.sequences) for request in self._waiting.values())

    async def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answers in the order of the requests. Raises Refused if the queue
        is full."""
        more = sum(len(request.sequences) for request in requests)
        if self._waiting and self.waiting + more > self._queue_size:
            raise Refused(503, f"the queue is full ({self.waiting} sequences); try "
                          "again later.")
        futures = {asyncio.Future(): request for request in requests}
        self._waiting |= futures
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        try:
            return [await future for future in futures]
        finally:
            # If the client has disconnected, its other requests are not computed.
            for future in futures:
                future.cancel()
                self._waiting.pop(future, None)

    async def _work(self) -> None:
        while batch := self._next():
            await self._do(batch)

    def _next(self) -> dict[asyncio.Future, Request]:
        """Takes the next batch out of the queue; {} if no request waits."""
        oldest, size, batch = next(iter(self._waiting.values()), None), 0, {}
        for future, request in sorted(
                (each for each in self._waiting.items() if each[1].by is oldest.by),
                key=lambda each: (
                    each[1] is not oldest, abs(each[1].length - oldest.length))):
            if batch and size + len(request.sequences) > self._batch_size:
                break
            batch[future] = self._waiting.pop(future)
            size += len(request.sequences)
        return batch

    async def _do(self, batch: dict[asyncio.Future, Request]) -> None:
        """Computes a batch and sets the results or errors of its requests."""
        try:
            results: list[Any] = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._compute, [*batch.values()], self._batch_size)
        except Exception as error:
            if len(batch) > 1:  # One request's error must not fail the others.
                for future, request in batch.items():
                    await self._do({future: request})
                return
            results = [error]
        for future, result in zip(batch, results):
            if not future.done():
                (future.set_exception if isinstance(result, Exception) else
                 future.set_result)(result)


class Service:
    """The HTTP handlers of one model; `app` is the aiohttp application with them. `ask`
    holds the options of requests that do not name them."""

    def __init__(self, model: Model, name: str, limits: Limits = Limits(),
                 ask: Ask = Ask()):
        self.model, self.name, self.limits, self.ask = model, name, limits, ask
        self.batcher = Batcher(self._compute, ask.batch_size, limits.queue_size)
        self.open = 0
        self._receiving: set[Any] = set()  # tasks whose request is not complete
        disable_created_metrics()  # They would give each counter's age.
        ours: Any = {"namespace": "albert", "registry": CollectorRegistry()}
        self._replies = Counter(
            "requests", "Requests answered, by status.", ["status"], **ours)
        self._seconds = Histogram(
            "request_seconds", "Seconds from a request to its reply.", **ours)
        self._batches = Counter("batches", "Batches computed.", **ours)
        self._sequences = Counter("sequences", "Sequences computed.", **ours)
        Gauge("open_requests", "Requests not yet answered.", **ours
              ).set_function(lambda: self.open)
        Gauge("queued_sequences", "Sequences that wait for the model.", **ours
              ).set_function(lambda: self.batcher.waiting)
        self.app = web.Application(
            middlewares=[self._guarded], client_max_size=limits.body_bytes)
        at = f"/v1/models/{name}{{of:(/versions/1)?}}"
        pages: dict[str, Any] = {  # which stay so
            "/healthz": {"status": "ok"},
            at: {"model_version_status": [{
                "version": "1", "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""}}]},
            f"{at}/metadata": {
                "model_spec": {"name": name, "signature_name": "", "version": "1"},
                "metadata": {
                    "tasks": {task: list(model.head(task).names)
                              for task in model.tasks()},
                    "labels": list(model.labels),
                    "limits": {"batch_size": ask.batch_size,
                               **dataclasses.asdict(limits)}}}}
        self.app.add_routes([
            web.post(at + ":{verb:predict|classify|regress}", self._ask),
            web.get("/metrics", make_aiohttp_handler(ours["registry"])),
            *(web.get(path, functools.partial(self._page, page))
              for path, page in pages.items())])
        self.app.on_shutdown.append(self._stop)

    async def _stop(self, app):
        """Ends uploads; the runner then waits for the requests that have arrived."""
        if self.open:
            logging.info("Stopping: finishing %d open requests.", self.open)
        for task in self._receiving:
            task.cancel()

    @web.middleware
    async def _guarded(self, request, handler):
        """Counts a request, and turns errors into JSON."""
        # The status, as in nginx, if the client leaves without a reply.
        begin, status = time.monotonic(), 499
        asks = request.method == "POST"
        self.open += asks
        try:
            reply = await handler(request)
            status = reply.status
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            status, sentence = self._explained(error, request)
            reply = json_reply({"error": sentence}, status=status)
            if status == 503:
                reply.headers["Retry-After"] = "1"
        finally:
            self.open -= asks
            if asks:
                self._replies.labels(status).inc()
                self._seconds.observe(time.monotonic() - begin)
        return reply

    def _explained(self, error: Exception, request: web.Request) -> tuple[int, str]:
        """Returns the status and the sentence of a request's error."""
        if isinstance(error, InputError):
            return getattr(error, "status", 400), str(error)
        if isinstance(error, (web.RequestPayloadError, HttpProcessingError)):
            return 400, "the body is damaged."
        if isinstance(error, web.HTTPException):
            return error.status, {
                404: f"there is nothing at {request.path}; the model is at "
                     f"/v1/models/{self.name}:predict.",
                405: f"{request.path} does not take {request.method}.",
                413: f"the body has more than {self.limits.body_bytes} bytes; send less.",
            }.get(error.status, error.reason)
        logging.error("A request failed.", exc_info=error)
        return 500, "the server failed; see its log."

    # ---- replies -----------------------------------------------------------

    async def _page(self, content, request):
        return json_reply(content)

    async def _ask(self, request):
        verb = request.match_info["verb"]
        body = text_files.parse_json(await self._read(request), "the body")
        if not isinstance(body, dict):
            raise InputError("the body must be a JSON object, such as "
                             "{\"instances\": [...]}.")
        items = _inputs(body, ["instances", "inputs"] if verb == "predict" else [
            "examples"])
        if len(items) > self.limits.instances:
            raise Refused(413, f"there are {len(items)} inputs; this server accepts at "
                          f"most {self.limits.instances} per request.")
        ask = self._options(body, request.query)
        if verb != "predict":
            ask = dataclasses.replace(ask, probability_list=False)
        requests = await asyncio.get_running_loop().run_in_executor(
            None, self._requests, items, ask)
        # An accepted request is answered even if the server is stopped meanwhile.
        results = await self.batcher.answer(requests)
        if verb == "predict" and "inputs" in body:
            names = dict.fromkeys(name for answer in results for name in answer)
            return json_reply({"outputs": {
                name: [answer.get(name) for answer in results] for name in names}})
        if verb == "predict":
            return json_reply({"predictions": results})
        name = "score" if verb == "regress" else "probabilities"
        if not all(name in answer for answer in results):
            raise InputError(f"this model gives no {name}; use :predict.")
        return json_reply({"results": [
            answer[name] if verb == "regress" else [*answer[name].items()]
            for answer in results]})

    async def _read(self, request) -> str:
        """Returns the body of a request; one that arrives too slowly is refused."""
        task, limit = asyncio.current_task(), self.limits.receive_seconds
        self._receiving.add(task)
        try:
            async with asyncio.timeout(limit):
                content = await request.read()
            return _decompressed(content, request.headers.get("Content-Encoding", ""),
                                 self.limits.body_bytes).decode("utf-8-sig")
        except TimeoutError:
            raise Refused(408, f"the body was not complete after {limit:g} s; send it "
                          "faster, or fewer texts per request.") from None
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte {error.start + 1} of the body is not UTF-8.") from error
        finally:
            self._receiving.remove(task)

    def _options(self, body: dict[str, Any], query) -> Ask:
        """Returns the options that a request names."""
        task = body.get("signature_name", "")
        if task in ("", "serving_default"):
            task = self.ask.task
        # The columns of `outputs` are tensors, as TensorFlow Serving's. The server's
        # threshold is for the requests that can have one.
        options: dict[str, Any] = {"probability_list": "inputs" in body}
        if task not in ("", "classify"):
            options["label_threshold"] = None
        for name in query:
            if name not in _OPTIONS:
                raise InputError(f"the address has the option {name!r:.40}, which is not "
                                 f"known; give {', '.join(_OPTIONS)}.")
            options[name] = text = " and ".join(query.getall(name))
            with contextlib.suppress(InputError):  # Ask refuses a text.
                options[name] = text_files.parse_json(text.lower(), name)
        return dataclasses.replace(self.ask, **options, task=task)

    def _compute(self, requests: Sequence[Request], batch_size: int) -> list[Answer]:
        self._batches.inc()
        self._sequences.inc(sum(len(request.sequences) for request in requests))
        return answers(requests, batch_size)

    def _requests(self, given: Sequence[Any], ask: Ask) -> list[Request]:
        # What the model cannot do is not an error of an input.
        self.model.check(ask, given)
        requests = []
        for i, item in enumerate(given, 1):
            longest = max((len(text) for value in (
                item.values() if isinstance(item, dict) else [item]) for text in (
                    value if isinstance(value, list) else [value])
                           if isinstance(text, str)), default=0)
            if longest > self.limits.text_length:
                raise Refused(413, f"input {i} has a text of {longest} characters; this "
                              f"server accepts at most {self.limits.text_length}.")
            if isinstance(item, list):
                raise InputError(f"input {i}: it is a list; give a text or an object.")
            try:
                requests.append(self.model.request(item, ask))
            except InputError as error:
                raise InputError(f"input {i}: {error}") from error
        return requests


def _inputs(body: dict[str, Any], keys: Sequence[str]) -> list[Any]:
    """Returns the inputs of a body, one by one, which it has under one of the keys."""
    present = [name for name in keys if name in body]
    unknown = set(body) - {*keys, "signature_name"}
    if len(present) != 1 or unknown:
        raise InputError(f"the body must hold {' or '.join(keys)}, a list of texts; it "
                         f"holds {', '.join(sorted(unknown or present)) or 'neither':.80}.")
    items = body[present[0]]
    if present == ["inputs"] and isinstance(items, dict):
        columns = [value if isinstance(value, list) else [value]
                   for value in items.values()]
        if len({*map(len, columns)}) > 1:
            raise InputError("the lists of `inputs` must have equally many texts.")
        items = [dict(zip(items, row)) for row in zip(*columns)]
    if not isinstance(items, list) or not items:
        raise InputError(f"{present[0]} must be a list of one or more texts.")
    return items


def _decompressed(content: bytes, encoding: str, most: int) -> bytes:
    """Returns a body as it was before its compression."""
    if encoding.strip().lower() in ("", "identity"):
        return content
    # Some clients leave out the frame of deflate; 47 stands for that or gzip's.
    is_bare = encoding.lower() == "deflate" and content[:1] and content[0] & 15 != 8
    stream = zlib.decompressobj(-15 if is_bare else 47)
    with contextlib.suppress(zlib.error):
        whole = stream.decompress(content, most + 1)
        if len(whole) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(whole))
        if stream.eof and not stream.unused_data:
            return whole
    raise InputError(f"the body is not {encoding!r:.40}, or it is damaged; use gzip or "
                     "deflate, or send it as it is.")


def serve(service: Service, host: str, port: int,
          ready: Callable[[str], None] = lambda address: None) -> None:
    """Serves until SIGTERM or Ctrl-C. Then requests that have arrived are finished, and
    no others are accepted. `ready` is called with the address once the server listens."""
    try:
        web.run_app(
            service.app, host=host, port=port, **RUNNING,
            print=lambda banner: ready(re.findall(r"http://[^\s,]+", banner)[0]),
            # aiohttp waits twice for this time; 0 would mean forever.
            shutdown_timeout=max(service.limits.stop_seconds / 2, 0.01),
            # Longer than nginx keeps connections, so that nginx closes them.
            keepalive_timeout=75)
    except OSError as error:
        raise InputError(f"--host={host} --port={port}: cannot listen on this address "
                         f"({error.strerror or error}); choose a different one."
                         ) from error
