"""One update in every layout of eight devices, and what the policy samples after it.

Seven trees over eight devices: one has nothing to learn from, and the longest row lies on the last.
As a program it is one of two processes with four devices each:

    layouts.py <coordinator> <process> <directory>
"""

import functools
import json
import sys

import jax
import numpy as np
import optax

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.forest import ForestBuilder, fill, pack
from sepo_jax.objective import make_objective
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.config import LoraConfig
from sepo_jax.rollout import EngineOptions
from sepo_jax.rollout.generate import complete
from sepo_jax.training.distributed import connect
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import OptimizerSettings, ParallelSettings
from sepo_jax.training.trainable import begin_stage, join, split
from sepo_jax.training.update import init_state, make_optimizer, make_update

SINGLE = ("single", 1)
# (data, fsdp, tensor) of a mesh: what fsdp and tensor leave over is data.
LAYOUTS = {
    "pmap": ("pmap", 8),
    "mesh 8x1x1": ("mesh", 8),
    "mesh 2x4x1": ("mesh", 8, 4, 1),
    "mesh 2x2x2": ("mesh", 8, 2, 2),
    "mesh 1x8x1": ("mesh", 8, 8, 1),  # one axis over both processes
}
OF_ADAPTERS = ("pmap", "mesh 2x2x2")
VOCABULARY, TREES = 24, 7
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 4,
    "num_kv_heads": 4, "intermediate_size": 32,
}  # fmt: skip
ALGORITHM = get_algorithm("grpo", entropy_weight=0.01)
# Adam divides by the root of its second moment plus epsilon: with a large one the rounding of a
# gradient near zero stays small, so that whole updates can be compared.
OPTIMIZER = optax.chain(
    optax.trace(decay=0.0),  # keeps the gradient itself
    make_optimizer(OptimizerSettings(epsilon=1e-2), 1e-2, 0, 10, 0.0),
)
OPTIONS = EngineOptions(slots=8, capacity=32, prefill_widths=(8,), max_action_tokens=12)
PROMPTS = [list(range(first, first + 3)) for first in range(8)]


def policy_of(adapters):
    """A policy of two layers; with adapters beside frozen parameters, or without."""
    lora = LoraConfig(rank=2, targets=("q_proj", "o_proj", "down_proj")) if adapters else None
    return Policy(ModelConfig(**SIZES, lora=lora))


def batch_of(devices):
    """Two replies to each prompt, as `[devices, 1, rows, ...]`; the longest trees come last."""
    rng, builder = np.random.default_rng(0), ForestBuilder()
    for group in range(TREES):
        prompt = builder.add(rng.integers(0, VOCABULARY, 3), group=group)
        for reward in (0.0, 1.0):
            tokens = rng.integers(0, VOCABULARY, int(rng.integers(1, 6)))
            builder.add(
                tokens, prompt, is_action=True, reward=reward,
                behavior_logp=np.full(len(tokens), -3.0),
            )  # fmt: skip
    forest = builder.build()
    batch = fill(
        pack(forest, row_length=16, parts=devices), **assign_credit(ALGORITHM, forest).arrays()
    )
    return jax.tree.map(lambda leaf: leaf[::-1, None], batch)


@functools.cache
def updated(layout, adapters=False):
    """What an update leaves where it lies.

    Returns:
      The `Parallel`, frozen parameters as they are held, the state before it as it came back to the
      host (None with several processes) and after it as the devices have it, and the metrics.
    """
    policy = policy_of(adapters)
    whole = begin_stage(policy.config, policy.init(jax.random.key(0)), jax.random.key(1))
    whole = jax.tree_util.tree_map_with_path(_both_factors, whole)
    frozen, trained = split(policy.config, whole)
    parallel = Parallel(ParallelSettings(*layout))
    if parallel.kind == "mesh":
        data, model = layout[1], (*layout[2:], 1, 1)[:2]
        assert tuple(parallel.mesh.shape.values()) == (data // (model[0] * model[1]), *model)
    update = parallel.compile_update(
        functools.partial(make_update, optimizer=OPTIMIZER), make_objective(ALGORITHM, policy)
    )
    held, before = parallel.hold(frozen), init_state(trained, OPTIMIZER)
    placed = parallel.place(before)
    came_back = None
    if jax.process_count() == 1:  # else each leaf costs a compilation
        came_back = jax.tree.map(np.array, parallel.fetch(placed))
    placed, metrics = update(placed, held, batch_of(parallel.num_devices))
    return parallel, held, came_back, placed, {n: float(m.value) for n, m in metrics.items()}


def _both_factors(path, leaf):
    """Adapters that are not zero, so that both of their factors have a gradient."""
    if "lora_b" not in jax.tree_util.keystr(path):
        return leaf
    return 0.1 * jax.random.normal(jax.random.key(3), leaf.shape)


def results(layout, adapters=False):
    """(arrays, metrics): the gradient, the state after an update, and replies under it with the
    seeds that are the same everywhere."""
    parallel, held, _, placed, metrics = updated(layout, adapters)
    state = parallel.fetch(placed)
    found = {"gradient": state.optimizer_state[0].trace, "state": state}
    arrays = {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
    }
    params = join(parallel.local(held), parallel.current(placed.params))
    replies = complete(policy_of(adapters), params, PROMPTS, OPTIONS, samples=2, seed=4, step=1)
    actions = [action for each in replies for action in each]
    arrays["tokens"] = np.concatenate([action.tokens for action in actions])
    arrays["logp"] = np.concatenate([action.logp for action in actions])
    return arrays, metrics


def main():
    """Saves the results of this process in every layout."""
    coordinator, process, directory = sys.argv[1:]
    connect(coordinator, 2, int(process), limit=300)
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 8, 4)
    for name, layout in LAYOUTS.items():
        arrays, metrics = results(layout)
        np.savez(f"{directory}/{process} {name}.npz", **arrays)
        with open(f"{directory}/{process} {name}.json", "w", encoding="utf-8") as file:
            json.dump(metrics, file)


if __name__ == "__main__":
    main()
