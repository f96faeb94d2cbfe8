"""Decisions of a domain's experts, for supervised fine-tuning."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sepo_jax.domains.arguments import check_integer
from sepo_jax.domains.base import Message, View, check_action
from sepo_jax.domains.checks import check_players
from sepo_jax.domains.seeds import derive_seed, stream

Reason = Callable[[View, str], str]
"""Line of reasoning that goes with an action word."""


@dataclass(frozen=True)
class Trace:
    """One decision of an expert, and where it was taken.

    Attributes:
      messages: the prompt.
      reply: what the expert answers; its last line is `word`.
      word: the action.
      expert, opponent: names of the two players of the episode.
      episode: index of the episode, from 0.
      round: index of the round in the episode, from 0.
      payoff: what the expert earns in that round, in the domain's units; a round of several
        decisions is the same for all of them.
    """

    messages: tuple[Message, ...]
    reply: str
    word: str
    expert: str
    opponent: str
    episode: int
    round: int
    payoff: float


def play_experts(domain: Any, seed: int, *, reason: Reason | None = None) -> Iterator[Trace]:
    """Decisions of experts, episode after episode, without end.

    Each episode draws one expert by the weights of `domain.experts` and meets the opponents of all
    pools in turn: `len(opponent_names(domain))` episodes in a row are a pass over them.

    Args:
      domain: see `domains.base.Domain`.
      seed: fixes everything.
      reason: line of reasoning that goes before an action word; None for the word alone.

    Raises:
      ValueError: no experts, players that cannot be played with (`checks.check_players`), an
        expert's move that is not legal, or a reply that the domain reads as another action than
        the expert's, or as none.
    """
    check_players(domain)
    if not domain.experts:
        raise ValueError(f"{domain.name} has no experts whose decisions could be learned")
    opponents = opponent_names(domain)
    names = list(domain.experts)
    weights = [domain.experts[name][0] for name in names]
    index = 0
    while True:
        rng = stream(seed, "expert", index)
        name = rng.choices(names, weights)[0]
        expert = domain.experts[name][1]()
        expert.reset(rng)
        opponent = opponents[index % len(opponents)]
        episode = domain.new_episode(opponent, derive_seed(seed, "trace", index))
        while not episode.done:
            view = episode.view()
            action = check_action(f"expert {name}", expert.act(view), view.legal_actions)
            word = view.legal_actions[action]
            reply = f"{reason(view, word)}\n{word}" if reason else word
            episode.step(reply)
            read = episode.decisions[-1]
            if not read.valid or read.action != action:
                raise ValueError(
                    f"expert {name} of {domain.name} chose {word!r}, but its reply {reply!r} is "
                    f"read as {view.legal_actions[read.action] if read.valid else 'no action'!r}"
                )
        for decision in episode.decisions:
            yield Trace(
                messages=decision.messages,
                reply=decision.text,
                word=decision.text.splitlines()[-1],
                expert=name,
                opponent=opponent,
                episode=index,
                round=decision.round,
                payoff=episode.rounds[decision.round].own,
            )
        index += 1


def expert_traces(
    domain: Any, num_decisions: int, seed: int, *, reason: Reason | None = None
) -> list[tuple[list[Message], str]]:
    """Expert decisions of a domain as prompts and replies; see `play_experts`.

    Args:
      domain: see `domains.base.Domain`.
      num_decisions: number of (messages, reply) pairs returned.
      seed: fixes everything.
      reason: line of reasoning that goes before an action word; None for the word alone.
    """
    check_integer("num_decisions", num_decisions, minimum=0)
    traces = islice(play_experts(domain, seed, reason=reason), num_decisions)
    return [(list(trace.messages), trace.reply) for trace in traces]


def opponent_names(domain: Any) -> Sequence[str]:
    """Names of the opponents of all pools, each once."""
    return list(dict.fromkeys(name for pool in domain.pools.values() for name in pool))
