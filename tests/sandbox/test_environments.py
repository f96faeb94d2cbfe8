"""Environments: asked rightly they play their episodes, asked wrongly they say so and stay."""

import os
import pickle
from pathlib import Path

import pytest
from sandbox.environment_cases import (
    CASES,
    Countdown,
    Pennies,
    play_on,
    prefix,
)
from sandbox.toys_files import WORDS, Notes

from sepo_jax import sandbox
from sepo_jax.domains import EpisodeFailed, EpisodeFinished, Kuhn, Played, TablePolicy
from sepo_jax.domains.kuhn import DEALS, TERMINAL_HISTORIES, payoff_to_first
from sepo_jax.sandbox.base import BaseEnvironment, ask, finish
from sepo_jax.sandbox.environments import DomainEnvironment, Replayed, domain_environments
from sepo_jax.sandbox.protocol import BadAnswer, SnapshotRefused, Turn
from sepo_jax.sandbox.snapshots import content_of


def word(text: str) -> dict[int, str]:
    return {0: text}


# Domains


def test_a_domain_plays_the_episode_that_it_would_play_itself():
    domain = Kuhn(hands=6)
    environment = DomainEnvironment(domain)
    episode = domain.new_episode("LooseAggressive", seed=11)
    turn = environment.reset({"opponent": "LooseAggressive"}, 11)
    paid = turn.rewards[0]
    while not episode.done:
        (prompt,) = turn.prompts.values()
        assert prompt.messages == tuple(episode.messages()) and not prompt.continues
        assert prompt.legal_actions == episode.legal_actions()
        assert prompt.observation == episode.observation
        rounds = len(episode.rounds)
        episode.step("BET or CALL: call")
        turn = environment.step(word("BET or CALL: call"))
        assert turn.rewards == {0: sum(result.own for result in episode.rounds[rounds:])}
        paid += turn.rewards[0]
    assert turn.done and turn.record == episode.record()
    assert paid == sum(result.own for result in Played.from_record(turn.record).rounds)


def scripted(history: str) -> TablePolicy:
    """A player that follows the moves of `history` wherever it is asked."""
    rows = {}
    for card in "JQK":
        for index, letter in enumerate(history):
            rows[card + history[:index]] = (1.0, 0.0) if letter == "p" else (0.0, 1.0)
    return TablePolicy(rows, "scripted")


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("history", TERMINAL_HISTORIES)
def test_hands_pay_by_the_rules_and_take_no_move_more(history, seat):  # C13
    environment = DomainEnvironment(Kuhn())
    for deal in DEALS:
        task = {"opponent": scripted(history), "seat": seat, "deal": deal}
        turn = environment.reset(task, 0)
        for letter in history[seat::2]:
            assert not turn.done
            turn = environment.step(word(turn.prompts[0].legal_actions["pb".index(letter)]))
        payoff = payoff_to_first(deal, history)
        assert turn.done and turn.rewards == {0: payoff if seat == 0 else -payoff}
        with pytest.raises(EpisodeFinished):
            environment.step(word("PASS"))
        assert turn.record["rounds"] == environment.state.record()["rounds"]


def test_environments_of_a_process_share_the_domain():
    factory = pickle.loads(pickle.dumps(domain_environments(Kuhn(hands=2))))
    first, second = factory(Path()), factory(Path())
    assert first.domain is second.domain and first.domain.hands == 2
    first.reset({"opponent": "NashApprox"}, 3)
    snapshot = first.snapshot()
    second.restore(snapshot)
    assert second.state is not first.state and second.state._domain is first.domain
    assert len(snapshot) < len(pickle.dumps(first.domain)) + 4000


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"opponent": "NashAprox"}, "Did you mean 'NashApprox'"),
        ({"opponent": "NashApprox", "seats": 0}, "Did you mean 'seat'"),
        ({"opponent": "NashApprox", "seed": 0}, "unknown field of a task"),
        ({"opponent": "NashApprox", "seat": 2}, "seat must be 0"),
        ({"seat": 1}, r'a task of domain kuhn is {"opponent": ...}'),
        ("NashApprox", r"with any of \['deal', 'opponent', 'seat'\] beside it"),
    ],
)
def test_a_task_that_a_domain_does_not_take_is_named(task, message):
    with pytest.raises(ValueError, match=message):
        DomainEnvironment(Kuhn()).reset(task, 0)


