"""The policy section of a report: action tables, for Kuhn poker beside the family of equilibria."""

import math
from collections.abc import Mapping

from ..games.kuhn import KUHN
from . import page, plots
from .nash_family import FamilyComparison, compare_to_kuhn_family, is_kuhn, kuhn_ranges
from .page import Html, number, tag
from .policy_table import nash_conv_of_table, table_from_named
from .report_baselines import by_stage, in_order
from .report_sections import STAGE_LABELS
from .run_data import RunData

Table = Mapping[str, list[float]]

_MAX_TABLE_ROWS = 80


def policy_section(run: RunData) -> Html:
    """The action tables; for Kuhn poker beside the family of equilibria."""
    tables = {
        stage: table
        for stage, table in run.tables.items()
        if table and not _is_uniform(table)  # its row says nothing that its name does not
    }
    if not tables:
        return page.section("policy", "Policy table", "No action table was written yet.")
    tables = in_order(tables)
    if all(is_kuhn(list(table)) and _two_columns(table) for table in tables.values()):
        return _kuhn_policy_section(run, tables)
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


def _is_uniform(table: Mapping[str, list[float]]) -> bool:
    return all(max(row) == min(row) for row in table.values())


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


def _kuhn_policy_section(run: RunData, tables: Mapping[str, Table]) -> Html:
    """Kuhn poker: chart and table of P(bet or call) beside the range over all equilibria."""
    return page.section(
        "policy",
        "Policy table",
        "Probability of betting or calling at each of the 12 information sets, exact from the "
        "policy's token probabilities and normalised over the two legal actions. Green: the range "
        "over the family of equilibria (alpha, the jack's bet, from 0 to 1/3). Red numbers lie "
        "outside by the amount in brackets.",
        page.figure(_kuhn_chart(tables), ""),
        _kuhn_table(tables),
        tag("h3", "What the deviations cost"),
        _kuhn_costs(run, tables),
        tag(
            "p",
            "Inside every range is not yet an equilibrium: the free sets must agree on one alpha. "
            "Distance: root mean square difference of probabilities to the nearest member of the "
            "family. NashConv is recomputed here from the table and set beside the run's own.",
            class_="muted",
        ),
    )


def _kuhn_chart(tables: Mapping[str, Table]) -> str:
    rows = []
    for name, (low, high) in kuhn_ranges().items():
        shown = {stage: table[name][1] for stage, table in tables.items() if name in table}
        rows.append(plots.PolicyRow(f"{_kuhn_label(name)} ({name})", low, high, shown))
    return plots.policy_chart(
        rows, title="Policy beside the equilibria", label="probability of bet or call"
    )


def _kuhn_table(tables: Mapping[str, Table]) -> Html:
    """One line an information set; the last column is the equilibrium nearest to the last stage."""
    trained = [stage for stage in tables if stage not in ("best_known", "untrained")]
    last = (trained or list(tables))[-1]
    comparison = _comparison(tables[last])
    rows = []
    for name, (low, high) in kuhn_ranges().items():
        spread = number(low, 3) if low == high else f"{low:.3f} to {high:.3f}"
        cells = [_kuhn_cell(t[name][1] if name in t else None, low, high) for t in tables.values()]
        known = comparison is not None and name in comparison.rows
        nearest = number(comparison.rows[name].nearest, 3) if known else "–"
        rows.append([name, _kuhn_label(name), spread, *cells, nearest])
    headers = ["Set", "Situation", "Equilibria", *(STAGE_LABELS.get(s, s) for s in tables)]
    headers.append(f"Equilibrium nearest to {STAGE_LABELS.get(last, last)}")
    return page.table(headers, rows, classes=["", "w", "n", *["n"] * len(tables), "n"])


def _kuhn_costs(run: RunData, tables: Mapping[str, Table]) -> Html:
    """For each stage: NashConv of its table, agreement with the run's figure, distance, alpha."""
    figures = by_stage(run.summary)
    rows = []
    for stage, table in tables.items():
        comparison = _comparison(table)
        try:
            rows_given = table_from_named(KUHN, table, missing="error").table
            cost = float(nash_conv_of_table(KUHN, rows_given))
        except ValueError as error:
            rows.append([STAGE_LABELS.get(stage, stage), "–", tag("span", error), "–", "–"])
            continue
        of, _, game = stage.partition("/")
        stated = figures.get(of, {}).get(f"{game}/nash_conv" if game else "nash_conv")
        agrees: Html | str = "not stated"
        if stated is not None:
            same = abs(stated - cost) <= 1e-3
            agrees = (
                tag("span", "agrees", class_="ok")
                if same
                else tag("span", page.join(["the run says ", number(stated)]), class_="off")
            )
        distance = number(comparison.root_mean_square) if comparison else "–"
        alpha = number(comparison.alpha, 3) if comparison else "–"
        rows.append([STAGE_LABELS.get(stage, stage), number(cost), agrees, distance, alpha])
    headers = ["Stage", "NashConv of this table", "Summary", "Distance", "alpha of the nearest"]
    return page.table(headers, rows, classes=["", "n", "", "n", "n"])


def _comparison(table: Table) -> FamilyComparison | None:
    """The table beside the family, None when its rows are no probabilities."""
    try:
        return compare_to_kuhn_family(table)
    except ValueError:
        return None


def _kuhn_cell(probability: float | None, low: float, high: float) -> Html:
    """A probability, red with its distance when outside the range by more than a percent."""
    if probability is None:
        return tag("span", "–")
    outside = max(low - probability, probability - high, 0.0)
    if not math.isfinite(probability) or outside <= 0.01:
        return number(probability, 3)
    sign = "+" if probability > high else "−"
    return tag("span", f"{probability:.3f} ({sign}{outside:.3f})", class_="off")
