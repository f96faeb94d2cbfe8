"""This process's connection to a Ray cluster, shared by all pools that use it."""

import contextlib
import os
import secrets
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from sepo_jax.sandbox.scratch import Scratch

_lock = threading.Lock()
_users = 0
_is_own = False  # whether the cluster was started for these pools
_owned = contextlib.ExitStack()  # what the first of these pools has started


def import_ray() -> ModuleType:
    """Ray; raises ImportError with what to install."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "RayPool needs Ray, which is not installed: pip install 'sepo_jax[ray]'"
        ) from error
    return ray


def connect(address: str | None, actors: int) -> bool:
    """Joins a cluster for one more pool, or starts one on this machine.

    A connection that this process has already is used as it is.

    Args:
      address: of a running cluster, or "auto" to find it; None for RAY_ADDRESS, and where that is
        not set for a cluster of this process alone.
      actors: how many a cluster that is started should have at hand.

    Returns:
      Whether the cluster belongs to this process alone.

    Raises:
      ValueError: this process is connected to another cluster.
      ConnectionError: nothing runs at that address.
    """
    global _users, _is_own
    ray = import_ray()
    with _lock:
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS")
            _start(ray, address, actors)
            _is_own = address is None
        elif address not in (None, "auto"):
            present = ray.get_runtime_context().gcs_address
            if address != present:
                raise ValueError(
                    f"this process is connected to the Ray cluster at {present}, and can have no "
                    f"other at {address}: leave the address out, or ray.shutdown() first"
                )
        _users += 1
        return _is_own


def disconnect() -> None:
    """Leaves the cluster for one pool; the last one ends what the first has started."""
    global _users, _is_own
    with _lock:
        _users -= 1
        if _users == 0:
            _is_own = False
            _owned.close()


def _start(ray: ModuleType, address: str | None, actors: int) -> None:
    options: dict[str, Any] = {"address": address}
    with contextlib.ExitStack() as stack:
        if address is None:
            # In the environment rather than Ray's file at home: workers get no secret of the
            # environment, but can read files.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            options = {
                "address": "local",
                "num_cpus": actors,
                "include_dashboard": False,
                # By default Ray lowers the priority of workers, which starve beside a driver then.
                "_system_config": {"worker_niceness": 0},
            }
            if "RAY_TMPDIR" not in os.environ:
                options["_temp_dir"] = str(stack.enter_context(Scratch()).path)
        else:
            _check_address(address)
        stack.callback(ray.shutdown)
        with _own_signals(), warnings.catch_warnings():
            # What Ray forks becomes another program at once, which threads do not make unsafe.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            ray.init(**options, logging_level="ERROR")
        _owned.push(stack.pop_all())


def _check_address(address: str) -> None:
    """Raises ConnectionError where nothing listens; Ray itself tries for more than a minute."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return  # "auto", or for Ray to understand
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}): start one there with `ray start "
            "--head`, or leave the address out for one on this machine"
        ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this process's answer to SIGTERM, which Ray would replace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
