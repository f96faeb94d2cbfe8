"""Own domains whose players cannot be played with are refused by what is wrong with them."""

from functools import partial

import pytest
from domains.doors import Doors

from sepo_jax.domains import (
    ItemNegotiation,
    IteratedPrisonersDilemma,
    Kuhn,
    RepeatedAuction,
    SplitBargaining,
)
from sepo_jax.domains.checks import check_players
from sepo_jax.domains.ipd import AlwaysDefect, Mixed, TitForTat
from sepo_jax.domains.repeated import RepeatedGame, Strategy

POOLS = IteratedPrisonersDilemma.pools


def own(**attributes):
    return type("Own", (IteratedPrisonersDilemma,), attributes)()


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize(
    "game",
    [IteratedPrisonersDilemma, RepeatedAuction, SplitBargaining, ItemNegotiation, Kuhn],
)
def test_the_games_of_the_paper_pass(game, faithful):
    check_players(game(faithful=faithful))


def test_what_is_not_needed_may_be_empty_and_more_pools_may_be_there():
    check_players(Doors())
    empty = {"train": {"Tit": TitForTat}, "exploiter": {}, "collusive": {}, "shift": {}}
    check_players(own(pools=empty, experts={}))
    check_players(own(experts={"A": (1 / 3, TitForTat), "B": [2 / 3, partial(Mixed)]}))
    with pytest.raises(ValueError, match="ipd has no experts whose decisions could be learned"):
        own(experts={}).expert_traces(1, 0)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({}, "must have the keys train, exploiter, collusive"),
        ({"train": {"Tit": TitForTat}, "exploiter": {}}, "not train, exploiter"),
        ([TitForTat], "must have the keys"),
        (POOLS | {"train": {}}, r"pools\['train'\] is empty; name an opponent"),
        (POOLS | {"train": [TitForTat]}, r"pools\['train'\] must map names of opponents"),
        (POOLS | {"train": {"Tit": TitForTat()}}, "must be a factory.*give its class"),
        (POOLS | {"exploiter": {"Tit": "TitForTat"}}, r"\['Tit'\] must be a factory.*'TitForTat'$"),
        (
            POOLS | {"exploiter": {"TitForTat": AlwaysDefect}},
            "is another opponent than 'TitForTat'",
        ),
    ],
)
def test_pools(pools, message):
    with pytest.raises(ValueError, match=message):
        check_players(own(pools=pools))
    with pytest.raises(ValueError, match=message):  # and nothing is played with them
        own(pools=pools).expert_traces(1, 0)


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ([TitForTat], r"experts must map names to \(weight, factory\)"),
        ({"A": TitForTat}, r"experts\['A'\] must be \(weight, factory\)"),
        ({"A": (1.0, TitForTat())}, "must be a factory.*give its class"),
        ({"A": (0.5, TitForTat), "B": (0.6, Mixed)}, "must sum to 1, not 1.1"),
        ({"A": (1.5, TitForTat), "B": (-0.5, Mixed)}, "must be a number above 0, not -0.5"),
        ({"A": (1.0, TitForTat), "B": (0, Mixed)}, "must be a number above 0, not 0"),
        ({"A": (float("nan"), TitForTat)}, "must be a number above 0, not nan"),
        ({"A": (float("inf"), TitForTat)}, "must sum to 1, not inf"),
        ({"A": ("1", TitForTat)}, "must be a number above 0, not '1'"),
    ],
)
def test_experts(experts, message):
    with pytest.raises(ValueError, match=message):
        check_players(own(experts=experts))


@pytest.mark.parametrize("move", [7, -1, None])
def test_a_move_of_an_expert_that_is_not_legal(move):
    class Wild(Strategy):
        def act(self, view):
            return move

    message = rf"expert Wild played {move}; allowed: 0 \(COOPERATE\), 1 \(DEFECT\)"
    with pytest.raises(ValueError, match=message):
        own(experts={"Wild": (1.0, Wild)}).expert_traces(1, 0)


@pytest.mark.parametrize("lacking", ["name", "max_payoff", "default_rounds"])
def test_attributes_of_a_repeated_game(lacking):
    kept = {
        name: value
        for name, value in vars(IteratedPrisonersDilemma).items()
        if name not in (lacking, "__dict__", "__weakref__")
    }
    with pytest.raises(ValueError, match=f"Own lacks {lacking}; set it in the class"):
        type("Own", (RepeatedGame,), kept)()
