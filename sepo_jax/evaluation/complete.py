"""Everything that is measured of a policy, as one JSON-able record and as text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import chex
import numpy as np

from ..games.tree import TreeGame
from ..policy import Policy
from ..rollout import EngineOptions
from ..sandbox.protocol import Pool
from ..sepo import SepoWeights
from .match_rows import NO_LABEL
from .matches import DEFAULT_OPTIONS, DEFAULT_WEIGHTS, match_play, sampled_nash_conv
from .measures import describe
from .policy_table import exact_nash_conv, nash_conv_of_table
from .scripted import scripted_baselines
from .statistics import Interval


def evaluate_policy(
    policy: Policy,
    params: chex.ArrayTree,
    domain: Any,
    game: TreeGame | None,
    *,
    episodes: int = 200,
    seed: int = 0,
    weights: SepoWeights = DEFAULT_WEIGHTS,
    options: EngineOptions = DEFAULT_OPTIONS,
    environments: Pool | None = None,
    label: Mapping[str, str] = NO_LABEL,
    progress: bool = False,
) -> dict[str, Any]:
    """Exact values, match play and the sampled NashConv of one policy.

    Args:
      policy, params: the policy.
      domain: its task.
      game: the compiled game with the domain's rules; None leaves the exact values out.
      episodes: episodes against each opponent (rounded up as in `match_play`); ten times as
        many hands for the sampled NashConv.
      seed, weights, options, environments, label, progress: as in `matches.match_play`.

    Returns:
      The content of evaluation.json: "nash_conv" with its baseline "uniform_nash_conv", "table",
      "illegal_mass", "matches" (a dict an opponent), "figures", "sampled_nash_conv", and the
      settings of the evaluation; without a compiled game "baselines", the figures of
      `scripted.scripted_baselines`.

    Raises:
      ValueError, TooManyFailures: as `match_play`.
    """
    record: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "temperature": options.sampling.temperature,
        "weights": [weights.exploitability, weights.collusion, weights.externality],
    }
    if game is not None:
        record |= _exact(policy, params, game, domain, options.sampling.temperature)
    played: dict[str, Any] = {"options": options, "environments": environments}
    played |= {"label": label, "progress": progress}
    matches = match_play(
        policy,
        params,
        domain,
        episodes=episodes,
        seed=seed,
        weights=weights,
        **played,
    )
    record["matches"] = [row.to_json() for row in matches.rows]
    record["figures"] = matches.figures
    if game is None:
        record["baselines"] = scripted_baselines(
            domain, episodes=episodes, seed=seed, weights=weights
        )
    if game is not None and getattr(domain, "hands", None) == 1:
        sampled = sampled_nash_conv(
            policy, params, game, domain, episodes=10 * episodes, seed=seed, **played
        )
        record["sampled_nash_conv"] = _interval(sampled.bootstrap)
        record["sampled_nash_conv_normal"] = _interval(sampled.normal)
    return record


def _exact(policy, params, game, domain, temperature) -> dict[str, Any]:
    exact = exact_nash_conv(policy, params, game, domain, temperature=temperature)
    legal = np.asarray(game.legal_mask, np.float64)
    uniform = nash_conv_of_table(game, legal / legal.sum(axis=1, keepdims=True))
    rows = zip(game.infoset_names, exact.probabilities.tolist(), strict=True)
    return {
        "game": game.name,
        "nash_conv": float(exact),
        "uniform_nash_conv": float(uniform),
        "exploitability": exact.exploitability,
        "gains": list(exact.gains),
        "values": list(exact.values),
        "illegal_mass": float(exact.illegal_mass.mean()),
        "max_illegal_mass": float(exact.illegal_mass.max()),
        "table": dict(rows),
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "count": interval.count,
        "level": interval.level,
        "method": interval.method,
    }


def render_text(record: dict[str, Any]) -> str:
    """The record of `evaluate_policy` as aligned text, each number with what it measures."""
    lines = []
    if "nash_conv" in record:
        lines += [
            f"{record['game']}: exact values of the policy's action table",
            f"  NashConv       {record['nash_conv']:.4f}   "
            f"(uniform play {record['uniform_nash_conv']:.4f}, equilibrium 0; not halved)",
        ]
        if record["exploitability"] is not None:
            lines.append(f"  exploitability {record['exploitability']:.4f}   (NashConv / 2)")
        lines.append(
            f"  illegal mass   {record['illegal_mass']:.4f}   "
            f"(mean over information sets; worst {record['max_illegal_mass']:.4f})"
        )
    if "sampled_nash_conv" in record:
        sampled = record["sampled_nash_conv"]
        lines.append(
            f"  sampled        {sampled['mean']:.4f}   [{sampled['low']:.4f}, "
            f"{sampled['high']:.4f}] from {sampled['count']} hands against the best response"
        )
    lines += [
        "",
        "Match play: mean payoff a round with its 95% interval over episodes. exact: of the action",
        "table, illegal replies left out; uniform: of uniform play",
    ]
    head = ("pool", "opponent", "own", "95% interval", "exact", "uniform", "legal replies")
    lines += _columns([head, *(_match_cells(row) for row in record["matches"])])
    e, c, x = record["weights"]
    weighed = f"safety weighs e, c and x by {e:g}, {c:g} and {x:g}"
    lines += ["", f"Figures of SEPO, with 95% bootstrap intervals; {weighed}"]
    lines += _columns(_figure_cells(record["figures"], record.get("baselines", {})))
    return "\n".join(lines)


def _match_cells(row: dict[str, Any]) -> tuple[str, ...]:
    exact, uniform = ("-" if row[k] is None else f"{row[k]:+.3f}" for k in ("exact", "uniform"))
    low, high = row["low"], row["high"]
    interval = "-" if low is None or high is None else f"[{low:+.3f}, {high:+.3f}]"
    legal = "-" if row["legal_rate"] is None else f"{row['legal_rate']:.1%}"
    return (row["pool"], row["opponent"], f"{row['own']:+.3f}", interval, exact, uniform, legal)


def _figure_cells(
    figures: dict[str, float], baselines: Mapping[str, dict[str, float]]
) -> list[tuple[str, ...]]:
    """A line a figure: value, interval, the same of each baseline, what it measures."""
    rows = [("", "policy", "95% interval", *baselines, "")] if baselines else []
    for name, value in figures.items():
        if name.endswith(("_low", "_high")) and name.rpartition("_")[0] in figures:
            continue
        low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
        interval = "" if low is None or high is None else f"[{low:+.3f}, {high:+.3f}]"
        beside = [f"{each[name]:+.4f}" if name in each else "-" for each in baselines.values()]
        sentence = describe(name).sentence.partition(". ")[0].removesuffix(".")
        rows.append((name, f"{value:+.4f}", interval, *beside, sentence))
    return rows


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the last column is left as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  "
        + "  ".join(
            [cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]
        ).rstrip()
        for row in rows
    ]
