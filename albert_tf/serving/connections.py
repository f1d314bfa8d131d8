"""The connections of a server: how many there are, and how long a request may arrive.

aiohttp limits neither. Here the head and the body of a request must arrive in time, and
if there are too many connections, the one that has waited longest for its client makes
room for a new one. Clients that send nothing, or half a request, therefore do not keep
others out.
"""

import asyncio
import contextlib
import errno
import http
import json
import logging as standard_logging
import resource
import socket
import time
from typing import Any, AsyncIterator, Optional

from absl import logging
from aiohttp import web

from albert_tf.errors import InputError

_RESERVE = 64  # descriptors for everything else: the model, the log, closing sockets
FEWEST = 16  # connections
_TURNOVER = 8  # connections without an accepted request, which can make room
_GRACE = 0.1  # seconds in which a connection does not have to make room
_AT_ONCE = 1.0  # seconds after a request; a client that closes later has left
_PAUSE = 0.02  # seconds without accepting
_TICK = 0.1  # seconds between checks of all connections


def affordable(wanted: int) -> int:
    """Returns how many connections the limit of descriptors allows, at most `wanted`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files - _RESERVE >= wanted:
        return wanted
    if files - _RESERVE < FEWEST:
        raise InputError(
            f"this process may open only {files} files (ulimit -n), but the server "
            f"needs {_RESERVE + FEWEST} or more; raise the limit.")
    logging.info("At most %d connections, not --max_connections=%d, because this process "
                 "may open only %d files (ulimit -n).", files - _RESERVE, wanted, files)
    return files - _RESERVE


def reply(status: int, sentence: str) -> web.Response:
    """Returns the reply for an error, after which the connection is closed."""
    response = json_reply({"error": sentence}, status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    response.force_close()
    return response


def json_reply(value: Any, status: int = 200) -> web.Response:
    # Half a surrogate pair, as in a wrong name, becomes its escape, which is JSON.
    return web.Response(
        body=json.dumps(value, ensure_ascii=False, allow_nan=False).encode(
            errors="backslashreplace"),
        status=status, content_type="application/json", charset="utf-8")


class Connection(web.RequestHandler):
    """A connection. Either its request is `accepted`, or the client is waited for."""

    def __init__(self, owner: "Connections", manager: web.Server):
        super().__init__(manager, loop=asyncio.get_running_loop(), access_log=None,
                         auto_decompress=False)
        self._owner = owner
        self.since = time.monotonic()  # begin of the state
        self.accepted = False
        self.status = 0  # of a reply to a request that did not arrive
        self._ended = 0.0  # when the client closed its writing half
        self._begun = False  # A part of a request has arrived.
        self._may_rest = False  # A request was answered; the next one may take long.
        self._draining = False  # The rest of an answered request may arrive.

    def begin(self) -> None:
        """A request begins to arrive."""
        if not self._begun:
            self._begun, self._draining = True, False
            self.since = time.monotonic()

    def accept(self) -> bool:
        """A request has arrived. Returns whether it can be answered, too."""
        self.accepted = self._owner.num_accepted < self._owner.most - _TURNOVER
        self.since = time.monotonic()
        return self.accepted

    def rest(self, is_complete: bool) -> None:
        """A request is answered, maybe before its body is complete."""
        self.accepted = self._begun = False
        self._may_rest, self._draining = is_complete, not is_complete
        self.since = time.monotonic()

    def check(self, now: float) -> None:
        """Closes the connection if its request does not arrive."""
        if self.accepted or self.transport is None:
            return
        limit = self._owner.receive_seconds
        late = now > self.since + limit
        if self._ended and now > max(self._ended, self.since) + _TICK:
            self.dismiss(400, "the client closed the connection before the request was "
                         "complete.")
        elif late and self._begun:
            logging.info("A request was not complete after %g s (--receive_seconds).",
                         limit)
            self.dismiss(408, f"the request was not complete after {limit:g} s; send it "
                         "faster, or fewer texts per request.")
        elif late and self._unsent():
            self.transport.abort()  # The client does not read its reply.
        elif late and not self._may_rest:
            self.transport.close()

    def dismiss(self, status: int, sentence: str) -> None:
        """Closes the connection, with a reply if a part of a request has arrived."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._begun:
            self.status = status
            error = reply(status, sentence)
            assert isinstance(error.body, bytes)
            fields = {**error.headers, "Content-Length": len(error.body),
                      "Connection": "close"}
            self.transport.write("\r\n".join((
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
                *(f"{name}: {value}" for name, value in fields.items()),
                "", "")).encode() + error.body)
            if self._unsent():
                self.transport.abort()
        self.transport.close()

    def make_room(self) -> None:
        """Closes the connection for a new one."""
        if self.transport is not None and self._unsent():
            self.transport.abort()
        self.dismiss(503, "there are too many connections, and this request was not "
                     "complete; try again later.")

    def _unsent(self) -> bool:
        """Returns whether the client has yet to read a part of a reply."""
        return self.transport is not None and bool(
            self.transport.get_write_buffer_size())

    # ---- asyncio and aiohttp -----------------------------------------------

    def data_received(self, data: bytes) -> None:
        if data and not self.accepted and not self._draining:
            self.begin()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns whether to keep the connection open for a reply.

        A client that closes its writing half looks like one that has left. It gets its
        reply if it did so directly after its request."""
        if not self._begun or (
                self.accepted and time.monotonic() - self.since > _AT_ONCE):
            return False
        self._ended = time.monotonic()
        return True

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        self._owner.forget(self)
        super().connection_lost(exc)

    def handle_error(self, request, status=500, exc=None, message=None):
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        # The rest of the message shows the request's bytes.
        wrong = (message or "").partition("\n")[0][:80].rstrip(":")
        return reply(status, f"the request is not valid HTTP ({wrong}).")

    async def finish_response(self, request, resp, start_time):
        if isinstance(resp, web.HTTPException):  # such as a wrong Expect
            resp = reply(resp.status, f"{resp.text or resp.reason}.")
        return await super().finish_response(request, resp, start_time)


class Connections:
    """The connections of an application, at most `most`.

    Attributes:
      most: maximum number of connections.
      receive_seconds: maximum time in which a request must arrive.
      address: address of the server, with its scheme.
    """

    def __init__(self, server: web.Server, most: int, receive_seconds: float):
        self._server, self.most, self.receive_seconds = server, most, receive_seconds
        self._open: dict[Connection, None] = {}
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task] = set()
        self._stopped = False
        self.address = ""

    @property
    def num_accepted(self) -> int:
        """Number of accepted requests."""
        return sum(each.accepted for each in self._open)

    def forget(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    async def listen(self, host: str, port: int) -> None:
        """Listens on all addresses of a host."""
        failed: Optional[OSError] = None
        for family, _, _, _, address in await asyncio.get_running_loop().getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            try:
                listener = socket.create_server(
                    address[:2], family=family, backlog=socket.SOMAXCONN)
            except OSError as error:
                # A host may have an address of a family that the machine lacks.
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                failed = error
                continue
            listener.setblocking(False)
            self._listeners.append(listener)
        if not self._listeners:
            raise failed or OSError("the host has no address")
        name, port = self._listeners[0].getsockname()[:2]
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
        self._resume()
        self._start(self._watch())

    async def stop(self) -> None:
        """Stops listening, and closes the connections without an accepted request."""
        self._stopped = True
        self._pause(resume=False)
        for listener in self._listeners:
            listener.close()
        for task in self._tasks:
            task.cancel()
        for each in list(self._open):
            if not each.accepted:
                each.dismiss(503, "the server is stopping; use a different one.")
        await asyncio.sleep(0)

    def _start(self, work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            for each in list(self._open):
                each.check(now)

    # ---- accepting ---------------------------------------------------------

    def _resume(self) -> None:
        if not self._stopped:
            for listener in self._listeners:
                asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _pause(self, resume: bool = True) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
        if resume:
            loop.call_later(_PAUSE, self._resume)

    def _longest(self) -> Optional[Connection]:
        """Returns the connection that has waited longest for its client."""
        return min((each for each in self._open if not each.accepted),
                   key=lambda each: each.since, default=None)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts a connection; asyncio calls this once for each."""
        longest = self._longest() if len(self._open) >= self.most else None
        if longest and time.monotonic() < longest.since + _GRACE:
            self._pause()  # All are new. Meanwhile clients wait in the kernel.
            return
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # Such as EMFILE.
            logging.warning("Cannot accept a connection (%s).", error.strerror or error)
            longest = longest or self._longest()
            if longest:
                longest.make_room()
            self._pause()
            return
        if longest:
            logging.warning("There are %d connections. One whose client kept the server "
                            "waiting makes room for a new one.", self.most)
            self.forget(longest)
            longest.make_room()
        connection = Connection(self, self._server)
        self._open[connection] = None
        self._start(self._connect(connection, client))

    async def _connect(self, connection: Connection, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client)
        except BaseException as error:
            self.forget(connection)
            client.close()
            if not isinstance(error, OSError):
                raise


