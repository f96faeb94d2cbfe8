"""Claims of BPO: what decides each, on figures that are given, and what is measured."""

import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.domains.decision_process import exact
from sepo_jax.evaluation.branching_examples import EXAMPLES
from sepo_jax.evaluation.branching_theory import Bias, bias, predicted_ratio
from sepo_jax.evaluation.branching_trees import Design, at_depths, enumerate_groups
from sepo_jax.evaluation.claims import FAILS, HOLDS, NOT_COMPARABLE, UNDECIDED, verdict
from sepo_jax.training.setup import make_domain, make_policy

pytestmark = pytest.mark.usefixtures("compile_fast")
claims = script_module("claims")
bpo = script_module("claims.bpo")
estimates = script_module("claims.bpo_estimates")
exactly = script_module("claims.bpo_exact")
gradients = script_module("claims.bpo_gradients")
runs = script_module("claims.runs")
selectors = script_module("claims.bpo_selectors")
variance = script_module("claims.bpo_variance")


def test_every_claim_says_what_is_published_and_what_is_measured():
    assert list(claims.FAMILIES["bpo"].claims) == list(bpo.CLAIMS)
    for name, claim in bpo.CLAIMS.items():
        assert claims.CLAIMS[name] is claim and name.startswith("bpo/")
        assert claim.measure.__name__ == name.removeprefix("bpo/")
        assert claim.measure.__doc__.count("Published") == 1


# ---- expectations; what is exact has no interval that could cross a bound


@pytest.mark.parametrize(
    ("local", "whole", "expected"),
    [
        (1e-17, 1e-12, HOLDS),
        (1e-3, 1e-12, FAILS),
        (1e-17, 1e-6, FAILS),
        (np.nan, 0, NOT_COMPARABLE),
    ],
)
def test_the_largest_error_decides(local, whole, expected):
    errors = {"local": {"a": 0.0, "b": local}, "whole": {"a": whole}, "prefix": {"a": 0.5}}
    findings = exactly.unbiasedness_findings(errors, {"exact": 3 / 16, "none": 0.0})
    assert verdict(findings) == expected


def test_siblings_of_the_examples_are_unbiased():
    measured = exactly.local_unbiasedness(runs.Runs(None, None, None))
    assert verdict(measured.findings) == HOLDS
    by_name = {finding.name: finding.found.mean for finding in measured.findings}
    # p (1 - p) with p = 1/4; whatever is compared at the second decision leaves the first at 0.
    assert by_name["two steps, first logit, exact"] == pytest.approx(3 / 16)
    assert by_name["two steps, first logit, tree"] == pytest.approx(3 / 16)
    for row in ("none", "lambda"):
        assert by_name[f"two steps, first logit, {row}"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("published", "expected"), [(1e-7, HOLDS), (0.4, FAILS)])
def test_the_papers_own_estimate_decides_the_bias(published, expected):
    found = {label: [Bias(0.0, 1.0, 0.0), Bias(0.9, 0.1, 0.2)] for label in exactly.ESTIMATES}
    found[exactly.PUBLISHED] = [Bias(0.0, 1.0, 0.0), Bias(published, 1.0, 0.0)]
    assert verdict(exactly.bias_findings(found)) == expected


def test_what_a_single_tree_leaves_out_is_its_trunk():
    # Below the fork siblings are exact, above it there is nothing: the bias is the norm of the
    # gradient above by that of the whole, (3/16 to 3/16 and 9/64, 3/64 below).
    gradient = exact(*EXAMPLES["two_steps"]).gradient
    parts = np.array([3 / 16, 9 / 64, 3 / 64])
    expected = parts[0] / np.sqrt((parts**2).sum())
    arm = estimates.Arm(estimates.TREE, 1, 2, at_depths(1))
    found = bias(exactly.expected_gradient(arm, "two_steps"), gradient)
    assert found.relative == pytest.approx(expected, abs=1e-9)
    assert found.direction == pytest.approx(expected, abs=1e-9)


def test_the_factor_of_an_advantage():
    for name, factor in exactly.advantage_factors((2, 3)).items():
        assert factor == pytest.approx(1, abs=1e-5), name


# ---- noise


