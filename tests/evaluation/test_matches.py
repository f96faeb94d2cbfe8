"""Match play and the sampled NashConv against exact values."""

import dataclasses
import json

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.evaluation import (
    match_play,
    matches,
    nash_conv_of_table,
    play_matches,
    sampled_nash_conv,
    table_from_named,
)
from sepo_jax.evaluation.complete import evaluate_policy, render_text
from sepo_jax.evaluation.policy_table import ExactNashConv, PolicyTable
from sepo_jax.games.kuhn import KUHN
from sepo_jax.games.leduc import LEDUC
from sepo_jax.policy import Sampling
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_terms


def _rows(seed=3):
    """A policy that no equilibrium looks like, so that errors of seat or sign show."""
    generator = np.random.default_rng(seed)
    return {name: (1 - p, p) for name, p in zip(KUHN.infoset_names, generator.random(12))}  # noqa: B905


class TabularPlayer:
    """Plays episodes by a table in place of a language model; some replies may be illegal."""

    def __init__(self, rows, illegal=0.0):
        self.rows, self.illegal, self.calls = rows, illegal, []

    def __call__(self, policy, params, episodes, *, sampling, seed, step, slots, max_action_tokens):
        self.calls.append((seed, step, len(episodes)))
        generator = np.random.default_rng([seed, step])
        for episode in episodes:
            while not episode.done:
                name = episode.observation.split()[-1]
                action = int(generator.random() < self.rows[name][1])
                word = episode.legal_actions()[action]
                episode.step("hmm" if generator.random() < self.illegal else word)


@pytest.fixture
def tabular(monkeypatch):
    """Makes the exact table that of `_rows`; returns a player of the same table."""
    table = table_from_named(KUHN, _rows()).table

    def known_table(policy, params, game, domain=None, *, temperature=1.0):
        return PolicyTable(table, np.zeros(12))

    monkeypatch.setattr(matches, "policy_table", known_table)
    return TabularPlayer(_rows())


def test_sampled_nash_conv_estimates_the_exact_value(tabular):
    exact = nash_conv_of_table(KUHN, table_from_named(KUHN, _rows()).table)
    found = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=4000, seed=0, player=tabular)
    assert abs(found.normal.mean - exact) < 4 * found.normal.standard_error
    assert found.normal.standard_error < 0.08
    assert found.normal.mean == found.bootstrap.mean
    assert found.normal.low == pytest.approx(found.bootstrap.low, abs=0.02)
    assert found.normal.count == 4000 and found.legal_rate == 1.0
    # A seat's part of NashConv is the best response's value there: gain plus value of the profile.
    for seat in (0, 1):
        value = exact.gains[seat] + exact.values[seat]
        assert abs(found.seats[seat].mean - value) < 4 * found.seats[seat].standard_error


def test_both_seats_weigh_alike_for_odd_numbers_of_episodes(tabular):
    found = match_play(None, None, Kuhn(), episodes=3, pools=["train"], player=tabular)
    assert [row.episodes for row in found.rows] == [4, 4, 4]
    assert all(count == 4 for _, _, count in tabular.calls)
    sampled = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=5, player=tabular)
    assert [seat.count for seat in sampled.seats] == [3, 3]
    # A match of several hands holds both seats itself.
    found = match_play(None, None, Kuhn(hands=2), episodes=3, pools=["train"], player=tabular)
    assert [row.episodes for row in found.rows] == [3, 3, 3]


def test_sampled_nash_conv_sees_what_the_table_leaves_out(tabular):
    # Illegal replies fall back to passing and folding, which the table knows nothing of.
    tabular.illegal = 0.5
    exact = nash_conv_of_table(KUHN, table_from_named(KUHN, _rows()).table)
    found = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=4000, seed=0, player=tabular)
    assert found.legal_rate == pytest.approx(0.5, abs=0.05)
    assert abs(found.normal.mean - exact) > 4 * found.normal.standard_error


def test_match_rows_agree_with_exact_payoffs(tabular):
    domain = Kuhn(collusion="fold_rate")
    found = match_play(None, None, domain, episodes=600, seed=1, player=tabular)
    assert len(found.rows) == sum(len(pool) for pool in domain.pools.values())
    for row in found.rows:
        assert row.exact is not None
        assert abs(row.own.mean - row.exact) < 4 * row.own.standard_error, row
        assert row.opponent_payoff == pytest.approx(-row.own.mean)
        assert row.legal_rate == 1.0 and row.episodes == 600
    # Against AlwaysBet, uniform play folds half of the hands that face a bet (-1) and calls the
    # rest at even odds (0), and bets half of its first moves, which are called at even odds:
    # second seat -1/2; first seat 1/2 * 0 + 1/2 * (-1/2) = -1/4; mean -3/8.
    always_bet = next(row for row in found.rows if row.opponent == "AlwaysBet")
    assert always_bet.uniform == pytest.approx(-3 / 8)


