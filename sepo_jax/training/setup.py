"""What a config names, made: the domain, its compiled game, its sandboxes, the policy and its
tokenizer."""

import contextlib
import dataclasses
import inspect
from typing import Any

import chex
import jax

from ..algorithms import Algorithm
from ..domains.checks import check_players
from ..domains.joint import JointDomain
from ..domains.tasks import is_task_domain, missing_parts
from ..domains.teams import is_team
from ..domains.teams import seats as team_seats
from ..evaluation.matches import GAMES
from ..games import TreeGame
from ..names import check_option, imported
from ..policy import ModelConfig, Policy, Sampling, load, train_tokenizer
from ..policy.config import LoraConfig
from ..policy.formats.hugging_face import read_config
from ..policy.lora import apart
from ..policy.models import MODELS
from ..rollout import Branching, EngineOptions
from ..rollout.forests import name_id
from ..sandbox.environments import domain_environments
from ..sandbox.in_process import InProcessPool
from ..sandbox.isolation import Limits
from ..sandbox.process_pool import ProcessPool
from ..sandbox.protocol import Pool
from ..sandbox.ray_pool import RayPool
from .settings import (
    DomainSettings,
    PolicySettings,
    RewardSettings,
    SandboxSettings,
    Settings,
)
from .supervised_data import further_messages

DOMAINS = {
    "kuhn": "sepo_jax.domains.kuhn:Kuhn",
    "ipd": "sepo_jax.domains.ipd:IteratedPrisonersDilemma",
    "auction": "sepo_jax.domains.auction:RepeatedAuction",
    "negotiation_v1": "sepo_jax.domains.negotiation_v1:SplitBargaining",
    "negotiation_v2": "sepo_jax.domains.negotiation_v2:ItemNegotiation",
    "matrix": "sepo_jax.evaluation.matrix_domain:MatrixBenchmark",
    "webshop": "sepo_jax.domains.webshop:WebShop",
    "corridor": "sepo_jax.domains.corridor:Corridor",
    "repository": "sepo_jax.evaluation.repository_domain:RepositoryRepair",
    "alfworld": "sepo_jax.domains.alfworld:AlfWorld",
    "search": "sepo_jax.domains.search:SearchTeam",
    "math": "sepo_jax.domains.math:MathTeam",
}
ADAPTERS = ("shared", "per_role")
_OWN_DOMAIN = "my_module:MyClass"
_DOMAIN_PARTS = ("name", "max_payoff", "pools", "experts", "new_episode", "expert_traces")
# Fields of the config that no domain takes by their names.
_NOT_OPTIONS = ("name", "games", "invalid_penalty", "options")
BACKENDS = ("in_process", "processes", "ray")
_TOKENIZER_EXAMPLES = 400
_FRESH = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
    "initializer_range",
)
_MAX_POSITIONS = 4096


def make_domain(settings: DomainSettings) -> Any:
    """The domain that the config names, a `JointDomain` where it names several games.

    Raises:
      ValueError: an unknown name with the nearest, a class that is no domain or names no players
        that can be played with (`check_players`), fewer than two games, or an option that none of
        the domains takes.
    """
    classes = [domain_class(name) for name in settings.games or (settings.name,)]
    taken = [inspect.signature(each).parameters for each in classes]
    options = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in _NOT_OPTIONS:
            continue
        if value != field.default and not any(field.name in names for names in taken):
            listed = sorted({name for names in taken for name in names})
            raise ValueError(
                f"domain.{field.name}={value!r} is no option of "
                f"{', '.join(settings.games or (settings.name,))}, which takes "
                f"{', '.join(listed)}; leave it at {field.default!r}"
            )
        if field.name != "rounds" or value:
            options[field.name] = value
    for name in settings.options:
        check_option("domain.options", name, {each for names in taken for each in names})
    options |= settings.options
    domains = [
        each(**{name: value for name, value in options.items() if name in names})
        for each, names in zip(classes, taken, strict=True)
    ]
    for domain in domains:
        _check_domain(domain)
        if settings.games and is_task_domain(domain):
            raise ValueError(
                f"domain.games={settings.games}: {domain.name!r} has no opponents, and only games "
                "are trained jointly; train it on its own as domain.name"
            )
    return JointDomain(domains, settings.name) if settings.games else domains[0]


def _check_domain(domain: Any) -> None:
    of_tasks = is_task_domain(domain)
    lacking = [part for part in _DOMAIN_PARTS if not hasattr(domain, part)]
    missing = missing_parts(domain) if of_tasks else lacking
    if missing:
        place = "tasks.TaskDomain" if of_tasks else "base.Domain"
        raise ValueError(
            f"{type(domain).__name__} is no domain: it lacks {', '.join(missing)} (see "
            f"sepo_jax.domains.{place})"
        )
    if not of_tasks:
        check_players(domain)


def domain_class(name: str) -> Any:
    """A class by its name in `DOMAINS`, or as "my_module:MyClass"."""
    if ":" not in name:
        check_option("domain", name, [*DOMAINS, _OWN_DOMAIN])
    return imported("domain.name", DOMAINS.get(name, name), _OWN_DOMAIN)


