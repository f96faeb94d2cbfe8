"""Scripted players of Kuhn poker and the expert traces."""

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.kuhn_players import (
    EXPERT_WEIGHTS,
    INFOSETS,
    expert_tables,
    nash_approx_table,
    opponent_tables,
)
from sepo_jax.games.kuhn import KUHN
from sepo_jax.games.tree import evaluate_on_host
from sepo_jax.sepo.exploiter import table_from_names


# Case of papers 1.9: as first mover the published NashApprox loses 1/9 chips a hand more than the
# value of the game to a best response; with the queen called 2/3 of the time, nothing.
@pytest.mark.parametrize(("faithful", "gain"), [(True, 1 / 9), (False, 0.0)])
def test_nash_approx_is_an_equilibrium_unless_faithful(faithful, gain):
    domain = Kuhn(faithful=faithful)
    table = domain.pools["train"]["NashApprox"]().table
    policy = table_from_names(KUHN, table)
    best = evaluate_on_host(KUHN, "best", policy)
    np.testing.assert_allclose(best, [-1 / 18, 1 / 18 + gain], atol=1e-12)
    np.testing.assert_allclose(evaluate_on_host(KUHN, "gains", policy).sum(), gain, atol=1e-12)
    assert domain.experts["NashApprox"][1]().table == table


def test_nash_family():
    for alpha in (0.0, 0.2, 1 / 3):
        policy = table_from_names(KUHN, nash_approx_table(alpha))
        np.testing.assert_allclose(evaluate_on_host(KUHN, "gains", policy), 0, atol=1e-12)
    with pytest.raises(ValueError, match=r"\[0, 1/3\]"):
        nash_approx_table(0.4)


def test_pools_and_opponents():
    domain = Kuhn()
    assert list(domain.pools["train"]) == ["NashApprox", "TightPassive", "LooseAggressive"]
    assert list(domain.pools["exploiter"]) == ["NashApprox", "AlwaysBet", "MaxExploiter"]
    assert list(domain.pools["collusive"]) == ["LooseAggressive"]
    assert list(Kuhn(exploiters=["MaxExploiter"]).pools["exploiter"]) == ["MaxExploiter"]
    assert (domain.name, domain.game, domain.max_payoff) == ("kuhn", "kuhn_poker", 2.0)
    # F20: always betting loses 2/3 to best responses, and the domain's table says so.
    table = table_from_names(KUHN, opponent_tables()["AlwaysBet"])
    np.testing.assert_allclose(evaluate_on_host(KUHN, "gains", table).sum(), 2 / 3, atol=1e-12)
    for named in (opponent_tables(), expert_tables()):
        assert all(set(rows) == set(INFOSETS) for rows in named.values())


def test_opponents_play_their_tables():
    counts = {}
    for seed in range(3000):
        episode = Kuhn().new_episode("LooseAggressive", seed, seat=1)
        view = episode.view()
        opponent_card = episode.deal[0]
        pair = counts.setdefault(opponent_card, [0, 0])
        pair[0] += view.history == "b"
        pair[1] += 1
    for card, (bets, total) in counts.items():
        expected = opponent_tables()["LooseAggressive"][card][1]
        assert abs(bets / total - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / total)


def test_expert_mixture_is_the_papers():
    assert EXPERT_WEIGHTS == {
        "NashApprox": 0.45,
        "TightValue": 0.25,
        "PotControl": 0.20,
        "RandomLegal": 0.08,
        "AlwaysPassQ": 0.02,
    }
    assert sum(EXPERT_WEIGHTS.values()) == pytest.approx(1)
    assert {n: w for n, (w, _) in Kuhn().experts.items()} == EXPERT_WEIGHTS


def test_expert_traces_follow_the_mixture():
    domain = Kuhn()
    traces = domain.expert_traces(12000, seed=1)
    assert len(traces) == 12000
    by_prompt = {str(domain.infoset_messages(name)): name for name in INFOSETS}
    counts = {name: [0, 0] for name in INFOSETS}
    for messages, reply in traces:
        name = by_prompt[str(messages)]
        action = domain.action_words(name).index(reply)
        counts[name][0] += action
        counts[name][1] += 1
    tables = expert_tables()
    for name, (bets, total) in counts.items():
        # An expert is drawn before the hand, so a later set weighs experts by who gets there.
        reach = {
            expert: weight * (tables[expert][name[0]][0] if name.endswith("pb") else 1.0)
            for expert, weight in EXPERT_WEIGHTS.items()
        }
        expected = sum(reach[e] * tables[e][name][1] for e in reach) / sum(reach.values())
        assert total > 100
        assert abs(bets / total - expected) < 4.5 * np.sqrt(expected * (1 - expected) / total)
    assert domain.expert_traces(50, 1) == traces[:50]
    assert domain.expert_traces(50, 2) != traces[:50]


def test_rationales_are_one_line_and_parse():
    for domain in (Kuhn(), Kuhn(hands=6)):
        lines = set()
        for messages, reply in domain.expert_traces(400, 3, rationale=True):
            reason, word = reply.split("\n")
            legal = ("FOLD", "CALL") if "FOLD" in messages[1]["content"] else ("PASS", "BET")
            assert domain.parse(reply, legal) == legal.index(word)
            lines.add(reason)
        assert len(lines) >= 8
