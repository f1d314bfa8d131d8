"""A service of a model in this process, and its clients."""

import asyncio
import contextlib
import json

import aiohttp
from aiohttp import web

from albert_tf.serving import http
from albert_tf.serving.options import Ask, Limits

PREDICT = "/v1/models/tiny:predict"


@contextlib.asynccontextmanager
async def running(model, batch_size=32, **limits):
    """A service and a session that asks it by paths."""
    service = http.Service(model, "tiny", Limits(**limits), Ask(batch_size=batch_size))
    runner = web.AppRunner(service.app, shutdown_timeout=1.0, **http.RUNNING)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession(site.name) as session:
            yield service, session
    finally:
        await runner.cleanup()


async def ask(session, body, path=PREDICT, **options):
    """Status and content of a reply."""
    async with session.post(path, **options, **(
            {"data": body} if isinstance(body, bytes) else {"json": body})) as reply:
        return reply.status, await reply.json()


def request(body=b'{"instances": ["One."]}', length=None):
    """The bytes of a request."""
    return (f"POST {PREDICT} HTTP/1.1\r\nHost: tiny\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
            ).encode() + body


async def connect(session, data=b""):
    """A connection over which these bytes were sent."""
    reader, writer = await asyncio.open_connection(
        session._base_url.host, session._base_url.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def answer(reader, seconds=20):
    """Status and content of what comes until the server closes the connection; the
    status is 0 if nothing does."""
    came = await asyncio.wait_for(reader.read(), seconds)
    if not came:
        return 0, None
    head, _, body = came.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def counts(session):
    """The number of answered requests by status, from the metrics."""
    async with session.get("/metrics") as reply:
        page = await reply.text()
    return {int(line.split('"')[1]): float(line.split()[-1]) for line in
            page.splitlines() if line.startswith("albert_requests_total{")}
