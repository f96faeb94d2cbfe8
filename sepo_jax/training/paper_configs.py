"""What the config files of the paper's models share: BPO at the horizons of arXiv 2607.14171.

A config file names its model; see `configs/bpo/qwen2_5_7b.py`.
"""

from collections.abc import Callable
from typing import Any

from ml_collections import config_dict

from ..algorithms import ALGORITHMS
from ..names import check_option
from .branching_configs import BRANCH_POINTS, CONTINUATIONS, OF_TREES
from .command_line import parse_argument
from .game_configs import new_config, variant

TASKS = ("webshop", "alfworld", "repository")
# Of the comparison of siblings: prefix credits, and "root", whole rollouts in half of the tasks.
CREDITS = ("tree", "lambda", "none", "root")
HORIZONS = {"webshop": 50, "alfworld": 40, "repository": 25}  # of the paper, in turns
LEAVES = 1 + BRANCH_POINTS * (CONTINUATIONS - 1)  # N
CAPACITY = 8192


def parse_model_options(argument: str | None) -> dict[str, Any]:
    """Options of the configs of the paper's models.

    Raises:
      ValueError: an unknown option, task, credit or algorithm, with the nearest; credit of another
        algorithm than "bpo".
    """
    options = parse_argument(argument, task="webshop", data="", algorithm="bpo", credit="tree")
    check_option("task", options["task"], TASKS)
    check_option("credit", options["credit"], CREDITS)
    check_option("algorithm", options["algorithm"], ALGORITHMS)
    if options["algorithm"] != "bpo" and options["credit"] != "tree":
        raise ValueError(
            f"credit={options['credit']} is a choice of algorithm=bpo, and the algorithm is "
            f"{options['algorithm']}; leave credit out"
        )
    return options


def model_config(name: str, model: str, argument: str | None) -> config_dict.ConfigDict:
    """The config of a published model on one of the paper's tasks.

    Args:
      name: of the model in the names of runs.
      model: of `policy.models.MODELS`.
      argument: comma-separated options: `task=webshop|alfworld|repository`, `data=<official files:
        a directory, or the JSONL file of SWE-bench>`, `algorithm=<row of the table>`, and of "bpo"
        `credit=tree|lambda|none|root`.
    """
    options = parse_model_options(argument)
    task = options["task"]
    config = large_config(f"bpo_{task}_{name}", model)
    config.name += variant(options, algorithm="bpo", credit="tree")
    _learn(config, options)
    rollout = config.rollout
    rollout.slots, rollout.capacity, rollout.row_length = 32, CAPACITY, CAPACITY
    rollout.max_action_tokens, rollout.exchange_interval = 64, 8
    rollout.prefill_widths, rollout.prefill_rows = (128, 512), 4
    config.sandbox.retries = 1  # a worker that dies costs no leaf
    {"webshop": _webshop, "alfworld": _alfworld, "repository": _repository}[task](
        config, options["data"]
    )
    return config


def large_config(name: str, model: str) -> config_dict.ConfigDict:
    """The config of a run that trains all parameters of a published model on 16 chips, without any
    training stage: moments and gradients are spread over all of them."""
    config = new_config(name, model)
    config.policy.param_dtype, config.policy.compute_dtype = "float32", "bfloat16"
    config.policy.cache_dtype, config.policy.remat = "bfloat16", "layer"
    config.sft.steps, config.sepo.steps = 0, 0
    config.parallel.kind, config.parallel.fsdp = "mesh", 16
    config.parallel.topology = "v5p:2x2x4"
    config.checkpoint.every = 10
    return config


def _learn(config: config_dict.ConfigDict, options: dict[str, Any]) -> None:
    rl, algorithm = config.rl, config.algorithm
    rl.steps, rl.tasks_per_step, rl.rollouts_per_task = 150, 16, LEAVES
    rl.learning_rate, rl.final_learning_rate = 1e-6, 1e-6
    algorithm.name = options["algorithm"]
    changed = {"kl_weight": 0.01, "kl_kind": "k3"}
    if ALGORITHMS[options["algorithm"]].compare in OF_TREES:
        rl.branch_points, rl.continuations = BRANCH_POINTS, CONTINUATIONS
    if options["credit"] in ("lambda", "none"):
        changed |= {"prefix_credit": options["credit"], "segment_weight": "uniform"}
    if options["credit"] == "root":
        rl.root_share = 0.5
        changed["count_no_spread"] = False  # what is above the first branch point is masked
    algorithm.overrides = changed
    # 16 tasks of 7 episodes are 112 rows at most, 7 of each chip: one at a time.
    config.optimizer.micro_batches = LEAVES


def _webshop(config: config_dict.ConfigDict, data: str) -> None:
    """Environments of a process share the catalogue, which is large: they live in this one."""
    config.domain.name = "webshop"
    config.domain.options = {"max_turns": HORIZONS["webshop"], "results_per_page": 5}
    config.evaluation.tasks = 200
    if data:
        config.domain.options.update({"data": data, "products": 0, "title_words": 12})
        config.evaluation.tasks = 500
    config.sandbox.backend = "in_process"


def _alfworld(config: config_dict.ConfigDict, data: str) -> None:
    """A step takes a processor 10 to 80 ms, and a large room seconds to load."""
    config.domain.name = "alfworld"
    config.domain.options = {"max_turns": HORIZONS["alfworld"], "data": data}
    # Of each type; the official unseen split has 134 in all, at most 31 of a type.
    config.evaluation.tasks = 31 if data else 20
    config.sandbox.backend, config.sandbox.workers = "processes", 16


def _repository(config: config_dict.ConfigDict, data: str) -> None:
    """Replies may be edits of several lines, and commands run tests."""
    config.domain.name = "repository"
    config.domain.options = {"turns": HORIZONS["repository"], "output_limit": 400}
    config.domain.options.quarantined = ""
    config.rollout.max_action_tokens = 128
    config.evaluation.tasks = 20
    sandbox = config.sandbox
    sandbox.backend, sandbox.workers, sandbox.processes = "processes", 16, 64
    sandbox.seconds, sandbox.cpu_seconds = 300.0, 300.0
    if data:
        config.domain.options.instances = data
        config.evaluation.tasks = 125  # a quarter of SWE-bench Verified is not trained on
        sandbox.network = True  # a container engine is asked through a socket
        sandbox.seconds = 2400.0  # the tests of an instance may run for 1,800 s


def model_table(name: str, model: str, argument: str | None) -> dict[str, Any]:
    """The results table of a run, as `experiments/sweep.py` writes it."""
    options = parse_model_options(argument)
    rl, task = model_config(name, model, argument).rl, options["task"]
    chosen = variant(options, algorithm="bpo", credit="tree").replace("_", " ")
    return {
        "title": f"`{model}` on {task}{chosen}: success before and after training.",
        "columns": {"untrained/success": "success untrained", "rl/success": "success RL"},
        "notes": (
            f"{rl.rollouts_per_task} episodes of each of {rl.tasks_per_step} tasks a step, "
            f"{rl.steps} steps, at most {HORIZONS[task]} turns an episode."
        ),
    }


def add_seeds(add: Callable[..., None]) -> None:
    """Adds a run for each of three seeds."""
    for seed in range(3):
        add(seed=seed)
