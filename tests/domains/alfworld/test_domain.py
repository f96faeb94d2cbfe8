"""ALFWorld's tasks: made games of six types, players, replies, figures, traces."""

import copy
import json
import pickle
from collections import Counter

import alfworld_extra  # noqa: F401
import pytest

from sepo_jax.domains.alfworld.domain import (
    MADE_TURNS,
    PAPER_TURNS,
    PLAYERS,
    SYSTEM,
    AlfWorld,
    parse_command,
)
from sepo_jax.domains.alfworld.games import (
    MOST_OBJECTS,
    RECEPTACLES,
    SPLITS,
    TASK_TYPES,
    TREATMENTS,
    layouts,
    make_game,
)
from sepo_jax.domains.base import EpisodeFinished
from sepo_jax.domains.tasks import missing_parts

DOMAIN = AlfWorld()
COMMANDS = ("go to fridge 1", "look", "move apple 1 to fridge 1", "take apple 1 from desk 1")


def tasks_of(split, count, start=0):
    return [
        {"split": split, "task_type": task_type, "number": number}
        for task_type in TASK_TYPES
        for number in range(start, start + count)
    ]


def play(player, task, domain=DOMAIN):
    """An episode of a player to its end: what was shown, commands, rewards, and the episode."""
    episode = domain.new_episode(task, 0)
    return list(domain.played(episode, player)), episode


# Games


def test_games_of_the_three_splits_differ_however_many_are_made():
    made = {
        split: {
            (game.goal, game.receptacles, game.objects)
            for task_type in TASK_TYPES
            for number in range(60)
            for game in [make_game(split, task_type, number, 6, 6)]
        }
        for split in SPLITS
    }
    assert all(len(games) > 350 for games in made.values())  # of 360; a few are alike
    train, seen, unseen = (made[split] for split in SPLITS)
    assert not train & seen and not train & unseen and not seen & unseen
    rooms = [{receptacles for _, receptacles, _ in made[split]} for split in SPLITS]
    assert not rooms[2] & (rooms[0] | rooms[1])
    assert len(rooms[0] & rooms[1]) > 20


@pytest.mark.parametrize("number", RECEPTACLES)
def test_every_size_of_room_has_layouts_of_both_kinds(number):
    for kind in ("Kitchen", "Bathroom", "Bedroom", "LivingRoom"):
        known, new = layouts(kind, number, False), layouts(kind, number, True)
        assert known and new and not set(known) & set(new)
        assert all(len(each) == number for each in (*known, *new))


@pytest.mark.parametrize("size", [(5, 2), (6, 6), (RECEPTACLES[1], MOST_OBJECTS)])
def test_a_made_game_is_of_its_type_and_not_yet_won(size):
    for task_type in TASK_TYPES:
        for number in range(20):
            game = make_game("train", task_type, number, *size)
            goal = game.goal
            assert game == make_game("train", task_type, number, *size)
            assert len(game.receptacles) == size[0] and len(game.objects) <= max(size[1], 2)
            places = [
                game.receptacles[where] for name, where in game.objects if name == goal.object
            ]
            assert len(places) == (2 if task_type == "pick_two_obj_and_place" else 1)
            assert goal.receptacle not in places
            tool = TREATMENTS.get(task_type, ("", ""))[1]
            assert not tool or (tool in game.receptacles and goal.receptacle != tool)
            words = (goal.object, goal.receptacle, goal.toggle)
            assert all(word.lower() in game.sentence for word in words)


# Players


@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_wins_five_of_five_of_every_type_and_again_alike(split):  # C14
    for task in tasks_of(split, 5):
        runs = [play("oracle", task) for _ in range(5)]
        for shown, episode in runs:
            assert episode.won and episode.done
            assert shown == runs[0][0] and episode.record() == runs[0][1].record()
        assert runs[0][1].record()["valid"] == 1.0


