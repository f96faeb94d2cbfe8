"""Compiles a run's update and generation from shapes alone and reports what they would need.

Nothing is materialised: parameters, optimizer state, batch and cache are shapes. The compiled
functions are those of the training loop, laid out over the given devices by the config's
`parallel` section; the devices may be those of a TPU slice that is not there
(`chips.describe_topology`).
"""

import dataclasses
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..algorithms import Algorithm
from ..forest import Batch, bucket
from ..forest.batch import LAYOUT
from ..names import check_option
from ..objective import make_objective
from ..policy import Policy, Sampling
from ..rollout import engine
from ..rollout.driver import check_on_mesh, loop_program
from ..rollout.weights import distinct
from ..sandbox.exchange import Chunks
from .batches import score_parts
from .chips import Chip, chip_of, num_hosts
from .dry_run_report import PARTS, Report, Row, widest_prefill
from .dry_run_shapes import Placed, bytes_per_chip, count, run_shapes
from .dry_run_sizes import Sizes, default_sizes
from .hlo import read_work
from .parallel import MESH_AXES, Parallel
from .settings import Settings
from .setup import engine_options
from .update import as_objective, make_update

_PREFILL = jax.jit(engine.prefill, static_argnums=0, donate_argnums=2)
_DECODE = jax.jit(engine.decode, static_argnums=(0, 3, 4, 5, 6), donate_argnums=2)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def dry_run(
    settings: Settings,
    devices: Sequence[jax.Device],
    sizes: Sizes | None = None,
    *,
    goal: Any = None,
    chip: Chip | None = None,
    parts: Sequence[str] = PARTS,
) -> Report:
    """Compiles update, scoring and generation for `devices`; see the module.

    Args:
      settings: the whole config.
      devices: of a topology, or of this machine.
      sizes: of the data; `default_sizes` when None.
      goal: an own Algorithm or loss in place of the config's algorithm.
      chip: what a device can do; looked up when None.
      parts: of `PARTS`, what is compiled.

    Returns:
      Report: a row for each function. A function that the compiler refuses for want of memory is a
      row that says so.

    Raises:
      ValueError: unknown options, sizes that contradict each other.
    """
    for part in parts:
        check_option("part", part, PARTS)
    sizes = sizes or default_sizes(settings)
    parallel = Parallel(settings.parallel, devices)
    shapes = run_shapes(settings, goal)
    placed = Placed(shapes, parallel)
    if placed.mesh is not None:
        check_on_mesh(engine_options(settings, Sampling()))
    compiler = _Compiler(placed, sizes)
    rows = [compiler.update()] if "update" in parts else []
    rows += compiler.scoring() if "score" in parts else []
    rows += compiler.generation() if "generate" in parts else []
    return Report(
        rows=tuple(rows),
        chip=chip or chip_of(parallel.devices[0]),
        num_chips=parallel.num_devices,
        num_hosts=num_hosts(parallel.devices),
        kind=parallel.kind,
        settings=settings,
        sizes=sizes,
        num_parameters=count(shapes.params),
        num_trained=count(shapes.trained),
        frozen_bytes=bytes_per_chip(shapes.frozen),
        state_bytes=placed.state_bytes,
        parts=tuple(parts),
    )


