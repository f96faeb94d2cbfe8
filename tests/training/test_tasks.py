"""The games of a run: their weights, their pools, and the episodes of a step."""

from collections import Counter

import pytest
from training.parity_tasks import Parity

from sepo_jax.domains import Kuhn
from sepo_jax.domains.ipd import IteratedPrisonersDilemma
from sepo_jax.domains.joint import JointDomain
from sepo_jax.games import KUHN
from sepo_jax.sepo import SepoWeights
from sepo_jax.training.settings import read_settings
from sepo_jax.training.step_plan import StepPlan, episode_seed
from sepo_jax.training.tasks import make_tasks, mean_over_games, played_pools

JOINT = JointDomain([IteratedPrisonersDilemma(), Kuhn()], "all")
SEPO = {"exploitability_weight": 2.0, "collusion_weight": 1.0, "externality_weight": 0.5}


def settings_of(**sepo):
    changes = {key: sepo.pop(key) for key in ("evaluation", "domain") if key in sepo}
    return read_settings({"sepo": SEPO | sepo, **changes})


def plan_of(domain=JOINT, step=0, responder=None, **sepo):
    options = {"groups_per_opponent": 2, "rollouts_per_group": 3} | sepo
    settings = settings_of(**options)
    plan = StepPlan(settings, make_tasks(settings, domain))
    return plan.seats(step, {"kuhn": responder})


def test_every_game_has_its_own_weights_and_scale():
    settings = settings_of(
        game_weights={"kuhn": (1.5, 0, 0)},
        domain={"invalid_penalty": 0.25},
    )
    ipd, kuhn = make_tasks(settings, JOINT)
    assert ipd.weights == SepoWeights(2.0, 1.0, 0.5, 0.25)
    assert kuhn.weights == SepoWeights(1.5, 0.0, 0.0, 0.25)
    assert ipd.judged == SepoWeights(2.0, 1.0, 0.5) and kuhn.judged == SepoWeights(1.5)
    assert (ipd.scale, kuhn.scale) == (1.0, 1.5)
    assert (ipd.game, kuhn.game) == (None, KUHN)
    assert (ipd.prefix, kuhn.label) == ("ipd/", {"game": "kuhn"})
    assert ipd.prefixed({"safety": 1.0}) == {"ipd/safety": 1.0}


def test_keys_of_a_single_game_have_no_prefix():
    (task,) = make_tasks(settings_of(), Kuhn())
    assert task.label == {} and task.prefixed({"safety": 1.0}) == {"safety": 1.0}


def test_a_domain_of_tasks_has_no_games():
    with pytest.raises(ValueError, match=r"'parity' has tasks and no games.*summary\.json"):
        make_tasks(settings_of(), Parity())


def test_evaluation_may_weigh_otherwise_than_training():
    settings = settings_of(
        evaluation={"weights": (3.0, 1.0, 1.8)}, game_weights={"kuhn": [1.5, 0.0, 0.0]}
    )
    for task in make_tasks(settings, JOINT):
        assert task.judged == SepoWeights(3.0, 1.0, 1.8) != task.weights


