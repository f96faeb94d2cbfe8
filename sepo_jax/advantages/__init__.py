"""Advantages on arrays: groups, baselines, discounted returns, credit on trees."""

from sepo_jax.advantages.baselines import (
    SCALES,
    group_mean,
    leave_one_out,
    normalize_batch,
)
from sepo_jax.advantages.groups import (
    GroupStatistics,
    counted_units,
    group_statistics,
    no_spread_fraction,
    small_groups,
)
from sepo_jax.advantages.returns import gae, reward_to_go
from sepo_jax.advantages.tree import (
    NODE_RETURNS,
    TreeCredit,
    lambda_prefix_credit,
    monte_carlo_values,
    node_returns,
    path_weight,
    tree_credit,
)

__all__ = [
    "NODE_RETURNS",
    "SCALES",
    "GroupStatistics",
    "TreeCredit",
    "counted_units",
    "gae",
    "group_mean",
    "group_statistics",
    "lambda_prefix_credit",
    "leave_one_out",
    "monte_carlo_values",
    "no_spread_fraction",
    "node_returns",
    "normalize_batch",
    "path_weight",
    "reward_to_go",
    "small_groups",
    "tree_credit",
]
