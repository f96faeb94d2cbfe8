"""Random forests: several trees, branching, turns with observations, events, shared episodes."""

import numpy as np
import pytest

from sepo_jax.forest import NO_EVENT, ForestBuilder


def make_random_forest(seed, trees=3, depth=3, events=False):
    """A forest of small random trees; about half of its segments are actions."""
    rng = np.random.default_rng(seed)
    builder = ForestBuilder({"seed": int(seed)})
    next_event = 0

    def grow(parent, left, group):
        nonlocal next_event
        for _ in range(int(rng.integers(1, 4))):
            length = int(rng.integers(1, 4))
            acts = bool(rng.random() < 0.6)
            event = NO_EVENT
            if events and acts and rng.random() < 0.5:
                event, next_event = next_event, next_event + 1
            segment = builder.add(
                rng.integers(0, 9, length),
                parent,
                is_action=acts,
                behavior_logp=-rng.random(length) * acts,
                entropy=rng.random(length) * acts,
                reward=rng.integers(0, 3),
                agent=int(rng.integers(0, 2)),
                event=event,
                event_size=int(event != NO_EVENT),
                policy_version=int(rng.integers(0, 3)),
                truncated=bool(rng.random() < 0.1),
            )
            if left > 1 and rng.random() < 0.6:
                grow(segment, left - 1, group)

    for tree in range(trees):
        group = tree % 2
        grow(builder.add(rng.integers(0, 9, int(rng.integers(1, 4))), group=group), depth, group)
    return builder.build()


@pytest.fixture(scope="session")
def random_forest():
    """`random_forest(seed, trees=3, depth=3, events=False) -> Forest`."""
    return make_random_forest
