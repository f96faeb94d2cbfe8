"""What a slot samples depends on its tokens and its key; the sizes around it change no token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout.scripted_host import (
    END,
    OPTIONS,
    RECURRENT,
    VOCABULARY,
    Context,
    compare,
    contexts,
    make_agent,
    play,
)

from sepo_jax.policy import ModelConfig, Sampling, fold_index, sample_tokens, token_key
from sepo_jax.rollout import engine
from sepo_jax.sandbox.exchange import ExchangeShape, no_commands


@pytest.fixture(scope="module")
def agent():
    return make_agent()


@pytest.fixture(scope="module")
def base(agent):
    return play(agent)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 64])
def test_the_number_of_slots_changes_no_token(agent, base, slots):
    options = dataclasses.replace(OPTIONS, slots=slots)
    compare(base, play(agent, options), exact=False)


@pytest.mark.parametrize("interval", [1, 7])
def test_the_exchange_interval_changes_no_bit(agent, base, interval):
    options = dataclasses.replace(OPTIONS, exchange_interval=interval)
    compare(base, play(agent, options))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_admission_changes_no_bit(agent, base, seed):
    played = contexts()
    order = np.random.default_rng(seed).permutation(len(played))
    play(agent, played=[played[index] for index in order])
    compare(base, [context.actions for context in played])


@pytest.mark.parametrize("share", [True, "whole"])
def test_a_copied_slot_is_a_prefilled_one(agent, base, share):
    compare(base, play(agent, share=share))


@pytest.mark.slow
def test_a_recurrent_policy_works_by_whole_copies():
    agent, options = make_agent(RECURRENT), dataclasses.replace(OPTIONS, prefill_widths=(16,))
    compare(play(agent, options), play(agent, options, share="whole"))


def test_log_probabilities_are_those_of_whole_rows(agent):
    policy, params = agent
    sampling = Sampling(temperature=0.7)
    played = contexts()
    sampled = play(agent, dataclasses.replace(OPTIONS, sampling=sampling), played)
    for context, actions in zip(played, sampled, strict=True):
        ids = np.zeros((1, 96), np.int32)
        ids[0, : len(context.ids)] = context.ids
        positions = np.arange(96, dtype=np.int32)[None]
        segment = np.where(positions < len(context.ids), 0, -1).astype(np.int32)
        second = len(context.prompt) + len(actions[0][0]) + len(context.observations[0])
        for first, (tokens, logp, entropy) in zip(
            (len(context.prompt), second), actions, strict=True
        ):
            np.testing.assert_array_equal(ids[0, first : first + len(tokens)], tokens)
            source = first - 1 + np.arange(9, dtype=np.int32)[None]
            scores = whole_rows(
                policy, params, ids, positions, segment, source, ids[:, first : first + 9]
            )
            count = len(tokens)
            np.testing.assert_allclose(logp, scores.logp[0, :count], atol=1e-5)
            np.testing.assert_allclose(entropy, scores.entropy[0, :count], atol=2e-5)


whole_rows = jax.jit(
    lambda policy, params, ids, positions, segment, source, target: policy.log_probs(
        params, ids, positions, segment, None, source, target, temperature=0.7
    ),
    static_argnums=0,
)


def test_an_action_stops_at_its_first_end_token_or_at_the_limit(agent):
    for interval in (4, 7):
        options = dataclasses.replace(OPTIONS, exchange_interval=interval)
        actions = [action for pair in play(agent, options) for action in pair]
        lengths = [len(tokens) for tokens, *_ in actions]
        assert max(lengths) == 9 and min(lengths) < 9
        for tokens, logp, entropy in actions:
            assert END not in tokens[:-1] and (len(tokens) == 9 or tokens[-1] == END)
            assert len(logp) == len(entropy) == len(tokens)


def test_the_key_of_a_token_is_seed_step_group_member_and_index(agent):
    """Where all tokens are equally likely whatever came before, the keys alone choose them."""
    policy, params = agent
    flat = policy, jax.tree.map(jnp.zeros_like, params)
    keys = [(3, 0, 1, 2), (4, 0, 1, 2), (3, 1, 1, 2), (3, 0, 2, 2), (3, 0, 1, 3)]
    played = [Context([1], key, 9, [[5, 6]]) for key in keys]
    seen = []
    for key, actions in zip(keys, play(flat, played=played), strict=True):
        rows = jnp.tile(token_key(*key)[None], (18, 1))
        drawn = sample_tokens(fold_index(rows, jnp.arange(18)), jnp.zeros((18, VOCABULARY)))
        seen.append(tuple(drawn.token.tolist()))
        # The second action starts at key 9, wherever the first one ended.
        for (tokens, logp, _), expected in zip(actions, (seen[-1][:9], seen[-1][9:]), strict=True):
            np.testing.assert_array_equal(tokens, expected[: len(tokens)])
            np.testing.assert_allclose(logp, -np.log(VOCABULARY), atol=1e-6)
    assert len(set(seen)) == len(keys)


STEP = jax.jit(engine.decode, static_argnums=(0, 3, 4, 5, 6))
APPLY = jax.jit(engine.apply, static_argnums=0)


def test_how_much_of_the_cache_is_read_changes_no_bit():
    """The sizes of an attention layer of SmolLM2-135M, where a product over 1,024 positions sums in
    another order than one over 256."""
    config = ModelConfig(
        vocab_size=VOCABULARY, hidden_size=576, num_layers=1, num_heads=9, num_kv_heads=3,
        intermediate_size=32,
    )  # fmt: skip
    agent = make_agent(config)
    state = engine.init_slots(agent[0], 4, 1024)
    state = APPLY(*agent, state, filled(ExchangeShape(slots=4, widths=(128,)), 120))
    whole, *others = (
        STEP(*agent, state, Sampling(), (), 3, reach)[1] for reach in (1024, 256, (256, 1024))
    )
    assert (whole.count == 3).all() and (whole.logp < -0.01).any()
    for other in others:
        for array, expected in zip(other, whole, strict=True):
            np.testing.assert_array_equal(array, expected)


def filled(shape, length):
    """Commands that put `length` tokens into every slot and begin an action there."""
    commands = no_commands(shape)
    chunks = commands.chunks[-1]
    chunks.calls[...] = shape.slots
    chunks.slots[: shape.slots, 0] = np.arange(shape.slots)
    chunks.lengths[: shape.slots, 0] = length
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, chunks.tokens.shape)
    chunks.tokens[...] = tokens
    commands.start[...] = True
    commands.limit[...] = 100
    commands.keys[:, 3] = np.arange(shape.slots)
    return commands


def test_a_slot_that_passes_its_capacity_shows_and_no_other_does(agent):
    shape = ExchangeShape(slots=4, widths=(16,))
    commands = filled(shape, 10)
    commands.chunks[0].lengths[1, 0] = 15
    state = APPLY(*agent, engine.init_slots(agent[0], 4, 16), commands)
    _, report = STEP(*agent, state, Sampling(), (), 3, 16)
    fits = np.ones((4, 3), bool)
    fits[1, 1:] = False
    np.testing.assert_array_equal(np.isfinite(report.logp), fits)


def test_halted_and_cleared_slots_stop_and_the_others_go_on(agent):
    shape = ExchangeShape(slots=4, widths=(16,))
    state = APPLY(*agent, engine.init_slots(agent[0], 4, 64), filled(shape, 10))
    commands = no_commands(shape)
    commands.halt[0] = commands.clear[1] = True
    state = APPLY(*agent, state, commands)
    np.testing.assert_array_equal(state.decoding, [False, False, True, True])
    np.testing.assert_array_equal(state.cache.lengths, [10, 0, 10, 10])
    after, report = STEP(*agent, state, Sampling(), (), 3, 64)
    np.testing.assert_array_equal(report.count, [0, 0, 3, 3])
    np.testing.assert_array_equal(after.cache.lengths, [10, 0, 13, 13])
    np.testing.assert_array_equal(after.pending[:2], state.pending[:2])


def test_decoding_stops_when_no_slot_decodes(agent):
    """Nothing is fed after the last token of an action: the cache lacks exactly that one."""
    shape = ExchangeShape(slots=4, widths=(16,))
    commands = filled(shape, 10)
    commands.limit[...] = [1, 2, 2, 1]
    state = APPLY(*agent, engine.init_slots(agent[0], 4, 64), commands)
    after, report = STEP(*agent, state, Sampling(), (), 3, 64)
    np.testing.assert_array_equal(report.count, commands.limit)
    np.testing.assert_array_equal(after.cache.lengths, 10 + commands.limit)
    assert not after.decoding.any() and not report.decoding.any()
    assert not report.tokens[:, 2].any()


def test_reaches_are_powers_of_two_and_the_capacity():
    assert engine.reaches(96) == (96,)
    assert engine.reaches(256) == (256,)
    assert engine.reaches(1000) == (256, 512, 1000)
