"""A model over HTTP: its forms, limits and wrong requests, clients that go, a stop."""

import asyncio
import concurrent.futures
import gzip
import json
import os
import re
import signal
import socket
import struct
import threading
import time
import zlib

import aiohttp
import pytest

from albert_tf.errors import InputError
from albert_tf.serving import http
from albert_tf.serving.options import Limits
from albert_tf.serving.predict import answers
from tests.serving.server import (
    answer, ask, connect, counts, PREDICT, request, running)

TEXTS = [("text of them " * (n % 17) + str(n)).strip() for n in range(60)]
# Requests whose body is not complete.
UPLOADS = [request(b"{", 50), request(b"", 50), request().replace(
    b"Content-Length: 23", b"Transfer-Encoding: chunked")[:-23] + b"5\r\n{\"ins"]


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


def close(answer, other):
    return answer["label"] == other["label"] and answer["probabilities"] == (
        pytest.approx(other["probabilities"], abs=1e-5))


async def test_forms_of_tensorflow_serving(model):
    expected, long = model.predict(["One.", ("One.", "Two")]), "text of them " * 60
    plain, mean = (model.predict(long, windows=windows) for windows in (False, True))
    assert not close(plain, mean)

    async with running(model) as (_, session):
        status, found = await ask(session, {
            "instances": ["One.", {"text": "One.", "text_pair": "Two"}]})
        assert status == 200 and all(map(close, found["predictions"], expected))
        values = pytest.approx([*expected[0]["probabilities"].values()], abs=1e-5)
        for inputs in (["One."], {"text": ["One."]}, {"text": "One."}):
            _, found = await ask(session, {"inputs": inputs})
            assert found["outputs"]["label"] == [expected[0]["label"]]
            assert found["outputs"]["probabilities"] == [values]
        for given, listed in (("true", values), ("false", pytest.approx(
                expected[0]["probabilities"], abs=1e-5))):
            _, found = await ask(session, {"instances": ["One."]},
                                 f"{PREDICT}?probability_list={given}")
            assert found["predictions"][0]["probabilities"] == listed
        _, found = await ask(session, {"examples": [{"text": "One."}]},
                             "/v1/models/tiny/versions/1:classify"
                             "?probability_list=true")  # Which has no effect.
        assert [name for name, _ in found["results"][0]] == list(model.labels)
        assert [value for _, value in found["results"][0]] == values
        status, found = await ask(session, {
            "instances": ["One."], "signature_name": "embed"})
        assert len(found["predictions"][0]["mean"]) == 16
        # Whether texts are cut, and windows.
        for more, expected_long, cut in (("", plain, True), ("&windows=true", mean, False)):
            _, found = await ask(
                session, {"instances": [long]}, f"{PREDICT}?truncated=true{more}")
            assert close(found["predictions"][0], expected_long)
            assert found["predictions"][0]["truncated"] is cut
        for path, key in (("/v1/models/tiny", "model_version_status"),
                          ("/v1/models/tiny/metadata", "metadata"),
                          ("/healthz", "status")):
            async with session.get(path) as reply:
                assert reply.status == 200 and key in await reply.json()
        async with session.get("/metrics") as reply:
            page = await reply.text()
        assert 'albert_requests_total{status="200"} 10' in page
        assert 'albert_request_seconds_bucket{le="+Inf"} 10' in page
        assert "albert_sequences_total " in page and "albert_open_requests 0" in page


async def test_any_number_of_labels(tiny):
    model, examples = tiny("several"), {"examples": [{"text": "One."}]}
    expected = model.predict("One.")

    async with running(model) as (_, session):
        for query, labels in (("", expected["labels"]), ("?label_threshold=1", []),
                              ("?label_threshold=0", list(model.labels))):
            _, found = await ask(session, {"instances": ["One."]}, PREDICT + query)
            assert found["predictions"][0]["labels"] == labels
        _, found = await ask(session, {"inputs": ["One."]})
        assert found["outputs"]["labels"] == [expected["labels"]]
        _, found = await ask(session, examples, "/v1/models/tiny:classify")
        assert dict(found["results"][0]) == pytest.approx(
            expected["probabilities"], abs=1e-5)
        status, found = await ask(session, examples, "/v1/models/tiny:regress")
        assert status == 400 and "gives no score" in found["error"]


