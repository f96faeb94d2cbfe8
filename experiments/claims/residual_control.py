"""The control of the matrix benchmark: what the residual teaches where no language is in the way.

A network of `residual_network` learns from the residual on 2x2 and 3x3 games, and is judged as the
language policies are: by the same games, its strategies as a reply prints them, in hundredths.
"""

import numpy as np

from sepo_jax.domains.matrix_game import reply
from sepo_jax.domains.matrix_rules import MatrixRules, game_of_task
from sepo_jax.evaluation.claims import Finding
from sepo_jax.evaluation.matrix_tasks import label_of
from sepo_jax.evaluation.results import source_commit
from sepo_jax.evaluation.statistics import seed_interval
from sepo_jax.training import read_settings
from sepo_jax.training.matrix_configs import TRAINED
from sepo_jax.training.setup import make_domain

from .base import Measured, Panel
from .matrix_runs import (
    CONFIGS,
    UNSEEN_SIZES,
    MatrixRuns,
    dense,
)
from .residual_network import Training, play_games, train_residual

QUICK = Training(steps=20, batch=32, width=8, depth=2)
CONFIG = CONFIGS / "rl.py"  # whose seeds, games and number of games are taken
OTHERS = ("dense/12", "dominated/3in8", "dominated/3in12", "random/3in8", "random/3in12")


def control_figures(training: Training, seed: int, domain, tasks) -> dict[str, float]:
    """Figures of a network trained with a seed on evaluation tasks, as `domain.figures` has them,
    and "loss", the mean relative residual of the last tenth of its training."""
    params, losses = train_residual(training, seed)
    payoffs = [np.array(game_of_task(task).payoffs) for task in tasks]
    rules, records = MatrixRules(), []
    for task, (row, col) in zip(tasks, play_games(training, params, payoffs), strict=True):
        records.append(rules.judge(task, reply(row, col))[1])
    last = -(-training.steps // 10)
    return dict(domain.figures(tasks, records)) | {"loss": float(losses[-last:].mean())}


def residual_control(bench: MatrixRuns) -> Measured:
    """Success of the control, which the sizes it was trained on decide.

    Where it solves what the language policies trained on the same objective do not, the objective
    is not what they lack. Larger and padded games, on which it may fail too, are shown.
    """
    seeds = bench.seeds_of(CONFIG)
    settings = read_settings(bench.config_of(CONFIG, seeds[0]))
    domain = make_domain(settings.domain)
    tasks = domain.evaluation_tasks(settings.evaluation.tasks, settings.sft.data_seed)
    baselines = domain.baselines(tasks)
    training = QUICK if bench.quick else Training()
    figures = [control_figures(training, seed, domain, tasks) for seed in seeds]
    bench.note(source_commit(), seeds)

    def values(arm: str, figure: str = "success") -> list[float]:
        return [each[f"{arm}/{figure}"] for each in figures]

    def best(arm: str) -> float:
        players = ("uniform", "best_pure")
        return max(baselines[player][f"{arm}/success"] for player in players)

    trained, unseen = dense(TRAINED), dense(UNSEEN_SIZES)
    findings = [
        *(
            Finding(f"success {label_of(arm)}", seed_interval(values(arm)), "above", best(arm))
            for arm in trained
        ),
        *(
            Finding(f"{label_of(arm)} (best baseline {best(arm):.2g})", seed_interval(values(arm)))
            for arm in (*unseen, *OTHERS)
        ),
        Finding("residual in training", seed_interval([each["loss"] for each in figures])),
    ]
    groups = {"dense": (*trained, *unseen, OTHERS[0]), "padded": OTHERS[1:]}
    panels = []
    for name, arms in groups.items():
        panels += [
            Panel(f"success of the control, {name}", {label_of(arm): values(arm) for arm in arms}),
            Panel(f"best baseline, {name}", {label_of(arm): [best(arm)] for arm in arms}),
            Panel(
                f"residual / range, {name}",
                {label_of(arm): values(arm, "residual") for arm in arms},
            ),
        ]
    return Measured(findings, panels)
