"""TF_CONFIG is checked, and other workers are waited for with a line on the log.

    python -m pytest tests/training/test_cluster.py
"""

import json
import socket
import threading

import pytest

from albert_tf.errors import InputError
from albert_tf.training.devices import Cluster

TWO = ["127.0.0.1:1", "127.0.0.1:2"]


def config(worker=TWO, kind="worker", index=0, **others):
    return {"cluster": {"worker": worker, **others},
            "task": {"type": kind, "index": index}}


def cluster(monkeypatch, value):
    monkeypatch.setenv(
        "TF_CONFIG", value if isinstance(value, str) else json.dumps(value))
    return Cluster.from_environment()


def test_workers(monkeypatch):
    for value, own, others in (
            (config(index="1"), TWO[1], (TWO[0],)),
            (config(TWO[:1], "chief", chief=["c:3"]), "c:3", (TWO[0],)),
            (config(["[::1]:7", "b:8"], ps=["p:9"]), "[::1]:7", ("b:8",)),
            ({**config(TWO[:1]), "environment": "cloud"}, TWO[0], ())):
        assert cluster(monkeypatch, value) == (own, others)


def test_wrong_tf_config(monkeypatch):
    for value in ("", "[" * 10**5, "[1]", "{}", {"cluster": {}}, config([]),
                  *(config([address]) for address in (5, "a", "a:b", "a:65536")),
                  config(kind="evaluator", evaluator=["e:1"]),
                  *(config(index=index) for index in (2, -1, "x"))):
        with pytest.raises(InputError, match="TF_CONFIG"):
            cluster(monkeypatch, value)


def free_ports(count):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def test_workers_wait_for_each_other_with_a_line(monkeypatch, caplog):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    first, second = (cluster(monkeypatch, config(addresses, index=index))
                     for index in (0, 1))
    thread = threading.Thread(target=first.meet)
    thread.start()
    line = f"Waiting for the workers {addresses[1]} of TF_CONFIG."
    while line not in caplog.messages:
        assert thread.is_alive()
    # By then TensorFlow may listen there.
    with socket.create_server(("127.0.0.1", int(addresses[1].split(":")[1]))):
        thread.join(20)
    with socket.create_server(("127.0.0.1", int(addresses[0].split(":")[1]))):
        second.meet()


def test_port_that_is_taken(monkeypatch):
    with socket.create_server(("", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=f"{address}, cannot listen at its port"):
            cluster(monkeypatch, config([address])).meet()
