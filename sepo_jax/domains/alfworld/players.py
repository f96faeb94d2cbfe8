"""Who plays ALFWorld: one that knows where everything is, one that searches, and chance."""

import random
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from sepo_jax.domains.alfworld.data import GameFile
from sepo_jax.domains.alfworld.games import TREATMENTS, Goal

Talk = Generator[str, str, None]
"""Commands out, what is said after each in; ends where the player knows nothing more to do."""

_NAME = re.compile(r"\ba ([a-z]+ [0-9]+)\b")
_VERBS = {"Cleanable": "clean", "Heatable": "heat", "Coolable": "cool"}


def named(text: str) -> list[str]:
    """Names of the things that a text lists, as "a mug 1"."""
    return _NAME.findall(text)


def is_a(name: str, kind: str) -> bool:
    """Whether a thing of this name is of a class."""
    return bool(kind) and name.split()[0] == kind.lower()


class Searcher:
    """Does the task by what it has seen: goes from place to place, in the order in which the
    introduction lists them, until it finds what it needs.

    It opens what is closed where it looks or puts something, takes the first object of the class
    that it sees, and goes to the first place of a class that is listed.

    Args:
      goal: what is to be done.
      introduction: what is said at the beginning.
    """

    def __init__(self, goal: Goal, introduction: str):
        self.goal = goal
        self.places = named(introduction)
        self.seen: dict[str, str] = {}  # thing -> where
        self.looked: set[str] = set()
        self.at = ""

    def play(self) -> Talk:
        """The player's commands."""
        goal = self.goal
        if goal.toggle:
            yield from self._take(goal.object)
            lamp = yield from self._find(goal.toggle)
            if lamp:
                yield f"use {lamp}"
            return
        target = self._place(goal.receptacle)
        for _ in range(2 if goal.task_type == "pick_two_obj_and_place" else 1):
            held = yield from self._take(goal.object, besides=target)
            if not (held and target):
                return
            treatment, tool = TREATMENTS.get(goal.task_type, ("", ""))
            if treatment:
                where = self._place(tool)
                yield from self._go(where, look=False)
                yield f"{_VERBS[treatment]} {held} with {where}"
            yield from self._go(target)
            yield f"move {held} to {target}"
            self.seen[held] = target

    def _place(self, kind: str) -> str:
        return next((place for place in self.places if is_a(place, kind)), "")

    def _take(self, kind: str, besides: str = "") -> Generator[str, str, str]:
        held = yield from self._find(kind, besides)
        if held:
            yield f"take {held} from {self.seen.pop(held)}"
        return held

    def _find(self, kind: str, besides: str = "") -> Generator[str, str, str]:
        """Goes to a thing of a class that is not in the place `besides`; "" where there is none."""
        while True:
            for name, where in self.seen.items():
                if is_a(name, kind) and where != besides:
                    yield from self._go(where)
                    return name
            unknown = [place for place in self.places if place not in self.looked]
            if not unknown:
                return ""
            yield from self._go(unknown[0])

    def _go(self, place: str, look: bool = True) -> Talk:
        """Goes to a place unless it is there, and opens it where it is to be looked into."""
        if place == self.at and (place in self.looked or not look):
            return
        text = ""
        if place != self.at:
            text = yield f"go to {place}"
            self.at = place
        if look and (not text or text.endswith("is closed.")):
            text = yield f"open {place}"
        if not text.endswith("is closed."):
            self.looked.add(place)
            self.seen |= dict.fromkeys(named(text), place)


def winning_commands(file: GameFile) -> list[str]:
    """Commands that win a game, by one who knows where everything is.

    Raises:
      ValueError: they do not: the game is not of ALFWorld's kinds, or cannot be won so.
    """
    from sepo_jax.domains.alfworld.engine import open_game

    game = open_game(file)
    plan = _Plan(game, file.goal).commands()
    position = game.start
    for number, command in enumerate(plan):
        if command not in game.commands(position):
            raise ValueError(f"the plan for {file.goal} breaks off: {plan[: number + 1]}")
        position = game.play(position, command)
        if position.won:
            return plan[: number + 1]
    raise ValueError(f"the plan for {file.goal} does not win: {plan}")


class _Plan:
    """The shortest recipe of a task that takes the first object and the first place of a class."""

    def __init__(self, game: Any, goal: Goal):
        self._goal = goal
        self._names = game.names
        start = game.start
        self._types = {
            name: kind
            for predicate in ("receptacletype", "objecttype")
            for name, kind in game.facts(start, predicate)
        }
        self._inside = dict(game.facts(start, "inreceptacle"))
        opened = {name for (name,) in game.facts(start, "opened")}
        self._closed = {name for (name,) in game.facts(start, "openable")} - opened
        self._places = [name for name, _ in game.facts(start, "receptacleatlocation")]
        self._at = ""

    def commands(self) -> list[str]:
        """The recipe; ValueError where something of it is missing."""
        goal = self._goal
        objects = self._of(goal.object, self._inside)
        if goal.toggle:
            found = self._taken(objects[0])
            lamp = self._of(goal.toggle, self._inside)[0]
            return [*found, *self._way(self._inside[lamp]), f"use {self._names[lamp]}"]
        target = self._of(goal.receptacle, self._places)[0]
        there = sum(self._inside[each] == target for each in objects)
        away = [each for each in objects if self._inside[each] != target]
        wanted = 2 - there if goal.task_type == "pick_two_obj_and_place" else 1
        treatment, tool = TREATMENTS.get(goal.task_type, ("", ""))
        found = []
        for each in away[:wanted]:
            found += self._taken(each)
            name = self._names[each]
            if treatment:
                where = self._of(tool, self._places)[0]
                found += self._way(where, enter=False)
                found.append(f"{_VERBS[treatment]} {name} with {self._names[where]}")
            found += [*self._way(target), f"move {name} to {self._names[target]}"]
        return found

    def _of(self, kind: str, among: Iterable[str]) -> list[str]:
        wanted = f"{kind}type".lower()
        found = [each for each in among if self._types.get(each) == wanted]
        if not found:
            raise ValueError(f"there is no {kind} for {self._goal}")
        return found

    def _taken(self, thing: str) -> list[str]:
        place = self._inside[thing]
        return [*self._way(place), f"take {self._names[thing]} from {self._names[place]}"]

    def _way(self, place: str, enter: bool = True) -> list[str]:
        found = [] if place == self._at else [f"go to {self._names[place]}"]
        self._at = place
        if enter and place in self._closed:
            self._closed.remove(place)
            found.append(f"open {self._names[place]}")
        return found


def recited(commands: Iterable[str]) -> Talk:
    """A player of commands that are known beforehand."""
    yield from (command for command in commands)  # a list would not take what is said


def chance(commands: Callable[[], Sequence[str]], rng: random.Random) -> Talk:
    """A player of any command that can be played, each as likely as any other."""
    while True:
        yield rng.choice(commands())
