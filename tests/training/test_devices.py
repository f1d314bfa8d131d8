"""Which batches a replica gets, when another worker is gone, TF_CONFIG."""

import json
import socket
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.training import devices
from albert_tf.training.batches import Batches
from tests import tiny_run
from tests.commands import free_ports


def test_a_worker_that_is_gone_is_told_from_other_errors():
    gone = tf.errors.AbortedError(
        None, None, "Collective ops is aborted by: Connection reset.\nMore: none")
    explained = devices.explain_error(gone, "runs/base")
    assert str(explained).startswith(
        "another worker has ended or cannot be reached (Connection reset)")
    assert "runs/base" in str(explained)
    assert explained.exit_status == 143  # as if it had been stopped itself
    assert devices.explain_error(ValueError("no such thing"), "runs/base") is None


@pytest.mark.parametrize("name, options, message", [
    ("tpu", dict(tpu="x", num_virtual_cpus=2), "--num_virtual_cpus"),
    ("mirrored", dict(num_gpus=1, num_virtual_cpus=2), "--num_virtual_cpus"),
    ("mirrored", dict(num_gpus=99), "--num_gpus=99"),
    ("one_device", dict(num_gpus=-1), "--num_gpus=-1"),
    ("one_device", dict(num_gpus=2), "--num_gpus=2 .*--distribution_strategy=mirrored"),
    ("multi_worker_mirrored", dict(num_gpus=0), "--num_gpus=0 .*CUDA_VISIBLE_DEVICES"),
    ("mirrored", {}, "mirrored.*GPUs.*--num_virtual_cpus=2"),
    ("multi_worker_mirrored", {}, "TF_CONFIG"), ("tpu", dict(tpu="foo"), "--tpu=foo"),
    ("tpu", dict(tpu="grpc://foo"), "--tpu=grpc://foo"), ("tpu", dict(tpu=""), "--tpu=:")])
def test_wrong_devices(name, options, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    # What asks for a name would leave this machine.
    monkeypatch.setattr(
        "official.common.distribute_utils.get_distribution_strategy",
        mock.Mock(side_effect=OSError("Name or service not known")))
    with pytest.raises(InputError, match=message):
        devices.make_strategy(devices.DeviceOptions(
            distribution_strategy=name, **options))


def test_what_is_not_used_is_mentioned(monkeypatch, caplog):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    monkeypatch.setattr(devices.parallel, "has_accelerator", lambda: True)
    devices.make_strategy(devices.DeviceOptions())
    assert "TF_CONFIG is set, but this process trains alone" in caplog.text
    assert "has a GPU or TPU that TensorFlow does not see. Install" in caplog.text


def test_hardware():
    with tiny_run.strategy(2).scope():
        assert devices.hardware() == "2 CPUs"


class Numbers(Batches):
    """Two shapes; a batch holds the number of its step, pipeline and shape."""

    num_shapes = num_evaluation_shapes = 2

    def training_dataset(self, shape, start_step, pipeline):
        first = start_step * pipeline.replicas
        return tf.data.Dataset.range(first, first + 10).map(lambda number: tf.fill(
            [pipeline.batch_size, shape + 1], number))

    def evaluation_dataset(self, shape, pipeline):
        return self.training_dataset(shape, 0, pipeline), 5 - shape


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_replica_takes_its_share_of_each_shape(replicas):
    strategy = tiny_run.strategy(replicas)
    with strategy.scope():
        batches = Numbers(8, 4)
        trained, evaluated = batches.train(3), batches.evaluation()
        assert batches.shape_of_step(7) == 0

        def first(dataset):
            values = strategy.experimental_local_results(next(iter(dataset)))
            return [value.numpy() for value in values]

        for shape, dataset in enumerate(trained):
            np.testing.assert_array_equal(first(dataset), [
                np.full([8 // replicas, shape + 1], 3 * replicas + replica)
                for replica in range(replicas)])
        assert [steps for _, steps in evaluated] == [5, 4]
        assert [found.shape for found in first(evaluated[1][0])] == (
            [(4 // replicas, 2)] * replicas)


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
    own, other = free_ports(2)
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