def test_scaled_noise_is_free_of_the_unit_and_counts_a_lost_direction():
    # Two values about (1, 0) at a distance of 1: variance 2 by n - 1; twice as long, the same.
    found = np.array([[1.0, 1.0], [1.0, -1.0]])
    gradient = np.array([2.0, 0.0])
    assert estimates.scaled_noise(found, gradient) == pytest.approx(2.0)
    assert estimates.scaled_noise(10 * found, gradient) == pytest.approx(2.0)
    # The same variance about (1, 1), which is its gradient: 2 by a squared length of 2.
    other = np.array([[1.0, 2.0], [1.0, 0.0]])
    assert estimates.scaled_noise(other, np.array([1.0, 1.0])) == pytest.approx(1.0)
    assert estimates.scaled_noise(found, np.array([0.0, 1.0])) == np.inf


def test_shares_of_seeds_and_ratios():
    assert [each.tolist() for each in estimates.by_seed(np.arange(7), 3)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]
    assert estimates.ratios([1.0, 6.0], [2.0, 3.0]) == [0.5, 2.0]


def test_the_interval_of_ratios_is_that_of_their_logarithms():
    # Logarithms -1, 0 and 1 have the error 1 / sqrt(3); t of two degrees of freedom is 4.3027.
    found = estimates.geometric_interval(np.exp([-1.0, 0.0, 1.0]))
    assert found.mean == pytest.approx(1.0)
    assert found.high == pytest.approx(np.exp(4.3027 / np.sqrt(3)), rel=1e-4)
    assert found.low == pytest.approx(1 / found.high)


def test_batches_are_of_whole_prompts():
    # Five prompts make two batches of two, the fifth is left.
    played = gradients.Episodes([[n] for n in range(5)], np.ones(5), 1.0)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "build_forest", made.append)
        assert len(played.batches(2, 9)) == 2 and len(played.batches(2, 1)) == 1
    assert made == [[0, 1], [2, 3], [0, 1]]


def test_spread_of_batches_by_hand():
    batches = estimates.Batches.of(np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]), np.array([2, 0]))
    # Norms 5, 0, 10; about (3, 4) the squared distances are 0, 25 and 25.
    assert estimates.norm_variance(batches) == pytest.approx(25)
    assert estimates.relative_norm_variance(batches) == pytest.approx(1)
    assert estimates.variance(batches) == pytest.approx(25)
    # The mean (3, 4) is 3/2 of (2, 0) along it.
    assert estimates.noise(batches) == pytest.approx(25 / 1.5**2)
    left = batches.without(1)
    assert estimates.norm_variance(left) == pytest.approx(12.5)
    with pytest.raises(ValueError, match="give 3 or more"):
        estimates.Batches.of(np.ones((2, 2)))


def test_ratios_of_variances_hold_their_truth():
    # Normal gradients in ten dimensions with standard deviations 2 and 1: variances are 4 to 1.
    generator = np.random.default_rng(0)
    inside, widths = 0, []
    for _ in range(40):
        pair = [estimates.Batches.of(s * generator.normal(size=(40, 10))) for s in (2.0, 1.0)]
        found = estimates.ratio_of(*pair, estimates.variance)
        inside += 4.0 in found
        widths.append(np.log(found.high / found.low))
    assert inside >= 33  # 38 expected; fewer than 33 has a probability below 1%
    # trace Cov of n has relative variance 2 / (n d): the width is 2 z sqrt(2 x 2 / 400).
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.1, rel=0.15)


# ---- the condition


def cell(predicted, measured, steps=0.8):
    """A cell whose ratio to both baselines is about `measured` at matched leaves."""
    base = np.array([1.0, 1.1, 0.9, 1.0])
    moved = measured * base * np.array([1.01, 0.99, 1.0, 1.0])
    return variance.Cell(predicted, moved, dict.fromkeys(variance.BASELINES, base), steps)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.4, 0.9), HOLDS),
        ((0.4, 1.2), FAILS),
        ((0.4, 1.0), UNDECIDED),
    ],
)
def test_the_noisiest_cell_decides_the_condition(ratios, expected):
    grid = {
        part: {f"cell {n}": cell(0.5, ratio) for n, ratio in enumerate(ratios)}
        for part in ("local", "whole")
    }
    grid["whole"]["cell 0"] = cell(0.5, 30.0)  # shown alone
    findings = variance.condition_findings(grid, {"K = 2": 1.0})
    assert verdict(findings) == expected
    (decides,) = [finding for finding in findings if finding.decides]
    assert "cell 1" in decides.name and decides.found.mean == pytest.approx(ratios[1], rel=0.01)


