"""The workers in TF_CONFIG.

    python -m pytest tests/training/test_cluster.py
"""

import json
import socket
import threading

import pytest

from albert_tf.errors import InputError
from albert_tf.training import devices

TWO = ["127.0.0.1:1", "127.0.0.1:2"]


def config(worker=TWO, kind="worker", index=0, **others):
    return {"cluster": {"worker": worker, **others},
            "task": {"type": kind, "index": index}}


def cluster(monkeypatch, value):
    monkeypatch.setenv(
        "TF_CONFIG", value if isinstance(value, str) else json.dumps(value))
    return devices.workers()


def test_workers(monkeypatch):
    for value, expected in (
            (config(index="1"), TWO[::-1]),
            (config(TWO[:1], "chief", chief=["c:3"]), ["c:3", TWO[0]]),
            (config(["[::1]:7", "b:8"], ps=["p:9"]), ["[::1]:7", "b:8"]),
            ({**config(TWO[:1]), "environment": "cloud"}, TWO[:1])):
        assert cluster(monkeypatch, value) == expected


def test_a_worker_waits_until_the_others_listen():
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    own, other = (server.getsockname()[1] for server in servers)
    for server in servers:
        server.close()
    thread = threading.Thread(target=devices.meet, daemon=True, args=(
        f"127.0.0.1:{own}", [f"127.0.0.1:{other}"]))
    thread.start()
    thread.join(1)
    assert thread.is_alive() and devices.reachable(f"127.0.0.1:{own}", 2)
    with socket.create_server(("127.0.0.1", other)):
        thread.join(20)
    assert not thread.is_alive()
    with socket.create_server(("", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=taken):
            devices.meet(taken, [])


def test_wrong_tf_config(monkeypatch):
    for value in ("", "[" * 10**5, "[1]", "{}", {"cluster": {}}, config([]),
                  *(config([address]) for address in (5, "a", "a:b", "a:65536")),
                  config(kind="evaluator", evaluator=["e:1"]),
                  *(config(index=index) for index in (2, -1, "x"))):
        with pytest.raises(InputError, match="TF_CONFIG"):
            cluster(monkeypatch, value)
