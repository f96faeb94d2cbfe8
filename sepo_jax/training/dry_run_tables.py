"""A dry run's report as text."""

from .chips import GIB
from .dry_run_report import KINDS, Report, least_times

ESTIMATE = (
    "ESTIMATE by arithmetic: nothing was compiled. Parameters, optimizer, cache and batch are the "
    "shapes of the run; products, activations, traffic and collectives are formulas of `estimate`."
)


def render(report: Report) -> str:
    """The report as text: memory, work, collectives, verdict."""
    sizes = report.sizes
    chip = report.chip.name if report.chip else "device without entry"
    memory = f", {report.chip.memory / GIB:.2f} GiB each" if report.chip else ""
    lines = [ESTIMATE, ""] if report.estimated else []
    lines += [
        f"{report.num_chips} x {chip}{memory}; parallel.kind={report.kind}; "
        f"{report.num_parameters / 1e6:,.1f} M parameters{_trained(report)}, training state "
        f"{_gib(report.state_bytes)} GiB a chip",
        f"rows {sizes.rows} of {sizes.row_length} tokens, {sizes.actions} of them actions; "
        f"{report.settings.optimizer.micro_batches} micro-batches; "
        f"{report.settings.rollout.slots} slots of {sizes.capacity} tokens",
        "",
        "GiB on each chip by kind; activations: all that is made meanwhile, gradients among it",
        *_kinds_table(report),
        "",
        *_compiled_memory(report),
        "Work of one run on each chip (prefill: one call; decode: one token in every slot)",
        *_work_table(report),
        "",
        "Collectives of one run on each chip",
        *_collective_table(report),
        "",
        _step(report),
    ]
    verdict = {True: "fits", False: "does not fit", None: "no memory size known"}[report.fits]
    alone = "" if report.is_whole else f", of {' and '.join(report.parts)} alone"
    lines.append(f"verdict: {verdict}{alone}")
    lines += [f"  {line}" for line in report.advice()]
    return "\n".join(lines)


def _trained(report: Report) -> str:
    if report.num_trained in (None, report.num_parameters):
        return ""
    return f" of which {report.num_trained / 1e6:,.1f} M are trained"


def _kinds_table(report: Report) -> list[str]:
    table = [("function", "chips", *KINDS, "total", "fits")]
    for row in report.rows:
        cells = [_gib(value) for value in row.by_kind.values()]
        fits = "-" if report.chip is None else "yes" if row.fits(report.chip) else "NO"
        more = ">" if row.error is not None else ""
        if row.error is not None:
            cells[KINDS.index("activations")] = more + cells[KINDS.index("activations")]
        table.append((row.name, str(row.chips), *cells, more + _gib(row.total), fits))
    return _align(table)


def _compiled_memory(report: Report) -> list[str]:
    """The same memory as the compiler names it; nothing where nothing was compiled."""
    if report.estimated:
        return []
    header = (
        "function", "arguments", "outputs", "aliased", "temporaries", "code", "resident",
    )  # fmt: skip
    table = [header]
    for row in report.rows:
        kinds = [row.arguments, row.outputs, row.aliased, row.temporaries, row.code]
        cells = [_gib(value) for value in kinds]
        if row.error is not None:
            cells[1:] = ["?"] * 4
        table.append((row.name, *cells, _gib(row.resident)))
    return ["The same as XLA counts it, GiB", *_align(table), ""]


def _step(report: Report) -> str:
    """The roofline of a whole step in a line."""
    times = report.step_times()
    if times is None:
        return "least time of a step: not known"
    parts = ", ".join(f"{phase} {value:.3g}" for phase, value in times.items())
    sizes = report.sizes
    return (
        f"least time of a step: {sum(times.values()):.3g} s ({parts}) at published peaks, with "
        f"{sizes.sampled:,} tokens sampled and {sizes.given:,} given, every slot at work"
    )


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
        numbers = [row.work.flops / 1e12, row.work.num_bytes / 1e9]
        cells = [f"{number:.3g}" for number in numbers]
        counted = [row.counted_flops / 1e12, row.counted_bytes / 1e9]
        cells += ["-" if report.estimated else f"{number:.3g}" for number in counted]
        table.append((row.name, *cells, *times))
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