WRONG = [
    (b"{", 400, "not JSON"), (b"\xff{}", 400, "byte 1 of the body is not UTF-8"),
    (b"[" * 8000, 400, "not JSON"), (b"[]", 400, "must be a JSON object"),
    (b"\xef\xbb\xbf{}", 400, "must hold instances or inputs"),
    ({"instances": ["a"], "inputs": ["a"]}, 400, "holds inputs, instances"),
    ({"instances": []}, 400, "one or more texts"),
    ({"instances": "a"}, 400, "one or more texts"),
    ({"instances": ["a"], "extra": 1}, 400, "it holds extra"),
    ({"instances": [{"txt": "a"}]}, 400, "input 1: there is no input 'txt'"),
    ({"instances": ["a", None]}, 400, "input 2: the input is None; give a text"),
    ({"instances": [["a", "b"]]}, 400, "input 1: it is a list"),
    ({"inputs": {"text": ["a", "b"], "text_pair": ["c"]}}, 400, "equally many"),
    ({"instances": ["a"], "signature_name": "order"}, 400, "no head .* 'order'"),
    ({"instances": ["\ud800"]}, 400, r"'text' is '.x00', not a text"),
    *(({"instances": ["a"], "signature_name": name}, 400, "task=.*: give text")
      for name in (None, 1, ["embed"], {"embed": 1})),
    (b'{"instances": [%s]}' % (b"9" * 5000), 400, "digits"), (b"", 400, "not JSON"),
    ({"instances": ["a"], "x" * 5000: 1}, 400, r"holds x+\.$"),
    ({"instances": ["a"] * 9}, 413, "9 inputs; this server accepts at most 8"),
    ({"instances": ["a" * 501]}, 413, "501 characters; this server accepts at most 500"),
    ({"instances": ["a" * 9000]}, 413, "more than 8192 bytes"),
]
WRONG_OPTIONS = [
    ("top_k=" + "9" * 5000, "top_k='99.*: give a whole number"),
    ("top_k=0", "top_k=0: give"), ("top_k=-1", "top_k"), ("top_k=%C2%B2", "top_k"),
    ("top_k=%ED%A0%80", "top_k"), ("top_k=2&top_k=3", "top_k='2 and 3'"),
    ("windows=", "windows='': give"), ("windows=2", "windows=2: give"),
    *((f"label_threshold={value}", "label_threshold")
      for value in ("9" * 5000, "x", "2", "nan")),
    ("topk=3", "'topk', which is not"), ("%ED%A0%80=1", "is not known")]


async def test_wrong_requests_get_a_status_and_a_sentence(model, caplog):
    async with running(model, instances=8, text_length=500, body_bytes=8192
                       ) as (_, session):
        for body, status, pattern in WRONG:
            found = await ask(session, body if isinstance(body, bytes) else
                              json.dumps(body).encode())
            assert found[0] == status and re.search(
                pattern, found[1]["error"]), (body, found)
            assert "\n" not in found[1]["error"] and len(found[1]["error"]) < 600
        for path, status in (("/v1/models/other:predict", 404), ("/x", 404),
                             ("/v1/models/tiny:explain", 404), ("/healthz", 405),
                             ("/v1/models/tiny:regress", 400)):
            assert (await ask(session, {"examples": ["a"], "instances": ["a"]}
                              if "regress" not in path else {"examples": ["a"]},
                              path))[0] == status, path
        for query, pattern in WRONG_OPTIONS:
            status, found = await ask(
                session, {"instances": ["a"]}, f"{PREDICT}?{query}")
            assert status == 400 and re.search(pattern, found["error"]), found
            assert len(found["error"]) < 200
        assert (await ask(session, {"instances": ["a"]}))[0] == 200
    assert not caplog.records


async def test_compressed_bodies(model, caplog):
    """A damaged or cut one, and one that becomes too large, gets a sentence."""
    body = json.dumps({"instances": ["One.", "Two."]}).encode()
    whole = {"gzip": gzip.compress(body), "deflate": zlib.compress(body),
             "Deflate": zlib.compress(body)[2:-4], "identity": body}
    sent = [*((encoding, data, 200) for encoding, data in whole.items()),
            *((encoding, data, 400) for encoding in ("gzip", "deflate")
              for packed in [whole[encoding]] for data in (
                  b"", packed[:9], packed[:-1], packed + packed, body)),
            ("br", body, 400), ("gzip", gzip.compress(b"[" * 10_000_000), 413)]

    async with running(model, body_bytes=8192) as (_, session):
        for encoding, data, expected in sent:
            status, found = await ask(
                session, data, headers={"Content-Encoding": encoding})
            assert status == expected, (encoding, data, found)
            assert "body" in found["error"] if status != 200 else len(
                found["predictions"]) == 2
    assert not caplog.records


async def test_every_client_gets_its_own_answer_while_others_are_killed(model):
    expected = model.predict(TEXTS)

    async with running(model, batch_size=8) as (service, session):
        compute = service.batcher._compute

        def measured(requests, size):
            assert sum(len(request.sequences) for request in requests) <= size == 8
            return compute(requests, size)

        service.batcher._compute = measured

        async def client(first):
            for i in range(first, len(TEXTS), 6):
                status, found = await ask(session, {"instances": [TEXTS[i]]})
                assert status == 200
                assert close(found["predictions"][0], expected[i]), i

        async def killed():
            for i in range(10):
                doomed = asyncio.create_task(ask(session, {"instances": TEXTS}))
                await asyncio.sleep(0.003 * i)
                doomed.cancel()

        await asyncio.gather(killed(), *map(client, range(6)))
        async with asyncio.timeout(20):  # The last killed ones may still be queued.
            while service.batcher.waiting:
                await asyncio.sleep(0.01)
        async with session.get("/metrics") as reply:
            batches, sequences = re.findall(
                r"^albert_(?:batches|sequences)_total (\S+)$", await reply.text(), re.M)
        assert float(batches) < float(sequences)


