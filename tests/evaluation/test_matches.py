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
from sepo_jax.rollout import EngineOptions, Rollout
from sepo_jax.sandbox.episodes import EpisodeResult
from sepo_jax.sandbox.protocol import Failure, TooManyFailures
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_terms


def _rows(seed=3):
    """A policy that no equilibrium looks like, so that errors of seat or sign show."""
    generator = np.random.default_rng(seed)
    return {name: (1 - p, p) for name, p in zip(KUHN.infoset_names, generator.random(12))}  # noqa: B905


class TabularPlayer:
    """Stands for `rollout.play`: a table in place of a language model.

    Attributes:
      illegal: share of illegal replies. lost: every so manieth episode fails, 0 for none.
      calls: (seed, step, group, member) of every episode played.
    """

    def __init__(self, rows):
        self.rows, self.illegal, self.lost, self.calls = rows, 0.0, 0, []

    def __call__(self, policy, params, requests, pool, options, *, seed, step, progress):
        keys = [(seed, step, request.group, request.member) for request in requests]
        self.calls += keys
        results = [self.one(pool(None), *pair) for pair in zip(requests, keys, strict=True)]
        return Rollout(results)

    def one(self, environment, request, key):
        if self.lost and request.member % self.lost == 0:
            return EpisodeResult(request, "failed", (), ({},), failure=Failure("raised", "x"))
        generator = np.random.default_rng(key)
        turn = environment.reset(request.task, request.seed)
        while not turn.done:
            name = turn.prompts[0].observation.split()[-1]
            word = turn.prompts[0].legal_actions[int(generator.random() < self.rows[name][1])]
            turn = environment.step({0: "hmm" if generator.random() < self.illegal else word})
        return EpisodeResult(request, "finished", (), (), record=turn.record)


@pytest.fixture
def tabular(monkeypatch):
    """Makes the exact table that of `_rows`, and a player of the same table the one that plays."""
    table = table_from_named(KUHN, _rows()).table

    def known_table(policy, params, game, domain=None, *, temperature=1.0):
        return PolicyTable(table, np.zeros(12))

    player = TabularPlayer(_rows())
    monkeypatch.setattr(matches, "policy_table", known_table)
    monkeypatch.setattr(matches, "play", player)
    return player


def test_sampled_nash_conv_estimates_the_exact_value(tabular):
    exact = nash_conv_of_table(KUHN, table_from_named(KUHN, _rows()).table)
    found = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=4000, seed=0)
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
    found = match_play(None, None, Kuhn(), episodes=3, pools=["train"])
    assert [row.episodes for row in found.rows] == [4, 4, 4]
    groups = [group for *_, group, _ in tabular.calls]
    assert [groups.count(group) for group in sorted(set(groups))] == [4, 4, 4]
    sampled = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=5)
    assert [seat.count for seat in sampled.seats] == [3, 3]
    # A match of several hands holds both seats itself.
    found = match_play(None, None, Kuhn(hands=2), episodes=3, pools=["train"])
    assert [row.episodes for row in found.rows] == [3, 3, 3]


def test_sampled_nash_conv_sees_what_the_table_leaves_out(tabular):
    # Illegal replies fall back to passing and folding, which the table knows nothing of.
    tabular.illegal = 0.5
    exact = nash_conv_of_table(KUHN, table_from_named(KUHN, _rows()).table)
    found = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=4000, seed=0)
    assert found.legal_rate == pytest.approx(0.5, abs=0.05)
    assert abs(found.normal.mean - exact) > 4 * found.normal.standard_error


def test_match_rows_agree_with_exact_payoffs(tabular):
    domain = Kuhn(collusion="fold_rate")
    found = match_play(None, None, domain, episodes=600, seed=1)
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
    figures = match_play(None, None, domain, episodes=600, seed=1, weights=weights).figures
    exact = exact_terms(domain, _rows(), weights)
    for name in ("utility", "exploit_pool_advantage", "collusion", "externality", "safety"):
        width = figures[f"{name}_high"] - figures[f"{name}_low"]
        assert abs(figures[name] - exact[name]) < 1.5 * width, name
        assert figures[f"{name}_low"] <= figures[name] <= figures[f"{name}_high"]


