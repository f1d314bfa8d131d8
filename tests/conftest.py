"""Two CPU devices for every test; markers `shared` (needs ../shared) and `slow`."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402

from tests.helpers import SHARED  # noqa: E402

# Two replicas on one machine, for the tests under MirroredStrategy. TensorFlow
# takes the number of devices only before its first operation, and tests load it
# at different moments, so it is set here, before any test module is imported.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2)


def pytest_collection_modifyitems(items):
    if SHARED is None:
        skip = pytest.mark.skip(reason="../shared is not here")
        for item in items:
            if "shared" in item.keywords:
                item.add_marker(skip)
