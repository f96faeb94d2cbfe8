"""The first sections of a report page: headline, summary table, curves; each from RunData to HTML.

A section that has nothing to show says so in words, so that a reader of a partial run knows whether
a number is missing from the run or from the page.
"""

import math
from collections.abc import Container, Mapping
from typing import Any

from . import page, plots
from .measures import MEASURES, canonical, describe
from .page import Html, number, tag
from .report_baselines import (
    experts,
    game_of_key,
    games_of_run,
    run_is_kuhn,
    with_baselines,
)
from .run_data import RunData, step_of

STAGE_LABELS = {
    "uniform": "Uniform",
    "untrained": "Untrained",
    "base": "Base",
    "sft": "SFT",
    "sepo": "SEPO",
    "rl": "RL",
    "best_pure": "Best pure",
    "expert": "Best expert",
    "best_known": "Best known",
    "nothing": "Submit at once",
    "random": "Random play",
    "rule": "Scripted rule",
    "search": "Scripted search",
    "oracle": "Oracle",
}
# Figure of the tiles at the top, the first that a run has -> what it means.
_HEADLINES = {
    "nash_conv": "Exact NashConv in chips a hand (not halved): what best responses would win from "
    "the policy over both seats. Lower is better.",
    "safety": "Safety score: the SEPO objective on fresh episodes against the pools, in a run over "
    "several games its mean over them. Higher is better.",
    "success": "Success: share of all evaluation tasks that are solved. Higher is better.",
}
# Measures with a panel of their own among the curves, in reading order.
CURVES = (
    "loss",
    "reward",
    "return",
    "entropy",
    "kl",
    "clip_fraction",
    "illegal_mass",
    "legal_rate",
    "utility",
    "exploit_pool_advantage",
    "safety",
)
_OF_TASKS = "task/"  # begins the metrics that episodes of tasks record; each has a panel
# What a reader expects of each stage; its absence is worth a sentence.
_EXPECTED = {
    "sft": ("loss", "entropy", "illegal_mass"),
    "sepo": ("loss", "reward", "entropy", "kl", "clip_fraction", "illegal_mass"),
    "rl": ("loss", "reward", "entropy", "kl", "clip_fraction"),
}


def header(run: RunData) -> Html:
    """Name, state of the run, and the headline numbers side by side."""
    stages = with_baselines(run)
    lines = []
    for stage in run.stages():
        steps = [step_of(line) for line in run.metrics if line.get("stage") == stage]
        last = max((step for step in steps if step is not None), default=0)
        settings = run.config.get(stage)
        planned = settings.get("steps") if isinstance(settings, Mapping) else None
        of = f" of {planned}" if planned else ""
        lines.append(f"{stage or 'stage not named'}: last logged step {last:.0f}{of}")
    state = "; ".join(lines) or "no step logged yet"
    done = "" if run.summary else " The run has no final summary: it is going on or was cut off."
    seed = run.config.get("seed")
    seeded = f" Seed {seed}." if seed is not None else ""
    tiles = []
    shown = _headline(stages)
    for stage, measures in stages.items():
        if shown in measures:
            value = tag("b", number(measures[shown]))
            label = tag("span", STAGE_LABELS.get(stage, stage))
            tiles.append(
                tag("div", value, label, class_="tile main" if stage in ("sepo", "rl") else "tile")
            )
    meaning = tag("p", _HEADLINES.get(shown, ""), class_="muted")
    return tag(
        "header",
        tag("h1", f"Run {run.path.resolve().name}"),
        tag("p", f"{state}.{seeded}{done}"),
        tag("div", *tiles, class_="tiles") if tiles else "",
        meaning if tiles else "",
    )


def _headline(stages: Mapping[str, Any]) -> str:
    """The figure that the page begins with; "" where there is none."""
    return next((key for key in _HEADLINES if any(key in each for each in stages.values())), "")


def summary_section(run: RunData) -> Html:
    """Every final figure beside its baselines, with what it measures; a table for each game."""
    stages = with_baselines(run)
    # "step" says how far a stage was, which the header does.
    keys = dict.fromkeys(key for found in stages.values() for key in found if key != "step")
    rank = {name: place for place, name in enumerate(MEASURES)}
    keys = dict.fromkeys(sorted(keys, key=lambda key: rank.get(canonical(key), len(rank))))
    if run.tasks:  # those of a kind of task have a section of their own
        keys = {key: None for key in keys if "/" not in key}
    if not keys:
        return page.section("summary", "Summary", "No final figures of the whole run yet.")
    games = games_of_run(run.summary)
    parts = []
    for game in ("", *games):
        own = [key for key in keys if game_of_key(key, games) == game]
        if own:
            parts += [tag("h3", game or "Over all games")] if games else []
            parts.append(_summary_table(stages, own, f"{game}/" if game else "", _headline(stages)))
    named = [f"{name} ({game})" if game else name for game, name in experts(run.summary).items()]
    return page.section(
        "summary",
        "Summary",
        "Final figures by stage beside their baselines. An arrow says which way is better; a dash "
        "means that the run did not measure it. Brackets: 95% interval over episodes, for figures "
        "that were sampled; where the game's tree is known, those of uniform play and of the best "
        "known policy are exact.",
        *parts,
        tag("p", f"Best expert, by safety: {', '.join(named)}.", class_="muted") if named else "",
    )


