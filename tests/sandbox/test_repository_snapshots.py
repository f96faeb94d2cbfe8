"""Repositories to be repaired: what a snapshot keeps, and what workers leave behind."""

import os
import pickle
import signal
import time
from pathlib import Path

import pytest
from sandbox.elsewhere import result, start
from sandbox.pools import (
    Client,
    is_running,
    processes_of_workers,
    wait_for,
)
from sandbox.repositories import OWN, environments, oracle, play, said

from sepo_jax.domains.repository.tasks import RepairRules, edit_reply
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.repository import RepositoryEnvironment
from sepo_jax.sandbox.snapshots import content_of

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [300], indirect=True),
]
CART = {"repository": "cart", "variant": 1}
REPAIR = edit_reply("helper.py", "VALUE = 1", "VALUE = 2")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment for all tests of this module, each of which resets it."""
    found = environments(tmp_path_factory.mktemp("repository"))
    yield found
    found.close()


# Snapshots


def test_a_snapshot_brings_back_files_turns_and_git(environment, tmp_path):
    environment.reset(OWN, 0)
    environment.step({0: REPAIR})
    environment.step({0: "run: git commit -qam half; mkdir empty; chmod 400 helper.py"})
    kept = environment.snapshot()
    environment.step({0: "run: rm -r .git helper.py tests empty"})
    assert environment.step({0: "submit"}).rewards == {0: 0.0}
    other = environments(tmp_path)
    for each in (environment, other):
        each.restore(kept)
        assert content_of(each.snapshot()) == content_of(kept)
        told = said(each.step({0: "run: git log --format=%s; git status -s; ls -d empty; cat h*"}))
        assert told == "half\nInitial commit\nempty\nVALUE = 2"
        last = each.step({0: "submit"})
        assert last.rewards == {0: 1.0} and last.record["turns"] == 4
    other.close()


def resolved_elsewhere(snapshot: bytes, replies: list[str]) -> list:
    """What another process finds when it goes on from a snapshot."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        environment = environments(Path(scratch))
        environment.restore(snapshot)
        turns = [environment.step({0: reply}).to_json() for reply in replies]
        environment.close()
    return turns


def test_another_process_scores_a_snapshot_alike(environment):
    environment.reset(OWN, 0)
    environment.step({0: "run: echo x > new; git add new"})
    kept = environment.snapshot()
    replies = ["run: git diff HEAD; git stash -q; ls", REPAIR, "submit"]
    here = [environment.step({0: reply}).to_json() for reply in replies]
    assert result(start(resolved_elsewhere, kept, replies, hash_seed=5)) == here
    assert '"success": true' in here[-1]


def test_other_rules_refuse_a_snapshot(environment, tmp_path):
    environment.reset(OWN, 0)
    other = RepositoryEnvironment(tmp_path, RepairRules(turns=7))
    with pytest.raises(SnapshotRefused, match="version"):
        other.restore(environment.snapshot())


def test_equal_situations_have_equal_keys(environment):
    def key(*replies):
        turn = play(environment, OWN, replies)
        return turn.prompts[0].observation

    first = key("run: true", REPAIR)
    assert first == key("run: true", "run: true", REPAIR)
    assert len({first, key(REPAIR, "run: true"), key("run: true"), key("run: touch x")}) == 4


# Pools


def test_environments_of_workers_are_confined_twice_and_end_with_them(place):
    limits = Limits(seconds=60.0, processes=64)
    factory = pickle.loads(pickle.dumps(environments))
    token = f"sepo-worker-{os.getpid()}"
    before = processes_of_workers(os.getpid())
    with ProcessPool(factory, workers=1, limits=limits) as pool:
        client = Client(pool)
        for episode in (0, 1):
            client.ask(episode, "reset", (CART, 0))
        sleeper = f"python -c 'import time; time.sleep(300)' {token}"
        told = client.step(0, f"run: (setsid {sleeper} &) ; sleep 0.3; echo done").turn
        assert said(told) == "done"
        bomb = "run: f() { f | f & }; f; sleep 0.5"
        assert not client.step(0, bomb).turn.done
        outside = "run: echo x > ../../x; echo on"
        assert said(client.step(1, outside).turn).endswith("on")
        for reply in oracle(CART):
            turns = [client.step(episode, reply).turn for episode in (0, 1)]
        assert [turn.rewards for turn in turns] == [{0: 1.0}] * 2
        running = processes_of_workers(os.getpid()) - before
        assert pool.counters["deaths"] == 0 and len(running) < 12
    assert not any(map(is_running, running))
    assert list(place.iterdir()) == []


def test_a_worker_without_processes_says_what_it_needs(place):
    with ProcessPool(environments, workers=1, limits=Limits(seconds=60.0)) as pool:
        client = Client(pool)
        client.ask(0, "reset", (CART, 0))
        failure = client.step(0, "run: ls").failure
        assert failure.kind == "raised" and "sandbox.processes in a config" in failure.message


def test_a_worker_that_is_killed_leaves_nothing_behind(place):
    before = processes_of_workers(os.getpid())
    limits = Limits(seconds=60.0, processes=64)
    with ProcessPool(environments, workers=1, limits=limits, max_restarts=1) as pool:
        client = Client(pool)
        client.ask(0, "reset", (CART, 0))
        client.step(0, "run: true")
        running = processes_of_workers(os.getpid()) - before
        number = client.send(0, "step", {0: "run: sleep 100"})
        time.sleep(0.5)
        started = processes_of_workers(os.getpid()) - before
        for pid in running:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        assert client.receive(number).failure is not None
        assert wait_for(lambda: not any(map(is_running, running | started)), 10)
