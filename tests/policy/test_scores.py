"""`chunked_scores` is `token_scores` of logits that are never held whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from sepo_jax.policy.scores import TILE, chunked_scores, token_scores

EXACT = jax.lax.Precision.HIGHEST
LAYOUTS = {"embedding": 0, "output projection": 1}
# Five vocabulary pieces of one tile, the last of which reaches back.
VOCABULARY, WIDTH, ROWS = 4 * TILE + 30, 12, (3, 4)
PIECES = TILE * 12


def plain(normal, kernel, target, *, temperature=1.0, softcap=None, vocabulary_axis):
    """The definition: all logits at once, differentiated by JAX."""
    kernel = kernel.astype(normal.dtype)
    logits = jnp.tensordot(
        normal,
        kernel if vocabulary_axis == 1 else kernel.T,
        axes=1,
        precision=EXACT,
        preferred_element_type=jnp.float32,
    )
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return token_scores(logits, target, temperature)


def draw(rows=ROWS, vocabulary=VOCABULARY, width=WIDTH, axis=0, seed=0, spread=1.0):
    """(normal, kernel, target, cotangents) of distributions that are neither flat nor certain."""
    generator = np.random.default_rng(seed)
    shape = (vocabulary, width) if axis == 0 else (width, vocabulary)
    normal = generator.normal(size=(*rows, width)) * spread
    kernel = generator.normal(size=shape)
    target = generator.integers(0, vocabulary, rows)
    weights = generator.normal(size=(2, *rows))
    floats = tuple(jnp.asarray(array, jnp.float32) for array in (normal, kernel, weights))
    return floats[0], floats[1], jnp.asarray(target, jnp.int32), floats[2]


def weighed(function, target, weights, **options):
    """A scalar of (normal, kernel) that uses both scores."""

    def loss(normal, kernel):
        logp, entropy = function(normal, kernel, target, **options)
        return jnp.sum(weights[0] * logp) + jnp.sum(weights[1] * entropy)

    return loss


def assert_close(found, expected, tolerance):
    """Within `tolerance` of the largest entry, or of 1."""
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


def gradients_agree(normal, kernel, target, weights, axis, tolerance=1e-5, **options):
    """Values, and gradients with a kernel that is trained and with one that is frozen."""
    options["vocabulary_axis"] = axis

    @jax.jit
    def compute(normal, kernel, target, weights):
        chunked = partial(chunked_scores, budget=PIECES, precision=EXACT)
        loss, reference = (weighed(f, target, weights, **options) for f in (chunked, plain))
        found = jax.grad(loss, argnums=(0, 1))(normal, kernel)
        expected = jax.grad(reference, argnums=(0, 1))(normal, kernel)
        frozen = jax.grad(loss)(normal, kernel)
        values = (f(normal, kernel, target, **options) for f in (chunked, plain))
        return *values, (*found, frozen), (*expected, expected[0])

    scores, plain_scores, found, expected = compute(normal, kernel, target, weights)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), scores, plain_scores)
    for one, wanted in zip(found, expected, strict=True):
        assert one.dtype == wanted.dtype
        assert_close(one, wanted, tolerance)


# ------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("axis", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("softcap", "temperature"), [(None, 1.0), (3.0, 0.6)])
def test_equals_the_plain_scores(axis, softcap, temperature):
    gradients_agree(*draw(axis=axis), axis, softcap=softcap, temperature=temperature)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from([(1, 1), (2, 0), (0, 3), (3, 1), (2, 5), (7,)]),
    st.sampled_from([1, 5, TILE, TILE + 1, 3 * TILE, 3 * TILE - 1]),
    st.sampled_from([0, 1]),
)
def test_any_shape(rows, vocabulary, axis):
    gradients_agree(*draw(rows, vocabulary, 6, axis), axis)


def test_the_peak_may_rise_or_fall_from_piece_to_piece():
    """Logits 60 apart, so that every rescaling matters and exp of a raw logit overflows."""
    normal, kernel, target, weights = draw()
    ramp = jnp.linspace(-60, 60, VOCABULARY)
    normal = normal.at[..., 0].set(jnp.array([2.0, -2.0, 1.0, -1.0]))
    gradients_agree(normal, kernel.at[:, 0].set(ramp), target, weights, 0)


def test_one_piece_or_many():
    normal, kernel, target, _ = draw()
    score = jax.jit(partial(chunked_scores, vocabulary_axis=0), static_argnames="budget")
    whole, parts = (score(normal, kernel, target, budget=budget) for budget in (2**30, 1))
    np.testing.assert_allclose(whole, parts, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_columns_without_weight_add_exactly_nothing(frozen):
    """Padding: cotangent 0 there, whatever the target, leaves the other numbers bit for bit."""
    normal, kernel, target, weights = draw()
    weights = weights.at[:, 1:].set(0.0)
    argnums = 0 if frozen else (0, 1)

    @jax.jit
    def gradient(target, normal):
        options = {"budget": PIECES, "vocabulary_axis": 0}
        loss = weighed(chunked_scores, target, weights, **options)
        return jax.tree.leaves(jax.grad(loss, argnums)(normal, kernel))

    first = gradient(target, normal)
    assert (np.asarray(first[0])[1:] == 0).all() and (np.asarray(first[0])[0] != 0).all()
    for other in (gradient(target.at[1:].set(0), normal), gradient(target, normal.at[1:].add(1.0))):
        jax.tree.map(np.testing.assert_array_equal, first, other)


def test_a_temperature_may_be_traced_and_gets_no_gradient():
    normal, kernel, target, weights = draw()

    def loss(temperature, normal):
        options = {"temperature": temperature, "budget": PIECES, "vocabulary_axis": 0}
        return weighed(chunked_scores, target, weights, **options)(normal, kernel)

    of_temperature, of_normal = jax.jit(jax.grad(loss, argnums=(0, 1)))(0.8, normal)
    reference = weighed(plain, target, weights, temperature=0.8, vocabulary_axis=0)
    assert of_temperature == 0.0
    assert_close(of_normal, jax.grad(reference)(normal, kernel), 1e-5)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("wrap", ["vmap", "map", "scan", "checkpoint", "cond", "pmap"])
def test_under_transformations(wrap, frozen):
    """Every transformation the trainer uses gives the gradient of the plain sum over rows."""
    normal, kernel, target, weights = draw(rows=(2, 3, 2))
    weights = jnp.moveaxis(weights, 1, 0)
    argnums = 0 if frozen else (0, 1)

    def part(normal, kernel, target, weights, function=chunked_scores, **options):
        loss = weighed(function, target, weights, vocabulary_axis=0, **options)
        return loss(normal, kernel)

    def whole(normal, kernel, function=part):
        def one(share):
            return function(share[0], kernel, *share[1:])

        shares = (normal, target, weights)
        if wrap == "vmap":
            return jax.vmap(one)(shares).sum()
        if wrap == "map":
            return jax.lax.map(one, shares).sum()
        if wrap == "scan":
            return jax.lax.scan(lambda sum, share: (sum + one(share), None), 0.0, shares)[0]
        if wrap == "checkpoint":
            return jax.vmap(jax.checkpoint(one))(shares).sum()
        gate = partial(jax.lax.cond, normal.sum() < 1e9, one, lambda share: 0.0)
        return sum(gate(share) for share in zip(*shares, strict=True))

    budgeted = partial(part, budget=2 * TILE)
    reference = jax.grad(
        lambda normal, kernel: sum(
            part(normal[i], kernel, target[i], weights[i], plain) for i in range(2)
        ),
        argnums,
    )
    expected = jax.jit(reference)(normal, kernel)
    if wrap == "pmap":
        over_devices = jax.pmap(jax.grad(budgeted, argnums), in_axes=(0, None, 0, 0))
        found = over_devices(normal, kernel, target, weights)
        found = found if frozen else (found[0], found[1].sum(0))
    else:
        found = jax.jit(jax.grad(partial(whole, function=budgeted), argnums))(normal, kernel)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), found, expected)


# -------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradient_is_the_closed_form(softcap):
    """d logp / dz = (onehot - p) c' / T, d H / dz = -p (log p + H) c' / T, in float64 by hand."""
    normal, kernel, target, weights = draw(rows=(5,), axis=1)
    n, k, w = (np.asarray(array, np.float64) for array in (normal, kernel, weights))
    temperature, raw = 0.7, n @ k
    bent = raw if softcap is None else softcap * np.tanh(raw / softcap)
    slope = 1.0 if softcap is None else 1 - np.tanh(raw / softcap) ** 2
    logp = bent / temperature
    logp -= np.log(np.exp(logp).sum(1, keepdims=True))
    p = np.exp(logp)
    entropy = -(p * logp).sum(1, keepdims=True)
    onehot = np.eye(VOCABULARY)[np.asarray(target)]
    dz = w[0][:, None] * (onehot - p) - w[1][:, None] * p * (logp + entropy)
    dz *= slope / temperature
    options = {"temperature": temperature, "softcap": softcap, "vocabulary_axis": 1}
    options |= {"budget": PIECES, "precision": EXACT}
    loss = weighed(chunked_scores, target, weights, **options)
    of_normal, of_kernel = jax.jit(jax.grad(loss, argnums=(0, 1)))(normal, kernel)
    assert_close(of_normal, dz @ k.T, 3e-6)
    assert_close(of_kernel, n.T @ dz, 3e-6)
    assert_close(jax.jit(jax.grad(loss))(normal, kernel), dz @ k.T, 3e-6)


@pytest.mark.parametrize("frozen", [True, False])
def test_gradient_is_the_finite_difference(frozen):
    normal, kernel, target, weights = draw(rows=(2,), vocabulary=TILE + 9, width=4, spread=0.5)
    options = {"budget": 1, "vocabulary_axis": 0, "softcap": 4.0, "precision": EXACT}
    loss = weighed(chunked_scores, target, weights, **options)
    arguments = (normal, kernel)
    if frozen:
        arguments = (normal,)
    check_grads(
        jax.jit(lambda normal, kernel=kernel: loss(normal, kernel)),
        arguments,
        order=1,
        modes=("rev",),
        atol=2e-2,
        rtol=2e-2,
        eps=1e-2,
    )


@pytest.mark.parametrize("frozen", [True, False])
def test_a_certain_target_keeps_its_small_gradient(frozen):
    """p_t = 1 - 2e-6: d logp / dn = (1 - p_t) (k_t - k_other), which rounding of p_t would lose.

    Logits are 0 at the target and -log(1 / x) = log x at one other entry, the rest -1000; so
    1 - p_t = x / (1 + x), about x = 2e-6. With n = 1 and H = 1 the kernel is the logits, and
    d logp / dn = (1 - p_t) (0 - log x) = 2e-6 * 13.122363 = 2.624467e-5.
    """
    kernel = jnp.full((2 * TILE, 1), -1000.0).at[3].set(0.0).at[TILE + 5].set(np.log(2e-6))
    normal, target = jnp.ones((1, 1)), jnp.array([3])
    options = {"budget": 1, "vocabulary_axis": 0}
    loss = weighed(chunked_scores, target, jnp.array([[1.0], [0.0]]), **options)
    found = jax.jit(jax.grad(loss, 0 if frozen else (0, 1)))(normal, kernel)
    found = found if frozen else found[0]
    np.testing.assert_allclose(found, [[2.624467e-5]], rtol=1e-5 if frozen else 0.05)


@pytest.mark.parametrize("axis", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32")])
def test_half_precision(axis, dtypes):
    """Products of bfloat16 inputs summed in float32: 8 bits of the gradient, all of the values."""
    normal, kernel, target, weights = draw(axis=axis)
    normal, kernel = normal.astype(dtypes[0]), kernel.astype(dtypes[1])
    gradients_agree(normal, kernel, target, weights, axis, tolerance=2e-2)


# ---------------------------------------------------------------------------- known answers


def test_uniform_and_successor_distributions():
    """Equal logits: logp = -log V, H = log V. A kernel row of log(63) among 7 zeros: p = 0.9."""
    count = 3 * TILE
    target = jnp.array([0, count - 1])
    logp, entropy = chunked_scores(
        jnp.ones((2, 4)), jnp.zeros((count, 4)), target, budget=1, vocabulary_axis=0
    )
    np.testing.assert_allclose(logp, -np.log(count), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(count), rtol=1e-6)
    kernel = jnp.zeros((1, 8)).at[0, 2].set(np.log(63.0))
    logp, entropy = chunked_scores(
        jnp.ones((1, 1)), kernel, jnp.array([2]), budget=99, vocabulary_axis=1
    )
    np.testing.assert_allclose(logp, [np.log(0.9)], rtol=1e-5)
    # -0.9 log 0.9 - 7 (1/70) log(1/70) = 0.094824 + 0.424850
    np.testing.assert_allclose(entropy, [0.519674], rtol=1e-5)


# ------------------------------------------------------------------------ memory and products


def lowered(function, argnums, normal, kernel, target, entropy=True, **options):
    weights = np.ones((2, *target.shape), np.float32)

    def loss(normal, kernel, target):
        logp, spread = function(normal, kernel, target, vocabulary_axis=0, **options)
        kept = spread if entropy else jax.lax.stop_gradient(spread)
        return jnp.sum(weights[0] * logp) + jnp.sum(weights[1] * kept)

    return jax.jit(jax.value_and_grad(loss, argnums)).lower(normal, kernel, target).compile()


@pytest.mark.parametrize("argnums", [0, (0, 1)], ids=["frozen", "trained"])
@pytest.mark.parametrize("width", [64, 576])
def test_peak_memory_is_below_a_quarter(width, argnums):
    """B=2, L=256, V=32000 and the default budget of 2^21 logits. # H03

    Values and gradients of the same sizes are compared in `test_large_values_and_gradients`.
    """
    shapes = jax.ShapeDtypeStruct
    inputs = (
        shapes((2, 256, width), jnp.float32),
        shapes((32_000, width), jnp.float32),
        shapes((2, 256), jnp.int32),
    )
    memory = [
        lowered(function, argnums, *inputs, **options).memory_analysis().temp_size_in_bytes
        for function, options in ((chunked_scores, {"budget": 2**21}), (plain, {}))
    ]
    assert memory[0] < memory[1] / 4, memory
    assert memory[0] < 10 * 4 * 2**21, "a few arrays of the budget's size"


def test_large_values_and_gradients():
    """Values equal to 1e-5 and gradients to 1e-4 at the size of H03. # H03"""
    normal, kernel, target, _ = draw((2, 256), 32_000, 64, spread=0.2)
    expected = lowered(plain, (0, 1), normal, kernel, target)(normal, kernel, target)
    options = {"budget": 2**21, "precision": EXACT}
    found = lowered(chunked_scores, (0, 1), normal, kernel, target, **options)
    found = found(normal, kernel, target)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-4), found[1], expected[1])
    scores = chunked_scores(normal, kernel, target, vocabulary_axis=0, **options)
    reference = plain(normal, kernel, target, vocabulary_axis=0)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), scores, reference
    )


