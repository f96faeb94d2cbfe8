"""Claims of papers beside what was measured: findings, the verdict they come to, one row each.

A claim comes to `Finding`s: quantities with their intervals, some of which decide. The verdict is

    "holds"           every finding that decides has its whole interval on the claimed side
    "fails"           one of them has its whole interval on the other side
    "undecided"       neither: an interval that crosses its bound refutes nothing
    "not comparable"  one of them has no interval (a single seed, say), or the claim says what is
                      missing for it to be measured

so it follows from the numbers alone.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..names import check_option, did_you_mean
from .files import locked
from .results import rows_of, write_result
from .statistics import Interval

VERDICTS = ("holds", "fails", "undecided", "not comparable")
HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE = VERDICTS
SIDES = ("above", "below", "shown")
COLUMNS = ("claim", "published", "ours", "seeds", "verdict", "command", "commit", "seconds")
_SIGNS = {"above": ">", "below": "<"}


class Finding(NamedTuple):
    """A measured quantity, and the side of a bound that a claim puts it on.

    Attributes:
      name: what it is, with its unit where it has one.
      found: its value with its interval.
      side: "above" or "below" the bound as a whole; or "shown": it decides nothing.
      bound: of the side.
    """

    name: str
    found: Interval
    side: str = "shown"
    bound: float = 0.0

    @property
    def decides(self) -> bool:
        """Whether the verdict depends on it."""
        return check_option("side of a finding", self.side, SIDES) != "shown"

    @property
    def known(self) -> bool:
        """Whether its interval is finite."""
        return math.isfinite(self.found.low) and math.isfinite(self.found.high)

    @property
    def met(self) -> bool:
        """Whether the whole interval lies where the claim puts it, without the bound itself."""
        return self.found.low > self.bound if self.side == "above" else self.found.high < self.bound

    @property
    def refuted(self) -> bool:
        """Whether the whole interval lies elsewhere, at the bound or beyond it."""
        if self.side == "above":
            return self.found.high <= self.bound
        return self.found.low >= self.bound

    def __str__(self) -> str:
        text = f"{self.name} {self.found.mean:.3g}"
        if not self.known:
            text += " (no interval)"
        elif self.found.low < self.found.high:
            text += f" [{self.found.low:.3g}, {self.found.high:.3g}]"
        if not self.decides:
            return text
        word = "yes" if self.met else "no" if self.refuted else "open"
        word = word if self.known else "unknown"
        return f"{text} ({_SIGNS[self.side]} {self.bound:g}: {word})"


def verdict(findings: Sequence[Finding], missing: str = "") -> str:
    """One of `VERDICTS`, by the rule of the module.

    Args:
      findings: what was measured.
      missing: what a claim lacks to be measured; "" for nothing.

    Raises:
      ValueError: nothing is missing and no finding decides.
    """
    if missing:
        return NOT_COMPARABLE
    deciding = [finding for finding in findings if finding.decides]
    if not deciding:
        raise ValueError("no finding of this claim decides; give one of them a side and a bound")
    if not all(finding.known for finding in deciding):
        return NOT_COMPARABLE
    if any(finding.refuted for finding in deciding):
        return FAILS
    return HOLDS if all(finding.met for finding in deciding) else UNDECIDED


def select_claims(wanted: str, known: Mapping[str, Any]) -> list[str]:
    """Names of the claims that `wanted` means: one, or "<family>/all".

    Raises:
      ValueError: no such claim or family, with the nearest name.
    """
    families = dict.fromkeys(name.partition("/")[0] for name in known)
    every = [f"{family}/all" for family in families]
    if wanted in every:
        return [name for name in known if name.startswith(wanted.removesuffix("all"))]
    if wanted not in known:
        hint = did_you_mean(wanted, [*known, *every])
        raise ValueError(f"unknown claim {wanted!r}.{hint} Allowed: {', '.join([*known, *every])}.")
    return [wanted]


def claim_row(
    name: str,
    published: str,
    findings: Sequence[Finding],
    *,
    missing: str = "",
    seeds: Sequence[int],
    command: str,
    commit: str,
    seconds: float,
) -> dict[str, Any]:
    """A row of the results table by its `COLUMNS`.

    Args:
      name: of the claim. published: what its paper says.
      findings, missing: as in `verdict`.
      seeds, command, commit, seconds: what was run, and for how long.
    """
    found = [*([missing] if missing else []), *map(str, findings)]
    cells = (
        name,
        published,
        "; ".join(found),
        ", ".join(map(str, seeds)),
        verdict(findings, missing),
        command,
        commit[:12],
        round(seconds, 1),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def merge_rows(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]],
    heading: Mapping[str, Any],
    order: Sequence[str],
) -> Path:
    """Puts rows into a results file (see `results`); rows of other claims stay.

    The file is locked from reading to writing, so that two writers lose nothing, and replaced as a
    whole.

    Args:
      path: the file, made where it is absent.
      rows: of `claim_row`.
      heading: "title", "command", "versions" and "notes" of the file.
      order: names of claims in their order; a row of a claim that is no longer named is dropped.

    Raises:
      ValueError: the file there is no results file of claims.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        old = [dict(zip(COLUMNS, row, strict=True)) for row in rows_of(path, COLUMNS)]
        merged = {row["claim"]: dict(row) for row in [*old, *rows]}
        kept = [merged[name] for name in order if name in merged]
        commits = {row["commit"] for row in kept}
        seeds = {int(seed) for row in kept for seed in row["seeds"].split(", ") if seed}
        result = {
            "title": heading["title"],
            "command": heading["command"],
            "seeds": sorted(seeds),
            "commit": commits.pop() if len(commits) == 1 else "several",
            "versions": dict(heading["versions"]),
            "columns": list(COLUMNS),
            "rows": [[row[column] for column in COLUMNS] for row in kept],
            "notes": heading["notes"],
        }
        return write_result(path, result)
