"""Stages: data that is a function of the step, rewards on the right decisions."""

import numpy as np
import pytest

from sepo_jax.forest import ForestBuilder
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_domain, make_policy
from sepo_jax.training.stages import (
    SepoStage,
    SftStage,
    reward_decisions,
    samples_of_prompts,
    supervised_forest,
)


class Decision:
    def __init__(self, round_):
        self.round = round_


class Episode:
    def __init__(self, *rounds):
        self.decisions = [Decision(round_) for round_ in rounds]


def two_episodes():
    """Episode 0: two decisions in round 0, one in round 1. Episode 1: one decision."""
    builder = ForestBuilder()
    prompts = [builder.add([token], group=0) for token in (1, 2, 3)]
    for episode, prompt in ((0, 0), (0, 1), (0, 2), (1, 0)):
        builder.add([7, 8], prompts[prompt], is_action=True, episode=episode)
    return builder.build(), [Episode(0, 0, 1), Episode(0)]


def test_a_rounds_reward_lies_on_its_last_decision():
    forest, episodes = two_episodes()
    rewarded = reward_decisions(forest, episodes, np.array([[1.0, 2.0], [5.0, 0.0]]))
    np.testing.assert_array_equal(rewarded.reward, [0, 0, 0, 0.0, 1.0, 2.0, 5.0])


def test_a_sample_of_a_prompt_earns_what_came_after_it():
    forest, episodes = two_episodes()
    rewarded = reward_decisions(forest, episodes, np.array([[1.0, 2.0], [5.0, 0.0]]))
    samples = samples_of_prompts(rewarded).validate()
    np.testing.assert_array_equal(samples.reward, [0, 0, 0, 3.0, 3.0, 2.0, 5.0])
    assert len(set(samples.episode[samples.is_action])) == 4
    # Decisions at the same prompt are compared, others are not.
    np.testing.assert_array_equal(samples.group[3:], [0, 1, 2, 0])


def test_replies_to_one_prompt_share_its_tokens():
    forest = supervised_forest([((1, 2), (3, 9)), ((1, 2), (4, 9)), ((5,), (3, 9))])
    assert forest.num_tokens == 2 + 2 + 2 + 1 + 2
    assert list(forest.children(0)) == [1, 2]


@pytest.fixture
def made(small_config):
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    return settings, domain, *make_policy(settings, domain)


def test_every_pass_over_the_data_is_a_permutation(made):
    settings, domain, policy, params = made
    stage = SftStage(settings, policy, domain)
    assert len(stage.training) == 32 and len(stage.validation) == 8
    seen = []
    for step in range(4):  # 4 steps of 8 decisions: one pass
        forest = stage.data(step, params).forest
        seen += [tuple(forest.segment_tokens(s)) for s in np.flatnonzero(forest.is_action)]
    assert sorted(seen) == sorted(tuple(reply) for _, reply in stage.training)
    first, again = (stage.data(5, params).forest for _ in range(2))
    np.testing.assert_array_equal(first.tokens, again.tokens)


@pytest.mark.parametrize("credit", ["credited", "per_rollout", "shared"])
def test_episodes_of_a_step(made, small_config, credit):
    _, domain, policy, params = made
    from sepo_jax.games import KUHN

    small_config["sepo"]["credit"] = credit
    stage = SepoStage(read_settings(small_config), policy, domain, KUHN)
    plan = stage._plan(0, params)
    pools = [seat.pool for seat in plan]
    assert pools.count("train") == 3 * 2 * 2
    assert pools.count("exploiter") == (12 if credit == "per_rollout" else 4)
    seats = [seat.episode.seat for seat in plan if seat.pool == "exploiter"]
    assert seats.count(0) == seats.count(1)
    if credit == "per_rollout":
        exploiters = [seat.rollout for seat in plan if seat.pool == "exploiter"]
        assert sorted(exploiters) == list(range(12))
    data = stage.data(0, params)
    decisions = int(data.forest.is_action.sum())
    assert decisions >= (16 if credit == "credited" else 12)
    assert np.isfinite(data.metrics["safety"])
    # Another step deals other hands.
    later = stage._plan(1, params)
    assert [s.episode.seed for s in plan] != [s.episode.seed for s in later]


def test_shapes_of_batches_repeat(made):  # H01
    settings, _, policy, params = made
    from sepo_jax.algorithms import get_algorithm

    maker = BatchMaker(settings, policy, get_algorithm("rloo"), 1)
    rng = np.random.default_rng(0)
    shapes = []
    for length in range(1, 51):
        builder = ForestBuilder()
        prompt = builder.add(rng.integers(0, 9, length))
        for _ in range(2):
            builder.add(rng.integers(0, 9, 3), prompt, is_action=True)
        forest = builder.build()
        batch, _ = maker.make(forest, params)
        shapes.append(tuple(leaf.shape for leaf in batch.values()))
    # Row lengths 4, 6, 8, 12, ..., 64: at most one shape a bucket, and none in a second pass.
    assert len(set(shapes)) <= 12
    batch, _ = maker.make(forest, params)
    assert tuple(leaf.shape for leaf in batch.values()) == shapes[-1]
