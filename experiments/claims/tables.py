"""Claims that are read from the results of whole runs, experiments/results/sepo_<domain>.json.

`experiments/sweep.py` writes those files, of a fresh network; those of a pretrained model end in
"_smollm2". A domain whose file or column is not there is named as missing, and so is one of a
single seed, which has no interval.
"""

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.results import load_result
from sepo_jax.evaluation.statistics import Interval, seed_interval

from .base import Measured, Panel, differences
from .bench import Bench

DOMAINS = ("ipd", "auction", "negotiation_v1", "negotiation_v2", "kuhn")
DOMAINS_CLAIMED = 4
PRETRAINED = "_smollm2"
# Stage -> headings of its safety; a table has one of them.
SAFETY = {
    "base": ("safety base", "safety untrained"),
    "SFT": ("safety SFT",),
    "SEPO": ("safety SEPO",),
}
_ADVICE = "run python experiments/sweep.py --config=configs/sepo/{}.py{} --write"


def columns(
    bench: Bench, domain: str, headings: dict[str, tuple[str, ...]], kind: str = ""
) -> dict[str, list[float]] | str:
    """Label -> a column of a domain's results, a value for each seed; or why there is nothing to
    compare.

    Args:
      headings: label -> headings, of which the first that is there counts.
      kind: "" for the results of a fresh network, or `PRETRAINED`.
    """
    path = bench.results / f"sepo_{domain}{kind}.json"
    if not path.is_file():
        argument = kind and f":policy={kind.removeprefix('_')}"
        return f"no {path.name} ({_ADVICE.format(domain, argument)})"
    result = load_result(path)
    # A row of means has text in place of a seed.
    rows = [row for row in result["rows"] if isinstance(row[0], int)]
    if len(rows) < 2:
        return f"{path.name} has {len(rows)} seed, and an interval needs two"
    found = {}
    for label, names in headings.items():
        there = [name for name in names if name in result["columns"]]
        if not there:
            return f"{path.name} has no column {names[0]!r}"
        place = result["columns"].index(there[0])
        found[label] = [float(row[place]) for row in rows]
    bench.note(result["commit"], [row[0] for row in rows])
    return found


def safety_above_base(bench: Bench) -> Measured:
    """Counts the domains in which safety after SEPO is above that of the pretrained base.

    The claim holds with four domains or more whose interval of the difference lies above 0, and
    fails when fewer could be. A fresh network is no such base: a domain without results of a
    pretrained model is missing, and its fresh one shown. While missing domains could decide the
    count, there is nothing to compare.
    """
    findings, panels, absent, above, below = [], [], [], 0, 0
    for domain in DOMAINS:
        safety = columns(bench, domain, SAFETY, PRETRAINED)
        if isinstance(safety, str):
            absent.append(safety)
            fresh = columns(bench, domain, SAFETY)
            if isinstance(fresh, str):
                continue
            safety = {"fresh" if label == "base" else label: each for label, each in fresh.items()}
        base = next(iter(safety))
        change = seed_interval(differences(safety["SEPO"], safety[base]))
        findings.append(Finding(f"{domain}, safety SEPO - {base}", change))
        panels.append(Panel(f"safety, {domain}", safety))
        above += base == "base" and change.low > 0
        below += base == "base" and change.high <= 0
    could = len(DOMAINS) - below
    found = Interval(float(above), float(above), float(could), 0.0, len(DOMAINS), 0.95, "count")
    bound = DOMAINS_CLAIMED - 0.5
    counted = Finding(f"domains above the base, of {len(DOMAINS)}", found, "above", bound)
    open_still = above < bound < could and above + len(absent) > bound
    missing = f"missing: {'; '.join(absent)}" if open_still else ""
    return Measured([counted, *findings], panels, missing)


def negotiation_positive(bench: Bench) -> Measured:
    """Safety and relative advantage (NRA of the authors' code) after SEPO in both negotiations.

    The paper's outcome is of the second; the first is shown.
    """
    findings, panels, missing = [], [], ""
    for domain, side in (("negotiation_v2", "above"), ("negotiation_v1", "shown")):
        headings = {"fresh": SAFETY["base"], "SFT": SAFETY["SFT"], "SEPO": SAFETY["SEPO"]}
        headings |= {"NRA": ("NRA SEPO",)}
        values = columns(bench, domain, headings)
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
