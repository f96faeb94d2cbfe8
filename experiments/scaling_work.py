"""What `benchmark_scaling.py` plays: episodes of tokens, exactly as long as asked for."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from branching_sides import forks
from rollout_environment import random_tokens

from sepo_jax.rollout import Branching, EngineOptions
from sepo_jax.sandbox.base import BaseEnvironment, finish
from sepo_jax.sandbox.episodes import EpisodeRequest, EpisodeResult
from sepo_jax.sandbox.protocol import Prompt, Turn

SHARED, SEPARATE = "shared", "separate"
_REWARDS = itertools.cycle((0.0, 1.0))  # no group is without spread


class TokenEnvironment(BaseEnvironment):
    """An episode of a fixed number of turns of one seat, in one growing context.

    A task has "prompt" (a number; equal ones mean equal prompts), "prompt_tokens", "turns",
    "observation_tokens" (of every prompt but the first) and "vocabulary".
    """

    def start(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Asks with the prompt of the task."""
        self.state = {"task": task, "turn": 0}
        # Another first token for every prompt: different prompts have nothing in common.
        tokens = random_tokens(f"prompt {task['prompt']}", *_range_of(task, "prompt_tokens"))
        return _ask((task["prompt"] % task["vocabulary"], *tokens[1:]), continues=False)

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Asks with an observation, or ends the episode; its reward is 0 and 1 in turn."""
        self.state["turn"] += 1
        task, turn = self.state["task"], self.state["turn"]
        if turn == task["turns"]:
            return finish(reward=next(_REWARDS))
        name = f"observation {task['prompt']} {turn}"
        return _ask(random_tokens(name, *_range_of(task, "observation_tokens")), continues=True)


def _range_of(task: Mapping[str, Any], key: str) -> tuple[tuple[int, int], int]:
    return (task[key], task[key]), task["vocabulary"]


def _ask(tokens: tuple[int, ...], continues: bool) -> Turn:
    return Turn({0: Prompt(tokens=tokens, continues=continues)})


@dataclasses.dataclass(frozen=True)
class Shape:
    """One group of trajectories: samples of a prompt, or with `branching` the leaves of a tree.

    Attributes:
      group: trajectories; with `branching` its leaves.
      prompt, reply, observation: tokens of the prompt, of an action, and between two actions.
      turns: actions of a trajectory.
      slots: of the engine; 0 for as many as trajectories.
      branching: how often the trunk forks, at the turns nearest to its middle; None for a group of
        independent samples.
      algorithm: of the update; "" where only generation is measured.
    """

    group: int
    prompt: int
    reply: int
    observation: int = 0
    turns: int = 1
    slots: int = 0
    branching: Branching | None = None
    algorithm: str = "grpo"

    @property
    def path(self) -> int:
        """Tokens of a trajectory."""
        return self.prompt + self.turns * self.reply + (self.turns - 1) * self.observation

    def options(self) -> EngineOptions:
        """Sizes of the engine."""
        return EngineOptions(
            slots=self.slots or self.group,
            capacity=self.path,
            max_action_tokens=self.reply,
            max_failed_fraction=0.0,
        )

    def requests(self, side: str, vocabulary: int) -> list[EpisodeRequest]:
        """Episodes to begin with: members of one group, with one prompt or each with its own."""
        task = {
            "prompt_tokens": self.prompt,
            "turns": self.turns,
            "observation_tokens": self.observation,
            "vocabulary": vocabulary,
        }
        if side == SEPARATE:
            return [
                EpisodeRequest({**task, "prompt": number}, seed=0, member=number)
                for number in range(self.group)
            ]
        grows = self.branching is not None
        return [
            EpisodeRequest({**task, "prompt": 0}, seed=0, member=member, keep_snapshots=grows)
            for member in range(1 if grows else self.group)
        ]

    def follow_ups(self, result: EpisodeResult) -> list[EpisodeRequest]:
        """The forks of a trunk."""
        return forks(result, self.branching) if self.branching is not None else []


@dataclasses.dataclass(frozen=True)
class Axis:
    """What grows, and the shapes by its size, ascending.

    Attributes:
      adds: whether a larger size is more work; else it is the same work done otherwise.
    """

    name: str
    shapes: Mapping[int, Shape]
    adds: bool = True


def tree(branch_points: int, continuations: int, **sizes: int) -> Shape:
    """The shape of a tree of 1 + M (K - 1) leaves."""
    branching = Branching(branch_points, continuations)
    return Shape(1 + branching.forks, branching=branching, algorithm="bpo", **sizes)


def axes(quick: bool) -> list[Axis]:
    """All that grows; `quick` for sizes that are soon done."""
    groups, prompts, prompt, reply, group = (8, 16, 32), (256, 512, 1024), 512, 16, 8
    turns, observation, forked, slots = 8, 8, (2, 4, 8), (8, 16, 32)
    if quick:
        groups, prompts, prompt, reply, group = (2, 4), (16, 24), 16, 4, 2
        turns, observation, forked, slots = 4, 2, (2,), (2, 4)
    trees = [
        tree(3, k, prompt=prompt, reply=reply // 2, observation=observation, turns=turns)
        for k in forked
    ]
    most = max(slots)
    return [
        Axis("samples of a prompt", {n: Shape(n, prompt, reply) for n in groups}),
        Axis("tokens of a prompt", {n: Shape(group, n, reply) for n in prompts}),
        Axis("leaves of a tree", {shape.group: shape for shape in trees}),
        Axis(
            "slots of the engine",
            {n: Shape(most, prompt, reply, slots=n, algorithm="") for n in slots},
            adds=False,
        ),
    ]
