"""The loop and its environments through the callback: how often each is called, with what keys."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from rollout.talks import Once
from sandbox.pools import time_limit

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.rollout import EngineOptions, play
from sepo_jax.sandbox import (
    BaseEnvironment,
    EpisodeRequest,
    InProcessPool,
    ProcessPool,
    ask,
    finish,
)

pytestmark = pytest.mark.usefixtures("compile_fast")
LOOPS = [("host_loop", 1), ("in_jit", 1), ("in_jit", 4)]


@pytest.mark.parametrize(("driver", "devices"), LOOPS)
def test_four_environments_of_three_steps_take_twelve(agent, driver, devices):  # D06
    taken = []

    class Counted(BaseEnvironment):
        def start(self, task, seed):
            self.state = [seed, 0]
            return ask("Choose a card.")

        def play(self, actions):
            self.state[1] += 1
            taken.append(tuple(self.state))
            return finish() if self.state[1] == 3 else ask("Again.")

    options = EngineOptions(
        slots=4 // devices, capacity=64, prefill_widths=(64,), driver=driver, devices=devices
    )
    asked = [EpisodeRequest(None, seed, member=seed) for seed in range(4)]
    with time_limit(300), InProcessPool(Counted) as pool:
        play(*agent, asked, pool, options, seed=0)
    assert sorted(taken) == [(seed, step) for seed in range(4) for step in (1, 2, 3)]
    assert pool.counters["calls"] == 4 + 12


ONE_DEVICE = """
import dataclasses, jax
from rollout.identity_run import BASE, REQUESTS, agent
from rollout.talks import Talk
from sepo_jax.rollout.play import play

assert len(jax.devices()) == 1
policy, (params, _) = agent()
options = dataclasses.replace(BASE, driver="in_jit", slots=1, capacity=128, exchange_interval=1)
rollout = play(policy, params, REQUESTS * 2, Talk, options, seed=0)
assert all(len(result.actions) == 3 for result in rollout.results)
print(rollout.statistics["exchanges"])
"""


@pytest.mark.slow
def test_a_thousand_callbacks_on_one_device_end():  # D04
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", ONE_DEVICE], env=environment, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1000


def test_members_draw_their_own_samples_whichever_process_they_play_in():  # C10
    """Uniform over 1,000 tokens, length 8: 16 samples in two processes."""
    config = ModelConfig(
        vocab_size=1000, hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    policy = Policy(config, end_ids=())
    params = jax.tree.map(jnp.zeros_like, policy.init(jax.random.key(0)))
    asked = [EpisodeRequest(None, 0, member=member) for member in range(16)]
    options = EngineOptions(slots=16, capacity=16, prefill_widths=(16,))

    def drawn(seed):
        results = play(policy, params, asked, pool, options, seed=seed).results
        return [tuple(action.tokens.tolist()) for r in results for action in r.actions]

    with time_limit(300), ProcessPool(Once, workers=2) as pool:
        first, again, other = drawn(7), drawn(7), drawn(8)
    assert len(set(first)) == 16 and {len(tokens) for tokens in first} == {8}
    assert again == first
    assert not set(other) & set(first)
