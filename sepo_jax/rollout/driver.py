"""Two loops over the slots of one or more devices, both fed by one host queue.

`host_loop`: a loop in Python for each device exchanges with the queue and calls a compiled piece
for each kind of command there is. `in_jit`: the whole loop is one program a device, which reaches
the queue through a callback. Same pure functions, same keys, same tokens.

Parameters that lie on a mesh are decoded with there, by one host loop for all of its devices.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ..names import check_option
from ..policy import Policy, Sampling
from ..policy.sharding import mesh_of, on_mesh
from ..sandbox.episodes import StopRules
from ..sandbox.exchange import (
    FAILED,
    RUNNING,
    Chunks,
    Commands,
    ExchangeShape,
    Report,
    no_commands,
    no_report,
)
from . import engine
from .weights import assembled, decoding_forms, distinct

DRIVERS = ("host_loop", "in_jit")
WHOLE_SOFTMAX = Sampling()
_LOOK = 0.2  # seconds between two looks of the main thread, which signals interrupt


@dataclass(frozen=True)
class EngineOptions:
    """Sizes of the engine, how it samples and what drives it.

    Attributes:
      slots: contexts of each policy decoded at once on a device, or on all of a mesh together.
      capacity: tokens that a slot has room for, beside the last one of its context.
      max_action_tokens: token limit of an action.
      exchange_interval: most tokens a slot samples between two visits of the host.
      sampling: temperature and truncation.
      prefill_widths, prefill_rows: sizes of prefill calls, see `ExchangeShape`.
      driver: "host_loop" or "in_jit".
      devices: that decode, each with slots of its own; 1 for a mesh.
      max_turns, max_episode_tokens: of an episode, which is cut there; 0 for no limit.
      max_failed_fraction: share of failed episodes above which a rollout is given up.

    Raises:
      ValueError: sizes below 1 or that do not fit each other, an unknown driver.
    """

    slots: int = 64
    capacity: int = 512
    max_action_tokens: int = 8
    exchange_interval: int = 4
    sampling: Sampling = WHOLE_SOFTMAX
    prefill_widths: tuple[int, ...] = (16, 32, 64, 128)
    prefill_rows: int = 1
    driver: str = "host_loop"
    devices: int = 1
    max_turns: int = 0
    max_episode_tokens: int = 0
    max_failed_fraction: float = 0.5

    def __post_init__(self):
        object.__setattr__(self, "prefill_widths", tuple(self.prefill_widths))
        names = ("slots", "capacity", "max_action_tokens", "exchange_interval", "prefill_rows")
        for name in (*names, "devices"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1 on, got {value!r}")
        check_option("driver", self.driver, DRIVERS)
        if self.max_action_tokens > self.capacity:
            raise ValueError(
                f"max_action_tokens={self.max_action_tokens} do not fit in capacity="
                f"{self.capacity}; raise the capacity, which holds prompt and action together"
            )
        if not 0 <= self.max_failed_fraction <= 1:
            raise ValueError(
                f"max_failed_fraction must be in [0, 1], got {self.max_failed_fraction}"
            )
        self.exchange_shape()
        self.stop_rules()

    def stop_rules(self) -> StopRules:
        """When the host cuts an action or an episode."""
        return StopRules(
            action_tokens=self.max_action_tokens,
            capacity=self.capacity,
            turns=self.max_turns,
            episode_tokens=self.max_episode_tokens,
        )

    def exchange_shape(self) -> ExchangeShape:
        """Sizes of an exchange with the host."""
        return ExchangeShape(
            slots=self.slots,
            interval=self.exchange_interval,
            widths=self.prefill_widths,
            rows=self.prefill_rows,
        )


def drive(
    policies: Sequence[tuple[Policy, chex.ArrayTree]], queue: Any, options: EngineOptions
) -> None:
    """Runs the slots of all policies until the queue says that nothing is left.

    Interrupts and signals are heeded meanwhile: they stop the queue, and go on up once the loops
    have ended.

    Args:
      policies: (policy, params); each has `options.slots` slots on every device. Where parameters
        lie on a mesh (`policy.sharding`), those of all policies do, and the slots lie there too.
      queue: a `sandbox.queue.HostQueue`, or whatever has its `exchange`, `stop` and `raise_error`.
        It hands out fresh arrays at every exchange and takes calls from one thread a device.
      options: sizes, sampling and the kind of loop.

    Raises:
      ValueError: more devices than there are, a capacity beyond a policy's positions, a mesh with
        another driver than "host_loop" or with several `devices`.
      BaseException: what stopped the queue.
    """
    mesh = mesh_of([params for _, params in policies])
    if mesh is not None:
        check_on_mesh(options)
    devices = jax.local_devices()[: options.devices]
    if len(devices) < options.devices:
        raise ValueError(
            f"devices={options.devices}, but this process has {len(devices)}; lower it, or on CPU "
            "set XLA_FLAGS=--xla_force_host_platform_device_count before jax starts"
        )
    for policy, _ in policies:
        if options.capacity > policy.config.max_positions:
            raise ValueError(
                f"capacity={options.capacity} exceeds the policy's "
                f"{policy.config.max_positions} positions; lower it"
            )
    parts = tuple(policy for policy, _ in policies)
    with on_mesh(mesh):
        arrays, layout = distinct(decoding_forms(policies))
    if mesh is not None:
        loops = [partial(_run_host_loop, parts, arrays, layout, queue, options, 0, mesh)]
    elif options.driver == "in_jit":
        loops = [partial(_run_in_jit, parts, arrays, layout, queue, options, devices)]
    else:
        loops = [
            partial(_run_host_loop, parts, arrays, layout, queue, options, index, device)
            for index, device in enumerate(devices)
        ]
    if options.driver == "host_loop" and len(loops) == 1:
        # Not in a thread of its own: what that one frees, the next would not use again.
        _guarded(loops[0], queue)
    else:
        _run_beside(loops, queue)
    queue.raise_error()


def check_on_mesh(options: EngineOptions) -> None:
    """Raises ValueError for options that do not go with parameters on a mesh."""
    if options.driver != "host_loop" or options.devices != 1:
        raise ValueError(
            f"driver={options.driver!r} with devices={options.devices} wants whole parameters on "
            "each device, and on a mesh they are split: set rollout.driver='host_loop' and "
            "rollout.devices=1, whose slots all devices of the mesh share, or parallel.kind='pmap'"
        )


def _guarded(function: Callable[[], None], queue: Any) -> None:
    try:
        function()
    except BaseException as error:
        queue.stop(error)


def _run_beside(functions: Sequence[Callable[[], None]], queue: Any) -> None:
    """Runs blocking functions in threads of their own, so that signals reach the caller's."""
    threads = [
        threading.Thread(target=_guarded, args=(each, queue), daemon=True) for each in functions
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK)
    except BaseException as error:
        queue.stop(error)
        for thread in threads:
            if thread.is_alive():
                thread.join()
        raise


