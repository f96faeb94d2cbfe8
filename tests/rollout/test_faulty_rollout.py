"""A rollout whose sandboxes die, hang and raise: it ends by itself and misses exactly those."""

import dataclasses

import numpy as np
import pytest
from rollout.identity_run import BASE, agent
from rollout.talks import FaultyTalk, Talk
from sandbox.toys import fault_of

from sepo_jax.forest import equal
from sepo_jax.rollout import build_forest, play
from sepo_jax.sandbox import EpisodeRequest, Limits, ProcessPool, TooManyFailures

KINDS = {"exit": "worker_died", "hang": "timeout", "raise": "raised"}
REQUESTS = [EpisodeRequest(f"t{seed // 8}", seed, seed // 8, seed % 8) for seed in range(96)]
OPTIONS = dataclasses.replace(BASE, slots=24, max_failed_fraction=0.9)


def failure_of(seed):
    """Kind of the first fatal fault of an episode of three steps, or None."""
    faults = [fault_of(seed, step) for step in range(3)]
    return next((KINDS[fault] for fault in faults if fault in KINDS), None)


def faulty_play(policy, params, options):
    limits = Limits(seconds=1.0)
    with ProcessPool(FaultyTalk, workers=2, limits=limits, max_restarts=96) as pool:
        return play(policy, params, REQUESTS, pool, options, seed=5), pool.counters


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["host_loop", "in_jit"])
def test_exactly_the_faulty_episodes_are_missing(driver):
    policy, (params, _) = agent()
    options = dataclasses.replace(OPTIONS, driver=driver)
    rollout, counters = faulty_play(policy, params, options)
    expected = [failure_of(request.seed) for request in REQUESTS]
    found = [result.failure and result.failure.kind for result in rollout.results]
    assert found == expected and 30 < sum(kind is not None for kind in expected) < 60
    statistics = rollout.statistics
    for kind in KINDS.values():
        assert statistics[f"failed_{kind}"] == expected.count(kind)
    assert statistics["episodes_failed"] + statistics["episodes_finished"] == len(REQUESTS)
    assert counters["deaths"] == expected.count("worker_died")
    # The others are what they are where nothing goes wrong, bit for bit.
    flawless = play(policy, params, REQUESTS, Talk, options, seed=5).results
    kept = [
        dataclasses.replace(result, status="failed") if kind else result
        for result, kind in zip(flawless, expected, strict=True)
    ]
    forest = rollout.forest()
    forest.validate()
    assert equal(forest, build_forest(kept))
    assert not np.isin(
        forest.episode, np.flatnonzero([kind is not None for kind in expected])
    ).any()


@pytest.mark.slow
def test_too_many_faults_end_the_rollout():
    policy, (params, _) = agent()
    with pytest.raises(TooManyFailures, match=r"of 96 episodes failed, more than .* share of 0.1"):
        faulty_play(policy, params, dataclasses.replace(OPTIONS, max_failed_fraction=0.1))