class _Compiler:
    """Lowers each function from shapes laid out as the training loop lays them out."""

    def __init__(self, placed: Placed, sizes: Sizes):
        self.placed, self.sizes = placed, sizes
        self.shapes, self.parallel = placed.shapes, placed.parallel
        self.settings, self.policy = self.shapes.settings, self.shapes.policy
        tpu = self.parallel.devices[0].platform == "tpu"
        self.compile_row = partial(compile_row, tpu=tpu)

    def update(self) -> Row:
        """The update of a step over all chips."""
        goal = self.shapes.goal
        if isinstance(goal, Algorithm):
            temperature = self.settings.rollout.temperature
            goal = make_objective(goal, self.policy, temperature=temperature)
        function = self.parallel.mapped_update(
            lambda objective: make_update(objective, self.shapes.optimizer),
            as_objective(goal, self.policy),
        )
        parallel, lead = self.parallel, self._lead
        sharding = None
        if parallel.kind == "mesh":
            sharding = NamedSharding(parallel.mesh, PartitionSpec(MESH_AXES))
        batch = batch_shapes(self.sizes, lead, sharding)
        arguments = (self.placed.state, self.placed.held, batch)
        # Shapes of a batch, and of a pmap's state, carry the axis of devices.
        own = bytes_per_chip(batch) // (1 if parallel.kind == "mesh" else parallel.num_devices)
        row, _ = self.compile_row(
            "update",
            parallel.num_devices,
            function,
            arguments,
            kinds=self.placed.kinds | {"batch": own},
            resident=self.placed.reference_bytes,
        )
        return row

    @property
    def _lead(self) -> tuple[int, int]:
        return self.parallel.num_devices, self.settings.optimizer.micro_batches

    def scoring(self) -> list[Row]:
        """Scores under the reference policy, or the critic's values, where the algorithm asks."""
        if not self.shapes.scores:
            return []
        devices, parts = self._lead
        batch = batch_shapes(self.sizes, (devices, parts), None)
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((devices * parts, *leaf.shape[2:]), leaf.dtype), batch
        )
        params = self.placed.put(self.shapes.params)
        arguments = (self.policy, params, batch, jnp.float32(1.0))
        kinds = self.placed.kinds_with_copy
        resident = sum(kinds.values()) - bytes_per_chip(params)
        kinds = kinds | {"batch": bytes_per_chip(batch)}
        with self.placed.set_mesh():
            row, _ = self.compile_row(
                "score", self.placed.chips, score_parts, arguments, kinds=kinds, resident=resident
            )
        return [row]

    def generation(self) -> list[Row]:
        """Parameters into decoding form, one prefill call of the widest width, and one token in
        every slot. Where roles have adapters of their own it is one role's policy that decodes, and
        the slots of the others stay beside it."""
        settings, sizes, placed = self.settings, self.sizes, self.placed
        rollout, chips = settings.rollout, placed.chips
        policy, whole, fuse = placed.decoder()
        params = placed.put(whole)
        # Beside the functions' arguments; the parameters are that of the first.
        kinds = placed.kinds_with_copy
        resident = sum(kinds.values())
        compiled = partial(self.compile_row, resident=resident - bytes_per_chip(params))
        with placed.set_mesh():
            row, _ = compiled("fuse", chips, jax.jit(fuse), (params,), kinds=kinds)
        fused = placed.put(jax.eval_shape(fuse, whole))
        kinds = kinds | {"parameters": kinds["parameters"] + bytes_per_chip(fused)}
        rows = [dataclasses.replace(row, kinds=kinds)]
        state = placed.slots(policy, sizes.capacity)
        chunks = _chunk_shapes(rollout.prefill_rows, widest_prefill(settings, sizes))

        def call(name, function, *arguments):
            own, others = bytes_per_chip(state), self.policy.num_adapters - 1
            with placed.set_mesh():
                row, _ = self.compile_row(
                    name,
                    chips,
                    function,
                    (policy, fused, state, *arguments),
                    kinds=kinds | {"cache": (1 + others) * own},
                    resident=resident + others * own,
                )
            rows.append(row)

        call("prefill", _PREFILL, chunks)
        sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        call("decode", _DECODE, sampling, policy.end_ids, 1, sizes.capacity)
        if rollout.driver == "in_jit":
            rows.append(self._loop(policy, fused, sampling, kinds))
        return rows

    def _loop(self, policy: Policy, fused: Any, sampling: Sampling, kinds: Mapping) -> Row:
        """The whole loop of generation with its callback as one program on the devices that decode;
        the slots are its own, so keys and values are among its temporaries."""
        options = engine_options(self.settings, sampling)
        devices = tuple(self.parallel.devices[: options.devices])
        policies = (policy,) * self.policy.num_adapters
        arrays, layout = distinct((fused,) * len(policies))
        if len(devices) > 1:  # a pmap lays them out itself
            arrays = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays]
        index = jax.ShapeDtypeStruct((len(devices),) if len(devices) > 1 else (), jnp.int32)
        program = loop_program(policies, layout, options, devices)
        arguments = (arrays, jax.ShapeDtypeStruct((), jnp.int32), index)
        resident = sum(kinds.values()) - bytes_per_chip(arrays)
        return self.compile_row(
            "loop", len(devices), program, arguments, kinds=kinds, resident=resident
        )[0]


