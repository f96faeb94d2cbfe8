"""Episodes as forests: seats, events, rewards, and what failed or was cut."""

import dataclasses

import jax
import numpy as np
import pytest

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
