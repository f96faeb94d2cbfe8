"""What `benchmark_rollouts.py` measures: the same episodes played by several sides in turn."""

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rollout_environment import OBSERVATION_TOKENS, PROMPT_TOKENS
from rollout_lock_step import LockStepPool
from rollout_models import Model

from sepo_jax.rollout.driver import EngineOptions, drive
from sepo_jax.rollout.play import ChatCodec
from sepo_jax.sandbox.episodes import EpisodeRequest, EpisodeResult
from sepo_jax.sandbox.exchange import Commands, Report
from sepo_jax.sandbox.protocol import Pool
from sepo_jax.sandbox.queue import HostQueue


@dataclasses.dataclass(frozen=True)
class Work:
    """Episodes to play.

    Attributes:
      episodes: how many. group: members that share a prompt.
      turns: actions of an episode.
      action_tokens: least and most tokens of an action, which is as long as drawn from its key.
      latency: mean seconds of a sandbox.
    """

    episodes: int
    group: int = 8
    turns: int = 3
    action_tokens: tuple[int, int] = (8, 24)
    latency: float = 0.0

    def requests(self, vocabulary: int, seed: int) -> list[EpisodeRequest]:
        """One request an episode; a seed has prompts and latencies of its own."""
        return [
            EpisodeRequest(
                {
                    "prompt": f"{seed} {index // self.group}",
                    "turns": self.turns,
                    "vocabulary": vocabulary,
                    "latency": self.latency,
                },
                seed=seed * self.episodes + index,
                group=index // self.group,
                member=index % self.group,
            )
            for index in range(self.episodes)
        ]

    @property
    def longest_context(self) -> int:
        """Most tokens of a context, its last action included."""
        between = (self.turns - 1) * OBSERVATION_TOKENS[1]
        return PROMPT_TOKENS[1] + between + self.turns * self.action_tokens[1]


@dataclasses.dataclass(frozen=True)
class Side:
    """A way to play: sizes and driver of the engine, in lock-step or not."""

    options: EngineOptions
    lock_step: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """How the work went: seconds, figures of the queue, and an episode each."""

    seconds: float
    figures: Mapping[str, Any]
    results: Sequence[EpisodeResult]

    @property
    def rate(self) -> float:
        """Sampled tokens a second."""
        return self.figures["sampled_tokens"] / self.seconds

    @property
    def prompt_tokens(self) -> int:
        """Prefilled tokens without those that follow an action."""
        following = sum(
            len(action.given) for result in self.results for action in result.actions[1:]
        )
        return self.figures["prefilled_tokens"] - following


class DrawnLengths(HostQueue):
    """A queue whose actions are as long as drawn from their sampling keys."""

    def __init__(self, *arguments, least_and_most: tuple[int, int], **keywords):
        super().__init__(*arguments, **keywords)
        self._least_and_most = least_and_most

    def exchange(self, device: int, reports: Sequence[Report]) -> tuple[Commands, ...]:
        """The commands of the queue, with the limit of every starting action drawn."""
        made = super().exchange(device, reports)
        for commands in made:
            for slot in np.flatnonzero(commands.start):
                draw = random.Random(repr(commands.keys[slot].tolist()))
                commands.limit[slot] = draw.randint(*self._least_and_most)
        return made


def play(
    model: Model, work: Work, side: Side, pool: Pool, seed: int, progress: Callable[[], Any]
) -> Played:
    """Plays the work once; `progress` is called after every episode."""
    options = side.options
    requests = work.requests(model.policy.config.vocab_size, seed)
    queue = DrawnLengths(
        LockStepPool(pool, len(requests), options.slots) if side.lock_step else pool,
        requests,
        [ChatCodec(model.policy)],
        options.exchange_shape(),
        options.stop_rules(),
        seed=seed,
        ahead=0 if side.lock_step else None,
        max_failed_fraction=0.0,
        on_result=lambda _: progress(),
        least_and_most=work.action_tokens,
    )
    begin = time.perf_counter()
    try:
        drive([(model.policy, model.params)], queue, options)
    finally:
        queue.close()
    seconds = time.perf_counter() - begin
    return Played(seconds, queue.statistics.summary(), queue.results())


def check_same(plays: Iterable[tuple[str, Played]]) -> None:
    """Raises RuntimeError unless all have sampled the same tokens."""
    first = None
    for name, played in plays:
        tokens = [[a.tokens.tolist() for a in result.actions] for result in played.results]
        first = first or (name, tokens)
        for episode, (ours, theirs) in enumerate(zip(first[1], tokens, strict=True)):
            if ours != theirs:
                raise RuntimeError(
                    f"episode {episode}: {name} sampled {theirs}, {first[0]} sampled {ours}"
                )


def compete(
    model: Model,
    work: Work,
    sides: Mapping[str, Side],
    pool: Pool,
    turns: int,
    seed: int,
    progress: Callable[[], Any],
) -> dict[str, Played]:
    """Every side plays the work, in turn and `turns` times; its play of median seconds.

    Raises:
      RuntimeError: they sampled different tokens.
    """
    plays: dict[str, list[Played]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            plays[name].append(play(model, work, sides[name], pool, seed, progress))
    check_same((name, played) for name, made in plays.items() for played in made)
    return {
        name: sorted(made, key=lambda played: played.seconds)[(turns - 1) // 2]
        for name, made in plays.items()
    }
