"""Named models: published parameter counts, and configs that their families express."""

import dataclasses
import math

import jax
import pytest

from sepo_jax.policy import load
from sepo_jax.policy.formats.families import FAMILY_ROWS
from sepo_jax.policy.formats.families_export import hf_config
from sepo_jax.policy.formats.weights import parameter_shapes, tensor_places
from sepo_jax.policy.models import MODELS

# Gemma 3 4B: 4,300,079,472 published, of which vision is a SigLIP tower of 416,866,032 (27 layers
# of 15,239,504, patches 678,528, positions 4,718,592, last norm 2,304) and a projector of
# 1152 * 2560 + 1152 = 2,950,272.
GEMMA_3_TEXT = 4_300_079_472 - 416_866_032 - 2_950_272
# Gemma 4 E4B: 7,996,156,490 published, of which audio 304,825,088 - 480 (clipping bounds of its
# linear maps, not counted), vision 167,364,608, their embedders 3,932,160 + 1,966,080 (sizes of
# transformers' default towers), and keys and values of the 18 sharing layers, which nothing reads:
# 15 sliding of 2 * 512 * 2560 + 256, 3 full of 2 * 1024 * 2560 + 512.
GEMMA_4_UNREAD = 15 * (2 * 512 * 2560 + 256) + 3 * (2 * 1024 * 2560 + 512)
GEMMA_4_TOWERS = 304_825_088 - 480 + 167_364_608 + 3_932_160 + 1_966_080
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3.5-4b": 4_205_751_296,  # of its text part; 4,659,865,088 with vision and drafting heads
    "gemma-3-4b": GEMMA_3_TEXT,
    "gemma-4-e4b-it": 7_996_156_490 - GEMMA_4_UNREAD - GEMMA_4_TOWERS,
}


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts_are_the_published_ones(name):
    config = MODELS[name].config
    shapes = parameter_shapes(config)
    assert count(shapes) == PUBLISHED[name]
    stored = 0
    for place in tensor_places(config).values():
        leaf = shapes
        for key in place.path:
            leaf = leaf[key]
        stored += math.prod(place.stored_shape(leaf.shape))
    assert stored == PUBLISHED[name]  # every parameter has exactly one place in a checkpoint


@pytest.mark.parametrize("name", MODELS)
def test_configs_can_be_written(name):
    """`hf_config` refuses whatever its family cannot express."""
    model = MODELS[name]
    assert hf_config(model.config)["model_type"] == FAMILY_ROWS[model.config.family].model_type
    assert model.hub_id.count("/") == 1
    dataclasses.replace(model.config, remat="layer", compute_dtype="bfloat16")


def test_names_are_hub_ids(monkeypatch):
    """A name stands for its hub id; a wrong one is met with the nearest."""
    asked = []

    def fetch(hub_id, **_):
        asked.append(hub_id)
        raise OSError("no network here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(FileNotFoundError, match="Qwen/Qwen3-4B"):
        load("qwen3-4b")
    assert set(asked) == {"Qwen/Qwen3-4B"}
    with pytest.raises(FileNotFoundError, match="Did you mean the model 'qwen3-4b'"):
        load("qwen3-4bb")
