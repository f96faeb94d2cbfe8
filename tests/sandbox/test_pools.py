"""Pools of environments: all kinds answer alike, and give everything back."""

import functools
import gc
import os
import subprocess
import sys
import threading
import types

import jax.numpy as jnp
import pytest
from sandbox import pools, toys
from sandbox.pools import Client, played_directly

from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import Call, SandboxError

pytestmark = pytest.mark.usefixtures("watchdog")
SCRIPTS = [["a", "b", "c"], ["a", "c", "b"], ["", "λ\n", "x" * 1000], ["1", "2", "3"]]


def test_turns_are_those_of_the_environment(make_client):
    client = make_client()
    for episode, texts in enumerate(SCRIPTS):
        expected = played_directly(texts, seed=episode, name="x")
        assert client.play(episode, texts, seed=episode, name="x") == expected
    assert client.pool.counters["calls"] == 4 * len(SCRIPTS)


def test_calls_handed_in_at_once_are_served_in_order(make_client):
    client = make_client()
    numbers = []
    for episode in range(5):
        for _ in range(2):  # the second time after a close, under the same name
            numbers.append(client.send(episode, "reset", ({}, episode)))
            numbers += [client.send(episode, "step", {i: text}) for i, text in enumerate("ab")]
            client.send(episode, "close")
    turns = [client.receive(number).turn for number in numbers]
    expected = [played_directly("ab", seed=episode) for episode in range(5) for _ in range(2)]
    assert turns == [turn for part in expected for turn in part]
    assert client.pool.take() == []


def test_a_snapshot_goes_on_in_another_episode(make_client):
    client = make_client()
    client.reset(1, seed=3)
    client.step(1, "a")
    state = client.ask(1, "snapshot").state
    assert client.ask(2, "restore", state).turn == played_directly("a", seed=3)[-1]
    for episode in (1, 2):
        assert client.step(episode, "b", 1).turn == played_directly("ab", seed=3)[-1]


def test_a_refused_snapshot_leaves_its_episode_open(make_client):
    client = make_client()
    client.reset(1, snapshot="refuse")
    failure = client.ask(1, "snapshot").failure
    assert (failure.kind, failure.message) == ("refused", "not today")
    assert client.step(1, "a").turn == played_directly("a")[-1]


def test_a_refused_restore_opens_no_episode(make_client):
    client = make_client()
    failure = client.ask(1, "restore", b"foreign").failure
    assert (failure.kind, failure.message) == ("refused", "this is no state of a toy")
    assert client.step(1, "a").failure.kind == "lost"


def test_a_reset_of_an_open_episode_begins_anew(make_client):
    client = make_client()
    client.reset(1, seed=1)
    client.step(1, "a")
    assert client.reset(1, seed=2).turn == played_directly("", seed=2)[0]
    assert client.step(1, "b").turn == played_directly("b", seed=2)[-1]
    assert client.pool.counters["constructed"] == 1


def test_environments_are_reused_once_closed(make_client):
    client = make_client(workers=1)
    for _ in range(3):
        for episode in range(4):
            client.reset(episode)
        for episode in range(4):
            client.send(episode, "close")
    assert client.pool.counters["constructed"] == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise out of luck", ["RuntimeError: out of luck (toys.py:", "in do_raise: raise Runt"]),
        ("quit", ["SystemExit: by itself"]),
        ("step of seat 1", ["AssertionError: seat 1 was not asked"]),
    ],
)
def test_what_an_environment_raises_fails_its_episode_alone(make_client, text, words):
    client = make_client(workers=1)
    client.reset(1)
    client.reset(2)
    failure = client.step(1, text, seat=int("seat 1" in text)).failure
    assert failure.kind == "raised"
    assert all(word in failure.message for word in words)
    assert client.step(1, "a").failure.kind == "lost"
    assert client.step(2, "a").turn == played_directly("a")[-1]
    assert client.reset(1, seed=4).turn == played_directly("", seed=4)[0]
    # The object that raised serves no more.
    counters = client.pool.counters
    assert (counters["raised"], counters["constructed"], counters["restarts"]) == (1, 3, 0)


@pytest.mark.parametrize("which", ["none", "rude", "nan", "object", "long"])
def test_what_is_no_turn_is_a_bad_answer(make_client, which):
    client = make_client(workers=1)
    client.reset(1)
    client.reset(2)
    assert client.step(1, f"turn {which}").failure.kind == "bad_answer"
    assert client.step(2, "a").turn == played_directly("a")[-1]
    assert client.pool.counters["bad_answers"] == 1
    assert client.pool.counters["restarts"] == 0