def test_objectives_without_penalties_are_judged_by_all_weights():
    for objective in ("reward_only", "welfare_only"):
        settings = settings_of(objective=objective)
        tasks = make_tasks(settings, JOINT)
        assert all(task.weights == SepoWeights(0.0, 0.0, 0.0, 1.0) for task in tasks)
        assert all(task.judged == SepoWeights(2.0, 1.0, 0.5) for task in tasks)
        assert [list(pools) for pools in played_pools(settings, tasks)] == [["train"]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game_weights": {"ipdd": (1, 1, 1)}}, "Did you mean 'ipd'"),
        ({"game_weights": {"ipd": (1, 1)}}, r"sepo.game_weights of ipd must be three .*\(1, 1\)"),
        ({"game_weights": {"ipd": 2.0}}, "must be three numbers"),
        ({"game_weights": {"ipd": (1, -1, 1)}}, "weight collusion must be finite and >= 0"),
        ({"evaluation": {"weights": (1.0,)}}, "evaluation.weights must be three numbers"),
        ({"evaluation": {"weights": ("1", "1", "1")}}, "must be three numbers"),
        ({"objective": "reward"}, "Did you mean 'reward_only'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_tasks(settings_of(**options), JOINT)


def test_a_game_takes_the_opponents_that_it_has():
    settings = settings_of(train_pool=("NashApprox", "TitForTat"), collusion_weight=0.0)
    ipd, kuhn = played_pools(settings, make_tasks(settings, JOINT))
    assert ipd == {
        "train": ("TitForTat",),
        "exploiter": ("AlwaysDefect", "AlternatingDefect"),  # has no best response: all of them
    }
    assert kuhn == {"train": ("NashApprox",), "exploiter": ("best_response",)}
    settings = settings_of(train_pool=("NashAprox",))
    with pytest.raises(ValueError, match=r"opponent of the train pool .* mean 'NashApprox'"):
        played_pools(settings, make_tasks(settings, JOINT))
    alone = make_tasks(settings_of(), IteratedPrisonersDilemma())
    with pytest.raises(ValueError, match="opponent of the exploiter pool 'best_response'"):
        played_pools(settings_of(), alone)


def test_one_rollout_plays_all_opponents_of_all_games():
    responder = object()
    seats = plan_of(responder=responder)
    played = Counter(
        (seat.request.task["game"], seat.pool, seat.request.task["opponent"]) for seat in seats
    )
    assert set(played.values()) == {6}
    assert len(played) == (4 + 2 + 1) + (3 + 1 + 1)
    assert played["kuhn", "exploiter", responder] == 6
    assert {seat.game for seat in seats if seat.request.task["game"] == "kuhn"} == {1}
    # No two episodes draw the same samples, and no group holds two opponents.
    keys = [(seat.request.group, seat.request.member) for seat in seats]
    assert len(set(keys)) == len(keys)
    groups = {(seat.request.group, seat.pool, seat.request.task["opponent"]) for seat in seats}
    assert len(groups) == len(played) == len({group for group, *_ in groups})
    for group_by in ("deal", "deal_round"):
        seats = plan_of(step=1, group_by=group_by, responder=responder)
        sizes = Counter(seat.request.group for seat in seats)
        assert set(sizes.values()) == {3} and len(sizes) == 2 * len(played)
        deals = {(seat.request.group, seat.request.seed) for seat in seats}
        assert len(deals) == len(sizes)  # one initial state each


def test_seeds_groups_and_seats_of_a_single_game():
    seats = plan_of(Kuhn(), exploiter_pool=("AlwaysBet",), collusion_weight=0.0, group_by="deal")
    assert [seat.rollout for seat in seats[:18]] == list(range(18))
    assert [seat.request.group for seat in seats[::3]] == [0, 1, 18, 19, 36, 37, 54, 55]
    assert [seat.request.seed for seat in seats[::3]] == [
        episode_seed(0, 0, number, deal) for number in range(4) for deal in range(2)
    ]
    first = {"opponent": "NashApprox", "seat": 0}
    assert seats[0].request.task == first and seats[3].request.task == first | {"seat": 1}
    assert [seat.request.member for seat in seats[:4]] == [0, 1, 2, 0]


@pytest.mark.parametrize(("credit", "count"), [("per_rollout", 24 * 4), ("shared", 6 * 4)])
def test_auxiliary_episodes_multiply(credit, count):
    seats = plan_of(IteratedPrisonersDilemma(), credit=credit, exploiter_episodes=4,
                    exploiter_pool=(), group_by="deal")  # fmt: skip
    of_one = [seat for seat in seats if seat.request.task["opponent"] == "AlwaysDefect"]
    assert len(of_one) == count
    assert len([seat for seat in seats if seat.pool == "collusive"]) == count
    assert len([seat for seat in seats if seat.pool == "train"]) == 24
    keys = [(seat.request.group, seat.request.member) for seat in seats]
    assert len(set(keys)) == len(keys)
    sides = Counter(seat.request.task["seat"] for seat in of_one)
    assert sides[0] == sides[1]
    if credit == "per_rollout":
        # Each rollout has four, from initial states of their own and from both seats alike.
        for rollout in range(24):
            own = [seat.request for seat in of_one if seat.rollout == rollout]
            assert len({request.seed for request in own}) == 4
            assert [request.task["seat"] for request in own].count(0) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups_per_opponent": 3}, "must be even"),
        ({"exploiter_episodes": 2}, "with credit 'credited' raise sepo.groups_per_opponent"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plan_of(**options)


def test_the_mean_over_games_needs_all_of_them():
    tasks = make_tasks(settings_of(), JOINT)
    figures = {"ipd/safety": 1.0, "kuhn/safety": -2.0, "ipd/utility": 1.0}
    assert mean_over_games(figures, tasks, "safety") == {"safety": -0.5}
    assert mean_over_games(figures, tasks, "utility") == {}
    assert mean_over_games({"safety": 1.0}, make_tasks(settings_of(), Kuhn()), "safety") == {}
