"""Exact figures of tabular policies, against numbers by hand, all paths, and finite differences."""

import dataclasses
import itertools

import numpy as np
import pytest
from tabular_credit import finite_difference

from sepo_jax.domains.decision_process import (
    OVER,
    DecisionProcess,
    exact,
    paths_from,
    process_of_paths,
    sample_paths,
)

TWO_STEPS = process_of_paths({(a, b): a + b for a in (0, 1) for b in (0, 1)})
QUARTER = np.tile([0.75, 0.25], (3, 1))


def noisy():
    """Two hidden states to begin in, an action that may end the episode, and chance after it."""
    return DecisionProcess(
        start=np.array([0.3, 0.7, 0, 0, 0, 0, 0]),
        observation=np.array([0, 0, 1, 2, OVER, OVER, OVER]),
        legal=np.array([[True, True, True], [True, False, True], [True, True, False]]),
        successor=np.array(
            [
                [[2, 3], [4, 3], [2, 5]],
                [[3, 5], [2, 4], [3, 2]],
                [[3, 6], [0, 0], [5, 4]],
                [[4, 5], [6, 5], [0, 0]],
                *np.zeros((3, 3, 2), int),
            ]
        ),
        chance=np.tile([0.2, 0.8], (7, 3, 1)),
        reward=np.array([0, 0, 0.4, -0.3, 1.0, 2.5, -1.2]),
    )


def every_path(process, policy):
    """(probability, path) of all episodes."""
    for state in np.flatnonzero(process.start):
        for path in paths_from(process, policy, int(state)):
            yield process.start[state] * path.chance, path


def test_the_two_step_process_by_hand():
    # R = a1 + a2, both 1 with p = 1/4, independent: E = 1/2, Var = 2 * 3/16. The first score's
    # gradient is p (1 - p) * 1; the second ones' are weighed by the chance of the first action.
    found = exact(TWO_STEPS, QUARTER)
    assert found.value == pytest.approx(0.5, abs=1e-15)
    assert found.variance == pytest.approx(6 / 16, abs=1e-15)
    np.testing.assert_allclose(found.gradient[:, 1], [3 / 16, 9 / 64, 3 / 64], atol=1e-15)
    np.testing.assert_allclose(found.gradient[:, 0], -found.gradient[:, 1], atol=1e-15)
    # After the first action half of the variance is left, after the second nothing.
    np.testing.assert_allclose(found.within, [6 / 16, 3 / 16, 0], atol=1e-15)
    np.testing.assert_allclose(found.explained, [0, 0.5, 1], atol=1e-15)
    np.testing.assert_allclose(found.visits, [1, 0.75, 0.25], atol=1e-15)


def test_figures_are_those_of_all_paths():
    process = noisy()
    policy = process.softmax_policy(np.random.default_rng(0).normal(size=(3, 3)))
    chance, paths = zip(*every_path(process, policy), strict=True)
    chance, returns = np.array(chance), np.array([sum(path.rewards) for path in paths])
    found = exact(process, policy)
    assert chance.sum() == pytest.approx(1, abs=1e-14)
    assert found.value == pytest.approx(chance @ returns, abs=1e-14)
    assert found.variance == pytest.approx(chance @ (returns - found.value) ** 2, abs=1e-13)
    for depth, within in enumerate(found.within):
        # Episodes that were the same up to this state, the past rewards among it.
        groups = {}
        for index, path in enumerate(paths):
            past = path.states[: depth + 1], path.actions[:depth], path.rewards[:depth]
            over = len(path.actions) <= depth
            groups.setdefault((past, over and index), []).append(index)
        expected = 0.0
        for members in groups.values():
            weight, earned = chance[members], returns[members]
            mean = weight @ earned / weight.sum()
            expected += weight @ (earned - mean) ** 2
        assert within == pytest.approx(expected, abs=1e-13)
    assert len(found.within) == max(len(path.actions) for path in paths) + 1


