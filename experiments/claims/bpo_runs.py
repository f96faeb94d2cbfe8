"""Claims of BPO about training: success, and updates until the level of another algorithm, read
from the runs of `configs/bpo/`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.run_data import read_run
from sepo_jax.evaluation.statistics import seed_interval
from sepo_jax.names import did_you_mean
from sepo_jax.training.command_line import swept_config

from .base import Measured, Panel, differences, mean_of
from .runs import ROOT, Runs

CONFIGS = ROOT / "configs" / "bpo"
OWN, BASELINES = "bpo", ("grpo", "rloo")
SEVERAL_SEEDS = ("corridor", "webshop")  # what has an interval
TASKS = (*SEVERAL_SEEDS, "alfworld", "repository")
WINDOW = 5  # updates that a reward is averaged over


def config_of(bench: Runs, task: str, algorithm: str, seed: int) -> Any:
    """The config of a task as its sweep has it for an algorithm and a seed; of a smoke test with
    `runlocal`."""
    path = CONFIGS / f"{task}.py"
    value = f"{path}:runlocal" if bench.quick else str(path)
    return swept_config(value, {"argument": f"algorithm={algorithm}", "seed": seed})


def finished(bench: Runs, task: str, algorithm: str) -> list[tuple[Path, dict[str, Any]]]:
    """Directory and summary of the run of every seed."""
    seeds = bench.seeds_of(CONFIGS / f"{task}.py")
    return [bench.finished(config_of(bench, task, algorithm, seed)) for seed in seeds]


def successes(bench: Runs, task: str, algorithm: str) -> list[float]:
    """Success after reinforcement learning for each seed.

    Raises:
      ValueError: a run without it; the nearest figure is named.
    """
    found = []
    for path, summary in finished(bench, task, algorithm):
        if "rl/success" not in summary:
            hint = did_you_mean("rl/success", list(summary))
            raise ValueError(f"{path} has no figure 'rl/success'.{hint} Train it to its end")
        found.append(summary["rl/success"])
    return found


def success(bench: Runs) -> Measured:
    """Success of BPO less that of GRPO and RLOO, after as many updates of about as many sampled
    decisions.

    Published: +3.6 to +6.1 points of success, Qwen2.5-7B and Llama-3.1-8B. Here fresh policies of
    three layers, in the corridor and in the web shop, whose seeds decide; household tasks and
    repository repair are shown.
    """
    found = {
        task: {name: successes(bench, task, name) for name in (OWN, *BASELINES)} for task in TASKS
    }
    panels = [Panel(f"success, {task}", values) for task, values in found.items()]
    return Measured(success_findings(found), panels)


def success_findings(found: dict[str, dict[str, Sequence[float]]]) -> list[Finding]:
    """Findings of `success`: task -> algorithm -> success of every seed."""
    findings = []
    for task, values in found.items():
        for baseline in BASELINES:
            label = f"{task}, BPO - {baseline.upper()}"
            gained = differences(values[OWN], values[baseline])
            if task in SEVERAL_SEEDS:
                findings.append(Finding(label, seed_interval(gained), "above"))
            else:
                findings.append(Finding(label, mean_of(gained)))
    return findings


def updates_until(rewards: Sequence[float], level: float, window: int = WINDOW) -> int:
    """The first number of updates after which the mean of the last `window` rewards is at least
    `level`; one more than there are where none is."""
    for count in range(window, len(rewards) + 1):
        if np.mean(rewards[count - window : count]) >= level:
            return count
    return len(rewards) + 1


def updates_to_match(bench: Runs) -> Measured:
    """Updates of BPO until the reward at which the better of GRPO and RLOO ends, by the updates
    that this one took to get there; each a mean over five updates.

    Published: 0.62. In the corridor, where rewards rise; a level that is not reached counts as one
    update more than were made, so the ratio is then a lower bound.
    """
    task = SEVERAL_SEEDS[0]
    rewards = {
        name: [read_run(path).series("rl", "reward")[1] for path, _ in finished(bench, task, name)]
        for name in (OWN, *BASELINES)
    }
    return Measured(match_findings(rewards), [])


def match_findings(rewards: dict[str, Sequence[Sequence[float]]]) -> list[Finding]:
    """Findings of `updates_to_match`: algorithm -> rewards of the updates of every seed."""
    ratios, levels = [], []
    for seed, own in enumerate(rewards[OWN]):
        window = min(WINDOW, len(own))
        others = [rewards[name][seed] for name in BASELINES]
        level, best = max(
            (float(np.mean(each[-window:])), place) for place, each in enumerate(others)
        )
        taken = updates_until(others[best], level, window)
        ratios.append(updates_until(own, level, window) / taken)
        levels.append(level)
    return [
        Finding("updates, BPO / the better baseline", seed_interval(ratios), "below", 1.0),
        Finding("reward to match", mean_of(levels)),
    ]
