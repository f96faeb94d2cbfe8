"""Layouts of eight devices, in one process and in two, change no loss, gradient, update or token;
what a mesh splits, and what it leaves whole."""

import dataclasses
import functools
import json
import logging
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.layouts import (
    LAYOUTS,
    OF_ADAPTERS,
    OPTIONS,
    PROMPTS,
    SINGLE,
    batch_of,
    policy_of,
    results,
    updated,
)

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.config import LoraConfig
from sepo_jax.policy.lora import init_adapter
from sepo_jax.policy.models import MODELS
from sepo_jax.policy.sharding import LARGE, SHARDING_RULES, unsplit
from sepo_jax.rollout import driver
from sepo_jax.rollout.generate import complete
from sepo_jax.training.compilations import Compilations
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import ParallelSettings
from sepo_jax.training.trainable import begin_stage

pytestmark = pytest.mark.usefixtures("compile_fast")
CASES = [(name, False) for name in LAYOUTS] + [(name, True) for name in OF_ADAPTERS]
TESTS = Path(__file__).parents[1]


@functools.cache
def alone(adapters):
    """Results of one device."""
    return results(SINGLE, adapters)


def compare(found, adapters):
    """Tokens to the last, everything else to 1e-5."""
    (arrays, metrics), (expected, of_one) = found, alone(adapters)
    assert set(arrays) == set(expected) and set(metrics) == set(of_one)
    for name, value in expected.items():
        if name == "tokens":
            np.testing.assert_array_equal(arrays[name], value)
        else:
            np.testing.assert_allclose(arrays[name], value, rtol=0, atol=1e-5, err_msg=name)
    for name, value in of_one.items():
        assert metrics[name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_there_is_something_to_compare(adapters):
    arrays, metrics = alone(adapters)
    gradients = [value for name, value in arrays.items() if "gradient" in name]
    assert min(np.abs(value).max() for value in gradients) > 1e-4
    # Every parameter moved by far more than what layouts may differ by.
    _, _, before, placed, _ = updated(SINGLE, adapters)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.params, placed.params)
    assert min(jax.tree.leaves(moved)) > 1e-3
    assert metrics["gradient_norm"] > 1e-2 and abs(metrics["loss"]) > 1e-4
    assert len(arrays["tokens"]) > 100 and len(set(arrays["tokens"].tolist())) > 12


def test_one_device_has_nothing_and_the_last_has_most():  # D02
    rows = batch_of(8).primary.sum(axis=(1, 2, 3))
    assert rows[0] == 0 and rows[-1] == rows.max() and (rows[1:] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "adapters"), CASES)
def test_eight_devices_update_and_sample_as_one(name, adapters):  # D02
    compare(results(LAYOUTS[name], adapters), adapters)


@pytest.mark.slow
def test_two_processes_of_four_devices_update_and_sample_as_one(tmp_path):  # D02
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling is most of the time here
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }
    program = TESTS / "training/layouts.py"
    workers = [
        subprocess.Popen(
            [sys.executable, str(program), coordinator, str(process), str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for process in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=900)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    for name in LAYOUTS:
        stems = [str(tmp_path / f"{process} {name}") for process in (0, 1)]
        metrics = [json.loads(Path(f"{stem}.json").read_text()) for stem in stems]
        assert metrics[0] == metrics[1]  # the same on all hosts, to the last bit
        for stem in stems:
            with np.load(f"{stem}.npz") as arrays:
                compare((dict(arrays), metrics[0]), adapters=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "adapters"), [case for case in CASES if case[0] != "pmap"])
def test_the_optimizer_lies_where_its_parameters_lie(name, adapters):
    parallel, _, _, placed, _ = updated(LAYOUTS[name], adapters)
    structure = jax.tree.structure(placed.params)
    alike = lambda tree: jax.tree.structure(tree) == structure  # noqa: E731
    copies = [t for t in jax.tree.leaves(placed.optimizer_state, is_leaf=alike) if alike(t)]
    assert len(copies) == 3  # the gradient, and Adam's two moments
    fsdp, tensor = parallel.mesh.shape["fsdp"], parallel.mesh.shape["tensor"]
    shares = {"kernel": fsdp * tensor, "embedding": fsdp * tensor, "lora_a": 2, "lora_b": 2}
    for path, leaf in jax.tree_util.tree_leaves_with_path(placed.params):
        share = shares.get(path[-1].key, 1)
        assert leaf.size == share * leaf.addressable_shards[0].data.size, path
    for copy in copies:
        for leaf, param in zip(jax.tree.leaves(copy), jax.tree.leaves(placed.params), strict=True):
            assert leaf.sharding.is_equivalent_to(param.sharding, leaf.ndim)
            assert leaf.addressable_shards[0].data.shape == param.addressable_shards[0].data.shape


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_a_state_comes_back_bit_for_bit_from_where_it_was_put(adapters):
    before = updated(SINGLE, adapters)[2]
    for name in OF_ADAPTERS if adapters else LAYOUTS:
        jax.tree.map(np.testing.assert_array_equal, updated(LAYOUTS[name], adapters)[2], before)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYOUTS if "mesh" in name])
