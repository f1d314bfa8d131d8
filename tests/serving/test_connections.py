"""Connections whose requests do not arrive, too many of them, and clients that leave.

    python -m pytest tests/serving/test_connections.py
"""

import asyncio
import logging
import os
import re
import resource
import signal
import socket
import struct
import threading
import time
import urllib.request

import aiohttp
import pytest

from albert_tf.errors import InputError
from albert_tf.serving import connections, http
from albert_tf.serving.predict import answers
from tests.commands import start_program
from tests.serving.server import answer, ask, connect, counts, request, running

HALVES = [b"POST /v1/models/ti", request()[:-40], request(b"{", 50), request(b"", 50),
          request().replace(b"Content-Length: 23", b"Transfer-Encoding: chunked")[:-23]
          + b"5\r\n{\"ins"]


@pytest.fixture(name="held")
def _held(monkeypatch):
    """Answers are computed once the second event is set; the first says that one is
    asked for."""
    begun, go = threading.Event(), threading.Event()

    def compute(requests, size):
        begun.set()
        go.wait(60)
        return answers(requests, size)

    monkeypatch.setattr("albert_tf.serving.http.answers", compute)
    return begun, go


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("It did not come about.")


def test_a_request_must_arrive_in_time(model, caplog):
    async def drip(session):
        """Sends one byte after the other, until the server closes the connection."""
        reader, writer = await connect(session)
        came = asyncio.create_task(reader.read())
        data = request()
        while not came.done():
            writer.write(data[:1])
            data = data[1:]
            await asyncio.sleep(0.1)
        assert data
        # A byte that crosses the reply resets the connection.
        assert isinstance(came.exception(), ConnectionError) or (
            b" 408 " in came.result())

    async def check():
        async with running(model, receive_seconds=0.5) as (_, session):
            assert (await ask(session, {"instances": ["One."]}))[0] == 200
            halves = [await connect(session, half) for half in HALVES]
            _, *found = await asyncio.gather(
                drip(session), *(answer(reader) for reader, _ in halves))
            for status, reply in found:
                assert status == 408 and "not complete after 0.5 s" in reply["error"]
            reader, _ = await connect(session)
            assert (await answer(reader))[0] == 0
            # The connection of the session rested longer than that.
            status, _ = await ask(session, {"instances": ["One."]})
            assert status == 200
            found = await counts(session)
            assert found.keys() == {200, 408} and found[408] >= 3

    asyncio.run(check())
    assert "Traceback" not in caplog.text


def test_who_does_not_read_the_reply_is_cut_off(model):
    async def check():
        async with running(model, receive_seconds=0.3, batch_size=64) as (_, session):
            body = b'{"signature_name": "embed", "instances": [%s]}' % b", ".join(
                [b'"a"'] * 256)
            reader, writer = await connect(session)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.transport.pause_reading()
            writer.write(request(body) * 60)
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    await asyncio.sleep(0.02)
                    writer.write(b"\r\n")
                    await writer.drain()
            del reader

    asyncio.run(check())


def test_a_request_is_answered_once(model):
    """Also if it is answered before its end arrives."""
    large = request(b'"' + b"a" * 300_000)

    async def check():
        async with running(model, receive_seconds=0.4, body_bytes=8192
                           ) as (service, session):
            for data, expected in ((large, 413), (large.replace(b"tiny", b"t"), 404)):
                for ends in (False, True):
                    reader, writer = await connect(session, data[:200_000])
                    await asyncio.sleep(0.1)
                    writer.write(data[200_000:])
                    if ends:
                        writer.write_eof()
                    came = await asyncio.wait_for(reader.read(), 20)
                    assert int(came.split()[1]) == expected
                    assert came.count(b"HTTP/1.1") == 1
            assert service.open == 0

    asyncio.run(check())


def test_half_requests_make_room(model):
    async def check():
        async with running(model, connections=16) as (_, session):
            halves = [await connect(session, HALVES[i % len(HALVES)])
                      for i in range(60)]
            assert (await asyncio.wait_for(
                ask(session, {"instances": ["One."]}), 20))[0] == 200
            found = [await answer(reader) for reader, _ in halves[:40]]
            for status, reply in found:
                assert status == 503 and "too many connections" in reply["error"]
            for _, writer in halves:
                writer.close()

    asyncio.run(check())


def test_accepted_requests_do_not_make_room(model, held):
    begun, go = held

    async def check():
        async with running(model, connections=16) as (service, session):
            accepted = [await connect(session, request()) for _ in range(8)]
            # The first batch has one of them or more.
            await until(lambda: begun.is_set() and (
                service.batcher.sequences + service.batcher.waiting == 8))
            for _ in range(20):
                reader, writer = await connect(session, request())
                reader = asyncio.create_task(answer_once(reader))
                status, head = await reader
                assert status == 503 and b"Retry-After: 1" in head
                writer.close()
            async with session.get("/healthz") as reply:
                assert reply.status == 200
            go.set()
            assert [(await answer_once(reader))[0] for reader, _ in accepted] == [
                200] * 8
            for _, writer in accepted:
                writer.close()

    async def answer_once(reader):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        return int(head.split()[1]), head

    asyncio.run(check())


