"""What a Ray actor runs, without Ray."""

import os
import pickle
import signal
import sys
import time

import pytest
from sandbox import pools, toys
from sandbox.pools import played_directly

from sepo_jax.sandbox.frames import FrameReader, pack
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import SandboxError
from sepo_jax.sandbox.ray_actor import WorkerHost

pytestmark = pytest.mark.usefixtures("watchdog")


class Caller:
    """Tells a host of two workers what to do, and keeps its events."""

    def __init__(self, factory=toys.Commanded, **limits):
        limits = Limits(**({"seconds": 10.0} | limits))
        self.host = WorkerHost(pickle.dumps(factory), {}, sys.path, 2, limits)
        self.batches, self.counters = 0, {}
        self.events = []

    def command(self, worker, kind, body=b"", **more):
        return pack({"worker": worker, "kind": kind, **more}, body)

    def submit(self, *commands):
        self.host.submit(self.batches, b"".join(commands))
        self.batches += 1

    def call(self, worker, number, episode, kind, payload=None):
        return self.command(worker, kind, pickle.dumps(payload), number=number, episode=episode)

    def hear(self, worker, kind, seconds=20.0):
        """The next event of a worker and a kind."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events:
                if (event[0]["worker"], event[0]["kind"]) == (worker, kind):
                    self.events.remove(event)
                    return event
            assert time.monotonic() < deadline, f"no {kind} of worker {worker}: {self.events}"
            *events, (counters, _) = FrameReader().feed(self.host.take(0.1))
            assert counters.pop("kind") == "counters"
            self.events, self.counters = self.events + events, counters


@pytest.fixture
def caller(place):
    made = []

    def make(*args, **limits):
        made.append(Caller(*args, **limits))
        return made[-1]

    yield make
    for one in made:
        one.host.close()
    assert list(place.iterdir()) == []


def test_workers_serve_what_they_are_handed_in_order(caller):
    caller = caller()
    caller.submit(caller.command(1, "start"))
    caller.hear(1, "ready")
    # The second is handed over before the first is answered.
    caller.submit(
        caller.call(1, 7, 3, "reset", ({}, 3)),
        caller.call(1, 8, 4, "reset", ({}, 4)),
    )
    for number, seed in ((7, 3), (8, 4)):
        header, body = caller.hear(1, "reply")
        assert (header["number"], header["reply"]) == (number, "turn")
        assert body.decode() == played_directly("", seed=seed)[0].to_json()
    assert caller.counters == {"constructed": 2, "ignored_answers": 0}


def test_batches_are_carried_out_in_the_order_of_their_numbers(caller):
    caller = caller()
    caller.host.submit(1, caller.call(0, 1, 1, "reset", ({}, 0)))
    caller.host.submit(0, caller.command(0, "start"))
    assert caller.hear(0, "reply")[0]["number"] == 1


@pytest.mark.parametrize(
    ("text", "limits", "kind", "words"),
    [
        ("exit 3", {}, "worker_died", b"exit code 3"),
        ("hang", {"seconds": 0.5}, "timeout", b"a step took longer than 0.5 s"),
        ("send kind", {}, "bad_answer", b"a step was answered with 'applause'"),
    ],
)
def test_a_worker_that_ends_is_reported_with_its_kind(caller, text, limits, kind, words):
    caller = caller(**limits)
    caller.submit(caller.command(0, "start"), caller.call(0, 1, 1, "reset", ({}, 0)))
    caller.submit(caller.call(0, 2, 1, "step", {0: text}), caller.call(0, 3, 2, "reset", ({}, 1)))
    header, body = caller.hear(0, "died")
    assert (header["failure"], header["busy"]) == (kind, True)
    assert words in body
    # What it had been handed to go on with died with it, and so does what comes too late.
    caller.submit(caller.call(0, 4, 2, "reset", ({}, 0)))
    caller.submit(caller.command(0, "start"), caller.call(0, 5, 5, "reset", ({}, 0)))
    numbers = [caller.hear(0, "reply")[0]["number"] for _ in range(2)]
    assert numbers == [1, 5]


def test_a_worker_that_ends_by_itself_is_not_busy(caller):
    caller = caller()
    caller.submit(caller.command(0, "start"), caller.call(0, 1, 1, "reset", ({}, 0)))
    caller.hear(0, "reply")
    (worker,) = pools.processes_of_workers(os.getpid())
    os.kill(worker, signal.SIGKILL)
    header, body = caller.hear(0, "died")
    assert header["busy"] is False
    assert b"SIGKILL" in body


def test_a_closed_host_has_nothing_to_say(caller):
    host = caller().host
    host.close()
    with pytest.raises(SandboxError, match="has ended"):
        host.take(0.0)
