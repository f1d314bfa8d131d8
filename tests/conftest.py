"""Two CPU devices for every test; markers; the order of the files; what tests change
of absl and of the environment is put back.
"""

import ctypes
import gc
import logging
import os
import random
import signal
import struct
import sys

import pytest
from absl import logging as absl_logging

from tests.helpers import ROOT, SHARED

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # As scripts have it.
gc.disable()  # It would look at TensorFlow's modules each time: a third of collection.

# A shell that starts a command with "&" makes it, and what it starts, deaf to Ctrl-C,
# which some tests send to scripts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Whole runs of scripts, and steps that XLA compiles: minutes for few tests. They come
# first, the longest ahead, so that no process is left with one of them when the others
# are done.
LONG_FILES = (
    "scripts/test_run_pretraining", "training/test_loop", "training/test_same_step",
    "training/test_steps", "finetuning/test_seeds", "scripts/test_run_classifier",
    "training/test_input_pipeline", "finetuning/test_run", "scripts/test_run_squad",
    "scripts/test_run_race", "scripts/test_run_tagger", "modeling/kernels/test_packing",
    "modeling/kernels/test_fast", "serving/test_engines", "serving/test_predict",
    "tokenization/test_in_graph", "modeling/kernels/test_tpu", "serving/test_portable",
    "features/test_features", "finetuning/test_task", "masking/test_in_training",
    "pretraining_data/test_local", "scripts/test_create_pretraining_data",
    "modeling/kernels/test_recompute", "training/test_optimization",
    "serving/test_export", "golden/test_heads", "tokenization/test_hf_tokenizer")


def pytest_addoption(parser):
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="shuffle files, and the tests "
        "of each: none may depend on which others ran before it in its process")


def pytest_configure(config):
    """Sets TensorFlow up, which takes its devices only before its first operation.

    Compiling takes longer than what the quick tests run, and threads wait for each
    other busily, so these tests do with little of both; the slow ones have all.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # Its workers run the tests, and loading TensorFlow takes seconds.
    quick = "not slow" in config.option.markexpr
    if quick:
        os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
        flags = ("--xla_backend_optimization_level=0",
                 "--xla_llvm_disable_expensive_passes=true")
        os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    import tensorflow as tf

    if quick:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Replicas on one machine, for the tests under MirroredStrategy.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 4)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("--random-order")
    if seed is None:
        places = {ROOT / "tests" / f"{name}.py": place
                  for place, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: places.get(item.path, len(places)))
    else:
        draw = random.Random(seed)
        draw.shuffle(items)
        places = {path: draw.random() for path in sorted({i.path for i in items})}
        items.sort(key=lambda item: places[item.path])
    if SHARED is None:
        skip = pytest.mark.skip(reason="../shared is not here")
        for item in items:
            if "shared" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="module", name="eager")
def _eager():
    """Steps run as they are written: tracing them takes longer than a few of them."""
    import tensorflow as tf

    from albert_tf.training import evaluation, steps

    def names_of(sums, dataset):
        """Of a batch of zeros, which is not traced."""
        return list(sums({
            name: tf.zeros(spec.shape, spec.dtype) for name, spec in
            evaluation.replica_spec(dataset.element_spec).items()}))

    tf.config.run_functions_eagerly(True)
    with pytest.MonkeyPatch.context() as patch:
        for module in (evaluation, steps):
            patch.setattr(module, "names_of", names_of)
        yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module", name="without_curves")
def _without_curves():
    """Drawing them takes longer than the runs."""
    from albert_tf.training import loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda *args: None)
        yield


@pytest.fixture(autouse=True)
def _no_leaks():
    """What a test changes of the environment and of absl's logger ends with it.

    Lines from INFO on reach caplog, whatever a test or a library did before. Setting
    absl's verbosity back is not enough: it begins as -1 beside a logger that takes the
    root's level, and once it is set, to -1 too, the logger has its own.
    """
    logger = logging.getLogger("absl")
    verbosity = absl_logging.get_verbosity()
    kept = logger.level, logger.propagate, logger.handlers[:], logger.filters[:]
    environment = dict(os.environ)
    absl_logging.set_verbosity(absl_logging.INFO)
    logger.propagate = True
    if sys.platform == "linux":
        # Signals get the whole stack: that which a library gives them is too small where
        # registers are wide (SS_DISABLE).
        ctypes.CDLL(None).sigaltstack(struct.pack("PiN", 0, 2, 0), None)
    yield
    absl_logging.set_verbosity(verbosity)
    logger.setLevel(kept[0])
    logger.propagate, logger.handlers[:], logger.filters[:] = kept[1:]
    os.environ.clear()
    os.environ.update(environment)