def test_a_snapshot_that_is_no_bytes_is_a_bad_answer(make_client):
    client = make_client()
    client.reset(1)
    client.step(1, "unjust")
    failure = client.ask(1, "snapshot").failure
    assert (failure.kind, failure.message) == ("bad_answer", "a snapshot must be bytes, not str")


def test_an_environment_that_cannot_be_made_fails_each_episode(make_client):
    client = make_client(toys.Unconstructible)
    for episode in range(6):
        failure = client.reset(episode).failure
        assert failure.kind == "raised"
        assert "ValueError: no toy today" in failure.message


def test_an_environment_that_will_not_close_is_given_up(make_client):
    client = make_client(workers=1)
    client.reset(1, close="raise")
    if isinstance(client.pool, InProcessPool):
        with pytest.warns(UserWarning, match="OSError: will not close"):
            assert client.step(1, "raise it").failure.kind == "raised"
    else:
        assert client.step(1, "raise it").failure.kind == "raised"
    assert client.reset(2).turn == played_directly("")[0]


def test_closing_a_pool_closes_all_environments(make_client, tmp_path_factory):
    marks = tmp_path_factory.mktemp("marks")
    client = make_client(limits=Limits(seconds=30.0, writable=(marks,)))
    for episode in range(4):
        client.reset(episode, seed=episode, mark=str(marks))
    client.send(2, "close")
    client.pool.close()
    assert {path.name for path in marks.iterdir()} == {f"closed-{seed}" for seed in range(4)}


def test_files_of_an_environment_go_with_it(make_client, place):
    client = make_client(workers=1)
    client.reset(1)
    client.step(1, "write note")
    assert len(list(place.rglob("note"))) == 1
    client.step(1, "raise", seat=1)
    assert list(place.rglob("note")) == []


def test_calls_of_an_episode_that_is_not_open_are_answered(make_client):
    client = make_client()
    for kind, payload in (("step", {0: "a"}), ("snapshot", None)):
        failure = client.ask(7, kind, payload).failure
        assert failure.kind == "lost"
        assert "episode 7 is not open" in failure.message
    client.send(7, "close")
    assert client.play(7, ["a"]) == played_directly("a")


