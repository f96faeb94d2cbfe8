"""A run that adapts a published model leaves its policy whole, and as one adapter of that model."""

import dataclasses

import jax
import numpy as np

from sepo_jax.policy import attach, load, load_peft, merge, save_hf
from sepo_jax.training import train
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_domain, make_policy


def test_base_and_adapter_are_the_policy_of_the_run(small_config, tmp_path):
    settings = read_settings(small_config)
    base, params = make_policy(settings, make_domain(settings.domain))
    save_hf(tmp_path / "base", base, params)
    small_config["policy"] = {
        "source": str(tmp_path / "base"),
        "lora_rank": 2,
        "lora_targets": ("q_proj", "down_proj"),
    }
    small_config["sft"] |= {"steps": 2, "learning_rate": 0.05}
    small_config["sepo"] |= {"steps": 2, "learning_rate": 0.05}
    train(small_config, run_directory=tmp_path / "run", progress=False)
    lora, adapter = load_peft(tmp_path / "run" / "adapter", base.config)
    assert lora.rank == 4, "the adapters of both stages"
    config = dataclasses.replace(base.config, lora=lora)
    found = merge(config, attach(params, adapter))
    _, expected = load(tmp_path / "run" / "policy")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected, params)
    assert moved["layers"]["full"]["q_proj"]["kernel"] > 1e-3
