"""Every kind of pool, and a client that asks one question at a time."""

import contextlib
import itertools
import signal
import time
from pathlib import Path

from sandbox.toys import Toy

from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import Call

PATIENT = Limits(seconds=30.0)


def process_pool(factory, *, workers=2, **options):
    return ProcessPool(factory, workers=workers, **({"limits": PATIENT} | options))


def ray_pool(factory, *, workers=2, **options):
    from sepo_jax.sandbox.ray_pool import RayPool

    return RayPool(factory, actors=1, workers_per_actor=workers, **({"limits": PATIENT} | options))


# Name: (factory, **options of workers) -> pool.
PROCESS_POOLS = {"processes": process_pool}
WORKER_POOLS = PROCESS_POOLS | {"ray": ray_pool}
POOLS = {"in_process": lambda factory, **_: InProcessPool(factory)} | WORKER_POOLS


@contextlib.contextmanager
def time_limit(seconds):
    """Raises TimeoutError in the main thread after so many seconds."""

    def ring(*_):
        raise TimeoutError(f"the test took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def played_directly(texts, seed=0, **task):
    """The turns of a toy without any pool."""
    toy = Toy(Path())
    turns = [toy.reset(task, seed)]
    return turns + [toy.step({i % 2: text}) for i, text in enumerate(texts)]


class Client:
    """Hands calls to a pool and keeps the answers by number.

    Attributes:
      answers: every answer taken, by the number of its call.
    """

    def __init__(self, pool, numbers=None):
        self.pool, self.numbers = pool, numbers or itertools.count(1)
        self.answers = {}

    def send(self, episode, kind, payload=None):
        number = next(self.numbers)
        self.pool.submit(Call(number, episode, kind, payload))
        return number

    def collect(self, seconds=0.0):
        """Takes what has arrived; no call may be answered twice."""
        self.pool.wait(seconds)
        for answer in self.pool.take():
            assert answer.number not in self.answers, f"{answer} answers a second time"
            self.answers[answer.number] = answer

    def receive(self, number, seconds=60.0):
        deadline = time.monotonic() + seconds
        while number not in self.answers:
            assert time.monotonic() < deadline, f"no answer to call {number} in {seconds} s"
            self.collect(0.05)
        return self.answers[number]

    def ask(self, episode, kind, payload=None, seconds=60.0):
        return self.receive(self.send(episode, kind, payload), seconds)

    def reset(self, episode, seed=0, **task):
        return self.ask(episode, "reset", (task, seed))

    def step(self, episode, text, seat=0, seconds=60.0):
        return self.ask(episode, "step", {seat: text}, seconds)

    def play(self, episode, texts, seed=0, **task):
        """The turns of an episode, from its reset to its close; seats take turns."""
        turns = [self.reset(episode, seed, **task).turn]
        turns += [self.step(episode, text, i % 2).turn for i, text in enumerate(texts)]
        self.send(episode, "close")
        return turns


def processes_of_workers(parent):
    """Ids of all processes below one, zombies included."""
    below, found = {parent}, set()
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    while below:
        below = {pid for pid, its in parents.items() if its in below}
        found |= below
    return found


def processes_named(token):
    """Ids of all running processes with a text among their arguments, whoever their parent is."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return {pid for pid in found if is_running(pid)}


def is_running(pid):
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