def game_of(domain: Any) -> TreeGame | None:
    """The compiled game with the domain's rules, or None where it is not small enough for one."""
    return GAMES.get(getattr(domain, "game", None))


def make_pool(settings: SandboxSettings, domain: Any) -> contextlib.AbstractContextManager[Pool]:
    """The domain's environments in the backend that the config names; closed on leaving.

    Raises:
      ValueError: an unknown backend, numbers out of range, or a domain that does not pickle where
        it must reach other processes.
      ImportError: a backend whose extra is not installed.
    """
    check_option("sandbox.backend", settings.backend, BACKENDS)
    factory = domain_environments(domain)
    if settings.backend == "in_process":
        return InProcessPool(factory)
    limits = Limits(
        seconds=settings.seconds,
        cpu_seconds=settings.cpu_seconds,
        memory_bytes=settings.memory_bytes,
        processes=settings.processes,
        file_bytes=settings.file_bytes,
        network=settings.network,
        writable=settings.writable,
    )
    bounds = {"max_restarts": settings.max_restarts, "retries": settings.retries}
    if settings.backend == "processes":
        return ProcessPool(factory, workers=settings.workers, limits=limits, **bounds)
    places = {"actors": settings.actors, "workers_per_actor": settings.workers}
    return RayPool(factory, **places, limits=limits, **bounds)


def evaluation_sampling(settings: Settings) -> Sampling:
    """How replies are drawn when a policy is judged: no token is cut off."""
    return Sampling(settings.rollout.temperature, greedy=settings.evaluation.greedy)


def engine_options(settings: Settings, sampling: Sampling) -> EngineOptions:
    """Sizes of the rollout engine as the config has them; ValueError for what does not fit."""
    rollout = settings.rollout
    return EngineOptions(
        slots=rollout.slots,
        capacity=rollout.capacity,
        max_action_tokens=rollout.max_action_tokens,
        exchange_interval=rollout.exchange_interval,
        sampling=sampling,
        prefill_widths=rollout.prefill_widths,
        prefill_rows=rollout.prefill_rows,
        driver=rollout.driver,
        devices=rollout.devices,
        max_failed_fraction=settings.sandbox.max_failed_fraction,
    )


def seated(policy: Policy, params: chex.ArrayTree, domain: Any) -> dict[str, Any]:
    """Who plays an episode: arguments `policy`, `params` and `seats` of `rollout.play`.

    One policy plays all seats of a domain. Where roles have adapters of their own (`role_policy`)
    it is one policy a role, with that role's adapter: they share all other weights, and each has
    slots and caches of its own, as many as `rollout.slots` says.
    """
    members = team_seats(domain) if is_team(domain) else [("", 0)]
    if policy.num_adapters == 1:
        return {"policy": policy, "params": params, "seats": (0,) * len(members)}
    config, parts = apart(policy.config, params)
    roles = list(domain.roles)
    return {
        "policy": [dataclasses.replace(policy, config=config)] * len(parts),
        "params": parts,
        "seats": tuple(roles.index(role) for role, _ in members),
    }


def branching_of(rl: RewardSettings) -> Branching:
    """How the episodes of a task branch: as many trees as its rollouts make up."""
    tree = Branching(
        branch_points=rl.branch_points,
        continuations=rl.continuations,
        selector=rl.branch_selector,
        spacing=rl.branch_spacing,
        entropy_of=rl.branch_entropy,
        threshold=rl.branch_threshold,
    )
    return dataclasses.replace(tree, trees_per_prompt=rl.rollouts_per_task // tree.leaves)


def branching_of_step(rl: RewardSettings) -> list[Branching]:
    """`branching_of` for each task of a step; the first ones, a share `rl.root_share` of them to
    the nearest number, have as many independent episodes instead."""
    trees = branching_of(rl)
    whole = dataclasses.replace(trees, branch_points=0, trees_per_prompt=rl.rollouts_per_task)
    first = round(rl.root_share * rl.tasks_per_step)
    return [whole] * first + [trees] * (rl.tasks_per_step - first)


def check_comparison(row: Algorithm, rl: RewardSettings) -> None:
    """Raises ValueError where tasks are played without branch points, and the row compares nothing
    else: all advantages would be 0."""
    if not row.compares_within_trees_alone or (rl.branch_points and not rl.root_share):
        return
    raise ValueError(
        f"algorithm {row.name!r} with compare={row.compare!r} and prefix_credit="
        f"{row.prefix_credit!r} compares nothing where there are no branch points, and here are "
        f"branch_points={rl.branch_points}, root_share={rl.root_share}: set rl.branch_points and "
        "leave root_share at 0, or take another row"
    )


def check_critic(row: Algorithm, policy: Policy) -> None:
    """Raises ValueError where the row takes its advantages from a critic that the policy lacks."""
    if row.baseline == "critic" and not policy.config.value_head:
        raise ValueError(
            f"algorithm {row.name!r} has baseline='critic', and the policy has no value head: set "
            "policy.value_head=True, or take a row that needs none"
        )


def make_policy(settings: Settings, domain: Any) -> tuple[Policy, chex.ArrayTree]:
    """The policy of a config and its parameters before training, without an adapter.

    A fresh policy gets a tokenizer trained on the domain's own text, so nothing is downloaded.

    Raises:
      FileNotFoundError: no model at `policy.source`.
      ValueError: sizes of a fresh policy for one that brings its own, adapters that fit no layer,
        and what `policy.load` refuses.
    """
    wanted = settings.policy
    if wanted.source == "fresh":
        texts = corpus(domain, settings.sft.data_seed)
        tokenizer = train_tokenizer(
            texts, wanted.vocab_size, individual_digits=wanted.individual_digits
        )
        key = jax.random.key(settings.seed)
        policy, params = load(model_config(wanted), tokenizer=tokenizer, key=key)
    else:
        _refuse_fresh_sizes(wanted)
        try:
            policy, params = load(wanted.source, **load_options(wanted))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"policy.source={wanted.source!r}: {error} {_HINT}") from error
    return policy, params


