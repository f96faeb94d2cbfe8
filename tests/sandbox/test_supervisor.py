"""Assignment, replay and restarts, with workers that are lists of what they were asked."""

import pytest

from sepo_jax.sandbox.hosting import Reply, new_counters
from sepo_jax.sandbox.protocol import BadAnswer, Call, Failure, Prompt, Turn
from sepo_jax.sandbox.supervisor import GONE, Request, Supervisor, digest_of

DIED = Failure("worker_died", "it died")


class Listed:
    """A worker that notes requests, and starts as often as it may."""

    def __init__(self, starts=100):
        self.asked, self.starts = [], starts

    def start(self):
        if self.starts == 0:
            raise OSError("no more processes")
        self.starts -= 1
        self.asked = []

    def send(self, number, request):
        self.asked.append((number, request.call.episode, request.call.kind))


class Bench:
    """A supervisor and its workers; `step` hands in calls, `answer` replies to the last request."""

    def __init__(self, *workers, max_restarts=3, retries=0):
        self.workers = workers or (Listed(), Listed())
        self.counters = new_counters()
        self.supervisor = Supervisor(
            self.workers, self.counters, max_restarts=max_restarts, retries=retries
        )
        self.supervisor.start(0.0)
        for station in self.supervisor.stations:
            if station.state != GONE:
                self.supervisor.ready(station)
        self.calls = 0

    def hand_in(self, episode, *kinds):
        for kind in kinds:
            self.calls += 1
            self.supervisor.submit(Request(Call(self.calls, episode, kind), b""))
        self.supervisor.dispatch(1.0)

    def answer(self, index, text="a"):
        station = self.supervisor.stations[index]
        self.supervisor.reply(station, station.task.number, Reply("turn", turn(text)))
        self.supervisor.dispatch(1.0)

    def die(self, index):
        station = self.supervisor.stations[index]
        self.supervisor.died(station, DIED, 2.0)
        if station.state != GONE:
            self.supervisor.ready(station)
        self.supervisor.dispatch(2.0)

    def asked(self, index):
        return [(episode, kind) for _, episode, kind in self.workers[index].asked]

    def answers(self):
        found = [(a.number, a.failure and a.failure.kind) for a in self.supervisor.answers]
        self.supervisor.answers.clear()
        return found


def turn(text):
    return Turn({0: Prompt(({"role": "user", "content": text},))}).to_json().encode()


def test_episodes_go_to_the_worker_with_the_fewest_and_stay():
    bench = Bench()
    for episode in range(4):
        bench.hand_in(episode, "reset")
    assert bench.asked(0) == [(0, "reset")]  # one call at a time
    bench.answer(0)
    assert bench.asked(0) == [(0, "reset"), (2, "reset")]
    assert bench.asked(1) == [(1, "reset")]
    bench.answer(0)
    bench.hand_in(0, "step", "close")
    bench.answer(0)
    assert bench.asked(0)[2:] == [(0, "step"), (0, "close")]
    bench.hand_in(4, "reset")
    assert bench.asked(0)[4:] == [(4, "reset")]
    assert bench.answers() == [(1, None), (3, None), (5, None)]


def test_what_follows_a_close_begins_at_once_wherever_there_is_room():
    bench = Bench()
    for episode in (0, 1):
        bench.hand_in(episode, "reset")
        bench.answer(episode)
    bench.hand_in(0, "close")
    bench.hand_in(1, "close", "reset")
    assert bench.asked(1) == [(1, "reset"), (1, "close")]
    assert bench.asked(0) == [(0, "reset"), (0, "close"), (1, "reset")]


def test_the_culprit_fails_and_the_others_are_rebuilt_before_they_go_on():
    bench = Bench(Listed())
    bench.hand_in(0, "reset")
    bench.answer(0, "zero")
    bench.hand_in(0, "step")
    bench.answer(0, "one")
    bench.hand_in(1, "reset")
    bench.hand_in(0, "step")  # waits
    bench.die(0)
    assert bench.asked(0) == [(0, "reset")]
    bench.answer(0, "zero")
    bench.answer(0, "one")
    bench.answer(0, "two")
    assert bench.asked(0) == [(0, "reset"), (0, "step"), (0, "step")]
    assert bench.answers() == [(1, None), (2, None), (3, "worker_died"), (4, None)]
    assert (bench.counters["restarts"], bench.counters["replayed"]) == (1, 1)


