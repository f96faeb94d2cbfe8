"""Sampling against exact distributions, truncation, legal lists, keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sepo_jax.policy import Sampling, fold_index, sample_tokens, token_key

draw = jax.jit(sample_tokens, static_argnums=2)
DRAWS = 2**14
KEYS = jax.jit(fold_index)(token_key(3, 0, 0, jnp.arange(DRAWS)), jnp.zeros(DRAWS, jnp.int32))


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
def test_frequencies_of_many_draws(vocabulary, options):
    """16,384 draws pass chi-square at its 99.99% point, tokens expected under 20 times in one bin.

    The log-probability and entropy reported are those of the truncated, renormalised distribution.
    """  # A10
    logits = 2 * np.random.default_rng(vocabulary).normal(size=vocabulary).astype(np.float32)
    drawn = draw(KEYS, jnp.asarray(np.tile(logits, (DRAWS, 1))), Sampling(**options))
    p = exact(logits, **options)
    counts = np.bincount(drawn.token, minlength=vocabulary)
    assert not counts[p == 0].any()
    rare = p * DRAWS < 20
    bins = [np.append(each[~rare], each[rare].sum()) for each in (counts, p * DRAWS)]
    bins = [each[: None if bins[1][-1] else -1] for each in bins]
    assert len(bins[0]) == 1 or stats.chisquare(*bins).pvalue > 1e-4
    np.testing.assert_allclose(drawn.logp, np.log(p[drawn.token]), atol=2e-5)
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    np.testing.assert_allclose(drawn.entropy, entropy, atol=2e-5)


def test_rare_tokens_are_drawn_as_often_as_they_should():
    """A token of probability 1e-3 in another block: its count within 4.5 standard errors."""
    logits = np.full((1, 1024), -np.inf, np.float32)
    logits[0, [3, 1000]] = np.log([1 - 1e-3, 1e-3])
    drawn = draw(KEYS, jnp.broadcast_to(jnp.asarray(logits), (DRAWS, 1024)), Sampling())
    expected = DRAWS * 1e-3
    assert abs((np.asarray(drawn.token) == 1000).sum() - expected) < 4.5 * np.sqrt(expected)


def test_the_last_bits_of_logits_do_not_move_tokens():
    """Half of the vocabulary moved by 1e-4: of 16,384 draws about one changes, hardly ever 8.

    Of draws by a running sum of the probabilities, whose boundaries all move, 146 do.
    """
    logits = np.random.default_rng(0).normal(size=(DRAWS, 700)).astype(np.float32)
    moved = logits + np.where(np.arange(700) < 350, np.float32(1e-4), 0)
    first, second = (draw(KEYS, jnp.asarray(z), Sampling()).token for z in (logits, moved))
    assert (np.asarray(first) != np.asarray(second)).sum() < 8


def test_greedy_and_its_equals():
    """top_k=1, tiny top_p, and near-zero temperature all draw the greedy token, ties included."""
    logits = np.random.default_rng(2).normal(size=(64, 300)).astype(np.float32)
    logits[::2, [7, 250]] = 9.0  # a tie: the lower id wins
    keys = KEYS[:64]
    greedy = draw(keys, logits, Sampling(greedy=True, temperature=0.5))
    np.testing.assert_array_equal(greedy.token, logits.argmax(1))
    for name, value in (("top_k", 1), ("top_p", 1e-6)):
        drawn = draw(keys, logits, Sampling(**{name: value}))
        np.testing.assert_array_equal(drawn.token, greedy.token)
        np.testing.assert_allclose(drawn.logp, 0, atol=1e-6)
        np.testing.assert_allclose(drawn.entropy, 0, atol=1e-6)
    cold = draw(keys, logits, Sampling(temperature=1e-4))
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
    key=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
    options=st.sampled_from([Sampling(), Sampling(top_k=3, top_p=0.7), Sampling(greedy=True)]),
)
def test_legal_list_is_never_left(seed, legal, key, spread, options):
    """Whatever the key, the logits and the truncation: a legal token, of finite probability."""
    generator = np.random.default_rng(seed)
    logits = spread * generator.normal(size=(4, 40)).astype(np.float32)
    allowed = np.zeros((4, 40), bool)
    for row in allowed:
        row[generator.permutation(40)[:legal]] = True
    keys = jnp.full((4, 2), key, jnp.uint32)
    drawn = draw(keys, jnp.asarray(logits), options, jnp.asarray(allowed))
    assert allowed[np.arange(4), drawn.token].all()
    assert np.isfinite(drawn.logp).all() and np.isfinite(drawn.entropy).all()
    if not options.greedy and options.top_k == 0:
        for row in range(4):
            p = exact(logits[row], allowed=allowed[row])[drawn.token[row]]
            np.testing.assert_allclose(drawn.logp[row], np.log(p), atol=1e-3)


def test_slots_do_not_influence_each_other():
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(6, 33)).astype(np.float32))
    drawn = draw(KEYS[:6], logits, Sampling()).token
    order = jnp.array([3, 5, 0, 2, 4, 1])
    again = draw(KEYS[order], logits[order], Sampling()).token
    np.testing.assert_array_equal(again, drawn[order])


def test_keys_name_their_trajectory():
    """2 steps x 8 members: 16 distinct samples; another seed, others; the same seed, same. # C10"""
    logits = jnp.zeros((16, 1000))

    def sample(seed):
        step, member = np.divmod(np.arange(16), 8)
        keys = token_key(seed, step, 5, member)
        columns = [
            draw(fold_index(keys, jnp.full((16,), index)), logits, Sampling()).token
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


def test_no_setting_of_jax_changes_the_draws():
    def tokens():
        keys = fold_index(token_key(jnp.arange(8), 1, 2, 3), jnp.arange(8))
        return np.asarray(sample_tokens(keys, jnp.zeros((8, 700))).token)

    usual = tokens()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(tokens(), usual)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "greedy=True"),
        ({"temperature": 1e-45}, "no smaller than float32"),
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
    drawn = draw(KEYS[:1], jnp.zeros((1, 4)), Sampling(), jnp.zeros((1, 4), bool))
    assert np.isneginf(drawn.logp[0])
