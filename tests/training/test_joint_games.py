"""Training on several games at once, and on one without a compiled tree."""

import json

import numpy as np
import pytest
from training.scripted_rollouts import scripted

from sepo_jax.domains import Kuhn
from sepo_jax.domains.ipd import IteratedPrisonersDilemma
from sepo_jax.domains.joint import JointDomain
from sepo_jax.sepo import assign_rewards, from_episodes, objective_terms, objective_value
from sepo_jax.training import read_settings, train
from sepo_jax.training.run_directory import RunDirectory
from sepo_jax.training.sepo_stage import SepoStage
from sepo_jax.training.setup import make_policy
from sepo_jax.training.stages import SftStage

JOINT = JointDomain([IteratedPrisonersDilemma(rounds=2), Kuhn()], "all")
WEIGHTS = {"ipd": (2.4, 1.0, 1.8), "kuhn": (1.5, 0.0, 0.0)}


def joint_config(config, **sepo):
    config["domain"] |= {"name": "all", "games": ("ipd", "kuhn"), "rounds": 2}
    config["sepo"] |= {"game_weights": WEIGHTS, **sepo}
    config["rollout"] |= {"capacity": 512, "row_length": 512}
    return config


@pytest.fixture
def policy(small_config):
    return make_policy(read_settings(joint_config(small_config)), JOINT)


def by_seed(request):
    """A reply that depends on the episode alone; one in seven is unparsable."""
    number = (request.seed + request.member) % 7
    if request.task.get("game") == "kuhn":
        return ("PASS\nFOLD", "BET", "CALL", "PASS", "FOLD", "", "hmm")[number]
    return ("DEFECT", "COOPERATE", "DEFECT", "COOPERATE", "DEFECT", "", "hmm")[number]


def episodes_of(stage, game, params=None):
    """The played episodes of one game again, with their pools and rollouts."""
    episodes, pools, rollouts = [], [], []
    for seat in stage.seats(0, params):
        if seat.request.task["game"] != game:
            continue
        task = {key: value for key, value in seat.request.task.items() if key != "game"}
        episode = JOINT.games[game].new_episode(seed=seat.request.seed, **task)
        while not episode.done:
            episode.step(by_seed(seat.request) or episode.legal_actions()[0])
        episodes.append(episode)
        pools.append(seat.pool)
        rollouts.append(seat.rollout)
    return episodes, pools, rollouts


def test_games_are_rewarded_by_their_own_weights_and_averaged(policy, small_config, monkeypatch):
    config = joint_config(small_config, group_by="deal", exploiter_pool=("AlwaysBet",))
    stage = SepoStage(read_settings(config), policy[0], JOINT)
    calls = scripted(monkeypatch, by_seed)
    data = stage.data(0, None)
    assert len(calls) == 1 and len(calls[0]) == 4 * (4 + 2 + 1) + 4 * (3 + 1)
    totals, objectives = {}, {}
    for task in stage.tasks:
        episodes, pools, _ = episodes_of(stage, task.name)
        arrays = from_episodes(episodes, pools)
        terms = objective_terms(arrays)
        objectives[task.name] = objective_value(terms, task.weights, task.scale)
        rewards = assign_rewards(arrays, task.weights, task.scale, balance=True)
        totals[task.name] = (rewards.sum(), arrays.mask.sum())
        key = f"{task.name}/"
        assert data.metrics[f"{key}utility"] == pytest.approx(terms["utility"])
        assert data.metrics[f"{key}safety"] == pytest.approx(objectives[task.name])
        assert data.metrics[f"{key}reward"] == pytest.approx(rewards.sum(axis=1).mean())
    assert data.metrics["safety"] == pytest.approx(sum(objectives.values()) / 2)
    assert "utility" not in data.metrics and data.metrics["failed_rollouts"] == 0
    # The mean reward of a round is the mean of the games' own, however long they are.
    rounds = sum(count for _, count in totals.values())
    expected = sum(total / count for total, count in totals.values()) / 2
    assert data.forest.validate().reward.sum() / rounds == pytest.approx(expected, rel=1e-5)
    assert {sample.get("game") for sample in data.samples} == {"ipd", "kuhn"}


