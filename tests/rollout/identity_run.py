"""Plays the same episodes in many ways and prints a digest of each; run as a program.

The digest covers tokens, log-probabilities and entropies bit by bit, records and rewards.
"""

import dataclasses
import functools
import hashlib
import json
import sys

import jax
from rollout.talks import Duel, Talk

from sepo_jax.policy import ModelConfig, Policy, Sampling, train_tokenizer
from sepo_jax.rollout.driver import EngineOptions
from sepo_jax.rollout.play import play
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.process_pool import ProcessPool

BASE = EngineOptions(
    slots=8, capacity=512, max_action_tokens=9, exchange_interval=4,
    sampling=Sampling(temperature=0.8), prefill_widths=(16, 64),
)  # fmt: skip
REQUESTS = [EpisodeRequest(f"t{i // 4}", i, i // 4, i % 4) for i in range(20)]


def agent():
    """A small policy and a second set of parameters for it."""
    tokenizer = train_tokenizer(["Task t0: choose. You hear 0123456789abcdef."] * 4, 300)
    config = ModelConfig(
        vocab_size=320, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    policy = Policy(config, tokenizer)
    return policy, [policy.init(jax.random.key(seed)) for seed in (0, 1)]


def digest(results):
    """A hash of all that a rollout sampled, and the same of its tokens alone."""
    whole, tokens = hashlib.sha256(), hashlib.sha256()
    for result in results:
        whole.update(json.dumps([result.status, result.record, list(result.rewards)]).encode())
        for action in result.actions:
            for array in (action.given, action.tokens):
                tokens.update(array.tobytes())
                whole.update(array.tobytes())
            whole.update(action.logp.tobytes() + action.entropy.tobytes())
    return whole.hexdigest()[:16], tokens.hexdigest()[:16]


def play_once(policy, params, kind, workers=0, delay=0.0, reverse=False, **options):
    """Digest of one rollout; `workers` processes, 0 for this one."""
    options = dataclasses.replace(BASE, **options)
    factory = functools.partial(kind, delay=delay)
    seats = (0, 1) if kind is Duel else (0,)
    policies = [policy] * len(seats)
    requests = REQUESTS[::-1] if reverse else REQUESTS
    arguments = {"seed": 5, "step": 2, "seats": seats}
    if workers:
        with ProcessPool(factory, workers=workers) as pool:
            rollout = play(policies, params[: len(seats)], requests, pool, options, **arguments)
    else:
        rollout = play(policies, params[: len(seats)], requests, factory, options, **arguments)
    return digest(rollout.results[::-1] if reverse else rollout.results)


WAYS = {
    "in this process": {},
    "again": {},
    "one worker": {"workers": 1, "delay": 0.01},
    "four workers": {"workers": 4, "delay": 0.03},
    "requests reversed": {"reverse": True},
    "in-jit": {"driver": "in_jit"},
    "in-jit, four workers": {"driver": "in_jit", "workers": 4, "delay": 0.03},
    "interval 1": {"exchange_interval": 1},
    "interval 7": {"exchange_interval": 7},
    "in-jit, interval 3": {"driver": "in_jit", "exchange_interval": 3},
}
DEVICES = {
    f"{driver}, four devices, {workers} workers": {
        "driver": driver, "devices": 4, "workers": workers, "delay": 0.02,
    }
    for driver in ("host_loop", "in_jit")
    for workers in (0, 4)
}  # fmt: skip
SLOTS = {f"{slots} slots": {"slots": slots} for slots in (2, 64)}


def main():
    """Prints {environment: {way: [digest, digest of tokens]}} as JSON."""
    policy, params = agent()
    ways = WAYS | SLOTS | (DEVICES if len(jax.local_devices()) >= 4 else {})
    found = {
        kind.__name__: {name: play_once(policy, params, kind, **way) for name, way in ways.items()}
        for kind in (Talk, Duel)
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