def check_four_threads(client):
    """Four threads play four episodes each, several times, through one pool."""
    turns = {}

    def play(first):
        for episode in range(first, first + 4):
            for texts in SCRIPTS:
                turns[episode, *texts] = client.play(episode, texts, seed=episode)

    threads = [threading.Thread(target=play, args=(4 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns == {
        (episode, *texts): played_directly(texts, seed=episode)
        for episode in range(16)
        for texts in SCRIPTS
    }


def test_four_threads_with_four_environments_each(make_client):
    check_four_threads(make_client(toys.Exclusive, workers=3))


def test_waiting_ends_in_time_and_taking_empties(make_client):
    client = make_client()
    assert client.pool.wait(0.01) is False
    client.send(1, "reset", ({}, 0))
    assert client.pool.wait(30) is True
    assert len(client.pool.take()) == 1
    assert client.pool.take() == []


def test_calls_that_make_no_sense_are_refused(make_client):
    client = make_client()
    with pytest.raises(ValueError, match="unknown kind of call 'undo'; allowed: reset, restore"):
        client.send(1, "undo")
    with pytest.raises(ValueError, match="a restore takes bytes, not str"):
        client.send(1, "restore", "state")


def test_a_closed_pool_takes_no_calls(make_client):
    client = make_client()
    client.reset(1)
    client.pool.close()
    client.pool.close()
    with pytest.raises(SandboxError, match=r"the pool (is|was) closed"):
        client.send(1, "step", {0: "a"})


@pytest.mark.parametrize("options", [{"workers": 0}, {"max_restarts": -1}, {"retries": -1}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be at least"):
        ProcessPool(toys.Toy, **options)


def test_a_factory_that_does_not_pickle_is_refused():
    with pytest.raises(ValueError, match=r"must pickle .* functools.partial"):
        ProcessPool(lambda scratch: toys.Toy(scratch))


def test_a_worker_serves_its_environments_from_one_thread(worker_pool):
    with worker_pool(toys.OneThread) as pool:
        check_four_threads(Client(pool))


def test_a_payload_that_does_not_pickle_is_refused(worker_pool):
    with worker_pool(toys.Toy) as pool, pytest.raises(ValueError, match="does not pickle"):
        pool.submit(Call(1, 1, "reset", (threading.Lock(), 0)))


def test_a_factory_that_workers_cannot_import_ends_the_pool(worker_pool, monkeypatch):
    module = types.ModuleType("only_here")
    exec("class Toy: pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with worker_pool(module.Toy, max_restarts=1) as pool:
        failure = Client(pool).reset(1).failure
    assert failure.kind == "worker_died"
    assert "no worker is left" in failure.message
    assert "ModuleNotFoundError: No module named 'only_here'" in failure.message


def test_a_partial_of_a_factory_and_a_payload_of_own_classes(worker_pool):
    with worker_pool(functools.partial(toys.Commanded)) as pool:
        payload = ({"name": "x", "extra": Call(1, 2, "close")}, 0)
        assert Client(pool).ask(1, "reset", payload).turn == played_directly("", name="x")[0]


def test_a_worker_prints_to_standard_error(process_pool, capfd):
    with process_pool(toys.Commanded) as pool:
        client = Client(pool)
        client.reset(1)
        client.step(1, "print spoken aloud")
    captured = capfd.readouterr()
    assert "spoken aloud" in captured.err
    assert captured.out == ""


def test_workers_are_light_and_get_no_secrets(process_pool, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "abc")
    monkeypatch.setenv("SOME_SETTING", "abc")
    with process_pool(toys.Commanded) as pool:
        client = Client(pool)
        for episode in range(3):
            client.reset(episode)
        modules = client.step(0, "modules").turn.record
        assert "sepo_jax.sandbox.worker" in modules
        assert {"jax", "numpy", "multiprocessing", "pytest"}.isdisjoint(modules)
        assert client.step(1, "variable SOME_API_KEY").turn.record is None
        assert client.step(2, "variable SOME_SETTING").turn.record == "abc"


FORKS = []


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [60], indirect=True)
def test_no_hang_and_no_fork_beside_jax(place, recwarn):
    jnp.ones(3).sum().block_until_ready()
    if not FORKS:  # there is no way to take this back
        os.register_at_fork(before=lambda: FORKS.append("a fork"))
        FORKS.append("registered")
    for _ in range(5):
        with pools.process_pool(toys.Toy, workers=8) as pool:
            client = Client(pool)
            numbers = [client.send(episode, "reset", ({}, episode)) for episode in range(200)]
            turns = [client.receive(number).turn for number in numbers]
            assert turns == [played_directly("", seed=seed)[0] for seed in range(200)]
        jnp.ones(3).sum().block_until_ready()
    assert FORKS == ["registered"]
    assert [str(warning.message) for warning in recwarn] == []
    assert pools.processes_of_workers(os.getpid()) == set()


def test_a_lost_pool_ends_its_workers(process_pool):
    before = pools.processes_of_workers(os.getpid())
    client = Client(process_pool(toys.Toy))
    client.reset(1)
    workers = pools.processes_of_workers(os.getpid()) - before
    assert len(workers) == 2
    del client
    gc.collect()
    assert pools.wait_for(lambda: not any(map(pools.is_running, workers)), 5)


def test_a_fork_of_the_parent_leaves_the_pool_alone(process_pool, place):
    program = f"""
import os, sys
sys.path[:] = {sys.path!r}
from sandbox import pools, toys
from sandbox.pools import Client
with pools.process_pool(toys.Toy) as pool:
    client = Client(pool)
    client.reset(1)
    child = os.fork()
    if child == 0:
        try:
            client.reset(2)
        except Exception as error:
            print(error, flush=True)
        sys.exit()  # with all its exit handlers
    os.waitpid(child, 0)
    print(client.step(1, "a").turn.prompts[1].messages[0]["content"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False,
        env=os.environ | {"TMPDIR": str(place)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, text = done.stdout.splitlines()
    assert "is a fork of it" in refused
    assert text == played_directly("a")[-1].prompts[1].messages[0]["content"]


MAIN = """
import json, sys
sys.path[:] = {path!r}
print("imported as", __name__)
from sandbox.pools import Client, process_pool
from sandbox.toys import Toy

class Mine(Toy):
    pass

if __name__ == "__main__":
    with process_pool({factory}, workers=1) as pool:
        answer = Client(pool).reset(1)
    print(answer.failure or "served")
"""


@pytest.mark.parametrize(
    ("factory", "imported"), [("Toy", []), ("Mine", ["imported as __mp_main__"])]
)
def test_the_main_module_is_imported_only_when_it_defines_the_factory(tmp_path, factory, imported):
    script = tmp_path / "main.py"
    script.write_text(MAIN.format(path=sys.path, factory=factory))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.splitlines() == ["imported as __main__", "served"], done.stderr
    assert [line for line in done.stderr.splitlines() if "imported" in line] == imported


def test_an_interactive_session_is_told_to_use_a_module():
    program = MAIN.format(path=sys.path, factory="Mine")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert "defined in an interactive session" in done.stdout
