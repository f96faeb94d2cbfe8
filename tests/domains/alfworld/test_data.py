"""Games in a directory, laid out as the official data: read as ALFWorld does, never changed."""

import json

import alfworld_extra  # noqa: F401
import pytest

from sepo_jax.domains.alfworld.data import GAME_FILE, GOAL_FILE, game_file, made_file
from sepo_jax.domains.alfworld.domain import PAPER_TURNS, AlfWorld
from sepo_jax.domains.alfworld.export import write_games
from sepo_jax.domains.alfworld.games import SPLITS, TASK_TYPES


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two games of each type in each split, and some that ALFWorld leaves out."""
    place = tmp_path_factory.mktemp("alfworld")
    assert write_games(place, 2) == 36
    train = place / "json_2.1.1/train"
    first = next(train.glob("pick_heat*/trial_00000"))
    game, goal = first / GAME_FILE, first / GOAL_FILE
    for name, change in (
        ("pick_heat-unsolvable/trial_0", {"solvable": False}),
        ("pick_heat-unchecked/trial_0", None),
        ("pick_and_place_with_movable_recep-x/trial_0", {}),
        ("pick_heat-AppleSliced-x/trial_0", {}),
    ):
        folder = train / name
        folder.mkdir(parents=True)
        data = json.loads(game.read_text())
        if change is None:
            del data["solvable"]
        (folder / GAME_FILE).write_text(json.dumps(data | (change or {})))
        (folder / GOAL_FILE).write_text(goal.read_text())
    lone = train / "pick_heat-lone/trial_0"
    lone.mkdir(parents=True)
    (lone / GOAL_FILE).write_text(goal.read_text())
    return place


def test_games_of_a_directory_are_those_that_alfworld_takes(directory, capsys):
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    domain = AlfWorld(data=str(directory))
    named = {"env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]}}
    for key, mode, split in (
        ("data_path", "train", "train"),
        ("eval_id_data_path", "eval_in_distribution", "valid_seen"),
        ("eval_ood_data_path", "eval_out_of_distribution", "valid_unseen"),
    ):
        place = directory / "json_2.1.1" / split
        limits = {"num_train_games": -1, "num_eval_games": -1}
        theirs = AlfredTWEnv(named | {"dataset": {key: str(place), **limits}}, mode).game_files
        ours = [name for each in TASK_TYPES for name in domain.names(split, each)]
        assert sorted(str(place / name / GAME_FILE) for name in ours) == sorted(theirs)
        assert len(ours) == 12
    capsys.readouterr()


def test_a_written_game_is_the_made_one_and_its_walkthrough_wins(directory):
    domain = AlfWorld(data=str(directory / "json_2.1.1"))
    assert domain.max_turns == PAPER_TURNS
    for split in SPLITS:
        for task_type in TASK_TYPES:
            for number, name in enumerate(domain.names(split, task_type)[:1]):
                task = {"split": split, "task_type": task_type, "game": name}
                file = domain.game_file(task)
                number = int(name[-5:])
                assert file == made_file(split, task_type, number, 6, 6)
    path = directory / "json_2.1.1" / task["split"] / name / GAME_FILE
    episode = domain.new_episode(task, 0)
    rewards = [episode.step(command) for command in json.loads(path.read_text())["walkthrough"]]
    assert episode.won and sum(rewards) == 1.0


def test_tasks_of_a_directory_are_each_once_before_any_again(directory, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(directory))
    domain = AlfWorld(data="official", task_types=TASK_TYPES[:3])
    tasks = domain.training_tasks(12, seed=0)
    assert len({task["game"] for task in tasks[:6]}) == 6
    assert sorted(t["game"] for t in tasks[6:]) == sorted(t["game"] for t in tasks[:6])
    assert domain.training_tasks(12, seed=0) == tasks
    judged = domain.evaluation_tasks(50, seed=0)
    assert len(judged) == len({task["game"] for task in judged}) == 6
    drawn = domain.new_episode({"split": "train", "task_type": TASK_TYPES[1]}, 0).task["game"]
    assert drawn in domain.names("train", TASK_TYPES[1])
    traces = domain.expert_traces(5, seed=0)
    assert "Your task is to: " in traces[0][0][1]["content"]


def test_what_is_wrong_with_a_directory_is_named(directory, tmp_path):
    domain = AlfWorld(data=str(directory))
    task = domain.training_tasks(1, 0)[0]
    for change, message in (
        ({"game": "no/such"}, "is no game: a name is that"),
        ({"game": "../train/" + task["game"]}, "is no game: a name is that"),
        ({"game": "/etc"}, "is no game: a name is that"),
        ({"task_type": TASK_TYPES[3]}, "is of type pick_and_place_simple"),
    ):
        with pytest.raises(ValueError, match=message):
            domain.new_episode(task | change, 0)
    (tmp_path / "train").mkdir()
    with pytest.raises(
        ValueError, match=r"split 'train' of .* has no game of pick_and_place_simple"
    ):
        AlfWorld(data=str(tmp_path), task_types=TASK_TYPES[:1]).training_tasks(1, 0)
    with pytest.raises(ValueError, match=r"split 'train' of .* has no game of look_at_obj_in"):
        AlfWorld(data=str(tmp_path)).new_episode({"split": "train", "task_type": TASK_TYPES[1]}, 0)
    folder = tmp_path / "valid_seen/broken/trial"
    folder.mkdir(parents=True)
    (folder / GAME_FILE).write_text("{")
    (folder / GOAL_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"traj_data.json says no goal: KeyError.* download the"):
        AlfWorld(data=str(tmp_path), evaluated="valid_seen").evaluation_tasks(1, 0)
    with pytest.raises(ValueError, match="it lacks grammar, pddl_problem"):
        game_file(None, {"pddl_domain": "", "pddl_problem": 1})
