"""Scores of matrix answers: known values, bounds, baselines, rows with intervals."""

import json
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_games import exact_residual, moved_games, rounding
from zero_sum_games import KNOWN

from sepo_jax.domains.matrix_game import (
    NOT_DISTRIBUTION,
    NOT_PARSABLE,
    VALID,
    Answer,
    anonymous,
    messages,
    parse,
    reply,
)
from sepo_jax.domains.matrix_rules import MatrixRules, relative_residual
from sepo_jax.evaluation.matrix_benchmark import (
    baseline_answers,
    best_pure_answer,
    has_saddle,
    residual_reward,
    saddle_answer,
    score_answers,
    score_baselines,
    summarise,
    uniform_answer,
)
from sepo_jax.games.solve import solve_zero_sum

RPS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
ROCK = Answer(VALID, (1, 0, 0), (1, 0, 0))
BROKEN = Answer(NOT_PARSABLE)
HALF = Answer(NOT_DISTRIBUTION)


def random_answers(tables, seed=0):
    rng = np.random.default_rng(seed)
    strategies = [[tuple(rng.dirichlet(np.ones(size))) for size in t.shape] for t in tables]
    return [Answer(VALID, *pair) for pair in strategies]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([[(2, 2), (3, 3)], [(1, 5), (4, 2), (3, 3)], [(1, 1)]]),
    st.integers(0, 2**31),
    st.sampled_from([1.0, 1e-9, 1e12, 3.7e-300, 1e300]),
    st.sampled_from([0.0, 1.0, -1e6]),
)
def test_scores_do_not_see_scale_offset_or_neighbours(shapes, seed, scale, offset):
    rng = np.random.default_rng(seed)
    tables = [rng.uniform(-1, 1, shape).round(2) for shape in shapes]
    answers = random_answers(tables, seed)
    scores = score_answers(tables, answers)
    moved = score_answers([scale * (table + offset) for table in tables], answers)
    np.testing.assert_allclose(moved.residual, scores.residual, atol=1e-6)
    np.testing.assert_allclose(moved.row_residual, scores.row_residual, atol=1e-6)
    assert ((scores.residual >= 0) & (scores.residual <= 1)).all()
    assert (scores.row_residual <= scores.residual + 1e-12).all() and (
        scores.row_residual >= 0
    ).all()
    for number, (table, answer) in enumerate(zip(tables, answers, strict=True)):
        spread = table.max() - table.min()
        by_hand = (table @ answer.col).max() - (np.array(answer.row) @ table).min()
        assert scores.residual[number] * spread == pytest.approx(by_hand, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(moved_games())
def test_any_scale_and_offset(game):
    """Scores of s A + c as rounded are those of exact fractions, and up to rounding those of A;
    baselines and saddle points are those of A wherever rounding leaves its payoffs apart."""
    table, moved, row, col = game
    answer = Answer(VALID, tuple(row), tuple(col))
    answers = [answer, uniform_answer(table), BROKEN]
    scores = score_answers([moved] * 3, answers)
    residual = [exact_residual(moved, a.row, a.col) for a in answers[:2]]
    np.testing.assert_allclose(scores.residual[:2], residual, atol=1e-12)
    by_rules = relative_residual(moved.tolist(), answer)
    assert by_rules == pytest.approx(residual[0], abs=1e-12)
    rewards = residual_reward([moved] * 3, answers)
    np.testing.assert_allclose(rewards, [*(1 - np.array(residual)), 0], atol=1e-12)
    baselines = score_baselines([moved])
    assert baselines["exact"].residual[0] <= sum(table.shape) / 400 + 1e-9
    assert baselines["uniform"].residual[0] == pytest.approx(residual[1], abs=1e-12)
    assert (baselines["best_pure"].residual[0] == 0) == has_saddle(moved)
    # Rounding keeps the order of payoffs, but for ties.
    assert has_saddle(moved) or not has_saddle(table)
    if len(np.unique(moved)) == len(np.unique(table)):
        assert has_saddle(moved) == has_saddle(table)
        assert best_pure_answer(moved) == best_pure_answer(table)
        assert saddle_answer(moved) == saddle_answer(table)
    if (loose := rounding(table, moved)) < 0.1:
        plain = score_answers([table] * 3, answers)
        np.testing.assert_allclose(scores.residual, plain.residual, atol=loose + 1e-12)
        np.testing.assert_allclose(scores.row_residual, plain.row_residual, atol=loose + 1e-12)
        for threshold in (0.1, 0.3):
            clear = ~(np.abs(plain.residual - threshold) <= loose + 1e-9)
            same = scores.success(threshold) == plain.success(threshold)
            assert same[clear].all()


@settings(deadline=None, max_examples=60)
@given(moved_games())
def test_any_scale_and_offset_through_prompt_and_reply(game):
    """What a solver reads in the prompt is the game that is scored, and its reply earns the same
    whatever the unit: at most (m + n) / 400 less than 1, for printing two decimals."""
    _, moved, row, col = game
    task = anonymous(moved.tolist())
    lines = messages(task)[1]["content"].splitlines()[3:]
    shown = np.array([line.partition(": ")[2].split(" ") for line in lines], float)
    np.testing.assert_array_equal(shown, moved)
    solution = solve_zero_sum(shown)
    record = {"arm": "any", "game": json.loads(json.dumps(task.record()))}
    for pair, most in (((solution.row, solution.col), sum(task.shape) / 400), ((row, col), 1)):
        text = f"The answer is {reply(*pair)}"
        answer = parse(text, *task.shape)
        (reward,) = residual_reward([moved], [answer])
        assert 1 - most - 1e-9 <= reward <= 1
        assert reward == pytest.approx(1 - exact_residual(moved, answer.row, answer.col), abs=1e-12)
        earned, said = MatrixRules().judge(record, text)
        assert earned == pytest.approx(reward, abs=1e-12)
        assert said["success"] == score_answers([moved], [answer]).success()[0]


def test_known_values():
    """Rock against rock: each gains 1 of a range of 2 by playing paper."""
    scores = score_answers([RPS] * 4, [ROCK, uniform_answer(RPS), BROKEN, HALF])
    np.testing.assert_allclose(scores.residual, [1, 0, np.nan, np.nan], atol=1e-15)
    np.testing.assert_allclose(scores.row_residual, [0.5, 0, np.nan, np.nan], atol=1e-15)
    assert scores.valid.tolist() == [True, True, False, False]
    assert scores.parsable.tolist() == [True, True, False, True]
    assert scores.success().tolist() == [False, True, False, False]
    assert scores.success(1.0).tolist() == [True, True, False, False]
    np.testing.assert_allclose(scores.reward, [0, 1, 0, 0], atol=1e-15)
    np.testing.assert_array_equal(
        residual_reward([RPS] * 4, [ROCK, uniform_answer(RPS), BROKEN, HALF]), scores.reward
    )


@pytest.mark.parametrize("constant", [0.0, 7.0, -7.0, 1e12, 5e-324])
def test_a_constant_game_rewards_any_valid_answer(constant):  # F10
    table = np.full((3, 4), constant)
    answers = [*random_answers([table]), BROKEN, HALF]
    assert residual_reward([table] * 3, answers).tolist() == [1, 0, 0]
    assert score_answers([table] * 3, answers).residual[0] == 0
    # Every profile is an equilibrium: all baselines succeed, every cell is a saddle point.
    assert has_saddle(table)
    assert all(each.residual[0] == 0 for each in score_baselines([table]).values())
    game = {"arm": "any", "game": anonymous(table.tolist()).record()}
    assert MatrixRules().judge(game, reply(answers[0].row, answers[0].col))[0] == 1


# Every zero-sum game of the cases, through its prompt: uniform play is never taken for the answer.
@pytest.mark.parametrize("name", KNOWN)
def test_known_games_through_their_prompts(name):  # F06, F08, F09, F10
    payoffs, _, row, _ = KNOWN[name]
    table = np.array(payoffs, float)
    game = {"arm": "cases", "game": anonymous(table.tolist()).record()}
    solution = solve_zero_sum(table)
    reward, record = MatrixRules().judge(game, reply(solution.row, solution.col))
    assert record["success"] and reward >= 1 - sum(table.shape) / 400 - 1e-9
    if row is not None and max(row) > min(row):
        even = uniform_answer(table)
        assert MatrixRules().judge(game, reply(even.row, even.col))[0] < 1


def test_the_threshold_itself_is_a_success():
    """[[0, 1], [1, 0]] with row (0.55, 0.45): min_j xᵀA = 0.45, max_i A y = 0.5 for y uniform."""
    table = np.array([[0, 1], [1, 0]])
    scores = score_answers([table], [Answer(VALID, (0.55, 0.45), (0.5, 0.5))])
    assert scores.success(0.05).all() and not scores.success(0.0499).any()
    assert score_answers([10 * table], [Answer(VALID, (0.55, 0.45), (0.5, 0.5))]).success(0.05)


# 20,000 draws, four standard errors beside the last digit of the known figures.
@pytest.mark.parametrize(
    ("n", "two_sided", "one_sided"),
    [(2, 0.034, 0.326), (3, 0.001, 0.117), (5, 0.0, 0.028), (7, 0.0, 0.007)],
)
def test_uniform_play_on_random_games(n, two_sided, one_sided):
    """Share of payoffs uniform in [-1, 1] whose residual, not divided by the range, is <= 0.1."""
    games = np.random.default_rng(n).uniform(-1, 1, (20_000, n, n))
    scores = score_answers(games, [uniform_answer(games[0])] * len(games))
    spread = games.max(axis=(1, 2)) - games.min(axis=(1, 2))
    for residual, known in ((scores.residual, two_sided), (scores.row_residual, one_sided)):
        share = (residual * spread <= 0.1).mean()
        assert abs(share - known) <= 4 * np.sqrt(known / len(games)) + 1e-3


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (5, 5), (2, 4)])
def test_probability_of_a_saddle_point(shape):
    """n! m! / (n + m - 1)! for independent continuous payoffs."""
    m, n = shape
    known = factorial(m) * factorial(n) / factorial(m + n - 1)
    games = np.random.default_rng(m + n).uniform(-1, 1, (20_000, m, n))
    share = np.mean([has_saddle(game) for game in games])
    assert abs(share - known) <= 4 * np.sqrt(known * (1 - known) / len(games))


