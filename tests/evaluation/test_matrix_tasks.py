"""The benchmark's games: arms, determinism, and that no training game is among them."""

import numpy as np
import pytest

from sepo_jax.evaluation.matrix_tasks import (
    ARMS,
    NOISE,
    benchmark_tasks,
    label_of,
    training_payoffs,
)
from sepo_jax.games import generate
from sepo_jax.games.solve import solve_zero_sum

COUNT = 40


@pytest.fixture(scope="module")
def arms():
    return benchmark_tasks(COUNT, seed=3)


def payoffs(games):
    return np.stack([game.payoffs for game in games])


def test_arms_and_sizes(arms):
    assert tuple(arms) == ARMS and {len(games) for games in arms.values()} == {COUNT}
    for arm, games in arms.items():
        for task, table in games:
            np.testing.assert_array_equal(table, task.payoffs)
            if "/" in arm:
                size = int(arm.rpartition("/")[2].rpartition("in")[2])
                assert table.shape == (size, size) and not task.title
                # Shown as it is.
                np.testing.assert_array_equal(table, table.round(2))


def test_the_same_seed_gives_the_same_games_whatever_else_is_asked(arms):
    again = benchmark_tasks(COUNT, seed=3, arms=["named", "dense/3"])
    assert list(again) == ["named", "dense/3"]
    for arm, games in again.items():
        assert [game.task for game in games] == [game.task for game in arms[arm]]
    other = benchmark_tasks(COUNT, seed=4, arms=["dense/3"])["dense/3"]
    assert not {game.task for game in other} & {game.task for game in again["dense/3"]}


def test_no_training_game_is_in_any_benchmark(arms):
    def hashes(tables):
        return {generate.content_hash(table) for table in tables}

    shown = hashes(game.payoffs for games in arms.values() for game in games)
    for n in (2, 3):
        games = training_payoffs(500, n, n, seed=3)
        assert games.shape == (500, n, n) and len(hashes(games)) == 500
        assert not hashes(games) & shown
        # Not by luck: all games that training drops are games that a benchmark may show.
        train, test = generate.split(games, (0.5, 0.5), seed=0)
        assert len(train) == 500 and not len(test)
        for arm in (f"dense/{n}", f"perturbed/{n}"):
            train, test = generate.split(payoffs(arms[arm]), (0.5, 0.5), seed=0)
            assert len(test) == COUNT and not len(train)


def test_perturbed_games_are_near_the_dense_ones(arms):
    for n in (2, 3):
        difference = np.abs(payoffs(arms[f"perturbed/{n}"]) - payoffs(arms[f"dense/{n}"]))
        assert 0.5 * NOISE < difference.max() <= NOISE + 0.005 + 1e-12


@pytest.mark.parametrize("size", [8, 12])
def test_only_three_actions_of_dominated_games_are_ever_played(arms, size):
    """Of the random control most equilibria play others."""
    played = {}
    for kind in ("dominated", "random"):
        games = payoffs(arms[f"{kind}/3in{size}"])
        solution = solve_zero_sum(games)
        played[kind] = np.maximum(*((each > 1e-9).sum(1) for each in (solution.row, solution.col)))
        low, high = games.min(axis=(1, 2)), games.max(axis=(1, 2))
        assert (high - low).max() <= 2 + 1e-9
    assert played["dominated"].max() <= 3
    assert (played["random"] > 3).mean() > 0.3
    # Rounding keeps every added action strictly dominated: three rows and columns are left.
    for table in payoffs(arms[f"dominated/3in{size}"]):
        rows = [i for i in range(size) if not any((table[k] > table[i]).all() for k in range(size))]
        core = table[rows]
        cols = [
            j for j in range(size) if not any((core.T[k] < core.T[j]).all() for k in range(size))
        ]
        assert len(rows) <= 3 and len(cols) <= 3


def test_the_named_arms_show_the_same_payoffs(arms):
    count = min(COUNT, len(generate.NAMED))
    for (first, table), (second, _), (third, _) in zip(
        arms["named"], arms["relabelled"], arms["anonymous"], strict=True
    ):
        assert first.payoffs == second.payoffs == third.payoffs
        assert first.title == second.title and not third.title
        assert set(first.row_actions) == set(second.row_actions)
        assert first.row_actions != second.row_actions
        assert third.row_actions[0] == "A1"
        (game,) = [game for game in generate.NAMED.values() if game.title == first.title]
        # Labels move with their actions: payoffs by label are those of the game, up to a unit.
        original = np.array(game.payoffs)
        order = [game.row_actions.index(label) for label in first.row_actions]
        cols = [game.col_actions.index(label) for label in first.col_actions]
        original = original[np.ix_(order, cols)]
        unit = table.max() / original.max() if original.max() else table.min() / original.min()
        np.testing.assert_allclose(table, unit * original, atol=1e-8)
    titles = [game.task.title for game in arms["named"][:count]]
    assert len(set(titles)) == count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: benchmark_tasks(0), "count must be at least 1, not 0"),
        (lambda: benchmark_tasks(1, seed=-1), "seed must be at least 0"),
        (lambda: benchmark_tasks(1, arms=[]), "names no arm of the benchmark; give one or more"),
        (lambda: benchmark_tasks(1, arms=["dense/33"]), "unknown arm 'dense/33'.*Did you mean"),
        (lambda: training_payoffs(1, 0, 2), "m must be at least 1"),
        (lambda: training_payoffs(1, 2, 2, seed=-1), "seed must be at least 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("dense/12", "12x12"),
        ("dominated/3in8", "3 in 8, dominated"),
        ("perturbed/2", "2x2, perturbed"),
        ("named", "named"),
    ],
)
def test_labels(arm, words):
    assert label_of(arm) == words
