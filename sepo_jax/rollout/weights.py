"""The weights that a rollout decodes with, each array once however many policies have it."""

from collections.abc import Sequence
from typing import Any

import chex
import jax

from ..policy import Policy, detach
from ..policy.decoding_form import beside


def decoding_forms(
    policies: Sequence[tuple[Policy, chex.ArrayTree]],
) -> tuple[chex.ArrayTree, ...]:
    """Parameters of each policy in decoding form (`Policy.fuse`).

    Policies over the same arrays share one form of these, each with its own adapter beside it; the
    adapter of a policy that shares nothing is merged.
    """
    split = [detach(params) for _, params in policies]
    bases = [
        (policy, tuple(map(id, jax.tree.leaves(base))))
        for (policy, _), (base, _) in zip(policies, split, strict=True)
    ]
    shared: dict[Any, chex.ArrayTree] = {}
    forms = []
    for (policy, params), (base, adapter), key in zip(policies, split, bases, strict=True):
        if bases.count(key) == 1:
            forms.append(_fuse(policy, params))
            continue
        if key not in shared:
            shared[key] = _fuse(policy, base)
        forms.append(beside(shared[key], _fuse_adapter(policy, params)) if adapter else shared[key])
    return tuple(forms)


def shared_form(policy: Policy, params: chex.ArrayTree) -> chex.ArrayTree:
    """The decoding form of one of several policies over the same arrays: adapter beside kernels."""
    return beside(policy.fuse(detach(params)[0]), policy.fuse_adapter(params))


_fuse = jax.jit(Policy.fuse, static_argnums=0)
_fuse_adapter = jax.jit(Policy.fuse_adapter, static_argnums=0)


def distinct(parts: chex.ArrayTree) -> tuple[list[chex.Array], Any]:
    """The arrays of a tree, each once, and how `assembled` makes the tree of them (hashable)."""
    leaves, tree = jax.tree.flatten(parts)
    arrays = {id(leaf): leaf for leaf in leaves}
    places = {key: place for place, key in enumerate(arrays)}
    return list(arrays.values()), (tree, tuple(places[id(leaf)] for leaf in leaves))


def assembled(arrays: Sequence[chex.Array], layout: Any) -> chex.ArrayTree:
    """The tree whose arrays `distinct` listed."""
    tree, places = layout
    return jax.tree.unflatten(tree, [arrays[place] for place in places])