# ---- host loop


def _run_host_loop(
    policies, arrays, layout, queue, options: EngineOptions, index: int, place
) -> None:
    """The loop of a device, or of a mesh."""
    on_one = isinstance(place, jax.Device)
    with jax.default_device(place) if on_one else on_mesh(place):
        params = assembled(jax.device_put(arrays, place) if on_one else arrays, layout)
        states = [_init_slots(policy, options.slots, options.capacity) for policy in policies]
        # Bound to the device from the start, as later states are: one program for both.
        states = jax.device_put(states, place) if on_one else states
        engines = [_Slots(*each, options) for each in zip(policies, params, states, strict=True)]
        del states
        _exchange_until_done(engines, queue, options, index)


def _exchange_until_done(engines: Sequence["_Slots"], queue, options, index: int) -> None:
    reports = tuple(no_report(options.exchange_shape()) for _ in engines)
    while True:
        commands = queue.exchange(index, reports)
        if any(each.code != RUNNING for each in commands):
            return
        # All are under way before the first is waited for.
        sampled = [slots.advance(each) for slots, each in zip(engines, commands, strict=True)]
        reports = tuple(jax.device_get(sampled))
        for slots, report in zip(engines, reports, strict=True):
            slots.absorb(report)


class _Slots:
    """The slots of one policy on one device or mesh, and the compiled pieces that they need.

    Attributes:
      state: the slots.
      lengths: int [S], tokens in each slot's cache; decoding: bool [S]. As in `state`, so that
        looking there need not wait for the device.
    """

    def __init__(self, policy: Policy, params, state: engine.SlotState, options: EngineOptions):
        self.policy, self.params, self.state, self.options = policy, params, state, options
        self.reaches = engine.reaches(options.capacity)
        self.nothing = no_report(options.exchange_shape())
        self.lengths = np.zeros(options.slots, np.int64)
        self.decoding = np.zeros(options.slots, bool)

    def advance(self, commands: Commands) -> Report:
        """Carries out commands and decodes; a report that may still be on its way."""
        stopped = commands.halt | commands.clear
        if stopped.any():
            self.state = _halt_and_clear(self.state, commands.halt, commands.clear)
            self.decoding &= ~stopped
            self.lengths[commands.clear] = 0
        for chunks in reversed(commands.chunks):
            if chunks.calls:
                self._prefill(chunks)
        if commands.fork_count:
            self._fork(commands.fork_count, commands.forks)
        if commands.start.any():
            self.state = _start(
                self.state, commands.start, commands.pending, commands.keys, commands.limit
            )
            self.decoding |= commands.start
        return self._decode() if self.decoding.any() else self.nothing

    def absorb(self, report: Report) -> None:
        """Takes note of a report of `advance` that has arrived."""
        self.lengths += report.count
        self.decoding = report.decoding.copy()

    def _prefill(self, chunks: Chunks) -> None:
        used = chunks.lengths > 0
        np.add.at(self.lengths, chunks.slots[used], chunks.lengths[used])
        reach = self._reach(self.lengths[chunks.slots[used]].max())
        self.state = _prefill(self.policy, self.params, self.state, chunks, reach)

    def _fork(self, count: np.ndarray, forks: np.ndarray) -> None:
        self.state = _fork(self.state, count, forks)
        for source, target, length in forks[:count]:
            kept = self.lengths[source]
            self.lengths[target] = kept if length < 0 else min(kept, length)

    def _decode(self) -> Report:
        interval = self.options.exchange_interval
        self.state, report = _decode(
            self.policy,
            self.params,
            self.state,
            self.options.sampling,
            self.policy.end_ids,
            interval,
            self._reach(self.lengths[self.decoding].max() + interval),
        )
        return report

    def _reach(self, longest: int) -> int:
        return next((reach for reach in self.reaches if reach >= longest), self.reaches[-1])


