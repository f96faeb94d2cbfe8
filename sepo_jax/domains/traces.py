"""Decisions of a domain's experts, for supervised fine-tuning."""

from collections.abc import Callable, Sequence
from typing import Any

from sepo_jax.domains.base import Message, View, check_integer, derive_seed, stream


def expert_traces(
    domain: Any,
    num_decisions: int,
    seed: int,
    *,
    reason: Callable[[View, str], str] | None = None,
) -> list[tuple[list[Message], str]]:
    """Expert decisions of a domain as prompts and replies.

    Each episode draws one expert by the weights of `domain.experts` and meets the opponents of all
    pools in turn.

    Args:
      domain: see `domains.base.Domain`.
      num_decisions: number of (messages, reply) pairs returned.
      seed: fixes everything.
      reason: line of reasoning that goes before an action word; None for the word alone.
    """
    check_integer("num_decisions", num_decisions, minimum=0)
    opponents = opponent_names(domain)
    names = list(domain.experts)
    weights = [domain.experts[name][0] for name in names]
    traces: list[tuple[list[Message], str]] = []
    index = 0
    while len(traces) < num_decisions:
        rng = stream(seed, "expert", index)
        expert = domain.experts[rng.choices(names, weights)[0]][1]()
        expert.reset(rng)
        opponent = opponents[index % len(opponents)]
        episode = domain.new_episode(opponent, derive_seed(seed, "trace", index))
        while not episode.done:
            view, messages = episode.view(), episode.messages()
            word = view.legal_actions[expert.act(view)]
            reply = f"{reason(view, word)}\n{word}" if reason else word
            traces.append((messages, reply))
            episode.step(reply)
        index += 1
    return traces[:num_decisions]


def opponent_names(domain: Any) -> Sequence[str]:
    """Names of the opponents of all pools, each once."""
    return list(dict.fromkeys(name for pool in domain.pools.values() for name in pool))