COUNTS = {
    # 4 opponents x 4 episodes; 2 exploiters and a partner, 2 episodes for each of these 16.
    "per_rollout": (16 + 3 * 32) + (12 + 24),
    # Auxiliary opponents: 2 x 4 episodes.
    "shared": (16 + 3 * 8) + (12 + 8),
}


@pytest.mark.parametrize("credit", list(COUNTS))
def test_train_episodes_of_all_games_train_where_the_others_only_measure(
    policy, small_config, monkeypatch, credit
):
    config = joint_config(
        small_config, credit=credit, group_by="round", returns="immediate", exploiter_episodes=2,
        exploiter_pool=("AlwaysBet",),
    )  # fmt: skip
    stage = SepoStage(read_settings(config), policy[0], JOINT)
    calls = scripted(monkeypatch, by_seed)
    data = stage.data(0, None)
    assert len(calls[0]) == COUNTS[credit]
    forest = data.forest.validate()
    actions = np.flatnonzero(forest.is_action)
    ipd, kuhn = stage.tasks
    found = {}
    for task in (ipd, kuhn):
        episodes, pools, rollouts = episodes_of(stage, task.name)
        arrays = from_episodes(episodes, pools, rollouts)
        rewards = assign_rewards(arrays, task.weights, task.scale, credit)
        trained = [
            episode for episode, pool in zip(episodes, pools, strict=True) if pool == "train"
        ]
        found[task.name] = [
            rewards[number, decision.round]
            for number, episode in enumerate(trained)
            for decision in episode.decisions
        ]
    # Every decision earns its round, penalties of its rollout included.
    np.testing.assert_allclose(forest.reward[actions], found["ipd"] + found["kuhn"], rtol=1e-5)
    assert len(found["ipd"]) == 16 * 2
    # Four opponents, two rounds: eight groups of four, and none is shared with the other game.
    groups = forest.group[actions]
    sizes = np.unique(groups[:32], return_counts=True)[1]
    assert list(sizes) == [4] * 8
    assert not set(groups[:32]) & set(groups[32:])


def test_the_best_response_of_one_game_plays_in_a_run_over_several(
    policy, small_config, monkeypatch
):
    config = joint_config(small_config, group_by="deal")
    stage = SepoStage(read_settings(config), policy[0], JOINT)
    scripted(monkeypatch, by_seed)
    data = stage.data(0, policy[1])
    (known,) = stage._known_gaps["kuhn"].items()
    assert known[0] == "exploiter/BestResponse" and known[1] > 0
    assert "kuhn/exploit_pool_advantage/BestResponse" in data.metrics
    assert "ipd/exploit_pool_advantage/AlwaysDefect" in data.metrics
    task = stage.tasks[1]
    episodes, pools, _ = episodes_of(stage, "kuhn", policy[1])
    arrays = from_episodes(episodes, pools)
    gaps = {known[0]: known[1]}
    rewards = assign_rewards(arrays, task.weights, task.scale, balance=True, known_gaps=gaps)
    assert data.metrics["kuhn/reward"] == pytest.approx(rewards.sum(axis=1).mean())


def test_a_game_whose_train_episodes_all_failed_leaves_the_others(
    policy, small_config, monkeypatch
):
    config = joint_config(small_config, exploiter_pool=("AlwaysBet",))
    stage = SepoStage(read_settings(config), policy[0], JOINT)
    scripted(monkeypatch, by_seed, lost=range(16))
    data = stage.data(0, None)
    assert "ipd/utility" not in data.metrics and "safety" not in data.metrics
    assert np.isfinite(data.metrics["kuhn/safety"]) and data.metrics["failed_rollouts"] == 16
    assert np.isfinite(data.forest.validate().reward).all()


