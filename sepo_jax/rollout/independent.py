"""Independent episodes: every decision is a fresh context, its prompt a root, its reply a child."""

from collections.abc import Sequence
from typing import Any

import chex
import numpy as np

from ..forest import Forest, ForestBuilder, observation_hash
from ..policy import Policy, Sampling, render
from .requests import WHOLE_SOFTMAX, Completion, EngineOptions, Request, run_requests


def play(
    policy: Policy,
    params: chex.ArrayTree,
    episodes: Sequence[Any],
    *,
    sampling: Sampling = WHOLE_SOFTMAX,
    seed: int,
    step: int = 0,
    slots: int = 64,
    max_action_tokens: int = 8,
    exchange_interval: int = 4,
    groups: Sequence[int] | None = None,
    share_prompts: bool = True,
) -> Forest:
    """Plays text episodes to their end, in place, and returns what was sampled.

    Args:
      policy, params: the agent.
      episodes: started episodes (`domains.base.Episode`), one agent seat each.
      sampling: how the agent samples.
      seed, step: with an episode's group and its place in the group they fix its samples; slots
        and order of work do not matter.
      slots: contexts decoded at once.
      max_action_tokens: token limit of a reply.
      exchange_interval: tokens decoded between two visits of the host.
      groups: int per episode, those that may be compared with one another; default: each alone.
      share_prompts: one root for all decisions of a group with the same prompt, so that its tokens
        are computed once in the update; else every decision has its own root.

    Returns:
      A forest with one action segment for each decision, in the order of episodes and decisions:
      `episode` numbers the episodes, `turn` the rounds, `observation` hashes what the agent saw.
      Rewards are zero. Episodes hold their own decisions and rounds.

    Raises:
      ValueError: groups of another length than episodes.
    """
    groups = list(range(len(episodes))) if groups is None else [int(group) for group in groups]
    if len(groups) != len(episodes):
        raise ValueError(f"{len(groups)} groups for {len(episodes)} episodes; give one for each")
    options = EngineOptions(slots, max_action_tokens, exchange_interval, sampling)
    members = _members(groups)
    sampled: list[list[tuple[Request, Completion]]] = [[] for _ in episodes]
    rendered: dict[tuple, tuple[int, ...]] = {}
    texts: dict[tuple, str] = {}

    def request(owner: int) -> Request:
        messages = episodes[owner].messages()
        key = tuple((message["role"], message["content"]) for message in messages)
        if key not in rendered:
            rendered[key] = tuple(render(policy.tokenizer, messages))
        turn = len(sampled[owner])
        return Request(rendered[key], groups[owner], members[owner], turn, owner)

    def on_completion(asked: Request, completion: Completion) -> list[Request]:
        sampled[asked.owner].append((asked, completion))
        key = tuple(completion.tokens.tolist())
        if key not in texts:
            texts[key] = policy.tokenizer.decode(key, skip_special_tokens=True)
        episode = episodes[asked.owner]
        episode.step(texts[key])
        return [] if episode.done else [request(asked.owner)]

    first = [request(owner) for owner, episode in enumerate(episodes) if not episode.done]
    run_requests(policy, params, first, on_completion, options, seed=seed, step=step)
    return _build(episodes, sampled, groups, share_prompts)


def _members(groups: Sequence[int]) -> list[int]:
    seen: dict[int, int] = {}
    members = []
    for group in groups:
        members.append(seen.get(group, 0))
        seen[group] = members[-1] + 1
    return members


def _build(episodes, sampled, groups, share_prompts) -> Forest:
    builder = ForestBuilder()
    roots: dict[Any, int] = {}
    event = 0
    for index, (episode, decisions) in enumerate(zip(episodes, sampled, strict=True)):
        for decision, (asked, completion) in zip(episode.decisions, decisions, strict=True):
            key = (groups[index], asked.prompt) if share_prompts else (index, asked.turn)
            if key not in roots:
                roots[key] = builder.add(np.asarray(asked.prompt, np.int32), group=groups[index])
            builder.add(
                completion.tokens,
                parent=roots[key],
                is_action=True,
                behavior_logp=completion.logp,
                entropy=completion.entropy,
                episode=index,
                turn=decision.round,
                event=event,
                event_size=1,
                observation=observation_hash(decision.observation),
                truncated=completion.truncated,
            )
            event += 1
    return builder.build()


def decision_segments(forest: Forest) -> np.ndarray:
    """int32 [decisions], the action segments of a forest from `play` in its order."""
    return np.flatnonzero(forest.is_action).astype(np.int32)
