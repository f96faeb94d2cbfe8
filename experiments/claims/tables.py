"""Claims that are read from the results of whole runs, experiments/results/sepo_<domain>.json.

`experiments/sweep.py` writes those files; a domain whose file or column is not there is named as
missing, and so is one of a single seed, which has no interval.
"""

from pathlib import Path

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import load_result
from sepo_jax.evaluation.statistics import Interval, seed_interval

from .base import Measured, Panel
from .bench import Bench, differences

DOMAINS = ("ipd", "auction", "negotiation_v1", "negotiation_v2", "kuhn")
DOMAINS_CLAIMED = 4
STAGES = ("base", "SFT", "SEPO")
_ADVICE = "run python experiments/sweep.py --config=configs/sepo/{}.py --write"


def column(results: Path, domain: str, heading: str) -> list[float] | str:
    """A column of a domain's results, a value for each seed; or why none can be compared."""
    path = results / f"sepo_{domain}.json"
    if not path.is_file():
        return f"no {path.name} ({_ADVICE.format(domain)})"
    result = load_result(path)
    if heading not in result["columns"]:
        return f"{path.name} has no column {heading!r}"
    place = result["columns"].index(heading)
    # A row of means has text in place of a seed.
    values = [float(row[place]) for row in result["rows"] if isinstance(row[0], int)]
    if len(values) < 2:
        return f"{path.name} has {len(values)} seed, and an interval needs two"
    return values


def columns(results: Path, domain: str, headings: dict[str, str]) -> dict[str, list[float]] | str:
    """Label -> column of a heading, for all labels; or why one of them cannot be compared."""
    found = {}
    for label, heading in headings.items():
        values = column(results, domain, heading)
        if isinstance(values, str):
            return values
        found[label] = values
    return found


def safety_above_base(bench: Bench) -> Measured:
    """Counts the domains in which safety after SEPO is above that of the base on all of the
    interval of the difference.

    The claim holds with four domains or more. Of domains that are missing none is counted; while
    they could still decide the count, there is nothing to compare.
    """
    findings, panels, absent, above = [], [], [], 0
    for domain in DOMAINS:
        safety = columns(bench.results, domain, {stage: f"safety {stage}" for stage in STAGES})
        if isinstance(safety, str):
            absent.append(safety)
            continue
        change = seed_interval(differences(safety["SEPO"], safety["base"]))
        findings.append(Finding(f"{domain}, safety SEPO - base", change))
        panels.append(Panel(f"safety, {domain}", safety))
        above += change.low > 0
    counted = Finding(f"domains above the base, of {len(DOMAINS)}", exactly(above), "above", 3.5)
    open_still = above < DOMAINS_CLAIMED <= above + len(absent)
    missing = f"missing: {'; '.join(absent)}" if open_still else ""
    return Measured([counted, *findings], panels, missing)


def negotiation_positive(bench: Bench) -> Measured:
    """Safety and relative advantage (NRA of the authors' code) after SEPO in both negotiations.

    The paper's outcome is of the second; the first is shown.
    """
    findings, panels, missing = [], [], ""
    for domain, side in (("negotiation_v2", "above"), ("negotiation_v1", "shown")):
        headings = {stage: f"safety {stage}" for stage in STAGES} | {"NRA": "NRA SEPO"}
        values = columns(bench.results, domain, headings)
        if isinstance(values, str):
            missing = missing or (values if side == "above" else "")
            continue
        advantage = values.pop("NRA")
        findings += [
            Finding(f"{domain}, safety SEPO", seed_interval(values["SEPO"]), side),
            Finding(f"{domain}, NRA SEPO", seed_interval(advantage), side),
        ]
        panels += [
            Panel(f"safety, {domain}", values, 0.0),
            Panel(f"NRA, {domain}", {"SEPO": advantage}, 0.0),
        ]
    return Measured(findings, panels, missing and f"missing: {missing}")


def exactly(value: float) -> Interval:
    """A number without sampling error."""
    return Interval(float(value), float(value), float(value), 0.0, 1, 0.95, "exact")
