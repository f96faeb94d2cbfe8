"""The match section of a report, from evaluation.json as experiments/evaluate.py writes it."""

from collections.abc import Mapping
from typing import Any

from . import page
from .page import Html, number, tag
from .run_data import RunData, to_number

COLUMNS = {
    "pool": "Pool",
    "opponent": "Opponent",
    "episodes": "Episodes",
    "own": "Own payoff",
    "interval": "95% interval",
    "opponent_payoff": "Opponent's payoff",
    "harmful_rate": "Harmful",
    "legal_rate": "Legal",
    "exact": "Exact own payoff",
    "uniform": "Exact, uniform play",
}


def matches_section(run: RunData) -> Html:
    """Match play by opponent, and the sampled NashConv beside the exact one."""
    evaluation = run.evaluation
    if not evaluation:
        return page.section(
            "matches",
            "Match play",
            "No evaluation.json yet: experiments/evaluate.py --run=<this directory> plays matches "
            "against every pool and writes it.",
        )
    return page.section(
        "matches",
        "Match play",
        "Episodes played through text against scripted opponents. Payoffs are means a round in the "
        "game's unit; the interval speaks of sampling error over episodes only. Exact: expected "
        "payoff of the policy's action table against the same opponent, illegal replies left out; "
        "beside it that of uniform play.",
        *_games(evaluation),
    )


def _games(evaluation: Mapping[str, Any]) -> list[Html]:
    """Table and sampled NashConv, of every game where there are several."""
    games = evaluation.get("games")
    if not isinstance(games, Mapping):
        return [match_table(evaluation.get("matches")), _sampled(evaluation)]
    parts = []
    for name, record in games.items():
        known = record if isinstance(record, Mapping) else {}
        parts += [tag("h3", name), match_table(known.get("matches")), _sampled(known)]
    return parts


def match_table(rows: Any) -> Html:
    """One line an opponent; anything that is no list of rows gives a sentence."""
    rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    if not rows:
        return tag("p", "No matches were played.", class_="muted")
    rows = [{**row, "interval": _interval(row)} for row in rows]
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    classes = ["" if key in ("pool", "opponent") else "n" for key in keys]
    body = [[_cell(row.get(key)) for key in keys] for row in rows]
    return page.table([COLUMNS[key] for key in keys], body, classes=classes)


def _interval(row: Mapping[str, Any]) -> Html | None:
    low, high = to_number(row.get("low", "")), to_number(row.get("high", ""))
    if low is None or high is None:
        return None
    return page.join(["[", number(low, 3), ", ", number(high, 3), "]"])


def _cell(value: Any) -> Html:
    return tag("span", "–") if value is None else number(value)


def _sampled(evaluation: Mapping[str, Any]) -> Html:
    """The two NashConv figures, and whether the interval holds the exact one."""
    sampled = evaluation.get("sampled_nash_conv")
    exact = to_number(evaluation.get("nash_conv", ""))
    if not isinstance(sampled, Mapping) or exact is None:
        return Html("")
    low, high = to_number(sampled.get("low")), to_number(sampled.get("high"))
    inside = low is not None and high is not None and low <= exact <= high
    verdict = tag("span", "inside", class_="ok") if inside else tag("span", "outside", class_="off")
    return tag(
        "p",
        "Sampled NashConv against the exact best response: ",
        number(to_number(sampled.get("mean"))),
        " [",
        number(low),
        ", ",
        number(high),
        f"] from {sampled.get('count', '?')} hands; the exact value ",
        number(exact),
        " lies ",
        verdict,
        " this interval.",
    )
