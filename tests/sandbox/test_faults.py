"""Workers that die, hang and lie cost their own episodes; nothing hangs and nothing leaks."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox import pools, toys
from sandbox.pools import PROCESS_POOLS, Client, played_directly

from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import TooManyFailures

pytestmark = pytest.mark.usefixtures("watchdog")
NONSENSE = (
    "noise", "huge", "text", "list", "deep header", "no kind", "number", "count", "kind", "ready",
    "state", "empty", "bytes", "deep", "types", "infinite", "integer", "NaN", "surrogate", "long",
)  # fmt: skip


def open_episodes(pool, count, **task):
    """A client with that many episodes, each one step along."""
    client = Client(pool)
    for episode in range(count):
        client.reset(episode, seed=episode, **task)
        client.step(episode, "a")
    return client


def check_alive(client, episodes):
    """Every one of these goes on as if nothing had happened."""
    for episode in episodes:
        turn = client.step(episode, "b", seat=1).turn
        assert turn == played_directly("ab", seed=episode)[-1]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("exit 9", "worker_died", "exit code 9"),
        ("exit 0", "worker_died", "exit code 0"),
        ("kill 11", "worker_died", "killed by SIGSEGV"),
        ("kill 9", "worker_died", "killed by SIGKILL (out of memory, most likely)"),
        ("interrupt", "worker_died", "killed by SIGINT"),
        ("shut", "worker_died", "exit code 1"),
        ("hang", "timeout", "a step took longer than 2 s"),
        ("send half", "timeout", "a step took longer than 2 s"),
        ("send noise", "bad_answer", "a worker sent no message"),
    ],
)
def test_a_fault_costs_its_own_episode_alone(process_pool, text, kind, words):
    seconds = 2.0 if kind == "timeout" else 30.0
    with process_pool(toys.Commanded, workers=1, limits=Limits(seconds=seconds)) as pool:
        client = open_episodes(pool, 4)
        waiting = client.send(0, "step", {1: "b"})  # waits behind the culprit
        began = time.monotonic()
        failure = client.step(2, text, seat=1).failure
        assert failure.kind == kind
        assert words in failure.message
        assert time.monotonic() - began < 10
        assert client.receive(waiting).turn == played_directly("ab")[-1]
        check_alive(client, (1, 3))
        assert client.step(2, "a").failure.kind == "lost"
        names = {"worker_died": "deaths", "timeout": "timeouts", "bad_answer": "bad_answers"}
        counters = pool.counters
        assert {name: counters[name] for name in names.values()} == {
            name: int(name == names[kind]) for name in names.values()
        }
        assert (counters["restarts"], counters["replayed"]) == (1, 3)


def test_nonsense_is_a_bad_answer_and_ends_the_worker(process_pool):
    limits = Limits(seconds=30.0)
    with process_pool(toys.Commanded, workers=1, limits=limits, max_restarts=100) as pool:
        client = Client(pool)
        for episode, which in enumerate(NONSENSE):
            client.reset(1000 + episode, seed=1000 + episode)
            client.step(1000 + episode, "a")
            client.reset(episode)
            failure = client.step(episode, f"send {which}").failure
            assert failure is not None, which
            assert (failure.kind, "a worker sent" in failure.message) == ("bad_answer", True), which
            check_alive(client, [1000 + episode])
            client.send(1000 + episode, "close")
        assert pool.counters["bad_answers"] == pool.counters["restarts"] == len(NONSENSE)


def test_an_interrupt_is_for_the_parent(process_pool):
    with process_pool(toys.Commanded, workers=1) as pool:
        client = open_episodes(pool, 1)
        text = f"kill {int(signal.SIGINT)}"
        assert client.step(0, text, seat=1).turn == played_directly(["a", text])[-1]


def test_processor_time_is_counted_by_call(process_pool):
    limits = Limits(seconds=60.0, cpu_seconds=1.0)
    with process_pool(toys.Commanded, workers=1, limits=limits) as pool:
        client = open_episodes(pool, 4, steps=9)
        for seat in (1, 0, 1):
            assert client.step(0, "spin 0.6", seat).turn is not None
        failure = client.step(1, "spin 30", seat=1).failure
        assert failure.kind == "worker_died"
        assert "SIGXCPU (it used up its processor time)" in failure.message


@pytest.mark.parametrize(
    ("text", "kind", "words"), [("fork", "worker_died", "exit code 7"), ("hang", "timeout", "2 s")]
)
def test_children_neither_hide_an_end_nor_outlive_it(process_pool, text, kind, words):
    limits = Limits(seconds=2.0 if kind == "timeout" else 30.0, processes=2)
    with process_pool(toys.Commanded, workers=1, limits=limits) as pool:
        client = open_episodes(pool, 2)
        client.step(0, "child pid", seat=1)
        before = pools.processes_of_workers(os.getpid())
        began = time.monotonic()
        failure = client.step(0, text).failure
        assert (failure.kind, words in failure.message) == (kind, True)
        assert time.monotonic() - began < 10
        # By now not even zombies are left.
        assert not any(Path("/proc", str(pid)).exists() for pid in before)
        check_alive(client, [1])


def test_the_last_death_ends_the_pool(worker_pool):
    with worker_pool(toys.Commanded, workers=1, max_restarts=3) as pool:
        client = open_episodes(pool, 5)
        waiting = []
        for episode in range(4):
            if episode == 3:
                waiting = [client.send(4, "step", {1: "hang 0.2"}), client.send(3, "snapshot")]
            failure = client.step(episode, "exit 9", seat=1).failure
            assert failure.kind == "worker_died"
            assert "exit code 9" in failure.message
        assert client.receive(waiting[0]).turn is not None
        assert client.receive(waiting[1]).state is not None
        with pytest.raises(TooManyFailures, match=r"each of 1 was replaced 3 times; .*exit code 9"):
            client.step(4, "b", seat=1)
        client.send(4, "close")  # asks for nothing
        assert (pool.counters["deaths"], pool.counters["restarts"]) == (4, 3)


def test_open_calls_fail_with_the_last_worker(process_pool):
    with process_pool(toys.Commanded, workers=1, max_restarts=0) as pool:
        client = open_episodes(pool, 3)
        numbers = [client.send(episode, "step", {1: "exit 5"}) for episode in range(3)]
        failures = [client.receive(number).failure for number in numbers]
        assert [failure.kind for failure in failures] == ["worker_died"] * 3
        assert "no worker is left" not in failures[0].message
        assert all("no worker is left" in failure.message for failure in failures[1:])


def test_episodes_move_to_workers_that_are_left(worker_pool):
    with worker_pool(toys.Commanded, workers=2, max_restarts=0) as pool:
        client = open_episodes(pool, 6)
        assert client.step(0, "exit 9", seat=1).failure.kind == "worker_died"
        check_alive(client, range(1, 6))
        assert pool.counters["replayed"] == 2
        assert pool.counters["restarts"] == 0


def test_files_go_with_their_worker(process_pool, place):
    with process_pool(toys.Commanded, workers=1) as pool:
        client = open_episodes(pool, 2)
        client.step(0, "write note", seat=1)
        assert len(list(place.rglob("note"))) == 1
        client.step(1, "exit 9", seat=1)
        assert client.step(0, "c").turn.done
        assert len(list(place.glob("*/worker-*"))) == 1


def test_restored_episodes_are_rebuilt_too(worker_pool):
    with worker_pool(toys.Commanded, workers=1) as pool:
        client = open_episodes(pool, 2)
        state = client.ask(1, "snapshot").state
        client.ask(2, "restore", state)
        assert client.step(0, "exit 9", seat=1).failure.kind == "worker_died"
        for episode in (1, 2):
            assert client.step(episode, "b", 1).turn == played_directly("ab", seed=1)[-1]


def test_an_episode_that_cannot_be_rebuilt_is_lost(process_pool):
    with process_pool(toys.Wilful, workers=1) as pool:
        client = open_episodes(pool, 3)
        waiting = client.send(1, "step", {1: "b"}), client.send(1, "snapshot")
        assert client.step(0, "exit 9", seat=1).failure.kind == "worker_died"
        failures = [client.receive(number).failure for number in waiting]
        failures.append(client.step(2, "b", seat=1).failure)
        if pool.counters["ignored_answers"] == 0:
            assert [failure.kind for failure in failures] == ["lost"] * 3
        assert "call 0 of its history, a reset, gave another turn" in failures[-1].message
        assert client.reset(2).turn is not None


def test_a_rebuild_that_ends_the_worker_loses_that_episode_alone(process_pool, tmp_path):
    limits = Limits(seconds=10.0, writable=(str(tmp_path),))
    with process_pool(toys.OncePerPlace, workers=1, limits=limits) as pool:
        client = open_episodes(pool, 3)
        client.step(1, f"second {tmp_path}", seat=1)  # harmless but in a rebuild
        assert client.step(0, "exit 9", seat=1).failure.kind == "worker_died"
        check_alive(client, [2])
        failure = client.step(1, "c").failure
        assert failure.kind == "lost"
        assert "exit code 3" in failure.message


def test_a_call_is_tried_again_where_that_is_allowed(worker_pool, tmp_path):
    limits = Limits(seconds=2.0, writable=(str(tmp_path),))
    with worker_pool(toys.OncePerPlace, workers=2, limits=limits, retries=1) as pool:
        client = open_episodes(pool, 2)
        text = f"once {tmp_path}"
        turn = client.step(0, text, seat=1).turn  # late, and then twice, and one of another call
        assert turn == played_directly(["a", text])[-1]
        check_alive(client, [1])
        assert client.step(0, "c").turn.done
        assert (pool.counters["timeouts"], pool.counters["ignored_answers"]) == (1, 2)


def test_tries_are_bounded(process_pool):
    with process_pool(toys.Commanded, workers=1, retries=2, max_restarts=5) as pool:
        client = open_episodes(pool, 2)
        failure = client.step(0, "exit 9", seat=1).failure
        assert (failure.kind, pool.counters["deaths"]) == ("worker_died", 3)
        assert client.reset(0).turn is not None
        check_alive(client, [1])


def test_answers_come_once_however_often_they_are_sent(worker_pool):
    with worker_pool(toys.Commanded, workers=1) as pool:
        client = open_episodes(pool, 2)
        assert client.step(0, "twice", 1).turn == played_directly(["a", "twice"])[-1]
        assert client.step(1, "stale", 1).turn == played_directly(["a", "stale"], seed=1)[-1]
        assert client.step(0, "c").turn.done
        client.collect(0.1)
        assert pool.counters["ignored_answers"] == 2


def test_a_hang_at_the_start_of_an_episode_times_out(process_pool):
    with process_pool(toys.SlowToReset, workers=1, limits=Limits(seconds=2.0)) as pool:
        client = Client(pool)
        assert client.reset(1, sleep=100).failure.kind == "timeout"
        assert client.reset(2, sleep=0).turn is not None


def test_time_in_the_queue_does_not_count(process_pool):
    with process_pool(toys.Commanded, workers=1, limits=Limits(seconds=2.0)) as pool:
        client = open_episodes(pool, 4)
        numbers = [client.send(episode, "step", {1: "hang 0.8"}) for episode in range(4)]
        assert all(client.receive(number).turn is not None for number in numbers)


def test_closing_does_not_wait_for_a_call(process_pool, place):
    pool = process_pool(toys.Commanded, workers=2)
    client = open_episodes(pool, 2)
    number = client.send(0, "step", {1: "hang"})
    time.sleep(0.05)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 10
    assert client.receive(number).failure.kind == "lost"
    assert pools.processes_of_workers(os.getpid()) == set()
    assert list(place.iterdir()) == []


def test_an_exception_in_the_block_ends_the_workers(process_pool, place):
    with pytest.raises(ZeroDivisionError), process_pool(toys.Commanded) as pool:
        open_episodes(pool, 4)
        1 / 0  # noqa: B018
    assert pools.processes_of_workers(os.getpid()) == set()
    assert list(place.iterdir()) == []


PARENT = """
import sys, time
sys.path[:] = {path!r}
from sandbox import toys
from sandbox.pools import Client, PROCESS_POOLS
from sepo_jax.sandbox.isolation import Limits
limits = Limits(seconds=60.0, processes={processes})
client = Client(PROCESS_POOLS[{name!r}](toys.Commanded, workers=2, limits=limits))
for episode in range(4):
    client.reset(episode)
    client.step(episode, "write note")
