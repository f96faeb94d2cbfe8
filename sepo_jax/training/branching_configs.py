"""What the config files of branching rollouts share: options, sizes, the results table.

A config file names its tasks and numbers; see `configs/bpo/corridor.py`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import config_dict

from ..algorithms import ALGORITHMS, OPTIONS
from ..names import check_option
from ..rollout.selectors import SELECTORS
from .game_configs import (
    new_config,
    parse_options,
    sweep_over,
    use_adapters,
    use_small_policy,
    variant,
)

COMPARED = {"algorithm=bpo": "BPO", "algorithm=grpo": "GRPO", "algorithm=rloo": "RLOO"}
# Algorithms that compare within trees; the others play as many independent episodes.
OF_TREES = ("parent", "root_then_tree", "root_plus_tree")
# Option -> comparisons that it is a choice of.
READ_BY = {"selector": OF_TREES, "prefix_credit": ("parent",)}
BRANCH_POINTS, CONTINUATIONS, TREES = 2, 4, 2


def branching_config(
    name: str, argument: str | None, options: Mapping[str, Any]
) -> config_dict.ConfigDict:
    """The config of a run on tasks of several turns, without any training stage.

    Args:
      name: of the domain.
      argument: comma-separated options: `algorithm=<row of the table>`, `prefix_credit=` of rows
        that compare siblings and `selector=` of those that compare within trees, as in the
        settings, `policy=fresh|smollm2|<model name, hub id, directory or .gguf>`, `runlocal` for a
        smoke run.
      options: of the domain.
    """
    chosen = parse_branching_options(argument)
    config = new_config(f"bpo_{name}", chosen["policy"])
    config.name += variant(chosen, algorithm="bpo")
    config.domain.name, config.domain.options = name, dict(options)
    config.algorithm.name = chosen["algorithm"]
    if chosen["prefix_credit"]:
        config.algorithm.overrides = {"prefix_credit": chosen["prefix_credit"]}
    config.sft.steps, config.sepo.steps, config.rl.steps = 0, 0, 0
    config.sft.held_out = 0.02
    config.checkpoint.every = 1000
    config.evaluation.every = 1000
    if chosen["policy"] == "fresh":
        use_small_policy(config)
    else:
        use_adapters(config, chosen["policy"])
    return config


def add_sft(
    config: config_dict.ConfigDict,
    argument: str | None,
    *,
    steps: int,
    batch_size: int,
    decisions: float,
    passes: float = 1.0,
) -> None:
    """Adds imitation of the domain's expert; an example is an episode.

    Args:
      config, argument: of the run.
      steps: updates. batch_size: episodes of each.
      decisions: of an episode, about.
      passes: over the episodes; with 1 each is seen once.
    """
    config.sft.steps, config.sft.batch_size = steps, batch_size
    episodes = steps * batch_size / passes / (1 - config.sft.held_out)
    config.sft.num_decisions = math.ceil(episodes * decisions)
    config.sft.learning_rate, config.sft.final_learning_rate = 2e-3, 1e-4
    config.sft.warmup_steps = 20
    if parse_branching_options(argument)["runlocal"]:
        config.sft.steps, config.sft.batch_size = 2, 4
        config.sft.num_decisions = math.ceil(12 * decisions)


def add_rl(
    config: config_dict.ConfigDict,
    argument: str | None,
    *,
    steps: int,
    tasks: int,
    tasks_of_trees: int,
    learning_rate: float = 1e-3,
) -> None:
    """Adds reinforcement learning: for algorithms that compare within trees, two trees a task of
    1 + 2 (4 - 1) leaves each; for the others as many independent episodes.

    Args:
      config, argument: of the run.
      steps: updates.
      tasks: of a step, where episodes are independent. tasks_of_trees: where they are trees, so
        many more that about as many replies are sampled.
      learning_rate: at first; it falls to a tenth.
    """
    chosen = parse_branching_options(argument)
    rl, row = config.rl, ALGORITHMS[chosen["algorithm"]]
    rl.steps, rl.tasks_per_step = steps, tasks
    rl.rollouts_per_task = TREES * (1 + BRANCH_POINTS * (CONTINUATIONS - 1))
    rl.continuations, rl.branch_spacing = CONTINUATIONS, 16
    if row.compare in OF_TREES:
        rl.branch_points, rl.tasks_per_step = BRANCH_POINTS, tasks_of_trees
        rl.branch_selector = chosen["selector"] or "entropy"
    rl.learning_rate, rl.final_learning_rate = learning_rate, learning_rate / 10
    if chosen["runlocal"]:
        rl.steps, rl.tasks_per_step = 2, 2
        config.evaluation.tasks = 2


def parse_branching_options(argument: str | None) -> dict[str, Any]:
    """Options of the configs of branching rollouts.

    Raises:
      ValueError: an unknown option or choice, with the nearest; or a choice that the algorithm does
        not read.
    """
    options = parse_options(argument, algorithm="bpo", prefix_credit="", selector="")
    allowed = {"selector": SELECTORS, "prefix_credit": OPTIONS["prefix_credit"]}
    for name, comparisons in READ_BY.items():
        if not options[name]:
            continue
        check_option(name, options[name], allowed[name])
        if ALGORITHMS[options["algorithm"]].compare not in comparisons:
            rows = [row.name for row in ALGORITHMS.values() if row.compare in comparisons]
            raise ValueError(
                f"{name}={options[name]} is a choice of algorithm={'|'.join(rows)}, and the "
                f"algorithm is {options['algorithm']}; leave {name} out"
            )
    return options


def branching_table(
    name: str, figures: Mapping[str, str], baselines: Mapping[str, str], config: Any
) -> dict[str, Any]:
    """The results table: success before and after reinforcement learning by each algorithm, and
    what a step of it sampled.

    Args:
      name: what is trained on, as the title says it.
      figures: further figure -> its heading.
      baselines: player of the domain -> its label.
      config: of a run, for the notes.
    """
    columns = {"sft/success": "SFT success", "rl/success": "RL success"}
    columns |= {f"rl/{figure}": f"RL {heading}" for figure, heading in figures.items()}
    columns |= {
        "rl/step_mean/sampled_decisions": "decisions a step",
        "rl/step_mean/sampled_tokens": "tokens a step",
    }
    return {
        "title": f"A fresh policy (three layers of width 64) on {name}: imitation, then "
        f"{config.rl.steps} updates by each algorithm.",
        "columns": columns,
        "baselines": baselines,
        "variants": COMPARED,
        "notes": (
            f"BPO compares {TREES} trees a task of {BRANCH_POINTS} branch points with "
            f"{CONTINUATIONS} continuations each, the others {config.rl.rollouts_per_task} "
            "independent episodes; trees are of more tasks, so that about as many decisions are "
            "sampled. ± is half the 95% interval over seeds (Student's t). Minutes are of the "
            "whole run, compilation and imitation included."
        ),
    }


def sweep_of(seeds: int) -> Callable[[Callable[..., None]], None]:
    """A config's `sweep`: every algorithm compared with the first `seeds` seeds."""
    return sweep_over(COMPARED, seeds)


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["validation_loss", "reward", "gradient_norm", "sampled_tokens", "branch_entropy"]
