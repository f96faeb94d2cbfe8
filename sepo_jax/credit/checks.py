"""What `assign_credit` refuses, and what it warns of."""

import warnings

import numpy as np

from sepo_jax.forest import Forest
from sepo_jax.losses import Mean


def check_rewards(forest: Forest) -> None:
    """Raises ValueError naming the first segment whose reward is infinite."""
    infinite = np.flatnonzero(np.isinf(forest.reward))
    if len(infinite):
        raise ValueError(
            f"segment {infinite[0]} has reward {forest.reward[infinite[0]]} ({len(infinite)} such "
            f"segments); a reward is a finite float32 number, and NaN means missing"
        )


def check_lengths(forest: Forest, **arrays: np.ndarray | None) -> None:
    """Raises ValueError where an array is neither None nor one number per token."""
    for name, array in arrays.items():
        if array is not None and np.shape(array) != (forest.num_tokens,):
            raise ValueError(
                f"{name} has shape {np.shape(array)}; the forest has {forest.num_tokens} tokens"
            )


def check_group_size(forest: Forest, leaves: np.ndarray, group_size: int | None) -> None:
    """Raises ValueError where a group has another number of episodes; None allows any."""
    if group_size is None:
        return
    _, first = np.unique(forest.episode[leaves], return_index=True)
    groups, sizes = np.unique(forest.group[leaves[first]], return_counts=True)
    wrong = sizes != group_size
    if wrong.any():
        raise ValueError(
            f"group {groups[wrong][0]} has {sizes[wrong][0]} episodes, expected {group_size}; "
            f"a group is all samples of one prompt: check the group ids"
        )


def warn_small(groups_of_one: Mean, unit: str) -> None:
    """Warns of groups with a single unit, on behalf of the caller of `assign_credit`."""
    if groups_of_one.sum:
        warnings.warn(
            f"{int(groups_of_one.sum)} groups have a single {unit}, whose advantage is 0; if that "
            f"is not meant, check that group ids name the prompt and not the sample",
            stacklevel=4,
        )
