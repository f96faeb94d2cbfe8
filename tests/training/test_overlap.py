"""Rollouts one step behind: what is played by which policy, and going on after a stop."""

import json
import shutil

import jax
import numpy as np
import pytest
from training.sized_tasks import DrawnTasks

from sepo_jax.algorithms import get_algorithm
from sepo_jax.objective import make_objective
from sepo_jax.sandbox import InProcessPool, domain_environments
from sepo_jax.training import (
    as_objective,
    init_state,
    make_optimizer,
    make_update,
    read_settings,
    train,
)
from sepo_jax.training.batches import BatchMaker, read_value
from sepo_jax.training.reward_stage import RewardStage
from sepo_jax.training.setup import make_policy


def overlapping(config):
    config["sft"]["steps"], config["sepo"]["steps"] = 0, 0
    config["rl"] = {
        "steps": 5, "tasks_per_step": 2, "rollouts_per_task": 4, "learning_rate": 1e-2
    }  # fmt: skip
    config["algorithm"] = {"name": "grpo"}
    config["rollout"] |= {"prefill_widths": (32,), "capacity": 128, "overlap": True}
    config["evaluation"] |= {"every": 2, "tasks": 2, "untrained": False}
    config["checkpoint"] = {"every": 3, "keep": 5}
    return config


def metrics_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def stale_loop(settings, domain):
    """Parameters after each step and the losses, one thing after the other: steps are played by the
    policy before the last update, the first and the fourth, after the checkpoint, by the current
    one."""
    policy, params = make_policy(settings, domain)
    row = get_algorithm("grpo")
    rl = settings.rl
    optimizer = make_optimizer(settings.optimizer, rl.learning_rate, 0, rl.steps, 0.0)
    objective = as_objective(make_objective(row, policy), policy)
    update = jax.jit(make_update(objective, optimizer))
    maker = BatchMaker(settings, policy, row, num_devices=1)
    state, losses = init_state(params, optimizer), []
    before = params
    with InProcessPool(domain_environments(domain)) as pool:
        stage = RewardStage(settings, policy, domain, pool)
        for step in range(rl.steps):
            player = state.params if step in (0, 3) else before
            batch, _ = maker.make(stage.data(step, player).forest, state.params)
            before = state.params
            state, metrics = update(state, {}, jax.tree.map(lambda leaf: leaf[0], batch))
            losses.append(read_value(metrics["loss"]))
    return state.params, losses


@pytest.mark.slow
def test_overlapping_equals_playing_with_the_weights_before(small_config, tmp_path):
    config = overlapping(small_config)
    run = train(config, domain=DrawnTasks(), run_directory=tmp_path / "ahead", progress=False)
    lines = metrics_of(run.directory)
    params, losses = stale_loop(read_settings(config), DrawnTasks())
    assert [line["policy_lag"] for line in lines] == [0, 1, 1, 0, 1]
    assert min(line["gradient_norm"] for line in lines) > 0
    assert [line["loss"] for line in lines] == pytest.approx(losses, abs=1e-6)
    for found, wanted in zip(jax.tree.leaves(run.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    # The ratio is of two policies where one step lies between them, and corrects for it.
    ratios = np.array([line["ratio"] for line in lines])
    assert np.all(np.abs(ratios[[0, 3]] - 1) < 1e-5) and np.all(
        np.abs(ratios[[1, 2, 4]] - 1) > 1e-5
    )


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_is_the_straight_one(small_config, tmp_path):  # E01
    config = overlapping(small_config)
    config["policy"] |= {"lora_rank": 2, "lora_targets": ("q_proj",)}
    runs = [tmp_path / "straight", tmp_path / "resumed"]
    train(config, domain=DrawnTasks(), run_directory=runs[0], progress=False)
    shutil.copytree(*runs)
    assert min(line["gradient_norm"] for line in metrics_of(runs[0])) > 0
    shutil.rmtree(runs[1] / "checkpoints/rl/5")
    train(config, domain=DrawnTasks(), run_directory=runs[1], resume=True, progress=False)
    for name in ("metrics.jsonl", "samples.jsonl", "summary.json", "tasks.json"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name
    saved = [sorted((run / "policy").rglob("*.safetensors")) for run in runs]
    assert saved[0]
    for straight, resumed in zip(*saved, strict=True):
        assert straight.read_bytes() == resumed.read_bytes()


def test_an_algorithm_that_corrects_nothing_is_refused(small_config, tmp_path):
    config = overlapping(small_config) | {"algorithm": {"name": "reinforce"}}
    with pytest.raises(ValueError, match=r"reinforce.*importance_cap.*rollout\.overlap=False"):
        train(config, domain=DrawnTasks(), run_directory=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
