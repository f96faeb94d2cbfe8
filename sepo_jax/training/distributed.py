"""Several processes, one run: how they start, agree, and share what one of them holds.

The same command runs on every host. The episodes of a step are a function of config, seed and step
alone; each process plays its share of them, in sandboxes of its own, and all get all results. So
all hold the same forest and the same whole batch, and each feeds its own devices their shares of
it. Process 0 alone writes the run directory and reads checkpoints; the others get the restored
state from it, so no shared file system is needed.

In a run of one process every function here is local: nothing touches the network.
"""

import contextlib
import json
import os
import pickle
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..forest import bucket
from ..rollout import Share
from .roll_call import name_processes, refuse_loopback, roll_call
from .settings import differences

# The end of a run is a barrier of its own, so that processes leave together.
_SHUTDOWN_SECONDS = 30


def connect(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    from_environment: bool = False,
    limit: float = 300.0,
) -> None:
    """Joins the other processes of a run; to be called before anything touches a device.

    With `num_processes` 1, or with nothing given, it returns at once without any network use.
    Otherwise process 0 hears all the others (`roll_call`) before JAX connects them. Loopback is
    refused as coordinator where the launcher's environment names several machines, and accepted
    where it does not; see `roll_call.refuse_loopback` for what can be known.

    Args:
      coordinator: "host:port" of process 0.
      num_processes: how many processes the run has.
      process_id: which of them this is, from 0.
      from_environment: take what is not given from a Slurm, Open MPI, Kubernetes or Cloud TPU
        environment, as `jax.distributed.initialize` does.
      limit: seconds until a process that waits gives up.

    Raises:
      ValueError: something is missing or impossible; what, is named.
      TimeoutError: not all came in time; who is missing is named.
      ConnectionError: the coordinator's port is taken, or process 0 left.
    """
    if limit <= 0:
        raise ValueError(f"the limit for starting must be positive seconds, got {limit:g}")
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    given = {name: value for name, value in given.items() if value is not None}
    if (num_processes == 1 and not process_id) or not (given or from_environment):
        return
    if coordinator:
        refuse_loopback(coordinator)
    if from_environment and len(given) < 3:
        _initialize(coordinator, num_processes, process_id, limit)
        return
    missing = {"coordinator", "num_processes", "process_id"} - given.keys()
    if missing:
        raise ValueError(
            f"several processes need {', '.join(f'--{name}' for name in sorted(missing))} too, or "
            "--distributed alone on a cluster that JAX knows"
        )
    if not 0 <= process_id < num_processes:
        raise ValueError(
            f"--process_id must be 0 to {num_processes - 1} for --num_processes={num_processes}, "
            f"got {process_id}"
        )
    roll_call(coordinator, num_processes, process_id, limit)
    _initialize(coordinator, num_processes, process_id, limit)


def _initialize(coordinator, num_processes, process_id, limit: float) -> None:
    complete = None not in (coordinator, num_processes, process_id)
    # JAX would end the process by a signal at its own limit; ours comes first and says why.
    message = (
        f"JAX did not connect all processes within {limit:g} s. Start the same command on every "
        "host; with --coordinator, --num_processes and --process_id the missing ones are named"
    )
    with _end_after(limit, message):
        try:
            jax.distributed.initialize(
                coordinator,
                num_processes,
                process_id,
                cluster_detection_method="deactivate" if complete else None,
                initialization_timeout=int(limit) + 60,
                shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            )
        except ValueError as error:
            raise ValueError(
                "--distributed found no cluster in the environment that tells coordinator, number "
                f"of processes and process id ({error}); give --coordinator=host:port, "
                "--num_processes and --process_id"
            ) from error


@contextlib.contextmanager
def _end_after(limit: float, message: str) -> Iterator[None]:
    """Ends the process with exit code 2 and one line when its body takes longer than `limit`."""

    def end() -> None:
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_first() -> bool:
    """Whether this is process 0, the one that writes."""
    return jax.process_index() == 0


