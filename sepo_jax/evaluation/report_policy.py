"""The policy section of a report: action tables, for Kuhn poker beside the family of equilibria."""

import math
from collections.abc import Mapping

from . import page, plots
from .nash_family import KUHN_FAMILY, compare_to_kuhn_family, is_kuhn
from .page import Html, number, tag
from .report_sections import STAGE_LABELS, STAGE_ORDER
from .run_data import RunData

_MAX_TABLE_ROWS = 80


def policy_section(run: RunData) -> Html:
    """The action tables; for Kuhn poker beside the family of equilibria."""
    tables = {stage: table for stage, table in run.tables.items() if table}
    if not tables:
        return page.section("policy", "Policy table", "No action table was written yet.")
    order = [s for s in STAGE_ORDER if s in tables] + [s for s in tables if s not in STAGE_ORDER]
    tables = {stage: tables[stage] for stage in order}
    if all(is_kuhn(list(table)) and _two_columns(table) for table in tables.values()):
        return _kuhn_policy_section(tables)
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    rows = [
        [name, *(_probabilities(table.get(name)) for table in tables.values())]
        for name in names[:_MAX_TABLE_ROWS]
    ]
    left = len(names) - len(rows)
    more = f" The first {len(rows)} of {len(names)} sets are shown." if left else ""
    headers = ["Information set", *(STAGE_LABELS.get(s, s) for s in tables)]
    return page.section(
        "policy",
        "Policy table",
        f"Probability of each action, in the game's order, normalised over legal actions.{more}",
        page.table(headers, rows),
    )


def _two_columns(table: Mapping[str, list[float]]) -> bool:
    return all(len(row) == 2 for row in table.values())


def _probabilities(row: list[float] | None) -> Html:
    if row is None:
        return tag("span", "–")
    parts = [number(p, 3) for p in row]
    return page.join(part if i == 0 else page.join([", ", part]) for i, part in enumerate(parts))


_CARDS = {"J": "Jack", "Q": "Queen", "K": "King"}
_HISTORIES = {
    "": "first to act",
    "p": "second, after a check",
    "b": "second, facing a bet",
    "pb": "first, check was bet",
}


def _kuhn_label(name: str) -> str:
    return f"{_CARDS[name[0]]}, {_HISTORIES[name[1:]]}"


def _kuhn_policy_section(tables: Mapping[str, Mapping[str, list[float]]]) -> Html:
    """Kuhn poker: chart and table of P(bet or call) beside the range over all equilibria."""
    comparisons = {
        stage: compare_to_kuhn_family(table)
        for stage, table in tables.items()
        if all(math.isfinite(p) for row in table.values() for p in row)
    }
    chart_rows, rows = [], []
    last = list(comparisons)[-1] if comparisons else None
    for name, (constant, slope) in KUHN_FAMILY.items():
        low, high = constant, constant + slope / 3
        spread = number(low, 3) if low == high else f"{low:.3f} to {high:.3f}"
        shown = {s: t[name][1] for s, t in tables.items() if name in t}
        chart_rows.append(plots.PolicyRow(f"{name}   {_kuhn_label(name)}", low, high, shown))
        cells = [_kuhn_cell(shown.get(stage), low, high) for stage in tables]
        nearest = (
            number(comparisons[last].rows[name].nearest, 3)
            if name in _rows(comparisons, last)
            else "–"
        )
        rows.append([name, _kuhn_label(name), spread, *cells, nearest])
    headers = ["Set", "Situation", "Equilibria"]
    headers += [STAGE_LABELS.get(s, s) for s in tables]
    headers.append(f"Equilibrium nearest to {STAGE_LABELS.get(last, last or 'none')}")
    distances = [
        [STAGE_LABELS.get(s, s), number(c.alpha, 3), number(c.root_mean_square, 4)]
        for s, c in comparisons.items()
    ]
    chart = plots.policy_chart(
        chart_rows, title="Policy beside the equilibria", label="probability of bet or call"
    )
    return page.section(
        "policy",
        "Policy table",
        "Probability of betting or calling at each of the 12 information sets, exact from the "
        "policy's token probabilities and normalised over the two legal actions. Green: the range "
        "over the family of equilibria (alpha, the jack's bet, from 0 to 1/3). Red numbers lie "
        "outside by the amount in brackets.",
        page.figure(chart, ""),
        page.table(headers, rows, classes=["", "w", "n", *["n"] * len(tables), "n"]),
        tag("h3", "Distance to the nearest equilibrium"),
        page.table(
            ["Stage", "alpha of the nearest", "Root mean square difference of probabilities"],
            distances,
            classes=["", "n", "n"],
        ),
        tag(
            "p",
            "Inside every range is not yet an equilibrium: the free sets must agree on one alpha. "
            "These are distances of probabilities; what they cost is the NashConv above.",
            class_="muted",
        ),
    )


def _rows(comparisons: Mapping, stage: str | None) -> Mapping:
    return comparisons[stage].rows if stage else {}


def _kuhn_cell(probability: float | None, low: float, high: float) -> Html:
    """A probability, red with its distance when outside the range by more than a percent."""
    if probability is None:
        return tag("span", "–")
    outside = max(low - probability, probability - high, 0.0)
    if not math.isfinite(probability) or outside <= 0.01:
        return number(probability, 3)
    sign = "+" if probability > high else "−"
    return tag("span", f"{probability:.3f} ({sign}{outside:.3f})", class_="off")
