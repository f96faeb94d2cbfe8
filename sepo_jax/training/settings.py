"""The typed form of a config: one frozen dataclass a section, every field read by the code.

A config file returns an `ml_collections.ConfigDict` with these sections and fields. `read_settings`
turns it into `Settings` and refuses what it does not know, with the nearest name, and what has the
wrong type, with both types. A test fails for a field that no code reads.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..names import check_option
from ..rollout.selectors import ENTROPIES, SELECTORS
from .sections import read_section
from .setting_ranges import check_numbers


@dataclasses.dataclass(frozen=True)
class PolicySettings:
    """Where the policy comes from, and how it computes.

    `source` is a Hugging Face directory, a .gguf file, a hub id such as "Qwen/Qwen3-4B", a name of
    `policy.models.MODELS`, or "fresh" for a new decoder of the sizes below. With `lora_rank` above
    0 adapters are trained in place of all parameters. Full fine-tuning wants float32 parameters:
    small updates vanish in bfloat16.
    """

    source: str = "fresh"
    vocab_size: int = 512
    individual_digits: bool = False  # of a fresh policy's tokenizer: a token for each digit
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    intermediate_size: int = 256
    initializer_range: float = 0.02  # standard deviation of fresh embeddings
    compute_dtype: str = "float32"
    param_dtype: str = ""  # "" = the checkpoint's own; float32 for a fresh policy
    cache_dtype: str = "float32"
    remat: str = "none"  # recomputed in the backward pass: each "layer", or all but its "dots"
    logits_budget: int = 2**21  # float32 logits that may exist at a time while scoring
    value_head: bool = False  # a critic, which PPO needs
    lora_rank: int = 0  # 0 = full fine-tuning
    lora_alpha: float = 32.0
    lora_targets: tuple = ("q_proj", "k_proj", "v_proj", "o_proj")
    # Of a team in its rl stage: "shared" by all roles, or one "per_role", beside frozen parameters.
    # The supervised stage before it trains one that all share.
    adapters: str = "shared"


@dataclasses.dataclass(frozen=True)
class DomainSettings:
    """The task and its rules.

    `name` is one of `training.setup.DOMAINS`, or an own class as "my_module:MyClass". With `games`,
    two names or more, one policy is trained on all of them, and `name` is a label. The fields below
    `invalid_penalty` are handed to each domain that takes them.
    """

    name: str = "kuhn"
    games: tuple = ()
    invalid_penalty: float = 1.0  # subtracted from the reward for each unparsable reply
    hands: int = 1
    faithful: bool = False
    on_invalid: str = "fallback"
    collusion: str = "none"
    rounds: int = 0  # of a match; 0 = the game's own number
    # Further arguments of the domain's class by name.
    options: Mapping = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SftSettings:
    """Supervised warm start. `steps = 0` leaves the stage out.

    It learns from the file `data` (one conversation a line, see `domains.chat_files`); without one
    from `num_decisions` expert traces of the domain, made in memory with `data_seed`, a share
    `held_out` held out. With a file these two say nothing. An example is a decision, or all
    decisions of a conversation that follow each other.
    """

    steps: int = 200
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    final_learning_rate: float = 1e-4
    batch_size: int = 64  # examples a step
    num_decisions: int = 8000  # decisions in the data set
    held_out: float = 0.2  # share of the examples, at least one, that the loss is measured on
    data_seed: int = 42
    data: str = ""  # a train.jsonl, such as experiments/make_sft_data.py writes
    validation_data: str = ""  # "" = valid.jsonl beside it


@dataclasses.dataclass(frozen=True)
class SepoSettings:
    """The reward of SEPO and what is played to measure it. `steps = 0` leaves the stage out.

    An empty pool tuple stands for all opponents that the domain names in that pool; "best_response"
    among the exploiters is the exact best response to the policy, computed anew at every step. In a
    run over several games each takes the names that it has, and one without any plays all of its.
    """

    steps: int = 100
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    final_learning_rate: float = 0.0
    exploitability_weight: float = 1.5
    collusion_weight: float = 0.0
    externality_weight: float = 0.0
    # Game -> its own (exploitability, collusion, externality) in place of the three weights.
    game_weights: Mapping = dataclasses.field(default_factory=dict)
    # "sepo", or a baseline without penalties: "reward_only", "welfare_only" (see `sepo.reward`).
    objective: str = "sepo"
    # Clamp the mean over all exploiters in place of each one's own; evaluation always does each.
    pooled_exploiters: bool = False
    # With "credited" each opponent is compared with itself, so an algorithm that divides by the
    # spread of a group (scale != "none") forgets how much the terms of the objective weigh.
    credit: str = "credited"
    train_pool: tuple = ()
    exploiter_pool: tuple = ("best_response",)
    collusive_pool: tuple = ()
    groups_per_opponent: int = 12  # initial states dealt to each opponent a step
    rollouts_per_group: int = 8  # episodes that share one initial state
    # Episodes that measure penalties, for each opponent of the exploiter and collusive pools: of
    # each train episode ("per_rollout"), or times those of a train opponent ("shared").
    exploiter_episodes: int = 1
    # What is compared: decisions at the same "prompt", decisions of the same "round" (the first,
    # the second, ... of their episodes), such decisions from one initial state, "deal_round", whole
    # episodes from the same "deal", or all episodes against the same "opponent"; always within one
    # opponent.
    group_by: str = "prompt"
    # What a decision earns, where decisions are compared: the rewards of its round and of all
    # later ones, "to_go", or of its round alone, "immediate" (the paper's).
    returns: str = "to_go"
    # How often a step plays episodes anew, with fresh samples, all of whose decisions are compared
    # within groups of equal returns: nothing is learned from those. The step then trains on what
    # there is; where no group at all has a spread, the run stops. 0: never anew, and no stop.
    max_resample: int = 0


@dataclasses.dataclass(frozen=True)
class RewardSettings:
    """Reinforcement learning on the rewards that tasks pay. `steps = 0` leaves the stage out.

    It is for domains of tasks (`domains.tasks.TaskDomain`); `SepoSettings` is for games. With
    branch points, the episodes of a task are the leaves of trees (`rollout.branching`): a tree has
    1 + branch_points (continuations - 1) of them, and there are as many trees as make up
    `rollouts_per_task`. Without, they are independent.

    The first tasks of a step, a share `root_share` of them, have independent episodes all the same.
    With one tree of each other task and algorithm "bpo", that is the root RLOO mix: whole rollouts
    are compared at the root, continuations at their branch points, and what lies above the first
    branch point of a tree has no advantage (with the override count_no_spread=False no part in any
    denominator either). A task weighs the same however it is played.
    """

    steps: int = 0
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    final_learning_rate: float = 0.0
    tasks_per_step: int = 32
    rollouts_per_task: int = 8  # episodes of a task, which are compared
    branch_points: int = 0  # of each tree
    continuations: int = 4  # of each branch point, the trunk's own among them
    branch_selector: str = "entropy"  # or "uniform", "lowest", "threshold"
    branch_spacing: int = 64  # tokens of the context between two branch points
    branch_entropy: str = "first_token"  # of an action, or the "mean" over its tokens
    branch_threshold: float = 1.0  # nats, of selector "threshold"
    root_share: float = 0.0  # share of a step's tasks that are played without branch points


@dataclasses.dataclass(frozen=True)
class AlgorithmSettings:
    """A row of the algorithm table by name, and fields of that row to replace."""

    name: str = "rloo"
    overrides: Mapping = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW behind a global-norm clip, or Muon for the layers' projections and AdamW for the rest
    (see `update.make_optimizer`); the same optimizer serves all stages."""

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    micro_batches: int = 1  # parts a batch is split into on each device
    updates_per_batch: int = 1  # of what was sampled; supervised batches have one
    on_nonfinite: str = "stop"  # "stop" ends the run; "skip" drops the update and counts it


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    """Generation and the rows it is packed into.

    With `overlap` the episodes of a step are played while the update before it runs, by the policy
    that this update starts from: one step behind, which the ratio of the algorithm corrects. The
    first step and those after a checkpoint are played by the current policy.
    """

    slots: int = 128  # contexts decoded at once on each device
    capacity: int = 256  # most tokens of a context, prompt and replies together
    max_action_tokens: int = 8
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    exchange_interval: int = 4  # tokens decoded between two visits of the host
    prefill_widths: tuple = (16, 32, 64, 128)  # tokens of a prompt that are computed at a time
    prefill_rows: int = 1  # prompts that are computed side by side
    driver: str = "host_loop"  # or "in_jit": the whole loop is one program
    overlap: bool = False  # with updates; costs a copy of the trained parameters
    devices: int = 1  # of this process, that decode
    row_length: int = 256


