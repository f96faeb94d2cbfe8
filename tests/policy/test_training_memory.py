"""What a training step holds beside parameters: activations, and no copy of frozen weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import LoraConfig, ModelConfig, Policy, attach, init_adapter
from sepo_jax.policy.formats.weights import parameter_shapes

SIZES = {
    "vocab_size": 64,
    "hidden_size": 128,
    "num_heads": 2,
    "num_kv_heads": 1,
    "intermediate_size": 256,
    "lora": LoraConfig(rank=2, targets="all"),
}
LINEAR = {
    "linear_key_heads": 1,
    "linear_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_width": 4,
}
PATTERNS = {
    "full": ("full",) * 12,
    "sliding": ("sliding", "full") * 6,
    "linear": ("linear", "full") * 6,
}


def adapter_gradient(config):
    policy = Policy(config)

    def loss(adapter, params, tokens, positions, segment):
        columns = positions[:, :-1]
        params = attach(params, adapter)
        scores = policy.log_probs(params, tokens, positions, segment, None, columns, tokens[:, 1:])
        return scores.logp.sum() + scores.entropy.sum()

    return jax.grad(loss)


@pytest.mark.parametrize(
    ("remat", "kinds"),
    [
        ("none", "full"),
        ("layer", "full"),
        ("dots", "full"),
        ("none", "linear"),
        ("layer", "sliding"),
    ],
)
def test_an_adapters_gradient_copies_no_frozen_weights(remat, kinds):
    """Neither kept for the backward pass nor laid out anew: what lives at a time, whatever the
    depth, are activations and the layers of one step of the scan."""
    config = ModelConfig(
        num_layers=12, layer_types=PATTERNS[kinds], sliding_window=4, remat=remat, **SIZES, **LINEAR
    )
    params = parameter_shapes(config)
    adapter = jax.eval_shape(lambda: init_adapter(config, params, jax.random.key(0)))
    row = (jax.ShapeDtypeStruct((1, 4), jnp.int32),) * 3
    compiled = jax.jit(adapter_gradient(config)).lower(adapter, params, *row).compile()
    layers = jax.tree.leaves(params["layers"])
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in layers)
    assert compiled.memory_analysis().temp_size_in_bytes < 0.6 * weights


@pytest.mark.slow
def test_remat_changes_no_gradient(make_params, draw_tokens):
    """In a pattern with every own kind, a remainder and shared keys apart."""
    tokens = draw_tokens((2, 7)) % 64
    positions = jnp.tile(jnp.arange(7, dtype=jnp.int32)[None], (2, 1))
    patterns = [
        {"layer_types": ("linear", "linear", "full") * 2 + ("linear",)},
        {"layer_types": ("sliding", "sliding", "full") * 3, "num_kv_shared_layers": 4},
    ]
    for changes in patterns:
        found = []
        for remat in ("none", "layer", "dots"):
            config = ModelConfig(
                num_layers=len(changes["layer_types"]),
                sliding_window=3,
                remat=remat,
                **SIZES,
                **LINEAR,
                **changes,
            )
            params = make_params(config)
            adapter = init_adapter(config, params, jax.random.key(1))
            adapter = jax.tree.map(lambda leaf: leaf + 0.02, adapter)
            gradient = jax.jit(adapter_gradient(config))
            found.append(gradient(adapter, params, tokens, positions, jnp.zeros_like(tokens)))
        for other in found[1:]:
            jax.tree.map(
                lambda one, two: np.testing.assert_allclose(
                    one, two, rtol=1e-4, atol=1e-5 * float(jnp.abs(one).max())
                ),
                found[0],
                other,
            )