def test_every_public_name_is_found():
    assert all(getattr(sandbox, name) is not None for name in sandbox.__all__)
    assert set(dir(sandbox)) == set(sandbox.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sandbox'"):
        sandbox.Sandbox  # noqa: B018


# Every environment


@pytest.fixture(params=list(CASES))
def running(request, tmp_path):
    """Name of an environment, and the environment with an episode under way."""
    environment = CASES[request.param].factory(tmp_path)
    prefix(request.param, environment, 5)
    yield request.param, environment
    environment.close()


def test_asked_wrongly_an_environment_says_so_and_stays_as_it_is(running):
    name, environment = running
    expected = play_on(name, environment, prefix(name, environment, 5), 1)
    turn = prefix(name, environment, 5)
    before = content_of(environment.snapshot())
    seats = list(turn.prompts)
    for actions in ({}, {7: "PASS"}, dict.fromkeys([*seats, 7], "PASS"), "PASS", None):
        with pytest.raises(ValueError, match=rf"asks seats \[{seats[0]}.*these answer"):
            environment.step(actions)
    with pytest.raises(ValueError, match="a text for every seat"):
        environment.step(dict.fromkeys(seats, 1))
    assert content_of(environment.snapshot()) == before
    assert play_on(name, environment, turn, 1) == expected
    with pytest.raises(EpisodeFinished, match="is over"):
        environment.step(dict.fromkeys(seats, "PASS"))
    with pytest.raises(SnapshotRefused, match=r"nothing to keep.*is over"):
        environment.snapshot()


@pytest.mark.parametrize("name", list(CASES))
def test_before_a_reset_there_is_nothing_to_step_or_keep(name, tmp_path):
    environment = CASES[name].factory(tmp_path)
    with pytest.raises(ValueError, match="plays no episode yet; reset it first"):
        environment.step(word("PASS"))
    with pytest.raises(SnapshotRefused, match="reset it first"):
        environment.snapshot()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.seeded])
def test_equal_states_have_equal_contents_and_different_ones_do_not(name, tmp_path):
    contents = {}
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        environment = CASES[name].factory(tmp_path / place)
        for seed in range(4):
            turn = prefix(name, environment, seed)
            contents.setdefault((seed, "before"), set()).add(content_of(environment.snapshot()))
            actions = dict.fromkeys(turn.prompts, "nothing")
            if not environment.step(actions).done:
                contents.setdefault((seed, "after"), set()).add(content_of(environment.snapshot()))
    assert all(len(hashes) == 1 for hashes in contents.values())
    assert len(set.union(*contents.values())) == len(contents) >= 5


# The base


class Fragile(BaseEnvironment):
    """Raises on demand, in the midst of a move."""

    def start(self, task, seed):
        if task == "no":
            raise KeyError(task)
        self.state = []
        return ask("Go on.")

    def play(self, actions):
        self.state.append(actions[0])
        if actions[0] == "raise":
            raise KeyError("half")
        if actions[0] == "lie":
            return "a turn"
        return finish(reward=1.0) if actions[0] == "end" else ask("More.", continues=True)


@pytest.mark.parametrize(("reply", "error"), [("raise", KeyError), ("lie", BadAnswer)])
def test_an_error_in_the_midst_of_a_move_leaves_the_episode_failed(reply, error, tmp_path):
    environment = Fragile(tmp_path)
    environment.reset("yes", 0)
    kept = environment.snapshot()
    with pytest.raises(error):
        environment.step(word(reply))
    with pytest.raises(EpisodeFailed, match=rf"Fragile failed with {error.__name__}"):
        environment.step(word("more"))
    with pytest.raises(SnapshotRefused, match="failed with"):
        environment.snapshot()
    environment.restore(kept)
    assert environment.step(word("end")) == finish(reward=1.0)
    assert environment.state == ["end"]


def test_a_reset_that_fails_can_be_made_good(tmp_path):
    environment = Fragile(tmp_path)
    with pytest.raises(KeyError):
        environment.reset("no", 0)
    with pytest.raises(EpisodeFailed, match="KeyError"):
        environment.step(word("more"))
    assert environment.reset("yes", 0) == ask("Go on.")


def test_two_seats_play_at_once(tmp_path):
    environment = Pennies(tmp_path)
    turn = environment.reset(2, 3)
    assert set(turn.prompts) == {0, 1}
    with pytest.raises(ValueError, match=r"asks seats \[0, 1\], and these answer: \[1\]"):
        environment.step({1: "heads"})
    middle = environment.step({1: "heads", 0: "heads"})
    assert middle.rewards[0] > 0 and middle.rewards[0] == -middle.rewards[1]
    last = environment.step({0: "tails", 1: "heads"})
    assert last.done and last.rewards[0] < 0 and last.record == ["heads heads", "tails heads"]


