"""A thousand episodes among workers that die, hang, raise and answer twice."""

import os

import pytest
from sandbox import pools, toys
from sandbox.pools import Client, played_directly

from sepo_jax.sandbox.isolation import Limits

pytestmark = pytest.mark.usefixtures("watchdog")


def expected_failures(count):
    """By episode, the kind of its first fault that is fatal."""
    kinds = {"exit": "worker_died", "hang": "timeout", "raise": "raised"}
    failures = {}
    for seed in range(count):
        faults = [toys.fault_of(seed, step) for step in range(toys.STEPS)]
        fatal = [kinds[fault] for fault in faults if fault in kinds]
        if fatal:
            failures[seed] = fatal[0]
    return failures


def play_all(client, count, at_once):
    """Plays that many episodes, so many at a time; what they failed of, and the last turns."""
    failures, ends, waiting = {}, {}, list(range(count))[::-1]
    asked = {}

    def begin():
        if waiting:
            episode = waiting.pop()
            asked[client.send(episode, "reset", ({}, episode))] = (episode, 0)

    for _ in range(at_once):
        begin()
    while asked:
        client.collect(1.0)
        for number in asked.keys() & client.answers.keys():
            episode, step = asked.pop(number)
            answer = client.answers[number]
            if answer.failure is None and not answer.turn.done:
                asked[client.send(episode, "step", {step % 2: "go"})] = (episode, step + 1)
                continue
            if answer.failure is None:
                ends[episode] = answer.turn
            else:
                failures[episode] = answer.failure.kind
            client.send(episode, "close")
            begin()
    return failures, ends


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [300], indirect=True)
def test_a_thousand_episodes_lose_exactly_the_faulty_ones(process_pool, place):
    count = 1000
    expected = expected_failures(count)
    limits = Limits(seconds=2.0)
    with process_pool(toys.Faulty, workers=8, limits=limits, max_restarts=count) as pool:
        failures, ends = play_all(Client(pool), count, at_once=24)
        assert failures == expected
        counters = dict(pool.counters)
    assert ends == {
        seed: played_directly(["go"] * toys.STEPS, seed=seed)[-1]
        for seed in set(range(count)) - set(expected)
    }
    kinds = list(expected.values())
    assert counters["deaths"] == kinds.count("worker_died")
    assert counters["timeouts"] == kinds.count("timeout")
    assert counters["raised"] == kinds.count("raised")
    assert counters["restarts"] == counters["deaths"] + counters["timeouts"]
    assert counters["replayed"] > 0
    assert counters["ignored_answers"] > 0
    assert counters["bad_answers"] == 0
    assert pools.processes_of_workers(os.getpid()) == set()
    assert list(place.iterdir()) == []
