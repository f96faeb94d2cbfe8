"""Branch points: known answers of every selector, and how forks are shared out among them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sepo_jax.rollout.branching import Branching, choose
from sepo_jax.rollout.selectors import SELECTORS, first_above, highest, lowest, shares, uniform

ENTROPY = np.array([0.3, 1.2, 0.9, 1.2, 0.1])
OFFSETS = np.array([0, 60, 100, 130, 300])


def test_the_highest_entropies_with_ties_to_the_earlier():
    assert highest(ENTROPY, OFFSETS, 1, 0).tolist() == [1]
    assert highest(ENTROPY, OFFSETS, 2, 0).tolist() == [1, 3]
    assert highest(ENTROPY, OFFSETS, 3, 0).tolist() == [1, 2, 3]
    assert highest(ENTROPY, OFFSETS, 9, 0).tolist() == [0, 1, 2, 3, 4]
    assert highest(ENTROPY, OFFSETS, 0, 0).tolist() == []
    assert highest(np.zeros(4), np.arange(4), 2, 0).tolist() == [0, 1]


def test_spacing_is_in_tokens_and_the_better_one_stays():
    # 1 is taken first, and 3 lies 70 tokens on; 2 is too near to both.
    assert highest(ENTROPY, OFFSETS, 3, 64).tolist() == [1, 3, 4]
    assert highest(ENTROPY, OFFSETS, 3, 71).tolist() == [1, 4]
    assert highest(ENTROPY, OFFSETS, 3, 60).tolist() == [0, 1, 3]
    assert highest(ENTROPY, OFFSETS, 3, 1000).tolist() == [1]


def test_the_lowest_entropies():
    assert lowest(ENTROPY, OFFSETS, 2, 0).tolist() == [0, 4]
    assert lowest(np.array([2.0, 1.0, 1.0]), np.arange(3), 1, 0).tolist() == [1]
    assert lowest(ENTROPY, OFFSETS, 3, 64).tolist() == [0, 2, 4]


def test_the_first_above_a_threshold_whatever_comes_later():
    assert first_above(ENTROPY, OFFSETS, 2, 0, 0.5).tolist() == [1, 2]
    assert first_above(ENTROPY, OFFSETS, 2, 64, 0.5).tolist() == [1, 3]
    assert first_above(ENTROPY, OFFSETS, 2, 0, 1.2).tolist() == []
    # What is chosen up to a decision does not depend on what follows it.
    whole = first_above(ENTROPY, OFFSETS, 3, 64, 0.2)
    for length in range(1, 6):
        part = first_above(ENTROPY[:length], OFFSETS[:length], 3, 64, 0.2)
        assert part.tolist() == [position for position in whole if position < length]


def test_uniform_draws_every_decision_alike():
    draws = [uniform(np.random.default_rng([7, n]), OFFSETS, 2, 0).tolist() for n in range(2000)]
    again = [uniform(np.random.default_rng([7, n]), OFFSETS, 2, 0).tolist() for n in range(9)]
    assert draws[:9] == again
    counts = np.bincount(np.concatenate(draws), minlength=5)
    # 800 each, with a standard deviation of 22.
    assert counts.sum() == 4000 and np.abs(counts - 800).max() < 110


def test_the_last_decision_is_left_out_but_not_by_a_threshold():
    generator, rising = np.random.default_rng(0), np.array([0.1, 0.2, 0.9])
    offsets = np.arange(3)

    def chosen(selector, entropy=rising, count=1):
        branching = Branching(count, 2, selector, spacing=0, threshold=0.5)
        return choose(branching, entropy, offsets[: len(entropy)], generator).tolist()

    assert chosen("entropy") == [1] and chosen("entropy", count=3) == [0, 1]
    assert chosen("lowest", rising[::-1]) == [1]
    assert chosen("uniform", count=3) == [0, 1]
    assert chosen("threshold") == [2]
    for selector in SELECTORS:
        assert chosen(selector, rising[:1], count=2) == [0]  # the only one, and the root
    assert chosen("threshold", np.array([0.1, 0.2])) == [0]


def test_last_bits_of_entropies_choose_nothing():
    offsets, generator = np.arange(4), np.random.default_rng(0)
    for noise in (0.0, 3e-6, -3e-6):
        entropy = np.array([1e-6, 3e-7 + noise, 2e-6, 0.0])
        assert choose(Branching(1, 2, "entropy", 0), entropy, offsets, generator).tolist() == [0]
        assert choose(Branching(1, 2, "lowest", 0), entropy, offsets, generator).tolist() == [0]


def test_forks_are_shared_out_equally_the_earlier_first():
    assert shares(6, 2) == [3, 3]
    assert shares(7, 3) == [3, 2, 2]
    assert shares(2, 3) == [1, 1, 0]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**31),
    decisions=st.integers(1, 12),
    branching=st.builds(
        Branching,
        branch_points=st.integers(1, 5),
        continuations=st.integers(2, 5),
        selector=st.sampled_from(SELECTORS),
        spacing=st.integers(0, 120),
        threshold=st.sampled_from([0.0, 0.4, 0.9]),
    ),
)
def test_choices_keep_their_distance_and_spend_the_budget(seed, decisions, branching):
    generator = np.random.default_rng(seed)
    entropy, offsets = generator.random(decisions), generator.integers(1, 50, decisions).cumsum()
    points = choose(branching, entropy, offsets, generator)
    assert 1 <= len(points) <= branching.branch_points
    assert points.tolist() == sorted(set(points.tolist())) and points[-1] < len(entropy)
    assert all(np.diff(offsets[points]) >= branching.spacing)
    counts = shares(branching.forks, len(points))
    assert sum(counts) == branching.branch_points * (branching.continuations - 1)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"selector": "entropi"}, "unknown selector 'entropi'. Did you mean 'entropy'"),
        ({"entropy_of": "last_token"}, "unknown entropy_of 'last_token'"),
        ({"branch_points": -1}, "branch_points must be a whole number from 0 on, got -1"),
        ({"continuations": 0}, "continuations must be a whole number from 1 on, got 0"),
        ({"trees_per_prompt": 1.5}, "trees_per_prompt must be a whole number from 1 on, got 1.5"),
        ({"spacing": True}, "spacing must be a whole number from 0 on, got True"),
        ({"threshold": float("nan")}, "threshold must be a finite number"),
    ],
)
def test_bad_options(wrong, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        Branching(**wrong)


def test_budgets():
    assert (Branching(2, 4).forks, Branching(2, 4).leaves) == (6, 7)
    assert Branching(1, 4, trees_per_prompt=2).leaves == 8
    assert Branching(0, 4).leaves == Branching(3, 1).leaves == 1
