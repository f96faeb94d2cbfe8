"""Scripts in the agent's place, and match play in a game without a compiled tree."""

import json
import random

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.domains.ipd import AlwaysDefect, IteratedPrisonersDilemma, TitForTat
from sepo_jax.domains.joint import JointDomain
from sepo_jax.evaluation import match_play, matches, scripted_baselines, scripted_play
from sepo_jax.evaluation.complete import evaluate_policy, render_text
from sepo_jax.evaluation.scripted import UniformPlayer
from sepo_jax.rollout import Rollout
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeResult
from sepo_jax.sepo import SepoWeights
from sepo_jax.sepo.exact import exact_terms

PAPER = (2.4, 1.0, 1.8)


def test_tit_for_tat_scores_what_the_paper_says():
    found = scripted_play(
        IteratedPrisonersDilemma(), TitForTat, episodes=2, weights=PAPER, pools=("exploiter",)
    )
    # Loses 5 in the first of 8 rounds to AlwaysDefect, and nothing to AlternatingDefect: 5 / 8 / 2.
    assert found.figures["exploit_pool_advantage"] == 0.3125
    # Own payoffs: 7 rounds of 1; and 0, 5, 0, 5, ...
    assert found.figures["robustness"] == pytest.approx((7 / 8 + 2.5) / 2)
    assert [row.opponent for row in found.rows] == ["AlwaysDefect", "AlternatingDefect"]
    assert found.rows[0].own.mean == 7 / 8 and found.rows[0].opponent_payoff == 12 / 8


def test_uniform_play_takes_every_legal_action():
    found = scripted_play(
        IteratedPrisonersDilemma(), UniformPlayer, episodes=400, seed=3, weights=PAPER
    )
    rows = {(row.pool, row.opponent): row.own for row in found.rows}
    # Half of the rounds a defection is met, and half the time it is answered: (0 + 1) / 2.
    own = rows["exploiter", "AlwaysDefect"]
    assert abs(own.mean - 0.5) < 5 * own.standard_error < 0.1
    own = rows["collusive", "AlwaysCooperate"]
    assert abs(own.mean - 4.0) < 5 * own.standard_error < 0.2
    assert found.figures["collusion_low"] < 0.5 < found.figures["collusion_high"]
    json.dumps(found.figures, allow_nan=False)


def test_uniform_play_agrees_with_exact_values():
    domain, weights = Kuhn(collusion="fold_rate"), SepoWeights(1.5, 1.0, 0.5)
    found = scripted_play(domain, UniformPlayer, episodes=600, seed=1, weights=weights).figures
    table = dict.fromkeys(("J", "Q", "K", "Jp", "Qp", "Kp", "Jb", "Qb", "Kb"), (0.5, 0.5))
    table |= dict.fromkeys(("Jpb", "Qpb", "Kpb"), (0.5, 0.5))
    exact = exact_terms(domain, table, weights)
    for name in ("utility", "exploit_pool_advantage", "collusion", "externality", "safety"):
        width = found[f"{name}_high"] - found[f"{name}_low"]
        assert abs(found[name] - exact[name]) < 1.5 * width, name


def defector(policy, params, requests, pool, options, *, seed, step, progress):
    """Stands for `rollout.play`: an agent that always defects."""
    results = []
    for request in requests:
        environment = pool(None)
        turn = environment.reset(request.task, request.seed)
        while not turn.done:
            turn = environment.step({0: "DEFECT"})
        results.append(EpisodeResult(request, "finished", (), (), record=turn.record))
    return Rollout(results)


def test_scripts_and_policies_play_the_same_episodes(monkeypatch):
    monkeypatch.setattr(matches, "play", defector)
    options = {"episodes": 5, "seed": 7, "weights": PAPER}
    domain = IteratedPrisonersDilemma(rounds=3)
    scripted = scripted_play(domain, AlwaysDefect, **options)
    played = match_play(None, None, domain, **options)
    assert played == scripted and played.figures["collusion"] == 1.0
    assert all(row.exact is None for row in played.rows)
    # The same in environments that serve several games.
    joint = JointDomain([Kuhn(), domain])
    again = match_play(
        None, None, domain, **options, environments=domain_environments(joint),
        label={"game": "ipd"},
    )  # fmt: skip
    assert again == scripted


def test_baselines_are_uniform_play_and_the_expert_with_the_highest_safety():
    domain, options = IteratedPrisonersDilemma(), {"episodes": 20, "seed": 0, "weights": PAPER}
    found = scripted_baselines(domain, **options)
    safety = {
        name: scripted_play(domain, factory, **options).figures["safety"]
        for name, (_, factory) in domain.experts.items()
    }
    best = max(safety, key=safety.get)
    assert list(found) == ["uniform", f"expert/{best}"]
    assert found[f"expert/{best}"]["safety"] == safety[best]
    assert found["uniform"]["safety"] < safety[best]
    for figures in found.values():
        assert "legal_rate" not in figures and "failed_rollouts" not in figures
        assert figures["safety_low"] <= figures["safety"] <= figures["safety_high"]
    assert found == scripted_baselines(domain, **options)


def test_a_whole_evaluation_without_a_compiled_game(monkeypatch):
    monkeypatch.setattr(matches, "play", defector)
    domain = IteratedPrisonersDilemma(rounds=3)
    record = evaluate_policy(None, None, domain, None, episodes=4, weights=SepoWeights(*PAPER))
    assert "nash_conv" not in record and len(record["matches"]) == 7
    assert "uniform" in record["baselines"] and len(record["baselines"]) == 2
    json.dumps(record, allow_nan=False)
    text = render_text(record)
    assert "safety weighs e, c and x by " in text and f"{PAPER[2]:g}\n" in text
    expert = next(name for name in record["baselines"] if name.startswith("expert/"))
    assert expert in text and "nra_gtbench" in text and "NashConv" not in text
    line = next(line for line in text.splitlines() if line.split()[:1] == ["collusion"])
    values = [record["baselines"][name]["collusion"] for name in ("uniform", expert)]
    assert all(f"{value:+.4f}" in line for value in (1.0, *values))


def test_too_few_episodes_and_unknown_pools_are_refused():
    domain = IteratedPrisonersDilemma()
    with pytest.raises(ValueError, match="at least 2"):
        scripted_play(domain, TitForTat, episodes=1, weights=PAPER)
    with pytest.raises(ValueError, match="Did you mean 'train'"):
        scripted_play(domain, TitForTat, weights=PAPER, pools=("trian",))


def test_uniform_actions_are_uniform():
    player, counts = UniformPlayer(), np.zeros(2)
    domain = IteratedPrisonersDilemma(rounds=1)
    episode = domain.new_episode("TitForTat", 0)
    player.reset(random.Random(4))
    for _ in range(1000):
        counts[player.act(episode.view())] += 1
    # A fair coin leaves 500 by more than 5 standard deviations, 79, less than once in a million.
    assert abs(counts[0] - 500) < 79
