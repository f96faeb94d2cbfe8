"""Adapters: nothing at the start, the same function merged, and gradients of the adapter alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.formats.weights import parameter_shapes
from sepo_jax.policy.linear import Linear
from sepo_jax.policy.lora import (
    PROJECTIONS,
    attach,
    concatenate,
    detach,
    has_adapter,
    init_adapter,
    merge,
    scale_of,
)

SIZES = {
    "vocab_size": 29,
    "hidden_size": 16,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 24,
}
MIXED = {  # three kinds of layers, one of them recurrent
    "layer_types": ("linear", "full", "sliding"),
    "sliding_window": 4,
    "linear_key_heads": 2,
    "linear_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_width": 4,
}
DENSE = PROJECTIONS[:7]


def with_lora(fields=None, **lora) -> ModelConfig:
    return ModelConfig(**{**SIZES, **(fields or {})}, lora=LoraConfig(**{"rank": 2, **lora}))


def noisy(adapter, seed=0):
    """The adapter with every entry drawn afresh, so that it changes the function."""
    generator = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(generator.normal(0, 0.3, leaf.shape).astype(leaf.dtype))  # noqa: E731
    return jax.tree.map(draw, adapter)


def linear_case(rank=2, alpha=3.0, compute="float32"):
    """One Linear of 5 inputs and 4 outputs: config, module, base parameters, adapter, inputs."""
    lora = LoraConfig(rank=rank, alpha=alpha, targets=("q_proj",))
    config = ModelConfig(**SIZES, lora=lora, compute_dtype=compute)
    generator = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(generator.normal(size=shape).astype(np.float32))  # noqa: E731
    base = {"kernel": draw(5, 4), "bias": draw(4)}
    adapter = {"lora_a": draw(5, rank), "lora_b": draw(rank, 4)}
    return config, Linear(config, 4, use_bias=True), base, adapter, draw(3, 5)


# Identities


@pytest.mark.parametrize("stabilised", [False, True])
def test_adapters_one_after_the_other_are_one_of_their_ranks_together(stabilised, make_params):
    config = with_lora(MIXED, rank_stabilised=stabilised)
    params = make_params(config)
    fresh = init_adapter(config, params, jax.random.key(0))
    adapters = [noisy(fresh, seed) for seed in range(3)]
    expected = params
    for adapter in adapters:
        expected = merge(config, attach(expected, adapter))
    lora, joint = concatenate(config, adapters)
    assert (lora.rank, lora.targets) == (6, config.lora.targets)
    found = merge(dataclasses.replace(config, lora=lora), attach(params, joint))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    with pytest.raises(ValueError, match="at least one adapter"):
        concatenate(config, [])
    with pytest.raises(ValueError, match="different targets"):
        concatenate(config, [fresh, {}])


def test_fresh_adapter_changes_nothing(make_params, draw_tokens, plain_row, score):
    config = with_lora(MIXED, targets=("all",))
    params = make_params(config)
    adapter = init_adapter(config, params, jax.random.key(0))
    row = plain_row(draw_tokens((1, 9)) % 29)
    policy = Policy(config)
    base = score(policy, params, *row)
    attached = score(policy, attach(params, adapter), *row)
    np.testing.assert_array_equal(base.logp, attached.logp)
    changed = score(policy, attach(params, noisy(adapter)), *row)
    assert np.max(np.abs(changed.logp - base.logp)) > 1e-2


@pytest.mark.parametrize("fields", [{}, MIXED], ids=["llama", "mixed"])
def test_merged_is_attached(fields, make_params, draw_tokens, plain_row, score):
    """Scores, prefill and decode of the attached tree equal those of the merged one."""
    config = with_lora(fields, targets=("all",))
    params = make_params(config)
    adapter = noisy(init_adapter(config, params, jax.random.key(0)))
    attached = attach(params, adapter)
    merged = merge(config, attached)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    policy = Policy(config)
    tokens = draw_tokens((1, 9)) % 29
    row = plain_row(tokens)
    expected = score(policy, attached, *row)
    np.testing.assert_allclose(score(policy, merged, *row).logp, expected.logp, atol=1e-5)

    @jax.jit
    def sampled(params):
        cache = policy.init_cache(1, 12)
        cache, first = policy.prefill(params, cache, tokens[:, :8], jnp.array([8]))
        _, second = policy.decode_step(params, cache, tokens[:, 8], jnp.array([True]))
        return first, second

    first, second = sampled(attached)
    np.testing.assert_allclose(sampled(merged), (first, second), atol=1e-5)
    # The cached path is the scored one: the logits before the last token give its log-probability.
    logp = jax.nn.log_softmax(first[0])[tokens[0, 8]]
    np.testing.assert_allclose(logp, expected.logp[0, -1], atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(
    targets=st.sets(st.sampled_from(DENSE), min_size=1),
    rank=st.integers(1, 5),
    alpha=st.floats(0.5, 64),
)
def test_detach_undoes_attach(targets, rank, alpha):
    config = with_lora(targets=tuple(sorted(targets)), rank=rank, alpha=alpha)
    shapes = parameter_shapes(config)
    adapter = jax.eval_shape(lambda key: init_adapter(config, shapes, key), jax.random.key(0))
    attached = attach(shapes, adapter)
    assert has_adapter(attached) and not has_adapter(shapes)
    assert detach(attached) == (shapes, adapter)
    assert set(adapter) == {"layers"}
    assert set(adapter["layers"]["full"]) == targets
    merged = jax.eval_shape(lambda params: merge(config, params), attached)
    assert merged == jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)


def test_attach_works_on_any_leaves_and_changes_no_argument():
    config = with_lora(targets=("q_proj", "down_proj"))
    shapes = parameter_shapes(config)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    adapter = init_adapter(config, zeros, jax.random.key(0))
    before = jax.tree.structure(zeros)
    attached = attach(zeros, adapter)
    assert jax.tree.structure(zeros) == before
    assert attached["embed"]["embedding"] is zeros["embed"]["embedding"]
    labels = attach(jax.tree.map(lambda _: "frozen", zeros), jax.tree.map(lambda _: "on", adapter))
    assert labels["layers"]["full"]["q_proj"] == {
        "kernel": "frozen",
        "lora_a": "on",
        "lora_b": "on",
    }
    traced = jax.jit(lambda params, adapter: attach(params, adapter))(zeros, adapter)
    assert jax.tree.structure(traced) == jax.tree.structure(attached)


def test_adapter_is_the_same_from_shapes_and_differs_by_key():
    config = with_lora(targets="all-linear", rank=3)
    shapes = parameter_shapes(config)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    one = init_adapter(config, shapes, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, one, init_adapter(config, zeros, jax.random.key(0)))
    modules = one["layers"]["full"]
    assert set(modules) == set(DENSE)
    down = modules["down_proj"]
    assert down["lora_a"].shape == (3, 24, 3) and down["lora_b"].shape == (3, 3, 16)
    assert down["lora_a"].dtype == down["lora_b"].dtype == jnp.float32
    # Uniform in +-1/sqrt(in): within, and with the standard deviation 1 / sqrt(3 in) of 216 draws.
    draws = np.asarray(down["lora_a"])
    assert np.abs(draws).max() <= 24**-0.5
    assert np.std(draws) == pytest.approx((3 * 24) ** -0.5, rel=0.15)
    assert not np.any(down["lora_b"])
    other = init_adapter(config, shapes, jax.random.key(1))
    assert np.any(other["layers"]["full"]["down_proj"]["lora_a"] != draws)
    assert np.any(modules["q_proj"]["lora_a"] != modules["k_proj"]["lora_a"])  # own draws each


def test_merge_without_adapter_gives_the_parameters_back():
    config = dataclasses.replace(with_lora(), lora=None)
    params = {"layers": {"full": {"q_proj": {"kernel": jnp.ones((2, 3, 4))}}}}
    assert merge(config, params) is params


# Gradients


def test_gradient_is_the_closed_form():
    """loss = sum(g * y): dA = s x^T (g B^T), dB = s (x A)^T g."""
    _, module, base, adapter, inputs = linear_case()
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32))

    def loss(adapter):
        return jnp.sum(weights * module.apply({"params": attach(base, adapter)}, inputs))

    gradient = jax.grad(loss)(adapter)
    scale = 3.0 / 2
    down, up = adapter["lora_a"], adapter["lora_b"]
    expected = {
        "lora_a": scale * inputs.T @ (weights @ up.T),
        "lora_b": scale * (inputs @ down).T @ weights,
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradient, expected)


def test_first_gradient_moves_lora_b_only(make_params, draw_tokens, plain_row):
    """B = 0 hides A: dA = s x^T (g 0) = 0 and dB != 0, in every adapted layer."""
    config = with_lora(targets=("q_proj", "down_proj"))
    params = make_params(config)
    adapter = init_adapter(config, params, jax.random.key(0))
    policy, row = Policy(config), plain_row(draw_tokens((1, 6)) % 29)
    loss = lambda adapter: jnp.sum(policy.log_probs(attach(params, adapter), *row).logp)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(adapter)
    assert jax.tree.structure(gradient) == jax.tree.structure(adapter)
    for module in gradient["layers"]["full"].values():
        assert not np.any(module["lora_a"])
        assert np.all(np.any(module["lora_b"] != 0, axis=(1, 2)))


def test_adapter_gradient_forms_no_kernel_gradient(draw_tokens, plain_row):
    """Forward 2, backward into inputs 2, into kernels 2 units: without the last, about 2/3."""
    config = with_lora({"hidden_size": 64, "intermediate_size": 128}, targets=("all",), rank=1)
    shapes = parameter_shapes(config)
    adapter = jax.eval_shape(lambda: init_adapter(config, shapes, jax.random.key(0)))
    policy, row = Policy(config), plain_row(draw_tokens((1, 8)) % 29)

    def flops(loss, *arguments):
        # Of what is handed to the compiler, before it drops anything; a scan counts one layer.
        return jax.jit(jax.grad(loss)).lower(*arguments).cost_analysis()["flops"]

    def loss(layers, params, adapter):
        joined = attach({**params, "layers": layers}, adapter)
        return jnp.sum(policy.log_probs(joined, *row).logp)

    full = flops(lambda layers, *rest: loss(layers, *rest), shapes["layers"], shapes, adapter)
    low = flops(lambda own, params: loss(params["layers"], params, own), adapter, shapes)
    assert low < 0.8 * full


# Known answers


def test_one_number_at_a_time():
    """x = [1, 2], W = I, A = [1; 1], B = [3, 0], alpha 4: x A = 3, scaled (x A) B = [36, 0].

    Merged kernel I + 4 [[3, 0], [3, 0]] = [[13, 0], [12, 1]].
    """
    config = with_lora(rank=1, alpha=4.0, targets=("q_proj",))
    params = {"kernel": jnp.eye(2)}
    adapter = {"lora_a": jnp.ones((2, 1)), "lora_b": jnp.array([[3.0, 0.0]])}
    attached = attach(params, adapter)
    inputs = jnp.array([[1.0, 2.0]])
    result = Linear(config, 2).apply({"params": attached}, inputs)
    np.testing.assert_allclose(result, [[37.0, 2.0]])
    np.testing.assert_allclose(merge(config, attached)["kernel"], [[13.0, 0.0], [12.0, 1.0]])


def test_scale():
    assert scale_of(with_lora(rank=4, alpha=8.0)) == 2.0
    assert scale_of(with_lora(rank=4, alpha=8.0, rank_stabilised=True)) == 4.0


def test_merge_rounds_once_to_the_kernels_dtype():
    """The step of bfloat16 near 1 is 2^-7. Kernel 1 + 2^-7, product 2^-9 + 2^-9 of two ranks.

    The exact sum 1 + 3 * 2^-8 is a tie and rounds to the even 1 + 2^-6; adding one rank at a time
    in bfloat16 would lose both and stay at 1 + 2^-7.
    """
    config = with_lora(rank=2, alpha=2.0, targets=("q_proj",))
    kernel = jnp.full((2, 1, 1), 1 + 2**-7, jnp.bfloat16)
    adapter = {"lora_a": jnp.full((2, 1, 2), 2.0**-9), "lora_b": jnp.ones((2, 2, 1))}
    merged = merge(config, attach({"kernel": kernel}, adapter))["kernel"]
    assert merged.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(merged, np.float32), np.full((2, 1, 1), 1 + 2**-6))


def test_bfloat16_compute_stays_close():
    _, module, base, adapter, inputs = linear_case(compute="bfloat16")
    exact = linear_case()[0]
    attached = attach(base, adapter)
    result = module.apply({"params": attached}, inputs)
    assert result.dtype == jnp.bfloat16
    expected = Linear(exact, 4, use_bias=True).apply({"params": attached}, inputs)
    np.testing.assert_allclose(result.astype(jnp.float32), expected, atol=0.15)


# Bad input


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("q_porj",), "q_proj"),
        (("in_proj_qkv",), "matches no layer"),
        (("lm_head",), "unknown LoRA target"),
    ],
)
def test_targets_that_do_not_exist(targets, message):
    config = with_lora(targets=targets)
    with pytest.raises(ValueError, match=message):
        init_adapter(config, parameter_shapes(config), jax.random.key(0))


def test_no_settings():
    config = ModelConfig(**SIZES)
    with pytest.raises(ValueError, match="lora=LoraConfig"):
        init_adapter(config, parameter_shapes(config), jax.random.key(0))
    with pytest.raises(ValueError, match="lora=LoraConfig"):
        scale_of(config)


def broken(change):
    config = with_lora(targets=("q_proj",))
    shapes = parameter_shapes(config)
    adapter = init_adapter(config, shapes, jax.random.key(0))
    return shapes, change(adapter["layers"]["full"]["q_proj"], adapter) or adapter


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda module, _: module.__delitem__("lora_b"), "lora_a and lora_b"),
        (lambda module, _: module.update(lora_a=jnp.zeros((3, 15, 2))), r"\(3, 15, 2\)"),
        (lambda module, _: module.update(lora_b=jnp.zeros((3, 3, 16))), r"do not fit the kernel"),
        (lambda module, _: {"layers": {"sliding": {"q_proj": module}}}, "parameters lack"),
        (lambda module, _: {"layers": {"full": {"attention_norm": module}}}, "no kernel"),
    ],
)
def test_adapters_that_do_not_fit(change, message):
    shapes, adapter = broken(change)
    with pytest.raises(ValueError, match=message):
        attach(shapes, adapter)


def test_two_adapters_and_wrong_times():
    shapes, adapter = broken(lambda *_: None)
    attached = attach(shapes, adapter)
    with pytest.raises(ValueError, match="has lora_a, lora_b already"):
        attach(attached, adapter)
    with pytest.raises(ValueError, match="before `fuse`"):
        attach({**shapes, "layers": (shapes["layers"],)}, adapter)
    with pytest.raises(ValueError, match="of rank 2, but config"):
        merge(with_lora(rank=5, targets=("q_proj",)), attached)
    with pytest.raises(ValueError, match="lora=LoraConfig"):
        merge(ModelConfig(**SIZES), attached)


def test_an_adapter_without_its_settings_is_refused(make_params, draw_tokens, plain_row, score):
    config = with_lora()
    params = make_params(config)
    params = attach(params, init_adapter(config, params, jax.random.key(0)))
    plain = Policy(dataclasses.replace(config, lora=None))
    with pytest.raises(ValueError, match=r"config\.lora is None"):
        score(plain, params, *plain_row(draw_tokens((1, 4)) % 29))
