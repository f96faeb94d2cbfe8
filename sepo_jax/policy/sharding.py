"""Where the arrays of a policy lie on a mesh (data, fsdp, tensor): parameters by their paths, and
what is computed with them.

Parameters are placed from outside, by `shardings`. Inside `jit`, `constrain` says where a result
belongs while a mesh is set (`on_mesh`) and does nothing without one, so that a function is the same
on one device and on many.

The update splits rows over all devices and gathers the weights of a layer when their turn comes.
Decoding does the opposite, since a step has few tokens and reads every weight: each device
multiplies its share of a weight, and the sums, which are small, go over the links. Slots and their
keys and values are split over `SLOTS`, their heads over tensor.
"""

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .linear import Linear

MESH_AXES = ("data", "fsdp", "tensor")
SLOTS = ("data", "fsdp")  # the axis of slots; their keys and values have no other use for fsdp
# First match wins. The axes are those of an array's last dimensions, the others stay whole, as does
# a dimension that its axis does not divide. Projections into a layer's inside are split over their
# outputs, those out of it over their inputs, also where decoding has them transposed and side by
# side; an adapter's factors follow their kernel and leave the rank whole.
_INTO = r"((q|k|v|qkv|gate|up|gate_up)_proj|in_proj_\w+|per_layer_gate)\W+"
_OUTWARD = ("o_proj", "down_proj", "out_proj", "per_layer_projection")
_OUT_OF = rf"layers.*\W({'|'.join(_OUTWARD)})\W+"
Axes = tuple[str | None, ...]
SHARDING_RULES: tuple[tuple[str, Axes], ...] = (
    (r"embedding", ("fsdp", "tensor")),
    (_INTO + "kernel", ("fsdp", "tensor")),
    (_INTO + "transposed", ("tensor", "fsdp")),
    (_INTO + "lora_a", ("fsdp", None)),
    (_INTO + "lora_b", (None, "tensor")),
    (_OUT_OF + "kernel", ("tensor", "fsdp")),
    (_OUT_OF + "transposed", ("fsdp", "tensor")),
    (_OUT_OF + "lora_a", ("tensor", None)),
    (_OUT_OF + "lora_b", (None, "fsdp")),
    (r"conv\W+kernel", (None, "tensor")),
    (r"per_layer_projection\W+kernel", ("fsdp", "tensor")),
    (r"head\W+kernel", ("tensor", "fsdp")),
    (r".*", ()),
)
LARGE = 2**20  # entries of an array that is worth splitting


def shardings(params: Any, mesh: Mesh | AbstractMesh, rules: Sequence = SHARDING_RULES) -> Any:
    """A NamedSharding for every array of a tree, by the first rule that matches its path.

    Trees that repeat the paths of parameters, such as an optimizer's moments, lie as these do.
    """

    def place(path, leaf):
        axes = rules[_rule_of(path, rules)][1]
        axes = (None,) * (leaf.ndim - len(axes)) + axes if len(axes) <= leaf.ndim else ()
        return sharding_of(leaf.shape, axes, mesh)

    return jax.tree_util.tree_map_with_path(place, params)


def unsplit(
    params: Any, mesh: Mesh, rules: Sequence = SHARDING_RULES, large: int = LARGE
) -> dict[str, str]:
    """Arrays of at least `large` entries that a mesh for large models leaves whole: path -> why.

    Either no rule but the last names them, or no axis of their rule divides them. A rule whose axes
    the mesh has not, as a tensor axis of 1, leaves an array whole on purpose.
    """
    found = {}
    if math.prod(mesh.shape[axis] for axis in MESH_AXES[1:]) == 1:
        return found
    places = jax.tree.leaves(shardings(params, mesh, rules))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), place in zip(leaves, places, strict=True):
        if leaf.size < large or place.shard_shape(leaf.shape) != leaf.shape:
            continue
        number = _rule_of(path, rules)
        pattern, axes = rules[number]
        named = [axis for axis in axes if axis is not None and mesh.shape[axis] > 1]
        if number == len(rules) - 1:
            reason = "no sharding rule names it"
        elif named:
            reason = f"{' and '.join(named)} of rule {pattern!r} do not divide it"
        else:
            continue
        found[jax.tree_util.keystr(path)] = f"{list(leaf.shape)}, {reason}"
    return found


