"""What a report shows of branching rollouts: a line for each tree that was kept, and their page."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from . import page
from .page import Html, number, tag
from .run_data import RunData, to_number

TREES = "trees.html"


def trees_section(run: RunData) -> Html:
    """Leaves, branch points, returns and shared tokens of the trees, and a link to their page."""
    headers = ["Stage", "Step", "Leaves", "Branch points", "Return", "Tokens", "As separate leaves"]
    return page.section(
        "trees",
        "Trees",
        "At steps of evaluation, the trees of the prompt whose returns differ most. Return: mean "
        "over the branches at the prompt, of each likewise. Tokens: of all segments once, and as "
        "often as leaves hold them.",
        tag("p", tag("a", "The trees with their texts, returns and advantages", href=TREES)),
        page.table(headers, map(_row, run.trees), classes=["", *["n"] * 6]),
    )


def _row(record: Mapping[str, Any]) -> list[Any]:
    segments, tokens = record["segments"], record["tokens"]
    below = Counter(segment["parent"] for segment in segments if segment["parent"] >= 0)
    roots = [to_number(segment["return"]) for segment in segments if segment["parent"] < 0]
    return [
        str(record.get("stage", "")),
        number(record.get("step")),
        len(record["leaves"]),
        sum(count > 1 for count in below.values()),
        number(sum(roots) / len(roots)),
        number(tokens["once"]),
        number(tokens["per_leaf"]),
    ]
