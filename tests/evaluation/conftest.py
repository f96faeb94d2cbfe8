"""A run directory as training writes it, made up but of the right shape."""

import json
import math
import random

import jax
import jax.numpy as jnp
import pytest
from tiny_policies import tiny_policy

from sepo_jax.domains import Kuhn
from sepo_jax.evaluation.nash_family import kuhn_member


def _uniform() -> dict:
    return {name: [0.5, 0.5] for name in kuhn_member(0.2)}


def _mixed(weight: float, alpha: float = 0.2) -> dict:
    """weight of uniform play mixed into the equilibrium with this alpha."""
    member, uniform = kuhn_member(alpha), _uniform()
    return {
        name: [
            weight * u + (1 - weight) * m for u, m in zip(uniform[name], member[name], strict=True)
        ]
        for name in member
    }


def _metrics(sft_steps: int, sepo_steps: int):
    generator = random.Random(0)
    for step in range(1, sft_steps + 1):
        line = {
            "stage": "sft",
            "step": step,
            "loss": 1.6 * math.exp(-step / 30) + 0.35 + 0.03 * generator.random(),
            "entropy": 1.2 * math.exp(-step / 40) + 0.3,
            "gradient_norm": 2 * math.exp(-step / 25) + 0.2 * generator.random(),
        }
        if step % 20 == 0:
            line["nash_conv"] = 0.9 * math.exp(-step / 80) + 0.03
            line["illegal_mass"] = math.exp(-step / 15)
        yield line
    for step in range(1, sepo_steps + 1):
        line = {
            "stage": "sepo",
            "step": step,
            "loss": 0.02 * generator.gauss(0, 1),
            "reward": -0.4 + 0.3 * (1 - math.exp(-step / 25)) + 0.06 * generator.gauss(0, 1),
            "entropy": 0.32 + 0.1 * math.exp(-step / 30),
            "kl_reference": 0.05 * (1 - math.exp(-step / 30)) + 0.002 * generator.random(),
            "kl_behavior": 1e-6 * generator.random(),
            "clip_fraction": 0.0,
            "no_spread_fraction": 0.1 + 0.05 * generator.random(),
            "failed_episodes": 0,
            "invalid_replies": 1 if step % 17 == 0 else 0,
            "skipped_updates": 0,
        }
        if step % 10 == 0:
            line["nash_conv"] = 0.3 * math.exp(-step / 30) + 0.02
            line["illegal_mass"] = 0.002
        yield line


def write_run(directory, sft_steps: int = 100, sepo_steps: int = 80):
    """Writes every file of a finished Kuhn run into `directory` and returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "name": "kuhn-fixture",
        "seed": 0,
        "domain": {"name": "kuhn", "hands": 1, "on_invalid": "fallback"},
        "sft": {"steps": sft_steps, "learning_rate": 1e-3},
        "sepo": {"steps": sepo_steps, "credit": "credited", "exploiter_pool": ["best_response"]},
        "algorithm": {"name": "grpo", "overrides": {}},
    }
    summary = {
        "uniform/nash_conv": 11 / 12,
        "untrained/nash_conv": 0.8857,
        "sft/nash_conv": 0.2887,
        "sepo/nash_conv": 0.0399,
        "best_known/nash_conv": 2.2e-16,
        "sepo/safety_low": 0.05,
        "sepo/safety_high": 0.13,
        "versions/jax": "0.0.1",
        "versions/numpy": "0.0.2",
        "commit": "0123456789abcdef",
        "untrained/illegal_mass": 0.999,
        "sft/illegal_mass": 0.0031,
        "sepo/illegal_mass": 0.0008,
        "sft/utility": -0.02,
        "sepo/utility": 0.11,
        "sft/exploit_pool_advantage": 0.31,
        "sepo/exploit_pool_advantage": 0.05,
        "sepo/safety": 0.09,
        "seconds": 211.0,
    }
    tables = {"untrained": _mixed(0.97), "sft": _mixed(0.4, 0.3), "sepo": _mixed(0.06, 0.21)}
    samples = [
        {
            "stage": stage,
            "step": step,
            "opponent": "NashApprox",
            "payoff": -2.0,
            "decisions": [
                {
                    "observation": "Qpb",
                    "prompt": "You hold the Queen. You passed and your opponent bet.",
                    "reply": "CALL" if step % 2 == 0 else "I call!",
                    "valid": step % 2 == 0,
                }
            ],
        }
        for stage in ("sft", "sepo")
        for step in range(10)
    ]
    timings = [
        {
            "stage": line["stage"],
            "step": line["step"],
            "generate": 0.8,
            "update": 0.3,
            "peak_host_bytes": 1_500_000_000 + line["step"],
        }
        for line in _metrics(sft_steps, sepo_steps)
    ]
    for name, content in (("config", config), ("summary", summary), ("tables", tables)):
        (directory / f"{name}.json").write_text(json.dumps(content))
    for name, rows in (
        ("metrics", _metrics(sft_steps, sepo_steps)),
        ("timings", timings),
        ("samples", samples),
    ):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture
def small_run(tmp_path):
    """A finished run that logged little: its page draws fast."""
    directory = write_run(tmp_path / "small", sft_steps=20, sepo_steps=20)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    kept = ("stage", "step", "loss", "nash_conv")
    text = "".join(json.dumps({k: v for k, v in m.items() if k in kept}) + "\n" for m in lines)
    (directory / "metrics.jsonl").write_text(text)
    return directory


@pytest.fixture
def run_directory(tmp_path):
    """A finished run."""
    return write_run(tmp_path / "kuhn-fixture")


@pytest.fixture(scope="session")
def random_policy():
    """A tiny random decoder with a tokenizer of the Kuhn domain: (policy, params)."""
    texts = [text for messages, reply in Kuhn().expert_traces(120, seed=0)
             for text in (*(message["content"] for message in messages), reply)]  # fmt: skip
    return tiny_policy(texts, 448)


@pytest.fixture(scope="session")
def flat_policy(random_policy):
    """The same decoder with all parameters 0: every token equally likely after every prompt."""
    policy, params = random_policy
    return policy, jax.tree.map(jnp.zeros_like, params)
