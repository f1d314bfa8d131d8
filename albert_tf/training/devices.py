"""The devices that train one model, on one machine or several: their strategy, the
workers that TF_CONFIG names, which process writes, and at which step they start."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from absl import logging

from albert_tf.errors import InputError, WorkerEnded, reason_of
from albert_tf.jobs import parallel
from albert_tf.options import option

if TYPE_CHECKING:
    import tensorflow as tf

_INSTALL_CUDA = (
    "Install an NVIDIA driver and TensorFlow with its CUDA libraries "
    "(pip install 'tensorflow[and-cuda]' in TensorFlow's version; "
    "docs/ACCELERATORS.md).")


# ---- devices ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """The devices to train on."""

    tpu: Optional[str] = option(
        None, "Name or address of a Cloud TPU, or 'local' on a TPU VM. Trains with "
        "TPUStrategy.")
    distribution_strategy: str = option(
        "one_device", "Devices to train on: one_device (the CPU or one GPU), mirrored "
        "(the GPUs of this machine), multi_worker_mirrored (several machines, listed in "
        "the environment variable TF_CONFIG), tpu (see --tpu).",
        choices=["one_device", "mirrored", "multi_worker_mirrored", "tpu"])
    num_gpus: Optional[int] = option(
        None, "Number of GPUs to use on this machine. Default: all with "
        "--distribution_strategy=mirrored, otherwise one if there is one. Not for "
        "several machines, where CUDA_VISIBLE_DEVICES limits them.")
    num_virtual_cpus: int = option(
        0, "Splits the CPU into N devices and trains one replica on each, to try out "
        "replicas on a machine without accelerators.", most=1024)

    @property
    def kind(self) -> str:
        return self.distribution_strategy if self.tpu is None else "tpu"

    def __post_init__(self):
        """Raises InputError if the options contradict each other."""
        if self.kind == "tpu" and self.tpu is None:
            raise InputError("give the name or address of the TPU: --tpu=NAME, or "
                             "--tpu=local on a TPU VM.")
        if self.num_virtual_cpus and (
                self.kind not in ("one_device", "mirrored") or self.num_gpus):
            raise InputError("--num_virtual_cpus stands alone; leave --tpu, --num_gpus "
                             "and other strategies out.")
        if self.kind == "one_device" and (self.num_gpus or 0) > 1 or (
                self.kind in ("multi_worker_mirrored", "tpu")
                and self.num_gpus is not None):
            raise InputError(
                f"--num_gpus={self.num_gpus} does not go with --distribution_strategy="
                f"{self.kind}; give --distribution_strategy=mirrored, or limit the GPUs "
                "of each worker with the environment variable CUDA_VISIBLE_DEVICES.")

    def known_replicas(self) -> int:
        """Returns a divisor of the number of replicas, as far as it is known before the
        strategy is made; also checks the cluster that TF_CONFIG describes."""
        return len(workers()) if self.kind == "multi_worker_mirrored" else (
            self.num_virtual_cpus or self.num_gpus or 1)


def make_strategy(options: DeviceOptions) -> "tf.distribute.Strategy":
    """Returns a strategy over the available devices."""
    name, tpu, num_gpus = options.kind, options.tpu, options.num_gpus
    if name in ("one_device", "mirrored") and os.environ.get("TF_CONFIG", "{}") != "{}":
        logging.warning("TF_CONFIG is set, but this process trains alone; "
                        "--distribution_strategy=multi_worker_mirrored uses it.")
    import tensorflow as tf
    from official.common import distribute_utils

    if count := options.num_virtual_cpus:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * count)
        return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    # Listing devices initializes TensorFlow, which several workers must not do before
    # they create their strategy.
    if name == "multi_worker_mirrored":
        own, *others = workers()
        logging.info("This worker is %s of TF_CONFIG; it waits until %s have started.",
                     own, ", ".join(others) or "no others")
        meet(own, others)
    elif name != "tpu":
        available = len(tf.config.list_physical_devices("GPU"))
        if num_gpus is None:
            num_gpus = min(available, 1) if name == "one_device" else available
        if not int(name == "mirrored") <= num_gpus <= available:
            raise InputError(
                f"--distribution_strategy={name}, --num_gpus={num_gpus}: TensorFlow sees "
                f"{available} GPUs on this machine. {_INSTALL_CUDA} To train on the CPU, "
                "leave both flags out; --num_virtual_cpus=2 tries out two replicas there.")
        if not available and name == "one_device" and parallel.has_accelerator():
            logging.warning("This machine has a GPU or TPU that TensorFlow does not "
                            "see. %s", _INSTALL_CUDA)
    if tpu and "://" in tpu and not reachable(tpu.partition("://")[2], 10.0):
        raise InputError(f"--tpu={tpu}: nothing answers there; give the address of a "
                         "running Cloud TPU, such as grpc://HOST:8470, or its name.")
    try:
        return distribute_utils.get_distribution_strategy(
            name, num_gpus=num_gpus or 0, tpu_address=tpu)
    # The lookup of a TPU by name raises errors of several libraries.
    except Exception if name == "tpu" else (ValueError, tf.errors.OpError) as error:
        raise InputError(
            f"--tpu={tpu}: {reason_of(error)}; give the name or address of a running "
            "Cloud TPU, or 'local' on the TPU's own machine." if name == "tpu" else
            f"--distribution_strategy={name}: {reason_of(error)}.") from error


def hardware() -> str:
    """Returns on what the current strategy computes, such as '16 GPUs'."""
    import tensorflow as tf

    from albert_tf.modeling.kernels import fast

    count = tf.distribute.get_strategy().num_replicas_in_sync
    return f"{count} {fast.device_kind()}{'s' * (count > 1)}"


# ---- several processes -----------------------------------------------------


def is_chief(strategy: "tf.distribute.Strategy") -> bool:
    """Returns True in the one process that writes the run's files."""
    return strategy.extended.should_checkpoint


