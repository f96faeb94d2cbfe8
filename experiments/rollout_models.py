"""The policies of `benchmark_rollouts.py`; none has an end token: actions end at their limit."""

import dataclasses
from pathlib import Path

import jax

from sepo_jax.policy import MODELS, ModelConfig, Policy, load

SMALLEST = ModelConfig(vocab_size=64, hidden_size=16, num_layers=1, intermediate_size=32)
TINY = ModelConfig(vocab_size=512)
SMOLLM2 = "smollm2-135m"


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A policy, its parameters, and what it is called in the table."""

    name: str
    policy: Policy
    params: dict


def fresh(name: str, config: ModelConfig) -> Model:
    """A model with random weights."""
    policy, params = load(config, key=jax.random.key(0))
    return Model(name, policy, params)


def smollm2(directory: Path, weights: str = "float32") -> Model:
    """SmolLM2-135M: the published weights where `directory` holds them, else random ones.

    Args:
      directory: what `get_smollm2.py` writes; may be missing.
      weights: dtype of kernels and products; keys and values are float32.
    """
    numbers = {"compute_dtype": weights, "param_dtype": weights, "cache_dtype": "float32"}
    name = f"SmolLM2-135M, {weights}"
    if not (directory / "config.json").is_file():
        config = dataclasses.replace(MODELS[SMOLLM2].config, **numbers)
        return fresh(name, config)
    policy, params = load(directory, tokenizer=False, **numbers)
    return Model(name, Policy(policy.config), params)


def weights_text(directory: Path) -> str:
    """Which weights `smollm2` takes, in words."""
    published = (directory / "config.json").is_file()
    return "published weights" if published else "random weights of that shape"
