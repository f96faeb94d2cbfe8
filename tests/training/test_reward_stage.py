"""Training on tasks that pay their own rewards."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from training.parity_tasks import Parity, ParityRules
from training.walk_tasks import Walks

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains import Kuhn
from sepo_jax.forest import Forest
from sepo_jax.policy import Sampling
from sepo_jax.rollout import Branching, play, play_branching
from sepo_jax.rollout.branching import trees
from sepo_jax.sandbox.environments import domain_environments, task_environments
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.training import batches, loop, read_settings, train
from sepo_jax.training.reward_stage import RewardStage, mean_of_records, total_reward
from sepo_jax.training.sepo_stage import SepoStage
from sepo_jax.training.setup import (
    engine_options,
    evaluation_sampling,
    make_domain,
    make_policy,
)
from sepo_jax.training.task_judge import TaskJudge

NAME = "training.parity_tasks:Parity"


def tasks_config(config, **rl):
    config["domain"] = {"name": NAME}
    config["sepo"]["steps"] = 0
    config["rl"] = {"steps": 3, "tasks_per_step": 3, "rollouts_per_task": 4} | rl
    config["rollout"] |= {"prefill_widths": (32,), "capacity": 64}
    config["evaluation"] |= {"tasks": 10, "task_samples": 2}
    return config


def test_an_environment_asks_judges_and_restores(tmp_path):
    factory = domain_environments(Parity())
    environment = factory(tmp_path)
    first = environment.reset({"number": 4}, seed=0)
    assert first.prompts[0].messages == tuple(ParityRules().messages({"number": 4}))
    snapshot = environment.snapshot()
    turn = environment.step({0: "odd"})
    assert turn.done and turn.rewards[0] == 0.0
    environment.restore(snapshot)
    turn = environment.step({0: "even"})
    assert turn.done and turn.rewards[0] == 1.0
    assert turn.record == {"right": True, "known": True, "text": "even"}


def test_a_step_is_a_function_of_seed_and_step(small_config):
    settings = read_settings(tasks_config(small_config))
    policy, _ = make_policy(settings, Parity())
    stage = RewardStage(settings, policy, Parity())
    requests = stage.requests(1)
    assert requests == RewardStage(settings, policy, Parity()).requests(1)
    assert requests != stage.requests(2)
    assert [r.group for r in requests] == [0, 1, 2]
    assert [(each.trees_per_prompt, each.forks) for each in stage.branching] == [(4, 0)] * 3


def test_the_forest_holds_what_was_paid(small_config):
    settings = read_settings(tasks_config(small_config))
    policy, params = make_policy(settings, Parity())
    data = RewardStage(settings, policy, Parity()).data(0, params)
    assert isinstance(data.forest, Forest)
    replies = np.flatnonzero(data.forest.is_action)
    assert len(replies) == 12
    paid = data.forest.reward[replies]
    assert data.metrics["reward"] == pytest.approx(paid.mean())
    assert data.metrics["task/right"] == pytest.approx(paid.mean())
    assert data.metrics["failed_rollouts"] == 0
    assert data.metrics["sampled_decisions"] == 12
    assert data.metrics["sampled_tokens"] == data.forest.lengths()[replies].sum()
    assert not any(name.startswith("trees/") for name in data.metrics) and not data.timings
    assert data.tree is None
    # Members of a group share the prompt, and with it the root.
    roots = data.forest.parent[replies]
    assert all(len(set(group)) == 1 for group in np.split(roots, 3))


def test_greedy_judges_draw_nothing(small_config):
    config = tasks_config(small_config)
    settings = read_settings(config)
    assert evaluation_sampling(settings) == Sampling(settings.rollout.temperature)
    config["evaluation"]["greedy"] = True
    settings = read_settings(config)
    policy, params = make_policy(settings, Parity())
    found = []
    for seed in (0, 1):
        each = dataclasses.replace(settings, seed=seed)
        judge = TaskJudge(each, policy, Parity(), directory=None)
        requests = [EpisodeRequest(task, seed=0, group=g) for g, task in enumerate(judge.tasks)]
        options = engine_options(each, evaluation_sampling(each))
        rollout = play(policy, params, requests, judge.environments, options, seed=seed)
        found.append([result.actions[0].text for result in rollout.results])
    assert found[0] == found[1]


def test_means_are_over_those_that_recorded_a_number():
    records = [{"a": 1, "b": True, "text": "x"}, None, {"a": 3, "b": False}]
    assert mean_of_records(records) == {"task/a": 2.0, "task/b": 0.5}
    assert mean_of_records([None]) == {}
    assert mean_of_records(records, [3.0, 9.0, 1.0]) == {"task/a": 1.5, "task/b": 0.75}


def walks_config(config, **rl):
    config = tasks_config(config, **{"rollouts_per_task": 10, "branch_points": 2} | rl)
    config["domain"] = {"name": "training.walk_tasks:Walks"}
    config["rl"] |= {"continuations": 3, "branch_spacing": 0}
    config["rollout"] |= {"capacity": 256}
    return config


def test_a_step_with_branch_points_plays_trees(small_config):
    settings = read_settings(walks_config(small_config))
    policy, params = make_policy(settings, Walks())
    stage = RewardStage(settings, policy, Walks())
    assert stage.branching == [Branching(2, 3, spacing=0, trees_per_prompt=2)] * 3
    data = stage.data(0, params)
    forest, metrics = data.forest, data.metrics
    assert len(forest.leaves()) == metrics["trees/leaves"] == 3 * 10
    assert metrics["trees/missing_leaves"] == metrics["trees/short_trees"] == 0
    assert metrics["trees/branch_points"] == 3 * 2 * 2
    assert metrics["trees/tokens_per_leaf"] == forest.num_tokens / 30
    assert min(metrics["trees/branch_entropy"], metrics["trees/decision_entropy"]) > 0
    assert data.timings["snapshots"] > 0
    # The mean over trees of the mean over their leaves, in which a branch point counts as one.
    rollout = play_branching(
        policy, params, stage.requests(0), stage.environments, stage.options, stage.branching,
        seed=0,
    )  # fmt: skip
    values = []
    for tree in trees(rollout.results):
        value = total_reward(rollout.results[tree.trunk])
        for point in tree.points[::-1]:
            forks = [total_reward(rollout.results[fork]) for fork in point.forks]
            value = np.mean([value, *forks])
        values.append(value)
    assert metrics["reward"] == pytest.approx(np.mean(values))


def test_trees_that_do_not_make_up_the_rollouts_of_a_task_are_refused(small_config):
    config = walks_config(small_config, rollouts_per_task=8)
    words = "rollouts_per_task=8 is no multiple of the 5 leaves of a tree .* set it to 10"
    with pytest.raises(ValueError, match=words):
        read_settings(config)
    for name, value in (("branch_selector", "entropi"), ("branch_entropy", "last")):
        config = walks_config(small_config)
        config["rl"][name] = value
        with pytest.raises(ValueError, match=f"unknown rl.{name} '{value}'"):
            read_settings(config)
    config = walks_config(small_config, branch_points=0, root_share=0.5)
    with pytest.raises(ValueError, match=r"root_share=0\.5 is the share .* branch_points=0"):
        read_settings(config)
    config = walks_config(small_config)
    config["rl"]["continuations"] = 1
    with pytest.raises(ValueError, match="branch_points=2 with continuations=1 branch nowhere"):
        read_settings(config)
    config = walks_config(small_config)
    config["rl"]["continuations"] = 0
    with pytest.raises(ValueError, match=r"rl\.continuations must be at least 1"):
        read_settings(config)


@pytest.mark.slow
def test_a_run_trains_on_trees(small_config, tmp_path, monkeypatch):
    config = walks_config(small_config, steps=3) | {"algorithm": {"name": "bpo"}}
    config["sft"]["steps"], config["evaluation"]["every"] = 1, 2
    config["checkpoint"] = {"every": 1, "keep": 5}
    trained = []
    monkeypatch.setattr(
        batches, "assign_credit", lambda *args, **named: trained.append(
            (args[1], assign_credit(*args, **named))
        ) or trained[-1][1],
    )  # fmt: skip
    train(config, run_directory=tmp_path / "run", progress=False)
    lines = {
        name: [json.loads(x) for x in (tmp_path / "run" / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "timings.jsonl", "trees.jsonl")
    }
    # Steps of evaluation and the last one keep a tree, with the credit of their updates.
    kept = lines["trees.jsonl"]
    assert [(line["stage"], line["step"]) for line in kept] == [("rl", 2), ("rl", 3)]
    for record, (forest, credit) in zip(kept, trained[-2:], strict=True):
        assert len(record["leaves"]) == 10 and sum(x["trunk"] for x in record["leaves"]) == 2
        means = np.bincount(forest.segment_of_token(), credit.advantage) / forest.lengths()
        shown = [s["advantage"] for s in record["segments"] if s["kind"] == "action"]
        groups = [means[forest.is_action & (forest.group == g)] for g in range(3)]
        assert any(
            len(each) == len(shown) and np.allclose(each, shown, atol=1e-6) for each in groups
        )
    report = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert 'href="trees.html"' in report
    page = (tmp_path / "run/trees.html").read_text(encoding="utf-8")
    assert page.count("<option") == 2 and "Trees of run run" in page
    # A run that goes on from an earlier checkpoint writes the same trees again.
    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"resumed/checkpoints/rl/{step}")
    train(config, run_directory=tmp_path / "resumed", resume=True, progress=False)
    for name in ("metrics.jsonl", "trees.jsonl", "trees.html"):
        both = [(tmp_path / run / name).read_bytes() for run in ("run", "resumed")]
        assert both[0].replace(b"run run", b"run resumed") == both[1], name
    metrics = [line for line in lines["metrics.jsonl"] if line["stage"] == "rl"]
    assert [line["trees/leaves"] for line in metrics] == [30, 30, 30]
    assert all(np.isfinite(line["loss"]) for line in metrics)
    assert not any("snapshots" in line for line in metrics)
    timed = [line for line in lines["timings.jsonl"] if line["stage"] == "rl"]
    assert all(line["snapshots"] > 0 for line in timed)


@pytest.mark.slow
def test_a_policy_learns_what_is_paid_for(small_config, tmp_path):
    # A rate at which every seed tried rises: with larger ones the last bits of a machine decide.
    config = tasks_config(small_config, steps=30, tasks_per_step=8, learning_rate=3e-3)
    config["policy"] |= {"hidden_size": 32, "intermediate_size": 64}
    config["sft"] |= {"steps": 40, "num_decisions": 200, "batch_size": 32, "learning_rate": 1e-2}
    config["evaluation"]["tasks"] = 20
    config["rollout"]["slots"] = 32
    run = train(config, run_directory=tmp_path / "run", progress=False)
    summary = run.summary
    assert summary["always_even/success"] == 0.5
    assert summary["untrained/success"] < 0.3
    assert summary["rl/success"] > max(summary["sft/success"], 0.5)
    assert (tmp_path / "run" / "report.html").exists()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(x)["reward"] for x in lines if json.loads(x)["stage"] == "rl"]
    assert len(rewards) == 30 and np.mean(rewards[-5:]) > np.mean(rewards[:5])


def test_a_run_goes_on_where_it_stopped(small_config, tmp_path):
    config = tasks_config(small_config, steps=4) | {"checkpoint": {"every": 2}}
    config["sft"]["steps"] = 1
    whole = train(config, run_directory=tmp_path / "whole", progress=False)
    short = tasks_config(small_config, steps=2) | {"checkpoint": {"every": 2}}
    train(short, run_directory=tmp_path / "short", progress=False)
    config["rl"]["steps"] = 4
    resumed = train(
        config,
        run_directory=tmp_path / "short",
        resume=True,
        allow_change=("rl.steps",),
        progress=False,
    )
    assert resumed.summary["untrained/success"] == whole.summary["untrained/success"]
    last = (tmp_path / "short" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 4


def test_games_and_tasks_are_not_mixed_up(small_config):
    settings = read_settings(tasks_config(small_config))
    policy, _ = make_policy(settings, Parity())
    with pytest.raises(ValueError, match=r"'kuhn' has opponents.*sepo\.steps"):
        RewardStage(settings, policy, Kuhn())
    with pytest.raises(ValueError, match=r"'parity' has tasks.*rl\.steps"):
        SepoStage(settings, policy, Parity())


def test_options_of_a_domain_are_its_arguments(small_config):
    config = tasks_config(small_config)
    config["domain"]["options"] = {"largest": 3}
    assert make_domain(read_settings(config).domain).largest == 3
    config["domain"]["options"] = {"larges": 3}
    with pytest.raises(ValueError, match=r"domain\.options.*'larges'.*largest"):
        make_domain(read_settings(config).domain)


class Incomplete:
    name = "incomplete"

    def training_tasks(self, count, seed):
        return []


def test_a_domain_that_lacks_parts_is_refused(small_config):
    config = tasks_config(small_config)
    config["domain"]["name"] = f"{__name__}:Incomplete"
    with pytest.raises(
        ValueError, match=r"Incomplete is no domain: it lacks .*environments or.*Task"
    ):
        make_domain(read_settings(config).domain)


@pytest.mark.parametrize(
    ("row", "overrides", "rl", "refused"),
    [
        ("tree_grpo", {}, {"branch_points": 0}, True),
        ("tree_grpo", {}, {"root_share": 0.5}, True),
        ("tree_grpo", {}, {}, False),
        ("bpo", {"prefix_credit": "none"}, {"branch_points": 0}, True),
        ("bpo", {"prefix_credit": "lambda"}, {"root_share": 1.0}, True),
        ("bpo", {"prefix_credit": "lambda"}, {}, False),
        ("bpo", {}, {"branch_points": 0}, False),
        ("vineppo", {}, {"branch_points": 0}, False),
        ("grpo", {}, {"branch_points": 0}, False),
    ],
)
def test_rows_that_compare_nothing_without_branch_points_want_them(
    small_config, tmp_path, monkeypatch, row, overrides, rl, refused
):
    config = walks_config(small_config, **rl)
    config["algorithm"] = {"name": row, "overrides": overrides}
    monkeypatch.setattr(loop, "Parallel", None)  # what comes after the check
    if refused:
        with pytest.raises(ValueError, match=f"{row}.* compares nothing where there are no branch"):
            train(config, run_directory=tmp_path / "run")
    else:
        with pytest.raises(TypeError, match="NoneType"):
            train(config, run_directory=tmp_path / "run")


def own_loss(params, batch):
    """A loss that reads the advantages of the config's algorithm."""
    return (batch.advantage * batch.action_mask).sum() * 0.0, {}


