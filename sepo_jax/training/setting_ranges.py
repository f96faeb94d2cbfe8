"""Ranges of the numbers of a config."""

from collections.abc import Mapping
from typing import Any

# Least values; a number that is not named here must be at least 0.
LEAST = {
    "policy.logits_budget": 1,
    "sft.batch_size": 1,
    "sft.num_decisions": 2,
    "sepo.groups_per_opponent": 1,
    "sepo.rollouts_per_group": 1,
    "sepo.exploiter_episodes": 1,
    "rl.tasks_per_step": 1,
    "rl.rollouts_per_task": 1,
    "rl.continuations": 1,
    "optimizer.max_gradient_norm": 1e-30,
    "optimizer.micro_batches": 1,
    "optimizer.updates_per_batch": 1,
    "rollout.slots": 1,
    "rollout.capacity": 2,
    "rollout.max_action_tokens": 1,
    "rollout.exchange_interval": 1,
    "rollout.prefill_rows": 1,
    "rollout.devices": 1,
    "rollout.row_length": 2,
    "sandbox.workers": 1,
    "sandbox.actors": 1,
    "sandbox.seconds": 1e-3,
    "sandbox.cpu_seconds": 1e-3,
    "sandbox.memory_bytes": 1,
    "sandbox.file_bytes": 1,
    "parallel.fsdp": 1,
    "parallel.tensor": 1,
    "evaluation.every": 1,
    "evaluation.match_episodes": 2,
    "evaluation.tasks": 1,
    "evaluation.task_samples": 1,
    "checkpoint.every": 1,
    "checkpoint.keep": 1,
}
_SEEDS = 2**31


def check_numbers(values: Mapping[str, Any]) -> None:
    """Checks the numbers of a config, which stand under their dotted names.

    Raises:
      ValueError: a number below its least value, or a seed out of range.
    """
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and "overrides" not in name and not value >= LEAST.get(name, 0):
            raise ValueError(f"config.{name} must be at least {LEAST.get(name, 0)}, got {value}")
        if name.endswith("seed") and value >= _SEEDS:
            raise ValueError(f"config.{name} must be below {_SEEDS}, got {value}")