def test_agreement_with_the_prediction_counts_cells():
    cells = [cell(0.5, 0.7), cell(0.5, 1.2), cell(1.5, 1.2), cell(1.5, 0.7)]
    assert variance.agreement(cells, "rloo", "leaves") == 0.5
    # At matched steps the second lies below 1 as well: 1.2 x 0.8 = 0.96, and so does the third.
    assert variance.agreement(cells, "grpo", "steps") == 0.5
    assert variance.agreement(cells[:2], "grpo", "steps") == 1.0


def test_the_corridors_door_explains_its_share():
    # Of Var(R) under uniform play the door explains the share of the option: what is left within is
    # the rest, and the prediction for K = N is that rest, as both factors are equal.
    for share in variance.SHARES:
        process = variance.corridor_of(variance.LENGTH, share)
        found = exact(process, process.uniform_policy())
        assert predicted_ratio(found, 1, 4, 4) == pytest.approx(1 - share)


def test_samplers_draw_a_design_once_and_count_its_steps():
    process = variance.corridor_of(4, 0.5)
    sampler = variance.Sampler(process, process.uniform_policy(), 6)
    design = Design(1, 3, at_depths(1))
    found = sampler.gradients(estimates.TREE, design)
    assert found is sampler.gradients(estimates.TREE, design) and len(found) == 6
    assert sampler.steps(design) == 4 + 2 * 3
    (noise,) = sampler.noise(estimates.TREE, design, 1, np.arange(len(process.legal)))
    assert noise == estimates.scaled_noise(found, sampler.exact.gradient)


# ---- selectors


def noises(entropy, uniform, lowest=2.0):
    values = {"entropy": entropy, "uniform": uniform, "lowest": lowest, "threshold": 0.1}
    each = {s: [v * f for f in (1.0, 1.2, 0.9)] for s, v in values.items()}
    each["entropy"] = [entropy * f for f in (1.05, 1.15, 0.92)]
    return dict.fromkeys(selectors.ESTIMATES, each)


@pytest.mark.parametrize(
    ("entropy", "uniform", "expected"),
    [(1.0, 1.5, HOLDS), (1.5, 1.0, FAILS), (1.0, 1.0, UNDECIDED)],
)
def test_entropy_must_beat_what_the_paper_compares_it_with(entropy, uniform, expected):
    given = noises(entropy, uniform)
    off = {selector: [0.1, 0.2] for selector in selectors.SELECTORS}
    findings = selectors.selector_findings(given, given, off)
    assert verdict(findings) == expected
    # The threshold, which the paper does not have, decides nothing.
    assert not any("threshold" in finding.name for finding in findings if finding.decides)


def test_choices_are_those_of_rollouts():
    entropies = [0.3, 0.6, 0.1, 0.69]
    assert selectors.one_point("entropy", 0)(entropies) == [1]  # the last is no candidate
    assert selectors.one_point("lowest", 0)(entropies) == [2]
    assert selectors.one_point("threshold", 0)(entropies) == [1]
    assert selectors.one_point("threshold", 0)([0.2, 0.3]) == [0]  # none is above
    draws = selectors.one_point("uniform", 0)
    assert {tuple(draws(entropies)) for _ in range(30)} == {(0,), (1,), (2,)}


def test_two_trees_of_one_choice_are_those_of_the_design():
    process, policy = EXAMPLES["stops"]
    found = selectors.two_trees(process, policy, [at_depths(1)])
    expected = enumerate_groups(process, policy, Design(2, 2, at_depths(1)))
    assert {g.trees: pytest.approx(g.chance) for g in expected} == {
        g.trees: g.chance for g in found
    }
    mixed = selectors.two_trees(process, policy, [at_depths(0), at_depths(1)])
    assert sum(group.chance for group in mixed) == pytest.approx(1)


