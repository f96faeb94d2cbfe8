"""What a config names, made: the domain, its compiled game, the policy and its tokenizer."""

import dataclasses
from pathlib import Path
from typing import Any

import chex
import jax

from ..domains import Kuhn
from ..evaluation.matches import GAMES
from ..games import TreeGame
from ..names import check_option
from ..policy import ModelConfig, Policy, load, train_tokenizer
from .settings import DomainSettings, PolicySettings, Settings

DOMAINS = {"kuhn": Kuhn}
_TOKENIZER_EXAMPLES = 400
_FRESH = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
)
_MAX_POSITIONS = 4096


def make_domain(settings: DomainSettings) -> Any:
    """The domain that the config names.

    Raises:
      ValueError: an unknown name or option, with the nearest.
    """
    check_option("domain", settings.name, DOMAINS)
    options = dataclasses.asdict(settings)
    for name in ("name", "invalid_penalty"):
        options.pop(name)
    return DOMAINS[settings.name](**options)


def game_of(domain: Any) -> TreeGame | None:
    """The compiled game with the domain's rules, or None where it is not small enough for one."""
    return GAMES.get(getattr(domain, "game", None))


def make_policy(settings: Settings, domain: Any) -> tuple[Policy, chex.ArrayTree]:
    """The policy of a config and its parameters before training.

    A fresh policy gets a tokenizer trained on the domain's own text, so nothing is downloaded.

    Raises:
      FileNotFoundError: `policy.source` is no directory.
    """
    wanted = settings.policy
    if wanted.source == "fresh":
        texts = corpus(domain, settings.sft.data_seed)
        tokenizer = train_tokenizer(texts, wanted.vocab_size)
        return load(model_config(wanted), tokenizer=tokenizer, key=jax.random.key(settings.seed))
    changed = [name for name in _FRESH if getattr(wanted, name) != getattr(PolicySettings(), name)]
    if changed:
        raise ValueError(
            f"{', '.join(f'policy.{name}' for name in changed)} describe a fresh policy, but "
            f"policy.source={wanted.source!r} brings its own; leave them at their defaults"
        )
    if not wanted.source or not Path(wanted.source).exists():
        raise FileNotFoundError(
            f'policy.source={wanted.source!r} is no directory; give "fresh" or a Hugging Face '
            "directory"
        )
    critic = {"value_head": True} if wanted.value_head else {}
    return load(wanted.source, compute_dtype=wanted.compute_dtype, remat=wanted.remat, **critic)


def model_config(settings: PolicySettings) -> ModelConfig:
    """Sizes of a fresh decoder."""
    return ModelConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        intermediate_size=settings.intermediate_size,
        max_positions=_MAX_POSITIONS,
        compute_dtype=settings.compute_dtype,
        remat=settings.remat,
        value_head=settings.value_head,
    )


def corpus(domain: Any, seed: int) -> list[str]:
    """Text of the domain that a tokenizer is trained on: prompts and replies of expert traces."""
    texts = []
    for messages, reply in domain.expert_traces(_TOKENIZER_EXAMPLES, seed):
        texts += [message["content"] for message in messages] + [reply]
    return texts
