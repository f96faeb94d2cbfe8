"""Inverse-CDF sampling against exact distributions, truncation, legal lists, keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import Sampling, sample_tokens, token_key, token_uniform

draw = jax.jit(sample_tokens, static_argnums=2)
GRID = 4096
UNIFORMS = jnp.asarray((np.arange(GRID) + 0.5) / GRID, jnp.float32)


def exact(logits, temperature=1.0, top_k=0, top_p=1.0, allowed=None):
    """The distribution that should be sampled, float64, by sorting."""
    z = np.asarray(logits, np.float64) / temperature
    if allowed is not None:
        z = np.where(allowed, z, -np.inf)
    order = np.argsort(-z, kind="stable")
    keep = np.arange(len(z)) < (top_k or len(z))
    mass = np.exp(z[order] - z.max()) * keep
    mass /= mass.sum()
    if top_p < 1:
        keep &= np.cumsum(mass) - mass < top_p
    p = np.zeros(len(z))
    p[order] = np.exp(z[order] - z.max()) * keep
    return p / p.sum()


@pytest.mark.parametrize("vocabulary", [50, 700])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.8, "temperature": 1.5},
        {"top_k": 20, "top_p": 0.5},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()) or "plain",
)
def test_frequencies_over_a_grid_of_uniforms(vocabulary, options):
    """With all uniforms (i + 1/2) / N, each token is drawn p N times, give or take one. # A10

    The log-probability and entropy reported are those of the truncated, renormalised distribution.
    """
    logits = 2 * np.random.default_rng(vocabulary).normal(size=vocabulary).astype(np.float32)
    tiled = jnp.asarray(np.tile(logits, (GRID, 1)))
    drawn = draw(UNIFORMS, tiled, Sampling(**options))
    p = exact(logits, **options)
    counts = np.bincount(drawn.token, minlength=vocabulary)
    assert np.abs(counts - p * GRID).max() <= 1.5
    np.testing.assert_allclose(drawn.logp, np.log(p[drawn.token]), atol=2e-5)
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    np.testing.assert_allclose(drawn.entropy, entropy, atol=2e-5)


def test_random_uniforms_pass_chi_square():
    """20,000 draws with keys of `token_key`: statistic below 27.9, its 99.9% point (9 degrees)."""
    logits = np.random.default_rng(1).normal(size=10).astype(np.float32)
    keys = token_key(3, 0, 0, jnp.arange(20_000))
    uniform = token_uniform(keys, jnp.zeros(20_000, jnp.int32))
    drawn = draw(uniform, jnp.asarray(np.tile(logits, (20_000, 1))), Sampling())
    expected = exact(logits) * 20_000
    counts = np.bincount(drawn.token, minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9


def test_greedy_and_its_equals():
    """top_k=1, tiny top_p, and near-zero temperature all draw the greedy token, ties included."""
    logits = np.random.default_rng(2).normal(size=(64, 300)).astype(np.float32)
    logits[::2, [7, 250]] = 9.0  # a tie: the lower id wins
    uniform = jnp.asarray(np.linspace(0, 1 - 2**-24, 64), jnp.float32)
    greedy = draw(uniform, logits, Sampling(greedy=True, temperature=0.5))
    np.testing.assert_array_equal(greedy.token, logits.argmax(1))
    for name, value in (("top_k", 1), ("top_p", 1e-6)):
        drawn = draw(uniform, logits, Sampling(**{name: value}))
        np.testing.assert_array_equal(drawn.token, greedy.token)
        np.testing.assert_allclose(drawn.logp, 0, atol=1e-6)
        np.testing.assert_allclose(drawn.entropy, 0, atol=1e-6)
    cold = draw(uniform, logits, Sampling(temperature=1e-4))
    odd = np.arange(64) % 2 == 1
    np.testing.assert_array_equal(cold.token[odd], greedy.token[odd])
    assert np.isfinite(cold.logp).all() and np.isfinite(cold.entropy).all()
    np.testing.assert_allclose(cold.logp[~odd], np.log(0.5), atol=1e-5)
    # Greedy reports the untruncated distribution at its temperature.
    p = exact(logits[1], temperature=0.5)
    np.testing.assert_allclose(greedy.logp[1], np.log(p.max()), atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    legal=st.integers(1, 40),
    uniform=st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1 - 2**-24]),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
    options=st.sampled_from([Sampling(), Sampling(top_k=3, top_p=0.7), Sampling(greedy=True)]),
)
def test_legal_list_is_never_left(seed, legal, uniform, spread, options):
    """Whatever the uniform, the logits and the truncation: a legal token, of finite probability."""
    generator = np.random.default_rng(seed)
    logits = spread * generator.normal(size=(4, 40)).astype(np.float32)
    allowed = np.zeros((4, 40), bool)
    for row in allowed:
        row[generator.permutation(40)[:legal]] = True
    uniforms = jnp.full((4,), uniform, jnp.float32)
    drawn = draw(uniforms, jnp.asarray(logits), options, jnp.asarray(allowed))
    assert allowed[np.arange(4), drawn.token].all()
    assert np.isfinite(drawn.logp).all() and np.isfinite(drawn.entropy).all()
    if not options.greedy and options.top_k == 0:
        for row in range(4):
            p = exact(logits[row], allowed=allowed[row])[drawn.token[row]]
            np.testing.assert_allclose(drawn.logp[row], np.log(p), atol=1e-3)


def test_one_uniform_per_slot():
    """Slots do not influence each other, and the token rises with the uniform (inverse CDF)."""
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(6, 33)).astype(np.float32))
    uniform = jnp.asarray([0.1, 0.9, 0.3, 0.5, 0.7, 0.2])
    drawn = draw(uniform, logits, Sampling()).token
    order = jnp.array([3, 5, 0, 2, 4, 1])
    np.testing.assert_array_equal(
        draw(uniform[order], logits[order], Sampling()).token, drawn[order]
    )
    same = jnp.asarray(np.tile(logits[0], (GRID, 1)))
    assert (np.diff(draw(UNIFORMS, same, Sampling()).token) >= 0).all()


def test_keys_name_their_trajectory():
    """2 steps x 8 members: 16 distinct samples; another seed, others; the same seed, same. # C10"""
    logits = jnp.zeros((16, 1000))

    def sample(seed):
        step, member = np.divmod(np.arange(16), 8)
        keys = token_key(seed, step, 5, member)
        columns = [
            draw(token_uniform(keys, jnp.full((16,), index)), logits, Sampling()).token
            for index in range(8)
        ]
        return [tuple(row) for row in np.stack(columns, 1)]

    first = sample(7)
    assert len(set(first)) == 16
    assert sample(7) == first
    assert not set(sample(8)) & set(first)
    # An array of keys is the keys of its entries: place and count play no part.
    keys = token_key(7, 1, np.array([4, 5]), 3)
    np.testing.assert_array_equal(keys[1], token_key(7, 1, 5, 3))
    parts = [token_key(*ids) for ids in ((7, 1, 5, 3), (7, 1, 3, 5), (1, 7, 5, 3), (7, 5, 1, 3))]
    assert len({tuple(np.asarray(key)) for key in parts}) == 4, (
        "the four numbers are not exchangeable"
    )


def test_uniforms_fill_the_unit_interval():
    """Mean 1/2 and variance 1/12 within four standard errors; never 0 or 1."""
    count = 10_000
    uniform = token_uniform(token_key(0, 0, 0, jnp.arange(count)), jnp.arange(count))
    assert uniform.dtype == jnp.float32 and uniform.min() > 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 4 * np.sqrt(1 / 12 / count)
    assert abs(uniform.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / count)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "greedy=True"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_refuses_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_truncated_rollouts_are_not_trained_on():
    """The trainer scores whole distributions: truncation is refused by the option's name. # A10"""
    Sampling(temperature=0.6).check_trainable()
    for options in ({"top_p": 0.9}, {"top_k": 10}, {"greedy": True}):
        (name,) = options
        with pytest.raises(ValueError, match=name):
            Sampling(**options).check_trainable()


def test_nothing_allowed_is_visible():
    drawn = draw(UNIFORMS[:1], jnp.zeros((1, 4)), Sampling(), jnp.zeros((1, 4), bool))
    assert np.isneginf(drawn.logp[0])
