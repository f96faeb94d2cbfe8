"""How one update function is spread over devices: alone, by `pmap`, or by `jit` on a mesh.

A batch arrives as `[devices, parts, rows, ...]`; rows of one event are never split over the first
two axes, so the result does not depend on how many there are. With several processes `devices` are
those of all of them; every process holds the whole batch and the whole state, and gives its own
devices their shares.

Trained parameters are placed with the optimizer's state and consumed by every update; frozen ones
are held: laid out once, read by every update, never donated and never brought back to the host.
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..names import check_option
from .settings import ParallelSettings

# First match wins; a dimension that its axis does not divide stays whole. Stacked layers put the
# layer axis first. Projections into a layer's inside are split over their outputs, those out of it
# over their inputs; an adapter's factors follow their kernel and leave the rank whole.
_INTO = r"(q_proj|k_proj|v_proj|gate_proj|up_proj|in_proj_\w+|per_layer_gate)\W+"
_OUT_OF = r"(o_proj|down_proj|out_proj|layers.*per_layer_projection)\W+"
SHARDING_RULES: tuple[tuple[str, PartitionSpec], ...] = (
    (r"embedding", PartitionSpec("fsdp", "tensor")),
    (_INTO + "kernel", PartitionSpec(None, "fsdp", "tensor")),
    (_INTO + "lora_a", PartitionSpec(None, "fsdp", None)),
    (_INTO + "lora_b", PartitionSpec(None, None, "tensor")),
    (_OUT_OF + "kernel", PartitionSpec(None, "tensor", "fsdp")),
    (_OUT_OF + "lora_a", PartitionSpec(None, "tensor", None)),
    (_OUT_OF + "lora_b", PartitionSpec(None, None, "fsdp")),
    (r"conv\W+kernel", PartitionSpec(None, None, "tensor")),
    (r"per_layer_projection\W+kernel", PartitionSpec("fsdp", "tensor")),
    (r"head\W+kernel", PartitionSpec("tensor", "fsdp")),
    (r".*", PartitionSpec()),
)


MESH_AXES = ("data", "fsdp", "tensor")
LARGE = 2**20  # entries of an array that is worth splitting
_LOG = logging.getLogger(__name__)


class Parallel:
    """Where the state lives and how the update runs.

    Attributes:
      kind: "single", "pmap" or "mesh".
      num_devices: shares a batch is split into.
    """

    def __init__(self, settings: ParallelSettings, devices: Sequence[jax.Device] | None = None):
        check_option("parallel kind", settings.kind, ("auto", "single", "pmap", "mesh"))
        devices = list(devices if devices is not None else jax.devices())
        wanted = settings.devices or (1 if settings.kind == "single" else len(devices))
        if wanted > len(devices):
            raise ValueError(f"parallel.devices={wanted}, but only {len(devices)} are there")
        if settings.kind == "single" and wanted != 1:
            raise ValueError(f'parallel.kind="single" takes one device, got devices={wanted}')
        processes = jax.process_count()
        if processes > 1 and (settings.kind == "single" or wanted != len(devices)):
            raise ValueError(
                f"a run of {processes} processes uses the {len(devices)} devices of all of them: "
                'set parallel.devices=0 and parallel.kind="auto", "pmap" or "mesh"'
            )
        self.devices = devices[:wanted]
        self.num_devices = wanted
        self.kind = settings.kind
        if self.kind == "auto":
            self.kind = "pmap" if wanted > 1 else "single"
        if self.kind != "mesh" and (settings.fsdp, settings.tensor) != (1, 1):
            raise ValueError(
                f"parallel.fsdp={settings.fsdp} and parallel.tensor={settings.tensor} are axes of "
                f'a mesh, and the kind is {self.kind!r}; set parallel.kind="mesh" or leave them 1'
            )
        if self.kind == "mesh":
            model = settings.fsdp * settings.tensor
            if wanted % model:
                meant = settings.topology and f"; the config is meant for {settings.topology}"
                raise ValueError(
                    f"{wanted} devices do not divide into fsdp={settings.fsdp} times "
                    f"tensor={settings.tensor}{meant}"
                )
            grid = np.array(self.devices).reshape(wanted // model, settings.fsdp, settings.tensor)
            self.mesh = Mesh(grid, MESH_AXES)
            everywhere = NamedSharding(self.mesh, PartitionSpec())
            self._gathered = jax.jit(lambda leaf: leaf, out_shardings=everywhere)

    def place(self, state: Any) -> Any:
        """Puts a state held as one copy where the update wants it; the update consumes it there."""
        state = jax.tree.map(np.array, state)
        if self.kind == "pmap":
            copies = NamedSharding(Mesh(np.array(self.devices), "data"), PartitionSpec("data"))

            def repeat(leaf):
                return spread(np.repeat(leaf[None], self.num_devices, axis=0), copies)

            return jax.tree.map(repeat, state)
        if self.kind == "mesh":
            return jax.tree.map(spread, state, self._shardings(state))
        return jax.device_put(state, self.devices[0])

    def _shardings(self, state: Any) -> Any:
        """Where a mesh puts a state; a warning for large arrays that it does not split."""
        for name, reason in unsplit(state, self.mesh).items():
            _LOG.warning("every device holds %s whole: %s", name, reason)
        return state_shardings(state, self.mesh)

    def fetch(self, state: Any) -> Any:
        """One numpy copy of a placed state; all processes must call it together."""
        if self.kind == "pmap":
            return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[0].data)[0], state)

        def whole(leaf):
            if leaf.is_fully_addressable or leaf.is_fully_replicated:
                return np.asarray(leaf)
            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

        return jax.tree.map(whole, state)

    def hold(self, frozen: Any) -> Any:
        """Lays out parameters that no update changes; a device keeps its share or its copy."""
        if self.kind == "pmap":
            whole = NamedSharding(Mesh(np.array(self.devices), "data"), PartitionSpec())
            return jax.tree.map(lambda leaf: spread(np.asarray(leaf), whole), frozen)
        if self.kind == "mesh":
            places = self._shardings(frozen)
            return jax.tree.map(lambda leaf, place: spread(np.asarray(leaf), place), frozen, places)
        return jax.device_put(frozen, self.devices[0])

    def whole(self, held: Any) -> Any:
        """Held parameters whole on this process's first device: themselves where they lie there,
        else gathered from the other devices; all processes must call it together."""
        return jax.tree.map(self._whole, held)

    def current(self, placed: Any) -> Any:
        """A placed state, or part of one, whole on this process's first device.

        It may share memory with the state: the next update ends its life.
        """
        if self.kind == "pmap":
            return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], placed)
        return jax.tree.map(self._whole, placed)

    def rest(self, params: Any) -> Any:
        """Parameters between stages: on the device where there is one, else on the host, so that no
        device holds a whole copy beside its share."""
        if self.kind == "single":
            return jax.device_put(params, self.devices[0])
        return jax.tree.map(np.asarray, params)

    def on_first(self, params: Any) -> Any:
        """Whole parameters on this process's first device."""
        here = jax.process_index()
        first = next(device for device in self.devices if device.process_index == here)
        return jax.device_put(params, first)

    def _whole(self, leaf: jax.Array) -> jax.Array:
        if len(leaf.sharding.device_set) == 1:
            return leaf
        if leaf.is_fully_replicated:
            return leaf.addressable_shards[0].data
        if leaf.is_fully_addressable:
            return jax.device_put(leaf, self.devices[0])
        return self._gathered(leaf).addressable_shards[0].data

    def compile_update(self, make: Callable[[Any], Callable], objective: Any) -> Callable:
        """`update(placed state, held parameters, batch) -> (placed state, metrics)`; the batch is
        [devices, parts, ...].

        Args:
          make: `make(objective)` gives the per-device `update(state, frozen, batch, axis=None)`.
          objective: the objective to train.
        """
        update = self.mapped_update(make, objective)
        if self.kind == "pmap":

            def run(state, frozen, batch):
                state, metrics = update(state, frozen, self._own_shares(batch))
                return state, jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], metrics)

            return run
        if self.kind == "mesh" and jax.process_count() > 1:
            shares = NamedSharding(self.mesh, PartitionSpec(MESH_AXES))
            return lambda state, frozen, batch: update(
                state, frozen, jax.tree.map(lambda leaf: spread(np.asarray(leaf), shares), batch)
            )
        return update

    def _own_shares(self, batch: Any) -> Any:
        """The shares `[own devices, parts, ...]` of this process, as `pmap` takes them."""
        if jax.process_count() == 1:
            return batch
        here = jax.process_index()
        own = [index for index, device in enumerate(self.devices) if device.process_index == here]
        return jax.tree.map(lambda leaf: leaf[np.array(own)], batch)

    def mapped_update(self, make: Callable[[Any], Callable], objective: Any) -> Callable:
        """The compiled part of `compile_update`, which can also be lowered from shapes alone."""
        if self.kind == "pmap":
            return jax.pmap(
                partial(make(objective), axis="data"),
                axis_name="data",
                in_axes=(0, None, 0),
                devices=self.devices,
                donate_argnums=0,
            )
        if self.kind == "mesh":
            return self._compile_mesh(make, objective)
        of_share = make(objective)

        @partial(jax.jit, donate_argnums=0)
        def update(state, frozen, batch):
            return of_share(state, frozen, jax.tree.map(lambda leaf: leaf[0], batch))

        return update

    def _compile_mesh(self, make: Callable, objective: Any) -> Callable:
        of_shares = make(SharedObjective(objective, self.mesh))
        rows = NamedSharding(self.mesh, PartitionSpec(None, MESH_AXES))
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        @partial(jax.jit, donate_argnums=0)
        def update(state, frozen, batch):
            shardings = state_shardings(state, self.mesh)
            batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch)
            batch = jax.lax.with_sharding_constraint(batch, rows)
            state, metrics = of_shares(state, frozen, batch)
            metrics = jax.lax.with_sharding_constraint(metrics, everywhere)
            return jax.lax.with_sharding_constraint(state, shardings), metrics

        return update