def test_reward_only_plays_the_train_pools_alone(policy, small_config, monkeypatch):
    config = joint_config(small_config, objective="reward_only")
    stage = SepoStage(read_settings(config), policy[0], JOINT)
    calls = scripted(monkeypatch, by_seed)
    data = stage.data(0, None)
    assert len(calls[0]) == 16 + 12
    # What the safety score needs was not played.
    assert "ipd/utility" in data.metrics and "ipd/safety" not in data.metrics


@pytest.mark.slow
def test_a_run_over_two_games_leaves_the_figures_of_each(small_config, tmp_path):
    config = joint_config(small_config)
    config["sepo"]["steps"] = 2
    run = train(config, run_directory=tmp_path / "run", progress=False)
    summary = run.summary
    assert summary["games"] == ["ipd", "kuhn"]
    for stage in ("untrained", "sft", "sepo"):
        safety = [summary[f"{stage}/{game}/safety"] for game in ("ipd", "kuhn")]
        assert summary[f"{stage}/safety"] == pytest.approx(sum(safety) / 2)
        for name in ("utility", "robustness", "welfare", "nra_sepo", "nra_gtbench", "legal_rate"):
            assert f"{stage}/ipd/{name}_low" in summary, name
        assert 0 <= summary[f"{stage}/kuhn/nash_conv"] <= 4
        assert f"{stage}/ipd/nash_conv" not in summary
    assert summary["uniform/kuhn/nash_conv"] == pytest.approx(11 / 12, abs=1e-6)
    assert summary["uniform/safety"] == pytest.approx(
        (summary["uniform/ipd/safety"] + summary["uniform/kuhn/safety"]) / 2
    )
    for game in ("ipd", "kuhn"):
        (expert,) = {k for k in summary if k.startswith("expert/") and k.endswith(f"{game}/safety")}
        assert summary[expert] >= summary[f"uniform/{game}/safety"]
    lines = [json.loads(x) for x in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert {"ipd/utility", "kuhn/utility", "kuhn/exact/nash_conv"} <= lines[-1].keys()
    tables = RunDirectory(run.directory).read_json("tables.json")
    assert "sepo/kuhn" in tables and len(tables["sepo/kuhn"]) == 12
    assert (run.directory / "report.html").exists()


@pytest.mark.slow
def test_a_run_without_a_compiled_game_has_scripted_baselines(small_config, tmp_path):
    small_config["domain"] |= {"name": "ipd", "rounds": 2}
    small_config["sepo"] |= {
        "steps": 1, "exploiter_pool": (), "group_by": "round", "collusion_weight": 1.0,
    }  # fmt: skip
    small_config["evaluation"]["weights"] = (2.4, 1.0, 1.8)
    small_config["rollout"] |= {"capacity": 512, "row_length": 512}
    run = train(small_config, run_directory=tmp_path / "run", progress=False)
    summary = run.summary
    figures = ("utility", "exploit_pool_advantage", "collusion", "externality", "safety")
    expert = next(key for key in summary if key.startswith("expert/")).split("/")[1]
    for stage in ("untrained", "sft", "sepo", "uniform", f"expert/{expert}"):
        found = [summary[f"{stage}/{name}"] for name in figures]
        assert found[4] == pytest.approx(found[0] - 2.4 * found[1] - found[2] - 1.8 * found[3])
    assert "games" not in summary and not any("nash_conv" in key for key in summary)
    page = (run.directory / "report.html").read_text()
    assert "Best expert" in page and expert in page


def test_the_warm_start_takes_equally_from_each_game(policy, small_config):
    stage = SftStage(read_settings(joint_config(small_config)), policy[0], JOINT)
    tokenizer = policy[0].tokenizer
    texts = [tokenizer.decode(prompt) for ((prompt, _),) in stage.training + stage.validation]
    assert len(texts) == 40
    assert sum("Kuhn poker" in text for text in texts) == 20
