"""Serves a model over HTTP, with TensorFlow Serving's REST interface.

    request ─► checked, tokenized ─► queue ─► batch by length ─► model ─► reply

While the model computes a batch, requests wait in a bounded queue. The next batch is
the oldest request and those nearest to it in length, which keeps padding small.
Requests are never delayed to fill a batch.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
import re
import time
import zlib
from typing import Any, Callable, Optional, Sequence

from absl import logging
from aiohttp import web
from aiohttp.http import HttpProcessingError

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.serving.predict import Answer, Model, Request, answers

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VERSION = "1"
# aiohttp's settings: a request whose client leaves is dropped, nothing is logged for
# each request, and `_decompressed` says what is wrong with a body.
RUNNING: dict[str, Any] = {
    "handler_cancellation": True, "access_log": None, "auto_decompress": False}
_LEFT = 499  # status in the metrics, as in nginx, if the client left without a reply
_OPTIONS = ("top_k", "label_threshold", "windows", "truncated", "probability_list")
_ZLIB_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # by Content-Encoding


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
      batch_size: maximum number of sequences that are computed together.
      queue_size: maximum number of queued sequences; further requests get status 503.
      instances: maximum number of inputs per request.
      body_bytes: maximum size of a request's body, in bytes.
      text_length: maximum length of a text, in characters.
      stop_seconds: maximum time to finish accepted requests when the server is stopped.
      receive_seconds: maximum time in which the body of a request must arrive.
    """

    batch_size: int = 32
    queue_size: int = 1024
    instances: int = 256
    body_bytes: int = 4 << 20
    text_length: int = 100_000
    stop_seconds: float = 30.0
    receive_seconds: float = 60.0


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
        loop = asyncio.get_running_loop()
        pairs = [(request, loop.create_future()) for request in requests]
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
            batch = self._next()
            if batch:
                await self._do(batch)
            else:
                self._came.clear()

    def _next(self) -> list[tuple[Request, asyncio.Future]]:
        """Takes the next batch out of the queue; [] if no request waits."""
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._waiting:
            return []
        oldest, size, batch = self._waiting[0][0], 0, []
        near = sorted(
            (each for each in self._waiting if each[0].by is oldest.by),
            key=lambda each: (
                each[0] is not oldest, abs(each[0].length - oldest.length)))
        for each in near:
            if batch and size + len(each[0].sequences) > self._batch_size:
                break
            batch.append(each)
            size += len(each[0].sequences)
        taken = {id(future) for _, future in batch}
        self._waiting = [each for each in self._waiting if id(each[1]) not in taken]
        return batch

    async def _do(self, batch) -> None:
        """Computes a batch and sets the results or errors of its requests."""
        loop = asyncio.get_running_loop()
        self.batches += 1
        self.sequences += sum(len(request.sequences) for request, _ in batch)
        try:
            results: Sequence = await loop.run_in_executor(
                self._thread, self._compute, [request for request, _ in batch],
                self._batch_size)
        except Exception as error:
            if len(batch) > 1:  # One request's error must not fail the others.
                for each in batch:
                    await self._do([each])
                return
            results = [error]
        for (_, future), answer in zip(batch, results):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class Service:
    """The HTTP handlers of one model; `app` is the aiohttp application with them."""

    def __init__(self, model: Model, name: str, limits: Limits = Limits(),
                 task: str = "", label_threshold: Optional[float] = None):
        import prometheus_client as prometheus

        if task:
            model.head(task)
        self.model, self.name, self.limits, self.task = model, name, limits, task
        self.label_threshold = label_threshold
        self.batcher = Batcher(answers, limits.batch_size, limits.queue_size)
        self.open = 0
        self._stopping = False
        self._uploads: set[asyncio.Timeout] = set()  # deadlines of arriving bodies
        prometheus.disable_created_metrics()  # They would give each counter's age.
        self._registry = prometheus.CollectorRegistry()
        self._replies = prometheus.Counter(
            "albert_requests", "Requests answered, by status.", ["status"],
            registry=self._registry)
        self._seconds = prometheus.Histogram(
            "albert_request_seconds", "Seconds from a request to its reply.",
            buckets=_BUCKETS, registry=self._registry)
        self._registry.register(self)  # `collect` yields the other metrics.
        self._worker: Optional[asyncio.Task] = None
        self.app = web.Application(
            middlewares=[self._guarded()], client_max_size=limits.body_bytes)
        at = "/v1/models/{name:[^:/]+}"
        for path in (at, at + "/versions/" + _VERSION):
            self.app.router.add_get(path, self._status)
            self.app.router.add_get(path + "/metadata", self._metadata)
            self.app.router.add_post(path + ":{verb:[a-z]+}", self._ask)
        self.app.router.add_get("/healthz", self._health)
        self.app.router.add_get("/metrics", self._metrics)
        self.app.cleanup_ctx.append(self._working)
        self.app.on_shutdown.append(self._stop)

    async def _working(self, app):
        """Runs the batcher as long as the application runs."""
        del app
        self._worker = asyncio.create_task(self.batcher.run())
        yield
        self._worker.cancel()

    async def _stop(self, app):
        """Ends uploads; the runner then waits for the requests that have arrived."""
        del app
        self._stopping = True
        if self.open:
            logging.info("Stopping: finishing %d open requests.", self.open)
        for deadline in self._uploads:
            if not deadline.expired():
                deadline.reschedule(0)

    def _guarded(self):
        """Returns the middleware that counts requests and turns errors into JSON."""

        @web.middleware
        async def guarded(request, handler):
            begin, status = time.monotonic(), 500
            asks = request.method == "POST"
            self.open += asks
            try:
                try:
                    reply = await handler(request)
                except InputError as error:
                    raise Refused(400, str(error)) from error
                except web.HTTPRequestEntityTooLarge as error:
                    raise _too_large(self.limits.body_bytes) from error
                except (web.RequestPayloadError, HttpProcessingError) as error:
                    raise Refused(400, "the body is damaged.") from error
                except web.HTTPException as error:
                    raise Refused(error.status, {
                        404: f"there is nothing at {request.path}; the model is at "
                             f"/v1/models/{self.name}:predict.",
                        405: f"{request.path} does not take {request.method}.",
                    }.get(error.status, error.reason)) from error
                status = reply.status
                return reply
            except Refused as refused:
                status = refused.status
                sentence = str(refused)
                if len(sentence) > 600:  # It names a key, a task or so of the request.
                    sentence = f"{sentence[:400]} ... {sentence[-150:]}"
                reply = json_reply({"error": sentence}, status)
                if status == 503:
                    reply.headers["Retry-After"] = "1"
                return reply
            except (asyncio.CancelledError, ConnectionError):
                status = _LEFT
                raise
            except Exception:
                logging.exception("A request failed.")
                return json_reply({"error": "the server failed; see its log."}, 500)
            finally:
                self.open -= asks
                if asks:
                    self._replies.labels(status).inc()
                    self._seconds.observe(time.monotonic() - begin)

        return guarded

    def _known(self, request) -> None:
        name = request.match_info["name"]
        if name != self.name:
            raise Refused(404, f"there is no model '{name}' here, only '{self.name}'.")

    # ---- pages -------------------------------------------------------------

    async def _health(self, request):
        del request
        return json_reply({"status": "ok"})

    async def _status(self, request):
        self._known(request)
        return json_reply({"model_version_status": [{
            "version": _VERSION, "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""}}]})

    async def _metadata(self, request):
        self._known(request)
        return json_reply({
            "model_spec": {
                "name": self.name, "signature_name": "", "version": _VERSION},
            "metadata": {"tasks": {task: list(self.model.head(task).names)
                                   for task in self.model.tasks()},
                         "labels": list(self.model.labels),
                         "limits": dataclasses.asdict(self.limits)}})

    async def _metrics(self, request):
        """Replies with the metrics in Prometheus's text format."""
        import prometheus_client as prometheus

        del request
        return web.Response(body=prometheus.generate_latest(self._registry), headers={
            "Content-Type": prometheus.CONTENT_TYPE_LATEST})

    def collect(self):
        """Yields the metrics that prometheus_client does not count itself."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            "albert_open_requests", "Requests not yet answered.", self.open)
        yield GaugeMetricFamily(
            "albert_queued_sequences", "Sequences that wait for the model.",
            self.batcher.waiting)
        yield CounterMetricFamily(
            "albert_batches", "Batches computed.", self.batcher.batches)
        yield CounterMetricFamily(
            "albert_sequences", "Sequences computed.", self.batcher.sequences)

    # ---- questions ---------------------------------------------------------

    async def _ask(self, request):
        self._known(request)
        verb = request.match_info["verb"]
        if verb not in ("predict", "classify", "regress"):
            raise Refused(404, f"there is no :{verb}; use :predict, :classify or "
                          ":regress.")
        content = await self._read(request)
        body = _parsed(_decompressed(
            content, request.headers.get("Content-Encoding", ""),
            self.limits.body_bytes))
        items = self._inputs(body, "examples" if verb != "predict" else "")
        if len(items) > self.limits.instances:
            raise Refused(413, f"there are {len(items)} inputs; this server accepts at "
                          f"most {self.limits.instances} per request.")
        options = self._options(body, request.query)
        if verb != "predict":
            options["probability_list"] = False
        loop = asyncio.get_running_loop()
        requests = await loop.run_in_executor(None, self._requests, items, options)
        # An accepted request is answered even if the server is stopped meanwhile.
        results = await self.batcher.answer(requests)
        if verb == "predict":
            return json_reply({"outputs": _columns(results)} if "inputs" in body
                              else {"predictions": results})
        wanted, *others = {"classify": ("label", "labels"), "regress": ("score",)}[verb]
        if not all({wanted, *others} & answer.keys() for answer in results):
            raise Refused(400, f"this model gives no {wanted}; use :predict.")
        return json_reply({"results": [
            answer["score"] if verb == "regress" else [*answer["probabilities"].items()]
            for answer in results]})

    async def _read(self, request) -> bytes:
        """Returns the body of a request. Raises Refused if it does not arrive in time,
        or the server is stopped meanwhile."""
        limit = self.limits.receive_seconds
        deadline = asyncio.timeout(limit)
        self._uploads.add(deadline)
        try:
            async with deadline:
                return await request.read()
        except TimeoutError:
            if self._stopping:
                raise Refused(
                    503, "the server is stopping; use a different one.") from None
            raise Refused(408, f"the body was not complete after {limit:g} s; send it "
                          "faster, or fewer texts per request.") from None
        finally:
            self._uploads.remove(deadline)

    def _options(self, body: dict[str, Any], query) -> dict[str, Any]:
        """Returns the arguments of Model.request that a request names."""
        task = body.get("signature_name", "")
        if not isinstance(task, str):
            raise Refused(400, f"signature_name is {task!r:.40}; give the name of a "
                          "task.")
        for name in query:
            if name not in _OPTIONS:
                raise Refused(400, f"the address has the option {name!r:.40}, which is "
                              f"not known; give {', '.join(_OPTIONS)}.")
            if len(query.getall(name)) > 1:
                raise Refused(400, f"the address has the option {name} twice; give it "
                              "once.")
        if task in ("", "serving_default"):
            task = self.task
        top_k = query.get("top_k", "5")
        if not top_k.isdecimal() or len(top_k) > 10:
            raise Refused(400, f"top_k is {top_k!r:.40}; give a whole number from 1 to "
                          f"{self.model.config.vocab_size}.")
        options = {"task": task, "top_k": int(top_k)}
        # The columns of `outputs` are tensors, as TensorFlow Serving's.
        defaults = {"windows": "false", "truncated": "false",
                    "probability_list": "true" if "inputs" in body else "false"}
        for name, default in defaults.items():
            value = query.get(name, default)
            if value not in ("true", "false"):
                raise Refused(400, f"{name} is {value!r:.40}; give true or false.")
            options[name] = value == "true"
        given = query.get("label_threshold")
        try:
            # The server's own threshold is for the requests that can have one.
            options["label_threshold"] = float(given) if given is not None else (
                self.label_threshold if task in ("", "classify") else None)
        except ValueError:
            raise Refused(400, f"label_threshold is {given!r:.40}; give a probability "
                          "from 0 to 1.") from None
        return options

    def _inputs(self, body: dict[str, Any], key: str) -> list[Any]:
        """Returns the inputs of a body, one by one."""
        keys = [key] if key else ["instances", "inputs"]
        present = [name for name in keys if name in body]
        if len(present) != 1:
            raise Refused(400, f"the body must hold {' or '.join(keys)}"
                          + (", not both." if present else ", a list of texts."))
        unknown = set(body) - {*present, "signature_name"}
        if unknown:
            raise Refused(400, f"the body holds '{sorted(unknown)[0]}', which is not "
                          "known.")
        items = body[present[0]]
        if present == ["inputs"] and isinstance(items, dict):
            columns = [value if isinstance(value, list) else [value]
                       for value in items.values()]
            if len({len(column) for column in columns}) > 1:
                raise Refused(400, "the lists of inputs have "
                              f"{', '.join(str(len(column)) for column in columns)} "
                              "texts; they must have equally many.")
            items = [dict(zip(items, row)) for row in zip(*columns)]
        if not isinstance(items, list) or not items:
            raise Refused(400, f"{present[0]} must be a list of one or more texts.")
        return items

    def _requests(self, given: Sequence[Any], options: dict[str, Any]
                  ) -> list[Request]:
        # What the model cannot do is not an error of an input.
        self.model.check(**options)
        requests = []
        for i, item in enumerate(given):
            texts = [text for value in (
                item.values() if isinstance(item, dict) else [item]) for text in (
                    value if isinstance(value, list) else [value])]
            longest = max((len(text) for text in texts if isinstance(text, str)),
                          default=0)
            if longest > self.limits.text_length:
                raise Refused(413, f"input {i + 1} has a text of {longest} characters; "
                              "this server accepts at most "
                              f"{self.limits.text_length}.")
            try:
                if isinstance(item, list):
                    raise InputError("it is a list; give a text or an object.")
                requests.append(self.model.request(item, **options))
            except InputError as error:
                raise InputError(f"input {i + 1}: {error}") from error
        return requests


def _decompressed(content: bytes, encoding: str, most: int) -> bytes:
    """Returns a body as it was before its compression."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return content
    if encoding not in _ZLIB_BITS:
        raise Refused(400, f"the body is compressed as {encoding!r:.40}; use gzip or "
                      "deflate, or send it as it is.")
    bits = _ZLIB_BITS[encoding]
    if encoding == "deflate" and content[:1] and content[0] & 15 != zlib.DEFLATED:
        bits = -15  # Some clients leave out zlib's frame.
    stream = zlib.decompressobj(bits)
    try:
        whole = stream.decompress(content, most + 1)
    except zlib.error as error:
        raise Refused(400, f"the body is not {encoding}, or damaged.") from error
    if len(whole) > most:
        raise _too_large(most)
    if not stream.eof or stream.unused_data:
        raise Refused(400, f"the body is {encoding} that is incomplete, or followed by "
                      "other data.")
    return whole


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body has more than {most} bytes; send fewer texts per "
                   "request.")


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            400, f"byte {error.start + 1} of the body is not UTF-8.") from error
    body = text_files.parse_json(text, "the body")
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object, such as {\"instances\": "
                      "[...]}.")
    return body


def _columns(found: Sequence[Answer]) -> dict[str, list]:
    names = dict.fromkeys(name for answer in found for name in answer)
    return {name: [answer.get(name) for answer in found] for name in names}


def json_reply(value: Any, status: int = 200) -> web.Response:
    # Half a surrogate pair, as in a wrong name, becomes its escape, which is JSON.
    return web.Response(
        body=json.dumps(value, ensure_ascii=False, allow_nan=False).encode(
            errors="backslashreplace"),
        status=status, content_type="application/json", charset="utf-8")


def serve(service: Service, host: str, port: int,
          ready: Callable[[str], None] = lambda address: None) -> None:
    """Serves until SIGTERM or Ctrl-C. Then requests that have arrived are finished, and
    no others are accepted. `ready` is called with the address once the server listens."""

    def started(banner: str) -> None:
        ready(re.findall(r"http://[^\s,]+", banner)[0])

    try:
        web.run_app(
            service.app, host=host, port=port, print=started, **RUNNING,
            # aiohttp waits twice for this time; 0 would mean forever.
            shutdown_timeout=max(service.limits.stop_seconds / 2, 0.01),
            # Longer than nginx keeps connections, so that nginx closes them.
            keepalive_timeout=75)
    except OSError as error:
        raise InputError(f"--host={host} --port={port}: cannot listen on this address "
                         f"({error.strerror or error}); choose a different one."
                         ) from error