def batch_shapes(sizes: Sizes, lead: tuple[int, int], sharding: Any) -> Batch:
    """Shapes of a batch `[devices, parts, rows, ...]` of the update.

    Args:
      sizes: rows are those over all devices and parts.
      lead: number of devices, and of micro-batches on each.
      sharding: of every array, or None.
    """
    numbers = {
        "B": bucket(-(-sizes.rows // (lead[0] * lead[1]))),
        "T": bucket(sizes.row_length),
        "A": bucket(sizes.actions),
        "S": bucket(sizes.segments),
        "Q": bucket(max(sizes.segments - 1, 1)),
    }
    return Batch(
        **{
            name: jax.ShapeDtypeStruct(
                (*lead, numbers["B"], *(numbers[axis] for axis in axes)), dtype, sharding=sharding
            )
            for name, (axes, dtype, _) in LAYOUT.items()
        }
    )


def compile_row(
    name: str,
    chips: int,
    function: Callable,
    arguments: tuple,
    *,
    kinds: Mapping[str, int] | None = None,
    resident: int = 0,
    tpu: bool = False,
) -> tuple[Row, Any]:
    """Compiles and reads a function; the row, and the compiled function or None.

    Args:
      name: of the row.
      chips: that it runs on.
      function: has `lower`.
      arguments: shapes, and static arguments.
      kinds: bytes on a chip by kind, of arguments and of what else stays there.
      resident: bytes of these that are no argument.
      tpu: whether it is compiled for a TPU.
    """
    before = time.process_time()
    try:
        compiled, text = _compile(function.lower(*arguments), tpu)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        own = sum(kinds.values()) - resident if kinds else bytes_per_chip(arguments)
        needed = memory_of_error(str(error))
        row = Row(name, chips, resident, arguments=own, error=str(error), needed=needed)
        seconds = time.process_time() - before
        return dataclasses.replace(row, kinds=kinds or {}, seconds=seconds), None
    seconds = time.process_time() - before
    memory = compiled.memory_analysis()
    counted = compiled.cost_analysis() or {}
    read = memory.argument_size_in_bytes
    kinds = dict(kinds or {})
    # Of a batch a program gets what it reads; all else stays on the chip, read or not.
    batch = kinds.pop("batch", 0)
    held = sum(kinds.values()) - resident
    kinds["batch"] = min(batch, max(read - held, 0))
    row = Row(
        name,
        chips,
        resident + max(held - read, 0),
        kinds=kinds,
        seconds=seconds,
        arguments=read,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        work=read_work(text),
        counted_flops=counted.get("flops", 0.0),
        counted_bytes=counted.get("bytes accessed", 0.0),
    )
    return row, compiled


def _compile(lowered: Any, tpu: bool) -> tuple[Any, str]:
    """The compiled program and its HLO text."""
    if not tpu:
        compiled = lowered.compile()
        return compiled, compiled.as_text()
    # jaxlib cannot read back every instruction of a TPU's program; libtpu writes them all.
    with tempfile.TemporaryDirectory() as directory:
        options = {"xla_dump_to": directory, "xla_dump_hlo_as_text": True}
        compiled = lowered.compile(compiler_options=options)
        written = sorted(Path(directory).glob("*.after_optimizations.txt"))
        return compiled, written[-1].read_text() if written else compiled.as_text()


def memory_of_error(message: str) -> int | None:
    """Bytes that a refused program needs, as the compiler's message says; None if it does not."""
    for pattern in (r"\(([\d.]+)([KMGT]?)\) exceeds", r"Used ([\d.]+)([KMGT]?) of"):
        match = re.search(pattern, message)
        if match:
            return int(float(match.group(1)) * _UNITS[match.group(2)])
    return None


def _chunk_shapes(rows: int, width: int) -> Chunks:
    """Shapes of the chunks of one prefill call."""
    shapes = Chunks(calls=(), tokens=(1, rows, width), lengths=(1, rows), slots=(1, rows))
    return Chunks(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes))
