"""Estimators on trees by enumeration: expectation, bias and variance against exact figures.

Processes whose probabilities, returns and weights are binary fractions pass through float32 credit
without rounding: there expectations hold to 1e-12. Elsewhere float32 leaves 1e-6, and the same
formulas in float64, written again below, hold to 1e-12.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from sepo_jax.domains.decision_process import OVER, exact, process_of_paths
from sepo_jax.evaluation.branching_examples import EXAMPLES, start_observations
from sepo_jax.evaluation.branching_theory import (
    ESTIMATORS,
    Moments,
    advantages,
    bias,
    gradients,
    mixture,
    moments,
    norm_noise,
    predicted_ratio,
)
from sepo_jax.evaluation.branching_trees import (
    Design,
    above_entropy,
    at_depths,
    enumerate_groups,
    highest_entropy,
    sample_groups,
)

pytestmark = pytest.mark.usefixtures("compile_fast")


SELECT = {
    "first": at_depths(0),
    "second": at_depths(1),
    "certain": above_entropy(0.6, 1),  # at p = 1/4 the entropy is 0.562, at 1/2 it is 0.693
}


@functools.cache
def enumerated(name, trees, continuations=2, select="second"):
    process, policy = EXAMPLES[name]
    return enumerate_groups(process, policy, Design(trees, continuations, SELECT[select]))


@functools.cache
def estimated(estimator, name, trees, continuations=2, select="second"):
    """Moments of an estimator; a row of `ESTIMATORS` by name or itself."""
    process, policy = EXAMPLES[name]
    groups = enumerated(name, trees, continuations, select)
    return moments(groups, gradients(ESTIMATORS.get(estimator, estimator), process, policy, groups))


@functools.cache
def independent(estimator, name, samples):
    process, policy = EXAMPLES[name]
    groups = enumerate_groups(process, policy, Design(samples))
    return moments(groups, gradients(ESTIMATORS[estimator], process, policy, groups))


def truth(name):
    return exact(*EXAMPLES[name])


def trunk(name):
    """Observations that come before the fork at the second decision: those of the start."""
    return start_observations(EXAMPLES[name][0])


def plain_tree(process, policy, group):
    """Tree credit of one group in float64, straight from its definition."""
    found = np.zeros(policy.shape)

    def add(path, first, weight, advantage, last=None):
        for state, action in list(zip(path.states, path.actions, strict=True))[first:last]:
            seen = process.observation[state]
            found[seen] += weight * advantage * (np.eye(policy.shape[1])[action] - policy[seen])

    def below(tree, depth):
        """Returns of what continues a backbone at a decision: the backbone itself, then forks."""
        before = sum(tree.backbone.rewards[:depth])
        forks = [before + sum(path.rewards) for d, path in tree.forks if d == depth]
        end = depth + 1 == len(tree.backbone.actions)
        own = sum(tree.backbone.rewards) if end else np.mean(below(tree, depth + 1))
        return [own, *forks]

    def others(returns, number):
        return returns[number] - np.mean(np.delete(returns, number))

    roots = [np.mean(below(tree, 0)) for tree in group.trees]
    for number, tree in enumerate(group.trees):
        weight = 1 / len(group.trees)
        advantage = others(roots, number) if len(roots) > 1 else 0.0
        for depth in range(len(tree.backbone.actions)):
            returns = below(tree, depth)
            if len(returns) > 1:
                weight /= len(returns)
                advantage = others(returns, 0)
                forks = [path for d, path in tree.forks if d == depth]
                for place, path in enumerate(forks, start=1):
                    add(path, 0, weight, others(returns, place))
            add(tree.backbone, depth, weight, advantage, depth + 1)
    return found


@pytest.mark.parametrize(
    ("name", "select"),
    [
        *itertools.product(EXAMPLES, ("second", "certain")),
        ("two_steps", "first"),
        ("stops", "first"),
    ],
)
def test_tree_credit_is_the_whole_gradient_to_rounding(name, select):
    found = estimated("tree", name, 2, 2, select)
    np.testing.assert_allclose(found.mean, truth(name).gradient, atol=1e-12)


@pytest.mark.parametrize(("name", "trees"), [("two_steps", 3), ("stops", 2)])
def test_with_three_continuations_the_formula_is_exact_and_float32_follows_it(name, trees):
    process, policy = EXAMPLES[name]
    groups = enumerated(name, trees, 3)
    plain = np.array([plain_tree(process, policy, group) for group in groups])
    np.testing.assert_allclose(moments(groups, plain).mean, truth(name).gradient, atol=1e-12)
    found = gradients(ESTIMATORS["tree"], process, policy, groups)
    np.testing.assert_allclose(found, plain, atol=2e-6)


def test_the_counterexample():
    # Comparison at the fork alone, whether propagated or not, leaves the first decision at 0.
    found = truth("two_steps").gradient
    assert found[0, 1] == pytest.approx(3 / 16, abs=1e-15)
    for estimator, expected in (("tree", 3 / 16), ("lambda", 0), ("none", 0)):
        mean = estimated(estimator, "two_steps", 2).mean
        assert mean[0, 1] == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(mean[1:, 1], [9 / 64, 3 / 64], atol=1e-12)


def test_the_short_corridor_has_weights_that_are_binary_fractions():
    # Weights go as 2 sqrt(8/11), sqrt(2 * 1/11) and 2 sqrt(2/11): as 4, 1 and 2; the best return,
    # of the prize, two coins and luck, is 1.
    process, policy = EXAMPLES["corridor"]
    prize, coin, luck = 0.5, 0.125, 0.25
    earned = {p * prize + c * coin + h * luck for p in (0, 1) for c in (0, 1, 2) for h in (0, 1)}
    over = process.observation == OVER
    np.testing.assert_allclose(np.unique(process.reward[over].round(12)), sorted(earned))
    assert set(policy.ravel()) <= {0.25, 0.5, 0.75}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("trees", [1, 2])
def test_prefix_credit_is_0_on_the_trunk_on_average_and_adds_variance(name, trees):
    half = dataclasses.replace(ESTIMATORS["lambda"], lambda_prefix=0.5)  # a binary fraction
    above = trunk(name)
    for row, accuracy in ((half, 1e-12), (ESTIMATORS["lambda"], 1e-6)):
        found = estimated(row, name, trees)
        local = estimated("none", name, trees)
        np.testing.assert_allclose(found.mean[above], 0, atol=accuracy)
        np.testing.assert_allclose(found.mean, local.mean, atol=accuracy)
        assert not np.diag(local.covariance).reshape(local.mean.shape)[above].any()
        assert np.diag(found.covariance).reshape(found.mean.shape)[above].min() > 1e-5
    # Below the fork both are right.
    below = np.setdiff1d(np.arange(len(local.mean)), above)
    np.testing.assert_allclose(local.mean[below], truth(name).gradient[below], atol=1e-12)


def test_prefix_credit_of_two_forks_adds_up_to_nothing_as_well():
    process = process_of_paths(
        {path: float(a) for a, path in enumerate(itertools.product((0, 1), repeat=3))}
    )
    policy = np.tile([0.75, 0.25], (7, 1))
    groups = enumerate_groups(process, policy, Design(1, 2, at_depths(1, 2)))
    row = dataclasses.replace(ESTIMATORS["lambda"], lambda_prefix=0.5)
    prefix, local = (
        moments(groups, gradients(each, process, policy, groups)).mean
        for each in (row, ESTIMATORS["none"])
    )
    np.testing.assert_allclose(prefix, local, atol=1e-12)
    np.testing.assert_allclose(prefix[0], 0, atol=1e-12)
    # Two branch points on a chain: what lies below both is weighed back to its own probability.
    np.testing.assert_allclose(prefix[1:], exact(process, policy).gradient[1:], atol=1e-12)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("continuations", [2, 3, 4])
def test_leave_one_out_has_the_variance_factor_of_its_group(name, continuations):
    # Var(R_k - mean of K - 1 others) = Var(R | s) (1 + 1 / (K - 1)).
    process, _ = EXAMPLES[name]
    groups = enumerated(name, 1, continuations)
    found = advantages(ESTIMATORS["tree"], process, groups)
    backbone = forks = 0.0
    for group, paths in zip(groups, found, strict=True):
        if len(paths) > 1:
            backbone += group.chance * paths[0][1] ** 2
            forks += group.chance * np.mean([path[0] ** 2 for path in paths[1:]])
    expected = continuations / (continuations - 1) * truth(name).within[1]
    assert backbone == pytest.approx(expected, abs=1e-6)
    assert forks == pytest.approx(expected, abs=1e-6)
    samples = enumerate_groups(process, EXAMPLES[name][1], Design(continuations))
    squares = [
        np.mean([path[0] ** 2 for path in paths]) for paths in advantages("rloo", process, samples)
    ]
    spread = sum(group.chance * square for group, square in zip(samples, squares, strict=True))
    assert spread == pytest.approx(
        continuations / (continuations - 1) * truth(name).variance, abs=1e-6
    )
    ratio = predicted_ratio(truth(name), 1, continuations, continuations)
    assert backbone / spread == pytest.approx(ratio, abs=1e-6)


def test_the_predicted_ratio_crosses_1_where_the_condition_says():
    # Within / total must be below (N / (N - 1)) / (K / (K - 1)): 4/7 at K = 2, N = 8 and 7/8 at
    # K = 4, N = 7. In the two-step process it is 1/2 before the second decision.
    found = truth("two_steps")
    assert predicted_ratio(found, 1, 2, 8) == pytest.approx(0.5 / (4 / 7))
    assert predicted_ratio(found, 1, 4, 7) == pytest.approx(0.5 / (7 / 8))
    assert predicted_ratio(found, 0, 2, 8) == pytest.approx(7 / 4)
    assert predicted_ratio(found, 2, 2, 8) == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_rloo_on_independent_samples_is_unbiased(name):
    for samples in (2, 3):
        mean = independent("rloo", name, samples).mean
        np.testing.assert_allclose(mean, truth(name).gradient, atol=1e-6)


def test_grpo_of_two_samples_by_hand():
    # Of two different returns the better has advantage 1, the worse -1, whatever they are; each
    # sample counts half, and each of its two decisions half of that.
    _, policy = EXAMPLES["two_steps"]
    expected = np.zeros((3, 2))
    steps = list(itertools.product((0, 1), repeat=2))

    def scores(path):
        return ((0, path[0]), (1 + path[0], path[1]))

    for one, other in itertools.product(steps, repeat=2):
        chance = np.prod([policy[0, action] for action in (*one, *other)])
        sign = np.sign(sum(one) - sum(other))
        for path, advantage in ((one, sign), (other, -sign)):
            for row, action in scores(path):
                expected[row] += chance * advantage / 4 * (np.eye(2)[action] - policy[row])
    mean = independent("grpo", "two_steps", 2).mean
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    assert bias(mean, truth("two_steps").gradient).direction > 0.05


@pytest.mark.parametrize(("name", "trees"), [("two_steps", 3), ("stops", 3), ("corridor", 2)])
def test_values_that_hold_the_sample_itself_shrink_the_gradient(name, trees):
    # VinePPO on the tree's own continuations: (T - 1) / T above the fork, (K - 1) / K below.
    scale = np.full(len(truth(name).gradient), 1 / 2)
    scale[trunk(name)] = (trees - 1) / trees
    mean = estimated("vineppo", name, trees).mean
    np.testing.assert_allclose(mean, scale[:, None] * truth(name).gradient, atol=1e-6)


@pytest.mark.parametrize("name", ["two_steps", "corridor"])
def test_results_centred_within_each_tree_say_nothing_of_the_trunk(name):
    # Tree-GRPO: the results of a tree's leaves add up to 0, and the trunk takes their mean.
    found = estimated("tree_grpo", name, 2)
    np.testing.assert_allclose(found.mean[trunk(name)], 0, atol=1e-6)
    variances = np.diag(found.covariance).reshape(found.mean.shape)
    np.testing.assert_allclose(variances[trunk(name)], 0, atol=1e-12)
    # The sum of both comparisons does, but not in the right proportion.
    both = estimated("tree_grpo_sum", name, 2).mean
    assert np.abs(both[trunk(name)]).max() > 0.01
    assert bias(both, truth(name).gradient).direction > 0.01


@pytest.mark.parametrize("name", EXAMPLES)
def test_forked_states_count_too_often_without_path_weights(name):
    # GiGPO's mean over tokens: in every process the direction is off.
    assert bias(estimated("gigpo", name, 2).mean, truth(name).gradient).direction > 0.1


@pytest.mark.parametrize("name", EXAMPLES)
def test_half_root_comparison_and_half_local_comparison(name):
    # The trunk learns from the roots' half alone: half of its gradient; below the fork all of it.
    mix = mixture(independent("rloo", name, 2), estimated("none", name, 1))
    scale = np.ones(len(mix.mean))
    scale[trunk(name)] = 0.5
    np.testing.assert_allclose(mix.mean, scale[:, None] * truth(name).gradient, atol=1e-6)
    parts = independent("rloo", name, 2).variance, estimated("none", name, 1).variance
    assert mix.variance == pytest.approx(sum(parts) / 4)
    assert mix.leaves == independent("rloo", name, 2).leaves + estimated("none", name, 1).leaves
    # Tree credit makes both halves: of whole rollouts the one, of a single tree the other.
    for made, row, trees in ((independent, "rloo", 2), (estimated, "none", 1)):
        found, same = made("tree", name, trees), made(row, name, trees)
        np.testing.assert_allclose(found.covariance, same.covariance, atol=1e-5)
        np.testing.assert_allclose(found.mean, same.mean, atol=1e-6)


def test_a_mean_over_tokens_is_unbiased_where_all_episodes_are_equally_long():
    row = dataclasses.replace(ESTIMATORS["tree"], reduce="token_mean")
    found = estimated(row, "corridor", 2).mean
    np.testing.assert_allclose(3 * found, truth("corridor").gradient, atol=1e-6)
    # Elsewhere the denominator depends on what is sampled.
    off = bias(estimated(row, "stops", 2).mean, truth("stops").gradient)
    assert off.direction > 0.02


def test_forks_chosen_on_the_finished_backbone_are_biased():
    # The first decision of "stops" has the largest entropy, and is a candidate only where it is not
    # the last one: it is forked where the backbone went on.
    process, policy = EXAMPLES["stops"]
    off = {}
    for name, select in (("ahead", highest_entropy(1)), ("online", SELECT["certain"])):
        groups = enumerate_groups(process, policy, Design(2, 2, select))
        mean = moments(groups, gradients(ESTIMATORS["tree"], process, policy, groups)).mean
        off[name] = np.abs(mean - truth("stops").gradient).max()
    assert off["online"] < 1e-12
    assert off["ahead"] > 1e-2


def test_a_mean_of_the_subtree_has_less_variance_than_one_leaf():
    leaf = dataclasses.replace(ESTIMATORS["tree"], node_return="leaf")
    for name in ("two_steps", "corridor"):
        np.testing.assert_allclose(estimated(leaf, name, 2).mean, truth(name).gradient, atol=1e-12)
        assert estimated("tree", name, 2).variance < estimated(leaf, name, 2).variance


def test_samples_have_the_moments_of_all_outcomes():
    process, policy = EXAMPLES["corridor"]
    expected = estimated("tree", "corridor", 2)
    groups = sample_groups(process, policy, Design(2, 2, at_depths(1)), 3000, 5)
    found = moments(groups, gradients(ESTIMATORS["tree"], process, policy, groups))
    error = np.sqrt(np.diag(expected.covariance) / 3000).reshape(found.mean.shape)
    assert (np.abs(found.mean - expected.mean) < 5 * error + 1e-12).all()
    # Of a variance, with the fourth moments of returns below 1, a few per cent.
    assert found.variance == pytest.approx(expected.variance, rel=0.1)
    assert found.norm_mean == pytest.approx(expected.norm_mean, rel=0.05)
    assert found.norm_variance == pytest.approx(expected.norm_variance, rel=0.15)
    assert (found.steps, found.leaves) == pytest.approx((expected.steps, 4))
    assert expected.steps == pytest.approx(2 * (3 + 2))


def test_moments_of_numbers_by_hand():
    process, policy = EXAMPLES["two_steps"]
    pair = enumerate_groups(process, policy, Design(1))[:2]
    pair = [pair[0]._replace(chance=0.25), pair[1]._replace(chance=0.75)]
    found = moments(pair, np.array([[[3.0, 4.0]], [[0.0, 0.0]]]))
    np.testing.assert_allclose(found.mean, [[0.75, 1.0]])
    np.testing.assert_allclose(found.covariance, np.array([[9, 12], [12, 16]]) * 3 / 16)
    assert found.variance == pytest.approx(75 / 16)
    assert (found.norm_mean, found.norm_variance) == (1.25, pytest.approx(75 / 16))
    assert found.noise == pytest.approx(3)
    assert found.steps == 2 and found.noise_per_step() == pytest.approx(6)


def test_norms_of_batches_by_hand():
    found = np.array([[[3.0, 4.0]], [[0.0, 0.0]], [[6.0, 8.0]], [[0.0, 10.0]], [[7.0, 7.0]]])
    # Norms 5, 0, 10, 10 and 9.9; of the means of pairs 2.5 and sqrt(3^2 + 9^2), the fifth is left.
    means = [2.5, np.sqrt(90)]
    expected = (means[1] - means[0]) ** 2 / 2 / np.mean(means) ** 2
    assert norm_noise(found, 2) == pytest.approx(expected)
    assert norm_noise(found[:2], 1) == pytest.approx(2)
    with pytest.raises(ValueError, match="5 groups make 1 batches of 3"):
        norm_noise(found, 3)


def test_bias_of_vectors_by_hand():
    gradient = np.array([[3.0, -4.0]])
    assert bias(gradient, gradient) == (0, 1, 0)
    half = bias(gradient / 2, gradient)
    assert half == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0, abs=1e-15))
    across = bias(np.array([[4.0, 3.0]]), gradient)
    assert across == (pytest.approx(np.sqrt(2)), pytest.approx(0), pytest.approx(1))
    assert bias(np.zeros((1, 2)), gradient) == (1, 0, 1)


def test_bad_input_is_refused():
    process, policy = EXAMPLES["two_steps"]
    groups = enumerated("two_steps", 1)
    with pytest.raises(ValueError, match=r"add up to .* not 1"):
        moments(groups[1:], np.zeros((len(groups) - 1, 3, 2)))
    with pytest.raises(ValueError, match="exact gradient is 0"):
        bias(np.ones((1, 2)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="both be 2 or more"):
        predicted_ratio(truth("two_steps"), 1, 1, 4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture(*[Moments(np.zeros((1, 1)), np.zeros((1, 1)), 0, 0, 1, 1)] * 2, share=2)
    with pytest.raises(ValueError, match="Did you mean 'bpo'"):
        gradients("bpoo", process, policy, groups)
    with pytest.raises(ValueError, match="a policy here has shape"):
        gradients("bpo", process, policy[:2], groups)
