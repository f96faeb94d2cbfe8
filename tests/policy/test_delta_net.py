"""The linear layer's mixer: names, padding, states carried, adapters, and transformers' module."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import ModelConfig
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.delta_net import DeltaMixer, init_delta_state
from sepo_jax.policy.layers import DecoderLayer

pytestmark = pytest.mark.usefixtures("compile_fast")
CONFIG = ModelConfig(
    vocab_size=32,
    hidden_size=12,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=20,
    layer_types=("linear", "full"),
    rms_norm_epsilon=1e-6,
    linear_key_heads=2,
    linear_value_heads=4,
    linear_key_head_dim=3,
    linear_value_head_dim=5,
    linear_conv_width=4,
)
SHAPES = {
    "in_proj_qkv": {"kernel": (12, 32)},
    "in_proj_z": {"kernel": (12, 20)},
    "in_proj_b": {"kernel": (12, 4)},
    "in_proj_a": {"kernel": (12, 4)},
    "conv": {"kernel": (4, 32)},
    "delta": {"a_log": (4,), "dt_bias": (4,)},
    "delta_norm": {"scale": (5,)},
    "out_proj": {"kernel": (20, 12)},
}


@pytest.fixture(scope="module")
def params():
    """Uneven parameters, wide enough that every part of the mixer matters."""
    generator = np.random.default_rng(0)
    fill = lambda shape: jnp.asarray(generator.normal(0, 0.5, shape), jnp.float32)  # noqa: E731
    return jax.tree.map(fill, SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple))


@pytest.fixture(scope="module")
def mix():
    def apply(params, normal, real, state=None):
        return DeltaMixer(CONFIG).apply({"params": params}, normal, real, state)

    return jax.jit(apply)


def draw_normal(length, rows=2, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, length, 12)).astype(np.float32)


def close(ours, theirs, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, atol), ours, theirs)


# Identities.


@pytest.mark.parametrize("left, right", [(2, 0), (0, 3), (1, 2)])
def test_padding_on_either_side_changes_nothing(params, mix, left, right):
    normal = draw_normal(7)
    expected, state = mix(params, normal, np.ones((2, 7), bool))
    padded = np.pad(normal, ((0, 0), (left, right), (0, 0)), constant_values=np.nan)
    update, padded_state = mix(params, padded, np.isfinite(padded[..., 0]))
    close((update[:, left : left + 7], padded_state), (expected, state))
    assert np.isfinite(update).all()


def test_appending_tokens_equals_the_whole_row(params, mix):
    # Row 0 gets 3, 0 and 4 tokens, row 1 gets 1, 4 and 2: the rest of each call is padding.
    normal = draw_normal(7)
    whole, last = mix(params, normal, np.ones((2, 7), bool))
    state, done = init_delta_state(CONFIG, 2), [0, 0]
    for lengths in ([3, 1], [0, 4], [4, 2]):
        block = np.full((2, 4, 12), 9.0, np.float32)
        for row, size in enumerate(lengths):
            block[row, :size] = normal[row, done[row] : done[row] + size]
        update, state = mix(params, block, np.arange(4)[None] < np.array(lengths)[:, None], state)
        for row, size in enumerate(lengths):
            start, done[row] = done[row], done[row] + size
            close(update[row, :size], whole[row, start : start + size])
    close(state, last)


def test_one_token_at_a_time_equals_the_whole_row(params, mix):
    normal = draw_normal(5)
    expected, last = mix(params, normal, np.ones((2, 5), bool))
    state, updates = init_delta_state(CONFIG, 2), []
    for t in range(5):
        update, state = mix(params, normal[:, t : t + 1], np.ones((2, 1), bool), state)
        updates.append(update)
    close((jnp.concatenate(updates, axis=1), state), (expected, last))


def test_no_state_is_the_empty_state_and_rows_of_padding_keep_theirs(params, mix):
    normal, real = draw_normal(4), np.array([[True] * 4, [False] * 4])
    empty = init_delta_state(CONFIG, 2)
    close(mix(params, normal, real), mix(params, normal, real, empty))
    before = jax.tree.map(lambda array: array + 1, empty)
    _, after = mix(params, normal, real, before)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
        assert np.abs(old[0] - new[0]).max() > 1e-3


def test_parameters_lie_flat_in_the_layer(params):
    def touch():
        layer = DecoderLayer(CONFIG, "linear")
        return layer.init(jax.random.key(0), jnp.ones((1, 2, 12)), method="touch")["params"]

    shapes = jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(touch))
    around = {"attention_norm", "feed_forward_norm", "gate_proj", "up_proj", "down_proj"}
    assert {name: shapes[name] for name in shapes if name not in around} == SHAPES


@pytest.mark.parametrize(
    "target", ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
)
def test_an_adapter_is_the_kernel_plus_its_product(params, mix, target):
    generator = np.random.default_rng(2)
    config = dataclasses.replace(CONFIG, lora=LoraConfig(rank=2, alpha=6.0, targets=(target,)))
    kernel = params[target]["kernel"]
    first, second = (
        generator.normal(size=(kernel.shape[0], 2)),
        generator.normal(size=(2, kernel.shape[1])),
    )
    adapted = {"kernel": kernel, "lora_a": first, "lora_b": second}
    adapted = {**params, target: jax.tree.map(jnp.float32, adapted)}
    merged = {**params, target: {"kernel": jnp.float32(kernel + 3 * first @ second)}}
    normal, real = draw_normal(5), np.ones((2, 5), bool)
    ours = jax.jit(DeltaMixer(config).apply)({"params": adapted}, normal, real)
    close(ours, mix(merged, normal, real), atol=1e-4)


# Gradients.


def test_gradients_reach_every_parameter_and_no_padding(params):
    normal = np.pad(draw_normal(6), ((0, 0), (2, 1), (0, 0)))
    real = np.zeros((2, 9), bool)
    real[:, 2:8] = True

    def loss(params, normal):
        update, _ = DeltaMixer(CONFIG).apply({"params": params}, normal, real)
        return jnp.sum(jnp.where(real[..., None], update, 0.0) ** 2)

    of_params, of_inputs = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, normal)
    for path, leaf in jax.tree.leaves_with_path(of_params):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 1e-4, path
    np.testing.assert_array_equal(of_inputs[~real], 0)
    assert np.abs(of_inputs[real]).max() > 1e-3
    # A directional derivative against central differences.
    direction = jax.tree.map(lambda leaf: leaf / 3 + 0.1, params)
    step = 1e-2
    along = jax.jit(
        lambda size: loss(jax.tree.map(lambda x, d: x + size * d, params, direction), normal)
    )
    measured = (along(step) - along(-step)) / (2 * step)
    slope = sum(
        jnp.vdot(x, d) for x, d in zip(*map(jax.tree.leaves, (of_params, direction)), strict=True)
    )
    np.testing.assert_allclose(measured, slope, rtol=1e-2)


# Known answers.


def test_fresh_decays_span_short_and_long_memories():
    config = dataclasses.replace(CONFIG, linear_value_heads=64)
    mixer = DeltaMixer(config)
    start = jax.jit(mixer.init)(jax.random.key(0), jnp.zeros((1, 2, 12)), jnp.ones((1, 2), bool))
    delta = start["params"]["delta"]
    # rate in [1, 16], step = softplus(dt_bias) in [0.001, 0.1]: a token keeps exp(-rate step).
    rate, step = jnp.exp(delta["a_log"]), jax.nn.softplus(delta["dt_bias"])
    assert 1 <= rate.min() < 3 and 12 < rate.max() <= 16
    assert 0.00099 < step.min() < 0.003 and 0.03 < step.max() < 0.101


def test_a_mixer_of_one_head_by_hand():
    # H = Dk = Dv = 1, width 1: every projection is a factor. A key or query of any size becomes
    # its sign, the step size is sigmoid(0) = 1/2, the decay 1 (a_log = -40), the norm gives the
    # sign of the memory's answer, gated with silu(z). Inputs 1 and -2, all kernels 1:
    # q = k = v = silu(x): silu(1) = 0.731, silu(-2) = -0.238.
    # t = 1: S = 0.731 / 2 = 0.366, answer 0.366, update +silu(1) = 0.731.
    # t = 2: k = -1 answers -0.366, d = (-0.238 + 0.366) / 2 = 0.064, S = 0.366 - 0.064 = 0.302,
    #        q = -1: answer -0.302, update -silu(-2) = +0.238.
    config = dataclasses.replace(
        CONFIG,
        hidden_size=1,
        head_dim=2,
        linear_key_heads=1,
        linear_value_heads=1,
        linear_key_head_dim=1,
        linear_value_head_dim=1,
        linear_conv_width=1,
    )
    one = jnp.ones((1, 1))
    params = {
        "in_proj_qkv": {"kernel": jnp.ones((1, 3))},
        "in_proj_z": {"kernel": one},
        "in_proj_b": {"kernel": 0 * one},
        "in_proj_a": {"kernel": one},
        "conv": {"kernel": jnp.ones((1, 3))},
        "delta": {"a_log": jnp.full((1,), -40.0), "dt_bias": jnp.zeros((1,))},
        "delta_norm": {"scale": jnp.ones((1,))},
        "out_proj": {"kernel": one},
    }
    inputs = jnp.array([[[1.0], [-2.0]]])
    mixer = jax.jit(DeltaMixer(config).apply)
    update, state = mixer({"params": params}, inputs, jnp.ones((1, 2), bool))
    silu = lambda x: x / (1 + np.exp(-x))  # noqa: E731
    first = silu(1) / 2
    close(update.ravel(), np.array([silu(1), -silu(-2)]), atol=1e-4)
    close(state.recurrent.ravel(), np.array([first - (silu(-2) + first) / 2]), atol=1e-4)
    assert state.conv.shape == (1, 0, 3)


def test_bfloat16_keeps_its_states_in_float32(params, mix):
    config = dataclasses.replace(CONFIG, compute_dtype="bfloat16")
    normal, real = draw_normal(6), np.ones((2, 6), bool)
    update, state = jax.jit(DeltaMixer(config).apply)({"params": params}, normal, real)
    assert update.dtype == jnp.bfloat16
    assert state.conv.dtype == state.recurrent.dtype == jnp.float32
    expected, _ = mix(params, normal, real)
    error = np.abs(np.float32(update) - expected).max()
    assert 0 < error < 0.05 * np.abs(expected).max()


@pytest.fixture(scope="module")
def reference(params):
    """transformers' module with the same weights, and its config."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    config = theirs.Qwen3_5TextConfig(
        hidden_size=12,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        rms_norm_eps=1e-6,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=3,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=4,
    )
    module = theirs.Qwen3_5GatedDeltaNet(config, 0).eval()
    flat = {f"{name}.weight": part["kernel"].T for name, part in params.items() if "proj" in name}
    flat["conv1d.weight"] = params["conv"]["kernel"].T[:, None]
    flat["norm.weight"] = params["delta_norm"]["scale"]
    flat |= {"A_log": params["delta"]["a_log"], "dt_bias": params["delta"]["dt_bias"]}
    module.load_state_dict({name: torch.tensor(np.asarray(x)) for name, x in flat.items()})
    return torch, module, config


def test_agrees_with_transformers_under_left_padding(params, mix, reference):
    torch, module, _ = reference
    normal, real = draw_normal(70), np.ones((2, 70), bool)
    real[1, :9] = False
    with torch.no_grad():
        expected = module(torch.tensor(normal), attention_mask=torch.tensor(real)).numpy()
    update, _ = mix(params, normal, real)
    close(update[real], expected[real])


def test_agrees_with_transformers_step_by_step(params, mix, reference):
    torch, module, config = reference
    from transformers import DynamicCache

    normal, cache, state = draw_normal(9), DynamicCache(config=config), None
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        part = normal[:, start:stop]
        with torch.no_grad():
            expected = module(torch.tensor(part), cache=cache).numpy()
        update, state = mix(params, part, np.ones(part.shape[:2], bool), state)
        close(update, expected)


# Bad input.


def test_shapes_that_do_not_fit_are_refused(params, mix):
    normal, real = draw_normal(4), np.ones((2, 4), bool)
    for inputs in ((normal[0], real), (normal, real[:, :3]), (normal, real[0])):
        with pytest.raises(AssertionError):
            mix(params, *inputs)
    with pytest.raises(AssertionError):
        mix(params, normal, real, init_delta_state(CONFIG, 3))
