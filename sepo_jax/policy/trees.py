"""Trees of parameters: dicts nested in dicts, whose parts are named by paths of keys."""

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


def leaves_by_path(tree) -> dict[tuple[str, ...], Any]:
    """Every leaf of nested dicts by the keys that lead to it."""
    return {
        tuple(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
