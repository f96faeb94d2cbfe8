"""Operations of generation: the arithmetic against the products of the compiled functions."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.config import LoraConfig
from sepo_jax.training.dry_run_shapes import product_parameters
from sepo_jax.training.estimate_products import forward_products, read_by_prefill
from sepo_jax.training.hlo import read_work
from sepo_jax.training.trainable import begin_stage

pytestmark = pytest.mark.usefixtures("compile_fast")
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip
LINEAR = {
    "linear_key_heads": 2, "linear_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_width": 4,
}  # fmt: skip
MODELS = {
    "full": {},
    "gated": {"attention_gate": True, "tie_embeddings": False},
    "keys shared": {
        "layer_types": ("full", "sliding", "full"), "sliding_window": 8, "num_kv_shared_layers": 1,
    },
    "linear last": {"layer_types": ("linear", "full", "linear"), **LINEAR},
    "linear before": {"layer_types": ("linear", "linear", "full"), **LINEAR},
}  # fmt: skip
SLOTS, ROWS, WIDTH = 4, 2, 24


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("capacity", "reach"), [(40, 40), (300, 384)])
def test_calls_multiply_what_is_counted(name, capacity, reach):
    policy = Policy(ModelConfig(**SIZES, **MODELS[name]))
    config = policy.config
    params = jax.eval_shape(policy.init, jax.random.key(0))
    fused = jax.eval_shape(policy.fuse, params)
    cache = jax.eval_shape(partial(policy.init_cache, SLOTS, capacity))

    def counted(function, rows, *shape):
        tokens, lengths = (
            jax.ShapeDtypeStruct(size, jnp.int32) for size in ((rows, *shape), (rows,))
        )
        return read_work(jax.jit(function).lower(fused, cache, tokens, lengths).compile().as_text())

    def prefill(params, cache, tokens, lengths):
        return policy.append(params, cache, tokens, lengths, jnp.arange(ROWS))

    def decode(params, cache, tokens, lengths):
        return policy.decode_step(params, cache, tokens, lengths > 0)

    read, kinds = read_by_prefill(config, fused)
    ours = forward_products(config, read, ROWS * WIDTH, WIDTH, 0, reach=reach, kinds=kinds)
    theirs = counted(prefill, ROWS, WIDTH)
    # The compiler may tell the queries of a last layer, which nothing reads, from keys and values.
    assert sum(ours) == pytest.approx(theirs.flops, rel=0.1)
    ours = forward_products(config, fused, SLOTS, 1, SLOTS, reach=reach)
    assert sum(ours) == pytest.approx(counted(decode, SLOTS).flops, rel=0.05)


def test_what_a_prefill_call_reads():
    config = ModelConfig(**SIZES, **MODELS["keys shared"])
    policy = Policy(config)
    fused = jax.eval_shape(policy.fuse, jax.eval_shape(policy.init, jax.random.key(0)))
    read, kinds = read_by_prefill(config, fused)
    # The third layer keeps nothing of its own, the second its keys and values.
    assert kinds == ("full",) and [set(layer) for layer in read["layers"][1:]] == [{"qkv_proj"}]
    assert read["layers"][0] == fused["layers"][0]
    # q and o 32 x 32, k and v 32 x 16, three of 32 x 64; then q, k and v alone.
    assert product_parameters(read) == 9216 + 2048


def test_heads_are_no_matrices_of_every_token():
    config = ModelConfig(**SIZES, tie_embeddings=False, value_head=True)
    policy = Policy(config)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    assert product_parameters(params) == 3 * 9216
    assert product_parameters(jax.eval_shape(policy.fuse, params)) == 3 * 9216
    assert "lm_head" in params and "value_head" in params
    # A merged adapter is no matrix of its own.
    config = ModelConfig(**SIZES, lora=LoraConfig(2, 4.0, ("q_proj",)))
    policy = Policy(config)
    params = jax.eval_shape(
        lambda key: begin_stage(config, policy.init(key), key), jax.random.key(0)
    )
    assert product_parameters(params) == 3 * (9216 + 2 * (32 + 32))
    assert product_parameters(jax.eval_shape(policy.fuse, params)) == 3 * 9216
