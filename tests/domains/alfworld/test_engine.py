"""The engine shows what TextWorld shows, and any number of episodes walk one game."""

import json
import random
import threading

import alfworld_extra  # noqa: F401
import pytest

from sepo_jax.domains.alfworld.data import game_file
from sepo_jax.domains.alfworld.engine import MOST_GAMES, PddlGame, open_game
from sepo_jax.domains.alfworld.games import MOST_OBJECTS, RECEPTACLES, TASK_TYPES, make_game
from sepo_jax.domains.alfworld.players import winning_commands


def file_of(task_type, number=0, receptacles=6, objects=6):
    made = make_game("train", task_type, number, receptacles, objects)
    return game_file(made.goal, made.data())


def of_a_verb(stream, commands):
    """A command whose verb is as likely as any other, so that rare ones come."""
    verb = stream.choice(sorted({command.split()[0] for command in commands}))
    return stream.choice([command for command in commands if command.split()[0] == verb])


def upstream(path):
    """The game as ALFWorld's own environment opens it."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

    infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
    named = [lambda env: AlfredDemangler(env, shuffle=False), AlfredInfos]
    return textworld.start(str(path), infos, wrappers=named)


# Verbs that the oracle needs for each type.
NEEDED = {
    "look_at_obj_in_light": {"use"},
    "pick_clean_then_place_in_recep": {"move", "clean"},
    "pick_heat_then_place_in_recep": {"move", "heat"},
    "pick_cool_then_place_in_recep": {"move", "cool"},
}


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_texts_commands_and_ends_are_those_of_textworld(task_type, tmp_path):
    size = (RECEPTACLES[1], MOST_OBJECTS) if task_type == TASK_TYPES[3] else (6, 6)
    file = file_of(task_type, 1, *size)
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(file.data))
    env, game = upstream(path), open_game(file)
    state, position, stream = env.reset(), game.start, random.Random(task_type)
    plan, verbs, won = winning_commands(file), set(), []
    for _ in range(2 * len(plan) + 15):
        assert game.text(position) == state.feedback
        assert game.commands(position) == tuple(state["admissible_commands"])
        assert position.won == state["won"]
        won.append(position.won)
        command = of_a_verb(stream, game.commands(position))
        if plan:  # what it holds or sees is looked at on the way, then it goes anywhere
            looks = [each for each in game.commands(position) if each.startswith("examine")]
            command = stream.choice(looks) if looks and stream.random() < 0.5 else plan.pop(0)
        verbs.add(command.split()[0])
        state, _, _ = env.step(command)
        position = game.play(position, command)
    assert {"go", "take", "examine", *NEEDED.get(task_type, {"move"})} <= verbs and any(won)
    state, _, _ = env.step("dance")  # changes nothing
    assert state.feedback == "Nothing happens."
    assert game.commands(position) == tuple(state["admissible_commands"])


def test_a_position_goes_on_the_same_however_it_was_reached():
    file = file_of("pick_heat_then_place_in_recep")
    game, again = open_game(file), PddlGame(file.data)
    stream, path = random.Random(0), []
    position = game.start
    for _ in range(12):
        path.append(of_a_verb(stream, game.commands(position)))
        position = game.play(position, path[-1])
    for number in range(20):
        stream = random.Random(number)
        here, there = position, again.walk(path)
        for _ in range(4):
            command = of_a_verb(stream, game.commands(here))
            here, there = game.play(here, command), again.play(there, command)
            assert game.text(here) == again.text(there)
            assert game.commands(here) == again.commands(there)
    again.start._children.clear()
    assert again.text(again.walk(path)) == game.text(position)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("sepo_jax.domains.alfworld.engine.MOST_POSITIONS", 5)
    game = PddlGame(file_of("pick_and_place_simple").data)
    free = PddlGame(file_of("pick_and_place_simple").data)
    stream, path = random.Random(1), []
    position = game.start
    for _ in range(30):
        path.append(of_a_verb(stream, game.commands(position)))
        position = game.play(position, path[-1])
        assert game._known <= 5
    assert game.text(position) == free.text(free.walk(path))


def test_a_position_is_of_one_loading_of_one_game():
    file = file_of("pick_and_place_simple")
    game, other = PddlGame(file.data), PddlGame(file.data)
    with pytest.raises(ValueError, match="of another game, or of another loading"):
        game.play(other.start, "look")
    with pytest.raises(ValueError, match="'dance' cannot be played here"):
        game.play(game.start, "dance")


def test_games_are_shared_and_the_oldest_are_let_go():
    first = file_of("pick_and_place_simple", 5)
    game = open_game(first)
    assert open_game(first) is game
    position = game.play(game.start, "look")
    for number in range(MOST_GAMES):
        open_game(file_of("look_at_obj_in_light", number))
    fresh = open_game(first)
    assert fresh is not game
    # Who still plays the one that was let go is not disturbed by others.
    assert game.text(game.play(position, "inventory")) == "You are not carrying anything."
    assert game.commands(game.start) == fresh.commands(fresh.start)


def played(file, seed):
    """A random episode: texts and commands."""
    game, stream, seen = open_game(file), random.Random(str(seed)), []
    position = game.start
    for _ in range(15):
        command = of_a_verb(stream, game.commands(position))
        position = game.play(position, command)
        seen.append((command, game.text(position), position.won))
    return seen


def test_threads_do_not_disturb_one_another():  # C07
    files = [file_of(task_type, 7) for task_type in TASK_TYPES[:4]]
    found = {}

    def run(number):
        # Four episodes in turn, two of each thread's on games that others play too.
        found[number] = [played(files[(number + k) % 4], (number, k)) for k in range(4)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert found[number] == [played(files[(number + k) % 4], (number, k)) for k in range(4)]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("FridgeType - rtype", ""),
        lambda text: text.replace("(pickupable", "(moveable"),
        lambda text: text[: len(text) // 2],
    ],
)
def test_what_cannot_be_translated_is_refused(change):
    data = dict(file_of("pick_cool_then_place_in_recep").data)
    data["pddl_problem"] = change(data["pddl_problem"])
    with pytest.raises(ValueError, match="cannot be translated"):
        PddlGame(data)


@pytest.mark.parametrize("sentence", ["put a mug in desk", "ask: 1 + 1 = 2?"])
def test_a_task_is_shown_as_it_is_written(sentence):
    made = make_game("train", "pick_and_place_simple", 0, 6, 6)
    data = made.data()
    data["grammar"] = data["grammar"].replace(made.sentence, sentence)
    game = PddlGame(data)
    assert game.text(game.start).endswith(f"Your task is to: {sentence}.")