class SharedObjective:
    """An objective over shares `[shares, rows, ...]`, summed; how a mesh sees one part."""

    def __init__(self, objective: Any, mesh: Mesh):
        self.objective = objective
        self.whole_rows = NamedSharding(mesh, PartitionSpec())

    def counts(self, batch: Any) -> Any:
        """Counts over all shares."""
        return jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(self.objective.counts)(batch))

    def loss_given_counts(self, params: Any, batch: Any, counts: Any) -> Any:
        """Loss and metrics summed over all shares."""

        def of_share(params, share, counts):
            with nn.intercept_methods(self._keep_shares_apart):
                return self.objective.loss_given_counts(params, share, counts)

        parts = jax.vmap(of_share, in_axes=(None, 0, None), spmd_axis_name=MESH_AXES)(
            params, batch, counts
        )
        return jax.tree.map(lambda leaf: leaf.sum(0), parts)

    def _keep_shares_apart(self, call, arguments, keywords, context) -> Any:
        # Left alone, XLA gives every device all rows and a slice of the features, as the embedding
        # has them: 16 times the activations on 16 devices, summed over all links in every layer.
        result = call(*arguments, **keywords)
        if isinstance(context.module, nn.Embed) and context.method_name == "__call__":
            result = jax.lax.with_sharding_constraint(result, self.whole_rows)
        return result


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process holds whole, laid out by `sharding` over all their devices.

    Each device gets memory of its own, so that donating the result leaves `array` alone.
    """
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: np.array(array[index]), dtype=array.dtype
    )


def state_shardings(state: Any, mesh: Mesh, rules: Sequence = SHARDING_RULES) -> Any:
    """A NamedSharding for every array of `state`, by the first rule that matches its path."""

    def place(path, leaf):
        spec = rules[_rule_of(path, rules)][1]
        axes = tuple(spec)[: leaf.ndim] if len(spec) <= leaf.ndim else ()
        kept = [
            axis if axis is not None and leaf.shape[i] % mesh.shape[axis] == 0 else None
            for i, axis in enumerate(axes)
        ]
        return NamedSharding(mesh, PartitionSpec(*kept))

    return jax.tree_util.tree_map_with_path(place, state)


def unsplit(
    state: Any, mesh: Mesh, rules: Sequence = SHARDING_RULES, large: int = LARGE
) -> dict[str, str]:
    """Arrays of at least `large` entries that a mesh for large models leaves whole: path -> why.

    Either no rule but the last names them, or no axis of their rule divides them. A rule whose axes
    the mesh has not, as a tensor axis of 1, leaves an array whole on purpose.
    """
    found = {}
    if math.prod(mesh.shape[axis] for axis in MESH_AXES[1:]) == 1:
        return found
    shardings = jax.tree.leaves(state_shardings(state, mesh, rules))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), sharding in zip(leaves, shardings, strict=True):
        if leaf.size < large or sharding.shard_shape(leaf.shape) != leaf.shape:
            continue
        number = _rule_of(path, rules)
        pattern, spec = rules[number]
        named = [axis for axis in spec if axis is not None and mesh.shape[axis] > 1]
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