_init_slots = jax.jit(engine.init_slots, static_argnums=(0, 1, 2))
_halt_and_clear = jax.jit(engine.halt_and_clear, donate_argnums=0)
_prefill = jax.jit(engine.prefill, static_argnums=(0, 4), donate_argnums=2)
_fork = jax.jit(engine.fork, donate_argnums=0)
_start = jax.jit(engine.start, donate_argnums=0)
_decode = jax.jit(engine.decode, static_argnums=(0, 3, 4, 5, 6), donate_argnums=2)


# ---- one program a device

_QUEUES: dict[int, tuple[Any, ExchangeShape]] = {}  # of running programs, by number
_NUMBERS = itertools.count()


def _run_in_jit(policies, arrays, layout, queue, options: EngineOptions, devices) -> None:
    number = next(_NUMBERS)
    _QUEUES[number] = queue, options.exchange_shape()
    try:
        program = loop_program(policies, layout, options, tuple(devices))
        indices = np.arange(len(devices), dtype=np.int32)
        index = indices if len(devices) > 1 else indices[0]
        jax.block_until_ready(program(arrays, np.int32(number), index))
    finally:
        del _QUEUES[number]


@functools.lru_cache(maxsize=8)
def loop_program(
    policies: tuple[Policy, ...], layout: Any, options: EngineOptions, devices: tuple
) -> Callable:
    """The compiled loop `program(arrays, number, index)` on each of `devices`.

    Arrays and their layout are those of `weights.distinct`. The queue is looked up by its number,
    so that programs serve many; the index is the device's, int32 [devices] of several.
    """
    loop = partial(_loop, policies, layout, options)
    if len(devices) > 1:
        return jax.pmap(loop, in_axes=(None, None, 0), devices=devices)
    return jax.jit(loop)


def _loop(policies, layout, options: EngineOptions, arrays, number, device) -> chex.Array:
    params = assembled(arrays, layout)
    shape = options.exchange_shape()
    reaches = engine.reaches(options.capacity)
    nothing = tuple(no_commands(shape) for _ in policies)
    # Flat: lowering for several TPUs gives every result of a callback the rank of the first.
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct((array.size,), array.dtype), nothing)

    def runs(carry):
        _, commands = carry
        return jnp.stack([each.code == RUNNING for each in commands]).all()

    def turn(carry):
        states, commands = carry
        after, reports = [], []
        for policy, part, state, each in zip(policies, params, states, commands, strict=True):
            state = engine.apply(policy, part, state, each)
            state, report = engine.decode(
                policy,
                part,
                state,
                options.sampling,
                policy.end_ids,
                options.exchange_interval,
                reaches,
            )
            after.append(state)
            reports.append(report)
        flat = io_callback(_exchange, shapes, number, device, tuple(reports))
        return tuple(after), jax.tree.map(lambda got, as_: got.reshape(as_.shape), flat, nothing)

    states = tuple(
        engine.init_slots(policy, options.slots, options.capacity) for policy in policies
    )
    _, commands = jax.lax.while_loop(runs, turn, (states, jax.tree.map(jnp.asarray, nothing)))
    return commands[0].code


def _exchange(number, device, reports: Sequence[Report]) -> tuple[Commands, ...]:
    """The callback, with flat results: whatever goes wrong stops the queue and ends the loop by its
    code."""
    queue, shape = _QUEUES[int(number)]
    try:
        commands = queue.exchange(int(device), jax.tree.map(np.asarray, reports))
    except BaseException as error:
        queue.stop(error)
        failed = no_commands(shape)._replace(code=np.array(FAILED, np.int32))
        commands = (failed,) * len(reports)
    return jax.tree.map(np.ravel, commands)
