"""Compiles a run's update and generation from shapes alone and reports what they would need.

Nothing is materialised: parameters, optimizer state, batch and cache are shapes. The compiled
functions are those of the training loop, laid out over the given devices by the config's
`parallel` section; the devices may be those of a TPU slice that is not there
(`chips.describe_topology`).
"""

import dataclasses
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..algorithms import Algorithm, get_algorithm
from ..forest import Batch, bucket
from ..forest.batch import LAYOUT
from ..objective import make_objective
from ..policy import Policy, Sampling
from ..policy.lora import apart
from ..rollout import engine
from ..rollout.weights import shared_form
from ..sandbox.exchange import Chunks
from .batches import score_parts
from .chips import Chip, chip_of
from .dry_run_report import Report, Row
from .dry_run_sizes import Sizes, default_sizes
from .goals import configured_algorithm
from .hlo import read_work
from .parallel import MESH_AXES, Parallel, state_shardings
from .settings import PolicySettings, Settings
from .setup import make_domain, model_config, role_policy
from .trainable import begin_stage, reference_part, split
from .update import as_objective, init_state, make_optimizer, make_update

_PREFILL = jax.jit(engine.prefill, static_argnums=0, donate_argnums=2)
_DECODE = jax.jit(engine.decode, static_argnums=(0, 3, 4, 5, 6), donate_argnums=2)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def shape_policy(settings: PolicySettings) -> Policy:
    """The policy's functions without tokenizer and parameters; errors as `setup.model_config`.

    Of a directory only config.json is read.
    """
    return Policy(model_config(settings), end_ids=(0,))


def dry_run(
    settings: Settings,
    devices: Sequence[jax.Device],
    sizes: Sizes | None = None,
    *,
    goal: Any = None,
    chip: Chip | None = None,
    generation: bool = True,
) -> Report:
    """Compiles update, scoring and generation for `devices`; see the module.

    Args:
      settings: the whole config.
      devices: of a topology, or of this machine.
      sizes: of the data; `default_sizes` when None.
      goal: an own Algorithm or loss in place of the config's algorithm.
      chip: what a device can do; looked up when None.
      generation: whether generation is compiled, and not update and scoring alone.

    Returns:
      Report: a row for each function. A function that the compiler refuses for want of memory is a
      row that says so.

    Raises:
      ValueError: unknown options, sizes that contradict each other.
    """
    sizes = sizes or default_sizes(settings)
    parallel = Parallel(settings.parallel, devices)
    policy = shape_policy(settings.policy)
    if settings.policy.adapters != "shared":
        policy = role_policy(settings, policy, make_domain(settings.domain))
    params = jax.eval_shape(
        lambda key: begin_stage(policy.config, policy.init(key), key), jax.random.key(0)
    )
    if goal is None:
        learns = _last_stage(settings) is not settings.sft
        goal = configured_algorithm(settings) if learns else get_algorithm("sft")
    compiler = _Compiler(settings, parallel, policy, params, sizes, goal)
    rows = [compiler.update()]
    rows += compiler.scoring()
    if generation:
        rows += compiler.generation(spread=False)
    if generation and parallel.kind == "mesh" and parallel.mesh.size > parallel.mesh.shape["data"]:
        rows += compiler.generation(spread=True)
    return Report(
        rows=tuple(rows),
        chip=chip or chip_of(parallel.devices[0]),
        num_chips=parallel.num_devices,
        kind=parallel.kind,
        settings=settings,
        sizes=sizes,
        num_parameters=_count(params),
        num_trained=_count(compiler.trained),
        frozen_bytes=_bytes_per_chip(compiler.frozen),
        state_bytes=compiler.state_bytes,
    )


def _last_stage(settings: Settings) -> Any:
    """The section of the stage that a run ends with."""
    return next((part for part in (settings.rl, settings.sepo) if part.steps), settings.sft)