if {processes}:
    client.step(0, "child pid", seat=1)
client.send(1, "step", {{1: {last!r}}})
time.sleep(0.2)
print("ready", flush=True)
{end}
"""
ENDS = {"exit": "sys.exit(0)", "raise": "1 / 0", "os._exit": "import os; os._exit(0)"}


@contextlib.contextmanager
def ended_parent(place, name, end, processes=0, last="hang"):
    """A process with a pool is ended in the midst of a call; the ids of its workers."""
    program = PARENT.format(
        path=sys.path, name=name, processes=processes, last=last,
        end=ENDS.get(end, "time.sleep(1000)"),
    )  # fmt: skip
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(place)},
    )  # fmt: skip
    try:
        assert parent.stdout.readline() == "ready\n", parent.stderr.read()
        workers = pools.processes_of_workers(parent.pid)
        if end not in ENDS:
            assert len(workers) >= 2 + bool(processes)
            parent.send_signal(getattr(signal, end))
        parent.wait(timeout=10)
        yield workers
    finally:
        parent.kill()
        parent.communicate()


@pytest.mark.parametrize("processes", [0, 4])
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "SIGINT", *ENDS])
@pytest.mark.parametrize("name", PROCESS_POOLS)
def test_nothing_outlives_the_parent(name, end, processes, place):
    with ended_parent(place, name, end, processes) as workers:
        assert pools.wait_for(lambda: not any(map(pools.is_running, workers)), 1.5)
    assert list(place.rglob("note")) == []
    if end not in ("exit", "raise", "SIGINT"):  # the next pool finds what the dead one left
        pools.process_pool(toys.Toy).close()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", PROCESS_POOLS)
def test_a_worker_that_lets_no_thread_run_ends_too(name, place):
    with ended_parent(place, name, "SIGKILL", last="clutch") as workers:
        assert pools.wait_for(lambda: not any(map(pools.is_running, workers)), 3)
