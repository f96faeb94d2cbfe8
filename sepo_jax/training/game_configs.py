"""What the config files of SEPO's games share: their options, their sizes, their results table.

A config file names its games and numbers; see `configs/sepo/ipd.py`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from ..algorithms import ALGORITHMS
from ..names import check_option
from ..policy import MODELS
from ..sepo import CREDITS, OBJECTIVES
from .command_line import parse_argument
from .decisions import RETURNS
from .settings import Settings, to_dict

# Names of policies -> where they are; what is not named here is a source itself.
SOURCES = {"fresh": "fresh", "smollm2": "models/smollm2-135m"}
STAGES = {"untrained": "base", "sft": "SFT", "sepo": "SEPO"}
SEEDS = (0, 1, 2)
_DEALT = ("auction", "negotiation_v2")
_ALLOWED = {
    "credit": CREDITS,
    "algorithm": ALGORITHMS,
    "objective": OBJECTIVES,
    "returns": RETURNS,
}


def parse_options(argument: str | None, **defaults: Any) -> dict[str, Any]:
    """The options of a config argument: `policy`, `runlocal`, and the defaults of the config's own.

    Raises:
      ValueError: an unknown option, policy or other name, with the nearest.
    """
    options = parse_argument(argument, policy="fresh", runlocal=False, **defaults)
    for name, allowed in _ALLOWED.items():
        if options.get(name):
            check_option(name, options[name], allowed)
    policy = options["policy"]
    if "/" not in policy and not Path(policy).exists():
        check_option("policy", policy, [*SOURCES, *MODELS])
    return options


def new_config(name: str, policy: str) -> config_dict.ConfigDict:
    """The default settings as a ConfigDict, with the policy of an option."""
    config = config_dict.ConfigDict(to_dict(Settings()), convert_dict=True)
    config.name = name
    config.policy.source = SOURCES.get(policy, policy)
    return config


def use_small_policy(config: config_dict.ConfigDict) -> None:
    """Makes the fresh policy three layers deep, trained by Muon, and leaves out judging it before
    it is trained: nobody can read its replies."""
    config.policy.num_layers, config.policy.initializer_range = 3, 0.1
    config.policy.num_heads, config.policy.num_kv_heads = 2, 1
    config.optimizer.name = "muon"
    config.evaluation.untrained = False


def use_adapters(config: config_dict.ConfigDict, policy: str) -> None:
    """Makes adapters of rank 16 what is trained, and names the run after the policy."""
    config.name += "_" + re.sub(r"[^\w.-]", "_", Path(policy).name)
    config.policy.lora_rank = 16
    config.policy.lora_alpha = 32.0
    if policy not in SOURCES:
        # Of billions of parameters, for accelerators. On CPU bfloat16 is no faster than float32.
        config.policy.compute_dtype = "bfloat16"
        config.policy.remat = "layer"


def game_config(
    games: Sequence[str], weights: tuple[float, float, float], argument: str | None
) -> config_dict.ConfigDict:
    """The config of SEPO on one repeated game, or on several jointly.

    Args:
      games: names of `training.setup.DOMAINS`.
      weights: lambda_e, lambda_c, lambda_x.
      argument: comma-separated options: `policy=fresh|smollm2|<model name, hub id, directory or
        .gguf>`, `credit=`, `algorithm=`, `objective=`, `returns=` as in the settings, `paper` for
        the authors' numbers (`use_paper_numbers`) and of a named model a slice (`use_slice`),
        `runlocal` for a smoke run.
    """
    options = parse_game_options(argument)
    policy, joint = options["policy"], len(games) > 1
    config = new_config(run_name(games), policy)
    config.name += variant(options, objective="sepo")
    config.domain.name = "joint" if joint else games[0]
    config.domain.games = tuple(games) if joint else ()
    sepo = config.sepo
    sepo.exploitability_weight, sepo.collusion_weight, sepo.externality_weight = weights
    sepo.exploiter_pool = ()
    # Where chance deals values or items, what is compared starts from the same deal.
    sepo.group_by = "deal_round" if joint or games[0] in _DEALT else "round"
    sepo.objective, config.algorithm.name = options["objective"], "rloo"
    config.sft.num_decisions = 4000 * len(games)
    config.sft.steps, config.sft.batch_size = 250, 32
    config.sft.learning_rate, config.sft.final_learning_rate = 3e-3, 3e-4
    sepo.steps = 20 if joint else 40
    sepo.learning_rate, sepo.final_learning_rate = 5e-4 if joint else 1e-3, 1e-4
    sepo.warmup_steps = 3 if joint else 0
    sepo.groups_per_opponent, sepo.rollouts_per_group = 2, 2 if joint else 4
    if games[0] == "negotiation_v2":
        # Many deals differ more than many rollouts of one, and a demand must be read off the pool.
        config.sft.steps, sepo.steps = 400, 25
        sepo.groups_per_opponent, sepo.rollouts_per_group = 6, 2
        config.domain.invalid_penalty = 2.0  # a demand beyond the pool is invalid
    config.rollout.capacity = 384
    config.rollout.row_length = 512
    config.evaluation.match_episodes = 20 if joint else 40
    # A held-out loss takes as long as ten steps.
    config.evaluation.every = 125 if joint else 50
    config.checkpoint.every = 20
    if policy != "fresh":
        use_adapters(config, policy)
        config.domain.rounds = 3  # short matches: a round costs a forward pass of every prompt
        config.sft.steps, config.sft.num_decisions = 30, 1200
        config.sft.batch_size, config.sft.warmup_steps = 8, 4
        config.sft.learning_rate, config.sft.final_learning_rate = 5e-4, 5e-5
        sepo.groups_per_opponent = 2
        sepo.steps, sepo.learning_rate, sepo.final_learning_rate = 4, 3e-4, 3e-5
        sepo.rollouts_per_group = 2 if sepo.group_by == "deal_round" else 1
        config.optimizer.micro_batches = 4  # activations of a quarter of the rows at a time
        config.rollout.slots = 64
        config.rollout.capacity = 512
        config.rollout.row_length = 1024
        config.evaluation.match_episodes = 8
    if options["paper"]:
        use_paper_numbers(config)
        if policy not in SOURCES:
            use_slice(config)
    sepo.credit = options["credit"] or sepo.credit
    sepo.returns = options["returns"] or sepo.returns
    config.algorithm.name = options["algorithm"] or config.algorithm.name
    if options["runlocal"]:
        config.sft.steps, config.sft.num_decisions = 4, 200
        sepo.steps, sepo.rollouts_per_group = 2, 2
        config.evaluation.match_episodes = 2
    return config


def parse_game_options(argument: str | None) -> dict[str, Any]:
    """Options of the configs of repeated games; "" for a choice that is left to the config."""
    return parse_options(
        argument, credit="", algorithm="", objective="sepo", returns="", paper=False
    )


def variant(options: dict[str, Any], **usual: Any) -> str:
    """What a run's name says of choices other than the usual ones, so that no two share a directory
    or a table: "_reward_only", "_shared_grpo", "_paper"."""
    names = (
        *("objective", "credit", "algorithm", "returns", "exploiters", "expert"),
        *("prefix_credit", "selector", "ratio_scale", "reduce"),
    )
    chosen = [options[name] for name in names if options.get(name, "") != usual.get(name, "")]
    return "".join(f"_{each}" for each in [*chosen, *(["paper"] if options.get("paper") else [])])


def run_name(games: Sequence[str]) -> str:
    """Name of a run over these games."""
    return "sepo_all" if len(games) > 1 else f"sepo_{games[0]}"


def use_paper_numbers(config: config_dict.ConfigDict) -> None:
    """The authors' numbers for Gemma 4 E4B and Qwen3.5-4B (arXiv 2605.30854, docs/commands.md).

    Adapters of rank 16, alpha 32 on the attention; GRPO by round with the payoffs of the round
    alone, penalties of each rollout's own auxiliary episodes, four rollouts an opponent, learning
    rate 1e-5 and KL weight 0.1, 100 steps; temperature 0.8; warm start over three passes in batches
    of 8 at 2e-5. Their top-p, top-k and repetition penalty are left out: tokens drawn so could not
    be scored exactly.
    """
    games = max(len(config.domain.games), 1)
    config.sft.num_decisions, config.sft.batch_size = 8000 * games, 8
    config.sft.steps, config.sft.warmup_steps = 2400 * games, 100
    config.sft.learning_rate, config.sft.final_learning_rate = 2e-5, 0.0
    sepo = config.sepo
    sepo.group_by = "round"  # theirs compare all rollouts against an opponent
    sepo.credit, sepo.returns, config.algorithm.name = "per_rollout", "immediate", "grpo"
    config.algorithm.overrides = {"ratio": "sequence", "kl_weight": 0.1}
    sepo.groups_per_opponent, sepo.rollouts_per_group = 2, 2
    sepo.steps, sepo.learning_rate, sepo.final_learning_rate = 100, 1e-5, 1e-5
    config.domain.rounds, config.domain.invalid_penalty = 0, 1.0  # the game's own rounds
    config.rollout.temperature = 0.8
    config.rollout.max_action_tokens = 512
    config.rollout.slots, config.rollout.capacity, config.rollout.row_length = 128, 1024, 2048
    config.optimizer.micro_batches = 1
    config.evaluation.match_episodes = 8
    config.checkpoint.every = 25


def use_slice(config: config_dict.ConfigDict) -> None:
    """Spreads a model of billions of frozen parameters over the 16 chips of a slice, and halves
    what its slots take."""
    config.parallel.topology = "v5e:4x4"
    config.parallel.kind, config.parallel.fsdp = "mesh", 16
    config.policy.cache_dtype, config.rollout.slots = "bfloat16", 32


def result_table(
    games: Sequence[str], weights: tuple[float, float, float], argument: str | None
) -> dict[str, Any]:
    """Title, columns (keys of `summary.json` and their headings) and notes of the results table."""
    options = parse_game_options(argument)
    policy, chosen = options["policy"], variant(options, objective="sepo").replace("_", " ", 1)
    config = game_config(games, weights, argument)
    episodes, rounds = config.evaluation.match_episodes, config.domain.rounds
    matches = f" Matches have {rounds} rounds." if rounds else ""
    figures = {"safety": "safety", "exploit_pool_advantage": "e", "utility": "utility"}
    if len(games) > 1:
        figures = {f"{game}/safety": f"{game} safety" for game in games}
    columns = _by_stage({"safety": "safety", **figures})
    if len(games) == 1:
        columns["sepo/nra_sepo"], columns["sepo/legal_rate"] = "NRA SEPO", "legal SEPO"
    learner = "A fresh policy (two layers of width 64)"
    if policy != "fresh":
        learner = f"Adapters of rank 16 on `{policy}`"
    named = ", ".join(games) + (f" ({chosen.strip()})" if chosen else "")
    return {
        "title": f"{learner} on {named}: before training, after SFT, after SEPO.",
        "columns": columns,
        "notes": (
            f"Figures are over {episodes} episodes against every scripted opponent, payoffs a "
            f"round. Safety is J with weights {', '.join(f'{weight:g}' for weight in weights)} of "
            f"e, c, x; in joint runs the mean over the games.{matches} Minutes are of the whole "
            "run, compilation included."
        ),
    }


def _by_stage(figures: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{stage}/{figure}": f"{heading} {label}"
        for figure, heading in figures.items()
        for stage, label in STAGES.items()
    }


def add_seeds(add: Callable[..., None]) -> None:
    """Adds a run for each of three seeds."""
    for seed in SEEDS:
        add(seed=seed)


def sweep_over(arguments: Iterable[str], seeds: int) -> Callable[[Callable[..., None]], None]:
    """A config's `sweep`: every argument with the first `seeds` seeds."""

    def sweep(add: Callable[..., None]) -> None:
        for seed in range(seeds):
            for argument in arguments:
                add(argument=argument, seed=seed)

    return sweep


def plots() -> list[str]:
    """Metrics that the claims are read from."""
    return ["safety", "utility", "exploit_pool_advantage", "collusion", "externality"]
