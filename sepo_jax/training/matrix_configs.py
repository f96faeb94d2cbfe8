"""What the config files of the matrix benchmark share: options, sizes, the results table.

A config file names its stages and numbers; see `configs/matrix/sft.py`.
"""

import math
from collections.abc import Callable
from typing import Any

from ml_collections import config_dict

from ..evaluation.matrix_tasks import ARMS, NAMED_ARMS, label_of
from .game_configs import new_config, parse_options, use_adapters, use_small_policy, variant

TRAINED = (2, 3)
# Four games of two actions for each of three: comparing two payoffs is learned first.
SIZES = (2, 2, 2, 2, 3)
# Games with a pure equilibrium, most of those drawn at size 2, are learned early.
MIXED_SHARE = 0.7
STAGES = {"sft": "SFT", "rl": "RL"}
BASELINES = {"uniform": "uniform play", "best_pure": "best pure", "best_known": "exact solver"}


def matrix_config(name: str, argument: str | None, expert: str = "") -> config_dict.ConfigDict:
    """The config of a run on matrix games, without any training stage.

    Args:
      name: of the run.
      argument: comma-separated options: `policy=fresh|smollm2|<model name, hub id, directory or
        .gguf>`, `expert=worked|solver|random`, `algorithm=<row of the table>`, `runlocal` for a
        smoke run.
      expert: what is imitated where the argument does not say; "" for best replies and answer by a
        fresh policy, for the answer alone by one that knows language.
    """
    options = parse_matrix_options(argument)
    fresh = options["policy"] == "fresh"
    expert = options["expert"] or expert or ("worked" if fresh else "solver")
    config = new_config(name, options["policy"])
    config.name += variant(options, algorithm="rloo", expert="")
    config.domain.name = "matrix"
    config.domain.options = {
        "sizes": SIZES,
        "arms": (),
        "expert": expert,
        "mixed_share": MIXED_SHARE,
    }
    config.algorithm.name = options["algorithm"]
    config.sft.steps, config.sepo.steps, config.rl.steps = 0, 0, 0
    config.sft.held_out = 0.01
    # With a token for each digit prompts have up to 910 (twelve by twelve), worked replies 390.
    config.rollout.capacity = 1408
    config.rollout.max_action_tokens = 400
    config.rollout.prefill_widths = (128,)
    config.rollout.row_length = 384
    config.evaluation.greedy, config.evaluation.tasks = True, 50
    config.evaluation.every = 250
    config.checkpoint.every = 1000
    if fresh:
        use_small_policy(config)
        config.policy.individual_digits = True
    else:
        use_adapters(config, options["policy"])
        config.rollout.slots = 16
        config.rollout.row_length = 1024
        config.optimizer.micro_batches = 2
        config.evaluation.every = 20
    if options["policy"] == "smollm2":  # what two cores score in minutes
        config.domain.options.arms = ("dense/2", "dense/3", "dense/5", *NAMED_ARMS)
        config.rollout.max_action_tokens = 128
    if options["runlocal"]:
        config.domain.options.arms = ("dense/2", "dense/4", *NAMED_ARMS)
        config.evaluation.tasks = 4
    return config


def add_sft(config: config_dict.ConfigDict, argument: str | None, steps: int = 3400) -> None:
    """Adds imitation of the expert that the options name.

    Args:
      config, argument: of the run.
      steps: of a fresh policy; each sees games of its own.
    """
    options = parse_matrix_options(argument)
    config.sft.batch_size, config.sft.steps = 16, steps
    config.sft.num_decisions = math.ceil(steps * 16 / (1 - config.sft.held_out))
    config.sft.learning_rate, config.sft.final_learning_rate = 2e-3, 1e-4
    config.sft.warmup_steps = 50
    if options["policy"] != "fresh":
        config.sft.steps, config.sft.num_decisions = 60, 600
        config.sft.batch_size, config.sft.warmup_steps = 8, 4
        config.sft.learning_rate, config.sft.final_learning_rate = 5e-4, 5e-5
    if options["runlocal"]:
        config.sft.steps, config.sft.num_decisions, config.sft.batch_size = 4, 40, 4


def add_rl(config: config_dict.ConfigDict, argument: str | None, steps: int = 100) -> None:
    """Adds reinforcement learning on 1 - residual; `steps` are those of a fresh policy."""
    options = parse_matrix_options(argument)
    if options["policy"] == "fresh":
        config.rollout.row_length = 576  # a reply may be as long as max_action_tokens allows
    config.rl.steps, config.rl.tasks_per_step, config.rl.rollouts_per_task = steps, 16, 8
    config.rl.learning_rate, config.rl.final_learning_rate = 3e-4, 3e-5
    if options["policy"] != "fresh":
        config.rl.steps, config.rl.tasks_per_step, config.rl.rollouts_per_task = 20, 4, 4
        config.rl.learning_rate, config.rl.final_learning_rate = 3e-4, 3e-5
    if options["runlocal"]:
        config.rl.steps, config.rl.tasks_per_step, config.rl.rollouts_per_task = 2, 2, 2


def parse_matrix_options(argument: str | None) -> dict[str, Any]:
    """Options of the configs of matrix games."""
    return parse_options(argument, algorithm="rloo", expert="")


def matrix_table(name: str, stage: str, argument: str | None, title: str) -> dict[str, Any]:
    """The results table of a run's last stage: how often answers are valid on trained sizes, and
    successful on each arm; baselines on the same games below.

    Args:
      name: of the config. stage: of `STAGES`.
      argument: of the config.
      title: what was trained, and how.
    """
    config = matrix_config(name, argument)
    policy = parse_matrix_options(argument)["policy"]
    sizes = config.policy
    learner = f"A fresh policy ({sizes.num_layers} layers of width {sizes.hidden_size})"
    if policy != "fresh":
        learner = f"Adapters of rank 16 on `{policy}`"
    columns = {f"{stage}/dense/{n}/valid": f"valid {n}x{n}" for n in TRAINED}
    columns |= {
        f"{stage}/{arm}/success": label_of(arm) for arm in config.domain.options.arms or ARMS
    }
    return {
        "title": f"{learner}, {title}: share of valid answers on trained sizes, and of success.",
        "columns": columns,
        "baselines": BASELINES,
        "notes": (
            f"Success: a valid answer whose two-sided residual is at most a tenth of the payoff "
            f"range; {config.evaluation.tasks} games an arm, the same for every seed; replies are "
            "greedy. Trained on dense games of sizes 2 and 3 alone, "
            f"{MIXED_SHARE:.0%} of them without a pure equilibrium. Minutes are of the whole run, "
            "compilation included."
        ),
    }


def seeds(count: int) -> Callable[[Callable[..., None]], None]:
    """A config's `sweep`: runs of the first `count` seeds."""

    def sweep(add: Callable[..., None]) -> None:
        for seed in range(count):
            add(seed=seed)

    return sweep


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["validation_loss", "reward", "task/valid", "task/success"]
