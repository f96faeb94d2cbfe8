"""Batches of teams for eight devices: every event whole in one micro-batch of one, or no batch."""

import numpy as np
import pytest

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign, prepare
from sepo_jax.forest import NO_EVENT, ForestBuilder, pack
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.training import batches, read_settings
from sepo_jax.training.batches import BatchMaker

DEVICES, MICRO_BATCHES = 8, 2
SRPO = get_algorithm("srpo")


def settings_of():
    return read_settings(
        {"rollout": {"row_length": 16}, "optimizer": {"micro_batches": MICRO_BATCHES}}
    )


def team_forest(episodes=20):
    """Two prompts; sets of one to three members below roots of their own, then a verifier."""
    rng, builder = np.random.default_rng(0), ForestBuilder()
    for number in range(episodes):
        group, size = number % 2, 1 + number % 3
        for member in range(size):
            root = builder.add([1, group, member], group=group)
            tokens = rng.integers(2, 8, 1 + int(rng.integers(4)))
            fields = {"episode": number, "event": 2 * number, "event_size": size}
            builder.add(tokens, root, is_action=True, **fields)
        root = builder.add([1, group], group=group)
        fields = {"episode": number, "event": 2 * number + 1, "event_size": 1, "event_type": 1}
        builder.add([7], root, is_action=True, agent=1, reward=float(rng.normal()), **fields)
    return builder.build()


def split_pack(forest, **options):
    """Rows that are dealt without a thought of events."""
    free = forest.replace(
        event=np.full_like(forest.event, NO_EVENT), event_size=np.zeros_like(forest.event_size)
    )
    batch = pack(free, **options)
    return batch.replace(
        event=np.where(batch.segment_mask, forest.event[batch.segment_index], NO_EVENT),
        event_size=np.where(batch.segment_mask, forest.event_size[batch.segment_index], 0),
    )


def test_events_are_whole_in_the_micro_batches_of_eight_devices():
    forest = team_forest()
    maker = BatchMaker(settings_of(), Policy(ModelConfig(vocab_size=8)), SRPO, DEVICES)
    batch, credit = maker.make(forest, {})
    assert batch.event.shape[:2] == (DEVICES, MICRO_BATCHES)
    assert credit.metrics["incomplete_events"].value == 0
    found = {}
    for place in np.ndindex(DEVICES, MICRO_BATCHES):
        events, segments = np.asarray(batch.event[place]), np.asarray(batch.segment_index[place])
        for local in set(events[events >= 0].tolist()):
            members = segments[events == local].tolist()
            (event,) = set(forest.event[members].tolist())
            assert event not in found
            found[event] = members
    assert len(found) == 40
    for event, members in found.items():
        assert sorted(members) == np.flatnonzero(forest.event == event).tolist()
        assert len(members) == forest.event_size[members[0]]


def test_a_batch_that_splits_an_event_is_not_trained_on(monkeypatch):
    forest = team_forest()
    maker = BatchMaker(settings_of(), Policy(ModelConfig(vocab_size=8)), SRPO, DEVICES)
    monkeypatch.setattr(batches, "packing_of", lambda policy: split_pack)
    with pytest.raises(ValueError, match=r"event \d+ is split: members are in parts"):
        maker.make(forest, {})
    monkeypatch.setattr(assign, "pack", split_pack)
    with pytest.raises(ValueError, match=r"event \d+ is split: members are in parts"):
        prepare(SRPO, forest, row_length=16, parts=DEVICES)
