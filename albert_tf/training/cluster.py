"""The workers that TF_CONFIG names: checked, and waited for with a line on the log.

TensorFlow waits in silence for workers that never come, and trains alone where it finds
no cluster. It is not imported here.
"""

import contextlib
import json
import os
import socket
import threading
import time
from typing import Any, Iterator, NamedTuple, Sequence

from absl import logging

from albert_tf.errors import InputError

_EXAMPLE = ('{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}')
SECONDS_BETWEEN_LINES = 5.0
# A cluster's name service may learn of its machines after they have started.
_PATIENCE = 30.0


class Cluster(NamedTuple):
    """Workers as "host:port"; a chief is one of them."""

    own: str
    others: tuple[str, ...]

    @classmethod
    def from_environment(cls) -> "Cluster":
        """As the environment variable TF_CONFIG says."""
        text = os.environ.get("TF_CONFIG", "")
        if not text:
            raise InputError(
                "--distribution_strategy=multi_worker_mirrored needs the environment "
                "variable TF_CONFIG with the cluster's workers and this one's index, "
                f"such as {_EXAMPLE}.")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the environment variable TF_CONFIG is not JSON ({error}); it holds "
                f"the cluster's workers and this one's index, as {_EXAMPLE}."
            ) from error
        try:
            return cls._parsed(value)
        except _Wrong as error:
            raise InputError(f"the environment variable TF_CONFIG: {error}; give "
                             f"something like {_EXAMPLE}.") from error

    @classmethod
    def _parsed(cls, value: Any) -> "Cluster":
        cluster = _object(_object(value, "it", "cluster"), "its cluster")
        task = _object(_object(value, "it", "task"), "its task")
        addresses = {kind: _addresses(kind, found) for kind, found in cluster.items()}
        kind, index = task.get("type"), task.get("index")
        workers = {name: addresses[name] for name in ("chief", "worker")
                   if name in addresses}
        if not isinstance(kind, str) or kind not in workers:
            raise _Wrong(f"the task's type is {json.dumps(kind)}, which is none of the "
                         f"cluster's ({', '.join(workers) or 'it has no worker'})")
        if isinstance(index, str) and index.isdecimal():
            index = int(index)
        if type(index) is not int or not 0 <= index < len(workers[kind]):
            raise _Wrong(f"the task's index is {json.dumps(index)}, but the cluster's "
                         f"{kind}s go from 0 to {len(workers[kind]) - 1}")
        if len(workers.get("chief", ())) > 1:
            raise _Wrong("the cluster has several chiefs")
        every = [address for found in workers.values() for address in found]
        for address in every:
            if every.count(address) > 1:
                raise _Wrong(f"the cluster has {address} more than once")
        own = workers[kind][index]
        return cls(own, tuple(address for address in every if address != own))

    @property
    def size(self) -> int:
        return 1 + len(self.others)

    def resolve(self, patience: float = _PATIENCE,
                pause: float = SECONDS_BETWEEN_LINES) -> None:
        """Refuses host names that remain unknown for `patience` seconds."""
        end = time.monotonic() + patience
        while unknown := [address for address in (self.own, *self.others)
                          if not _is_known(address)]:
            names = ", ".join(unknown)
            if time.monotonic() > end:
                raise InputError(
                    f"the environment variable TF_CONFIG: no address is known for the "
                    f"host of {names}; correct the name, or start that machine.")
            logging.info("Waiting for %s of TF_CONFIG: no address is known for the "
                         "host.", names)
            time.sleep(pause)

    def meet(self, pause: float = SECONDS_BETWEEN_LINES) -> None:
        """Returns once every other worker has started, and says every few seconds who
        is missing.

        TensorFlow waits for them, too, but deaf to all signals and in silence. So each
        worker listens at its own port until it has reached the others at theirs, where
        by then TensorFlow may listen.
        """
        missing = set(self.others)
        next_line = time.monotonic() + pause
        with self._listening():
            while missing := {other for other in missing if not reachable(other, 2.0)}:
                if time.monotonic() >= next_line:
                    logging.info(
                        "Waiting for %d of the %d workers of TF_CONFIG: %s.",
                        len(missing), self.size, ", ".join(sorted(missing)))
                    next_line = time.monotonic() + pause
                time.sleep(0.2)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        host, port = _host_and_port(self.own)
        try:
            # AF_INET comes first where a host has both.
            family = min(info[0] for info in socket.getaddrinfo(host, port))
            server = socket.create_server(("", port), family=family)
        except OSError as error:
            raise InputError(
                f"the environment variable TF_CONFIG: this worker, {self.own}, cannot "
                f"listen at its port ({error.strerror}); stop the program that does, "
                "or give another port to all workers.") from error
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
    """What is wrong with TF_CONFIG."""


def _object(value: Any, what: str, *keys: str) -> Any:
    """A JSON object, or what it holds under a key."""
    if not isinstance(value, dict):
        raise _Wrong(f"{what} is {_shown(value)} and no JSON object")
    for key in keys:
        if key not in value:
            raise _Wrong(f"{what} has no '{key}'")
        value = value[key]
    return value


def _addresses(kind: str, found: Any) -> Sequence[str]:
    if not isinstance(found, list) or not found:
        raise _Wrong(f"the cluster's '{kind}' is {_shown(found)} and no list of "
                     "addresses")
    for address in found:
        host, _, port = address.rpartition(":") if isinstance(address, str) else (
            "", "", "")
        if not host or not (port.isdecimal() and 0 < int(port[:6]) < 65536):
            raise _Wrong(f"the cluster's '{kind}' has {_shown(address)}, which is not "
                         "of the form host:port")
    return found


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
    """Whether a program listens at "host:port"."""
    try:
        socket.create_connection(_host_and_port(address), seconds).close()
    except (OSError, ValueError):
        return False
    return True
