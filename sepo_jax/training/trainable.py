"""Which parameters a run trains: all of them, or an adapter beside frozen ones.

The trained leaves are a tree of their own; the optimizer and the checkpoints know nothing else.
`join(frozen, trained)` is what the policy's functions take. In full fine-tuning nothing is frozen.
"""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from ..policy import ModelConfig
from ..policy.lora import attach, detach, init_adapter, merge

_VALUE_HEAD = "value_head"


def join(frozen: Mapping, trained: Mapping) -> dict:
    """One nested dict with the leaves of both; arrays are shared, neither dict is changed.

    Raises:
      ValueError: both have a leaf at the same place.
    """
    joined = dict(frozen)
    for name, part in trained.items():
        if name not in joined:
            joined[name] = part
        elif isinstance(part, Mapping) and isinstance(joined[name], Mapping):
            joined[name] = join(joined[name], part)
        else:
            raise ValueError(f"{name!r} is both frozen and trained; give every leaf once")
    return joined


def split(config: ModelConfig, params: chex.ArrayTree) -> tuple[dict, chex.ArrayTree]:
    """(frozen, trained) of whole parameters; `join` puts them together again.

    Trained are the adapter and the value head where the config has an adapter, else everything.
    """
    if config.lora is None:
        return {}, params
    frozen, trained = detach(params)
    if _VALUE_HEAD in frozen:
        trained = {**trained, _VALUE_HEAD: frozen.pop(_VALUE_HEAD)}
    return frozen, trained


def reference_part(config: ModelConfig, trained: chex.ArrayTree) -> chex.ArrayTree:
    """The trained leaves that the reference policy has too, as they are before a stage: all of
    them, or of an adapter and a value head the latter."""
    if config.lora is None:
        return trained
    return {name: part for name, part in trained.items() if name == _VALUE_HEAD}


def begin_stage(config: ModelConfig, params: chex.ArrayTree, key: chex.PRNGKey) -> chex.ArrayTree:
    """Parameters that a stage starts from: the same policy, its adapter merged, a fresh one on top.

    So the policy without adapter is the one before the stage, which KL terms refer to. What is
    trained is float32, whatever the frozen weights are. Without `config.lora`: `params` themselves.

    Args:
      params: parameters before the stage, with the adapter of an earlier stage or without one.
      key: PRNG key of the fresh adapter.
    """
    if config.lora is None:
        return params
    base = merge(config, params)
    if _VALUE_HEAD in base:
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), base[_VALUE_HEAD])
        base = {**base, _VALUE_HEAD: wide}
    return attach(base, init_adapter(config, base, key))