@pytest.mark.slow
def test_who_searches_wins_within_the_turns_of_made_games():
    records = [play("search", task)[1].record() for task in tasks_of("train", 25, start=1000)]
    assert all(record["valid"] == 1.0 for record in records)
    # It plays only what can be played; some rooms take longer than the turns allow.
    assert sum(record["success"] for record in records) >= 0.97 * len(records)
    oracle = [play("oracle", task)[1].turns for task in tasks_of("train", 25, start=1000)]
    assert all(turns <= record["turns"] for turns, record in zip(oracle, records, strict=True))


def test_who_searches_opens_holds_and_puts_two():
    talk, episode = play("search", {"split": "train", "task_type": TASK_TYPES[5], "number": 0})
    commands = [command for _, command in talk]
    assert episode.won and commands == episode.record()["commands"]
    assert sum(command.startswith("take") for command in commands) == 2
    closed = [
        place
        for place, (shown, _) in enumerate(talk)
        if shown[-1]["content"].endswith("is closed.")
    ]
    assert closed and all(commands[place].startswith("open") for place in closed)


def test_random_commands_can_be_played_and_depend_on_the_number():
    task = {"split": "train", "task_type": TASK_TYPES[0], "number": 3}
    talks = []
    for number in (0, 0, 1):
        episode = DOMAIN.new_episode(task, 0)
        talks.append([command for _, command in DOMAIN.played(episode, "random", number)])
        assert episode.record()["valid"] == 1.0
    assert talks[0] == talks[1] != talks[2]


# Replies


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("go to fridge 1", "go to fridge 1"),
        ("  Go to Fridge 1.  ", "go to fridge 1"),
        ("I need the apple.\n\ntake apple 1 from desk 1", "take apple 1 from desk 1"),
        ("<think>not yet</think><action>look</action>", "look"),
        ("<action>\n take apple 1 from desk 1 \n</action>", "take apple 1 from desk 1"),
        ("<action>look</action> and <ACTION>go to fridge 1</ACTION> I say", "go to fridge 1"),
        ("<action>go to fridge 1", "go to fridge 1"),
        ("Action: go to fridge 1", "go to fridge 1"),
        ("**Next action:** `go to  fridge 1`", "go to fridge 1"),
        ("> look", "look"),
        ("```\nlook\n```", "look"),
        ("put apple 1 in/on fridge 1", "move apple 1 to fridge 1"),
        ("put apple 1 into fridge 1", "move apple 1 to fridge 1"),
        ("place apple 1 on fridge 1", "move apple 1 to fridge 1"),
        ("go to fridge 1\nI hope.", None),
        ("do not go to fridge 1", None),
        ("go to fridge 1, then look", None),
        ("go to fridge", None),
        ("go to fridge 11", None),
        ("<action></action>", None),
        ("<action>take it or <action>look</action>", "look"),
        ("<action>look</action></action>", "look"),
        pytest.param("<action>" * 50_000 + "look", "look", id="many tags"),
        ("", None),
    ],
)
def test_a_reply_is_read_as_its_last_line_or_what_is_tagged(reply, command):
    assert parse_command(reply, COMMANDS) == command


def test_putting_is_moving_in_games_of_both_kinds():
    earlier = ("put apple 1 in/on fridge 1",)
    assert parse_command("move apple 1 to fridge 1", earlier) == earlier[0]
    assert parse_command("put apple 1 in/on fridge 1", earlier) == earlier[0]


# Episodes