def test_forks_of_a_choice_that_looks_ahead_are_biased():
    # In three decisions entropy chooses between the first and the second. With this policy the
    # entropy of the first lies between those of the second behind an open and a shut door: whether
    # the first is forked depends on where it led. One drawn, or the first above 0.5, is not biased.
    process = variance.corridor_of(selectors.SHORT, selectors.SHARE)
    policy = selectors.random_policy(process, 1)
    entropy = dict(zip(process.names, -(policy * np.log(policy)).sum(axis=1), strict=True))
    (first,) = [value for name, value in entropy.items() if "turn 0" in name]
    second = [value for name, value in entropy.items() if "turn 1" in name]
    assert min(second) < first < max(second)
    found = selectors.enumerated_bias(1)
    assert max(found["uniform"], found["threshold"]) < 1e-5
    assert min(found["entropy"], found["lowest"]) > 0.01


# ---- batches of gradients


def given_gradients(spread):
    """Arms whose batches have gradients of norm about 1 with a spread of their own."""
    generator, found = np.random.default_rng(3), {}
    for label in gradients.TABULAR:
        size = 1 + spread.get(label, 1.0) * 0.1 * generator.normal(size=60)
        vectors = size[:, None] * np.array([[1.0, 0.0]])
        batches = estimates.Batches.of(vectors, np.array([1.0, 0.0]))
        found[label] = gradients.Gradients(batches, 100.0, 200.0)
    return found


# Variances are squares of these.
SMALL, LARGE, NEAR = ({gradients.PUBLISHED: spread} for spread in (0.3, 1.5, 0.7))


@pytest.mark.parametrize(
    ("tabular", "language", "expected"),
    [
        (SMALL, SMALL, HOLDS),
        (SMALL, SMALL | {gradients.OWN: 1.5}, HOLDS),  # shown alone
        (SMALL, LARGE, FAILS),
        (LARGE, SMALL, FAILS),
        (SMALL, NEAR, UNDECIDED),
        (SMALL, SMALL | {"GRPO": 0.3}, FAILS),  # halved against RLOO alone
    ],
)
def test_half_the_norm_variance_of_both(tabular, language, expected):
    findings = gradients.variance_findings(given_gradients(tabular), given_gradients(language))
    assert verdict(findings) == expected


def test_a_smaller_unit_does_not_halve_the_variance():
    found = given_gradients({})
    batches = found[gradients.PUBLISHED].batches
    short = estimates.Batches(batches.gram / 100, batches.along / 10)
    found[gradients.PUBLISHED] = found[gradients.PUBLISHED]._replace(batches=short)
    findings = {each.name: each for each in gradients.variance_findings(found, found)}
    assert findings["raw norm, as published / GRPO, tabular"].met
    assert not findings["norm, as published / GRPO, tabular"].met
    assert verdict(list(findings.values())) != HOLDS


def test_arms_take_about_as_many_decisions_and_leaves():
    steps = {}
    for label, (arm, prompts) in gradients.TABULAR.items():
        process = variance.corridor_of(gradients.LENGTH, gradients.SHARE)
        sampler = variance.Sampler(process, process.uniform_policy(), 3)
        steps[label] = prompts * sampler.steps(arm.design)
    assert max(steps.values()) < 1.03 * min(steps.values())
    leaves = {label: arm.branching.leaves for label, arm in gradients.LANGUAGE.items()}
    assert leaves == {gradients.PUBLISHED: 7, gradients.OWN: 8, "GRPO": 8, "RLOO": 8}


def test_the_language_policy_imitates_an_expert_that_knows_nothing():
    settings = gradients.language_settings(True, 3)
    assert settings.rl.steps == 0 and settings.sft.steps > 0 and settings.seed == 3
    options = settings.domain.options
    assert options["expert_skill"] == 0 and options["prefix_share"] == gradients.SHARE
    assert options["length"] == gradients.LENGTH


@pytest.mark.slow
def test_a_fresh_language_policy_has_gradients_of_every_arm():
    settings = gradients.language_settings(True, 0)
    policy = make_policy(settings, make_domain(settings.domain))
    found = gradients.language_gradients(settings, *policy, 3)
    for label, each in found.items():
        assert np.isfinite(each.batches.gram).all(), label
        assert each.tokens > each.steps
    # Eight episodes of every prompt; trees of as many steps, to half a prompt in four.
    grpo = gradients.LANGUAGE["GRPO"].prompts * 8 * gradients.LENGTH
    assert found["GRPO"].steps == found["RLOO"].steps == grpo
    for label in (gradients.PUBLISHED, gradients.OWN):
        assert found[label].steps == pytest.approx(grpo, rel=0.15)
