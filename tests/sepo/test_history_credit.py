"""Credit modes on a tabular policy of a two-round prisoner's dilemma, exact by enumeration.

The policy is a softmax over two moves at each of the five contexts; its parameters are the log-odds
of DEFECT, so the score of one choice is (move - P(DEFECT)). What differs from Kuhn poker
(`test_credit`) is that a move changes later rounds too: an episode's score is of both its moves.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from tabular_credit import expected_gradient, finite_difference

from sepo_jax.advantages.baselines import group_mean, leave_one_out
from sepo_jax.domains.ipd import AlwaysCooperate, AlwaysDefect, IteratedPrisonersDilemma, Mixed
from sepo_jax.sepo import (
    COLLUSIVE,
    EXPLOITER,
    TRAIN,
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    objective_terms,
    objective_value,
    payoff_scale,
)
from sepo_jax.sepo.exact import exact_episodes
from sepo_jax.sepo.history_response import best_exploiter

DOMAIN = IteratedPrisonersDilemma(rounds=2)
SCALE = payoff_scale(DOMAIN.max_payoff)
WEIGHTS = SepoWeights(exploitability=2.4, collusion=1.0, externality=1.8)
ALONE = [SepoWeights(2.4, 0, 0), SepoWeights(0, 1.0, 0), SepoWeights(0, 0, 1.8)]
FREE = SepoWeights(0, 0, 0)


def policy_of(logits):
    """Probabilities by round: one context, then four."""
    defect = 1 / (1 + np.exp(-logits))
    rows = np.stack([1 - defect, defect], axis=-1)
    return [rows[:1], rows[1:]]


def move_scores(outcomes, logits) -> np.ndarray:
    """Gradient of the log-probability of each move of the agent, [outcomes, rounds, 5]."""
    defect = 1 / (1 + np.exp(-logits))
    result = np.zeros((len(outcomes), 2, 5))
    for row, ((first, reply), (second, _)) in enumerate(np.array(outcomes).tolist()):
        result[row, 0, 0] = first - defect[0]
        context = 1 + 2 * first + reply
        result[row, 1, context] = second - defect[context]
    return result


def gradient_of(arrays, outcomes, logits, rewards) -> np.ndarray:
    """Expected gradient when every move is credited with the whole episode, [5]."""
    return expected_gradient(arrays.weight, move_scores(outcomes, logits).sum(axis=1), rewards)


def objective(weights):
    def value(logits):
        arrays, _ = exact_episodes(DOMAIN, policy_of(logits))
        return objective_value(objective_terms(arrays), weights, SCALE)

    return value


def random_logits(seed) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=5)


# Test (c) of papers 1.11, for e, c and x one by one and together.
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("weights", [*ALONE, WEIGHTS, FREE], ids=["e", "c", "x", "all", "none"])
def test_credited_gradient_is_the_gradient_of_the_objective(weights, seed):
    logits = random_logits(seed)
    arrays, outcomes = exact_episodes(DOMAIN, policy_of(logits))
    rewards = assign_rewards(arrays, weights, SCALE, "credited", balance=True)
    exact = gradient_of(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(exact, finite_difference(objective(weights), logits), atol=1e-8)
    assert np.abs(exact).max() > 1e-2


# Each penalty alone moves the policy: what the weights add to the gradient is not 0.
@pytest.mark.parametrize("weights", ALONE, ids=["e", "c", "x"])
def test_every_penalty_has_a_gradient_of_its_own(weights):
    logits = random_logits(0)
    parts = [finite_difference(objective(w), logits) for w in (weights, FREE)]
    assert np.abs(parts[0] - parts[1]).max() > 1e-2


# The clamp: an agent that defects most of the time out-earns AlternatingDefect and still loses
# to AlwaysDefect, whose part alone is left in the gradient.
def test_credited_respects_the_flat_side_of_the_clamp():
    logits = np.full(5, 1.5)
    arrays, outcomes = exact_episodes(DOMAIN, policy_of(logits))
    terms = objective_terms(arrays)
    assert terms["exploit_pool_advantage/AlwaysDefect"] > 0.1
    assert terms["exploit_pool_advantage/AlternatingDefect"] < -0.1
    rewards = assign_rewards(arrays, ALONE[0], SCALE, "credited", balance=True)
    gradient = gradient_of(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(gradient, finite_difference(objective(ALONE[0]), logits), atol=1e-8)
    # No flat side, no agreement: rewards that charge both exploiters have another gradient.
    flat = (arrays.opponent_id == arrays.opponent_names.index("exploiter/AlternatingDefect"))[
        :, None
    ]
    charged = np.where(flat, rewards - 2.4 * (arrays.opponent - arrays.own), rewards)
    assert np.abs(gradient_of(arrays, outcomes, logits, charged) - gradient).max() > 1e-2


# Returns to go have the same expectation as whole episodes, since a move does not change what came
# before. Crediting a move with its own round alone does not: its effect on the opponent is lost.
def test_moves_are_credited_with_later_rounds():
    logits = random_logits(3)
    arrays, outcomes = exact_episodes(DOMAIN, policy_of(logits))
    rewards = assign_rewards(arrays, WEIGHTS, SCALE, "credited", balance=True) / DOMAIN.rounds
    scores, share = move_scores(outcomes, logits), arrays.weight / arrays.weight.sum()
    exact = finite_difference(objective(WEIGHTS), logits)
    to_go = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(np.einsum("e,et,etp", share, to_go, scores), exact, atol=1e-8)
    myopic = np.einsum("e,et,etp", share, rewards, scores)
    assert np.abs(myopic - exact)[0] > 1e-2  # the first move
    np.testing.assert_allclose(myopic[1:], exact[1:], atol=1e-8)  # the last one has no later round


# With the best response recomputed for every policy, the gradient of its value is that of the
# episodes against the present one (envelope theorem).
def test_credited_gradient_against_the_best_response_is_that_of_its_value():
    weights, logits = SepoWeights(2.0, 0, 0), random_logits(4)

    def value(values):
        arrays, _ = exact_episodes(DOMAIN, policy_of(values), pools=["train"])
        taken = best_exploiter(DOMAIN, policy_of(values)).value
        return SCALE * (objective_terms(arrays)["utility"] - 2.0 * taken)

    response = best_exploiter(DOMAIN, policy_of(logits)).opponent
    extra = {"exploiter": {response.name: response}}
    arrays, outcomes = exact_episodes(DOMAIN, policy_of(logits), extra, pools=["train"])
    rewards = assign_rewards(arrays, weights, SCALE, "credited", balance=True)
    gradient = gradient_of(arrays, outcomes, logits, rewards)
    np.testing.assert_allclose(gradient, finite_difference(value, logits), atol=1e-8)


def paired(logits, pool, opponent):
    """Every pair (train match against Mixed, auxiliary match) as a rollout of its own.

    Returns arrays of 2 n m episodes (train first), the probability of each pair, the score of its
    train match, and that of its auxiliary match.
    """
    sides = [
        exact_episodes(DOMAIN, policy_of(logits), {name: {"it": player}}, pools=[])
        for name, player in (("train", Mixed()), (pool, opponent))
    ]
    first, second = (
        index.ravel() for index in np.indices([side.num_episodes for side, _ in sides])
    )
    count = len(first)

    def column(name):
        train, auxiliary = (getattr(side, name) for side, _ in sides)
        return np.concatenate([train[first], auxiliary[second]])

    number = COLLUSIVE if pool == "collusive" else EXPLOITER
    arrays = EpisodeArrays(
        own=column("own"),
        opponent=column("opponent"),
        harmful=column("harmful"),
        externality=column("externality"),
        mask=np.ones((2 * count, 2), bool),
        pool=np.repeat([TRAIN, number], count),
        group=np.tile(np.arange(count), 2),
    )
    joint = sides[0][0].weight[first] * sides[1][0].weight[second]
    scores = [move_scores(outcomes, logits).sum(axis=1) for _, outcomes in sides]
    return arrays, joint, scores[0][first], scores[1][second]


# Test (b) of papers 1.11: the e and c parts of per_rollout average to a gradient of 0, exactly.
@pytest.mark.parametrize(
    ("pool", "opponent", "weights"),
    [("exploiter", AlwaysDefect(), ALONE[0]), ("collusive", AlwaysCooperate(), ALONE[1])],
)
def test_per_rollout_penalties_carry_no_expected_gradient(pool, opponent, weights):
    arrays, joint, score, auxiliary = paired(random_logits(5), pool, opponent)
    pairs = len(joint)
    assert joint.sum() == pytest.approx(1.0)
    rewards = [assign_rewards(arrays, w, SCALE, "per_rollout")[:pairs] for w in (FREE, weights)]
    part = rewards[0] - rewards[1]
    mean = part.mean(axis=1)
    assert joint @ (mean - joint @ mean) ** 2 > 0.1  # it varies a lot from rollout to rollout
    np.testing.assert_allclose(expected_gradient(joint, score, part), 0, atol=1e-14)
    # The same numbers on the auxiliary moves do carry gradient: that is what "credited" uses.
    assert np.abs(expected_gradient(joint, auxiliary, part)).max() > 1e-2


# The externality is different: it includes the train episode itself.
def test_per_rollout_externality_does_carry_gradient():
    arrays, joint, score, _ = paired(random_logits(5), "exploiter", AlwaysDefect())
    pairs = len(joint)
    rewards = [assign_rewards(arrays, w, SCALE, "per_rollout")[:pairs] for w in (FREE, ALONE[2])]
    gradient = expected_gradient(joint, score, rewards[0] - rewards[1])
    # Half of the mean over the train and the auxiliary match: 1.8 / 2 times the train part.
    own = expected_gradient(joint, score, arrays.externality[:pairs])
    np.testing.assert_allclose(gradient, 0.9 * own, atol=1e-13)
    assert np.abs(gradient).max() > 1e-2


def drawn(logits, members):
    """Arrays of `members` sampled matches against each opponent."""
    arrays, _ = exact_episodes(DOMAIN, policy_of(logits))
    generator, rows = np.random.default_rng(7), []
    for opponent in np.unique(arrays.opponent_id):
        place = np.flatnonzero(arrays.opponent_id == opponent)
        share = arrays.weight[place] / arrays.weight[place].sum()
        rows.extend(generator.choice(place, members, p=share))
    names = ("own", "opponent", "harmful", "externality", "mask", "pool", "opponent_id")
    return EpisodeArrays(**{name: getattr(arrays, name)[rows] for name in names})


def shared_comparison(weights, members):
    """Train rewards and advantages of "shared", one group for each train opponent and round."""
    arrays = drawn(random_logits(6), members)
    train = arrays.members(TRAIN)
    group = jnp.asarray((2 * arrays.opponent_id[train][:, None] + np.arange(2)).ravel())
    rewards = assign_rewards(arrays, weights, SCALE, "shared")
    assert not rewards[~train].any()
    units = (jnp.asarray(rewards[train].ravel(), jnp.float32), group.astype(jnp.int32))
    everyone = jnp.ones(len(units[0]), bool)
    advantages = [
        group_mean(*units, everyone, scale="none"),
        group_mean(*units, everyone, scale="population"),
        leave_one_out(*units, everyone),
    ]
    return rewards[train], [np.asarray(found) for found in advantages]


# Test (a) of papers 1.11: the penalty leaves the differences within a group exact, and deviations
# from a group's mean are computed from these, whatever the size of the group.
@pytest.mark.parametrize("members", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("weights", [*ALONE, WEIGHTS], ids=["e", "c", "x", "all"])
def test_shared_penalty_leaves_advantages_bit_identical(weights, members):
    free, plain = shared_comparison(FREE, members)
    penalised, ours = shared_comparison(weights, members)
    taken = free - penalised
    assert taken.min() == taken.max() > 0.05  # the penalty is there, it only cancels
    for one, other in zip(plain, ours, strict=True):
        assert np.abs(one).max() > 0.1
        assert one.tobytes() == other.tobytes()


def test_shared_penalty_carries_no_gradient():
    logits = random_logits(6)
    arrays, outcomes = exact_episodes(DOMAIN, policy_of(logits))
    gradients = [
        gradient_of(arrays, outcomes, logits, assign_rewards(arrays, w, SCALE, "shared"))
        for w in (WEIGHTS, FREE)
    ]
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-12)
    assert np.abs(gradients[1]).max() > 1e-2
