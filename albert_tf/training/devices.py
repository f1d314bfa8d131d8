"""The devices that train one model, on one machine or several: their strategy, the
workers that TF_CONFIG names, which process writes, and at which step they start.

TensorFlow waits silently for workers that never start, and trains alone if it finds no
cluster. `Cluster` therefore checks the workers first, and logs which ones it waits for.
TensorFlow is imported late, so that an invalid TF_CONFIG is reported before it is
loaded.
"""

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
import time
from typing import (
    TYPE_CHECKING, Any, Iterator, Mapping, NamedTuple, Optional, Sequence)

from absl import logging

from albert_tf.errors import InputError, WorkerEnded
from albert_tf.jobs import parallel

if TYPE_CHECKING:
    import tensorflow as tf

_EXAMPLE = ('{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}')
_INSTALL_CUDA = (
    "Install an NVIDIA driver and TensorFlow with its CUDA libraries "
    "(pip install 'tensorflow[and-cuda]' in TensorFlow's version; "
    "docs/ACCELERATORS.md).")
SECONDS_BETWEEN_LINES = 5.0
# Seconds to wait: a cluster's name service may know a machine only after it has
# started.
_PATIENCE = 30.0


# ---- devices ---------------------------------------------------------------


def make_strategy(name: str, tpu: Optional[str] = None, num_gpus: Optional[int] = None,
                  num_virtual_cpus: int = 0) -> "tf.distribute.Strategy":
    """Returns a strategy over the available devices.

    Args:
      name: one_device, mirrored, multi_worker_mirrored or tpu.
      num_gpus: None uses one GPU for one_device, if there is one, and all for mirrored.
      num_virtual_cpus: if not 0, splits the CPU into this many devices, to test several
        replicas without accelerators.
    """
    check(name, num_gpus, num_virtual_cpus)
    import tensorflow as tf  # Before workers meet: loading it takes seconds.

    if num_virtual_cpus:
        return _virtual_cpus(num_virtual_cpus)
    if name == "multi_worker_mirrored":
        workers = Cluster.from_environment()
        workers.resolve()
        workers.meet()
        return _connect(name, None, num_gpus or 0)
    # Listing devices initializes TensorFlow, which several workers must not do before
    # they create their strategy.
    if name != "tpu":
        available = len(tf.config.list_physical_devices("GPU"))
        if num_gpus is None:
            num_gpus = min(available, 1) if name == "one_device" else available
        if not 0 <= num_gpus <= available:
            raise InputError(
                f"--num_gpus is {num_gpus}, but TensorFlow sees {available} GPUs on "
                "this machine; use at most that number.")
        if name == "mirrored" and not num_gpus:
            raise InputError(
                "--distribution_strategy=mirrored trains on GPUs, but "
                + (f"TensorFlow sees none on this machine. {_INSTALL_CUDA} To train on "
                   "the CPU," if not available else "--num_gpus is 0. To train on the "
                   "CPU,")
                + " leave the flag out; --num_virtual_cpus=2 tries out two replicas "
                "there.")
        if not available and name == "one_device" and parallel.has_accelerator():
            logging.warning("This machine has a GPU or TPU that TensorFlow does not "
                            "see. %s", _INSTALL_CUDA)
    return _connect(name, tpu, num_gpus or 0)


def check(name: str, num_gpus: Optional[int], num_virtual_cpus: int) -> None:
    """Raises InputError if these arguments of make_strategy contradict each other."""
    if num_virtual_cpus and (name not in ("one_device", "mirrored") or num_gpus):
        raise InputError(
            "--num_virtual_cpus cannot be combined with --tpu, --num_gpus or "
            "--distribution_strategy=multi_worker_mirrored; leave those out.")
    if name == "one_device" and (num_gpus or 0) > 1:
        raise InputError(f"--num_gpus={num_gpus} needs "
                         "--distribution_strategy=mirrored, because the default "
                         "strategy is for one device.")
    if name in ("multi_worker_mirrored", "tpu") and num_gpus is not None:
        raise InputError(
            f"--num_gpus has no effect with --distribution_strategy={name}; leave it "
            "out" + (", and limit the GPUs of each host with the environment variable "
                     "CUDA_VISIBLE_DEVICES." if name != "tpu" else "."))