def test_weights_may_be_three_numbers(tabular):
    options = {"episodes": 20, "seed": 0}
    named = match_play(None, None, Kuhn(), weights=SepoWeights(2.0, 0.0, 1.0), **options)
    plain = match_play(None, None, Kuhn(), weights=(2.0, 0.0, 1.0), **options)
    assert named.figures["safety"] == plain.figures["safety"]


def test_play_is_a_function_of_the_seed_and_every_episode_has_its_own_keys(tabular):
    first = match_play(None, None, Kuhn(), episodes=30, seed=5)
    calls, tabular.calls = tabular.calls, []
    assert first == match_play(None, None, Kuhn(), episodes=30, seed=5)
    assert tabular.calls == calls
    sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=30, seed=5)
    assert len(set(tabular.calls)) == len(tabular.calls) == len(calls) + 30
    assert all(0 <= seed < 2**31 for seed, *_ in tabular.calls)
    assert first != match_play(None, None, Kuhn(), episodes=30, seed=6)


def test_missing_episodes_enter_no_mean(tabular):
    """Every sixth episode fails: those have seat 0, which must not weigh less for it."""
    tabular.lost = 6
    domain = Kuhn(collusion="fold_rate")
    found = match_play(None, None, domain, episodes=600, seed=1)
    assert found.figures["failed_rollouts"] == 100 * len(found.rows)
    for row in found.rows:
        assert row.episodes == 500 and row.legal_rate == 1.0
        assert abs(row.own.mean - row.exact) < 4 * row.own.standard_error, row
    exact = nash_conv_of_table(KUHN, table_from_named(KUHN, _rows()).table)
    sampled = sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=4000, seed=0)
    assert [seat.count for seat in sampled.seats] == [2000, 2000 - 667]
    assert abs(sampled.normal.mean - exact) < 4 * sampled.normal.standard_error
    tabular.lost = 2  # all of seat 0
    with pytest.raises(TooManyFailures, match=r"no episode against train/.* one of the seats"):
        match_play(None, None, domain, episodes=10)
    with pytest.raises(TooManyFailures, match="no episode against the best response"):
        sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=10)


def test_matches_of_several_hands_have_no_exact_payoff(tabular):
    found = match_play(None, None, Kuhn(hands=6), episodes=10, pools=("train",), seed=0)
    assert all(row.exact is None and row.uniform is None for row in found.rows)
    assert found.rows[0].own.count == 10  # intervals are over episodes, not hands
    figures = play_matches(None, None, Kuhn(hands=6), episodes=10)
    assert "sampled_nash_conv" not in figures and "safety" in figures


def test_truncated_sampling_has_no_exact_payoff(tabular):
    sampling = Sampling(temperature=1.0, top_p=0.9)
    found = match_play(
        None, None, Kuhn(), episodes=10, pools=("train",), options=EngineOptions(sampling=sampling)
    )
    assert all(row.exact is None for row in found.rows)


def test_figures_for_a_summary_are_flat_numbers(tabular):
    figures = play_matches(None, None, Kuhn(), episodes=40, seed=0)
    assert {"safety", "utility", "legal_rate", "sampled_nash_conv"} <= set(figures)
    assert figures["sampled_nash_conv_low"] <= figures["sampled_nash_conv"]
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: match_play(None, None, Kuhn(), episodes=1), "at least 2"),
        (lambda: match_play(None, None, Kuhn(), pools=("trian",)), "mean 'train'"),
        (lambda: sampled_nash_conv(None, None, KUHN, Kuhn(), episodes=2), "at least 4"),
        (lambda: sampled_nash_conv(None, None, KUHN, Kuhn(hands=6)), "hands=1"),
        (lambda: sampled_nash_conv(None, None, GENERAL, Kuhn()), "not zero-sum"),
    ],
)
def test_bad_input_is_refused(tabular, call, message):
    with pytest.raises(ValueError, match=message):
        call()


GENERAL = dataclasses.replace(LEDUC, payoff_sum=None)


def test_a_language_policy_through_the_rollout_engine(flat_policy):
    # One random token names no action but by a chance of 2 in 423, and then the domain plays PASS
    # and FOLD for it: against AlwaysBet that loses exactly 1 chip a hand from either seat.
    policy, params = flat_policy
    domain = Kuhn(exploiters=("AlwaysBet",))
    record = evaluate_policy(
        policy,
        params,
        domain,
        KUHN,
        episodes=4,
        seed=0,
        options=EngineOptions(slots=4, max_action_tokens=1, capacity=256),
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
