"""Tasks with branch points beside tasks without: the mix of root and local comparison."""

import dataclasses

import jax
import numpy as np
import pytest
from rollout.by_hand import by_hand, leave_one_out
from rollout.chains import Chain

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import equal
from sepo_jax.objective import make_objective
from sepo_jax.policy import TokenScores
from sepo_jax.rollout import Branching, EngineOptions, play, play_branching
from sepo_jax.rollout.branching import leaf_weights, trees
from sepo_jax.sandbox.episodes import EpisodeRequest

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=4, capacity=256, max_action_tokens=4, prefill_widths=(64,))
LOCAL = Branching(2, 3, spacing=0)
WHOLE = Branching(0, trees_per_prompt=LOCAL.leaves)
MIX = [WHOLE, LOCAL, WHOLE, LOCAL]
ASKED = [EpisodeRequest({"turns": 4, "name": g}, seed=g, group=g) for g in range(4)]


def grown(agent, branching):
    return play_branching(*agent, ASKED, Chain, OPTIONS, branching, seed=3)


@pytest.fixture(scope="module")
def mixed(agent):
    return grown(agent, MIX)


def told(result):
    tokens = [(a.given.tolist(), a.tokens.tolist(), a.logp.tobytes()) for a in result.actions]
    return result.request.member, tokens, result.record, list(map(dict, result.rewards))


def earned(result):
    return sum(paid.get(0, 0.0) for paid in result.rewards)


def of_group(rollout, group):
    return [result for result in rollout.results if result.request.group == group]


def test_one_for_all_is_the_same_for_each(agent):
    one, each = grown(agent, LOCAL), grown(agent, [LOCAL] * 4)
    assert list(map(told, one.results)) == list(map(told, each.results))
    assert equal(one.forest(), each.forest())


def test_whole_rollouts_and_trunks_are_those_that_they_are_alone(agent, mixed):
    members = [dataclasses.replace(r, member=m) for r in ASKED for m in range(WHOLE.leaves)]
    alone = play(*agent, members, Chain, OPTIONS, seed=3)
    for group in (0, 2):
        assert list(map(told, of_group(mixed, group))) == list(map(told, of_group(alone, group)))
    for group in (1, 3):
        assert told(of_group(mixed, group)[0]) == told(of_group(alone, group)[0])


def test_every_task_has_its_leaves(mixed):
    assert [len(of_group(mixed, group)) for group in range(4)] == [5] * 4
    keys = {(r.request.group, r.request.member) for r in mixed.results}
    assert len(keys) == len(mixed.results) == mixed.statistics["leaves"] == 20
    statistics = mixed.statistics
    assert (statistics["missing_leaves"], statistics["short_trees"]) == (0, 0)
    assert statistics["branch_points"] == 2 * 2
    # Snapshots of trunks that have branch points, and of no others.
    assert statistics["snapshots"] == 2 * 4
    assert [len(tree.points) for tree in trees(mixed.results)] == [0] * 5 + [2] + [0] * 5 + [2]
    assert leaf_weights(mixed.results).sum() == pytest.approx(12)


class Given:
    """A policy whose parameters are the log-probabilities themselves, [B, A]."""

    def log_probs(self, params, *_, temperature, agent):
        return TokenScores(logp=params, entropy=params * 0, value=None)


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_both_comparisons(mixed, masked):
    """d loss / d logp = - w A / (sum of w over counted tokens), where a whole rollout of N has
    w = 1/N and the leave-one-out advantage of its group, a tree's tokens those of their siblings,
    and the trunk above the first branch point 0; with `count_no_spread=False` it is not counted."""
    forest, expected, counted = mixed.forest(), {}, {}
    local = by_hand(mixed)
    for group in (0, 2):
        results = of_group(mixed, group)
        for result, advantage in zip(
            results, leave_one_out(list(map(earned, results))), strict=True
        ):
            for action in result.actions:
                expected[action] = advantage, 1 / len(results)
                counted[action] = True
    for group in (1, 3):
        for action in {a for result in of_group(mixed, group) for a in result.actions}:
            advantage, weight = local[action]
            expected[action] = advantage or 0.0, weight
            counted[action] = advantage is not None or not masked
    row = get_algorithm("bpo", count_no_spread=not masked)
    batch, _ = prepare(row, forest, row_length=1024)
    objective = make_objective(row, Given())
    slopes = np.asarray(jax.grad(lambda logp: objective(logp, batch)[0])(batch.behavior_logp))
    found = np.zeros(forest.num_tokens)
    real = np.asarray(batch.token_index) >= 0
    np.add.at(found, np.asarray(batch.token_index)[real], slopes[real])
    # Actions in the order of the forest's segments: those that an episode added itself.
    seen: dict = {}
    for result in mixed.results:
        seen |= dict.fromkeys(result.actions)
    segments = np.flatnonzero(forest.is_action)
    assert len(segments) == len(seen)
    total = sum(expected[a][1] * len(a.tokens) for a in seen if counted[a])
    for segment, action in zip(segments, seen, strict=True):
        advantage, weight = expected[action]
        np.testing.assert_allclose(
            found[forest.offsets[segment] : forest.offsets[segment + 1]],
            -weight * advantage / total,
            atol=1e-6 * max(abs(a) for a, _ in expected.values()),
        )
    assert any(not each for each in counted.values()) == masked


def test_another_number_is_refused(agent):
    with pytest.raises(ValueError, match="2 Branching for 4 requests; give one for each"):
        grown(agent, [WHOLE, LOCAL])