@pytest.mark.parametrize("data", [request(), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_client_that_closes_its_writing_half_is_answered(model, data):
    async def check():
        async with running(model) as (_, session):
            reader, writer = await connect(session, data)
            writer.write_eof()
            assert (await answer(reader))[0] == 200
            reader, writer = await connect(session, data * 3)
            writer.write_eof()
            came = await asyncio.wait_for(reader.read(), 20)
            assert came.count(b"HTTP/1.1 200") == 3 == came.count(b"HTTP/1.1")
            for half in HALVES:
                reader, writer = await connect(session, half)
                writer.write_eof()
                status, reply = await answer(reader)
                assert status == 400 and "before the request was" in reply["error"]
            reader, writer = await connect(session)
            writer.write_eof()
            assert (await answer(reader))[0] == 0

    asyncio.run(check())


def test_clients_that_leave_are_no_fault_of_the_server(model, held, caplog):
    begun, go = held

    def reset(writer):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async def check():
        async with running(model) as (service, session):
            first = asyncio.create_task(ask(session, {"instances": ["One."]}))
            await until(begun.is_set)
            clients = [await connect(session, request()) for _ in range(4)]
            uploads = [await connect(session, half) for half in HALVES[2:4]]
            await until(lambda: service.batcher.waiting == 4)
            for _, writer in [*clients[:2], *uploads]:
                reset(writer)
            await asyncio.sleep(1.1)  # Later it is no half-closed connection.
            for _, writer in clients[2:]:
                writer.close()
            await until(lambda: service.open == 1)
            go.set()
            assert (await first)[0] == 200
            assert service.batcher.sequences == 1
            assert await counts(session) == {200: 1, 499: 6}

    asyncio.run(check())
    assert not caplog.records


def test_what_aiohttp_refuses_itself(model):
    async def check():
        async with running(model) as (_, session):
            status, reply = await ask(
                session, {"instances": ["One."]}, headers={"Expect": "a miracle"})
            assert status == 417 and "a miracle" in reply["error"]

    asyncio.run(check())


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01 hello\r\n\r\n", b"GET /\xed\xa0\x80 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/models/\xed\xa0\x80:predict?top_k=\xed HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n", b"GET /" + b"a" * 9000, b"GET / HTTP/1.1\r\n\r\n",
    request().replace(b"23", b"-1"), request().replace(b"POST", b"PO ST"),
])
def test_what_is_not_http_gets_a_sentence(model, caplog, data):
    async def check():
        async with running(model) as (_, session):
            reader, _ = await connect(session, data)
            status, reply = await answer(reader)
            assert status == 400 and "not valid HTTP" in reply["error"]
            assert "\n" not in reply["error"] and len(reply["error"]) < 200

    asyncio.run(check())
    assert not caplog.records


def test_a_body_that_turns_out_damaged(model, caplog):
    async def check():
        async with running(model, receive_seconds=0.5) as (_, session):
            reader, writer = await connect(session, HALVES[-1])
            await asyncio.sleep(0.1)
            writer.write(b"\r\nzz\r\n")
            # aiohttp's parser in C does not tell the handler.
            status, reply = await answer(reader)
            assert status in (400, 408) and "error" in reply

    asyncio.run(check())
    assert "Traceback" not in caplog.text


def test_one_line_per_second_of_a_kind(caplog):
    async def check():
        async with connections.brief_log():
            with caplog.at_level("INFO", logger="asyncio"):
                for i in range(50):
                    logging.getLogger("asyncio").warning("One, %d.", i)
                logging.getLogger("asyncio").warning("Another.")
                await asyncio.sleep(2.2)
        logging.getLogger("asyncio").warning("After it.")

    asyncio.run(check())
    assert caplog.messages == [
        "One, 0.", "Another.", "One, 49. (48 more like this)", "After it."]


def test_descriptors_limit_connections(monkeypatch):
    def limited(number):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (number, number))
        return connections.affordable(1000)

    assert [limited(n) for n in (resource.RLIM_INFINITY, 1064, 1063, 80)] == [
        1000, 1000, 999, 16]
    with pytest.raises(InputError, match="only 79 files .* needs 80 or more"):
        limited(79)


def test_a_stop_waits_for_accepted_requests_only(model, held):
    begun, go = held

    async def check(accepts):
        service = http.Service(model, "tiny", http.Limits(stop_seconds=3600))
        address = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            http.serve(service, "127.0.0.1", 0, address.set_result))
        async with aiohttp.ClientSession(await address) as session:
            uploads = [await connect(session, half) for half in HALVES]
            if accepts:
                reader, _ = await connect(session, request())
                await until(begun.is_set)
            os.kill(os.getpid(), signal.SIGTERM)
            if accepts:
                await asyncio.sleep(0.5)
                assert not serving.done()
                # The rest of an upload now comes too late.
                uploads[3][1].write(b"{" + b" " * 49)
                go.set()
                assert (await answer(reader))[0] == 200
            for reader, _ in uploads:
                status, reply = await answer(reader)
                assert status == 503 and "is stopping" in reply["error"]
            await asyncio.wait_for(serving, 20)

    for accepts in (True, False):
        asyncio.run(check(accepts))


@pytest.mark.long
def test_half_requests_and_few_descriptors(folder):
    process = start_program([
        "-c", "import os, resource, sys; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
        "serve.py", f"--model={folder}", "--port=0"])
    for line in process.stdout:
        if address := re.search(r"Serving at http://([\d.]+):(\d+)", line):
            break
    opened = []
    for i in range(200):
        opened.append(socket.create_connection((address[1], int(address[2])), 20))
        opened[-1].sendall(HALVES[i % len(HALVES)])
    for _ in range(5):
        with urllib.request.urlopen(
                f"http://{address[1]}:{address[2]}/v1/models/tiny:predict",
                b'{"instances": ["One."]}', timeout=20) as reply:
            assert reply.status == 200
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert time.monotonic() - begin < 20  # It does not wait for uploads.
    rest = process.stdout.read()
    assert "Stopping: finishing 0 open requests." in rest and "Traceback" not in rest
    assert len(rest.splitlines()) < 30, rest
    for each in opened:
        each.close()
