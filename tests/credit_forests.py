"""Forests of independent samples, and credit on them, for the tests of credit."""

import warnings

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.forest import ForestBuilder


def samples(*groups, length=1, shared=True):
    """Independent samples: one list of rewards per prompt; one prompt segment each, or shared."""
    builder = ForestBuilder()
    event = 0
    for group, rewards in enumerate(groups):
        prompt = builder.add([group], group=group)
        for number, reward in enumerate(rewards):
            if number and not shared:
                prompt = builder.add([group], group=group)
            builder.add(
                [5] * length, prompt, is_action=True, reward=reward, event=event, event_size=1
            )
            event += 1
    return builder.build()


def of_actions(credit, forest):
    """Advantage of each action segment (that of its first token)."""
    return credit.advantage[forest.offsets[:-1]][forest.is_action]


def assign(name, forest, **changes):
    """Credit without the warnings that small test groups raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = {key: changes.pop(key) for key in ("values", "reference_logp") if key in changes}
        return assign_credit(get_algorithm(name, **changes), forest, **known)
