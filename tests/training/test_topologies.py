"""Configs compile for the slices they are meant for: small always, whole where FULL_SIZE is set.

Compiled by libtpu ahead of time, on a machine without a TPU. A whole one takes many minutes:

    FULL_SIZE=1 pytest tests/training/test_topologies.py -k whole
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from sepo_jax.policy.formats.families_export import hf_config
from sepo_jax.policy.models import MODELS
from sepo_jax.policy.rope_scaling import RopeScaling
from sepo_jax.training import read_settings
from sepo_jax.training.chips import CHIPS, describe_topology, devices_for
from sepo_jax.training.command_line import load_config
from sepo_jax.training.dry_run import dry_run
from sepo_jax.training.dry_run_shapes import product_parameters, run_shapes
from sepo_jax.training.dry_run_sizes import Sizes, default_sizes

CONFIGS = Path(__file__).parents[2] / "configs"
# Files without a topology of their own that have one with these options.
PAPER = {
    "sepo/ipd.py": [f"policy={name},paper" for name in ("gemma-4-e4b-it", "qwen3.5-4b")],
    "sepo/all.py": ["policy=qwen3.5-4b,paper"],
}
SMALL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4,
    "num_kv_heads": 2, "head_dim": 16, "max_positions": 512, "num_layers": 2, "rope_scaling": None,
}  # fmt: skip
# A layer of each kind.
SMALL_OF_FAMILY = {
    "gemma4": {
        "layer_types": ("sliding", "full") * 2, "num_layers": 4, "num_kv_shared_layers": 2,
        "sliding_window": 16, "full_head_dim": 32, "rope_scaling": RopeScaling("proportional"),
        "per_layer_embedding_size": 16, "per_layer_vocab_size": 256, "embedding_scale": 8.0,
    },
    "qwen3_5": {
        "layer_types": ("linear", "full"), "num_layers": 2, "linear_key_heads": 2,
        "linear_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
}  # fmt: skip


def meant_for_a_slice():
    """`path:argument` of every config that names a topology."""
    found = []
    for path in sorted(CONFIGS.glob("*/*.py")):
        name = str(path.relative_to(CONFIGS))
        for argument in ["", *PAPER.get(name, [])]:
            if load_config(f"{path}:{argument}").parallel.topology:
                found.append(f"{name}:{argument}")
    return found


NAMES = meant_for_a_slice()


def read(name, **fields):
    config = load_config(f"{CONFIGS}/{name}")
    config.update(fields)
    return read_settings(config)


def compiled(settings, sizes=None, **options):
    """The report for the config's own slice; every function must compile."""
    report = dry_run(settings, devices_for(settings.parallel), sizes, **options)
    assert not [row.name for row in report.rows if row.error]
    return report


def test_the_configs_of_the_papers_models_name_a_slice():
    models = {read(name).policy.source for name in NAMES}
    assert models == {
        "qwen2.5-3b", "qwen2.5-7b", "llama-3.1-8b", "qwen3-4b", "qwen3-8b", "qwen3.5-4b",
        "gemma-4-e4b-it",
    }  # fmt: skip
    for name in NAMES:
        parallel = read(name).parallel
        assert parallel.topology == ("v5e:4x4" if name.startswith("sepo") else "v5p:2x2x4")
        assert (parallel.kind, parallel.fsdp) == ("mesh", 16)


@pytest.fixture
def small_run(tmp_path):
    """A config with a small policy of the same family, in small slots."""

    def make(name):
        settings = read(name)
        model = MODELS[settings.policy.source].config
        sizes = {**SMALL, **SMALL_OF_FAMILY.get(model.family, {})}
        content = hf_config(dataclasses.replace(model, **sizes))
        (tmp_path / "config.json").write_text(json.dumps(content))
        rollout = {"slots": 4, "capacity": 64, "row_length": 64, "max_action_tokens": 16}
        rollout |= {"prefill_widths": (16,), "prefill_rows": 2, "exchange_interval": 2}
        return read(
            name,
            policy={"source": str(tmp_path)},
            rollout=rollout,
            optimizer={"micro_batches": 1},
        )

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_config_compiles_small_for_its_slice(small_run, name):
    pytest.importorskip("libtpu")
    settings = small_run(name)
    report = compiled(settings, default_sizes(settings, rows=32))
    assert report.num_chips == 16 and report.kind == "mesh" and report.fits
    assert report.chip == CHIPS["TPU v5 lite" if name.startswith("sepo") else "TPU v5"]
    update = report.rows[0]
    assert update.chips == 16 and update.work.collectives["all-gather"].num_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["update", "loop"])
def test_pmaps_of_256_chips_compile(small_config, part):
    """The real update, and the whole in-jit loop of generation with its callback."""
    pytest.importorskip("libtpu")
    loops = part == "loop"
    small_config["parallel"] = {"kind": "pmap", "topology": "v5e:16x16"}
    small_config["rollout"] |= {"slots": 2, "capacity": 32, "prefill_widths": (8,)}
    small_config["rollout"] |= {"driver": "in_jit", "devices": 256} if loops else {}
    sizes = Sizes(rows=256, row_length=32, actions=8, segments=3, capacity=32)
    report = compiled(read_settings(small_config), sizes, parts=["generate" if loops else "update"])
    rows = {row.name: row for row in report.rows}
    assert report.num_chips == rows[part].chips == len(describe_topology("v5e:16x16")) == 256
    if not loops:
        reduced = rows["update"].work.collectives["all-reduce"].num_bytes
        assert reduced >= 4 * report.num_parameters


# At full size, the least GiB a chip of parameters and moments: what is trained in float32 (with a
# reference, where a KL term has one) and what is frozen in bfloat16, over 16 chips. Of an adapter
# what axis `tensor` would split is whole on each: q, k, v and o of Qwen3-8B have 16,384 + 10,240
# numbers a layer and rank.
ADAPTERS = 122.7e6 * (16_384 / 16 + 10_240) / (16_384 + 10_240)
WHOLE = [
    ("bpo/qwen2_5_7b.py:algorithm=grpo", 16 * 7.616e9 / 16),
    ("bpo/llama3_1_8b.py:", 16 * 8.03e9 / 16),
    ("srpo/qwen3_8b.py:", 2 * 8.19e9 / 16 + 12 * ADAPTERS),
    ("sepo/ipd.py:policy=gemma-4-e4b-it,paper", 2 * 7.46e9 / 16),
    ("sepo/ipd.py:policy=qwen3.5-4b,paper", 2 * 4.205e9 / 16),
]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FULL_SIZE"), reason="many minutes: set FULL_SIZE=1")
@pytest.mark.parametrize(("name", "held"), WHOLE)
def test_the_update_compiles_whole_for_its_slice_and_fits(name, held):
    pytest.importorskip("libtpu")
    settings = read(name)
    report = compiled(settings, parts=["update"])
    (update,) = report.rows
    assert report.fits, update.by_kind
    kinds = update.by_kind
    assert held <= kinds["parameters"] + kinds["optimizer"] <= 1.1 * held
    # Forwards and backwards at least, for each token of a row and parameter of the layers.
    sizes = report.sizes
    tokens = sizes.rows * sizes.row_length / report.num_chips
    assert update.work.flops > 4 * product_parameters(run_shapes(settings).params) * tokens