class OncePerSecond(standard_logging.Filter):
    """Lets one line per second pass of each kind, which is the place in the code and the
    type of the error. The next line of the kind tells how many were left out."""

    def __init__(self):
        super().__init__()
        # Of each kind, when a line last passed, and those left out since.
        self._kinds: dict[tuple, list] = {}

    def filter(self, record: standard_logging.LogRecord) -> bool:
        kind = (record.name, record.pathname, record.lineno,
                record.exc_info and record.exc_info[0])
        now = time.monotonic()
        passed, left_out, _ = self._kinds.get(kind, (float("-inf"), 0, record))
        if now < passed + 1:
            self._kinds[kind] = [passed, left_out + 1, record]
            return False
        self._kinds[kind] = [now, 0, record]
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this)"
            record.args = ()
        return True

    def flush(self) -> None:
        """Logs the last line of each kind that was left out more than a second ago."""
        for kind, (passed, left_out, record) in list(self._kinds.items()):
            if left_out and time.monotonic() >= passed + 1:
                self._kinds[kind][1] -= 1
                standard_logging.getLogger(record.name).handle(record)


@contextlib.asynccontextmanager
async def brief_log() -> AsyncIterator[None]:
    """The log of the server has one line per second of each kind."""
    loggers = [logging.get_absl_logger(), *map(
        standard_logging.getLogger, ("asyncio", "aiohttp.server"))]
    lines = OncePerSecond()

    async def flush():
        while True:
            await asyncio.sleep(1)
            lines.flush()

    flushing = asyncio.create_task(flush())
    for logger in loggers:
        logger.addFilter(lines)
    try:
        yield
    finally:
        flushing.cancel()
        for logger in loggers:
            logger.removeFilter(lines)


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int, most: int,
                    receive_seconds: float) -> AsyncIterator[Connections]:
    """Answers the requests of an application's clients; see Connections."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, most, receive_seconds)
    try:
        try:
            await connections.listen(host, port)
        except OSError as error:
            raise InputError(f"--host={host} --port={port}: cannot listen on this "
                             f"address ({error.strerror or error}); choose a different "
                             "one.") from error
        yield connections
    finally:
        await connections.stop()
        await runner.cleanup()
