"""What the config files of teams share: options, tasks, sizes, the results table.

A config file names its domain and workflow; see `configs/srpo/math_fixed.py`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import config_dict

from ..domains.arguments import check_integer
from ..domains.search.world import LEAST_PEOPLE
from ..losses import SET_SCALES
from ..names import check_option
from .game_configs import (
    new_config,
    parse_options,
    sweep_over,
    use_adapters,
    use_small_policy,
    variant,
)

ALGORITHMS = ("srpo", "dr_mas", "at_grpo", "grpo")
COMPARED = {"": "SRPO", "algorithm=dr_mas": "Dr. MAS"}
REDUCTIONS = ("event_mean", "token_mean")
# Domain -> option that says how many members its parallel events have.
MEMBERS = {"math": "solvers", "search": "workers"}
# Domain -> its figure of right answers.
SUCCESS = {"math": "accuracy", "search": "exact"}
# Domain -> players beside the teams -> their labels.
BASELINES = {
    "math": {"random": "guesses", "solver": "one scripted solver", "experts": "scripted team"},
    "search": {"random": "random title", "one_query": "one query", "oracle": "scripted team"},
}
SAMPLES = 16  # answers to each question when judged, of the paper
USUAL_MEMBERS = 3
# Algorithm -> what differs from its row. These teams are paid when their episode ends, so all turns
# but the last earn nothing at once: AT-GRPO compares what is earned from the turn on.
OF_TEAMS: Mapping[str, Mapping[str, str]] = {"at_grpo": {"returns": "to_go"}}
USUAL = {"algorithm": "srpo", "ratio_scale": "sqrt", "reduce": "event_mean"}


def parse_team_options(domain: str, argument: str | None) -> dict[str, Any]:
    """Options of the configs of teams.

    Raises:
      ValueError: an unknown option or choice, with the nearest; or a choice of SRPO's for another
        algorithm.
    """
    options = parse_options(argument, **USUAL, **{MEMBERS[domain]: USUAL_MEMBERS})
    check_choices(options)
    return options


def check_choices(options: Mapping[str, Any]) -> None:
    """Checks the choices of `USUAL`; ValueError as of `parse_team_options`."""
    check_option("algorithm", options["algorithm"], ALGORITHMS)
    check_option("ratio_scale", options["ratio_scale"], SET_SCALES)
    check_option("reduce", options["reduce"], REDUCTIONS)
    for name in ("ratio_scale", "reduce"):
        if options["algorithm"] != "srpo" and options[name] != USUAL[name]:
            raise ValueError(
                f"{name}={options[name]} is a choice of algorithm=srpo, and the algorithm is "
                f"{options['algorithm']}; leave {name} out"
            )


def use_choices(config: config_dict.ConfigDict, domain: str, options: Mapping[str, Any]) -> None:
    """Sets algorithm and members as the options say, and names the run after those that are not
    usual; ValueError for a team without members."""
    members = MEMBERS[domain]
    check_integer(members, options[members], minimum=1)
    config.name += variant(dict(options), **USUAL)
    if options[members] != USUAL_MEMBERS:
        config.name += f"_{options[members]}_{members}"
    config.domain.name = domain
    config.domain.options = {members: options[members]}
    config.algorithm.name = options["algorithm"]
    chosen = {name: options[name] for name in ("ratio_scale", "reduce")}
    chosen = {name: choice for name, choice in chosen.items() if choice != USUAL[name]}
    config.algorithm.overrides = {**OF_TEAMS.get(options["algorithm"], {}), **chosen}
    config.evaluation.task_samples = SAMPLES


def team_config(
    domain: str, workflow: str, argument: str | None, options: Mapping[str, Any]
) -> config_dict.ConfigDict:
    """The config of a team, without any training stage.

    Args:
      domain: of `MEMBERS`.
      workflow: of the domain.
      argument: comma-separated options: `algorithm=srpo|dr_mas|at_grpo|grpo`,
        `ratio_scale=sqrt|sum|mean|length` and `reduce=event_mean|token_mean` of "srpo",
        `solvers=<number>` in mathematics and `workers=<number>` in search, `policy=fresh|smollm2|
        <model name, hub id, directory or .gguf>`, `runlocal` for a smoke run.
      options: further ones of the domain.
    """
    chosen = parse_team_options(domain, argument)
    config = new_config(f"srpo_{domain}_{workflow}", chosen["policy"])
    use_choices(config, domain, chosen)
    config.domain.options.update({"workflow": workflow, **options})
    config.sft.steps, config.sepo.steps, config.rl.steps = 0, 0, 0
    config.sft.held_out = 0.02
    config.checkpoint.every = 1000
    config.evaluation.every = 1000
    if chosen["policy"] == "fresh":
        use_small_policy(config)
    else:
        use_adapters(config, chosen["policy"])
    return config


def math_config(workflow: str, argument: str | None) -> config_dict.ConfigDict:
    """A team that does sums of two and three numbers; solvers who imitate the scripted ones guess
    three times in ten, and work the sum out otherwise, and routers ask all solvers every other
    time.

    A solver writes each sum before the answer: those of questions to be judged by occur in others
    that are trained on. Of a routed team fewer decisions are those of solvers, so there are more
    to imitate; its episodes are longer, so there are fewer batches of them.
    """
    routed = workflow == "routed"
    options = {"kinds": ("chain",), "difficulties": (1, 2), "malformed_penalty": 0.1}
    options |= {"imitate_errors": True} | ({"router_error_rate": 0.5} if routed else {})
    config = team_config("math", workflow, argument, options)
    config.policy.individual_digits = config.policy.source == "fresh"
    config.rollout.capacity, config.rollout.row_length = 384, 384
    config.rollout.max_action_tokens = 40
    config.evaluation.tasks = 20
    add_sft(config, argument, steps=600 if routed else 500, batch_size=64)
    add_rl(config, argument, steps=25 if routed else 30, tasks=12, rollouts=8)
    return config


def search_config(workflow: str, argument: str | None) -> config_dict.ConfigDict:
    """A team that looks facts up in a world of thirty people.

    Every fact is told by a document, and questions to be judged by are others about the same
    things. Workers who imitate the scripted ones look for another thing three times in ten, and
    verifiers err once. Where a router chooses, some questions need two workers at a time.
    """
    kinds = ("1_hop", "2_hops", "compare_2") if workflow == "routed" else ("1_hop", "2_hops")
    options = {"kinds": kinds, "people": LEAST_PEOPLE, "rounds": 2}
    options |= {"error_rate": 0.3, "verifier_error_rate": 0.1}
    config = team_config("search", workflow, argument, options)
    if config.policy.source == "fresh":
        config.policy.vocab_size = 1024  # most names are one or two tokens
    config.rollout.capacity, config.rollout.row_length = 448, 448
    config.rollout.max_action_tokens = 24
    config.evaluation.tasks = 16 if len(kinds) == 2 else 11
    add_sft(config, argument, steps=400, batch_size=32)
    add_rl(config, argument, steps=30, tasks=16, rollouts=5)
    return config


def add_sft(
    config: config_dict.ConfigDict, argument: str | None, *, steps: int, batch_size: int
) -> None:
    """Adds imitation of scripted members; an example is a decision, and each is seen once.

    Args:
      config, argument: of the run.
      steps: updates. batch_size: examples of each.
    """
    sft, chosen = config.sft, parse_team_options(config.domain.name, argument)
    sft.steps, sft.batch_size, sft.warmup_steps = steps, batch_size, 20
    sft.learning_rate, sft.final_learning_rate = 2e-3, 1e-4
    if chosen["policy"] != "fresh":
        sft.steps, sft.batch_size, sft.warmup_steps = 30, 8, 4
        sft.learning_rate, sft.final_learning_rate = 5e-4, 5e-5
    if chosen["runlocal"]:
        sft.steps, sft.batch_size = 2, 4
    sft.num_decisions = math.ceil(sft.steps * sft.batch_size / (1 - sft.held_out))


def add_rl(
    config: config_dict.ConfigDict, argument: str | None, *, steps: int, tasks: int, rollouts: int
) -> None:
    """Adds reinforcement learning: two updates a batch, since ratios are 1 in the first, where all
    ways to combine and clip them are the same but for weights.

    Args:
      config, argument: of the run.
      steps: batches.
      tasks: of a batch. rollouts: episodes of each task, which are compared.
    """
    rl, chosen = config.rl, parse_team_options(config.domain.name, argument)
    rl.steps, rl.tasks_per_step, rl.rollouts_per_task = steps, tasks, rollouts
    rl.learning_rate, rl.final_learning_rate, rl.warmup_steps = 3e-4, 1e-4, 4
    config.optimizer.updates_per_batch = 2
    if chosen["policy"] != "fresh":
        # What two cores score in minutes.
        rl.steps, rl.tasks_per_step, rl.rollouts_per_task = 4, 2, 4
        rl.learning_rate, rl.final_learning_rate = 3e-4, 3e-5
        config.rollout.slots, config.optimizer.micro_batches = 32, 4
        config.evaluation.tasks, config.evaluation.task_samples = 2, 4
    if chosen["runlocal"]:
        rl.steps, rl.tasks_per_step, rl.rollouts_per_task = 2, 2, 2
        config.evaluation.tasks, config.evaluation.task_samples = 2, 2


def team_table(config: config_dict.ConfigDict) -> dict[str, Any]:
    """The results table: right answers before and after reinforcement learning, what they cost,
    and how steady the gradient was; `config` is that of a run."""
    domain, samples = config.domain.name, config.evaluation.task_samples
    workflow, members = config.domain.options.workflow, config.domain.options[MEMBERS[domain]]
    learner = "A fresh team (three layers of width 64, shared by all roles)"
    if config.policy.source != "fresh":
        learner = f"A team of adapters of rank {config.policy.lora_rank}, shared by all roles,"
    episodes = config.rl.tasks_per_step * config.rl.rollouts_per_task
    success = SUCCESS[domain]
    return {
        "title": f"{learner} in the {workflow} workflow of {domain} with {members} "
        f"{MEMBERS[domain]}: imitation of scripted members, then {config.rl.steps} batches of "
        f"{episodes} episodes.",
        "columns": {
            f"sft/{success}": f"SFT Avg@{samples}",
            f"sft/pass@{samples}": f"SFT Pass@{samples}",
            f"rl/{success}": f"Avg@{samples}",
            f"rl/pass@{samples}": f"Pass@{samples}",
            "rl/active_set": "active set",
            "rl/tokens": "tokens a question",
            "rl/step_mean/sampled_tokens": "tokens a batch",
            "rl/step_seconds/generate": "play of a batch, s",
            "rl/step_mean/gradient_norm": "gradient norm",
            "rl/step_cv/gradient_norm": "its CV",
        },
        "baselines": BASELINES[domain],
        "variants": COMPARED,
        "notes": (
            f"Avg@{samples}: share of right answers, {samples} to each question that is not "
            f"trained on; Pass@{samples}: share of questions of which one is right; baselines "
            "answer each once. Active set: mean members of an event. Tokens are sampled ones. Wall "
            f"time a question is the play of a batch over its {episodes} episodes. CV: standard "
            "deviation over the mean, of the batches of a run. ± is half the 95% interval over "
            "seeds (Student's t). Minutes are of the whole run, compilation and imitation included."
        ),
    }


def sweep_of(seeds: int) -> Callable[[Callable[..., None]], None]:
    """A config's `sweep`: both algorithms compared with the first `seeds` seeds."""
    return sweep_over(COMPARED, seeds)


def plots() -> list[str]:
    """Metrics that a run is read from."""
    return ["validation_loss", "reward", "gradient_norm", "active_set", "sampled_tokens"]
