"""Several games as one domain."""

import copy
import pickle

import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.joint import JointDomain, games_of
from sepo_jax.sandbox.environments import DomainEnvironment
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import content_of


class Renamed(Kuhn):
    """Kuhn poker once more under another name."""

    name = "second"


def joint():
    return JointDomain([Kuhn(), Renamed(hands=3, collusion="fold_rate")], "all")


def test_episodes_are_those_of_the_game_that_is_asked_for():
    domain = joint()
    for name, game in domain.games.items():
        first = domain.new_episode("AlwaysBet", 5, 1, game=name)
        second = game.new_episode("AlwaysBet", 5, 1)
        assert first.messages() == second.messages()
        for episode in (first, second):
            while not episode.done:
                episode.step("CALL\nBET" if "BET" in episode.legal_actions() else "CALL")
        assert first.record() == second.record()
    with pytest.raises(ValueError, match=r"unknown game 'secnd'. Did you mean 'second'"):
        domain.new_episode("AlwaysBet", 5, game="secnd")


def test_an_environment_serves_every_game_and_its_snapshots_name_the_games():
    domain = joint()
    environment, other = DomainEnvironment(domain), DomainEnvironment(copy.deepcopy(domain))
    for name in domain.games:
        turn = environment.reset({"opponent": "AlwaysBet", "seat": 0, "game": name}, 3)
        assert turn.prompts[0].messages == tuple(
            domain.games[name].new_episode("AlwaysBet", 3, 0).messages()
        )
        snapshot = environment.snapshot()
        assert other.restore(snapshot) == turn
        assert content_of(other.snapshot()) == content_of(snapshot)
        # The rules are named, not copied.
        assert other.state._domain is domain.games[name]
        assert environment.step({0: "PASS"}) == other.step({0: "PASS"})
    changed = DomainEnvironment(JointDomain([Kuhn(), Renamed(hands=2)], "all"))
    with pytest.raises(SnapshotRefused, match="version"):
        changed.restore(snapshot)
    with pytest.raises(ValueError, match=r"unknown field of .* 'gam'\. Did you mean 'game'"):
        environment.reset({"opponent": "AlwaysBet", "gam": "kuhn"}, 3)
    same = DomainEnvironment(pickle.loads(pickle.dumps(domain)))
    assert same.restore(snapshot) == turn


def test_expert_traces_are_shared_equally():
    domain = joint()
    traces = domain.expert_traces(21, 4)
    first, second = domain.games.values()
    assert traces == first.expert_traces(11, 4) + second.expert_traces(10, 4)
    told = domain.expert_traces(4, 4, rationale=True)
    assert all(len(reply.splitlines()) == 2 for _, reply in told)
    assert domain.expert_traces(0, 4) == []


def test_games_of_any_domain():
    domain, alone = joint(), Kuhn()
    assert list(games_of(domain)) == ["kuhn", "second"]
    assert games_of(alone) == {"kuhn": alone}


@pytest.mark.parametrize("games", [[], [Kuhn()], [Kuhn(), Kuhn(hands=2)]])
def test_fewer_than_two_games_are_refused(games):
    with pytest.raises(ValueError, match="needs two games or more, each once"):
        JointDomain(games)