@pytest.mark.parametrize(
    ("argnums", "entropy", "products"),
    [(0, False, 2), (0, True, 3), ((0, 1), False, 4), ((0, 1), True, 4)],
)
def test_products_that_nobody_needs_are_not_formed(argnums, entropy, products):
    """XLA counts a loop's body once: a piece of N w H multiplications and additions a product."""
    normal, kernel, target, _ = draw((64,), 4 * TILE, 512)
    program = lowered(chunked_scores, argnums, normal, kernel, target, entropy, budget=64 * TILE)
    product = 2 * 64 * TILE * 512
    assert program.cost_analysis()["flops"] / product == pytest.approx(products, abs=0.4)


# -------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"vocabulary_axis": 2}, "vocabulary_axis"),
        ({"softcap": 0.0}, "softcap"),
    ],
)
def test_bad_settings_are_named(change, message):
    normal, kernel, target, _ = draw()
    with pytest.raises(ValueError, match=message):
        chunked_scores(normal, kernel, target, **{"budget": 9, "vocabulary_axis": 0} | change)


def test_shapes_are_checked():
    normal, kernel, target, _ = draw()
    with pytest.raises(AssertionError, match="shape"):
        chunked_scores(normal, kernel, target[:2], budget=9, vocabulary_axis=0)
    with pytest.raises(AssertionError, match="shape"):
        chunked_scores(normal, kernel, target, budget=9, vocabulary_axis=1)
    with pytest.raises(AssertionError, match="rank"):
        chunked_scores(normal, kernel, target, temperature=jnp.ones(3), budget=9, vocabulary_axis=0)