async def test_a_full_queue_and_a_faulty_request(model, held):
    begun, go = held
    length = len(model.request("bad").sequences[0]["input_ids"])

    async with running(model, queue_size=3) as (service, session):
        compute = service.batcher._compute

        def faulty(requests, size):
            found = compute(requests, size)
            if any(len(each.sequences[0]["input_ids"]) == length for each in requests):
                raise ValueError("a fault")
            return found

        service.batcher._compute = faulty
        first = asyncio.create_task(ask(session, {"instances": ["One text."]}))
        await until(begun.is_set)
        others = [asyncio.create_task(ask(session, {"instances": [text]}))
                  for text in ("another of them", "bad", "and a third text of them")]
        await until(lambda: service.batcher.waiting == 3)
        status, found = await ask(session, {"instances": ["too many"]})
        assert status == 503 and "queue is full (3 sequences)" in found["error"]
        go.set()
        assert [status for status, _ in await asyncio.gather(first, *others)] == [
            200, 200, 500, 200]


async def test_a_body_must_arrive_in_time(model, caplog):
    async with running(model, receive_seconds=0.2) as (_, session):
        uploads = [await connect(session, upload) for upload in UPLOADS]
        for reader, _ in uploads:
            came = await asyncio.wait_for(reader.readuntil(b"}"), 20)
            assert b" 408 " in came and b"not complete after 0.2 s" in came
        # The connection of the session rests longer than that.
        for _ in range(2):
            assert (await ask(session, {"instances": ["One."]}))[0] == 200
            await asyncio.sleep(0.3)
        assert await counts(session) == {200: 2, 408: 3}
    assert "Traceback" not in caplog.text


async def test_clients_that_leave_are_no_fault_of_the_server(model, held, caplog):
    begun, go = held

    def reset(writer):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with running(model) as (service, session):
        first = asyncio.create_task(ask(session, {"instances": ["One."]}))
        await until(begun.is_set)
        clients = [await connect(session, request()) for _ in range(4)]
        uploads = [await connect(session, upload) for upload in UPLOADS[:2]]
        await until(lambda: service.batcher.waiting == 4)
        for _, writer in [*clients[:2], *uploads]:
            reset(writer)
        for _, writer in clients[2:]:
            writer.close()
        await until(lambda: service.open == 1)
        go.set()
        assert (await first)[0] == 200
        assert await counts(session) == {200: 1, 499: 6}
        async with session.get("/metrics") as reply:
            assert "albert_sequences_total 1.0" in await reply.text()
    assert not caplog.records


def served(model, client, **limits):
    """Serves until `client`, a coroutine function that gets a session, stops it in
    another thread; returns its result."""
    async def run(address):
        async with aiohttp.ClientSession(address) as session:
            return await client(session)

    def start(address):
        def work():
            try:
                result.set_result(asyncio.run(run(address)))
            except BaseException as error:
                result.set_exception(error)
                if not stopped.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=work, daemon=True).start()

    result, stopped = concurrent.futures.Future(), threading.Event()
    service = http.Service(model, "tiny", Limits(**limits))
    http.serve(service, "127.0.0.1", 0, start)
    stopped.set()
    return result.result(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_waits_for_accepted_requests_only(model, held, number):
    begun, go = held

    async def stop(session):
        opened = [await connect(session, data) for data in (*UPLOADS, b"", request())]
        *uploads, resting, accepted = [reader for reader, _ in opened]
        await until(begun.is_set)
        os.kill(os.getpid(), number)
        for reader in (*uploads, resting):
            assert await answer(reader) == (0, None)
        with pytest.raises(ConnectionRefusedError):
            await connect(session)
        await asyncio.sleep(0.3)
        go.set()
        return (await answer(accepted))[0]

    assert served(model, stop, stop_seconds=3600) == 200


@pytest.mark.parametrize("seconds", [0, 1.2])
def test_a_stop_does_not_wait_longer_than_it_may(model, held, seconds):
    begun, go = held

    async def stop(session):
        opened = [await connect(session, request()) for _ in range(2)]
        await until(begun.is_set)
        begin = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        assert [await answer(reader) for reader, _ in opened] == [(0, None)] * 2
        return time.monotonic() - begin

    try:
        assert seconds - 0.1 < served(model, stop, stop_seconds=seconds) < seconds + 1
    finally:
        go.set()


def test_an_address_that_is_taken(model):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(
            InputError, match="--port=.*: cannot listen on this address .*in use"):
        http.serve(http.Service(model, "tiny"), "127.0.0.1", taken.getsockname()[1])
