"""What a dry run found, whether it fits a chip, and what to change when it does not."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from .chips import GIB, Chip
from .hlo import Work
from .settings import Settings

if TYPE_CHECKING:
    from .dry_run_sizes import Sizes


PARTS = ("update", "score", "generate")  # of what training runs
# Of a chip's memory while a function runs: the policy's parameters (frozen ones, those of the
# reference, whole copies and decoding forms among them), the optimizer's moments, keys and values
# of the slots, the batch of the update, what the compiler keeps meanwhile (gradients among it), and
# the rest: programs, outputs, padding of layouts.
KINDS = ("parameters", "optimizer", "cache", "batch", "activations", "other")


@dataclasses.dataclass(frozen=True)
class Row:
    """One function; bytes and work of one chip.

    Attributes:
      name: of the function.
      chips: it runs on.
      resident: bytes of the training state that stay on the chip meanwhile and are no argument.
      arguments, outputs, aliased, temporaries, code: bytes by XLA's memory analysis; aliased ones
        are outputs that take the place of arguments.
      work: what it does, or None when it was refused.
      counted_flops, counted_bytes: XLA's cost analysis, which counts the body of a loop once.
      error: why the compiler refused it, or None.
      needed: bytes that the refusal names, or None.
      kinds: of `KINDS` the first four: bytes of arguments and of what else stays there.
      seconds: of CPU that its compilation took.
    """

    name: str
    chips: int
    resident: int = 0
    arguments: int = 0
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    code: int = 0
    work: Work | None = None
    counted_flops: float = 0.0
    counted_bytes: float = 0.0
    error: str | None = None
    needed: int | None = None
    kinds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Bytes on a chip while the function runs; a lower bound for a refused one."""
        if self.error is not None:
            return self.resident + max(self.arguments, self.needed or 0)
        own = self.arguments + self.outputs - self.aliased + self.temporaries + self.code
        return self.resident + own

    @property
    def by_kind(self) -> dict[str, int]:
        """`total` by `KINDS`; of a refused function "activations" is all that is not known."""
        found = {kind: self.kinds.get(kind, 0) for kind in KINDS}
        rest = self.total - sum(found.values())
        found["activations"] = rest if self.error is not None else self.temporaries
        found["other"] = self.total - sum(found.values())
        return found

    def fits(self, chip: Chip) -> bool:
        """Whether it compiled and a chip has the memory."""
        return self.error is None and self.total <= chip.memory


class Times(NamedTuple):
    """Least seconds of one run by what limits it: products, main memory, links between chips."""

    products: float
    memory: float
    links: float

    @property
    def least(self) -> float:
        """The longest of the three, as if they overlapped wholly."""
        return max(self)


def least_times(work: Work, chip: Chip) -> Times:
    """Roofline: work over the chip's published peaks.

    A collective's bytes cross the links once, an all-reduce's twice (scatter, then gather).
    """
    crossing = sum(
        found.num_bytes * (2 if kind == "all-reduce" else 1)
        for kind, found in work.collectives.items()
    )
    return Times(work.passes / chip.flops, work.num_bytes / chip.bandwidth, crossing / chip.links)


def widest_prefill(settings: Settings, sizes: "Sizes") -> int:
    """Tokens of a row of the widest prefill call that a slot has room for."""
    return min(max(settings.rollout.prefill_widths), sizes.capacity)


