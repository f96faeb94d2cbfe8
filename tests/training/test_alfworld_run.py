"""A whole run on household tasks: imitation, reinforcement learning, judging."""

import json

import alfworld_extra  # noqa: F401
import pytest

from sepo_jax.domains.alfworld.domain import PLAYERS
from sepo_jax.domains.alfworld.games import TASK_TYPES
from sepo_jax.training import read_settings, to_dict, train


@pytest.mark.slow
def test_a_policy_is_trained_and_judged_over_several_turns(tmp_path):
    config = to_dict(
        read_settings(
            {
                "policy": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
                           "intermediate_size": 32},
                "domain": {"name": "alfworld", "options": {"max_turns": 3, "invalid_cost": 0.1}},
                "sft": {"steps": 2, "num_decisions": 30, "batch_size": 4},
                "sepo": {"steps": 0},
                "rl": {"steps": 1, "tasks_per_step": 2, "rollouts_per_task": 2},
                "rollout": {"slots": 8, "capacity": 768, "row_length": 768,
                            "max_action_tokens": 16, "prefill_widths": (128,)},
                "evaluation": {"tasks": 1},
                "parallel": {"kind": "single"},
            }
        )
    )  # fmt: skip
    run = train(config, run_directory=tmp_path / "run", progress=False)
    for player in ("untrained", "sft", "rl", *PLAYERS):
        assert {f"{player}/success", f"{player}/{TASK_TYPES[0]}/turns"} <= run.summary.keys()
        assert 0.0 <= run.summary[f"{player}/valid"] <= 1.0
    # Nobody wins in three turns who does not know the place; every reply here is a turn.
    assert run.summary["rl/turns"] == 3.0 and run.summary["random/turns"] == 3.0
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    step = next(found for found in map(json.loads, lines) if "task/turns" in found)
    assert step["task/turns"] == 3.0 and -0.301 < step["reward"] <= 0.0
    assert (run.directory / "report.html").exists()
