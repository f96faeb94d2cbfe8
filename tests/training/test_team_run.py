"""A team is trained and judged, under SRPO and under the baselines it is compared with."""

import json

import numpy as np
import pytest
from team_workflows import Fixed

from sepo_jax.algorithms import get_algorithm
from sepo_jax.forest import check_events_whole
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.rollout.forests import name_id
from sepo_jax.training import read_settings, to_dict, train
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.reward_stage import RewardStage
from sepo_jax.training.setup import make_domain, make_policy, seated

CONFIG = {
    "policy": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
               "intermediate_size": 32},
    "domain": {"name": "team_workflows:Fixed"},
    "sft": {"steps": 2, "num_decisions": 30, "batch_size": 4},
    "sepo": {"steps": 0},
    "rl": {"steps": 2, "tasks_per_step": 2, "rollouts_per_task": 3},
    "algorithm": {"name": "srpo"},
    "rollout": {"slots": 10, "capacity": 192, "row_length": 192, "max_action_tokens": 4,
                "prefill_widths": (64,)},
    "evaluation": {"tasks": 2, "task_samples": 2},
    "parallel": {"kind": "single"},
}  # fmt: skip


def test_a_domain_of_a_team_has_a_seat_for_every_member():
    domain = make_domain(read_settings(CONFIG).domain)
    assert isinstance(domain, Fixed)
    policy = Policy(ModelConfig(vocab_size=8))
    assert seated(policy, {}, domain) == {"policy": policy, "params": {}, "seats": (0,) * 5}


@pytest.mark.slow
def test_a_team_is_trained_and_judged(tmp_path):
    run = train(to_dict(read_settings(CONFIG)), run_directory=tmp_path / "run", progress=False)
    assert run.summary["rl/active_set"] == 1.5 and run.summary["rl/calls"] == 6
    assert 6 <= run.summary["rl/tokens"] <= 6 * 4
    steps = map(json.loads, (run.directory / "metrics.jsonl").read_text().splitlines())
    steps = [found for found in steps if found.get("stage") == "rl" and "clip_fraction" in found]
    assert len(steps) == 2
    for found in steps:
        assert found["team/active_set_solve"] == 3.0 and found["team/events"] == 4.0
        assert found["active_set"] == 1.5 and found["dropped_events"] == 0.0
        # What is trained on is what was sampled: ratios are 1 but for rounding.
        assert found["unit_log_ratio_abs"] < 1e-3 and found["clip_fraction"] == 0.0
    samples = map(json.loads, (run.directory / "samples.jsonl").read_text().splitlines())
    roles = [each["role"] for found in samples if found["stage"] == "rl" for each in
             found["decisions"]]  # fmt: skip
    assert roles[:6] == ["solver 0", "solver 1", "solver 2", "verifier 0", "selector 0", "solver 0"]


@pytest.mark.slow
def test_the_baselines_compare_the_same_episodes_by_agent_and_by_turn():
    settings = read_settings(CONFIG)
    policy, params = make_policy(settings, Fixed())
    forest = RewardStage(settings, policy, Fixed()).data(0, params).forest
    # Rewards that differ by episode, at its last action.
    acted = np.flatnonzero(forest.is_action)
    reward = np.zeros(forest.num_segments, np.float32)
    reward[acted[5::6]] = [0, 1, 5, 0, 2, 1]
    forest = forest.replace(reward=reward)
    owner = forest.segment_of_token()
    for name in ("srpo", "dr_mas", "at_grpo", "grpo"):
        row = get_algorithm(name, scale="none", **({"returns": "episode"} if "at" in name else {}))
        batch, _ = BatchMaker(settings, policy, row, 2).make(forest, params)
        check_events_whole(forest, batch.replace(**{n: a.reshape(-1, *a.shape[2:]) for n, a in
                                                    batch.items()}))  # fmt: skip
        advantage = np.zeros(forest.num_tokens)
        real = np.asarray(batch.primary)
        advantage[np.asarray(batch.token_index)[real]] = np.asarray(batch.advantage)[real]
        of_action = [advantage[owner == segment][0] for segment in acted]
        # Every response of an episode has its return less the group's mean, 2 and 1: whoever is
        # compared, each group has as many from every episode.
        expected = np.repeat([-2, -1, 3, -1, 1, 0], 6)
        np.testing.assert_allclose(of_action, expected, atol=1e-5, err_msg=name)
    assert set(forest.agent[acted]) == {name_id(role) for role in Fixed.roles}
