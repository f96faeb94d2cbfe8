"""Figures of supervised data: who played whom, what was answered, how long, how varied."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sft_files import Split

from sepo_jax.domains.traces import Trace

ALL_EXPERTS = "all experts"
_BINS = 24


def describe_game(domain: Any, split: Split) -> dict[str, Any]:
    """Figures of one game in JSON values; counts are of decisions where nothing else is said.

    `duplicate_prompts` is the share of decisions whose prompt came up before in the game;
    `validation_prompts_in_training` that of held-out decisions whose prompt is also trained on: no
    episode is in both files, but a small game asks the same question again. Payoffs are means over
    rounds, in the domain's units.
    """
    traces = [*split.training, *split.validation]
    prompts = [_prompt(trace) for trace in traces]
    seen = set(prompts[: len(split.training)])
    held_out = prompts[len(split.training) :]
    pools = {
        name: [pool for pool, members in domain.pools.items() if name in members]
        for members in domain.pools.values()
        for name in members
    }
    return {
        "decisions": {"training": len(split.training), "validation": len(split.validation)},
        "episodes": {
            "training": len({trace.episode for trace in split.training}),
            "validation": len({trace.episode for trace in split.validation}),
        },
        "experts": {
            name: {"weight": weight, **_counts(t for t in traces if t.expert == name)}
            for name, (weight, _) in domain.experts.items()
        },
        "opponents": {
            name: {"pools": where, **_counts(t for t in traces if t.opponent == name)}
            for name, where in pools.items()
        },
        "actions": dict(Counter(trace.word for trace in traces).most_common()),
        "rounds": _by_round(traces),
        "prompt_characters": _lengths([len(prompt) for prompt in prompts]),
        "reply_characters": _lengths([len(trace.reply) for trace in traces]),
        "duplicate_prompts": 1 - len(set(prompts)) / len(prompts),
        "validation_prompts_in_training": sum(p in seen for p in held_out) / len(held_out),
        "mean_payoff": mean_payoffs(traces),
    }


def mean_payoffs(traces: Iterable[Trace]) -> dict[str, dict[str, float]]:
    """Expert -> opponent -> mean payoff of a round; who never met is absent. `ALL_EXPERTS` is over
    all rounds against an opponent."""
    # A round of several decisions counts once.
    rounds = {
        (trace.episode, trace.round): (trace.expert, trace.opponent, trace.payoff)
        for trace in traces
    }
    sums: dict[tuple[str, str], list[float]] = {}
    for expert, opponent, payoff in rounds.values():
        for name in (expert, ALL_EXPERTS):
            sums.setdefault((name, opponent), []).append(payoff)
    means: dict[str, dict[str, float]] = {}
    for (name, opponent), values in sums.items():
        means.setdefault(name, {})[opponent] = float(np.mean(values))
    return means


def summary_lines(statistics: dict[str, Any]) -> list[str]:
    """A table in plain text, a line a game."""
    heads = ("game", "training", "held out", "episodes", "again", "in both", "longest", "reply")
    rows = [heads]
    for name, game in statistics["games"].items():
        rows.append(
            (
                name,
                str(game["decisions"]["training"]),
                str(game["decisions"]["validation"]),
                str(sum(game["episodes"].values())),
                f"{game['duplicate_prompts']:.1%}",
                f"{game['validation_prompts_in_training']:.1%}",
                str(game["prompt_characters"]["max"]),
                str(game["reply_characters"]["max"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [
        *lines,
        "training, held out: decisions. again: prompts that came up before. in both: held-out "
        "prompts that are also trained on (no episode is in both files). longest, reply: most "
        "characters of a prompt and of a reply.",
    ]


def _prompt(trace: Trace) -> str:
    return "\n".join(message["content"] for message in trace.messages)


def _counts(traces: Iterable[Trace]) -> dict[str, int]:
    traces = list(traces)
    return {"episodes": len({trace.episode for trace in traces}), "decisions": len(traces)}


def _by_round(traces: Sequence[Trace]) -> dict[str, int]:
    counts = Counter(trace.round for trace in traces)
    return {str(number + 1): counts[number] for number in sorted(counts)}


def _lengths(values: Sequence[int]) -> dict[str, Any]:
    """Extremes, mean, quantiles and a histogram of lengths in characters; a bin holds its lower
    edge and lacks its upper one."""
    low, high = min(values), max(values)
    width = max(-(-(high - low + 1) // _BINS), 1)
    edges = list(range(low, high + width + 1, width))
    counts, _ = np.histogram(values, bins=edges)
    return {
        "min": low,
        "median": float(np.median(values)),
        "mean": float(np.mean(values)),
        "quantile_95": float(np.quantile(values, 0.95)),
        "max": high,
        "histogram": {"edges": edges, "counts": counts.tolist()},
    }
