"""Branching over every sandbox: forks are what whole episodes would be, and deaths are counted."""

import dataclasses
import functools
import math
import tempfile
from pathlib import Path

import pytest
from rollout.chains import Chain
from rollout.steered import Mortal, Steered
from sandbox.environment_cases import CASES

from sepo_jax.rollout import Branching, EngineOptions, play_branching
from sepo_jax.rollout.branching import trees
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool

pytestmark = pytest.mark.usefixtures("compile_fast")
TREES = Branching(2, 3, spacing=0)
CAPACITY = 16_384
# Those whose prompts continue one context, and the single reply, whose trunks have one decision.
BRANCHED = [
    pytest.param(name, marks=pytest.mark.slow if CASES[name].slow else ())
    for name in ("corridor", "webshop", "alfworld", "repository", "matrix game", "notes")
    if name in CASES
]


def played_alone(name, result):
    """What an environment of its own shows and pays when it is given an episode's replies."""
    replies = {action.turn: {action.seat: action.text} for action in result.actions}
    with tempfile.TemporaryDirectory() as scratch:
        environment = Steered(name, Path(scratch))
        turns = [environment.reset(result.request.task, result.request.seed)]
        for turn in range(len(replies)):
            turns.append(environment.step(replies[turn]))
        environment.close()
    return turns


@pytest.mark.parametrize("name", BRANCHED)
def test_every_leaf_is_the_episode_of_its_replies(agent, name):
    """Forks go on from restored snapshots, siblings of one trunk after one another in few
    environments: states are shared up to the branch, and nothing after it reaches another."""
    tasks = CASES[name].tasks
    asked = [EpisodeRequest(tasks[g % len(tasks)], seed=g, group=g) for g in range(2)]
    policy, params = agent
    longer = dataclasses.replace(policy.config, max_positions=CAPACITY)
    options = EngineOptions(
        slots=4, capacity=CAPACITY, max_action_tokens=4, prefill_widths=(256,), max_turns=6
    )
    rollout = play_branching(
        dataclasses.replace(policy, config=longer),
        params,
        asked,
        functools.partial(Steered, name),
        options,
        TREES,
        seed=3,
    )
    assert len(rollout.results) == rollout.statistics["leaves"] == 2 * TREES.leaves
    assert len(rollout.forest().leaves()) == 2 * TREES.leaves
    for tree in trees(rollout.results):
        assert sum(len(point.forks) for point in tree.points) == TREES.forks
    distinct = set()
    for result in rollout.results:
        turns = played_alone(name, result)
        for action in result.actions:
            assert action.prompt == turns[action.turn].prompts[action.seat]
        assert list(map(dict, result.rewards)) == [dict(turn.rewards) for turn in turns]
        assert result.record == turns[-1].record
        assert (result.status == "finished") == turns[-1].done
        distinct.add(tuple(action.text for action in result.actions))
    assert len(distinct) > 5


@pytest.fixture
def lives(tmp_path, monkeypatch):
    """A file that workers may write, in a directory of theirs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / "lives"
    place.mkdir()
    return place / "left"


def grown(agent, environments, lives, deaths, mortal, retries):
    lives.write_text("." * deaths)
    task = {"turns": 3, "name": "g", "lives": str(lives), "mortal": mortal}
    asked = [EpisodeRequest(task, seed=group, group=group) for group in range(2)]
    options = EngineOptions(
        slots=4, capacity=256, max_action_tokens=4, prefill_widths=(64,), max_failed_fraction=0.9
    )
    limits = Limits(seconds=60.0, writable=(str(lives.parent),))
    with ProcessPool(
        environments, workers=1, limits=limits, max_restarts=20, retries=retries
    ) as pool:
        rollout = play_branching(*agent, asked, pool, options, TREES, seed=3)
        return rollout, pool.counters["deaths"]


def told(rollout):
    return [
        ([action.tokens.tolist() for action in result.actions], result.record, result.rewards)
        for result in rollout.results
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mortal", ["trunk", "fork"])
def test_workers_that_die_cost_no_leaf_where_calls_are_tried_again(agent, lives, mortal):
    expected, none = grown(agent, Chain, lives, 0, mortal, retries=0)
    assert none == 0
    found, deaths = grown(agent, Mortal, lives, 1, mortal, retries=1)
    assert deaths == 1
    assert told(found) == told(expected)
    assert found.statistics["leaves"] == 2 * TREES.leaves
    assert found.statistics["missing_leaves"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("mortal", "lost"), [("trunk", TREES.leaves), ("fork", 1)])
def test_leaves_of_workers_that_die_are_counted(agent, lives, mortal, lost):
    rollout, deaths = grown(agent, Mortal, lives, 1, mortal, retries=0)
    assert deaths == 1
    failed = [result for result in rollout.results if result.failure is not None]
    assert [result.failure.kind for result in failed] == ["worker_died"]
    statistics = rollout.statistics
    assert statistics["missing_leaves"] == lost
    assert statistics["leaves"] + lost == 2 * TREES.leaves == math.prod((2, 1 + 2 * (3 - 1)))
    assert len(rollout.forest().leaves()) == statistics["leaves"]
    # Every fork was asked for, unless its trunk failed: then there is nothing to go on from.
    asked = 2 * TREES.leaves - (TREES.forks if mortal == "trunk" else 0)
    assert len(rollout.results) == asked