@dataclasses.dataclass(frozen=True)
class SandboxSettings:
    """Where environments run, and what they may use there.

    Backends: "in_process" for pure games, "processes" for code that needs limits, "ray" for many
    machines (an extra). Without processes of their own environments have no limits.
    """

    backend: str = "in_process"
    workers: int = 2  # processes; with Ray those of each actor
    actors: int = 1  # of Ray, as a rule one for each machine
    seconds: float = 60.0  # wall time of a call
    cpu_seconds: float = 60.0  # CPU time of a call
    memory_bytes: int = 4 * 2**30  # address space of a worker
    processes: int = 0  # that an environment may start
    file_bytes: int = 64 * 2**20  # size of a file
    network: bool = False
    writable: tuple = ()  # paths beside the environment's own directory
    max_restarts: int = 3  # of each worker, before it is given up
    retries: int = 0  # of a call that ended its worker
    max_failed_fraction: float = 0.5  # share of failed episodes that ends the run


@dataclasses.dataclass(frozen=True)
class ParallelSettings:
    """How the update is spread: "single", "pmap", "mesh", or "auto" (pmap on several devices).

    `topology` names the TPU slice that a config is meant for, such as "v5p:2x2x4": what
    experiments/dry_run.py compiles it for.
    """

    kind: str = "auto"
    devices: int = 0  # 0 = all devices of all processes
    fsdp: int = 1  # devices on the fsdp axis of a mesh
    tensor: int = 1  # devices on the tensor axis of a mesh
    topology: str = ""


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Exact evaluation every so many steps; match play, or tasks, at the end of every stage."""

    every: int = 10
    match_episodes: int = 200  # episodes against each opponent of each pool
    tasks: int = 100  # of each kind
    task_samples: int = 1  # replies to each task
    untrained: bool = True  # judge the policy before it is trained, too
    # The likeliest token in place of one drawn at `rollout.temperature`.
    greedy: bool = False
    # (exploitability, collusion, externality) of the safety score; empty = those of training.
    weights: tuple = ()


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """Steps between checkpoints, and how many of a stage are kept."""

    every: int = 50
    keep: int = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """A whole run."""

    name: str = "run"
    seed: int = 0
    objective: str = ""  # "my_module:my_function" for an own loss or algorithm
    policy: PolicySettings = PolicySettings()
    domain: DomainSettings = DomainSettings()
    sft: SftSettings = SftSettings()
    sepo: SepoSettings = SepoSettings()
    rl: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    rollout: RolloutSettings = RolloutSettings()
    sandbox: SandboxSettings = SandboxSettings()
    parallel: ParallelSettings = ParallelSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()


def read_settings(config: Any) -> Settings:
    """`Settings` of a ConfigDict, a mapping, or Settings itself.

    Raises:
      ValueError: unknown field (the nearest is offered), a value of the wrong type, or a number out
        of range.
    """
    if isinstance(config, Settings):
        return _check_ranges(config)
    values = config.to_dict() if hasattr(config, "to_dict") else config
    return _check_ranges(read_section(Settings, values, "config"))


def _check_ranges(settings: Settings) -> Settings:
    check_numbers(flatten(to_dict(settings)))
    _check_branching(settings.rl)
    return settings


def _check_branching(rl: RewardSettings) -> None:
    check_option("rl.branch_selector", rl.branch_selector, SELECTORS)
    check_option("rl.branch_entropy", rl.branch_entropy, ENTROPIES)
    if rl.root_share > 1:
        raise ValueError(f"config.rl.root_share must lie between 0 and 1, got {rl.root_share}")
    if rl.branch_points and rl.continuations < 2:
        raise ValueError(
            f"config.rl.branch_points={rl.branch_points} with continuations={rl.continuations} "
            "branch nowhere: the trunk is one of the continuations; set continuations to 2 or "
            "more, or branch_points to 0"
        )
    if rl.root_share and not rl.branch_points:
        raise ValueError(
            f"config.rl.root_share={rl.root_share} is the share of tasks without branch points, "
            "and branch_points=0: no task has any; set branch_points, or root_share to 0"
        )
    leaves = 1 + rl.branch_points * (rl.continuations - 1)
    if rl.rollouts_per_task % leaves:
        raise ValueError(
            f"config.rl.rollouts_per_task={rl.rollouts_per_task} is no multiple of the {leaves} "
            f"leaves of a tree with branch_points={rl.branch_points} and continuations="
            f"{rl.continuations}; set it to {leaves * (rl.rollouts_per_task // leaves + 1)}, or "
            "other numbers of those"
        )


def to_dict(settings: Settings) -> dict:
    """Plain nested dictionary of `settings`, as `config.json` holds it."""
    return dataclasses.asdict(settings)


def flatten(tree: Mapping, prefix: str = "") -> dict[str, Any]:
    """Nested mapping to flat dotted keys; lists become tuples so that JSON round trips compare."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = tuple(value) if isinstance(value, list) else value
    return flat


def differences(old: Mapping, new: Mapping) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ between two configs, with both values.

    A field that a config does not have is at its default: it was written before there was one.
    """
    defaults = flatten(to_dict(Settings()))
    left, right = flatten(old), flatten(new)
    found = {}
    for key in sorted(left.keys() | right.keys()):
        absent = defaults.get(key, "(absent)")
        pair = left.get(key, absent), right.get(key, absent)
        if pair[0] != pair[1]:
            found[key] = pair
    return found