def check_same_start(strategy: "tf.distribute.Strategy", step: int,
                     evaluation_set: Mapping[str, Any]) -> None:
    """Raises InputError, in all workers of a cluster, if they are about to start at
    different steps or evaluate on different sets. Call it before anything is restored,
    because the workers restore together."""
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    # A worker that sees a new best alone would wait for the others forever.
    digest = int(hashlib.sha256(json.dumps(
        evaluation_set, sort_keys=True).encode()).hexdigest()[:15], 16)
    gathered = strategy.run(tf.function(
        lambda: tf.distribute.get_replica_context().all_gather(
            tf.constant([[step, digest]], tf.int64), axis=0)))
    steps, sets = strategy.experimental_local_results(gathered)[0].numpy().T.tolist()
    if len({*steps}) > 1:
        raise InputError(
            f"the workers start at different steps ({steps}): --output_dir must be "
            "one folder that all workers can read.")
    if len({*sets}) > 1:
        raise InputError("the workers evaluate on different sets: give all of them the "
                         "same files and flags of evaluation.")


def explain_error(error: Exception, output_dir: str) -> Optional[InputError]:
    """Returns the error to raise if an exchange failed because a worker ended."""
    broken = re.search("Collective ops is aborted by: (.*)", str(error))
    return broken and WorkerEnded(
        f"another worker has ended or cannot be reached ({broken[1].rstrip(' .:')}); "
        "see its log. To resume from the latest checkpoint in "
        f"{output_dir}, run the same command on all workers.")


# ---- the cluster -----------------------------------------------------------


def workers() -> list[str]:
    """Returns the addresses, "host:port", of the workers in the environment variable
    TF_CONFIG, this one first; a chief counts as one."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        found = {(kind, index): address for kind in ("chief", "worker")
                 for index, address in enumerate(jobs.get(kind, ()))}
        addresses = [found.pop((resolver.task_type, resolver.task_id)), *found.values()]
        for address in addresses:
            _host_and_port(address)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError
            ) as error:
        raise InputError(
            "--distribution_strategy=multi_worker_mirrored needs the environment "
            "variable TF_CONFIG with all workers and this one's place "
            f"({type(error).__name__}: {reason_of(error)}), such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}.') from error
    return addresses


def meet(own: str, others: Sequence[str]) -> None:
    """Waits until all other workers listen at their ports, as this one does meanwhile.
    TensorFlow would wait for them without handling signals."""
    _, port = _host_and_port(own)
    both = socket.has_dualstack_ipv6()
    try:
        server = socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both)
    except OSError as error:
        raise InputError(f"TF_CONFIG: this worker, {own}, cannot listen at its port "
                         f"({error.strerror}).") from error
    with server:
        # Once reached, a worker may have closed its port; TensorFlow opens it again.
        while others := [each for each in others if not reachable(each, 2.0)]:
            time.sleep(0.2)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address} is not of the form host:port")
    return host.strip("[]"), int(port)


def reachable(address: str, seconds: float) -> bool:
    """Returns True if a program listens at "host:port"."""
    with contextlib.suppress(OSError, ValueError):
        socket.create_connection(_host_and_port(address), seconds).close()
        return True
    return False
