"""ALFWorld: household tasks in text, in rooms that are made here or in the official games."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.domains.alfworld import packages
from sepo_jax.domains.alfworld.data import (
    GameFile,
    data_directory,
    directory_games,
    made_file,
    read_game,
)
from sepo_jax.domains.alfworld.games import MOST_OBJECTS, RECEPTACLES, SPLITS, TASK_TYPES
from sepo_jax.domains.alfworld.players import Searcher, Talk, chance, recited, winning_commands
from sepo_jax.domains.base import EpisodeFinished, Message, check_integer, derive_seed, stream
from sepo_jax.domains.figures import task_figures
from sepo_jax.domains.parsing import last_line
from sepo_jax.names import check_option

EXPERTS = ("search", "oracle")
PLAYERS = ("random", "search", "oracle")
PAPER_TURNS = 40  # of BPO; 50 in GiGPO
MADE_TURNS = 20
NOTHING_HAPPENS = "Nothing happens."
SYSTEM = (
    "You act in a house by commands: go to <place>, open <place>, close <place>, take <thing> from "
    "<place>, move <thing> to <place>, clean <thing> with <place>, heat <thing> with <place>, cool "
    "<thing> with <place>, use <lamp>, examine <thing>, look, inventory. Places and things have "
    "numbers, as in: go to cabinet 1. The last line of each reply is one command."
)
# Figure -> what counts for an episode that left no record.
_FIGURES = {"success": False, "turns": None, "valid": None}
_WELCOME = re.compile(r"^-= .* =-\n\n")
_TAG = re.compile(r"</?action>", re.IGNORECASE)
_LABEL = re.compile(r"^[\s>#*_`-]*(?:(?:next\s+)?(?:action|command)[\s*_`]*[:=])?", re.IGNORECASE)
_AROUND = " \t.,;!*_`\"'\u201c\u201d\u2018\u2019()[]"
_PUT = re.compile(r"(?:put|place) (.+?) (?:in/on|into|onto|in|on) (.+)")
_MOVE = re.compile(r"move (.+?) to (.+)")


def parse_command(text: str, commands: Sequence[str]) -> str | None:
    """The command that a reply plays, or None.

    It stands between the last pair of tags <action>...</action>, or else on the last line, by
    itself: capital letters, markup, a full stop and "Action:" before it make no difference. What
    stands before is free. "put O in/on R", as earlier games have it, is the same as "move O to R".

    Args:
      text: any reply.
      commands: those that can be played.
    """
    line = _TAG.sub(" ", last_line(_last_tagged(text)))
    words = " ".join(_LABEL.sub("", line).split()).strip(_AROUND).lower()
    known = {command.lower(): command for command in commands}
    readings = [words]
    if found := _PUT.fullmatch(words):
        readings.append(f"move {found[1]} to {found[2]}")
    if found := _MOVE.fullmatch(words):
        readings.append(f"put {found[1]} in/on {found[2]}")
    return next((known[reading] for reading in readings if reading in known), None)


def _last_tagged(text: str) -> str:
    """What stands between the last pair of tags; the whole text where there is no pair."""
    tags = list(_TAG.finditer(text))
    for opening, closing in reversed(list(itertools.pairwise(tags))):
        if closing[0].startswith("</") and not opening[0].startswith("</"):
            return text[opening.end() : closing.start()]
    return text


class AlfWorld:
    """Household tasks (`domains.tasks.TaskDomain`, played by `HouseholdEpisode`).

    A task is {"split", "task_type", "number"} of a made game (`alfworld.games`), or {"split",
    "task_type", "game"} of an official one, named by its directory; without the last the episode's
    seed draws a game. It is won or not; types come in turn. Replies are commands, as
    `parse_command` reads them; any other changes nothing and costs a turn. The domain itself is its
    options and pickles to a few bytes.

    Expert and baseline "search" finds things by looking and knows no more than a policy does; the
    "oracle" knows where everything is.

    Args:
      data: directory of the official games (see `alfworld.data`), or "official" for the one that
        ALFWORLD_DATA names; "" for games that are made here. It is only read.
      max_turns: replies until the episode is lost; 0 for `MADE_TURNS` in made games and the paper's
        `PAPER_TURNS` in official ones.
      success_reward: what winning pays; 10 in GiGPO.
      invalid_cost: what a reply costs that is no command that can be played; 0.1 in GiGPO.
      show_commands: whether each turn lists the commands that can be played.
      receptacles, objects: of a made room.
      task_types: of `TASK_TYPES`; empty for all.
      evaluated: split to be judged by.
      expert: of `EXPERTS`, for supervised fine-tuning.

    Raises:
      ImportError: textworld or alfworld is missing; the message says what to install.
      ValueError: an unknown option, a number out of range, or no such directory.
    """

    name = "alfworld"

    def __init__(
        self,
        data: str = "",
        max_turns: int = 0,
        success_reward: float = 1.0,
        invalid_cost: float = 0.0,
        show_commands: bool = False,
        receptacles: int = 6,
        objects: int = 6,
        task_types: Sequence[str] = (),
        evaluated: str = "valid_unseen",
        expert: str = "search",
    ):
        packages.require()
        self.directory = str(data_directory(str(data))) if data else ""
        turns = check_integer("max_turns", max_turns, minimum=0)
        self.max_turns = turns or (PAPER_TURNS if self.directory else MADE_TURNS)
        self.success_reward, self.invalid_cost = float(success_reward), float(invalid_cost)
        if not (self.success_reward > 0 and self.invalid_cost >= 0):
            raise ValueError(
                f"success_reward={success_reward!r} must be above 0, and "
                f"invalid_cost={invalid_cost!r} not below 0"
            )
        self.show_commands = bool(show_commands)
        self.receptacles = _within("receptacles", receptacles, *RECEPTACLES)
        self.objects = _within("objects", objects, 1, MOST_OBJECTS)
        types = tuple(check_option("task type", each, TASK_TYPES) for each in task_types)
        self.task_types = types or TASK_TYPES
        self.evaluated = check_option("evaluated", evaluated, SPLITS)
        self.expert = check_option("expert", expert, EXPERTS)

    def new_episode(self, task: Mapping[str, Any], seed: int) -> "HouseholdEpisode":
        """An episode of a task; ValueError for what is no task of this domain."""
        last = "game" if self.directory else "number"
        head = {"split", "task_type"}
        if not isinstance(task, Mapping) or not head <= set(task) <= {*head, last}:
            raise ValueError(
                f'a task of ALFWorld is {{"split", "task_type", "{last}"}} here, the last or not, '
                f"and not {repr(task)[:120]}"
            )
        check_option("split", task["split"], SPLITS)
        check_option("task type", task["task_type"], TASK_TYPES)
        drawn = {} if last in task else next(self._drawn(task["split"], task["task_type"], seed))
        return HouseholdEpisode(self, {**task, **drawn})

    def game_file(self, task: Mapping[str, Any]) -> GameFile:
        """The game of a whole task; ValueError where there is none."""
        if self.directory:
            file = read_game(Path(self.directory), task["split"], task["game"])
            if file.goal.task_type != task["task_type"]:
                raise ValueError(f"{task['game']} is of type {file.goal.task_type}, not {task}")
            return file
        number = check_integer("number", task["number"], minimum=0)
        return made_file(task["split"], task["task_type"], number, self.receptacles, self.objects)

    def training_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Games of the train split, types in turn; each once before any comes again."""
        check_integer("count", count, minimum=0)
        return list(itertools.islice(self._training(seed), count))

    def evaluation_tasks(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` games of each type from the evaluated split, or as many as it has."""
        check_integer("count", count, minimum=0)
        tasks = []
        for each in self._types_of(self.evaluated):
            number = count
            if self.directory:
                number = min(count, len(self.names(self.evaluated, each)))
            drawn = self._drawn(self.evaluated, each, seed)
            tasks += [next(drawn) for _ in range(number)]
        return tasks

    def figures(self, tasks: Sequence[Any], records: Sequence[Any]) -> dict[str, float]:
        """Success, turns and the share of valid replies, of all episodes and as
        "<task type>/<figure>"; no record counts as no success."""
        found = task_figures(tasks, records, _FIGURES)
        for kind in dict.fromkeys(task["task_type"] for task in tasks):
            places = [i for i, task in enumerate(tasks) if task["task_type"] == kind]
            of_kind = [[each[i] for i in places] for each in (tasks, records)]
            figures = task_figures(*of_kind, _FIGURES)
            found |= {f"{kind}/{name}": value for name, value in figures.items()}
        return found

    def baselines(self, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Figures of `PLAYERS`: commands that can be played, drawn evenly; who searches; who knows
        where everything is."""
        records: dict[str, list[Any]] = {player: [] for player in PLAYERS}
        for number, task in enumerate(tasks):
            for player in PLAYERS:  # while the game is loaded
                episode = self.new_episode(task, 0)
                for _ in self.played(episode, player, number):
                    pass
                records[player].append(episode.record())
        return {player: self.figures(tasks, found) for player, found in records.items()}

    def expert_traces(
        self, num_decisions: int, seed: int, *, rationale: bool = False
    ) -> list[tuple[list[Message], str]]:
        """Decisions of the expert on training games, each after the whole conversation before it;
        there is no rationale."""
        check_integer("num_decisions", num_decisions, minimum=0)
        traces: list[tuple[list[Message], str]] = []
        tasks = self._training(seed)
        while len(traces) < num_decisions:
            episode, talk = self.new_episode(next(tasks), seed), []
            for shown, command in self.played(episode, self.expert):
                talk += shown
                traces.append((list(talk), command))
                talk.append({"role": "assistant", "content": command})
        return traces[:num_decisions]

    def played(
        self, episode: "HouseholdEpisode", player: str, number: int = 0
    ) -> Iterator[tuple[list[Message], str]]:
        """Has one of `PLAYERS` play an episode to its end: what it is shown, and its command; one
        that knows nothing more to do looks around.

        Args:
          episode: that begins.
          player: of `PLAYERS`.
          number: of the episode, on which chance depends.
        """
        talk, heard = self._talk(episode, check_option("player", player, PLAYERS), number), None
        while not episode.done:
            try:
                command = talk.send(heard)
            except StopIteration:
                command = "look"
            shown = episode.messages()
            episode.step(command)
            heard = episode.said
            yield shown, command

    def _talk(self, episode: "HouseholdEpisode", player: str, number: int) -> Talk:
        if player == "random":
            return chance(episode.legal_actions, stream(0, "alfworld", player, number))
        file = self.game_file(episode.task)
        if player == "oracle":
            return recited(winning_commands(file))
        return Searcher(file.goal, episode.said).play()

    def _training(self, seed: int) -> Iterator[dict[str, Any]]:
        """Tasks to train on without end, types in turn."""
        types = self._types_of("train")
        for drawn in itertools.cycle([self._drawn("train", each, seed) for each in types]):
            yield next(drawn)

    def _types_of(self, split: str) -> list[str]:
        """Types of tasks that a split has; ValueError where it has none of them."""
        types = [each for each in self.task_types if not self.directory or self.names(split, each)]
        if not types:
            raise ValueError(
                f"split {split!r} of {self.directory} has no game of {', '.join(self.task_types)}; "
                "name another split or other types"
            )
        return types

    def names(self, split: str, task_type: str) -> list[str]:
        """Games of a type in a split of the directory."""
        games = directory_games(Path(self.directory), split)
        return [name for name, goal in games.items() if goal.task_type == task_type]

    def _drawn(self, split: str, task_type: str, seed: int) -> Iterator[dict[str, Any]]:
        """Tasks of a type without end, in an order that the seed fixes."""
        head = {"split": split, "task_type": task_type}
        if not self.directory:
            first = derive_seed(seed, "alfworld", split, task_type) % 2**40
            while True:
                yield {**head, "number": first}
                first += 1
        names, rng = self.names(split, task_type), stream(seed, "alfworld", split, task_type)
        if not names:
            raise ValueError(f"split {split!r} of {self.directory} has no game of {task_type}")
        while True:
            yield from ({**head, "game": name} for name in rng.sample(names, len(names)))


def _within(option: str, value: Any, least: int, most: int) -> int:
    number = check_integer(option, value, minimum=least)
    if number > most:
        raise ValueError(f"{option} must be at most {most}, not {number}")
    return number


class HouseholdEpisode:
    """An episode of a household task (`domains.tasks.TaskEpisode`).

    Pickled, it is JSON values beside its domain: the task, the hash of its game, the commands that
    were played and what was seen last. Where it is unpickled the commands are played again, or
    looked up where this process has played them before, and ValueError is raised when the game is
    another one or shows anything else than then.

    Attributes:
      task: what is played.
      commands: that were played; replies that were none are left out.
      said: what the game said last.
      done: whether it is over. won: whether the goal was reached.
    """

    def __init__(self, domain: AlfWorld, task: Mapping[str, Any]):
        file = domain.game_file(task)
        self.domain, self.task = domain, dict(task)
        self.commands: list[str] = []
        self.turns = self.valid = 0
        self.done = self.won = False
        self._open(file)
        self._seen = self._arrived()
        self.said = _WELCOME.sub("", self._seen[0]).replace("\n\n", "\n")

    @property
    def observation(self) -> str:
        """What the game said last, and what can be played."""
        return f"{self.said} [{', '.join(self._seen[1])}]"

    def messages(self) -> list[Message]:
        """At the beginning the rules and the task; later what the game said."""
        text = self.said
        if self.domain.show_commands and not self.done:
            text += f"\nCommands: {', '.join(self._seen[1])}."
        user = {"role": "user", "content": text}
        return [user] if self.turns else [{"role": "system", "content": SYSTEM}, user]

    def legal_actions(self) -> tuple[str, ...]:
        """Commands that can be played."""
        return () if self.done else tuple(self._seen[1])

    def step(self, reply: str) -> float:
        """Plays a reply; what it earned."""
        if self.done:
            raise EpisodeFinished("the episode is over; begin another")
        self.turns += 1
        command = parse_command(reply, self._seen[1])
        reward = 0.0
        if command is None:
            self.said = NOTHING_HAPPENS
            reward -= self.domain.invalid_cost
        else:
            self.valid += 1
            self.commands.append(command)
            self._position = self._game.play(self._position, command)
            self._seen = self._arrived()
            self.said = self._seen[0]
            self.won = self._position.won
        if self.won:
            reward += self.domain.success_reward
        self.done = self.won or self.turns >= self.domain.max_turns
        return reward

    def record(self) -> dict[str, Any]:
        """Success, number of turns, share of valid replies, and the commands played."""
        return {
            "success": self.won,
            "turns": self.turns,
            "valid": self.valid / max(self.turns, 1),
            "commands": list(self.commands),
        }

    def _open(self, file: GameFile) -> None:
        from sepo_jax.domains.alfworld.engine import open_game

        self._digest = file.digest
        self._game = open_game(file)
        self._position = self._game.walk(self.commands)

    def _arrived(self) -> tuple[str, tuple[str, ...]]:
        return self._game.text(self._position), self._game.commands(self._position)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("_game", "_position")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        file = self.domain.game_file(self.task)
        if file.digest != self._digest:
            raise ValueError(f"the game of {self.task} is another than the one that was played")
        self._open(file)
        if self._arrived() != self._seen or self._position.won != self.won:
            raise ValueError(f"the game of {self.task} shows something else after {self.commands}")