def test_an_episode_shows_pays_and_ends():
    task = {"split": "valid_unseen", "task_type": TASK_TYPES[0], "number": 0}
    domain = AlfWorld(success_reward=10.0, invalid_cost=0.1, show_commands=True)
    plan = [command for _, command in play("oracle", task)[0]]
    episode = domain.new_episode(task, 0)
    system, user = episode.messages()
    assert system == {"role": "system", "content": SYSTEM}
    assert user["content"].startswith("You are in the middle of a room. ")
    assert "\nYour task is to: put " in user["content"]
    listed = user["content"].rpartition("\nCommands: ")[2]
    assert listed == ", ".join(episode.legal_actions()) + "."
    assert episode.step("I cannot say.") == -0.1
    (user,) = episode.messages()
    assert user["content"].startswith("Nothing happens.\nCommands: ")
    rewards = [episode.step(command) for command in plan]
    assert rewards == [0.0] * (len(plan) - 1) + [10.0]
    assert episode.done and episode.won and episode.legal_actions() == ()
    record = episode.record()
    assert record["turns"] == len(plan) + 1 and record["commands"] == plan
    assert record["valid"] == pytest.approx(len(plan) / (len(plan) + 1))
    with pytest.raises(EpisodeFinished):
        episode.step("look")


def test_an_episode_without_success_ends_after_its_turns():
    assert AlfWorld().max_turns == MADE_TURNS and PAPER_TURNS == 40
    episode = AlfWorld(max_turns=3).new_episode(tasks_of("train", 1)[0], 0)
    rewards = [episode.step(reply) for reply in ("look", "?", "inventory")]
    assert rewards == [0.0] * 3 and episode.done and not episode.won
    assert "Commands" not in episode.messages()[0]["content"]


def test_equal_observations_are_equal_situations():
    episode = DOMAIN.new_episode(tasks_of("train", 1)[0], 0)
    seen = [episode.observation]
    for command in ("look", "look", "inventory", "look", "?"):
        episode.step(command)
        seen.append(episode.observation)
    assert seen[1] == seen[2] == seen[4] and len(set(seen)) == 4


def test_a_copy_goes_on_by_itself_and_knows_its_game():
    task = {"split": "train", "task_type": TASK_TYPES[2], "number": 4}
    plan = [command for _, command in play("oracle", task)[0]]
    episode = DOMAIN.new_episode(task, 0)
    for command in plan[:3]:
        episode.step(command)
    copied = copy.deepcopy(episode)
    for command in plan[3:]:
        copied.step(command)
    assert copied.won and not episode.done and len(episode.commands) == 3
    assert json.loads(json.dumps(episode.commands)) == plan[:3]
    state = episode.__getstate__()
    other = AlfWorld(objects=8)
    with pytest.raises(ValueError, match="is another than the one that was played"):
        object.__new__(type(episode)).__setstate__(state | {"domain": other})
    with pytest.raises(ValueError, match="shows something else"):
        object.__new__(type(episode)).__setstate__(state | {"commands": plan[:2]})


# The domain


def test_tasks_come_in_turn_and_depend_on_the_seed():
    assert missing_parts(DOMAIN) == []
    tasks = DOMAIN.training_tasks(20, seed=3)
    assert [task["task_type"] for task in tasks] == [TASK_TYPES[i % 6] for i in range(20)]
    assert tasks == DOMAIN.training_tasks(20, seed=3) != DOMAIN.training_tasks(20, seed=4)
    assert {task["split"] for task in tasks} == {"train"}
    judged = DOMAIN.evaluation_tasks(4, seed=3)
    assert Counter(task["task_type"] for task in judged) == dict.fromkeys(TASK_TYPES, 4)
    assert {task["split"] for task in judged} == {"valid_unseen"}
    assert json.loads(json.dumps(judged)) == judged
    few = AlfWorld(task_types=TASK_TYPES[:2], evaluated="valid_seen")
    assert {task["split"] for task in few.evaluation_tasks(1, 0)} == {"valid_seen"}
    assert {task["task_type"] for task in few.training_tasks(9, 0)} == set(TASK_TYPES[:2])
    assert len(pickle.dumps(DOMAIN)) < 600


def test_the_seed_draws_the_game_of_a_task_that_names_none():
    task = {"split": "train", "task_type": TASK_TYPES[0]}
    episodes = [DOMAIN.new_episode(task, seed) for seed in (7, 7, 8)]
    assert episodes[0].task == episodes[1].task and episodes[0].said == episodes[1].said
    assert episodes[0].task["number"] != episodes[2].task["number"]
    assert episodes[0].task == task | {"number": episodes[0].task["number"]}


