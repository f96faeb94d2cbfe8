"""A config small enough to train in a test."""

import pytest

from sepo_jax.training import read_settings, to_dict


@pytest.fixture
def small_config():
    return to_dict(
        read_settings(
            {
                "name": "small",
                "policy": {
                    "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
                    "num_kv_heads": 1, "intermediate_size": 32,
                },
                "sft": {"steps": 3, "num_decisions": 40, "batch_size": 8},
                "sepo": {"steps": 10, "groups_per_opponent": 2, "rollouts_per_group": 2},
                "rollout": {"slots": 16, "max_action_tokens": 4, "row_length": 256},
                "evaluation": {"every": 5, "match_episodes": 2},
                "checkpoint": {"every": 5},
                "parallel": {"kind": "single"},
            }
        )
    )  # fmt: skip
