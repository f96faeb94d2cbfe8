"""Episodes as forests: seats, events, rewards, and what failed or was cut."""

import dataclasses

import jax
import numpy as np
import pytest

from sepo_jax.forest.returns import path_actions
from sepo_jax.rollout import (
    EngineOptions,
    build_forest,
    decision_segments,
    play,
)
from sepo_jax.sandbox.base import BaseEnvironment
from sepo_jax.sandbox.episodes import Action, EpisodeRequest, EpisodeResult
from sepo_jax.sandbox.protocol import Failure, Prompt, Turn

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=4, capacity=256, prefill_widths=(64,))


class Duel(BaseEnvironment):
    """Seats 0 and 1 move together, then seat 1 alone."""

    def start(self, task, seed):
        self.state = 0
        prompt = Prompt(({"role": "user", "content": "Choose."},))
        return Turn({0: prompt, 1: prompt})

    def play(self, actions):
        self.state += 1
        if self.state == 2:
            return Turn(rewards={0: -1.0, 1: 1.0}, done=True)
        return Turn({1: Prompt(({"role": "user", "content": "Again."},))}, {0: 2.0, 1: 0.5})


def test_moves_at_the_same_time_share_an_event_and_seats_their_policies(agent):
    policy, params = agent
    other = jax.tree.map(lambda leaf: 2 * leaf, params)
    asked = [EpisodeRequest(None, 0, member=member) for member in range(2)]
    alone = play(policy, params, asked, Duel, OPTIONS, seed=0, seats=(0, 0))
    forest = alone.forest()
    actions = decision_segments(forest)
    assert list(forest.agent[actions]) == [0, 1, 1] * 2
    assert list(forest.turn[actions]) == [0, 0, 1] * 2
    assert list(forest.event[actions]) == [0, 0, 1, 2, 2, 3]
    assert list(forest.event_size[actions]) == [2, 2, 1] * 2
    # Seat 0 acts once and is paid for both turns.
    assert list(forest.reward[actions]) == [1.0, 0.5, 1.0] * 2
    # Seats have roots of their own, also where they are asked the same.
    assert (forest.parent == -1).sum() == 3
    texts = [forest.segment_tokens(segment).tolist() for segment in actions[:2]]
    assert texts[0] != texts[1]
    # Another policy on seat 1 changes its actions alone; two policies in one loop.
    options = dataclasses.replace(OPTIONS, driver="in_jit")
    both = play([policy, policy], [params, other], asked, Duel, options, seed=0, seats=(0, 1))
    for one, two in zip(alone.results, both.results, strict=True):
        np.testing.assert_array_equal(one.actions[0].tokens, two.actions[0].tokens)
        for left, right in zip(one.actions[1:], two.actions[1:], strict=True):
            assert left.seat == right.seat == 1
            assert not np.allclose(left.logp[0], right.logp[0], atol=1e-5)


def action(turn, context=0, given=(1,), truncated=False):
    zeros = np.zeros(2, np.float32)
    return Action(
        0, turn, context, np.array(given, np.int32), np.array([7, 8], np.int32), zeros, zeros, "",
        Prompt(tokens=(1,)), truncated,
    )  # fmt: skip


def test_failed_and_cut_episodes():
    asked, paid = EpisodeRequest(None, 0, group=5), [{0: 1.0}, {0: 2.0}, {}]
    made = [
        EpisodeResult(asked, "failed", (action(0),), paid[:1], failure=Failure("raised", "x")),
        EpisodeResult(asked, "turn_limit", (action(0), action(1)), paid),
        EpisodeResult(asked, "finished", (action(0, truncated=True), action(1)), paid),
        EpisodeResult(asked, "finished", (), paid[:1]),
    ]
    forest = build_forest(made)
    actions = decision_segments(forest)
    assert list(forest.episode[actions]) == [1, 1, 2, 2] and set(forest.group) == {5}
    assert list(forest.truncated[actions]) == [False, True, True, False]
    # What was paid before the first action is nobody's.
    assert list(forest.reward[actions]) == [2.0, 0.0, 2.0, 0.0]
    assert build_forest([]).num_segments == 0
    assert build_forest(made[:1]).num_segments == 0


def trunk(*actions, rewards, group=0):
    states = {action.turn: b"state" for action in actions}
    asked = EpisodeRequest(None, 0, group=group, keep_snapshots=True)
    return EpisodeResult(asked, "finished", actions, rewards, snapshots=states)


def fork_of(result, turn, *actions, rewards, status="finished"):
    request = result.continuation(turn, member=1 + len(actions))
    past = request.past
    return EpisodeResult(request, status, (*past.taken, *actions), (*past.rewards, *rewards))


def test_forks_join_their_trunk_and_each_path_earns_its_own_rewards():
    paid = [{}, {0: 1.0}, {0: 2.0}, {0: 4.0}]
    first = trunk(action(0), action(1, given=(2, 3)), action(2, given=(4,)), rewards=paid)
    made = [
        first,
        fork_of(first, 1, action(1, given=(2, 3)), rewards=[{0: 10.0}]),
        fork_of(first, 2, action(2, given=(4,)), rewards=[{0: 20.0}], status="turn_limit"),
        fork_of(first, 0, action(0), rewards=[{0: 40.0}]),
    ]
    forest = build_forest(made)
    # Prompt, then an action, then what was given and an action, twice; three forks of one action.
    assert forest.parent.tolist() == [-1, 0, 1, 2, 3, 4, 2, 4, 0]
    assert forest.is_action.tolist() == [False, True, False, True, False, True, True, True, True]
    assert forest.reward.tolist() == [0.0, 1.0, 0.0, 2.0, 0.0, 4.0, 10.0, 20.0, 40.0]
    assert forest.episode[forest.leaves()].tolist() == [0, 1, 2, 3]
    assert forest.truncated[forest.leaves()].tolist() == [False, False, True, False]
    actions = path_actions(forest)
    assert actions.episode.tolist() == [7.0, 11.0, 23.0, 40.0]
    # What is to go at the first action depends on the path.
    assert actions.to_go[actions.segment == 1].tolist() == [7.0, 11.0, 23.0]
    # A failed fork leaves nothing, a fork without its trunk is a path of its own.
    failed = EpisodeResult(made[1].request, "failed", made[1].actions, made[1].rewards)
    assert build_forest([first, failed]).num_segments == 6
    alone = build_forest(made[1:2])
    assert alone.parent.tolist() == [-1, 0, 1, 2] and alone.reward.sum() == 11.0
    assert build_forest(made[1:3]).parent.tolist() == [-1, 0, 1, 2, 2, 4, 5]


def test_an_action_that_siblings_are_paid_differently_for_is_refused():
    # Seat 1 acts at the branch; seat 0, which acted before, is paid by what follows.
    other = dataclasses.replace(action(1, context=1), seat=1)
    first = trunk(action(0), other, rewards=[{}, {}, {0: 5.0}])
    again = dataclasses.replace(action(1, context=1), seat=1)
    fork = fork_of(first, 1, again, rewards=[{0: 6.0}])
    with pytest.raises(
        ValueError, match=r"episode 1 earned 6\.0 with its action at turn 0, .* 5\.0"
    ):
        build_forest([first, fork])