def test_traces_are_whole_conversations():
    traces = DOMAIN.expert_traces(40, seed=1)
    assert traces == DOMAIN.expert_traces(40, seed=1) and len(traces) == 40
    begins = [place for place, (messages, _) in enumerate(traces) if len(messages) == 2]
    assert begins[0] == 0 and len(begins) > 3
    for place, (messages, _) in enumerate(traces):
        assert [m["role"] for m in messages[:2]] == ["system", "user"]
        if place not in begins:
            before, said = traces[place - 1]
            assert messages[:-1] == [*before, {"role": "assistant", "content": said}]
    # They are what a policy is shown that replies so.
    episode = DOMAIN.new_episode(DOMAIN.training_tasks(1, seed=1)[0], 0)
    talk = episode.messages()
    for messages, command in traces[: begins[1]]:
        assert messages == talk
        episode.step(command)
        talk = [*talk, {"role": "assistant", "content": command}, *episode.messages()]
    assert episode.won
    assert DOMAIN.expert_traces(0, 1) == []


def test_figures_are_of_all_and_of_each_type():
    tasks = DOMAIN.evaluation_tasks(2, seed=0)
    records = [{"success": i % 2 == 0, "turns": i, "valid": 0.5} for i in range(11)] + [None]
    found = DOMAIN.figures(tasks, records)
    assert found["success"] == 0.5 and found["valid"] == 0.5 and found["turns"] == 5.0
    assert 0.2 < found["success_low"] < 0.5 < found["success_high"] < 0.8
    last = TASK_TYPES[-1]
    assert found[f"{last}/success"] == 0.5 and found[f"{last}/turns"] == 10.0
    assert found[f"{TASK_TYPES[0]}/turns"] == 0.5


def test_baselines_stand_beside_one_another():
    tasks = DOMAIN.evaluation_tasks(3, seed=0)
    found = DOMAIN.baselines(tasks)
    assert tuple(found) == PLAYERS
    assert found["oracle"]["success"] == 1.0 and found["oracle"]["valid"] == 1.0
    assert found["random"]["success"] < 0.5 < found["search"]["success"]
    assert found["oracle"]["turns"] < found["search"]["turns"] < found["random"]["turns"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluated": "valid_sen"}, "Did you mean 'valid_seen'"),
        ({"expert": "planner"}, "unknown expert 'planner'"),
        ({"task_types": ("pick",)}, "unknown task type 'pick'"),
        ({"receptacles": 4}, "receptacles must be at least 5"),
        ({"receptacles": 10}, "receptacles must be at most 9"),
        ({"objects": 13}, "objects must be at most 12"),
        ({"max_turns": -1}, "max_turns must be at least 0"),
        ({"success_reward": 0}, "success_reward=0 must be above 0"),
        ({"invalid_cost": -1}, "invalid_cost=-1 not below 0"),
        ({"data": "/no/such/place"}, "holds none of train, valid_seen, valid_unseen"),
    ],
)
def test_options_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        AlfWorld(**options)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, 'a task of ALFWorld is {"split", "task_type", "number"} here, the last or not'),
        ("train", "not 'train'"),
        ({"split": "train", "task_type": TASK_TYPES[0], "game": "x"}, "and not .*'game': 'x'"),
        ({"split": "test", "task_type": TASK_TYPES[0], "number": 0}, "unknown split 'test'"),
        ({"split": "train", "task_type": "look", "number": 0}, "unknown task type 'look'"),
        ({"split": "train", "task_type": TASK_TYPES[0], "number": -1}, "number must be at least 0"),
        ({"split": "train", "task_type": TASK_TYPES[0], "number": "1"}, "must be an integer"),
    ],
)
def test_what_is_no_task_is_refused(task, message):
    with pytest.raises(ValueError, match=message):
        DOMAIN.new_episode(task, 0)
