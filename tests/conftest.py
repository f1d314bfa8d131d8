"""Two CPU devices for every test; markers `shared` (needs ../shared) and `slow`."""

import logging
import os

import pytest
from absl import logging as absl_logging

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402

from tests.helpers import SHARED  # noqa: E402

# Two replicas on one machine, for the tests under MirroredStrategy. TensorFlow
# takes the number of devices only before its first operation, and tests load it
# at different moments, so it is set here, before any test module is imported.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2)

# Whole runs of scripts, and steps that XLA compiles: minutes for few tests. They come
# first, so that no process is left with one of them when the others are done.
LONG_FILES = (
    "test_run_pretraining", "test_loop", "test_run_classifier", "test_run_squad",
    "test_steps", "test_run", "test_packing", "test_fast",
    "test_run_race", "test_quickstart", "test_in_training", "test_local",
    "test_compiled_steps", "test_read_positions", "test_loss_scaling",
    "test_recompute", "test_server", "test_optimization")


@pytest.fixture(autouse=True)
def absl_log():
    """Lines from INFO on reach caplog, whatever a test or a library did to the logger.

    Setting absl's verbosity back is not enough: it begins as -1 beside a logger that
    takes the root's level, and once it is set, to -1 too, the logger has its own.
    """
    logger = logging.getLogger("absl")
    verbosity, level, propagate = (
        absl_logging.get_verbosity(), logger.level, logger.propagate)
    absl_logging.set_verbosity(absl_logging.INFO)
    logger.propagate = True
    yield
    absl_logging.set_verbosity(verbosity)
    logger.setLevel(level)
    logger.propagate = propagate


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    if SHARED is None:
        skip = pytest.mark.skip(reason="../shared is not here")
        for item in items:
            if "shared" in item.keywords:
                item.add_marker(skip)
