"""Which parameters a run trains: all of them, or an adapter beside frozen ones.

The trained leaves are a tree of their own; the optimizer and the checkpoints know nothing else.
`join(frozen, trained)` is what the policy's functions take. In full fine-tuning nothing is frozen.
"""

import chex
import jax
import jax.numpy as jnp

from ..policy import ModelConfig
from ..policy.lora import attach, detach, init_adapter, merge
from ..policy.trees import join

__all__ = ["begin_stage", "join", "reference_part", "split"]

_VALUE_HEAD = "value_head"


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
    """Parameters that a stage starts from: the same policy, its adapter merged, fresh ones on top.

    So the policy without adapter is the one before the stage, which KL terms refer to. What is
    trained is float32, whatever the frozen weights are. Without `config.lora`: `params` themselves.
    Where `config.lora.agents` names several there is a fresh adapter for each of them, over the one
    that all shared before.

    Args:
      params: parameters before the stage, with the adapter of an earlier stage or without one.
      key: PRNG key of the fresh adapters.

    Raises:
      ValueError: parameters with adapters of several agents.
    """
    if config.lora is None:
        return params
    base = merge(config, params)
    if _VALUE_HEAD in base:
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), base[_VALUE_HEAD])
        base = {**base, _VALUE_HEAD: wide}
    return attach(base, init_adapter(config, base, key))