def _summary_table(stages: Mapping[str, Any], keys: list[str], prefix: str, headline: str) -> Html:
    """A line for each figure with this prefix, a column for each stage that has any of them."""
    stages = {stage: found for stage, found in stages.items() if any(key in found for key in keys)}
    rows, main = [], []
    for key in keys:
        if is_end_of_interval(key, keys):
            continue
        if key == prefix + headline:
            main.append(len(rows))
        measure = describe(key)
        arrow = {"lower": "\u00a0↓", "higher": "\u00a0↑"}.get(measure.better, "")
        cells = [figure_with_interval(measures, key) for measures in stages.values()]
        label = _label(key.removeprefix(prefix))
        rows.append([page.join([label, arrow]), *cells, measure.sentence])
    headers = ["Measure", *(STAGE_LABELS.get(s, s) for s in stages), "What it measures"]
    classes = ["", *["n"] * len(stages), "why"]
    return page.table(headers, rows, classes=classes, main_rows=main)


def _label(key: str) -> str | Html:
    """The measure's label; a member of a family is named, anything else keeps its key."""
    name = canonical(key)
    if name == "exploiter_gain":
        return f"Advantage of {key.rpartition('/')[2]}"
    return describe(key).label if name == key else page.breakable(key)


def is_end_of_interval(key: str, keys: Container[str]) -> bool:
    """True for "<name>_low" and "<name>_high" of a figure that is listed itself."""
    name, _, end = key.rpartition("_")
    return end in ("low", "high") and name in keys


def figure_with_interval(measures: Mapping[str, Any], key: str) -> Html:
    """A figure with its interval below it, a dash when it was not measured."""
    if key not in measures:
        return tag("span", "–")
    low, high = measures.get(f"{key}_low"), measures.get(f"{key}_high")
    if low is None or high is None:
        return number(measures[key])
    interval = page.join(["[", number(low, 3), ", ", number(high, 3), "]"])
    return page.join([number(measures[key]), tag("div", interval, class_="interval")])


def nash_conv_section(run: RunData) -> Html:
    """NashConv over both stages with the uniform policy and the best known as lines."""
    curves = {}
    for stage in run.stages():
        key = next((k for k in run.metric_keys(stage) if canonical(k) == "nash_conv"), None)
        if key is not None:
            curves[stage] = plots.Series(*run.series(stage, key), stage)
    if not curves:
        return page.section("nashconv", "NashConv over training", "No exact evaluation was logged.")
    stages = with_baselines(run)
    references = [
        plots.Reference(stages[stage]["nash_conv"], label)
        for stage, label in (("uniform", "uniform"), ("best_known", "best known"))
        if plots.drawable(stages.get(stage, {}).get("nash_conv", math.nan))
    ]
    chart = plots.stage_chart(
        curves, title="Exact NashConv", label="NashConv, chips a hand", references=references
    )
    halved = " Half of this number is the exploitability." if run_is_kuhn(run) else ""
    return page.section(
        "nashconv",
        "NashConv over training",
        "Exact value of the policy's action table at every evaluation. Dashed: uniform play and "
        f"the best known policy.{halved}",
        page.figure(chart, _non_finite([(c.name, c.values) for c in curves.values()])),
    )


def curves_section(run: RunData, stage: str) -> Html:
    """A panel for each measure of one stage; whatever else was logged is folded away."""
    groups: dict[str, list[str]] = {name: [] for name in CURVES}
    others = []
    for key in run.metric_keys(stage):
        name = canonical(key)
        if key.startswith(_OF_TASKS):
            groups[key] = [key]
        elif name != "nash_conv":  # it has a section of its own
            groups.get(name, others).append(key)
    panels = [_panel(run, stage, describe(n).label, keys, n) for n, keys in groups.items() if keys]
    # Only games that are walked whole have an exact illegal mass.
    expected = [n for n in _EXPECTED.get(stage, ()) if n != "illegal_mass" or not run.tasks]
    absent = [describe(name).label for name in expected if not groups[name]]
    rest = [_panel(run, stage, key, [key], key) for key in others]
    note = f"Not logged in this stage: {', '.join(absent)}." if absent else ""
    return page.section(
        f"curves-{stage}" if stage else "curves",
        f"Curves: {STAGE_LABELS.get(stage, stage or 'stage not named')}",
        "Thin: every step; thick: running mean over a twentieth of the stage. A red triangle marks "
        "a step whose value was not finite or beyond 1e30.",
        tag("div", *panels, class_="grid"),
        tag("p", note, class_="muted") if note else "",
        page.details(f"Other metrics ({len(rest)})", tag("div", *rest, class_="grid"))
        if rest
        else "",
    )


def _panel(run: RunData, stage: str, title: str, keys: list[str], name: str) -> Html:
    curves = [plots.Series(*run.series(stage, key), key) for key in keys]
    color = plots.STAGE_COLORS.get(stage, plots.COLORS[0])
    chart = plots.line_chart(curves, title=title, color=color)
    listed = tag("span", f"{', '.join(keys)}. ", class_="muted")
    trouble = _non_finite([(curve.name, curve.values) for curve in curves])
    return page.figure(chart, page.join([listed, describe(name).sentence, " ", trouble]))


def _non_finite(curves: list[tuple[str, Any]]) -> Html:
    """A warning for each curve with values that cannot be drawn."""
    parts = []
    for name, values in curves:
        bad = sum(not plots.drawable(value) for value in values)
        if bad:
            text = f"{name}: {bad} of {len(values)} values are not finite or beyond 1e30. "
            parts.append(tag("span", text, class_="off"))
    return page.join(parts)
