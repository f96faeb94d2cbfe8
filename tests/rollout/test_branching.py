"""Branching rollouts: what siblings share, what they do not, and what every tree costs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout.by_hand import by_hand
from rollout.chains import Brittle, Chain, Secretive

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains import Kuhn
from sepo_jax.forest import equal, pack
from sepo_jax.forest.returns import path_actions
from sepo_jax.policy import Sampling
from sepo_jax.rollout import Branching, EngineOptions, build_forest, play, play_branching
from sepo_jax.rollout.branching import SELECTORS, decision_entropy, leaf_weights, trees
from sepo_jax.rollout.generate import _scores
from sepo_jax.sandbox.environments import domain_environments, replayed
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import TooManyFailures

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=4, capacity=256, max_action_tokens=4, prefill_widths=(64,))
TREES = Branching(2, 3, spacing=0)


def requests(count=2, turns=4, **fields):
    return [
        EpisodeRequest({"turns": turns, "name": group}, seed=group, group=group, **fields)
        for group in range(count)
    ]


def grown(agent, branching=TREES, asked=None, environments=Chain, **options):
    options = dataclasses.replace(OPTIONS, **options)
    asked = requests() if asked is None else asked
    return play_branching(*agent, asked, environments, options, branching, seed=3)


@pytest.fixture(scope="module")
def base(agent):
    return grown(agent)


def told(result):
    """All that an episode was asked, sampled and earned, comparable bit for bit."""
    actions = [
        (a.turn, a.given.tolist(), a.tokens.tolist(), a.logp.tobytes(), a.entropy.tobytes())
        for a in result.actions
    ]
    return result.status, result.record, [dict(paid) for paid in result.rewards], actions


def tokens_of(rollout):
    return [[action.tokens.tolist() for action in each.actions] for each in rollout.results]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    branching=st.builds(
        Branching,
        branch_points=st.integers(0, 3),
        continuations=st.integers(1, 4),
        selector=st.sampled_from(SELECTORS),
        spacing=st.sampled_from([0, 20, 200]),
        trees_per_prompt=st.integers(1, 2),
        entropy_of=st.sampled_from(["first_token", "mean"]),
        threshold=st.sampled_from([0.0, 5.76, 9.0]),
    ),
    turns=st.integers(1, 4),
)
def test_every_tree_has_its_number_of_leaves(agent, branching, turns):
    rollout = grown(agent, branching, requests(2, turns))
    found = trees(rollout.results)
    assert len(found) == 2 * branching.trees_per_prompt
    for tree in found:
        assert 1 + sum(len(point.forks) for point in tree.points) == 1 + branching.forks
        assert len(tree.points) <= branching.branch_points
        last = len(rollout.results[tree.trunk].actions) - 1
        for point in tree.points:
            assert point.turn < max(last, 1) or branching.selector == "threshold"
    forest = rollout.forest()
    assert len(forest.leaves()) == rollout.statistics["leaves"] == 2 * branching.leaves
    assert len(rollout.results) == 2 * branching.leaves
    keys = [(result.request.group, result.request.member) for result in rollout.results]
    assert len(set(keys)) == len(keys)
    assert leaf_weights(rollout.results).sum() == pytest.approx(len(found))


@pytest.mark.parametrize("branching", [Branching(0, 4), Branching(2, 1), Branching(0, 1)])
def test_without_forks_it_is_an_independent_rollout_bit_for_bit(agent, branching):
    branching = dataclasses.replace(branching, trees_per_prompt=3)
    rollout = grown(agent, branching)
    members = [dataclasses.replace(r, member=m) for r in requests() for m in range(3)]
    alone = play(*agent, members, Chain, OPTIONS, seed=3)
    assert [told(result) for result in rollout.results] == [told(each) for each in alone.results]
    assert equal(rollout.forest(), alone.forest())
    assert rollout.statistics["snapshots"] == 0


def test_trunks_are_the_episodes_of_an_independent_rollout_bit_for_bit(agent, base):
    alone = play(*agent, requests(), Chain, OPTIONS, seed=3)
    trunks = [base.results[tree.trunk] for tree in trees(base.results)]
    assert [told(result) for result in trunks] == [told(result) for result in alone.results]


def test_siblings_share_all_up_to_the_branch_and_nothing_after(base):
    forest = base.forest()
    paths = {int(forest.episode[leaf]): forest.path(int(leaf)) for leaf in forest.leaves()}
    differing = 0
    for tree in trees(base.results):
        trunk = base.results[tree.trunk]
        for point in tree.points:
            # All that lies before the branch, what was given there included: segments, so tokens.
            above = 2 * point.turn + 1
            siblings = [tree.trunk, *point.forks]
            assert len({tuple(paths[each][:above]) for each in siblings}) == 1
            assert len({paths[each][above] for each in siblings}) == len(siblings)
            for fork in point.forks:
                own = base.results[fork]
                assert not set(paths[fork][above:]) & set(paths[tree.trunk])
                # The environment's states, and what was paid, up to the branch and after it.
                digests, theirs = own.record["digests"], trunk.record["digests"]
                assert digests[: point.turn + 1] == theirs[: point.turn + 1]
                assert own.rewards[: point.turn + 1] == trunk.rewards[: point.turn + 1]
                same = [a.text for a in own.actions] == [a.text for a in trunk.actions]
                differing += not same
                for turn in range(point.turn, len(own.actions)):
                    alike = own.record["said"][: turn + 1] == trunk.record["said"][: turn + 1]
                    assert (digests[turn + 1] == theirs[turn + 1]) == alike
    assert differing > 4
    # Paths hold what was played, and a leaf earns what its path was paid.
    for index, result in enumerate(base.results):
        whole = np.concatenate([forest.segment_tokens(s) for s in paths[index]])
        parts = [part for a in result.actions for part in (a.given, a.tokens)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))
        earned = sum(paid.get(0, 0.0) for paid in result.rewards)
        assert forest.reward[paths[index]].sum() == pytest.approx(earned)
    returns = path_actions(forest).episode
    by_leaf = [
        sum(paid.get(0, 0.0) for paid in base.results[forest.episode[leaf]].rewards)
        for leaf in forest.leaves()
    ]
    np.testing.assert_allclose(returns, by_leaf)


def test_copied_caches_give_the_log_probabilities_of_whole_contexts(agent, base):
    policy, params = agent
    batch = pack(base.forest(), row_length=1024)
    scores = _scores(policy, params, batch, 1.0)
    real = np.asarray(batch.action_mask)
    gap = np.asarray(scores.logp)[real] - np.asarray(batch.behavior_logp)[real]
    np.testing.assert_allclose(gap, 0.0, atol=1e-5)


@pytest.mark.parametrize("environments", [Chain, replayed(Chain)])
def test_a_fork_that_repeats_its_trunk_ends_as_it_did(agent, environments):
    rollout = grown(agent, environments=environments, sampling=Sampling(greedy=True))
    assert len(rollout.results) == 2 * TREES.leaves
    for tree in trees(rollout.results):
        trunk = told(rollout.results[tree.trunk])
        for point in tree.points:
            assert [told(rollout.results[fork]) for fork in point.forks] == [trunk] * 2


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({"slots": 1}, False),
        ({"slots": 32}, False),
        ({"exchange_interval": 1}, True),
        ({"driver": "in_jit"}, True),
        ({"devices": 2}, True),
    ],
)
def test_slots_and_drivers_change_no_token(agent, base, options, exact):
    other = grown(agent, **options)
    assert tokens_of(other) == tokens_of(base)
    if exact:
        assert [told(result) for result in other.results] == [told(r) for r in base.results]
    np.testing.assert_array_equal(other.forest().parent, base.forest().parent)
    np.testing.assert_allclose(other.forest().entropy, base.forest().entropy, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(agent, base, workers):
    with ProcessPool(Chain, workers=workers) as pool:
        other = grown(agent, environments=pool)
    assert [told(result) for result in other.results] == [told(r) for r in base.results]
    assert other.statistics["snapshot_seconds"] > 0


@pytest.mark.parametrize("slots", [1, 3, 32])
def test_shared_tokens_are_computed_once(agent, slots):
    rollout = grown(agent, Branching(3, 4, spacing=0), requests(3), slots=slots)
    statistics, forest = rollout.statistics, rollout.forest()
    given = ~forest.is_action
    roots = forest.parent == -1
    # The last token of a first prompt is fed by the first decode step.
    prefilled = forest.lengths()[given].sum() - roots.sum()
    assert statistics["prefilled_tokens"] == prefilled
    assert statistics["sampled_tokens"] == forest.lengths()[forest.is_action].sum()
    computed = prefilled + statistics["sampled_tokens"]
    assert statistics["computed_tokens_per_leaf"] == computed / 30
    # Separate paths hold more.
    apart = sum(
        len(part) for r in rollout.results for a in r.actions for part in (a.given, a.tokens)
    )
    assert forest.num_tokens == computed + roots.sum() < 0.6 * apart


def test_figures(base):
    found = trees(base.results)
    points = [point for tree in found for point in tree.points]
    statistics = base.statistics
    assert (statistics["leaves"], statistics["missing_leaves"]) == (10, 0)
    assert (statistics["branch_points"], statistics["short_trees"]) == (4, 0)
    assert statistics["snapshots"] == 2 * 4 and statistics["snapshot_seconds"] > 0
    everything = [decision_entropy(base.results[t.trunk].actions, "first_token") for t in found]
    assert statistics["decision_entropy"] == pytest.approx(np.mean(everything))
    assert statistics["branch_entropy"] == pytest.approx(np.mean([p.entropy for p in points]))
    for tree, entropy in zip(found, everything, strict=True):
        best = sorted(np.argsort(-np.round(entropy[:-1], 4), kind="stable")[:2])
        assert [point.turn for point in tree.points] == best
    assert leaf_weights(base.results).sum() == pytest.approx(2.0)


def test_short_trees_spend_their_budget_where_they_can(agent):
    # Two decisions, the last of which is no candidate: both branch points' forks go to the root.
    rollout = grown(agent, asked=requests(2, 2))
    for tree in trees(rollout.results):
        assert [(point.turn, len(point.forks)) for point in tree.points] == [(0, 4)]
    assert rollout.statistics["short_trees"] == 2
    np.testing.assert_allclose(leaf_weights(rollout.results), 0.2)
    # Forks of the root are samples of the prompt like any other.
    forest = rollout.forest()
    roots = forest.children(-1)
    assert [len(forest.children(root)) for root in roots] == [5, 5]
    assert len(build_forest(rollout.results, share_prompts=False).children(-1)) == 10


def test_trees_of_a_prompt_are_one_group(agent):
    rollout = grown(agent, dataclasses.replace(TREES, trees_per_prompt=2), requests(1))
    forest = rollout.forest()
    assert set(forest.group) == {0} and len(forest.leaves()) == 10
    first = [result.request.member for result in rollout.results if result.request.past is None]
    assert first == [0, 1]
    assert sorted(r.request.member for r in rollout.results) == list(range(10))


@pytest.mark.parametrize("environments", [Chain, Brittle])
def test_credit_compares_siblings_and_a_missing_one_is_left_out(agent, environments):
    # One tree a prompt, so that prompts compare nothing: without their advantage, 0 by hand.
    rollout = grown(agent, Branching(2, 4, spacing=0), environments=environments)
    failed = [result for result in rollout.results if result.failure is not None]
    assert bool(failed) == (environments is Brittle)
    assert rollout.statistics["missing_leaves"] == len(failed)
    forest = rollout.forest()
    assert len(forest.leaves()) == rollout.statistics["leaves"] == 14 - len(failed)
    found, seen = by_hand(rollout), []
    credit = assign_credit("bpo", forest)
    owner = forest.segment_of_token()
    for result in rollout.results:
        shared = result.request.past.taken if result.request.past else ()
        seen += [a for a in result.actions if result.failure is None and a not in shared]
    segments = np.flatnonzero(forest.is_action)
    assert len(segments) == len(seen)
    for segment, action in zip(segments, seen, strict=True):
        advantage, weight = found[action]
        given = credit.advantage[owner == segment]
        np.testing.assert_allclose(given, advantage or 0.0, rtol=1e-4, atol=1e-4)
        assert credit.segment_weight[segment] == pytest.approx(weight)
    weights = leaf_weights(rollout.results)
    assert (
        weights.sum() == pytest.approx(2.0)
        and not weights[[r in failed for r in rollout.results]].any()
    )


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("bpo", {"prefix_credit": "lambda"}),
        ("bpo", {"prefix_credit": "none", "segment_weight": "uniform"}),
        ("vineppo", {}),
        ("tree_grpo", {}),
        ("gigpo", {}),
        ("rloo", {}),
        ("grpo", {}),
    ],
)
def test_rows_of_the_table_take_these_forests(agent, algorithm, overrides):
    rollout = grown(agent, dataclasses.replace(TREES, trees_per_prompt=2))
    forest = rollout.forest()
    credit = assign_credit(get_algorithm(algorithm, **overrides), forest)
    assert np.isfinite(credit.advantage).all() and np.abs(credit.advantage).max() > 0
    assert (credit.advantage[~forest.is_action[forest.segment_of_token()]] == 0).all()


FIRST_TURN = Branching(1, 3, "threshold", threshold=0.0, spacing=0, trees_per_prompt=2)


@pytest.mark.parametrize("share_prompts", [True, False])
def test_a_tree_that_branches_at_its_first_turn_is_one_tree(agent, share_prompts):
    rollout = grown(agent, FIRST_TURN)
    grown_trees = trees(rollout.results)
    assert [[point.turn for point in tree.points] for tree in grown_trees] == [[0]] * 4
    forest = rollout.forest(share_prompts)
    leaves = forest.leaves()
    earned = path_actions(forest).episode
    assert len(forest.children(-1)) == (2 if share_prompts else len(rollout.results))

    def of_trees(value):
        found = np.zeros(len(leaves))
        for tree in grown_trees:
            own = np.isin(forest.episode[leaves], [tree.trunk, *tree.points[0].forks])
            assert own.sum() == 3
            found[own] = value(earned[own])
        return found

    row = get_algorithm("tree_grpo", compare="root_plus_tree", scale="none")
    whole = assign_credit(get_algorithm("grpo", scale="none"), forest).path_advantage
    both = assign_credit(row, forest).path_advantage
    np.testing.assert_allclose(both - whole, of_trees(lambda e: e - e.mean()), atol=1e-4)
    then = assign_credit(get_algorithm("tree_grpo", scale="none"), forest).path_advantage
    np.testing.assert_allclose(then, of_trees(lambda e: e - e.mean()), atol=1e-4)
    assert np.abs(then).max() > 0.1


@pytest.mark.parametrize("prefix_credit", ["none", "lambda"])
def test_siblings_of_the_first_turn_are_compared_and_other_trees_are_not(agent, prefix_credit):
    rollout = grown(agent, FIRST_TURN)
    forest = rollout.forest()
    credit = assign_credit(get_algorithm("bpo", prefix_credit=prefix_credit), forest)
    earned = path_actions(forest).episode
    of_episode = dict(zip(forest.episode[forest.leaves()], earned, strict=True))
    advantage = credit.advantage[forest.offsets[:-1]]
    for tree in trees(rollout.results):
        siblings = [tree.trunk, *tree.points[0].forks]
        for each in siblings:
            others = np.mean([of_episode[other] for other in siblings if other != each])
            own = forest.is_action & (forest.episode == each)
            assert own.sum() == 4
            np.testing.assert_allclose(advantage[own], of_episode[each] - others, atol=1e-4)
            np.testing.assert_allclose(credit.segment_weight[own], 1 / 3, atol=1e-6)


def test_environments_without_snapshots_or_with_fresh_contexts_are_refused(agent, base):
    words = "2 of 2 episodes failed.* no snapshot of turn 0, .*: the state is in another program"
    with pytest.raises(TooManyFailures, match=words):
        grown(agent, environments=Secretive)
    # Without branch points none is asked for.
    assert len(grown(agent, Branching(0), environments=Secretive).results) == 2
    kuhn = domain_environments(Kuhn(hands=2))
    asked = [EpisodeRequest({"opponent": "NashApprox"}, seed) for seed in range(4)]
    with pytest.raises(ValueError, match="a context of its own at turn 1; a tree branches within"):
        play_branching(*agent, asked, kuhn, OPTIONS, TREES, seed=3)
    with pytest.raises(ValueError, match="trunks begin anew"):
        grown(agent, asked=[base.results[1].request])
    with pytest.raises(ValueError, match="requests is a list of EpisodeRequest"):
        grown(agent, asked=requests()[0])
    with pytest.raises(ValueError, match=r"member is .* whole number from 0 to"):
        grown(agent, asked=requests(1, member=2**30))
    assert play_branching(*agent, [], Chain, OPTIONS, TREES, seed=3).results == ()
