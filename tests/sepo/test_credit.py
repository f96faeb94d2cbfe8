"""Credit modes on a tabular policy of Kuhn poker, exact by enumeration.

The policy is a softmax over two actions at each of twelve information sets; its parameters are the
log-odds of action 1, so the score of one choice is (action - P(action 1)).
"""

import numpy as np
import pytest
from tabular_credit import expected_gradient, finite_difference

from sepo_jax.domains import Kuhn
from sepo_jax.domains.kuhn_players import INFOSETS
from sepo_jax.games.kuhn import KUHN
from sepo_jax.games.tree import evaluate_on_host
from sepo_jax.sepo import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    best_response_opponent,
    objective_terms,
    objective_value,
)
from sepo_jax.sepo.exact import exact_episodes, hand_outcomes
from sepo_jax.sepo.exploiter import table_from_names

SCALE = 1.5
DOMAIN = Kuhn(collusion="fold_rate")
WEIGHTS = SepoWeights(exploitability=1.5, collusion=2.4, externality=1.8)


def table_of(logits):
    """Information set -> probabilities."""
    bet = 1 / (1 + np.exp(-logits))
    return {name: (1 - p, p) for name, p in zip(INFOSETS, bet, strict=True)}


def scores(outcomes, logits) -> np.ndarray:
    """Gradient of each outcome's log-probability, [outcomes, 12]."""
    bet = 1 / (1 + np.exp(-logits))
    result = np.zeros((len(outcomes), 12))
    for row, outcome in enumerate(outcomes):
        for name, action in outcome.choices:
            index = INFOSETS.index(name)
            result[row, index] += action - bet[index]
    return result


def policy_gradient(arrays, outcomes, logits, rewards) -> np.ndarray:
    """Expected REINFORCE gradient of the mean reward over all episodes, [12]."""
    return expected_gradient(arrays.weight, scores(outcomes, logits), rewards)


def random_logits(seed) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=12)


