"""Made ALFWorld games as files, laid out as the official data are, for other programs."""

import json
from pathlib import Path
from typing import Any

from sepo_jax.domains.alfworld.data import GAME_FILE, GOAL_FILE, INSIDE, game_file
from sepo_jax.domains.alfworld.games import SPLITS, TASK_TYPES, Goal, make_game
from sepo_jax.domains.alfworld.players import winning_commands


def write_games(directory: Path, count: int, *, receptacles: int = 6, objects: int = 6) -> int:
    """Writes made games, each with commands that win it.

    Args:
      directory: gets a json_2.1.1 with the splits; made where it is missing.
      count: games of each type in each split.
      receptacles, objects: of each room.

    Returns:
      The number of games.
    """
    for split in SPLITS:
        for task_type in TASK_TYPES:
            for number in range(count):
                made = make_game(split, task_type, number, receptacles, objects)
                file = game_file(made.goal, made.data())
                folder = directory / INSIDE / split / _folder(made.goal, number)
                folder.mkdir(parents=True, exist_ok=True)
                won = {"solvable": True, "walkthrough": winning_commands(file)}
                game = json.dumps({**file.data, **won})
                (folder / GAME_FILE).write_text(game, encoding="utf-8")
                goal = json.dumps(_record(made.goal, made.sentence))
                (folder / GOAL_FILE).write_text(goal, encoding="utf-8")
    return len(SPLITS) * len(TASK_TYPES) * count


def _folder(goal: Goal, number: int) -> str:
    parts = (goal.task_type, goal.object, "None", goal.receptacle or goal.toggle, "0")
    return f"{'-'.join(parts)}/trial_{number:05d}"


def _record(goal: Goal, sentence: str) -> dict[str, Any]:
    """What traj_data.json says of a game."""
    parameters = {
        "object_target": goal.object,
        "parent_target": goal.receptacle,
        "toggle_target": goal.toggle,
        "mrecep_target": "",
        "object_sliced": False,
    }
    words = {"task_desc": sentence, "high_descs": []}
    return {
        "task_type": goal.task_type,
        "pddl_params": parameters,
        "turk_annotations": {"anns": [words]},
    }