def _rule_of(path: tuple, rules: Sequence) -> int:
    name = jax.tree_util.keystr(path)
    return next(number for number, (pattern, _) in enumerate(rules) if re.search(pattern, name))


def sharding_of(shape: Sequence[int], axes: Sequence, mesh: Mesh | AbstractMesh) -> NamedSharding:
    """An array's first dimensions split over `axes` where these divide them, the rest whole; of
    several axes for one dimension the first ones that do.

    One layout has one spec, as `jit` takes two for two and compiles twice: no axis of one device,
    no None at the end.
    """
    sizes, kept = mesh.shape, []
    for size, axis in zip(shape, axes, strict=False):
        names = () if axis is None else (axis,) if isinstance(axis, str) else axis
        names = tuple(name for name in names if sizes[name] > 1)
        while names and size % math.prod(sizes[name] for name in names):
            names = names[:-1]
        kept.append(names if len(names) > 1 else names[0] if names else None)
    while kept and kept[-1] is None:
        kept.pop()
    return NamedSharding(mesh, PartitionSpec(*kept))


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh of several devices that the arrays of a tree lie on, or None."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and set(MESH_AXES) <= set(sharding.mesh.axis_names):
            return sharding.mesh
    return None


def on_mesh(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """What is traced inside lies on `mesh` where `constrain` says; nothing without one."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def current_mesh() -> AbstractMesh | None:
    """The mesh of `on_mesh` around the function that is traced, or None."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if set(MESH_AXES) <= set(mesh.axis_names) else None


def constrain(array: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """`array` laid out as `sharding_of` says; the array itself without a mesh."""
    mesh = current_mesh()
    if mesh is None:
        return array
    return jax.lax.with_sharding_constraint(array, sharding_of(array.shape, axes, mesh))


def constrain_params(params: chex.ArrayTree) -> chex.ArrayTree:
    """Parameters as `shardings` lays them out; themselves without a mesh."""
    mesh = current_mesh()
    if mesh is None:
        return params
    return jax.lax.with_sharding_constraint(params, shardings(params, mesh))


def beside_weights(axes: tuple[str, ...]) -> contextlib.AbstractContextManager:
    """Inside, rows are split over `axes` where they enter a projection of a layer and leave it.

    Left alone, XLA computes them where they are needed next, each by slot, and gathers the
    projection's kernel for it.
    """
    if current_mesh() is None:
        return contextlib.nullcontext()

    def place(call, arguments, keywords, context):
        if not isinstance(context.module, Linear) or context.method_name != "__call__":
            return call(*arguments, **keywords)
        inner = (axes, None, "tensor")
        outward = context.module.name in _OUTWARD
        (rows,) = arguments
        result = call(constrain(rows, *inner[: 3 if outward else 1]), **keywords)
        return constrain(result, *inner[: 1 if outward else 3])

    return nn.intercept_methods(place)


def over_shares(function: Callable, in_axes: Any, mesh: Mesh | AbstractMesh) -> Callable:
    """`function` for each share of a batch, `[shares, ...]`, shares split over all devices."""
    whole_rows = NamedSharding(mesh, PartitionSpec())

    def keep_apart(call, arguments, keywords, context):
        # Left alone, XLA gives every device all rows and a slice of the features, as the embedding
        # has them: 16 times the activations on 16 devices, summed over all links in every layer.
        result = call(*arguments, **keywords)
        if isinstance(context.module, nn.Embed) and context.method_name == "__call__":
            result = jax.lax.with_sharding_constraint(result, whole_rows)
        return result

    def of_share(*arguments):
        with nn.intercept_methods(keep_apart):
            return function(*arguments)

    return jax.vmap(of_share, in_axes=in_axes, spmd_axis_name=MESH_AXES)
