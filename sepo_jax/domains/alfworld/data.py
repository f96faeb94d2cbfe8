"""Where ALFWorld's games come from: made by number, or the official data directory, which is only
read.

A directory holds split/.../game.tw-pddl with a traj_data.json beside each, in itself or in its
json_2.1.1. That is how `alfworld-download` leaves it, and how `alfworld.export.write_games` writes
made games.
"""

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepo_jax.domains.alfworld.games import SPLITS, TASK_TYPES, Goal, make_game

OFFICIAL = "official"
GAME_FILE, GOAL_FILE = "game.tw-pddl", "traj_data.json"
INSIDE = "json_2.1.1"
_KEYS = ("pddl_domain", "grammar", "pddl_problem")
_ADVICE = (
    "give the directory that holds the splits, or "
    f'"{OFFICIAL}" for the one that alfworld-download fills (ALFWORLD_DATA names it)'
)


@dataclass(frozen=True)
class GameFile:
    """A game, and what is to be done in it.

    Attributes:
      digest: hash of all that is in `data`.
      goal: what is to be done.
      data: what a .tw-pddl file holds.
    """

    digest: str
    goal: Goal
    data: Mapping[str, Any]


def game_file(goal: Goal, data: Mapping[str, Any]) -> GameFile:
    """A game with its hash; ValueError where it lacks what the engine reads."""
    missing = [key for key in _KEYS if not isinstance(data.get(key), str)]
    if missing:
        raise ValueError(f"no game: it lacks {', '.join(missing)}")
    kept = {key: data[key] for key in _KEYS}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return GameFile(digest, goal, kept)


@functools.lru_cache(maxsize=256)
def made_file(split: str, task_type: str, number: int, receptacles: int, objects: int) -> GameFile:
    """A made game; arguments as of `make_game`."""
    game = make_game(split, task_type, number, receptacles, objects)
    return game_file(game.goal, game.data())


def data_directory(data: str) -> Path:
    """The directory of the splits that an option names; ValueError where there is none."""
    named = data
    if data == OFFICIAL:
        named = os.environ.get("ALFWORLD_DATA", "~/.cache/alfworld")
    directory = Path(named).expanduser()
    for place in (directory / INSIDE, directory):
        if any((place / split).is_dir() for split in SPLITS):
            return place
    raise ValueError(
        f"data={data!r}: {directory} holds none of {', '.join(SPLITS)}, and no {INSIDE} with any; "
        f"{_ADVICE}"
    )


@functools.lru_cache(maxsize=8)
def directory_games(directory: Path, split: str) -> Mapping[str, Goal]:
    """The games of a split that can be solved, by the directory of each below that of the split.

    Those with movable receptacles or sliced objects are left out, as in ALFWorld.
    """
    found = {}
    for path in sorted((directory / split).rglob(GOAL_FILE)):
        name = path.parent.relative_to(directory / split).as_posix()
        game = path.with_name(GAME_FILE)
        if "movable" in name or "Sliced" in name or not game.is_file():
            continue
        goal = _read_goal(path)
        if goal.task_type in TASK_TYPES and _read(game).get("solvable"):
            found[name] = goal
    return found


@functools.lru_cache(maxsize=256)
def read_game(directory: Path, split: str, name: str) -> GameFile:
    """A game of a directory; ValueError for a name that is no game of the split."""
    folder = directory / split / name
    inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    if split not in SPLITS or not inside or not (folder / GAME_FILE).is_file():
        raise ValueError(
            f"{folder / GAME_FILE} is no game: a name is that of the game's directory below its "
            f"split, one of {', '.join(SPLITS)}"
        )
    return game_file(_read_goal(folder / GOAL_FILE), _read(folder / GAME_FILE))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}; download the data again") from error


def _read_goal(path: Path) -> Goal:
    record = _read(path)
    try:
        named = record["pddl_params"]
        return Goal(
            record["task_type"],
            named["object_target"],
            named["parent_target"],
            named["toggle_target"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} says no goal: {error!r}; download the data again") from error
