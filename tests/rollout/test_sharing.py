"""Rollouts that several processes play together are those of one; threads stand for processes."""

import threading

import pytest
from rollout.chains import Chain
from rollout.threads import together

from sepo_jax.forest import equal
from sepo_jax.rollout import Branching, EngineOptions, play, play_branching
from sepo_jax.rollout.branching import leaf_weights
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.protocol import TooManyFailures

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=4, capacity=256, max_action_tokens=4, prefill_widths=(64,))
# Initial states with different numbers of episodes, not in order.
REQUESTS = [
    EpisodeRequest({"turns": turns, "name": group}, seed=group, group=group, member=member)
    for group, member, turns in [(5, 0, 3), (5, 1, 3), (1, 0, 2), (7, 0, 4), (5, 2, 3), (1, 1, 2)]
]
TREES = [Branching(2, 3, spacing=0)] * 2 + [Branching(0, 1, trees_per_prompt=3)]
COUNTS = ("actions", "sampled_tokens", "episodes_finished")


def told(result):
    """All that an episode was asked, sampled and earned, comparable bit for bit."""
    actions = [
        (a.turn, a.given.tolist(), a.tokens.tolist(), a.logp.tobytes(), a.entropy.tobytes())
        for a in result.actions
    ]
    request = result.request
    key = request.group, request.member, request.task
    return key, result.status, result.record, [dict(paid) for paid in result.rewards], actions


class Counted(Chain):
    """Says which thread plays which group."""

    played: list

    def start(self, task, seed):
        self.played.append((threading.get_ident(), task["name"]))
        return super().start(task, seed)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_several_play_what_one_plays_bit_for_bit(agent, monkeypatch, count):
    alone = play(*agent, REQUESTS, Chain, OPTIONS, seed=3)
    monkeypatch.setattr(Counted, "played", [], raising=False)
    found = together(
        count, lambda share: play(*agent, REQUESTS, Counted, OPTIONS, seed=3, share=share)
    )
    for rollout in found:
        assert list(map(told, rollout.results)) == list(map(told, alone.results))
        assert equal(rollout.forest(), alone.forest())
        for name in COUNTS:
            assert rollout.statistics[name] == alone.statistics[name] > 0
        assert rollout.statistics.keys() == alone.statistics.keys()
        assert 0 < rollout.statistics["busy_share"] <= 1
        assert 0 < rollout.statistics["decoding_share"] <= 1
    # Each episode was played once, those from one state by one thread; of four one has none.
    assert sorted(name for _, name in Counted.played) == [1, 1, 5, 5, 5, 7]
    assert len({thread for thread, _ in Counted.played}) == min(count, 3)
    assert len(set(Counted.played)) == 3


def test_trees_grow_as_one_process_grows_them(agent):
    asked = [REQUESTS[0], REQUESTS[3], REQUESTS[2]]
    alone = play_branching(*agent, asked, Chain, OPTIONS, TREES, seed=3)
    found = together(
        2, lambda share: play_branching(*agent, asked, Chain, OPTIONS, TREES, seed=3, share=share)
    )
    assert len(alone.results) == 5 + 5 + 3
    for rollout in found:
        assert list(map(told, rollout.results)) == list(map(told, alone.results))
        assert equal(rollout.forest(), alone.forest())
        assert leaf_weights(rollout.results).tolist() == leaf_weights(alone.results).tolist()
        assert rollout.statistics["leaves"] == alone.statistics["leaves"] == 13
        # The snapshot that a fork went on from stays where it was played.
        assert not any(result.request.state for result in rollout.results)


class Broken(Chain):
    """Fails where the task says so."""

    def start(self, task, seed):
        if task.get("broken"):
            raise ValueError("no such room")
        return super().start(task, seed)


def test_what_stops_one_stops_all(agent):
    broken = EpisodeRequest({"turns": 2, "name": 9, "broken": True}, seed=0, group=9)
    found = together(
        2, lambda share: play(*agent, [REQUESTS[0], broken], Broken, OPTIONS, seed=3, share=share)
    )
    assert [type(error) for error in found] == [TooManyFailures] * 2
    assert "process 1 stopped playing: TooManyFailures: 1 of 1 episodes failed" in str(found[0])
    assert "no such room" in str(found[0]) and "no such room" in str(found[1])


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [(ArithmeticError("nothing follows"), RuntimeError), (UnicodeError("no text"), ValueError)],
)
def test_errors_of_one_are_heard_by_all(agent, error, elsewhere):
    def step(share):
        def follow_ups(result):
            if share.index == 0:
                raise error
            return []

        options = {"share": share, "follow_ups": follow_ups}
        return play(*agent, REQUESTS, Chain, OPTIONS, seed=3, **options)

    first, second = together(2, step)
    assert first is error and type(second) is elsewhere
    assert str(second) == f"process 0 stopped playing: {type(error).__name__}: {error}"
