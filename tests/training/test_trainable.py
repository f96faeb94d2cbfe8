"""Frozen and trained parameters: joined they are the policy, apart only one part changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import ForestBuilder
from sepo_jax.objective import make_objective
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.lora import detach
from sepo_jax.policy.sharding import shardings
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import OptimizerSettings, ParallelSettings
from sepo_jax.training.trainable import begin_stage, join, reference_part, split
from sepo_jax.training.update import init_state, make_optimizer, make_update

CONFIG = ModelConfig(
    vocab_size=24, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=32,
    value_head=True, lora=LoraConfig(rank=2, targets=("q_proj", "o_proj", "down_proj")),
)  # fmt: skip
POLICY = Policy(CONFIG)
DESCENT = optax.sgd(1.0)
OBJECTIVE = make_objective("grpo", POLICY)


def moved(params, key=1):
    """Parameters whose adapter is not zero, so that both of its factors have a gradient."""

    def move(path, leaf):
        if "lora_b" not in jax.tree_util.keystr(path):
            return leaf
        return 0.1 * jax.random.normal(jax.random.key(key), leaf.shape)

    return jax.tree_util.tree_map_with_path(move, params)


@pytest.fixture(scope="module")
def params():
    return moved(begin_stage(CONFIG, POLICY.init(jax.random.key(0)), jax.random.key(1)))


def batch_of(devices):
    rng = np.random.default_rng(0)
    builder = ForestBuilder()
    for group in range(4):
        prompt = builder.add(rng.integers(0, 24, 3), group=group)
        for reward in (0.0, 1.0):
            builder.add(
                rng.integers(0, 24, 3), prompt, is_action=True, reward=reward,
                behavior_logp=np.full(3, -3.0),
            )  # fmt: skip
    packed, _ = prepare(get_algorithm("grpo"), builder.build(), row_length=16, parts=4)
    return jax.tree.map(lambda leaf: leaf.reshape(devices, 4 // devices, *leaf.shape[1:]), packed)


@pytest.fixture(scope="module")
def batch():
    return jax.tree.map(lambda leaf: leaf[0], batch_of(1))


def logp(params, batch, policy=POLICY):
    batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
    return policy.log_probs(
        params, batch.tokens, batch.positions, batch.segment, batch.ancestors, batch.source,
        batch.target,
    ).logp  # fmt: skip


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_join_puts_together_what_split_takes_apart(params):
    frozen, trained = split(CONFIG, params)
    assert_same(join(frozen, trained), params)
    assert set(trained) == {"layers", "value_head"}
    assert set(trained["layers"]["full"]["q_proj"]) == {"lora_a", "lora_b"}
    assert "value_head" not in frozen and "k_proj" not in trained["layers"]["full"]
    # Full fine-tuning: nothing is frozen.
    frozen, trained = split(ModelConfig(vocab_size=24), params)
    assert frozen == {} and join(frozen, trained) == params
    with pytest.raises(ValueError, match="'kernel' is both frozen and trained"):
        join({"a": {"kernel": 1}}, {"a": {"kernel": 2}})


def test_a_stage_begins_where_the_one_before_ended(params, batch):
    begun = begin_stage(CONFIG, params, jax.random.key(2))
    np.testing.assert_allclose(logp(begun, batch), logp(params, batch), atol=1e-5)
    # With the fresh adapter off it is the same policy: the reference of KL terms.
    frozen, trained = split(CONFIG, begun)
    reference = join(frozen, reference_part(CONFIG, trained))
    assert_same(reference, detach(begun)[0])
    np.testing.assert_array_equal(logp(reference, batch), logp(begun, batch))
    assert np.abs(logp(reference, batch) - logp(detach(params)[0], batch)).max() > 1e-3
    # The same key, the same adapter.
    assert_same(begun, begin_stage(CONFIG, params, jax.random.key(2)))
    plain = ModelConfig(vocab_size=24)
    assert begin_stage(plain, params, jax.random.key(2)) is params


def test_the_gradient_is_that_of_the_whole_less_the_frozen_part(params, batch):
    update = jax.jit(make_update(OBJECTIVE, DESCENT))
    frozen, trained = split(CONFIG, params)
    alone, metrics = update(init_state(trained, DESCENT), frozen, batch)
    whole, of_whole = update(init_state(params, DESCENT), {}, batch)
    changed = split(CONFIG, whole.params)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), alone.params, changed)
    step = jax.tree.map(lambda a, b: np.abs(a - b).max(), alone.params["layers"], trained["layers"])
    assert min(jax.tree.leaves(step)) > 1e-5
    assert metrics["loss"].value == pytest.approx(float(of_whole["loss"].value))
    assert 0 < metrics["gradient_norm"].value < of_whole["gradient_norm"].value


@functools.cache
def stepped(kind, devices, fsdp=1, tensor=1):
    """The trained leaves after a step from bfloat16 weights, those held, and the moments."""
    narrow = POLICY.init(jax.random.key(0))
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), narrow)
    frozen, trained = split(CONFIG, moved(begin_stage(CONFIG, narrow, jax.random.key(1))))
    parallel = Parallel(ParallelSettings(kind, devices, fsdp, tensor))
    optimizer = make_optimizer(OptimizerSettings(epsilon=1e-3), 1e-2, 0, 10, 0.0)
    update = parallel.compile_update(functools.partial(make_update, optimizer=optimizer), OBJECTIVE)
    held, placed = parallel.hold(frozen), parallel.place(init_state(trained, optimizer))
    batch = batch_of(devices)
    for _ in range(2):
        before = jax.tree.leaves(placed)
        placed, _ = update(placed, held, batch)
    return parallel, frozen, held, placed, before


@pytest.mark.parametrize("how", [("single", 1), ("pmap", 2), ("mesh", 2), ("mesh", 4, 2, 2)])
def test_adapters_train_and_frozen_weights_stay_where_they_are(how):
    parallel, frozen, held, placed, before = stepped(*how)
    alone = stepped("single", 1)
    whole = alone[0].fetch(alone[3])
    state = parallel.fetch(placed)
    assert state.step == 2 and state.skipped == 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), state.params, whole.params
    )
    # Adapters and their moments are float32, weights the bfloat16 they were, bit for bit.
    for leaf in jax.tree.leaves((state.params, state.optimizer_state)):
        assert leaf.dtype in (np.float32, np.int32)
    for leaf in jax.tree.leaves(held):
        assert leaf.dtype == jnp.bfloat16 and not leaf.is_deleted()
    assert_same(jax.tree.map(np.asarray, parallel.local(held)), jax.tree.map(np.asarray, frozen))
    # The state was donated. What was held was not copied to look at it, where a device has it.
    assert all(leaf.is_deleted() for leaf in before if leaf.ndim > parallel.kind.count("pmap"))
    first, shares = parallel.local(held)["embed"]["embedding"], how[1] if how[0] == "mesh" else 1
    assert first.sharding.device_set == set(jax.devices()[:shares])
    held_at, seen_at = (
        [shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards]
        for leaf in (held["embed"]["embedding"], first)
    )
    assert seen_at == held_at[:shares]
    assert_same(jax.tree.map(np.asarray, parallel.current(placed.params)), state.params)


MODULES = {
    "full": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "sliding_shared": ("q_proj", "o_proj", "per_layer_gate", "per_layer_projection"),
    "linear": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
}


def test_adapters_are_sharded_like_their_kernels():
    mesh = Parallel(ParallelSettings("mesh", 8, 2, 2)).mesh
    shapes = {
        kind: {
            name: {
                "kernel": jax.ShapeDtypeStruct((3, 8, 12), jnp.float32),
                "lora_a": jax.ShapeDtypeStruct((3, 8, 2), jnp.float32),
                "lora_b": jax.ShapeDtypeStruct((3, 2, 12), jnp.float32),
            }
            for name in names
        }
        for kind, names in MODULES.items()
    }
    shapes["linear"]["conv"] = {"kernel": jax.ShapeDtypeStruct((3, 4, 8), jnp.float32)}
    outside = {
        "embed": {"embedding": (24, 8)}, "lm_head": {"kernel": (8, 24)},
        "per_layer_embed": {"embedding": (24, 16)}, "per_layer_projection": {"kernel": (8, 16)},
    }  # fmt: skip
    outside = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), outside,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )  # fmt: skip
    specs = jax.tree.map(
        lambda sharding: (*sharding.spec, None, None, None)[:3],
        shardings({"layers": shapes, **outside}, mesh),
    )
    for kind in specs["layers"].values():
        assert kind.pop("conv", {"kernel": (None, None, "tensor")})["kernel"][2] == "tensor"
        for name, module in kind.items():
            into, out_of = module["kernel"][1:]
            assert {into, out_of} == {"fsdp", "tensor"}, name
            assert module["lora_a"][1] == into and module["lora_b"][2] == out_of, name
            assert module["lora_a"][2] is None and module["lora_b"][1] is None, name
    for name in outside:
        (spec,) = specs[name].values()
        assert set(spec) == {"fsdp", "tensor", None}, name