def decoding_calls(settings: Settings, sizes: "Sizes", num_hosts: int) -> dict[str, int]:
    """How often each function of generation runs in a step, where every slot has work."""
    rollout = settings.rollout
    loops = rollout.devices * num_hosts
    width = widest_prefill(settings, sizes)
    return {
        "fuse": int(sizes.sampled > 0),
        "decode": -(-sizes.sampled // (rollout.slots * loops)),
        "prefill": -(-sizes.given // (rollout.prefill_rows * width * loops)),
    }


@dataclasses.dataclass(frozen=True)
class Report:
    """A dry run.

    Attributes:
      rows: one for each function.
      chip: what the device can do, or None for a device without entry.
      num_chips: of the run. num_hosts: that they belong to; each plays its share of the episodes.
      kind: "single", "pmap" or "mesh".
      settings, sizes: what was compiled.
      num_parameters: of the policy.
      state_bytes: what a chip holds between steps: parameters, optimizer state, and the reference
        policy where it is another copy.
      num_trained: parameters that are trained; None for all.
      frozen_bytes: of the parameters that are not, whole.
      estimated: nothing was compiled; the numbers are `estimate`'s.
      parts: of `PARTS`, what was looked at.
    """

    rows: tuple[Row, ...]
    chip: Chip | None
    num_chips: int
    kind: str
    settings: Settings
    sizes: "Sizes"
    num_parameters: int
    state_bytes: int
    num_hosts: int = 1
    num_trained: int | None = None
    frozen_bytes: int = 0
    estimated: bool = False
    parts: tuple[str, ...] = PARTS

    @property
    def is_whole(self) -> bool:
        """Whether everything that training runs was looked at."""
        return set(PARTS) <= set(self.parts)

    @property
    def whole_bytes(self) -> int:
        """The parameters as generation has them, before their decoding form."""
        trained = self.num_parameters if self.num_trained is None else self.num_trained
        return self.frozen_bytes + 4 * trained

    @property
    def fits(self) -> bool | None:
        """Whether everything that was looked at fits; None for an unknown device."""
        if self.chip is None:
            return None
        return all(row.fits(self.chip) for row in self.rows)

    def step_times(self) -> dict[str, float] | None:
        """Least seconds of a step by phase: "generate", "score", "update".

        The roofline of each function times how often it runs. None for an unknown device, and where
        the compiler refused a function that runs or was not asked.
        """
        if self.chip is None or not self.is_whole:
            return None
        optimizer = self.settings.optimizer
        updates = optimizer.updates_per_batch if self.sizes.sampled else 1
        runs = decoding_calls(self.settings, self.sizes, self.num_hosts)
        runs |= {"score": 1, "update": updates}
        phases = dict.fromkeys(("generate", "score", "update"), 0.0)
        for row in self.rows:
            if not runs.get(row.name):
                continue
            if row.work is None:
                return None
            phase = row.name if row.name in phases else "generate"
            phases[phase] += runs[row.name] * least_times(row.work, self.chip).least
        return phases

    def advice(self) -> list[str]:
        """What to change, one line for each function that does not fit."""
        if self.chip is None:
            return []
        lines = []
        for row in self.rows:
            if row.fits(self.chip):
                continue
            changes = self._for_update() if row.name == "update" else self._for_generation(row)
            lines.append(f"{row.name}: " + "; ".join(changes))
        return lines

    def _for_update(self) -> list[str]:
        settings, chip = self.settings, self.chip
        changes = []
        trained = self.num_parameters if self.num_trained is None else self.num_trained
        # Parameters, two moments and the gradient of what is trained.
        whole = 16 * trained + self.frozen_bytes
        held = self.state_bytes * whole / (whole - 4 * trained)
        if held > 0.8 * chip.memory:
            if settings.policy.lora_rank == 0:
                changes.append("policy.lora_rank=16 trains adapters beside frozen parameters")
            wanted = _power_of_two(whole / (0.5 * chip.memory))
            now = settings.parallel.fsdp * settings.parallel.tensor if self.kind == "mesh" else 1
            if now < wanted <= self.num_chips:
                changes.append(
                    f"parallel.kind=mesh parallel.fsdp={wanted}: parameters, moments and gradient "
                    f"are {whole / GIB:.1f} GiB in all and {held / GIB:.1f} GiB on each chip"
                )
            else:
                changes.append(
                    f"a slice of {wanted} chips or more, or chips with more memory, with "
                    f"parallel.kind=mesh parallel.fsdp={wanted}: parameters, moments and gradient "
                    f"are {whole / GIB:.1f} GiB in all"
                )
        if settings.policy.remat == "none":
            changes.append("policy.remat=layer stores a layer's input instead of its inside")
        if settings.policy.compute_dtype == "float32":
            changes.append("policy.compute_dtype=bfloat16 halves activations")
        micro = settings.optimizer.micro_batches
        share = -(-self.sizes.rows // (self.num_chips * micro))
        if share > 1:
            changes.append(
                f"optimizer.micro_batches={2 * micro}: {share} rows at a time on each chip"
            )
        elif self.sizes.row_length > 256:
            changes.append(f"rollout.row_length below {self.sizes.row_length}")
        return changes

    def _for_generation(self, row: Row) -> list[str]:
        settings, chip = self.settings, self.chip
        rollout, changes = settings.rollout, []
        if self.kind != "mesh" and self.state_bytes > 0.5 * chip.memory and self.num_chips > 1:
            changes.append(
                f"parallel.kind=mesh with parallel.fsdp up to {self.num_chips}: "
                f"{self.state_bytes / GIB:.1f} GiB of training state stay on the chip meanwhile"
            )
        if settings.policy.compute_dtype == "float32":
            changes.append("policy.compute_dtype=bfloat16 halves the decoding form")
        share = self.whole_bytes / (row.chips if self.kind == "mesh" else 1)
        if row.name in ("fuse", "score") or share > 0.5 * chip.memory:
            more = " or more chips to a host" if self.kind == "mesh" else ""
            changes.append(
                f"chips with more memory{more}: generation and scoring hold {share / GIB:.1f} GiB "
                "of parameters on each"
            )
        if row.name in ("prefill", "decode", "loop") and rollout.slots > 1:
            changes.append(f"rollout.slots={max(rollout.slots // 2, 1)} halves the cache")
        if row.name == "score":
            changes.append(f"optimizer.micro_batches={2 * settings.optimizer.micro_batches}")
        return changes


def _power_of_two(value: float) -> int:
    power = 1
    while power < value:
        power *= 2
    return power