def hardware(strategy: Optional["tf.distribute.Strategy"] = None) -> str:
    """Returns on what a strategy trains, or on what models run without a strategy:
    'the CPU (2 threads)', '8 GPUs (NVIDIA A100)', '16 GPUs of 2 hosts'."""
    import tensorflow as tf

    kind, count, hosts = kind_of(strategy), 1, 1
    if strategy is not None:
        count, hosts = strategy.num_replicas_in_sync, num_processes(strategy)
    more = ""
    if kind == "CPU":
        threads = (tf.config.threading.get_intra_op_parallelism_threads()
                   or parallel.num_cores())
        more = f" ({threads} thread{'s' * (threads > 1)}{' each' * (hosts > 1)})"
    elif kind == "GPU":
        names = {tf.config.experimental.get_device_details(gpu).get("device_name")
                 for gpu in tf.config.list_physical_devices("GPU")}
        more = f" ({', '.join(sorted(filter(None, names)))})" if any(names) else ""
    if hosts > 1:
        return f"{count} {kind}s of {hosts} hosts{more}"
    return (f"the {kind}{more}" if count == 1
            else f"{count} {'virtual ' * (kind == 'CPU')}{kind}s{more}")


def kind_of(strategy: Optional["tf.distribute.Strategy"] = None) -> str:
    """Returns the kind of a strategy's devices, or of that on which models run without
    a strategy: CPU, GPU or TPU."""
    import tensorflow as tf

    if strategy is not None:
        with contextlib.suppress(RuntimeError):  # TensorFlow's default strategy
            return tf.DeviceSpec.from_string(
                strategy.extended.worker_devices[0]).device_type
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def _connect(name: str, tpu: Optional[str], num_gpus: int) -> "tf.distribute.Strategy":
    """Returns a strategy of tf-models-official; it may have to reach other machines."""
    import tensorflow as tf
    from official.common import distribute_utils

    if tpu and "://" in tpu and not reachable(tpu.partition("://")[2], 10.0):
        raise InputError(
            f"--tpu={tpu}: nothing answers at that address; give the address of a "
            "running Cloud TPU, such as grpc://HOST:8470, or its name.")
    try:
        return distribute_utils.get_distribution_strategy(
            name, num_gpus=num_gpus, tpu_address=tpu)
    # The lookup of a TPU by name raises errors of several libraries.
    except Exception if name == "tpu" else (ValueError, tf.errors.OpError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if name == "tpu":
            raise InputError(
                f"--tpu={tpu}: there is no such TPU, or it cannot be reached from here "
                f"({reason}); give the name or address of a running Cloud TPU, or "
                "'local' on the TPU's own machine.") from error
        raise InputError(f"--distribution_strategy={name}: {reason}") from error


def _virtual_cpus(count: int) -> "tf.distribute.Strategy":
    """Splits the CPU into `count` devices and returns a strategy over them."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"--num_virtual_cpus={count}: {error}") from error
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


# ---- several processes -----------------------------------------------------


def num_processes(strategy: "tf.distribute.Strategy") -> int:
    """Returns the number of processes; each reads its part of every batch."""
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return 1
    return sum(map(len, resolver.cluster_spec().as_dict().values()))


def replica_variable(value: Any, dtype: Any = None, name: Optional[str] = None
                     ) -> "tf.Variable":
    """Returns a variable of which every replica keeps its own copy, for values that all
    compute alike or that are their own. Call it in the strategy's scope; outside of the
    replicas it has the value of the first."""
    import tensorflow as tf

    return tf.Variable(
        value, trainable=False, dtype=dtype, name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def is_chief(strategy: "tf.distribute.Strategy") -> bool:
    """Returns True in the one process that writes the run's files."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


def check_same_start(strategy: "tf.distribute.Strategy", step: int,
                     evaluation_set: Mapping[str, Any]) -> None:
    """Checks that all workers of a cluster are about to start at the same step, and to
    evaluate on the same set.

    Call it before anything is restored, because the workers restore together. All of
    them raise the InputError.
    """
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return

    @tf.function
    def everyones_starts():
        own = tf.constant([[step, digest]], tf.int64)
        return tf.distribute.get_replica_context().all_gather(own, axis=0)

    # A worker that sees a new best alone would wait for the others forever.
    digest = int(hashlib.sha256(json.dumps(
        evaluation_set, sort_keys=True).encode()).hexdigest()[:15], 16)
    gathered = strategy.run(everyones_starts)
    starts = strategy.experimental_local_results(gathered)[0].numpy().tolist()
    steps = [start[0] for start in starts]
    if len(set(steps)) > 1:
        raise InputError(
            f"the workers start at different steps ({steps}): --output_dir must be "
            "one folder that all workers can read.")
    if len({start[1] for start in starts}) > 1:
        raise InputError("the workers evaluate on different sets: give all of them the "
                         "same files and flags of evaluation.")


def explain_error(error: Exception, output_dir: str) -> Optional[InputError]:
    """Returns an error that explains it if an exchange failed because a worker
    ended."""
    broken = re.search("Collective ops is aborted by: (.*)", str(error))
    if broken is None:
        return None
    return WorkerEnded(
        f"another worker has ended or cannot be reached ({broken[1].rstrip(' .:')}); "
        "see its log. To resume from the latest checkpoint in "
        f"{output_dir}, run the same command on all workers.")


# ---- the cluster -----------------------------------------------------------


class Cluster(NamedTuple):
    """The workers of a cluster as "host:port"; a chief counts as one of them.

    Attributes:
      own: address of this worker.
      others: addresses of all other workers.
    """

    own: str
    others: tuple[str, ...]

    @classmethod
    def from_environment(cls) -> "Cluster":
        """Reads the cluster from the environment variable TF_CONFIG."""
        text = os.environ.get("TF_CONFIG", "")
        if not text:
            raise InputError(
                "--distribution_strategy=multi_worker_mirrored needs the environment "
                "variable TF_CONFIG with the cluster's workers and this worker's "
                f"index; set it, for example, to {_EXAMPLE}.")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the environment variable TF_CONFIG is not JSON ({error}); set "
                "it to the cluster's workers and this worker's index, for example "
                f"{_EXAMPLE}.") from error
        try:
            return cls._parsed(value)
        except _Wrong as error:
            raise InputError(f"the environment variable TF_CONFIG: {error}; set it, "
                             f"for example, to {_EXAMPLE}.") from error

    @classmethod
    def _parsed(cls, value: Any) -> "Cluster":
        cluster = _object(_object(value, "it", "cluster"), "its cluster")
        task = _object(_object(value, "it", "task"), "its task")
        addresses = {kind: _addresses(kind, hosts) for kind, hosts in cluster.items()}
        kind, index = task.get("type"), task.get("index")
        workers = {name: addresses[name] for name in ("chief", "worker")
                   if name in addresses}
        if not isinstance(kind, str) or kind not in workers:
            raise _Wrong(f"the task's type is {json.dumps(kind)}, which is not one of "
                         f"the cluster's ({', '.join(workers) or 'it has no worker'})")
        if isinstance(index, str) and index.isdecimal():
            index = int(index)
        if type(index) is not int or not 0 <= index < len(workers[kind]):
            raise _Wrong(f"the task's index is {json.dumps(index)}, but the cluster's "
                         f"{kind}s are numbered 0 to {len(workers[kind]) - 1}")
        if len(workers.get("chief", ())) > 1:
            raise _Wrong("the cluster has several chiefs")
        everyone = [address for group in workers.values() for address in group]
        for address in everyone:
            if everyone.count(address) > 1:
                raise _Wrong(f"the cluster has {address} more than once")
        own = workers[kind][index]
        return cls(own, tuple(address for address in everyone if address != own))

    @property
    def size(self) -> int:
        return 1 + len(self.others)

    def resolve(self, patience: float = _PATIENCE,
                pause: float = SECONDS_BETWEEN_LINES) -> None:
        """Raises InputError if host names remain unknown for `patience` seconds."""
        end = time.monotonic() + patience
        while unknown := [address for address in (self.own, *self.others)
                          if not _is_known(address)]:
            names = ", ".join(unknown)
            if time.monotonic() > end:
                raise InputError(
                    f"the environment variable TF_CONFIG: no address is known for the "
                    f"host in {names}; correct the name, or start that machine.")
            logging.info("Waiting for %s from TF_CONFIG: no address is known for the "
                         "host.", names)
            time.sleep(pause)

    def meet(self, pause: float = SECONDS_BETWEEN_LINES) -> None:
        """Waits until every other worker has started, and logs every few seconds which
        ones are missing.

        TensorFlow waits for them, too, but silently and without handling signals.
        Therefore each worker listens at its own port until it has reached the ports of
        all others, where TensorFlow may listen by then.
        """
        missing = set(self.others)
        next_line = time.monotonic() + pause
        with self._listening():
            while missing := {other for other in missing if not reachable(other, 2.0)}:
                if time.monotonic() >= next_line:
                    logging.info(
                        "Waiting for %d of the %d workers in TF_CONFIG: %s.",
                        len(missing), self.size, ", ".join(sorted(missing)))
                    next_line = time.monotonic() + pause
                time.sleep(0.2)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Accepts connections at this worker's port, in a thread, within the block."""
        host, port = _host_and_port(self.own)
        try:
            # Prefers AF_INET, the smaller number, if a host has both families.
            family = min(info[0] for info in socket.getaddrinfo(host, port))
            server = socket.create_server(("", port), family=family)
        except OSError as error:
            raise InputError(
                f"the environment variable TF_CONFIG: this worker, {self.own}, cannot "
                f"listen at its port ({error.strerror}); stop the program that uses "
                "it, or set a different port in the TF_CONFIG of all workers."
            ) from error
        server.settimeout(0.1)
        ended = threading.Event()

        def accept():
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    server.accept()[0].close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            server.close()


