"""What the config files of SRPO's models share: teams for mathematics and for search.

A config file names its model and domain; see `configs/srpo/qwen3_8b.py`.

The paper's workers, group, batch, clip, learning rate, KL weight and prompts are not known. Those
of Dr. MAS, beside whose rows its figures stand, are taken: in mathematics eight episodes of each of
32 problems, replies of at most 4,096 tokens and 0.1 taken off for one that nobody can read; in
search five of each of 128 questions, 800 tokens, four rounds and 0.01; clip 0.2, no KL, and where
all parameters are trained learning rate 1e-6. Other than theirs: workflows with parallel members,
three of them, and what is shown of candidates and documents; adapters of rank 32 at 1e-5; BM25 in
place of E5; one update a batch in place of five; judged at temperature 1 with no token cut off, not
at 0.6 with top-p 0.95; Qwen3 is not told not to think.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from ..domains.math import flows
from ..domains.search import team
from ..names import check_option
from .command_line import parse_argument
from .paper_configs import large_config
from .team_configs import (
    MEMBERS,
    SAMPLES,
    SUCCESS,
    USUAL,
    USUAL_MEMBERS,
    check_choices,
    use_choices,
)

WORKFLOWS = {"math": flows.WORKFLOWS, "search": team.WORKFLOWS}
USUAL_WORKFLOW = {"math": "fixed", "search": "routed"}
ADAPTERS = ("per_role", "shared", "none")
RANK = 32
REPLY = {"math": 4096, "search": 800}  # tokens
# Of a context: a problem and what is shown of three candidates, or documents of four rounds.
PROMPT = {"math": 1536, "search": 4320}
GROUP = {"math": 8, "search": 5}
BATCH = {"math": 32, "search": 128}
# A part has room for the members of an event, in up to three rows. So has every part of mathematics
# where all contexts are as long as they may be; of search they are a fifth of it on the whole.
MICRO_BATCHES = {"math": 32, "search": 64}
# Of each role where these have adapters of their own, of all together else.
SLOTS = {"math": 8, "search": 16}
TRAINING, CORPUS = "train.jsonl", "corpus.jsonl"


def parse_options(domain: str, argument: str | None) -> dict[str, Any]:
    """Options of the configs of SRPO's models.

    Raises:
      ValueError: an unknown option or choice, with the nearest; or a choice of SRPO's for another
        algorithm.
    """
    options = parse_argument(
        argument,
        workflow=USUAL_WORKFLOW[domain],
        data="",
        adapters="per_role",
        **USUAL,
        **{MEMBERS[domain]: USUAL_MEMBERS},
    )
    check_option("workflow", options["workflow"], WORKFLOWS[domain])
    check_option("adapters", options["adapters"], ADAPTERS)
    check_choices(options)
    return options


def team_config(name: str, model: str, domain: str, argument: str | None) -> config_dict.ConfigDict:
    """The config of a team of a published model.

    Args:
      name: of the model in the names of runs.
      model: of `policy.models.MODELS`.
      domain: "math" or "search".
      argument: comma-separated options: `workflow=<of the domain>`, `data=<directory>` for other
        questions than generated ones (`_use_files`), `adapters=per_role|shared|none` for training
        an adapter a role, one that all share, or all parameters, and `algorithm=`, `ratio_scale=`,
        `reduce=`, `solvers=` or `workers=` of `team_configs.team_config`.

    Raises:
      FileNotFoundError: a file that the directory lacks.
    """
    options = parse_options(domain, argument)
    config = large_config(f"srpo_{domain}_{name}", model)
    if options["workflow"] != USUAL_WORKFLOW[domain]:
        config.name += f"_{options['workflow']}"
    use_choices(config, domain, options)
    config.domain.options.workflow = options["workflow"]
    _learn(config, domain)
    if options["adapters"] != "per_role":
        config.name += f"_{options['adapters']}_adapters"
    if options["adapters"] != "none":
        _use_adapters(config, options["adapters"])
    {"math": _math, "search": _search}[domain](config)
    if options["data"]:
        _use_files(config, domain, Path(options["data"]))
    return config


def _learn(config: config_dict.ConfigDict, domain: str) -> None:
    rl, rollout = config.rl, config.rollout
    rl.steps, rl.tasks_per_step, rl.rollouts_per_task = 200, BATCH[domain], GROUP[domain]
    rl.learning_rate, rl.final_learning_rate = 1e-6, 1e-6
    rollout.max_action_tokens = REPLY[domain]
    rollout.capacity = rollout.row_length = REPLY[domain] + PROMPT[domain]
    rollout.slots, rollout.exchange_interval = SLOTS[domain], 16
    rollout.prefill_widths, rollout.prefill_rows = (128, 512), 4
    config.optimizer.micro_batches = MICRO_BATCHES[domain]


def _use_adapters(config: config_dict.ConfigDict, adapters: str) -> None:
    config.policy.lora_rank, config.policy.lora_alpha = RANK, 2.0 * RANK
    config.policy.adapters = adapters
    config.policy.param_dtype = "bfloat16"  # of what stays as it is
    config.rl.learning_rate, config.rl.final_learning_rate = 1e-5, 1e-5


def _math(config: config_dict.ConfigDict) -> None:
    options = {"malformed_penalty": 0.1, "candidate_characters": 600}
    config.domain.options.update({**options, "difficulties": (1, 2, 3, 4, 5)})
    config.evaluation.tasks = 100
    # The checker of answers is a process of its own, which these may start.
    sandbox = config.sandbox
    sandbox.backend, sandbox.workers, sandbox.processes = "processes", 16, 8


def _search(config: config_dict.ConfigDict) -> None:
    """Environments of a process share the corpus, which is large: they live in this one."""
    options = {"malformed_penalty": 0.01, "rounds": 4, "results": 2, "snippet_words": 100}
    config.domain.options.update({**options, "people": 384})
    config.evaluation.tasks = 100
    config.sandbox.backend = "in_process"


def _use_files(config: config_dict.ConfigDict, domain: str, directory: Path) -> None:
    """Takes questions from a directory: train.jsonl to train on, every other file to be judged by;
    of search also corpus.jsonl, whose index is kept beside it."""
    needed = [TRAINING, CORPUS] if domain == "search" else [TRAINING]
    for name in needed:
        if not (directory / name).is_file():
            raise FileNotFoundError(
                f"data={directory} has no {name}; such a directory holds {', '.join(needed)} and "
                "files to be judged by"
            )
    judged = sorted(str(path) for path in directory.glob("*.jsonl") if path.name not in needed)
    options = config.domain.options
    options.evaluation = tuple(judged)
    if domain == "math":
        options.problems = str(directory / TRAINING)
        config.evaluation.tasks = 1000  # all of each file
        return
    options.questions, options.corpus = str(directory / TRAINING), str(directory / CORPUS)
    options.index_directory = str(directory / "index")
    config.evaluation.tasks = 125  # of each file; Bamboogle has no more


def team_table(name: str, model: str, domain: str, argument: str | None) -> dict[str, Any]:
    """The results table of a run, as `experiments/sweep.py` writes it."""
    config = team_config(name, model, domain, argument)
    success, rl = SUCCESS[domain], config.rl
    return {
        "title": f"`{model}` in the {config.domain.options.workflow} workflow of {domain} "
        f"({config.name}): before and after training.",
        "columns": {
            f"untrained/{success}": f"untrained Avg@{SAMPLES}",
            f"untrained/pass@{SAMPLES}": f"untrained Pass@{SAMPLES}",
            f"rl/{success}": f"Avg@{SAMPLES}",
            f"rl/pass@{SAMPLES}": f"Pass@{SAMPLES}",
            "rl/active_set": "active set",
            "rl/tokens": "tokens a question",
        },
        "notes": (
            f"{rl.rollouts_per_task} episodes of each of {rl.tasks_per_step} questions a step, "
            f"{rl.steps} steps, replies of at most {config.rollout.max_action_tokens} tokens."
        ),
    }


def add_seeds(add: Callable[..., None]) -> None:
    """Adds a run for each of three seeds."""
    for seed in range(3):
        add(seed=seed)