def test_a_turn_that_differs_loses_the_episode_and_frees_its_environment():
    bench = Bench(Listed())
    bench.hand_in(0, "reset")
    bench.answer(0, "zero")
    bench.hand_in(1, "reset")
    bench.die(0)
    bench.answer(0, "another")
    assert bench.asked(0) == [(0, "reset"), (0, "close")]
    bench.hand_in(0, "step")  # is told now
    bench.hand_in(0, "step")
    assert bench.answers() == [(1, None), (2, "worker_died"), (3, "lost"), (4, "lost")]


def test_a_reset_or_close_makes_a_rebuild_pointless():
    bench = Bench(Listed())
    for episode in (0, 1):
        bench.hand_in(episode, "reset")
        bench.answer(0)
        bench.hand_in(episode, "step")
        bench.answer(0)
    bench.hand_in(2, "reset")
    bench.hand_in(0, "reset")
    bench.hand_in(1, "close")
    bench.die(0)
    bench.answer(0)
    assert bench.asked(0) == [(0, "reset"), (1, "close")]


def test_a_death_in_a_rebuild_costs_that_episode():
    bench = Bench(Listed())
    for episode in (0, 1):
        bench.hand_in(episode, "reset")
        bench.answer(0)
    bench.hand_in(2, "reset")
    bench.die(0)
    bench.hand_in(0, "step")
    bench.die(0)  # in the replay of episode 0
    assert bench.asked(0) == [(1, "reset")]
    assert bench.answers()[2:] == [(3, "worker_died"), (4, "lost")]


def test_a_culprit_that_may_be_tried_again_keeps_its_own_failure():
    bench = Bench(Listed(), retries=1)
    bench.hand_in(0, "reset")
    bench.answer(0)
    bench.hand_in(0, "step")
    bench.die(0)
    bench.answer(0, "another")
    assert bench.answers() == [(1, None), (2, "worker_died")]


def test_a_worker_that_cannot_start_uses_up_its_restarts():
    bench = Bench(Listed(starts=0), Listed(), max_restarts=2)
    assert bench.supervisor.stations[0].state == GONE
    assert bench.counters["restarts"] == 2
    bench.hand_in(0, "reset")
    assert bench.asked(1) == [(0, "reset")]
    for _ in range(3):
        bench.die(1)
    assert "2 times; the last: it died" in bench.supervisor.exhausted.message
    bench.hand_in(1, "reset")
    assert bench.answers() == [(1, "worker_died"), (2, "worker_died")]


def test_late_repeated_and_foreign_answers_are_ignored():
    bench = Bench(Listed())
    station = bench.supervisor.stations[0]
    bench.supervisor.reply(station, 1, Reply("turn", turn("early")))
    bench.hand_in(0, "reset")
    number = station.task.number
    bench.supervisor.reply(station, number + 1, Reply("turn", turn("foreign")))
    bench.supervisor.reply(station, number, Reply("turn", turn("right")))
    bench.supervisor.reply(station, number, Reply("turn", turn("again")))
    (answer,) = bench.supervisor.answers
    assert answer.turn.prompts[0].messages[0]["content"] == "right"
    assert bench.counters["ignored_answers"] == 3


def test_digests_see_values_and_not_the_order_of_keys():
    assert digest_of(b'{"a": 1, "b": [2]}') == digest_of(b'{"b":[2],"a":1}')
    assert digest_of(b'{"a": 1, "b": [2]}') != digest_of(b'{"a": 1, "b": [3]}')
    for text in (b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 100_000):
        with pytest.raises(BadAnswer, match="not a turn"):
            digest_of(text)