def test_best_pure_play_is_the_saddle_point_where_there_is_one():
    """No pure profile has a smaller residual, and it is 0 exactly at saddle points."""
    rng = np.random.default_rng(0)
    for shape in ((2, 2), (3, 2), (3, 4)):
        for table in rng.integers(-3, 4, (60, *shape)).astype(float):
            answer = best_pure_answer(table)
            (least,) = score_answers([table], [answer]).residual
            eyes = [np.eye(size) for size in shape]
            every = [Answer(VALID, tuple(x), tuple(y)) for x in eyes[0] for y in eyes[1]]
            assert least == score_answers([table] * len(every), every).residual.min()
            assert has_saddle(table) == (least == 0)
            expected = answer if least == 0 else uniform_answer(table)
            assert saddle_answer(table) == expected


def test_baselines_of_ragged_games():
    rng = np.random.default_rng(1)
    shapes = [(2, 2), (3, 3), (7, 7), (12, 12), (1, 5), (3, 8), (16, 16)]
    games = [rng.uniform(-1, 1, shape) for shape in shapes for _ in range(20)]
    scores = score_baselines(games)
    assert list(scores) == ["uniform", "saddle", "best_pure", "exact"]
    assert all(each.valid.all() for each in scores.values())
    # What rounding to two decimals can cost at most, see `domains.matrix_game.reply`.
    sizes = np.array([sum(game.shape) for game in games])
    assert (scores["exact"].residual <= sizes / 400 + 1e-9).all()
    assert scores["exact"].success().all()
    assert scores["uniform"].success().mean() < 0.2
    for game, answer in zip(games, baseline_answers(games)["exact"], strict=True):
        solution = solve_zero_sum(game)
        if solution.unique:
            assert np.abs(np.array(answer.row) - solution.row).max() < 0.01