def test_helpers_make_turns_of_one_seat():
    turn = ask("Well?", reward=2, legal_actions=["yes", "no"], observation="x")
    assert Turn.from_json(turn.to_json()) == turn
    assert turn.prompts[0].messages == ({"role": "user", "content": "Well?"},)
    assert turn.rewards == {0: 2.0} and turn.prompts[0].legal_actions == ("yes", "no")
    chat = ({"role": "system", "content": "a"}, {"role": "user", "content": "b"})
    assert ask(chat).prompts[0].messages == chat
    assert finish(record=[1]) == Turn(rewards={0: 0.0}, done=True, record=[1])


# Replays


class Moody(Countdown):
    """Counts its resets, so that no replay shows what the first time did."""

    def __init__(self, error=None):
        self.resets, self.error = 0, error

    def reset(self, task, seed):
        self.resets += 1
        if self.error and self.resets > 1:
            raise self.error
        return super().reset(task, seed)

    def step(self, actions):
        turn = super().step(actions)
        return Turn(turn.prompts, {0: float(self.resets)}, turn.done, turn.record)


def test_an_environment_that_does_not_repeat_itself_is_found_out():
    environment = Replayed(Moody())
    environment.reset(20, 1)
    kept_at_once = environment.snapshot()
    environment.step(word("1"))
    environment.step(word("1"))
    snapshot = environment.snapshot()
    with pytest.raises(SnapshotRefused, match="does not repeat itself: turn 1 of the replay"):
        environment.restore(snapshot)
    with pytest.raises(EpisodeFailed):
        environment.step(word("1"))
    environment.restore(kept_at_once)
    assert not environment.step(word("1")).done


def test_an_environment_that_raises_in_a_replay_is_refused_with_its_words():
    environment = Replayed(Moody(ValueError("full")))
    environment.reset(20, 1)
    with pytest.raises(SnapshotRefused, match=r"raised ValueError\('full'\) while its past"):
        environment.restore(environment.snapshot())


@pytest.mark.parametrize(
    "task", [{"a": [1, 2.5, None]}, (1, 2), {1: "x"}, {"a": {3}}, float("nan")]
)
def test_a_task_comes_back_from_a_replay_as_it_was(task):
    class Told(Countdown):
        def reset(self, task, seed):
            self.told = task
            return super().reset(9, seed)

    environment, other = Replayed(Told()), Replayed(Told())
    environment.reset(task, 4)
    other.restore(environment.snapshot())
    assert repr(other.environment.told) == repr(task)
    assert type(other.environment.told) is type(task)


def test_a_past_that_cannot_be_written_is_refused():
    environment = Replayed(Countdown())
    environment.reset(9, b"seed")
    with pytest.raises(SnapshotRefused, match="is no JSON"):
        environment.snapshot()


# Files


def test_notes_are_won_by_writing_what_the_task_wants(tmp_path):
    environment = Notes(tmp_path)
    turn = environment.reset({"data": None, "name": "deep/b", "steps": 3}, 2)
    (wanted,) = [name for name in WORDS if name in turn.prompts[0].messages[0]["content"]]
    assert environment.step(word("write ../b x")).prompts[0].observation == ""
    turn = environment.step(word(f"write deep/b {wanted}"))
    assert turn.done and turn.rewards == {0: 1.0}
    assert turn.record == {"solved": True, "notes": {"deep/b": wanted}}
    environment.reset({"data": None, "name": "b", "steps": 1}, 2)
    assert environment.step(word("list")).record == {"solved": False, "notes": {}}


def test_a_restore_leaves_nothing_of_another_episode(tmp_path):
    environment = Notes(tmp_path)
    task = {"data": None, "name": "b", "steps": 9}
    environment.reset(task, 0)
    environment.step(word("write deep/a fern"))
    snapshot = environment.snapshot()
    environment.step(word("delete deep/a"))
    environment.step(word("write left over"))
    os.symlink("/", environment.directory / "root")
    os.chmod(environment.directory / "deep", 0o500)
    turn = environment.restore(snapshot)
    assert turn.prompts[0].observation == "deep/a"
    assert content_of(environment.snapshot()) == content_of(snapshot)
    assert sorted(path.name for path in environment.directory.rglob("*")) == ["a", "deep"]
    environment.reset(task, 0)
    assert list(environment.directory.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["workspace"]


def test_too_many_files_are_refused_and_the_episode_goes_on(tmp_path):
    environment = Notes(tmp_path)
    environment.max_bytes = 20_000
    environment.reset({"data": None, "name": "b", "steps": 9}, 0)
    environment.snapshot()
    environment.step(word(f"write big {'x' * 20_000}"))
    with pytest.raises(SnapshotRefused, match=r"more than 20000 bytes \(stopped at 'big'\)"):
        environment.snapshot()
    environment.step(word("delete big"))
    environment.snapshot()
