"""How one update function is spread over devices: alone, by `pmap`, or by `jit` on a mesh.

A batch arrives as `[devices, parts, rows, ...]`; rows of one event are never split over the first
two axes, so the result does not depend on how many there are. With several processes `devices` are
those of all of them; every process holds the whole batch and the whole state, and gives its own
devices their shares.

Trained parameters are placed with the optimizer's state and consumed by every update; frozen ones
are held: laid out once, read by every update, never donated and never brought back to the host.

Each process samples, scores and evaluates for itself, by parameters on its own devices: whole on
the first one, or on a mesh split over all of them by the rules of the update.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..names import check_option
from ..policy.sharding import MESH_AXES, over_shares, shardings, unsplit
from .settings import ParallelSettings

_LOG = logging.getLogger(__name__)


class Parallel:
    """Where the state lives and how the update runs.

    Attributes:
      kind: "single", "pmap" or "mesh".
      num_devices: shares a batch is split into.
      own_devices: those of this process.
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
        here = jax.process_index()
        self.own_devices = [each for each in self.devices if each.process_index == here]
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
            self._make_meshes((wanted // model, settings.fsdp, settings.tensor))

    def _make_meshes(self, sizes: tuple[int, int, int]) -> None:
        """The mesh of the update and that of this process's devices, which together have as many
        shares of an array as its axes allow.

        Along an axis that several processes share, those of one process lie apart: what one device
        of its own mesh holds is what the update has on that device and on its neighbours, so that
        these go together without any other exchange.
        """
        hosts = {device.process_index for device in self.devices}
        by_host = sorted(self.devices, key=lambda device: device.process_index)
        count = len(self.own_devices)
        if count * len(hosts) != len(by_host):
            raise ValueError(
                f"a mesh wants as many devices of each process, and of {len(by_host)} devices of "
                f"{len(hosts)} processes {count} are those of process {jax.process_index()}"
            )
        own = []
        for size in reversed(sizes):
            own.insert(0, math.gcd(size, count // math.prod(own)))
        across = [size // part for size, part in zip(sizes, own, strict=True)]
        grid = np.array(by_host).reshape(*across, *own).transpose(3, 0, 4, 1, 5, 2)
        self.mesh = Mesh(grid.reshape(sizes), MESH_AXES)
        self.own_mesh = Mesh(np.array(self.own_devices).reshape(own), MESH_AXES)
        names = [name for axis in MESH_AXES for name in (axis, f"{axis} of processes")]
        copies = Mesh(grid, names)  # on each process the whole, as `own_mesh` has it

        @jax.jit
        def copy(tree):
            places = jax.tree.map(
                lambda place: NamedSharding(copies, place.spec), shardings(tree, self.own_mesh)
            )
            return jax.lax.with_sharding_constraint(tree, places)

        self._copy = copy

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
        return shardings(state, self.mesh)

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

    def local(self, held: Any) -> Any:
        """Held parameters as this process samples by them: on its first device, or on its mesh.

        They are the held arrays themselves where these lie so; else all processes must call it
        together.
        """
        if self.kind == "mesh":
            return self._on_own_mesh(held)
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, held)

    def current(self, placed: Any) -> Any:
        """A placed state, or part of one, as `local` has held parameters.

        It may share memory with the state: the next update ends its life.
        """
        if self.kind == "pmap":
            return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data[0], placed)
        return self.local(placed)

    def _on_own_mesh(self, tree: Any) -> Any:
        if self.mesh == self.own_mesh:
            return tree

        def own(leaf, place):
            shares = [share.data for share in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, place, shares)

        return jax.tree.map(own, self._copy(tree), shardings(tree, self.own_mesh))

    def rest(self, params: Any) -> Any:
        """Parameters between stages: on the device where there is one, else on the host, so that no
        device holds a whole copy beside its share."""
        if self.kind == "single":
            return jax.device_put(params, self.devices[0])
        return jax.tree.map(np.asarray, params)

    def put(self, params: Any) -> Any:
        """Parameters of the host as `local` has held ones."""
        if self.kind == "mesh":
            return jax.device_put(params, shardings(params, self.own_mesh))
        return jax.device_put(params, self.own_devices[0])

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
        own = np.array([self.devices.index(device) for device in self.own_devices])
        return jax.tree.map(lambda leaf: leaf[own], batch)

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
            places = shardings(state, self.mesh)
            batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch)
            batch = jax.lax.with_sharding_constraint(batch, rows)
            state, metrics = of_shares(state, frozen, batch)
            metrics = jax.lax.with_sharding_constraint(metrics, everywhere)
            return jax.lax.with_sharding_constraint(state, places), metrics

        return update


class SharedObjective:
    """An objective over shares `[shares, rows, ...]`, summed; how a mesh sees one part."""

    def __init__(self, objective: Any, mesh: Mesh):
        self.objective = objective
        self._over_shares = partial(over_shares, in_axes=(None, 0, None), mesh=mesh)

    def counts(self, batch: Any) -> Any:
        """Counts over all shares."""
        return jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(self.objective.counts)(batch))

    def loss_given_counts(self, params: Any, batch: Any, counts: Any) -> Any:
        """Loss and metrics summed over all shares."""
        parts = self._over_shares(self.objective.loss_given_counts)(params, batch, counts)
        return jax.tree.map(lambda leaf: leaf.sum(0), parts)


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process holds whole, laid out by `sharding` over all their devices.

    Each device gets memory of its own, so that donating the result leaves `array` alone.
    """
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: np.array(array[index]), dtype=array.dtype
    )
