"""What a slot samples depends on its tokens and its key; the sizes around it change no token."""

import dataclasses

import jax
import numpy as np
import pytest
from scripted_host import Context, ScriptedHost

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.rollout.driver import EngineOptions, drive

VOCABULARY, END = 61, 7
CONFIG = ModelConfig(
    vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2,
    intermediate_size=48,
)  # fmt: skip
OPTIONS = EngineOptions(slots=8, capacity=96, prefill_widths=(4, 16), max_action_tokens=9)


def spread(params):
    """Uneven next-token distributions instead of nearly equal ones."""
    return jax.tree.map(lambda leaf: leaf * 20 if leaf.shape[0] == VOCABULARY else leaf, params)


@pytest.fixture(scope="module")
def agent():
    policy = Policy(CONFIG, end_ids=(END,))
    return policy, spread(policy.init(jax.random.key(0)))


def contexts(count=20, seed=0, groups=5):
    """Two actions each; members of a group share a prompt of 1 to 40 tokens."""
    generator = np.random.default_rng(seed)
    prompts = [generator.integers(0, VOCABULARY, n).tolist() for n in (1, 5, 21, 34, 40)[:groups]]
    return [
        Context(
            prompt=prompts[index % groups],
            key=(3, 0, index % groups, index // groups),
            limit=9,
            observations=[generator.integers(0, VOCABULARY, 1 + index % 6).tolist()],
        )
        for index in range(count)
    ]


def play(agent, options=OPTIONS, played=None, **host):
    played = contexts() if played is None else played
    queue = ScriptedHost(options.exchange_shape(), played, devices=options.devices, **host)
    drive([agent], queue, options)
    return [context.actions for context in played]


def compare(left, right, exact):
    for one, other in zip(left, right, strict=True):
        for (tokens, *scores), (others, *expected) in zip(one, other, strict=True):
            np.testing.assert_array_equal(tokens, others)
            if exact:
                np.testing.assert_array_equal(scores, expected)
            else:
                np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.fixture(scope="module")
def base(agent):
    return play(agent)


@pytest.mark.parametrize("slots", [1, 64])
def test_the_number_of_slots_changes_no_token(agent, base, slots):
    compare(base, play(agent, dataclasses.replace(OPTIONS, slots=slots)), exact=False)


@pytest.mark.parametrize("interval", [1, 7])
def test_the_exchange_interval_changes_no_bit(agent, base, interval):
    options = dataclasses.replace(OPTIONS, exchange_interval=interval)
    compare(base, play(agent, options), exact=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_admission_changes_no_bit(agent, base, seed):
    played = contexts()
    order = np.random.default_rng(seed).permutation(len(played))
    play(agent, played=[played[index] for index in order])
    compare(base, [context.actions for context in played], exact=True)


@pytest.mark.parametrize("share", [True, "whole"])
def test_a_forked_slot_is_a_prefilled_one(agent, base, share):
    compare(base, play(agent, share=share), exact=True)