def test_figures_agree_with_their_exact_values(tabular):
    domain = Kuhn(collusion="fold_rate")
    weights = SepoWeights(1.5, 1.0, 0.5)
    figures = match_play(
        None, None, domain, episodes=600, seed=1, weights=weights, player=tabular
    ).figures
    exact = exact_terms(domain, _rows(), weights)
    for name in ("utility", "exploit_pool_advantage", "collusion", "externality", "safety"):
        width = figures[f"{name}_high"] - figures[f"{name}_low"]
        assert abs(figures[name] - exact[name]) < 1.5 * width, name
        assert figures[f"{name}_low"] <= figures[name] <= figures[f"{name}_high"]


def test_weights_may_be_three_numbers(tabular):
    options = {"episodes": 20, "seed": 0, "player": tabular}
    named = match_play(None, None, Kuhn(), weights=SepoWeights(2.0, 0.0, 1.0), **options)
    plain = match_play(None, None, Kuhn(), weights=(2.0, 0.0, 1.0), **options)
    assert named.figures["safety"] == plain.figures["safety"]


def test_play_is_a_function_of_the_seed_and_every_batch_has_its_own_keys(tabular):
    first = match_play(None, None, Kuhn(), episodes=30, seed=5, player=tabular)
    calls, tabular.calls = tabular.calls, []
    assert first == match_play(None, None, Kuhn(), episodes=30, seed=5, player=tabular)
    assert tabular.calls == calls and len(set(calls)) == len(calls)
    assert all(0 <= seed < 2**31 for seed, _, _ in calls)
    assert first != match_play(None, None, Kuhn(), episodes=30, seed=6, player=tabular)


def test_matches_of_several_hands_have_no_exact_payoff(tabular):
    found = match_play(
        None, None, Kuhn(hands=6), episodes=10, pools=("train",), seed=0, player=tabular
    )
    assert all(row.exact is None and row.uniform is None for row in found.rows)
    assert found.rows[0].own.count == 10  # intervals are over episodes, not hands
    figures = play_matches(None, None, Kuhn(hands=6), episodes=10, player=tabular)
    assert "sampled_nash_conv" not in figures and "safety" in figures


def test_truncated_sampling_has_no_exact_payoff(tabular):
    sampling = Sampling(temperature=1.0, top_p=0.9)
    found = match_play(
        None, None, Kuhn(), episodes=10, pools=("train",), sampling=sampling, player=tabular
    )
    assert all(row.exact is None for row in found.rows)


def test_figures_for_a_summary_are_flat_numbers(tabular):
    figures = play_matches(None, None, Kuhn(), episodes=40, seed=0, player=tabular)
    assert {"safety", "utility", "legal_rate", "sampled_nash_conv"} <= set(figures)
    assert figures["sampled_nash_conv_low"] <= figures["sampled_nash_conv"]
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: match_play(None, None, Kuhn(), episodes=1, player=p), "at least 2"),
        (lambda p: match_play(None, None, Kuhn(), pools=("trian",), player=p), "mean 'train'"),
        (lambda p: sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=2, player=p), "at least 4"),
        (lambda p: sampled_nash_conv(None, None, KUHN, Kuhn(hands=6), player=p), "hands=1"),
        (lambda p: sampled_nash_conv(None, None, GENERAL, Kuhn(), player=p), "not zero-sum"),
    ],
)
def test_bad_input_is_refused(tabular, call, message):
    with pytest.raises(ValueError, match=message):
        call(tabular)


GENERAL = dataclasses.replace(LEDUC, payoff_sum=None)


def test_a_language_policy_through_the_rollout_engine(flat_policy):
    # One random token names no action but by a chance of 2 in 423, and then the domain plays PASS
    # and FOLD for it: against AlwaysBet that loses exactly 1 chip a hand from either seat.
    policy, params = flat_policy
    domain = Kuhn(exploiters=("AlwaysBet",))
    record = evaluate_policy(
        policy, params, domain, KUHN, episodes=4, seed=0, slots=4, max_action_tokens=1
    )
    row = next(row for row in record["matches"] if row["opponent"] == "AlwaysBet")
    assert row["own"] == -1.0 and row["legal_rate"] == 0.0
    assert row["exact"] != pytest.approx(-1.0)  # the table is that of the legal replies
    assert record["nash_conv"] == pytest.approx(11 / 12, abs=1e-5)
    assert record["uniform_nash_conv"] == pytest.approx(11 / 12, abs=1e-12)
    assert record["illegal_mass"] > 0.999
    assert record["sampled_nash_conv"]["count"] == 40
    json.dumps(record, allow_nan=False)
    text = render_text(record)
    for part in (
        "NashConv       0.9167",
        "uniform play 0.9167",
        "not halved",
        "AlwaysBet",
        "safety",
    ):
        assert part in text, part


def test_details_travel_with_the_number():
    exact = nash_conv_of_table(KUHN, KUHN.uniform_policy())
    assert isinstance(exact, ExactNashConv) and isinstance(exact, float)
    assert exact / 2 == exact.exploitability and sum(exact.gains) == pytest.approx(exact)
