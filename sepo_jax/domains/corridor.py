"""A corridor of doors and forks: few early decisions, many late ones, and known variances.

At each door the agent names the key of its colour; a prize waits at the end for whoever opened all
of them. At each fork it names the way that the sign shows, and finds a coin where it does. What the
episode earns is paid at its end:

    R = prize * [all doors opened] + coin * (coins found) + luck * [the seed's flip shows heads]

The three weights are such that, under uniform play, the doors explain the share `prefix_share` of
Var(R), the flip `luck_share` and the forks the rest, and that the best return is 1. The state is
small, so `Corridor.process` gives everything else about any tabular policy exactly.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sepo_jax.domains.arguments import check_integer, check_rates
from sepo_jax.domains.base import EpisodeFinished, Message
from sepo_jax.domains.decision_process import OVER, DecisionProcess
from sepo_jax.domains.parsing import parse_word
from sepo_jax.domains.seeds import derive_seed, stream

KEYS = ("RED", "BLUE", "GREEN", "GOLD", "WHITE", "BLACK")
WAYS = ("LEFT", "RIGHT")
_SYSTEM = (
    "You walk down a corridor. At a door, name the key of its colour. At a fork, name the way on "
    "the sign. Reply with one word."
)
_HELD_OUT, _KINDS = 2, 3  # of the kinds of tasks, one is for evaluation


class Weights(NamedTuple):
    """What an episode earns: for all doors together, for each coin, and by luck."""

    prize: float
    coin: float
    luck: float


class Situation(NamedTuple):
    """Where an episode stands: decisions made, whether every key fitted so far, coins found."""

    turn: int = 0
    fits: bool = True
    coins: int = 0


class Corridor:
    """Tasks of `length` decisions (`domains.tasks.TaskDomain`).

    A task is {"doors": colours, "signs": ways}. The seed of an episode decides its luck and nothing
    else, so episodes of one seed differ by what is done in them only, and what goes on from a
    snapshot has the luck that the snapshot has.

    Args:
      length: decisions of an episode; `early` of them are doors, which come first.
      early: number of doors.
      keys: number of keys to choose from.
      prefix_share: share of Var(R) under uniform play that the doors explain.
      luck_share: share that the seed explains.
      expert_skill: probability that the expert of `expert_traces` knows what to do; otherwise it
        names something drawn from what is there. At 0 it teaches the form of replies alone.

    Raises:
      ValueError: numbers out of range, or shares that add up to more than 1.
    """

    name = "corridor"
    game = None

    def __init__(
        self,
        length: int = 8,
        early: int = 1,
        keys: int = 2,
        prefix_share: float = 0.8,
        luck_share: float = 0.0,
        expert_skill: float = 1.0,
    ):
        self.early = check_integer("early", early, minimum=1)
        self.length = check_integer("length", length, minimum=self.early + 1)
        self.keys = KEYS[: check_integer("keys", keys, minimum=2)]
        if keys > len(KEYS):
            raise ValueError(f"keys={keys}, but there are {len(KEYS)} colours: {', '.join(KEYS)}")
        shares = {"prefix_share": prefix_share, "luck_share": luck_share}
        check_rates(**shares, expert_skill=expert_skill)
        if prefix_share + luck_share > 1 + 1e-12:
            raise ValueError(f"{shares} add up to more than 1, which leaves nothing to the forks")
        self.expert_skill = expert_skill
        self.weights = self._weights(prefix_share, luck_share)

    def _weights(self, prefix_share: float, luck_share: float) -> Weights:
        """Weights in proportion to the roots of share / variance of what they weigh."""
        opened, forks = len(self.keys) ** -self.early, self.length - self.early
        if not opened:
            raise ValueError(
                f"early={self.early} doors of keys={len(self.keys)} are never all opened under "
                "uniform play, as far as numbers reach; set a smaller number of doors"
            )
        # What shares such as 0.7 and 0.3 leave to rounding is nothing.
        late_share = 1 - prefix_share - luck_share
        late_share = late_share if late_share > 1e-12 else 0.0
        prize = math.sqrt(prefix_share / (opened * (1 - opened)))
        coin, luck = math.sqrt(late_share * 4 / forks), math.sqrt(luck_share * 4)
        best = prize + coin * forks + luck
        return Weights(prize / best, coin / best, luck / best)

    def new_episode(self, task: Mapping[str, Sequence[str]], seed: int) -> "CorridorEpisode":
        """A started episode.

        Raises:
          ValueError: no task of this corridor.
        """
        forks = self.length - self.early
        words = {"doors": (self.early, self.keys), "signs": (forks, WAYS)}
        if not isinstance(task, Mapping) or set(task) != set(words):
            raise ValueError(f'a task is {{"doors": ..., "signs": ...}}, not {repr(task)[:80]}')
        for part, (count, allowed) in words.items():
            if len(task[part]) != count or not set(task[part]) <= set(allowed):
                raise ValueError(
                    f"{part} of this corridor are {count} of {', '.join(allowed)}, not {task[part]}"
                )
        return CorridorEpisode(task, self.keys, self.weights, check_integer("seed", seed, 0))

    def training_tasks(self, count: int, seed: int) -> list[dict[str, list[str]]]:
        """Tasks drawn alike from those to train on, which are two in three."""
        return self._tasks(count, seed, held_out=False)

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, list[str]]]:
        """Tasks drawn alike from the others."""
        return self._tasks(count, seed, held_out=True)

    def _tasks(self, count: int, seed: int, *, held_out: bool) -> list[dict[str, list[str]]]:
        rng = stream(seed, "corridor", "held out" if held_out else "training")
        tasks: list[dict[str, list[str]]] = []
        while len(tasks) < check_integer("count", count, minimum=0):
            doors = [rng.randrange(len(self.keys)) for _ in range(self.early)]
            signs = [rng.randrange(len(WAYS)) for _ in range(self.length - self.early)]
            # The sums of all words take every value from 0 to 2 or more: no kind is empty.
            if ((sum(doors) + sum(signs)) % _KINDS == _HELD_OUT) == held_out:
                named = {"doors": [self.keys[i] for i in doors], "signs": [WAYS[i] for i in signs]}
                tasks.append(named)
        return tasks

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Means over episodes: "success" (all doors opened), "return", "coins" (share found),
        "turns" and "valid" (share of decisions whose reply could be read). An episode that left
        nothing counts as one without any reply."""
        forks, count = self.length - self.early, max(len(records), 1)
        left = [record for record in records if record is not None]
        return {
            "success": sum(record["opened"] for record in left) / count,
            "return": sum(record["return"] for record in left) / count,
            "coins": sum(record["coins"] for record in left) / (forks * count),
            "turns": sum(record["turns"] for record in left) / count,
            "valid": sum(record["valid"] for record in left) / (self.length * count),
        }

    def baselines(self, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Expected figures of uniform play and of who does everything right."""
        opened, forks = len(self.keys) ** -self.early, self.length - self.early
        found = {}
        for player, success, coins in (("uniform", opened, 0.5), ("oracle", 1.0, 1.0)):
            earned = (success, coins * forks, 0.5)
            expected = sum(w * x for w, x in zip(self.weights, earned, strict=True))
            figures = {"success": success, "return": expected, "coins": coins}
            found[player] = figures | {"turns": float(self.length), "valid": 1.0}
        return found

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of episodes on training tasks, each behind all messages of its episode so far.

        With `rationale` a line that repeats what counts goes before the word.
        """
        check_integer("num_decisions", num_decisions, minimum=0)
        traces: list[tuple[list[Message], str]] = []
        episodes = -(-num_decisions // self.length)
        for index, task in enumerate(self.training_tasks(episodes, derive_seed(seed, "traces"))):
            rng = stream(seed, "expert", index)
            episode, said = self.new_episode(task, derive_seed(seed, "luck", index)), []
            while not episode.done:
                said += episode.messages()
                word = episode.right_action()
                reason = f"It says {word}.\n" if rationale else ""
                if rng.random() >= self.expert_skill:
                    word = rng.choice(episode.legal_actions())
                traces.append((list(said), reason + word))
                said.append({"role": "assistant", "content": reason + word})
                episode.step(word)
        return traces[:num_decisions]

    def process(self, task: Mapping[str, Sequence[str]]) -> DecisionProcess:
        """The task as a table; observations are named by `CorridorEpisode.observation`.

        Luck is drawn at the beginning, each time anew, and is hidden: trajectories differ in it,
        and what goes on from one state does not.
        """
        episode = self.new_episode(task, 0)
        flips = (False, True) if self.weights.luck else (False,)
        layers = [{Situation()}]
        for _ in range(self.length):
            after = {episode.after(s, right) for s in layers[-1] for right in (True, False)}
            layers.append(after)
        seen = {s: index for index, s in enumerate(sorted(set().union(*layers[:-1])))}
        states = [(s, heads) for s in (*seen, *sorted(layers[-1])) for heads in flips]
        number = {state: index for index, state in enumerate(states)}
        width = max(len(self.keys), len(WAYS))
        successor = np.zeros((len(states), width, 1), np.int64)
        reward = np.zeros(len(states))
        for (situation, heads), index in number.items():
            if situation not in seen:
                reward[index] = episode.earned(situation, heads)
                continue
            right = episode.words(situation.turn).index(episode.right_action(situation.turn))
            for action in range(width):
                successor[index, action] = number[episode.after(situation, action == right), heads]
        return DecisionProcess(
            start=np.array([(s == Situation()) / len(flips) for s, _ in states]),
            observation=np.array([seen.get(s, OVER) for s, _ in states]),
            legal=np.array([[a < len(episode.words(s.turn)) for a in range(width)] for s in seen]),
            successor=successor,
            chance=np.ones(successor.shape),
            reward=reward,
            names=tuple(map(episode.key, seen)),
        )


class CorridorEpisode:
    """A walk (`domains.tasks.TaskEpisode`). A reply that cannot be read is a wrong one."""

    def __init__(
        self, task: Mapping[str, Sequence[str]], keys: Sequence[str], weights: Weights, seed: int
    ):
        self._doors, self._signs = tuple(task["doors"]), tuple(task["signs"])
        self._keys, self._weights = tuple(keys), weights
        self._heads = stream(seed, "corridor", "luck").random() < 0.5
        self._situation, self._valid, self._feedback = Situation(), 0, ""

    @property
    def done(self) -> bool:
        """Whether the last decision was made."""
        return self._situation.turn == len(self._doors) + len(self._signs)

    @property
    def observation(self) -> str:
        """Key of the task and of the situation."""
        return self.key(self._situation)

    def key(self, situation: Situation) -> str:
        """Key of the task and of a situation."""
        task = "/".join(",".join(words) for words in (self._doors, self._signs))
        return f"{task} turn {situation.turn} fits {int(situation.fits)} coins {situation.coins}"

    def messages(self) -> list[Message]:
        """What came of the last reply, and what is to be decided."""
        turn, doors = self._situation.turn, len(self._doors)
        self._check_pending()
        if turn < doors:
            keys = ", ".join(self._keys)
            asked = f"Door {turn + 1} of {doors}: {self._doors[turn]}. Keys: {keys}."
        else:
            asked = f"Fork {turn - doors + 1} of {len(self._signs)}: {self.right_action()}."
        user = {"role": "user", "content": f"{self._feedback} {asked}".strip()}
        return [user] if turn else [{"role": "system", "content": _SYSTEM}, user]

    def legal_actions(self) -> tuple[str, ...]:
        """Keys or ways; none when the episode is over."""
        return () if self.done else self.words(self._situation.turn)

    def words(self, turn: int) -> tuple[str, ...]:
        """What can be said at a turn."""
        return self._keys if turn < len(self._doors) else WAYS

    def right_action(self, turn: int | None = None) -> str:
        """What the door or the sign of a turn says, by default of the pending one."""
        self._check_pending()
        return (*self._doors, *self._signs)[self._situation.turn if turn is None else turn]

    def after(self, situation: Situation, right: bool) -> Situation:
        """The situation after a right or a wrong decision."""
        turn, fits, coins = situation
        if turn < len(self._doors):
            return Situation(turn + 1, fits and right, coins)
        return Situation(turn + 1, fits, coins + right)

    def earned(self, situation: Situation, heads: bool) -> float:
        """What an episode earns that ends so."""
        prize, coin, luck = self._weights
        return prize * situation.fits + coin * situation.coins + luck * heads

    def step(self, reply: str) -> float:
        """Plays a reply; pays at the end."""
        turn, words = self._situation.turn, self.legal_actions()
        self._check_pending()
        action = parse_word(reply, words, known=(*KEYS, *WAYS))
        right = action is not None and words[action] == self.right_action()
        self._valid += action is not None
        at_door = turn < len(self._doors)
        if action is None:
            self._feedback = f"Name one of {', '.join(words)} next time."
        elif at_door:
            self._feedback = "The key fits." if right else "The key does not fit."
        else:
            self._feedback = "You find a coin." if right else "You find nothing."
        self._situation = self.after(self._situation, right)
        return self.earned(self._situation, self._heads) if self.done else 0.0

    def record(self) -> dict[str, Any]:
        """The end of the walk; ValueError before it."""
        if not self.done:
            raise ValueError(f"the walk is at turn {self._situation.turn}, so it leaves no record")
        turn, fits, coins = self._situation
        return {
            "opened": fits,
            "coins": coins,
            "turns": turn,
            "valid": self._valid,
            "return": self.earned(self._situation, self._heads),
        }

    def _check_pending(self) -> None:
        if self.done:
            raise EpisodeFinished(
                f"the walk is over after {self._situation.turn} turns; start another"
            )
