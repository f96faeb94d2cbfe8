"""Trees of parameters: dicts nested in dicts, whose parts are named by paths of keys."""

from collections.abc import Mapping
from typing import Any

import jax


def part_at(tree, path) -> Any:
    """The leaf or subtree of `tree` at `path`, a sequence of keys."""
    for name in path:
        tree = tree[name]
    return tree


def put_at(tree: dict, path, part) -> None:
    """Writes a leaf or subtree into `tree` at `path`, with the dicts above it."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = part


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


def leaves_by_path(tree) -> dict[tuple[str, ...], Any]:
    """Every leaf of nested dicts by the keys that lead to it."""
    return {
        tuple(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