def test_a_mesh_decodes_with_its_shares_of_weights_and_slots(name, monkeypatch):
    """Nothing large is whole on a device, and each function of the loop compiles once."""
    decode, seen = driver._decode, []

    def recorded(policy, params, state, *sizes):
        after = decode(policy, params, state, *sizes)
        seen.append((params, after[0]))
        return after

    parallel = Parallel(ParallelSettings(*LAYOUTS[name]))
    data, fsdp, tensor = parallel.mesh.shape.values()
    policy = policy_of(adapters=True)
    params = begin_stage(policy.config, policy.init(jax.random.key(0)), jax.random.key(1))
    params = parallel.put(params)
    pieces = ("halt_and_clear", "prefill", "fork", "start", "decode")
    for piece in pieces:
        getattr(driver, f"_{piece}").clear_cache()
    monkeypatch.setattr(driver, "_decode", recorded)
    with Compilations() as compilations:
        complete(policy, params, PROMPTS, OPTIONS, samples=2, seed=4)
        compiled = compilations.take()

    def shares(leaf):
        return leaf.size // math.prod(leaf.sharding.shard_shape(leaf.shape))

    for params, state in seen:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            assert leaf.size < 16 * 16 or shares(leaf) == fsdp * tensor, path
        for leaf in jax.tree.leaves((state.cache.keys, state.cache.values)):
            assert shares(leaf) == data * fsdp * tensor
        assert len(state.pending.sharding.device_set) == 8
    assert len(seen) > 3
    counts = {name.partition("/")[2]: count for name, count in compiled.items()}
    assert [counts[piece] for piece in pieces] == [1] * len(pieces)


def test_a_mesh_wants_one_loop():
    policy = policy_of(adapters=False)
    params = Parallel(ParallelSettings("mesh", 8, 8)).put(policy.init(jax.random.key(0)))
    for changed in ({"driver": "in_jit"}, {"devices": 2}):
        options = dataclasses.replace(OPTIONS, **changed)
        with pytest.raises(ValueError, match="on a mesh they are split"):
            complete(policy, params, PROMPTS, options, seed=0)


def shapes_of(config):
    """Shapes of all parameters of a model and of adapters for all its projections."""
    config = dataclasses.replace(config, value_head=True, lora=LoraConfig(16, 32.0, ("all",)))
    params = jax.eval_shape(Policy(config).init, jax.random.key(0))
    adapter = functools.partial(init_adapter, config)
    return {"params": params, "adapter": jax.eval_shape(adapter, params, jax.random.key(0))}


@pytest.mark.parametrize("axes", [(2, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_no_large_parameter_of_a_model_is_left_whole(model, axes):
    shapes = shapes_of(MODELS[model].config)
    mesh = Parallel(ParallelSettings("mesh", 8, *axes)).mesh
    assert unsplit(shapes, mesh) == {}
    # The last rule takes norms, biases and single numbers, which together are next to nothing.
    sizes = {
        jax.tree_util.keystr(path): leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }
    found = unsplit(shapes, mesh, large=1)
    rest = [sizes[name] for name, reason in found.items() if "no sharding rule" in reason]
    assert 0 < sum(rest) < 1e-3 * sum(sizes.values())
    without = unsplit(shapes, mesh, SHARDING_RULES[-1:])
    assert sum("kernel" in name for name in without) >= 7 and any("embedding" in n for n in without)


def test_what_is_large_and_whole_is_reported(caplog):
    mesh = Parallel(ParallelSettings("mesh", 8, 2, 2))
    wide = jnp.zeros((1, 1001, 1049))
    state = {"router": {"weight": wide}, "q_proj": {"kernel": wide}, "norm": {"scale": wide[0, 0]}}
    assert wide.size > LARGE
    with caplog.at_level(logging.WARNING):
        mesh.hold(state)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "['q_proj']['kernel'] whole" in lines[0] and "fsdp and tensor of rule" in lines[0]
    assert "['router']['weight'] whole: [1, 1001, 1049], no sharding rule names it" in lines[1]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Parallel(ParallelSettings("mesh", 8)).hold(state)  # for data alone: whole on purpose
        mesh.place({"q_proj": {"kernel": wide[:, :1000, :1048]}, "w": wide[0]})
    assert [record.getMessage().split()[3] for record in caplog.records] == ["['w']"]


def test_adapters_may_be_whole_where_an_axis_is_not_there():
    config = ModelConfig(
        vocab_size=64, hidden_size=1024, num_layers=33, num_heads=4, num_kv_heads=4,
        intermediate_size=2048, lora=LoraConfig(32, 32.0, ("q_proj",)),
    )  # fmt: skip
    mesh = Parallel(ParallelSettings("mesh", 8, 4, 1)).mesh
    shapes = shapes_of(config)["adapter"]
    assert shapes["layers"]["full"]["up_proj"]["lora_b"].size > LARGE
    assert unsplit(shapes, mesh) == {}