def test_the_gradient_is_that_of_the_value_by_the_logits():
    process = noisy()
    logits = np.random.default_rng(1).normal(size=9)

    def value(flat):
        return exact(process, process.softmax_policy(flat.reshape(3, 3))).value

    found = exact(process, process.softmax_policy(logits.reshape(3, 3))).gradient
    np.testing.assert_allclose(found.ravel(), finite_difference(value, logits), atol=1e-9)
    assert not found[~process.legal].any()


def test_samples_are_paths_as_often_as_they_are_probable():
    process = noisy()
    policy = process.uniform_policy()
    rng, count = np.random.default_rng(2), 20_000
    start = rng.choice(7, count, p=process.start)
    expected = {path[1:]: chance for chance, path in every_path(process, policy)}
    seen = dict.fromkeys(expected, 0)
    for path in sample_paths(process, policy, start, rng):
        assert path.chance == 1 / count
        seen[path[1:]] += 1  # a path that cannot happen would be a KeyError
    for path, chance in expected.items():
        error = np.sqrt(chance * (1 - chance) / count)
        assert abs(seen[path] / count - chance) < 5 * error, path


def test_actions_of_probability_0_are_not_taken():
    policy = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    paths = list(paths_from(TWO_STEPS, policy, 0))
    assert [(path.actions, path.chance) for path in paths] == [((0, 1), 1.0)]
    drawn = sample_paths(TWO_STEPS, policy, np.zeros(500, int), np.random.default_rng(0))
    assert {path.actions for path in drawn} == {(0, 1)}


def test_paths_may_end_early():
    process = process_of_paths({(0,): 2.0, (1, 0): 0.0, (1, 1): 4.0, (1, 2): 8.0})
    assert process.names == ("", "1")
    assert process.legal.tolist() == [[True, True, False], [True, True, True]]
    found = exact(process, process.uniform_policy())
    # Half of the time 2, else 0, 4 or 8: mean 3, mean square (4 + (16 + 64) / 3) / 2 = 46 / 3.
    assert found.value == pytest.approx(3)
    assert found.variance == pytest.approx(46 / 3 - 9)
    # Only the second half has anything left after the first action: Var(0, 4, 8) = 32 / 3.
    np.testing.assert_allclose(found.within, [46 / 3 - 9, 16 / 3, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": np.full(7, 0.5)}, "start must be probabilities"),
        ({"start": np.eye(7)[4]}, "must not start in a state where it is over"),
        ({"reward": np.zeros(3)}, r"reward has shape \(3,\), expected \(7,\)"),
        ({"observation": np.array([0, 0, 1, 3, -1, -1, -1])}, "one of 3 rows"),
        ({"chance": np.full((7, 3, 2), 0.4)}, "chance must be probabilities"),
        ({"successor": np.zeros((7, 3, 2), int)}, "state 0 leads to .* a later one"),
        ({"legal": np.zeros((3, 3), bool)}, "observation 0 allows no action"),
    ],
)
def test_tables_that_are_no_process_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(noisy(), **changes)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.ones((2, 2)) / 2, r"shape \(3, 2\), not \(2, 2\)"),
        (np.ones((3, 2)), "row 0 of the policy"),
        (np.array([[0.5, 0.5], [1.5, -0.5], [0.5, 0.5]]), "row 1 of the policy"),
    ],
)
def test_policies_that_are_none_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        exact(TWO_STEPS, policy)
    illegal = np.full((3, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"row 1 .* of the actions \[0, 2\]"):
        exact(noisy(), illegal)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({}, "one or more"),
        ({(0,): 1.0, (0, 1): 2.0}, "none a prefix of another"),
        ({(0,): 1.0, (2,): 2.0}, "without a gap"),
        (dict.fromkeys(itertools.product((1, 2), repeat=1), 1.0), "without a gap"),
    ],
)
def test_paths_that_make_no_process_are_refused(rewards, message):
    with pytest.raises(ValueError, match=message):
        process_of_paths(rewards)