class _Compiler:
    """Lowers each function from shapes laid out as the training loop lays them out."""

    def __init__(self, settings, parallel, policy, params, sizes, goal):
        self.settings, self.parallel, self.policy = settings, parallel, policy
        self.params, self.sizes, self.goal = params, sizes, goal
        self.compile_row = partial(compile_row, tpu=parallel.devices[0].platform == "tpu")
        numbers = _last_stage(settings)
        self.optimizer = make_optimizer(
            settings.optimizer,
            numbers.learning_rate,
            numbers.warmup_steps,
            max(numbers.steps, 1),
            numbers.final_learning_rate,
        )
        self.frozen, self.trained = split(policy.config, params)
        state = jax.eval_shape(partial(init_state, optimizer=self.optimizer), self.trained)
        self.state, self.held = self._place_state(state), self._hold(self.frozen)
        reference = {}
        if isinstance(goal, Algorithm) and goal.kl_weight:
            reference = self._hold(reference_part(policy.config, self.trained))
        self.reference_bytes = _bytes_per_chip(reference)
        lead = parallel.num_devices if parallel.kind == "pmap" else 1
        self.state_bytes = (
            _bytes_per_chip(self.state) // lead + _bytes_per_chip(self.held) + self.reference_bytes
        )
        # Whole parameters on the first chip, apart from what it holds of the training state.
        self.copied_bytes = 0
        if parallel.kind == "pmap":
            self.copied_bytes = _bytes_per_chip(self.trained)
        elif parallel.kind == "mesh" and parallel.mesh.size > parallel.mesh.shape["data"]:
            self.copied_bytes = _bytes_per_chip(params)

    def update(self) -> Row:
        """The update of a step over all chips."""
        goal = self.goal
        if isinstance(goal, Algorithm):
            temperature = self.settings.rollout.temperature
            goal = make_objective(goal, self.policy, temperature=temperature)
        function = self.parallel.mapped_update(
            lambda objective: make_update(objective, self.optimizer),
            as_objective(goal, self.policy),
        )
        parallel, lead = self.parallel, self._lead
        sharding = None
        if parallel.kind == "mesh":
            sharding = NamedSharding(parallel.mesh, PartitionSpec(MESH_AXES))
        batch = batch_shapes(self.sizes, lead, sharding)
        arguments = (self.state, self.held, batch)
        row, _ = self.compile_row(
            "update", parallel.num_devices, function, arguments, resident=self.reference_bytes
        )
        if parallel.kind == "pmap" and row.error:
            # Shapes of a pmap carry the axis of devices; a chip holds one of them.
            held = _bytes_per_chip(self.held)
            own = (row.arguments - held) // parallel.num_devices + held
            row = dataclasses.replace(row, arguments=own)
        return row

    @property
    def _lead(self) -> tuple[int, int]:
        return self.parallel.num_devices, self.settings.optimizer.micro_batches

    def scoring(self) -> list[Row]:
        """Scores under the reference policy, or the critic's values, where the algorithm asks."""
        goal = self.goal
        wanted = isinstance(goal, Algorithm) and (goal.kl_weight or goal.baseline == "critic")
        if not wanted:
            return []
        devices, parts = self._lead
        batch = batch_shapes(self.sizes, (devices, parts), None)
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((devices * parts, *leaf.shape[2:]), leaf.dtype), batch
        )
        arguments = (self.policy, self._on_first(self.params), batch, jnp.float32(1.0))
        resident = self.state_bytes + self.copied_bytes - _bytes_per_chip(self.params)
        return [self.compile_row("score", 1, score_parts, arguments, resident=resident)[0]]

    def generation(self, spread: bool) -> list[Row]:
        """Parameters into decoding form, one prefill call of the widest width, and one token in
        every slot. Where roles have adapters of their own it is one role's policy that decodes, and
        the slots of the others stay beside it.

        Args:
          spread: leave the parameters as the mesh holds them, instead of whole on the first chip.
        """
        settings, sizes, policy = self.settings, self.sizes, self.policy
        rollout, suffix = settings.rollout, ", sharded" if spread else ""
        chips = self.parallel.num_devices if spread else 1
        fuse, whole, roles = policy.fuse, self.params, policy.num_adapters
        if roles > 1:
            config, _ = apart(policy.config, {})
            whole = jax.eval_shape(lambda given: apart(self.policy.config, given)[1][0], whole)
            policy = dataclasses.replace(policy, config=config)
            fuse = partial(shared_form, policy)
        params = self._hold(whole) if spread else self._on_first(whole)
        # Beside the functions' arguments; the parameters are that of the first.
        resident = self.state_bytes + (0 if spread else self.copied_bytes)
        compiled = partial(self.compile_row, resident=resident - _bytes_per_chip(params))
        row, program = compiled(f"fuse{suffix}", chips, jax.jit(fuse), (params,))
        fused = jax.eval_shape(fuse, whole)
        if program is not None:
            fused = jax.tree.map(_with_sharding, fused, program.output_shardings)
        elif not spread:
            fused = self._on_first(fused)
        else:
            fused = jax.tree.map(_with_sharding, fused, state_shardings(fused, self.parallel.mesh))
        rows = [row]
        state = jax.eval_shape(partial(engine.init_slots, policy, rollout.slots, sizes.capacity))
        resident += (roles - 1) * _bytes_per_chip(state)
        compiled = partial(self.compile_row, resident=resident)
        chunks = _chunk_shapes(
            rollout.prefill_rows, min(max(rollout.prefill_widths), sizes.capacity)
        )
        row, program = compiled(f"prefill{suffix}", chips, _PREFILL, (policy, fused, state, chunks))
        rows.append(row)
        if program is not None:
            state = jax.tree.map(_with_sharding, state, engine.SlotState(*program.output_shardings))
        sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
        arguments = (policy, fused, state, sampling, policy.end_ids, 1, sizes.capacity)
        rows.append(compiled(f"decode{suffix}", chips, _DECODE, arguments)[0])
        return rows

    def _on_first(self, tree: Any) -> Any:
        sharding = SingleDeviceSharding(self.parallel.devices[0])
        return jax.tree.map(lambda leaf: _with_sharding(leaf, sharding), tree)

    def _place_state(self, state: Any) -> Any:
        if self.parallel.kind == "pmap":
            lead = (self.parallel.num_devices,)
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), state
            )
        return self._hold(state)

    def _hold(self, params: Any) -> Any:
        """Shapes laid out as `Parallel.hold` does; a pmap lays them out itself."""
        if self.parallel.kind == "pmap":
            return params
        if self.parallel.kind == "mesh":
            return jax.tree.map(_with_sharding, params, state_shardings(params, self.parallel.mesh))
        return self._on_first(params)


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
    resident: int = 0,
    tpu: bool = False,
) -> tuple[Row, Any]:
    """Compiles and reads a function; the row, and the compiled function or None.

    Args:
      name: of the row.
      chips: that it runs on.
      function: has `lower`.
      arguments: shapes, and static arguments.
      resident: bytes that stay on the chip meanwhile and are no argument.
      tpu: whether it is compiled for a TPU.
    """
    try:
        compiled, text = _compile(function.lower(*arguments), tpu)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        shapes = _bytes_per_chip(arguments)
        needed = memory_of_error(str(error))
        return Row(name, chips, resident, arguments=shapes, error=str(error), needed=needed), None
    memory = compiled.memory_analysis()
    counted = compiled.cost_analysis() or {}
    row = Row(
        name,
        chips,
        resident,
        arguments=memory.argument_size_in_bytes,
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


def _with_sharding(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _bytes_per_chip(tree: Any) -> int:
    total = 0
    for leaf in jax.tree.leaves(tree):
        if not hasattr(leaf, "dtype"):
            continue
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
        total += int(np.prod(shape)) * leaf.dtype.itemsize
    return total


def _count(params: chex.ArrayTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