def rollout_share() -> Share:
    """This process's part of a rollout that all play together."""
    return Share(jax.process_index(), jax.process_count(), gather_objects)


def gather_objects(content: Any) -> list[Any]:
    """The `content` of every process, on every process, in their order; it must pickle."""
    if jax.process_count() == 1:
        return [content]
    return [pickle.loads(each) for each in gather_bytes(pickle.dumps(content))]


def gather_texts(text: str) -> list[str]:
    """The `text` of every process, on every process, in their order."""
    return [each.decode() for each in gather_bytes(text.encode())]


def gather_bytes(content: bytes) -> list[bytes]:
    """The `content` of every process, on every process, in their order."""
    if jax.process_count() == 1:
        return [content]
    own = np.frombuffer(content, np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(own)))
    # A program is compiled for each size, so there are few.
    padded = np.zeros(bucket(max(int(lengths.max()), 1)), np.uint8)
    padded[: len(own)] = own
    everyone = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:length].tobytes() for row, length in zip(everyone, lengths, strict=True)]


def together(function: Callable[[], Any]) -> Any:
    """`function()`, unless it failed on some process: then every process stops.

    Raises:
      ValueError, OSError: what `function` raised here.
      ValueError: it failed elsewhere only; the process is named with its error.
    """
    problem, result = None, None
    try:
        result = function()
    except (ValueError, OSError) as error:
        problem = error
    texts = gather_texts(str(problem) if problem else "")
    if problem is not None:
        raise problem
    for process, text in enumerate(texts):
        if text:
            raise ValueError(f"process {process} stopped: {text}")
    return result


def check_same_config(config: Mapping) -> None:
    """ValueError on every process where the configs of some differ from process 0's.

    Args:
      config: nested mapping of JSON values; differing fields are listed with both values.
    """
    configs = gather_texts(json.dumps(config, sort_keys=True, default=list))
    wrong = [process for process, other in enumerate(configs) if other != configs[0]]
    if not wrong:
        return
    changed = differences(json.loads(configs[0]), json.loads(configs[wrong[0]]))
    lines = "".join(f"\n  {key}: {left!r} -> {right!r}" for key, (left, right) in changed.items())
    raise ValueError(
        f"{name_processes(wrong)} of {len(configs)} started with another config than process 0 "
        f"(process 0 -> process {wrong[0]}):{lines}\nGive every process the same command."
    )


def check_same_data(tree: Any, what: str) -> None:
    """ValueError on every process where the arrays of some differ from process 0's, bit for bit.

    A collective over shares of different batches would return wrong numbers or never return.

    Args:
      tree: arrays that all processes made for themselves.
      what: their name in the message.
    """
    if jax.process_count() == 1:
        return
    digest = 0
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest = zlib.crc32(f"{array.dtype}{array.shape}".encode(), digest)
        digest = zlib.crc32(array.reshape(-1).view(np.uint8), digest)
    digests = multihost_utils.process_allgather(np.uint32(digest))
    wrong = np.flatnonzero(digests != digests[0]).tolist()
    if wrong:
        raise ValueError(
            f"{name_processes(wrong)} made another {what} than process 0. All hosts need the same "
            "hardware, packages and policy files"
        )


def from_first(tree: Any) -> Any:
    """Process 0's arrays on every process, as numpy, bit for bit; the same tree everywhere."""
    if jax.process_count() == 1:
        return tree

    def share(leaf):
        array = np.ascontiguousarray(leaf)
        # Bytes, since a sum with zeros would turn -0.0 into 0.0.
        shared = multihost_utils.broadcast_one_to_all(array.reshape(-1).view(np.uint8))
        return np.asarray(shared).view(array.dtype).reshape(np.shape(leaf)).copy()

    return jax.tree.map(share, tree)


def barrier(name: str) -> None:
    """Returns when all processes have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
