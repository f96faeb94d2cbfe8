"""Who is there: the processes of a run find each other before JAX waits for them.

JAX ends a process that waits too long for the others without saying which are missing. So process 0
listens at the coordinator's address first, hears every other process once, and tells all whether
the run is complete or who is missing. JAX takes over the same port afterwards.
"""

import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterable

_LONGEST_LINE = 4096
_RETRY_SECONDS = 0.2
_GRACE_SECONDS = 5.0


def roll_call(coordinator: str, num_processes: int, process_id: int, limit: float) -> None:
    """Returns on every process once all of them have called.

    Args:
      coordinator: "host:port" of process 0, reachable from all.
      num_processes: how many there are.
      process_id: which one this is, from 0.
      limit: seconds to wait.

    Raises:
      TimeoutError: some did not call in time; they are named on every process that did.
      ConnectionError: the port is taken, or process 0 went away.
      ValueError: two processes have one number, or they disagree about how many there are.
    """
    if process_id == 0:
        _listen(coordinator, num_processes, limit)
    else:
        _call(coordinator, num_processes, process_id, limit)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'coordinator must be "host:port" of process 0, got {address!r}')
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether `host` is a name or address by which a machine reaches itself alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_loopback(coordinator: str, environment=os.environ) -> None:
    """ValueError for a loopback coordinator in a run that is known to span several machines.

    A process sees its own machine only, so what can be known at once is what the launcher wrote
    into its environment (Slurm, Open MPI, Cloud TPU). Without such a word loopback is accepted:
    whoever reaches a loopback coordinator runs beside it, so a roll call that completes proves that
    all processes share one machine, and one that does not ends in a message that says so.
    """
    several = several_machines(environment)
    if several and is_loopback(split_address(coordinator)[0]):
        raise ValueError(
            f"coordinator {coordinator} is this machine for every machine, but there are several "
            f"({several}); give the address by which the others reach process 0"
        )


def several_machines(environment) -> str:
    """The launcher's variable that names more than one machine, "" where none does."""
    if environment.get("SLURM_STEP_NUM_NODES", "1") not in ("", "1"):
        return f"SLURM_STEP_NUM_NODES={environment['SLURM_STEP_NUM_NODES']}"
    everywhere = environment.get("OMPI_COMM_WORLD_SIZE")
    here = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", everywhere)
    if everywhere != here:
        return f"OMPI_COMM_WORLD_SIZE={everywhere}, of which {here} here"
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        hosts = {item.split(":")[0] for item in environment.get(name, "").split(",") if item}
        if len(hosts) > 1:
            return f"{name} lists {len(hosts)}"
    return ""


def _listen(coordinator: str, num_processes: int, limit: float) -> None:
    deadline = time.monotonic() + limit
    port = split_address(coordinator)[1]
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise ConnectionError(
            f"process 0 cannot listen on port {port} of coordinator {coordinator} "
            f"({error.strerror}); choose a free port"
        ) from error
    callers: dict[int, socket.socket] = {}
    problem: Exception | None = None
    with server:
        while len(callers) < num_processes - 1 and problem is None:
            server.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                connection, address = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, num_processes)) - callers.keys())
                problem = TimeoutError(
                    f"{name_processes(missing)} of {num_processes} missing: no word at "
                    f"{coordinator} within {limit:g} s. Start the same command on every host, with "
                    f"--process_id=0 to {num_processes - 1}{_hint(coordinator)}"
                )
                continue
            hello = _read(connection)
            problem = _admit(hello, callers, num_processes, connection, address[0])
    # The listening socket is closed by here: whoever gets the verdict turns to JAX's own.
    for connection in callers.values():
        _send(connection, {"problem": str(problem or ""), "kind": type(problem).__name__})
        _read(connection)  # the caller hangs up first, which leaves the port free for JAX
        connection.close()
    if problem is not None:
        raise problem


def _admit(hello, callers, num_processes, connection, address) -> Exception | None:
    """Notes a caller; the reason to stop when it does not fit. Strangers are hung up on."""
    process, of = (hello.get(key) if isinstance(hello, dict) else None for key in ("process", "of"))
    if not (isinstance(process, int) and isinstance(of, int)):
        connection.close()
        return None
    if process in callers:
        _send(connection, {"problem": f"--process_id={process} is taken", "kind": "ValueError"})
        return ValueError(f"two processes have --process_id={process}, one of them at {address}")
    callers[process] = connection
    if of != num_processes:
        return ValueError(f"process {process} has --num_processes={of}, process 0 {num_processes}")
    return None


def _call(coordinator: str, num_processes: int, process_id: int, limit: float) -> None:
    connection = _reach(coordinator, num_processes, process_id, limit)
    with connection:
        _send(connection, {"process": process_id, "of": num_processes})
        # Process 0 may have started later; its own limit decides.
        verdict = _read(connection, limit + _GRACE_SECONDS)
    if not isinstance(verdict, dict) or "problem" not in verdict:
        raise ConnectionError(
            f"whoever listens at coordinator {coordinator} ended the roll call; see process 0's "
            "output, or choose another port"
        )
    if verdict["problem"]:
        kind = {"TimeoutError": TimeoutError}.get(verdict["kind"], ValueError)
        raise kind(verdict["problem"])


def _reach(coordinator: str, num_processes: int, process_id: int, limit: float) -> socket.socket:
    deadline = time.monotonic() + limit
    reason = "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection(split_address(coordinator), timeout=remaining)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            # A port nobody listens at may be given to the caller itself.
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()
        time.sleep(min(_RETRY_SECONDS, max(deadline - time.monotonic(), 0.0)))
    raise TimeoutError(
        f"process 0 of {num_processes} missing: process {process_id} did not reach it at "
        f"{coordinator} within {limit:g} s ({reason}){_hint(coordinator)}"
    )


def _send(connection: socket.socket, content: dict) -> None:
    try:
        connection.sendall(json.dumps(content).encode() + b"\n")
    except OSError:
        return  # the other side is gone and will say so itself


def _read(connection: socket.socket, limit: float = 1.0):
    """One JSON line, None where none comes."""
    connection.settimeout(limit)
    try:
        with connection.makefile("rb") as file:
            return json.loads(file.readline(_LONGEST_LINE))
    except (OSError, ValueError):
        return None


def _hint(coordinator: str) -> str:
    if is_loopback(split_address(coordinator)[0]):
        return ". That address reaches processes of this machine only"
    return ""


def name_processes(numbers: Iterable[int]) -> str:
    """ "process 3" or "processes 3, 5"."""
    numbers = list(numbers)
    word = "process" if len(numbers) == 1 else "processes"
    return f"{word} {', '.join(map(str, numbers))}"