# Test (c) of papers 1.11, for e, c and x together and one by one.
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS,
        SepoWeights(1.5, 0, 0),
        SepoWeights(0, 2.4, 0),
        SepoWeights(0, 0, 1.8),
        SepoWeights(0, 0, 0),
    ],
)
def test_credited_gradient_is_the_gradient_of_the_objective(weights, seed):
    logits = random_logits(seed)

    def objective(values):
        arrays, _ = exact_episodes(DOMAIN, table_of(values))
        return objective_value(objective_terms(arrays), weights, SCALE)

    arrays, outcomes = exact_episodes(DOMAIN, table_of(logits))
    rewards = assign_rewards(arrays, weights, SCALE, "credited", balance=True)
    exact = policy_gradient(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(exact, finite_difference(objective, logits), atol=1e-7)
    assert np.abs(exact).max() > 1e-3


def test_credited_respects_the_flat_side_of_the_clamp():
    # A policy that beats AlwaysBet (calls with K and Q, folds J) but loses to NashApprox.
    logits = np.array(
        [2.0 if name[0] == "K" else -2.0 if name[0] == "J" else 0 for name in INFOSETS]
    )
    arrays, outcomes = exact_episodes(DOMAIN, table_of(logits))
    terms = objective_terms(arrays)
    gaps = [v for k, v in terms.items() if k.startswith("exploit_pool_advantage/")]
    assert min(gaps) < -0.01 and max(gaps) > 0.01
    weights = SepoWeights(1.5, 0, 0)
    rewards = assign_rewards(arrays, weights, SCALE, "credited", balance=True)

    def objective(values):
        other, _ = exact_episodes(DOMAIN, table_of(values))
        return objective_value(objective_terms(other), weights, SCALE)

    gradient = policy_gradient(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(gradient, finite_difference(objective, logits), atol=1e-7)


# With the best response recomputed for every policy, e is NashConv: its gradient is that of the
# episodes against the present best response (envelope theorem).
def test_credited_gradient_against_the_best_response_is_that_of_nash_conv():
    weights = SepoWeights(2.0, 0, 0)
    logits = random_logits(3)

    def objective(values):
        policy = table_from_names(KUHN, table_of(values))
        arrays, _ = exact_episodes(DOMAIN, table_of(values), pools=["train"])
        utility = objective_terms(arrays)["utility"]
        return SCALE * (utility - 2.0 * evaluate_on_host(KUHN, "gains", policy).sum())

    response = best_response_opponent(KUHN, table_from_names(KUHN, table_of(logits)))
    extra = {"exploiter": {response.name: response.table}}
    arrays, outcomes = exact_episodes(DOMAIN, table_of(logits), extra, pools=["train"])
    rewards = assign_rewards(arrays, weights, SCALE, "credited", balance=True)
    gradient = policy_gradient(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(gradient, finite_difference(objective, logits), atol=1e-7)


def test_balance_makes_the_gradient_independent_of_pool_sizes():
    logits = random_logits(4)
    arrays, outcomes = exact_episodes(DOMAIN, table_of(logits))
    share = np.where(arrays.pool == EXPLOITER, 5.0, 1.0)
    skewed = EpisodeArrays(
        **{**vars(arrays), "weight": arrays.weight * share},
    )
    gradients = {}
    for balance in (True, False):
        gradients[balance] = [
            policy_gradient(
                a, outcomes, logits, assign_rewards(a, WEIGHTS, SCALE, "credited", balance=balance)
            )
            for a in (arrays, skewed)
        ]
    # The externality is a mean over train and exploiter episodes, which the skew does change.
    terms = [objective_terms(a)["externality"] for a in (arrays, skewed)]
    assert terms[0] != terms[1]
    only_e = SepoWeights(1.5, 2.4, 0)
    same = [
        policy_gradient(
            a, outcomes, logits, assign_rewards(a, only_e, SCALE, "credited", balance=True)
        )
        for a in (arrays, skewed)
    ]
    np.testing.assert_allclose(same[0], same[1], atol=1e-12)
    assert np.abs(gradients[False][0] - gradients[False][1]).max() > 1e-3


def joint_episodes(logits, auxiliary_pool, auxiliary_name):
    """Every pair (train hand, auxiliary hand) as a rollout of its own.

    Returns arrays of 2 n² episodes (train first), the probability of each pair, and the train
    hand's scores.
    """
    table = table_of(logits)
    outcomes = hand_outcomes()
    pools = (("train", "LooseAggressive"), (auxiliary_pool, auxiliary_name))
    probabilities = [
        np.array([o.probability(table, DOMAIN.pools[pool][name]().table) / 2 for o in outcomes])
        for pool, name in pools
    ]
    size = len(outcomes)
    results = [DOMAIN.score(o.seat, o.history, o.own) for o in outcomes]
    first, second = np.repeat(np.arange(size), size), np.tile(np.arange(size), size)

    def column(field):
        values = np.array([getattr(result, field) for result in results], float)
        return np.concatenate([values[first], values[second]])[:, None]

    pool = COLLUSIVE if auxiliary_pool == "collusive" else EXPLOITER
    arrays = EpisodeArrays(
        own=column("own"),
        opponent=column("opponent"),
        harmful=column("harmful"),
        externality=column("externality"),
        mask=np.ones((2 * size**2, 1), bool),
        pool=np.repeat([TRAIN, pool], size**2),
        opponent_id=np.repeat([0, 1], size**2),
        group=np.tile(np.arange(size**2), 2),
    )
    joint = probabilities[0][first] * probabilities[1][second]
    return arrays, joint, scores([outcomes[i] for i in first], logits)


# Test (b) of papers 1.11: the e and c parts of per_rollout average to zero gradient, exactly.
@pytest.mark.parametrize(
    ("auxiliary", "weights"),
    [
        (("exploiter", "MaxExploiter"), SepoWeights(1.5, 0, 0)),
        (("collusive", "LooseAggressive"), SepoWeights(0, 2.4, 0)),
    ],
)
def test_per_rollout_penalties_carry_no_expected_gradient(auxiliary, weights):
    arrays, joint, score = joint_episodes(random_logits(5), *auxiliary)
    pairs = len(joint)
    assert joint.sum() == pytest.approx(1.0)
    free = SepoWeights(0, 0, 0)
    penalty = [assign_rewards(arrays, w, SCALE, "per_rollout")[:pairs, 0] for w in (free, weights)]
    part = penalty[0] - penalty[1]
    assert (
        joint * (part - joint @ part) ** 2
    ).sum() > 0.1  # it varies a lot from rollout to rollout
    np.testing.assert_allclose((joint * part) @ score, 0, atol=1e-14)
    # The same numbers on the auxiliary actions do carry gradient: that is what "credited" uses.
    swapped = joint.reshape(60, 60).T.ravel()
    assert np.abs((swapped * part.reshape(60, 60).T.ravel()) @ score).max() > 1e-3


# The externality is different: it includes the train episode itself.
def test_per_rollout_externality_does_carry_gradient():
    arrays, joint, score = joint_episodes(random_logits(5), "exploiter", "MaxExploiter")
    free, weighted = SepoWeights(0, 0, 0), SepoWeights(0, 0, 1.8)
    part = [
        assign_rewards(arrays, w, SCALE, "per_rollout")[: len(joint), 0] for w in (free, weighted)
    ]
    gradient = (joint * (part[0] - part[1])) @ score
    # Half of the mean over the train and the auxiliary hand: 1.8 / 2 times the train part.
    own = arrays.externality[: len(joint), 0]
    np.testing.assert_allclose(gradient, 0.9 * (joint * own) @ score, atol=1e-12)
    assert np.abs(gradient).max() > 1e-3


def test_shared_penalty_carries_no_gradient_either():
    logits = random_logits(6)
    arrays, outcomes = exact_episodes(DOMAIN, table_of(logits))
    gradients = [
        policy_gradient(arrays, outcomes, logits, assign_rewards(arrays, w, SCALE, "shared"))
        for w in (WEIGHTS, SepoWeights(0, 0, 0))
    ]
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-12)
    assert np.abs(gradients[1]).max() > 1e-3
