"""What a dry run found, whether it fits a chip, and what to change when it does not."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from .chips import GIB, Chip
from .hlo import Work
from .settings import Settings

if TYPE_CHECKING:
    from .dry_run_sizes import Sizes


@dataclasses.dataclass(frozen=True)
class Row:
    """One compiled function; bytes and work of one chip.

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

    @property
    def total(self) -> int:
        """Bytes on a chip while the function runs; a lower bound for a refused one."""
        if self.error is not None:
            return self.resident + max(self.arguments, self.needed or 0)
        own = self.arguments + self.outputs - self.aliased + self.temporaries + self.code
        return self.resident + own

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


@dataclasses.dataclass(frozen=True)
class Report:
    """A dry run.

    Attributes:
      rows: one for each function.
      chip: what the device can do, or None for a device without entry.
      num_chips: of the run.
      kind: "single", "pmap" or "mesh".
      settings, sizes: what was compiled.
      num_parameters: of the policy.
      state_bytes: what a chip holds between steps: parameters, optimizer state, and the reference
        policy where it is another copy.
      num_trained: parameters that are trained; None for all.
      frozen_bytes: of the parameters that are not, whole.
    """

    rows: tuple[Row, ...]
    chip: Chip | None
    num_chips: int
    kind: str
    settings: Settings
    sizes: "Sizes"
    num_parameters: int
    state_bytes: int
    num_trained: int | None = None
    frozen_bytes: int = 0

    @property
    def fits(self) -> bool | None:
        """Whether everything that the training loop runs fits; None for an unknown device."""
        if self.chip is None:
            return None
        return all(row.fits(self.chip) for row in self.rows if "sharded" not in row.name)

    def advice(self) -> list[str]:
        """What to change, one line for each function that does not fit."""
        if self.chip is None:
            return []
        lines = []
        for row in self.rows:
            if row.fits(self.chip) or "sharded" in row.name:
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
        whole = 4 * self.num_parameters
        if row.name in ("fuse", "score") or whole > 0.5 * chip.memory:
            changes.append(
                f"chips with more memory: generation holds the parameters, {whole / GIB:.1f} GiB "
                "in float32, whole on one chip"
            )
        if row.name in ("prefill", "decode") and rollout.slots > 1:
            changes.append(f"rollout.slots={max(rollout.slots // 2, 1)} halves the cache")
        if row.name == "score":
            changes.append(f"optimizer.micro_batches={2 * settings.optimizer.micro_batches}")
        return changes


def _power_of_two(value: float) -> int:
    power = 1
    while power < value:
        power *= 2
    return power


def render(report: Report) -> str:
    """The report as text: memory, work, collectives, verdict."""
    sizes = report.sizes
    chip = report.chip.name if report.chip else "device without entry"
    memory = f", {report.chip.memory / GIB:.2f} GiB each" if report.chip else ""
    lines = [
        f"{report.num_chips} x {chip}{memory}; parallel.kind={report.kind}; "
        f"{report.num_parameters / 1e6:,.1f} M parameters{_trained(report)}, training state "
        f"{_gib(report.state_bytes)} GiB a chip",
        f"rows {sizes.rows} of {sizes.row_length} tokens, {sizes.actions} of them actions; "
        f"{report.settings.optimizer.micro_batches} micro-batches; "
        f"{report.settings.rollout.slots} slots of {sizes.capacity} tokens",
        "",
        "GiB on each chip",
        *_memory_table(report),
        "",
        "Work of one run on each chip (prefill: one call; decode: one token in every slot)",
        *_work_table(report),
        "",
        "Collectives of one run on each chip",
        *_collective_table(report),
        "",
    ]
    verdict = {True: "fits", False: "does not fit", None: "no memory size known"}[report.fits]
    lines.append(f"verdict: {verdict}")
    lines += [f"  {line}" for line in report.advice()]
    if any("sharded" in row.name for row in report.rows):
        lines.append(
            "rows marked sharded leave the parameters on the mesh; the training loop generates on "
            "one chip, so they do not enter the verdict"
        )
    return "\n".join(lines)


def _trained(report: Report) -> str:
    if report.num_trained in (None, report.num_parameters):
        return ""
    return f" of which {report.num_trained / 1e6:,.1f} M are trained"


def _memory_table(report: Report) -> list[str]:
    header = (
        "function", "chips", "arguments", "outputs", "aliased", "temporaries", "code",
        "resident", "total", "fits",
    )  # fmt: skip
    table = [header]
    for row in report.rows:
        kinds = [row.arguments, row.outputs, row.aliased, row.temporaries, row.code]
        cells = [_gib(value) for value in kinds]
        if row.error is not None:
            cells[1:] = ["?"] * 4
        fits = "-" if report.chip is None else "yes" if row.fits(report.chip) else "NO"
        more = ">" if row.error is not None else ""
        total = more + _gib(row.total)
        table.append((row.name, str(row.chips), *cells, _gib(row.resident), total, fits))
    return _align(table)


def _work_table(report: Report) -> list[str]:
    table = [
        (
            "function", "TFLOP", "GB", "XLA's TFLOP", "XLA's GB", "products ms", "memory ms",
            "links ms", "least ms",
        )
    ]  # fmt: skip
    for row in report.rows:
        if row.work is None:
            table.append((row.name, *["?"] * 8))
            continue
        times = ["-"] * 4
        if report.chip is not None:
            found = least_times(row.work, report.chip)
            times = [f"{1e3 * value:.3g}" for value in (*found, found.least)]
        numbers = (
            row.work.flops / 1e12,
            row.work.num_bytes / 1e9,
            row.counted_flops / 1e12,
            row.counted_bytes / 1e9,
        )
        table.append((row.name, *(f"{number:.3g}" for number in numbers), *times))
    return _align(table)


def _collective_table(report: Report) -> list[str]:
    table = [("function", "kind", "count", "GB")]
    for row in report.rows:
        for kind, found in (row.work.collectives if row.work else {}).items():
            table.append((row.name, kind, str(found.count), f"{found.num_bytes / 1e9:.3g}"))
    return _align(table) if len(table) > 1 else ["none"]


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.3g}" if num_bytes < 100 * GIB else f"{num_bytes / GIB:.0f}"


def _align(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