def role_policy(settings: Settings, policy: Policy, domain: Any) -> Policy:
    """The policy that reinforcement learning trains: `policy`, or with
    `policy.adapters = "per_role"` the same with an adapter for each role of the domain.

    Raises:
      ValueError: an unknown option, or "per_role" where no adapter or no role is trained.
    """
    check_option("policy.adapters", settings.policy.adapters, ADAPTERS)
    if settings.policy.adapters == "shared":
        return policy
    refused = "policy.adapters='per_role' gives every role of a team an adapter, but"
    shared = 'or set policy.adapters="shared"'
    if not is_team(domain):
        raise ValueError(f"{refused} domain {domain.name!r} has no roles; choose a team, {shared}")
    if policy.config.lora is None:
        raise ValueError(
            f"{refused} policy.lora_rank=0 trains all parameters; raise policy.lora_rank, {shared}"
        )
    if not settings.rl.steps:
        raise ValueError(
            f"{refused} rl.steps=0, and no other stage trains them; raise rl.steps, {shared}"
        )
    if settings.optimizer.name == "muon":
        raise ValueError(
            f"{refused} optimizer.name='muon' would make the update of one depend on the others; "
            f'set optimizer.name="adamw", {shared}'
        )
    agents = tuple(name_id(role) for role in domain.roles)
    lora = dataclasses.replace(policy.config.lora, agents=agents)
    return dataclasses.replace(policy, config=dataclasses.replace(policy.config, lora=lora))


_HINT = (
    'A source is "fresh", a Hugging Face directory, a .gguf file, a hub id or one of '
    f"{', '.join(MODELS)}; `python experiments/get_smollm2.py` makes models/smollm2-135m."
)


def _refuse_fresh_sizes(settings: PolicySettings) -> None:
    defaults = PolicySettings()
    fresh = (*_FRESH, "individual_digits")
    changed = [name for name in fresh if getattr(settings, name) != getattr(defaults, name)]
    if changed:
        raise ValueError(
            f"{', '.join(f'policy.{name}' for name in changed)} describe a fresh policy, but "
            f"policy.source={settings.source!r} brings its own; leave them at their defaults"
        )


def load_options(settings: PolicySettings) -> dict[str, Any]:
    """What a config chooses about any policy, as fields of ModelConfig.

    Left out is what the checkpoint decides: its dtype and its value head, unless they are chosen.
    """
    options: dict[str, Any] = {
        "compute_dtype": settings.compute_dtype,
        "cache_dtype": settings.cache_dtype,
        "remat": settings.remat,
        "logits_budget": settings.logits_budget,
    }
    if settings.param_dtype:
        options["param_dtype"] = settings.param_dtype
    if settings.value_head:
        options["value_head"] = True
    if settings.lora_rank:
        options["lora"] = LoraConfig(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    return options


def model_config(settings: PolicySettings) -> ModelConfig:
    """The ModelConfig of a config's policy, without reading weights; nothing is fetched for a model
    that has a name here.

    Raises:
      FileNotFoundError: no model at `policy.source`.
    """
    options = load_options(settings)
    if settings.source in MODELS:
        return dataclasses.replace(MODELS[settings.source].config, **options)
    if settings.source != "fresh":
        return read_config(settings.source, **options)
    return ModelConfig(
        **{name: getattr(settings, name) for name in _FRESH},
        max_positions=_MAX_POSITIONS,
        **options,
    )


def corpus(domain: Any, seed: int) -> list[str]:
    """Text of the domain that a tokenizer is trained on: prompts and replies of expert traces, each
    turn of a conversation once."""
    texts, talk = [], []
    for messages, reply in domain.expert_traces(_TOKENIZER_EXAMPLES, seed):
        further = further_messages(talk, messages) or messages
        texts += [message["content"] for message in further] + [reply]
        talk = [*messages, {"role": "assistant", "content": reply}]
    return texts
