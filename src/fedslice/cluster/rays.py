"""A crew on a Ray cluster: every worker and every shard is an actor (Moritz et al. 2018).

Ray is asked for nothing but processes, calls and objects: actors are not restarted by it, since
what they held would be gone; :mod:`fedslice.cluster.run` starts new ones and goes back to where all
agree.  Usage statistics are off, the dashboard is not started, and a cluster that is started here
listens on the loopback address alone.
"""

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedslice.cluster.alike import NAME
from fedslice.cluster.crew import Lost, check_sizes, sole
from fedslice.errors import InputError

PATIENCE = 60.0  # seconds in which a member must say that it is there
CURRENT = Path("/tmp/ray/ray_current_cluster")  # written by ray start
OFF = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end starts no second cluster
    "RAY_worker_niceness": "0",
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # no cluster but that of this machine


class Host:
    """What an actor runs: one object, called by name, in a process of its own, whose XLA divides
    its work among so many ``cores``."""

    def __init__(self, cores: int, kind: Callable[..., Any], *given: Any) -> None:
        os.environ[NAME] = str(cores)  # read when the first program runs
        self.own = kind(*given)

    def call(self, method: str, returns: int, *given: Any) -> Any:
        """Call a method; one result stands for itself."""
        result = getattr(self.own, method)(*given)
        return tuple(result) if returns > 1 else sole(result, method)


class Ray:
    """Processes of a Ray cluster; made by :func:`ray`."""

    def __init__(self, address: str | None, workers: int | None, shards: int, threads: int) -> None:
        if address == "auto" and not _running():
            address = None
        self.ray = _imported(alone=address is None)
        self.own = _connect(self.ray, address, (workers or 1) * threads)
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        self.workers = max(1, cores // threads) if workers is None else workers
        self.shards, self.threads = shards, threads
        check_sizes(self.workers, shards, threads)
        if self.workers * threads > cores:
            self.close()
            raise InputError(
                f"{self.workers} workers of {threads} threads want {self.workers * threads} cores,"
                f" this Ray cluster has {cores}: use fewer workers, or add machines to it"
            )

    def start(self, kind: Callable[..., Any], *given: Any, busy: bool, cores: int) -> Any:
        """An actor; Ray chooses the machine, spreading them."""
        if busy:
            self._await_cores()
        options = {"num_cpus": self.threads if busy else 0, "scheduling_strategy": "SPREAD"}
        made = self.ray.remote(Host).options(max_restarts=0, max_task_retries=0, **options)
        return made.remote(cores, kind, *given)

    def _await_cores(self) -> None:
        """Until there are cores for one more worker: those of one that has ended are free a moment
        later."""
        end = time.monotonic() + PATIENCE
        while self.ray.available_resources().get("CPU", 0) < self.threads:
            if time.monotonic() > end:
                raise InputError(
                    f"no {self.threads} cores of the Ray cluster have been free for"
                    f" {PATIENCE:.0f} s: close other runs on it (run.close()), or add machines"
                )
            time.sleep(0.05)

    def call(self, member: Any, method: str, *given: Any, returns: int = 1) -> list[Any]:
        """Promises are object references."""
        found = member.call.options(num_returns=returns).remote(method, returns, *given)
        return list(found) if returns > 1 else [found]

    def share(self, value: Any) -> Any:
        """In the object store of this machine, from which others fetch it once."""
        return self.ray.put(value)

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """Wait for them."""
        gone = self.ray.exceptions
        try:
            return list(self.ray.get(list(promises)))
        except (
            gone.RayActorError,
            gone.ObjectLostError,
            gone.WorkerCrashedError,
            gone.NodeDiedError,
        ) as error:
            raise Lost(str(error).splitlines()[0]) from error
        except gone.RayTaskError as error:
            if isinstance(error.cause, gone.RayActorError | gone.ObjectLostError):
                raise Lost(str(error.cause).splitlines()[0]) from error
            raise error.cause from None

    def alive(self, member: Any) -> bool:
        """Whether it says its number in time."""
        try:
            self.ray.get(member.call.remote("pid", 1), timeout=PATIENCE)
        except self.ray.exceptions.RayError:
            self.end(member)
            return False
        return True

    def end(self, member: Any) -> None:
        """End the actor's process, unless it ended with the cluster."""
        if self.ray.is_initialized():
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(member, no_restart=True)

    def close(self) -> None:
        """End the cluster, if it was started here."""
        if self.own and self.ray.is_initialized():
            self.own = False
            self.ray.shutdown()


def ray(
    address: str | None = None, *, workers: int | None = None, shards: int = 2, threads: int = 1
) -> Ray:
    """A crew on Ray.

    ``address``: None starts a cluster on this machine, for this process; ``"auto"`` takes the one
    that runs on this machine (``ray start``), or else does the same; ``"host:6379"`` is that of a
    cluster's head, of which this machine must be a part.

    ``workers`` (default: as many as there are cores, by ``threads``) have the clients' data and
    train; ``shards`` have the tables.  Neither changes a trained number.
    """
    return Ray(address, workers, shards, threads)


def _imported(alone: bool) -> Any:
    """Ray; ``alone`` on this machine, which it reads from the environment when it is imported."""
    for name, value in {**OFF, **(LOOPBACK if alone else {})}.items():
        os.environ.setdefault(name, value)
    try:
        import ray as library
    except ImportError as error:
        raise InputError("a cluster needs Ray: pip install 'fedslice[ray]'") from error
    return library


def _running() -> bool:
    """Whether this machine is part of a cluster that ``ray start`` made."""
    return "RAY_ADDRESS" in os.environ or CURRENT.exists()


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Ray ends a process that gets SIGTERM; one that wants to save first keeps its own way."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _connect(library: Any, address: str | None, cores: int) -> bool:
    """Join a cluster, or start one here; True if it was started."""
    if library.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings(), _own_handler():
        warnings.simplefilter("ignore")  # about its own coming versions
        if address is None:
            here = max(cores, len(os.sched_getaffinity(0)))
            library.init(num_cpus=here, include_dashboard=False, **quiet)
            return True
        try:
            library.init(address=address, **quiet)
        except (ConnectionError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster answers at {address}: is it running there (ray start --head), and"
                " is this machine a part of it (ray start --address=...)?"
            ) from error
    return False