def test_rows():
    """Rates by hand; Wilson's interval of 0 of 2 is [0, z² / (2 + z²)]."""
    answers = [ROCK, uniform_answer(RPS), BROKEN, HALF, BROKEN, BROKEN]
    scores = score_answers([RPS] * 6, answers)
    first, second = summarise(scores, ["a", "a", "a", "a", "b", "b"])
    assert (first.group, first.count, second.group, second.count) == ("a", 4, "b", 2)
    assert first.parsable.value == 0.75 and first.valid.value == 0.5
    assert first.success.value == 0.25 and first.success_given_valid.value == 0.5
    assert first.success_given_valid.count == 2
    assert first.residual.mean == pytest.approx(0.5) and first.reward == 0.25
    assert first.residual.low == pytest.approx(0) and first.residual.high == pytest.approx(1)
    assert first.curve[0.05] == 0.25 and list(first.curve)[-1] == 0.5
    assert second.success_given_valid is None and second.residual is None
    assert second.valid.low == 0
    assert second.valid.high == pytest.approx(1.959964**2 / (2 + 1.959964**2), abs=1e-6)
    record = second.record()
    assert record["residual"] is None and record["valid"][0] == 0
    assert first.record()["curve"]["0.1"] == 0.25
    assert first.record()["row_residual"][0] == pytest.approx(0.25)


def test_one_answer_has_no_interval_of_its_mean():
    (row,) = summarise(score_answers([RPS], [ROCK]), ["a"])
    assert row.record()["residual"] == [1.0, None, None]


@pytest.mark.parametrize(
    ("payoffs", "answers", "message"),
    [
        ([], [], "no games to score"),
        ([RPS], [], "0 answers to 1 games; give one for each"),
        ([RPS[0]], [ROCK], r"game 0 must be a table \[m, n\] of finite numbers, not of shape \[3"),
        ([[[np.nan]]], [Answer(VALID, (1,), (1,))], "game 0 must be a table"),
        ([RPS, [[1.0]]], [ROCK, ROCK], "answer 1 has 3 and 3 probabilities for a game of 1 by 1"),
        ([[[1.0, 2.0]]], [Answer(VALID, (1,), (0.5, 0.6))], "col strategy .*does not sum to 1"),
    ],
)
def test_bad_input(payoffs, answers, message):
    for score in (score_answers, residual_reward):
        with pytest.raises(ValueError, match=message):
            score(payoffs, answers)


def test_bad_groups_and_thresholds():
    scores = score_answers([RPS], [ROCK])
    with pytest.raises(ValueError, match="2 group names for 1 scores"):
        summarise(scores, ["a", "b"])
    with pytest.raises(ValueError, match="shares of the range, not negative"):
        summarise(scores, ["a"], thresholds=(-0.1,))
