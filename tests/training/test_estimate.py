"""Estimates for GPUs: the arithmetic against what the compiler counts of the same functions."""

import dataclasses

import jax
import pytest

from sepo_jax.training import read_settings
from sepo_jax.training.chips import GIB, GPUS, describe_gpus
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_report import PARTS
from sepo_jax.training.dry_run_sizes import Sizes
from sepo_jax.training.dry_run_tables import render
from sepo_jax.training.estimate import estimate

SIZES = Sizes(rows=8, row_length=128, actions=32, segments=3, capacity=128, sampled=64, given=256)


@pytest.fixture
def medium_config(small_config):
    """Large enough that products outweigh what is not counted."""
    small_config["policy"] |= {
        "vocab_size": 512, "hidden_size": 64, "num_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "intermediate_size": 192,
    }  # fmt: skip
    small_config["algorithm"] = {"name": "grpo", "overrides": {"kl_weight": 0.1}}
    small_config["rollout"] |= {"slots": 8, "capacity": 128, "row_length": 128}
    return small_config


def both(config, number, parts=PARTS, sizes=SIZES):
    """Rows by name of the estimate and of the compiled functions, on CPU devices."""
    settings = read_settings(config)
    found = estimate(settings, f"h100x{number}", sizes)
    compiled = dry_run(settings, jax.devices()[:number], sizes, parts=parts)
    return (
        {row.name: row for row in found.rows},
        {row.name: row for row in compiled.rows},
        found,
        compiled,
    )


@pytest.mark.parametrize(("remat", "rank"), [("layer", 0), ("none", 0), ("layer", 4)])
def test_products_are_those_of_the_compiled_update(medium_config, remat, rank):
    medium_config["policy"] |= {"remat": remat, "lora_rank": rank}
    found, compiled, _, _ = both(medium_config, 1, ("update", "score"))
    for name in ("update", "score"):
        assert found[name].work.flops == pytest.approx(compiled[name].work.flops, rel=0.1)
    # Of what a compiler keeps and moves a formula knows the order.
    for name in ("update", "score"):
        assert 1 / 3 < found[name].temporaries / compiled[name].temporaries < 3
        assert 1 / 4 < found[name].work.num_bytes / compiled[name].work.num_bytes < 4


@pytest.mark.parametrize("kind", ["pmap", "mesh"])
def test_memory_and_collectives_are_laid_out_as_the_run_is(medium_config, kind):
    medium_config["parallel"] = {"kind": kind, "fsdp": 2 if kind == "mesh" else 1}
    parts = PARTS if kind == "pmap" else ("update", "generate")
    found, compiled, whole, other = both(medium_config, 2, parts)
    assert set(found) - set(compiled) == ({"score"} if kind == "mesh" else set())
    for name, row in compiled.items():
        # A compiled program gets what it reads of a batch.
        assert {**row.kinds, "batch": 0} == {**found[name].kinds, "batch": 0}, name
    assert 0 < compiled["update"].kinds["batch"] <= found["update"].kinds["batch"]
    assert whole.state_bytes == other.state_bytes and whole.kind == other.kind == kind
    assert whole.num_parameters == other.num_parameters
    # A prefill call and a token of every slot, forwards alone.
    for name in ("prefill", "decode"):
        assert found[name].work.flops == pytest.approx(compiled[name].work.flops, rel=0.25)
    ours = found["update"].work.collectives
    theirs = compiled["update"].work.collectives
    assert sum(each.num_bytes for each in ours.values()) == pytest.approx(
        sum(each.num_bytes for each in theirs.values()), rel=0.15 if kind == "pmap" else 1.0
    )
    assert next(iter(ours)) == ("all-reduce" if kind == "pmap" else "all-gather")


@pytest.mark.parametrize(("fsdp", "tensor"), [(2, 1), (1, 2), (2, 2)])
def test_a_mesh_of_several_axes_shares_what_the_compiler_shares(medium_config, fsdp, tensor):
    """What is split over data, over slots, over heads; slots of three blocks."""
    medium_config["parallel"] = {"kind": "mesh", "fsdp": fsdp, "tensor": tensor}
    medium_config["rollout"] |= {"prefill_rows": 4, "prefill_widths": (32,), "capacity": 300}
    sizes = dataclasses.replace(SIZES, capacity=300)
    found, compiled, _, _ = both(medium_config, 8, ("generate",), sizes)
    for name in ("prefill", "decode"):
        assert found[name].work.flops == pytest.approx(compiled[name].work.flops, rel=0.1), name


def test_an_estimate_says_that_it_is_one_and_what_to_change(medium_config):
    medium_config["parallel"] = {"kind": "pmap"}
    settings = read_settings(medium_config)
    text = render(estimate(settings, "h200x2", SIZES))
    assert text.startswith("ESTIMATE") and "2 x H200" in text and "verdict: fits" in text
    assert "XLA counts" not in text
    large = {**medium_config, "policy": {"source": "qwen2.5-7b", "param_dtype": "float32"}}
    report = estimate(read_settings(large), "a100x8", SIZES)
    assert report.fits is False
    assert any("parallel.kind=mesh parallel.fsdp=4" in line for line in report.advice())


def test_the_memory_of_a_published_model_is_its_arithmetic():
    """Qwen2.5-7B in float32 over eight chips: 16 bytes a parameter with its reference, less the
    share that no axis divides."""
    settings = read_settings(
        {
            "policy": {"source": "qwen2.5-7b", "param_dtype": "float32", "remat": "layer"},
            "algorithm": {"name": "grpo", "overrides": {"kl_weight": 0.04}},
            "parallel": {"kind": "mesh", "fsdp": 8},
        }
    )
    report = estimate(settings, "h100x8")
    kinds = report.rows[0].kinds
    assert kinds["parameters"] == pytest.approx(8 * 7_615_616_512 / 8, rel=1e-3)
    assert kinds["optimizer"] == pytest.approx(8 * 7_615_616_512 / 8, rel=1e-3)
    # 28 layers of 4 key and value heads of 128, float32: 112 KiB a token, slots over the chips.
    tokens = settings.rollout.slots * settings.rollout.capacity
    decode = next(row for row in report.rows if row.name == "decode")
    assert decode.kinds["cache"] == pytest.approx(tokens * 28 * 2 * 4 * 128 * 4 / 8, rel=0.01)


@pytest.mark.parametrize(
    ("name", "message"),
    [("h100", "not of the form"), ("h100x0", "not of the form"), ("h10x8", "GPU 'h10'.*h100")],
)
def test_gpus_that_are_not_known(name, message):
    with pytest.raises(ValueError, match=message):
        describe_gpus(name)


def test_a_layout_that_does_not_fit_the_number_is_refused(medium_config):
    medium_config["parallel"] = {"kind": "mesh", "fsdp": 16, "topology": "v5p:2x2x4"}
    with pytest.raises(ValueError, match=r"8 devices do not divide.*meant for v5p:2x2x4"):
        estimate(read_settings(medium_config), "h100x8", SIZES)
    chip, number = describe_gpus("h100x8")
    assert number == 8 and chip == GPUS["h100"] and 79 * GIB < chip.memory < 80 * GIB