class _Wrong(Exception):
    """An error in TF_CONFIG."""


def _object(value: Any, what: str, *keys: str) -> Any:
    """Returns a JSON object, or the value under its key; `what` names the object."""
    if not isinstance(value, dict):
        raise _Wrong(f"{what} is {_shown(value)}, which is not a JSON object")
    for key in keys:
        if key not in value:
            raise _Wrong(f"{what} has no '{key}'")
        value = value[key]
    return value


def _addresses(kind: str, addresses: Any) -> Sequence[str]:
    """Checks the addresses of the workers of a kind and returns them."""
    if not isinstance(addresses, list) or not addresses:
        raise _Wrong(f"the cluster's '{kind}' is {_shown(addresses)}, which is not a "
                     "list of addresses")
    for address in addresses:
        host, _, port = address.rpartition(":") if isinstance(address, str) else (
            "", "", "")
        if not host or not (port.isdecimal() and 0 < int(port[:6]) < 65536):
            raise _Wrong(f"the cluster's '{kind}' has {_shown(address)}, which is not "
                         "of the form host:port")
    return addresses


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_known(address: str) -> bool:
    try:
        return bool(socket.getaddrinfo(*_host_and_port(address)))
    except (OSError, UnicodeError):
        return False


def reachable(address: str, seconds: float) -> bool:
    """Returns True if a program listens at "host:port"."""
    try:
        socket.create_connection(_host_and_port(address), seconds).close()
    except (OSError, ValueError):
        return False
    return True