@pytest.mark.parametrize("objective", [None, get_algorithm("ppo", clip_low=0.1), own_loss])
def test_a_critic_is_asked_for_before_imitation_begins(small_config, tmp_path, objective):
    config = tasks_config(small_config)
    config["algorithm"]["name"] = "ppo" if objective in (None, own_loss) else "grpo"
    assert config["sft"]["steps"]
    with pytest.raises(ValueError, match=r"algorithm 'ppo' has baseline='critic'.*value_head=True"):
        train(config, objective, run_directory=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_stage_of_rewards_needs_no_critic(small_config, tmp_path, monkeypatch):
    config = tasks_config(small_config, steps=0)
    config["algorithm"]["name"] = "ppo"
    monkeypatch.setattr(loop, "SftStage", None)  # what comes after the check
    with pytest.raises(TypeError, match="NoneType"):
        train(config, run_directory=tmp_path / "run")


class PaidRules(ParityRules):
    """Every reply earns 1."""

    def judge(self, task, text):
        return 1.0, {"right": True, "known": True, "text": text}


class Paid(Parity):
    def environments(self):
        return task_environments(PaidRules())


@pytest.mark.slow
def test_a_critic_learns_beside_the_policy(small_config, tmp_path):
    config = tasks_config(small_config, steps=4, learning_rate=1e-2)
    config["algorithm"]["name"], config["policy"]["value_head"] = "ppo", True
    run = train(config, domain=Paid(), run_directory=tmp_path / "run", progress=False)
    assert np.abs(np.asarray(run.params["value_head"]["kernel"])).max() > 0  # it began at 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    losses = [line["loss/value"] for line in map(json.loads, lines) if line["stage"] == "rl"]
    assert len(losses) == 4 and losses[0] > losses[-1] > 0


@pytest.mark.parametrize(("share", "whole"), [(0.0, 0), (0.3, 1), (0.5, 2), (1.0, 3)])
def test_a_share_of_the_tasks_is_played_without_branch_points(small_config, share, whole):
    settings = read_settings(walks_config(small_config, rollouts_per_task=5, root_share=share))
    policy, params = make_policy(settings, Walks())
    stage = RewardStage(settings, policy, Walks())
    forks = [each.forks for each in stage.branching]
    assert forks == [0] * whole + [4] * (3 - whole)
    data = stage.data(0, params)
    forest = data.forest
    assert len(forest.leaves()) == 3 * 5  # as many episodes of a task either way
    begins = forest.is_action & ~forest.is_action[forest.parent]  # actions after what was given
    first = [np.sum(begins & (forest.group == g) & (forest.turn == 0)) for g in range(3)]
    assert first[:whole] == [5] * whole
    if whole < 3:
        assert data.metrics["trees/leaves"] == 15 and data.metrics["trees/missing_leaves"] == 0
        assert data.metrics["trees/branch_points"] == 2 * (3 - whole)
    else:
        assert not any(name.startswith("trees/") for name in data.metrics)
