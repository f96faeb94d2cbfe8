"""What `benchmark_branching.py` plays: episodes of one length, and policies that play them."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

from sepo_jax.domains.corridor import Corridor
from sepo_jax.domains.webshop import WebShop
from sepo_jax.domains.webshop.pages import BUY
from sepo_jax.policy import Policy
from sepo_jax.rollout import EngineOptions
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_policy

TINY = {
    "vocab_size": 512, "hidden_size": 128, "num_layers": 4, "intermediate_size": 384,
    "remat": "layer",
}  # fmt: skip
SMALLEST = {
    "vocab_size": 320, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
    "intermediate_size": 32,
}  # fmt: skip


class FixedEpisode:
    """An episode of tasks (`domains.tasks.TaskEpisode`) that takes one way, whatever is replied.

    The seed draws an action at each turn. So untrained policies are shown what trained ones are,
    and all episodes of a seed the same, be they whole or forks.
    """

    def __init__(self, episode: Any, avoided: Sequence[str], seed: int):
        self._episode, self._avoided = episode, tuple(avoided)
        self._seed, self._turn = seed, 0

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._episode.done

    @property
    def observation(self) -> str:
        """Key of what the agent sees."""
        return self._episode.observation

    def messages(self) -> Sequence[dict]:
        """What the agent is shown next."""
        return self._episode.messages()

    def legal_actions(self) -> Sequence[str]:
        """All actions of the episode but those that are avoided."""
        return [name for name in self._episode.legal_actions() if name not in self._avoided]

    def step(self, reply: str) -> float:
        """Plays the action of the turn."""
        actions = self.legal_actions()
        drawn = zlib.crc32(f"{self._seed} {self._turn}".encode())
        self._turn += 1
        return self._episode.step(actions[drawn % len(actions)])

    def record(self) -> Any:
        """What the episode leaves."""
        return self._episode.record()


class Fixed:
    """A domain of tasks with such episodes; they never take what is `avoided`."""

    def __init__(self, domain: Any, avoided: Sequence[str] = ()):
        self.domain, self.avoided = domain, tuple(avoided)
        self.name = f"{domain.name}, fixed"

    def new_episode(self, task: Any, seed: int) -> FixedEpisode:
        """A started episode."""
        return FixedEpisode(self.domain.new_episode(task, seed), self.avoided, seed)

    def training_tasks(self, count: int, seed: int) -> list[Any]:
        """Those of the domain."""
        return self.domain.training_tasks(count, seed)

    def expert_traces(self, num_decisions: int, seed: int, *, rationale: bool = False) -> list:
        """Those of the domain, for the text in them."""
        return self.domain.expert_traces(num_decisions, seed, rationale=rationale)


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """Episodes to play.

    Attributes:
      title: in the table.
      domain: whose episodes all take `turns` turns.
      prompts: tasks, each of which is played by a tree or by as many independent episodes; there
        are as many slots, which the trunks of the trees fill, and as many parts of an update.
      reply_tokens: limit of a reply; an untrained policy reaches it almost always.
      capacity: most tokens of an episode.
    """

    title: str
    domain: Fixed
    turns: int
    prompts: int
    reply_tokens: int
    capacity: int

    @property
    def options(self) -> EngineOptions:
        """Sizes of the engine."""
        return EngineOptions(
            slots=self.prompts,
            capacity=self.capacity,
            max_action_tokens=self.reply_tokens,
            prefill_widths=(32, 128),
            max_failed_fraction=0.0,
        )


def workloads(quick: bool) -> list[Workload]:
    """The corridor, whose turns are short and many, and the web shop, whose pages are long."""
    turns, looks, prompts = (6, 4, 2) if quick else (16, 6, 4)
    corridor = Fixed(Corridor(length=turns, early=turns // 4))
    # A look around the shop: nobody buys before the last turn.
    shop = Fixed(WebShop(max_turns=looks), avoided=[f"click[{BUY}]"])
    return [
        Workload(f"corridor, {turns} turns", corridor, turns, prompts, 8, 1024),
        Workload(f"web shop, {looks} turns", shop, looks, prompts, 16, 3072),
    ]


def fresh_policy(workload: Workload, quick: bool) -> tuple[Policy, Any]:
    """The built-in tiny policy with random weights, and a tokenizer of the domain's text."""
    settings = read_settings({"policy": SMALLEST if quick else TINY})
    return make_policy(settings, workload.domain)
