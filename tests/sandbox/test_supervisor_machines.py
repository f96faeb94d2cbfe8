"""The supervisor of workers that are handed several requests, and lost together."""

import pytest

from sepo_jax.sandbox.hosting import Reply, new_counters
from sepo_jax.sandbox.protocol import Call, Failure, Prompt, Turn
from sepo_jax.sandbox.stations import BUSY, GONE, IDLE, STARTING, Request
from sepo_jax.sandbox.supervisor import LATE_SECONDS, Supervisor

DEATH = Failure("worker_died", "struck by lightning")


def turn(text):
    """The reply of an environment that shows this text."""
    message = {"role": "user", "content": text}
    return Reply("turn", Turn({0: Prompt((message,))}).to_json().encode())


class Noting:
    """A worker that notes its starts and what it is sent."""

    def __init__(self):
        self.starts, self.sent = 0, []

    def start(self):
        self.starts += 1
        self.sent = []

    def send(self, number, request):
        self.sent.append((number, request))


class Scene:
    """A supervisor of noting workers, and a caller with numbers of its own."""

    def __init__(self, workers, **options):
        self.counters = new_counters()
        options = {"max_restarts": 3, "retries": 0} | options
        self.supervisor = Supervisor([Noting() for _ in range(workers)], self.counters, **options)
        self.stations = self.supervisor.stations
        self.calls = 0
        self.supervisor.start(0.0)
        for station in self.stations:
            self.supervisor.ready(station)

    def call(self, episode, kind):
        self.calls += 1
        self.supervisor.submit(Request(Call(self.calls, episode, kind), kind.encode()))
        self.supervisor.dispatch(0.0)
        return self.calls

    def answer(self, index, text="text"):
        """The worker answers the first of the requests it has not answered."""
        station = self.stations[index]
        self.supervisor.reply(station, station.tasks[0].number, turn(text))
        self.supervisor.dispatch(0.0)

    def kinds(self, index):
        """Episodes and kinds of what a worker was sent since its start."""
        return [(r.call.episode, r.call.kind) for _, r in self.stations[index].worker.sent]

    def taken(self):
        """Answers that the caller gets: texts and failures by number."""
        answers, self.supervisor.answers = self.supervisor.answers, []
        return {
            answer.number: answer.failure or answer.turn.prompts[0].messages[0]["content"]
            for answer in answers
        }


def test_a_worker_gets_as_many_requests_as_its_depth():
    scene = Scene(1, depth=2)
    numbers = [scene.call(episode, "reset") for episode in range(4)]
    assert scene.kinds(0) == [(0, "reset"), (1, "reset")]
    scene.answer(0, "first")
    assert scene.kinds(0)[2:] == [(2, "reset")]
    scene.answer(0, "second")
    scene.answer(0, "third")
    assert scene.stations[0].state == BUSY
    scene.answer(0, "fourth")
    assert scene.taken() == dict(zip(numbers, ("first", "second", "third", "fourth"), strict=True))
    assert scene.stations[0].state == IDLE


def test_requests_of_one_episode_are_never_handed_over_at_once():
    scene = Scene(1, depth=4)
    scene.call(0, "reset")
    scene.call(0, "step")
    assert scene.kinds(0) == [(0, "reset")]
    scene.answer(0)
    assert scene.kinds(0) == [(0, "reset"), (0, "step")]


def test_the_first_of_the_requests_of_a_dead_worker_is_the_culprit():
    scene = Scene(1, depth=3)
    numbers = [scene.call(episode, "reset") for episode in range(3)]
    scene.supervisor.died(scene.stations[0], DEATH, 0.0)
    scene.supervisor.ready(scene.stations[0])
    scene.supervisor.dispatch(0.0)
    assert scene.kinds(0) == [(1, "reset"), (2, "reset")]
    scene.answer(0)
    scene.answer(0)
    assert scene.taken() == {numbers[0]: DEATH, numbers[1]: "text", numbers[2]: "text"}


def test_answers_out_of_turn_are_ignored():
    scene = Scene(1, depth=2)
    for episode in range(2):
        scene.call(episode, "reset")
    second = scene.stations[0].tasks[1].number
    scene.supervisor.reply(scene.stations[0], second, turn("early"))
    assert scene.counters["ignored_answers"] == 1
    assert scene.taken() == {}


def test_workers_that_end_together_without_blame_lose_nothing():
    scene = Scene(3, max_restarts=1)
    for episode in range(6):
        scene.call(episode, "reset")
    for index in (0, 1, 2, 0, 1, 2):
        scene.answer(index, f"turn of worker {index}")
    scene.taken()
    pending = [scene.call(episode, "step") for episode in (0, 1)]  # of workers 0 and 1
    scene.supervisor.lost(scene.stations[:2], DEATH, 0.0)
    assert [station.worker.starts for station in scene.stations] == [2, 2, 1]
    assert scene.counters["replayed"] == 4  # each moved once, though two workers went
    for station in scene.stations[:2]:
        scene.supervisor.ready(station)
    scene.supervisor.dispatch(0.0)
    for _ in range(4):
        for index, station in enumerate(scene.stations):
            if station.tasks:
                replay = station.tasks[0].is_replay
                owner = station.tasks[0].episode.number % 3
                scene.answer(index, f"turn of worker {owner}" if replay else "new")
    assert scene.taken() == dict.fromkeys(pending, "new")


def test_an_idle_worker_takes_over_from_one_that_is_being_replaced():
    scene = Scene(2)
    for episode in range(4):
        scene.call(episode, "reset")
    for index in (0, 1, 0, 1):
        scene.answer(index)
    scene.taken()
    number = scene.call(0, "step")
    scene.supervisor.lost(scene.stations[:1], DEATH, 0.0)
    scene.supervisor.dispatch(0.0)
    assert scene.stations[0].state == STARTING
    assert scene.kinds(1)[-1] == (0, "reset")
    scene.answer(1)  # the rebuild
    scene.answer(1, "on it goes")
    assert scene.taken() == {number: "on it goes"}
    assert scene.stations[1].episodes.keys() >= {0}
    assert 0 not in scene.stations[0].episodes


def test_no_worker_takes_over_while_all_start_for_the_first_time():
    scene = Scene(2)
    scene.stations[1].state = STARTING
    for episode in range(4):
        scene.call(episode, "reset")
    scene.answer(0)
    scene.answer(0)
    assert scene.stations[0].state == IDLE
    assert sorted(scene.stations[1].episodes) == [1, 3]
    scene.supervisor.dispatch(LATE_SECONDS + 1)  # it is late: its machine may never have room
    assert scene.kinds(0)[-1] == (1, "reset")
    assert sorted(scene.stations[1].episodes) == [3]


@pytest.mark.parametrize("is_to_blame", [True, False])
def test_deaths_without_blame_end_too(is_to_blame):
    scene = Scene(1, max_restarts=2)
    scene.call(0, "reset")
    for _ in range(3):
        scene.supervisor.died(scene.stations[0], DEATH, 0.0, is_to_blame=is_to_blame)
    (failure,) = scene.taken().values()
    assert failure.kind == "worker_died"
    assert scene.stations[0].state == GONE
    assert "each of 1 was replaced 2 times" in scene.supervisor.exhausted.message
