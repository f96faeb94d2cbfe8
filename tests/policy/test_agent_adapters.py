"""Adapters of several agents side by side: each token takes its agent's, and no other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy.test_lora import MIXED, noisy, with_lora

from sepo_jax.policy import Policy, attach, detach, init_adapter, merge
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.lora import apart, concatenate
from sepo_jax.rollout.weights import assembled, decoding_forms, distinct

pytestmark = pytest.mark.usefixtures("compile_fast")
AGENTS = (7, 3)
SMALL = {"num_layers": 1}
TARGETS = ("q_proj", "v_proj", "down_proj")


def several(make_params, fields=SMALL, same=False, targets=TARGETS):
    """A policy of two agents, its parameters, and the policy and parameters of each alone."""
    one = with_lora(fields, targets=targets)
    config = dataclasses.replace(one, lora=dataclasses.replace(one.lora, agents=AGENTS))
    base = make_params(one)
    fresh = init_adapter(one, base, jax.random.key(0))
    adapters = [noisy(fresh, 0 if same else seed) for seed in range(2)]
    params = attach(base, concatenate(one, adapters)[1])
    return Policy(config), params, Policy(one), [attach(base, each) for each in adapters]


def rows(count=2, length=7, seed=3):
    """Arguments of `log_probs`: rows of one segment each."""
    tokens = np.random.default_rng(seed).integers(0, 29, (count, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    segment = np.zeros((count, length), np.int32)
    return tokens, positions, segment, None, positions[:, :-1], tokens[:, 1:]


score = jax.jit(
    lambda policy, params, row, agent: policy.log_probs(params, *row, agent=agent).logp,
    static_argnums=0,
)


# Identities


@pytest.mark.parametrize("fields", [{}, MIXED], ids=["llama", "mixed"])
def test_a_token_takes_the_adapter_of_its_agent(fields, make_params):
    policy, params, one, alone = several(make_params, fields, targets="all")
    row = rows()
    found = score(policy, params, row, np.array([[3], [7]], np.int32))
    expected = [score(one, part, row, None) for part in alone]
    np.testing.assert_allclose(found[0], expected[1][0], atol=1e-3)
    np.testing.assert_allclose(found[1], expected[0][1], atol=1e-3)
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    # An agent without an adapter is the policy without one.
    plain = score(one, detach(params)[0], row, None)
    found = score(policy, params, row, np.array([[5], [5]], np.int32))
    np.testing.assert_allclose(found, plain, atol=1e-5)


def test_agents_in_one_row_are_as_alone(make_params):
    policy, params, one, alone = several(make_params)
    tokens, *_ = rows()
    packed = (
        tokens.reshape(1, -1),
        np.tile(np.arange(7, dtype=np.int32), 2)[None],
        np.repeat(np.arange(2, dtype=np.int32), 7)[None],
        np.eye(2, dtype=bool)[None],
        np.array([[2, 9]], np.int32),
        np.array([[tokens[0, 3], tokens[1, 3]]], np.int32),
    )
    found = score(policy, params, packed, np.array([AGENTS], np.int32))
    expected = [score(one, part, rows(), None)[index, 2] for index, part in enumerate(alone)]
    np.testing.assert_allclose(found[0], expected, atol=1e-4)


def test_equal_adapters_are_one_that_both_share(make_params):
    policy, params, one, alone = several(make_params, same=True)
    row, agent = rows(), np.array([[7], [3]], np.int32)
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32))

    def found(policy, params):
        base, adapter = detach(params)

        def loss(own):
            logp = policy.log_probs(attach(base, own), *row, agent=agent).logp
            return jnp.sum(weight * logp), logp

        return jax.jit(jax.grad(loss, has_aux=True))(adapter)

    (joint, logp), (shared, expected) = found(policy, params), found(one, alone[0])
    np.testing.assert_allclose(logp, expected, atol=1e-4)
    summed = jax.tree.map(jnp.add, *apart(policy.config, joint)[1])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), summed, shared
    )


def test_the_gradient_of_an_adapter_is_of_its_agents_tokens_alone(make_params):
    policy, params, _, _ = several(make_params)
    base, adapter = detach(params)
    agent = np.array([[7], [3]], np.int32)

    @jax.jit
    def gradient(row, weight):
        def loss(own):
            return jnp.sum(weight * policy.log_probs(attach(base, own), *row, agent=agent).logp)

        return jax.grad(loss)(adapter)

    row, ones = rows(), np.ones((2, 6), np.float32)
    first, second = apart(policy.config, gradient(row, ones))[1]
    # Other tokens of the other agent, or none: the same, bit for bit.
    changed = rows(seed=4)
    mixed = jax.tree.map(lambda a, b: np.stack([a[0], b[1]]), row, changed)
    after, other = apart(policy.config, gradient(mixed, ones))[1]
    jax.tree.map(np.testing.assert_array_equal, first, after)
    differs = jax.tree.map(lambda a, b: np.abs(a - b).max(), second, other)
    assert min(jax.tree.leaves(differs)) > 1e-4
    alone, nothing = apart(policy.config, gradient(row, np.stack([ones[0], 0 * ones[1]])))[1]
    jax.tree.map(np.testing.assert_array_equal, first, alone)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nothing))


def test_one_agent_is_the_adapter_that_all_share(make_params):
    """The same program, so the same bits."""
    shared = with_lora(SMALL, targets=TARGETS)
    single = dataclasses.replace(shared, lora=dataclasses.replace(shared.lora, agents=(7,)))
    params = make_params(shared)
    made = [init_adapter(config, params, jax.random.key(0)) for config in (shared, single)]
    jax.tree.map(np.testing.assert_array_equal, *made)
    attached = attach(params, made[0])
    agent = np.full((2, 1), 7, np.int32)

    def program(config, agent):
        own = lambda params: Policy(config).log_probs(params, *rows(), agent=agent)  # noqa: E731
        return str(jax.make_jaxpr(own)(attached))

    assert program(single, agent) == program(shared, None)
    assert apart(single, attached)[1][0] is attached
    assert apart(single, attached)[0] == shared


def test_what_is_put_together_is_taken_apart(make_params):
    policy, params, one, alone = several(make_params, MIXED)
    config, parts = apart(policy.config, params)
    assert config == one.config
    for found, expected in zip(parts, alone, strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    # All but the adapters is there once.
    bases = [jax.tree.leaves(detach(part)[0]) for part in parts]
    assert all(a is b for a, b in zip(*bases, strict=True))
    fresh = init_adapter(policy.config, detach(params)[0], jax.random.key(0))
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, detach(params)[1])


# Decoding


@pytest.mark.parametrize(
    ("fields", "targets"),
    [(SMALL, "all"), (SMALL, TARGETS), (SMALL, ("up_proj",)), (MIXED, "all")],
)
def test_agents_decode_over_the_same_arrays(fields, targets, make_params):
    policy, params, one, _ = several(make_params, fields, targets=targets)
    _, parts = apart(policy.config, params)
    forms = decoding_forms([(one, part) for part in parts])
    arrays, layout = distinct(forms)
    adapters = [jax.tree.leaves([detach(layer)[1] for layer in form["layers"]]) for form in forms]
    plain = jax.tree.leaves(jax.eval_shape(one.fuse, detach(params)[0]))
    assert len(arrays) == len(plain) + sum(map(len, adapters))
    jax.tree.map(lambda a, b: a is b or pytest.fail(), assembled(arrays, layout), forms)
    tokens = jnp.asarray(rows(1)[0])
    prefill = jax.jit(
        lambda params: one.prefill(params, one.init_cache(1, 8), tokens, jnp.array([7]))[1]
    )
    for form, part in zip(forms, parts, strict=True):
        np.testing.assert_allclose(prefill(form), prefill(one.fuse(part)), atol=1e-3)


def test_a_policy_that_shares_nothing_has_its_adapter_merged(make_params):
    _, _, one, alone = several(make_params, targets=("q_proj",))
    other = jax.tree.map(jnp.copy, alone[1])
    (found, _), fused = decoding_forms([(one, alone[0]), (one, other)]), one.fuse(alone[0])
    assert jax.tree.structure(found) == jax.tree.structure(fused)
    same = decoding_forms([(one, detach(alone[0])[0])] * 2)
    assert same[0] is same[1]


# Bad input


def test_adapters_of_several_agents_need_to_be_chosen(make_params):
    policy, params, one, alone = several(make_params, targets=("q_proj",))
    with pytest.raises(ValueError, match=r"agents: score with log_probs\(\.\.\., agent="):
        policy.log_probs(params, *rows())
    with pytest.raises(ValueError, match=r"4 columns, but config\.lora says 1 of rank 2"):
        one.log_probs(params, *rows())
    with pytest.raises(ValueError, match=r"2 columns, but config\.lora says 2 of rank 2"):
        policy.log_probs(alone[0], *rows(), agent=np.zeros((2, 1), np.int32))
    with pytest.raises(
        ValueError, match=r"rank 4, but config\.lora says 2; take adapters of several"
    ):
        merge(policy.config, params)
    with pytest.raises(ValueError, match=r"agents=\(1, 1\) names an agent twice"):
        LoraConfig(agents=(1, 1))
