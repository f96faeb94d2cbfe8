"""What every episode does when an opponent errs: it refuses to go on from half a move."""

import numpy as np
import pytest

from sepo_jax.domains import EpisodeFailed, Kuhn


class Scripted:
    """Plays what it was given, one item a decision; an exception among them is raised."""

    name = "Scripted"

    def __init__(self, *actions):
        self.actions = list(actions)

    def reset(self, rng):
        self.left = list(self.actions)

    def act(self, view):
        action = self.left.pop(0)
        if isinstance(action, BaseException):
            raise action
        return action


def test_an_error_of_the_opponent_leaves_the_episode_failed():
    # The agent passes, and the opponent raises where it should have moved.
    episode = Kuhn(hands=2).new_episode(Scripted(KeyError("lost")), seed=5, deal="KJ")
    with pytest.raises(KeyError, match="lost"):
        episode.step("PASS")
    before = (list(episode.decisions), list(episode.rounds), episode.done)
    with pytest.raises(EpisodeFailed, match=r"seed 5.*Scripted failed with KeyError\('lost'\)"):
        episode.step("BET")
    for ask in (episode.legal_actions, episode.messages, episode.view, lambda: episode.observation):
        with pytest.raises(EpisodeFailed):
            ask()
    assert before == (episode.decisions, episode.rounds, episode.done)
    assert not episode.done and len(episode.decisions) == 1


def test_a_failed_episode_starts_again_by_reset():
    opponent = Scripted(ValueError("busy"))
    episode = Kuhn().new_episode(opponent, seed=5, seat=0, deal="KJ")
    with pytest.raises(ValueError, match="busy"):
        episode.step("PASS")
    episode._opponent.actions = [0]
    episode.reset(5).step("PASS")
    assert episode.done and episode.rounds[0].own == 1


@pytest.mark.parametrize("action", [7, -1, 1.0, "x", None])
def test_an_action_that_is_no_legal_index_names_the_opponent(action):
    episode = Kuhn().new_episode(Scripted(action), seed=0, seat=0, deal="KJ")
    message = r"opponent Scripted played .*; allowed: 0 \(FOLD\), 1 \(CALL\)"
    with pytest.raises(ValueError, match=message):
        episode.step("BET")
    with pytest.raises(EpisodeFailed):
        episode.legal_actions()


def test_integers_of_arrays_are_actions():
    episode = Kuhn().new_episode(Scripted(np.int32(1)), seed=0, seat=0, deal="KJ")
    episode.step("BET")
    assert episode.rounds[0].own == 2


@pytest.mark.parametrize("seat", [1.0, "0", 2])
def test_a_seat_is_an_integer(seat):
    with pytest.raises(ValueError, match="seat must be 0"):
        Kuhn().new_episode("AlwaysBet", 0, seat=seat)
