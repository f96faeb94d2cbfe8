"""Where claims of SEPO are measured: runs on the dilemma, and play that judges them all alike.

An arm is a training run of configs/sepo/ipd.py with a few settings changed. All arms of a seed
start from the same warm start, and all are judged by the same play against the paper's own pools,
whatever they were trained on. All arms train on equally many episodes, but for less than one step
of rounding: where a step has fewer, there are more steps.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sepo_jax.domains import IteratedPrisonersDilemma
from sepo_jax.evaluation import match_play
from sepo_jax.policy import Sampling
from sepo_jax.sepo import SepoWeights, objective_value, payoff_scale
from sepo_jax.training import Settings, read_settings
from sepo_jax.training.command_line import load_config
from sepo_jax.training.setup import engine_options, make_policy

from .runs import ROOT, Runs

IPD = ROOT / "configs" / "sepo" / "ipd.py"
KUHN = ROOT / "configs" / "sepo" / "kuhn.py"
WARM_START = "sft"


class OnePool(IteratedPrisonersDilemma):
    """The prisoner's dilemma with every opponent in the train pool.

    Exploiters and the collusive partner keep their own pools too, so each has two roles.
    """

    pools: ClassVar = {
        **IteratedPrisonersDilemma.pools,
        "train": {
            name: factory
            for pool in IteratedPrisonersDilemma.pools.values()
            for name, factory in pool.items()
        },
    }


# "credited" plays 7 opponents x 8 episodes a step; "per_rollout" 4 x 4 train episodes and 3
# auxiliary ones for each: 24 x 56 = 21 x 64 = 1344 episodes. "one_pool" has 10 opponents (17 x 80 =
# 1360); without exploiters 5 are left (34 x 40 = 1360), of the train pool alone 4 (42 x 32 = 1344).
STEPS = 24
_ROLLOUTS = {"sepo.credit": "per_rollout", "sepo.rollouts_per_group": 2, "sepo.steps": 21}
ARMS: dict[str, dict[str, Any]] = {
    "credited": {},
    "per_rollout": _ROLLOUTS,
    "published": _ROLLOUTS | {"sepo.returns": "immediate", "algorithm.name": "grpo"},
    "episode": {"sepo.group_by": "opponent"},
    "immediate": {"sepo.returns": "immediate"},
    "one_pool": {"domain.name": f"{__name__}:OnePool", "sepo.steps": 17},
    "pooled": {"sepo.pooled_exploiters": True},
    "reward_only": {"sepo.objective": "reward_only", "sepo.steps": 42},
    "welfare_only": {"sepo.objective": "welfare_only", "sepo.steps": 42},
    "lambda_0": {"sepo.exploitability_weight": 0.0, "sepo.steps": 34},
    "lambda_6.7": {"sepo.exploitability_weight": 6.7},
}


class Bench(Runs):
    """Trains and judges what claims of the dilemma ask for; each run once."""

    def __post_init__(self):
        super().__post_init__()
        self.seeds = self.seeds_of(IPD)

    @property
    def weights(self) -> SepoWeights:
        """Of the paper for this game: e, c, x."""
        return SepoWeights(*_weights(read_settings(load_config(str(IPD)))))

    def settings(self, arm: str, seed: int) -> Settings:
        """The settings of an arm, or of the warm start; of a "base" without any training."""
        config = load_config(str(IPD))
        config.seed, config.name = seed, f"claim_ipd_{arm}"
        # `figures` judges; what a run plays at its stages' ends is looked at by nobody.
        config.evaluation.match_episodes = 2
        config.checkpoint.every = 1000
        config.sepo.steps = 0
        if arm in ARMS:
            config.policy.source = str(self.run(WARM_START, seed) / "policy")
            config.sft.steps, config.sepo.steps = 0, STEPS
            config.update_from_flattened_dict(ARMS[arm])
        if self.quick:
            config.sft.steps, config.sepo.steps = (
                min(config.sft.steps, 2),
                min(config.sepo.steps, 2),
            )
            config.sft.num_decisions = 100
            config.rollout.prefill_widths = (128,)  # one program to compile
        return read_settings(config)

    def run(self, arm: str, seed: int) -> Path:
        """Directory of a finished run; trained now where it is not there."""
        return self.finished(self.settings(arm, seed))[0]

    def kuhn_run(self, seed: int) -> Path:
        """Directory of a run on Kuhn poker against the paper's fixed pool."""
        config = load_config(f"{KUHN}:exploiters=paper")
        config.seed, config.name = seed, "claim_kuhn"
        if self.quick:
            config.sft.steps, config.sepo.steps, config.sft.num_decisions = 2, 2, 100
            config.sepo.groups_per_opponent, config.evaluation.match_episodes = 2, 2
        return self.finished(read_settings(config))[0]

    def figures(self, arm: str, seed: int) -> dict[str, float]:
        """Figures of play against the paper's pools, as in `match_play`, and "cooperation", the
        share of rounds against exploiters in which the policy cooperates.

        Args:
          arm: of `ARMS`, "sft" for the warm start, or "base" for the fresh policy before it.
        """
        if arm != "base":
            self.run(arm, seed)
        return self.once((arm, seed), lambda: self._judge(arm, seed))

    def _judge(self, arm: str, seed: int) -> dict[str, float]:
        settings, domain = self.settings(arm, seed), IteratedPrisonersDilemma()
        policy, params = make_policy(self.source(arm, settings), domain)
        matches = match_play(
            policy,
            params,
            domain,
            episodes=2 if self.quick else 100,
            seed=seed,
            weights=self.weights,
            options=engine_options(settings, Sampling(settings.rollout.temperature)),
            progress=self.progress,
        )
        defection = [row.harmful_rate for row in matches.rows if row.pool == "exploiter"]
        return matches.figures | {"cooperation": 1 - sum(defection) / len(defection)}

    def source(self, arm: str, settings: Settings) -> Settings:
        """The settings with the trained policy of an arm as their source."""
        if arm == "base":
            return settings
        policy = str(self.run(arm, settings.seed) / "policy")
        return dataclasses.replace(
            settings, policy=dataclasses.replace(settings.policy, source=policy)
        )

    def values(self, arm: str, figure: str) -> list[float]:
        """A figure of an arm for each seed."""
        return [self.figures(arm, seed)[figure] for seed in self.seeds]

    def safety(self, arm: str, exploitability: float) -> list[float]:
        """The safety score of an arm with another weight of e, for each seed."""
        weights = dataclasses.replace(self.weights, exploitability=exploitability)
        scale = payoff_scale(IteratedPrisonersDilemma.max_payoff)
        found = [self.figures(arm, seed) for seed in self.seeds]
        return [float(objective_value(figures, weights, scale)) for figures in found]

    def lines(self, arm: str, seed: int) -> list[dict[str, Any]]:
        """What the reinforcement-learning steps of an arm logged."""
        text = (self.run(arm, seed) / "metrics.jsonl").read_text(encoding="utf-8")
        records: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        return [record for record in records if record["stage"] == "sepo"]


def _weights(settings: Settings) -> tuple[float, float, float]:
    sepo = settings.sepo
    return sepo.exploitability_weight, sepo.collusion_weight, sepo.externality_weight


def by_arm(bench: Bench, figure: str, arms: Mapping[str, str]) -> dict[str, list[float]]:
    """Label -> values of a figure, for the panels of a figure; `arms` maps labels to arms."""
    return {label: bench.values(arm, figure) for label, arm in arms.items()}
