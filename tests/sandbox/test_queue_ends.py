"""How episodes and runs end: limits, failures, errors, silence, and what never may begin."""

import time

import pytest
from sandbox.fake_device import FakeCodec, FakeSlots, ShuffledPool, run_device
from sandbox.queue_games import RULES, SHAPE, Duel, Talk, ask, play, requests, told

from sepo_jax.sandbox.episodes import StopRules
from sepo_jax.sandbox.exchange import FAILED, FINISHED, ExchangeShape
from sepo_jax.sandbox.protocol import Answer, SandboxError, TooManyFailures, Turn
from sepo_jax.sandbox.queue import HostQueue


@pytest.mark.parametrize(
    ("rules", "status", "turns"),
    [
        (StopRules(6, 400, turns=2), "turn_limit", 2),
        (StopRules(6, 400, episode_tokens=7), "token_limit", None),
        (StopRules(6, 60), "context_full", None),
    ],
)
def test_limits_cut_episodes(rules, status, turns):
    queue, codes = play(rules=rules)
    assert codes == [FINISHED]
    results = queue.results()
    assert status in {result.status for result in results}
    for result in results:
        sampled = sum(len(action.tokens) for action in result.actions)
        held = sum(len(action.given) + len(action.tokens) for action in result.actions)
        assert not turns or len(result.actions) <= turns
        assert not rules.episode_tokens or sampled <= rules.episode_tokens
        assert held <= rules.capacity
        assert (result.record is not None) == (result.status == "finished")


class Flaky(Talk):
    """Episodes of seed 3 fail at their second turn."""

    def reset(self, task, seed):
        self.seed = seed
        return super().reset(task, seed)

    def step(self, actions):
        if self.seed in self.bad and self.turns == 1:
            raise RuntimeError(f"broken at seed {self.seed}")
        return super().step(actions)

    bad = (3,)


def test_a_failed_episode_is_contained_and_counted():  # C01
    queue, codes = play(Flaky, asked=requests(8, 4))
    assert codes == [FINISHED]
    good, _ = play(asked=requests(8, 4))
    assert [result.status == "failed" for result in queue.results()] == [i == 3 for i in range(8)]
    kept = [pair for i, pair in enumerate(zip(told(queue), told(good), strict=True)) if i != 3]
    assert all(left == right for left, right in kept)
    failed = queue.results()[3]
    assert failed.failure.kind == "raised" and "broken at seed 3" in failed.failure.message
    summary = queue.statistics.summary()
    assert summary["episodes_failed"] == summary["failed_raised"] == 1


@pytest.mark.parametrize(("allowed", "bad"), [(1.0, range(8)), (0.25, range(3))])
def test_too_many_failures_end_the_run(allowed, bad):  # C01
    kind = type("AllFlaky", (Flaky,), {"bad": tuple(bad)})
    pool = ShuffledPool(kind)
    queue, codes = play(kind, asked=requests(8, 4), pool=pool, max_failed_fraction=allowed)
    assert codes == [FAILED]
    blame = f", more than the allowed share of {allowed:g}" if allowed < 1 else ""
    with pytest.raises(TooManyFailures, match=f"{len(bad)} of 8 episodes failed{blame}; the last"):
        queue.raise_error()
    queue.close()
    assert not pool.environments


def test_results_are_there_when_all_episodes_have_ended():
    queue = HostQueue(ShuffledPool(Talk), requests(), [FakeCodec()], SHAPE, RULES, seed=0)
    with pytest.raises(SandboxError, match="12 of 12 episodes have not ended"):
        queue.results()


def test_late_and_duplicate_answers_are_ignored():  # C15
    class Repeating(ShuffledPool):
        def submit(self, call):
            super().submit(call)
            if call.kind != "close":
                self.held.append([self.random.randint(0, 9), self.held[-1][1]])
                wrong = Answer(10**9 + call.number, call.episode, turn=Turn(done=True))
                self.held.append([0, wrong])

    queue, codes = play(pool=Repeating(Talk, 7))
    assert codes == [FINISHED] and told(queue) == told(play()[0])
    assert queue.statistics.summary()["ignored_answers"] >= 48


class Answers(Talk):
    turn = Turn({0: ask("x")})

    def reset(self, task, seed):
        return self.turn


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (Turn({1: ask("x")}), "seat 1 was asked"),
        (Turn({0: ask("x", continues=True)}), "none exists"),
    ],
)
def test_senseless_turns_fail_their_episode(turn, words):
    kind = type("Senseless", (Answers,), {"turn": turn})
    queue, codes = play(kind, asked=requests(1))
    assert codes == [FAILED]
    assert queue.error is not None and words in str(queue.error)


def test_a_first_prompt_that_does_not_fit_is_refused():
    queue, codes = play(rules=StopRules(6, 20))
    assert codes == [FAILED]
    with pytest.raises(ValueError, match="has 28 tokens and a context holds 20"):
        queue.raise_error()


def test_an_error_of_the_host_ends_every_loop():
    class Broken(FakeCodec):
        def text(self, tokens):
            raise KeyboardInterrupt

    queue = HostQueue(ShuffledPool(Talk), requests(), [Broken()], SHAPE, RULES, seed=0)
    assert run_device(queue, 0, [FakeSlots(SHAPE)]) == FAILED
    with pytest.raises(KeyboardInterrupt):
        queue.raise_error()


def test_silence_ends_the_run():
    class Silent(ShuffledPool):
        def take(self):
            return []

    started = time.monotonic()
    queue, codes = play(pool=Silent(Talk), patience=0.2)
    assert codes == [FAILED] and time.monotonic() - started < 5
    with pytest.raises(SandboxError, match="no sandbox has answered"):
        queue.raise_error()


def test_time_in_which_slots_decode_is_no_silence():
    class Late(ShuffledPool):
        ready = ()

        def take(self):
            ready, self.ready = self.ready, ()
            return ready

        def wait(self, seconds):
            self.ready = super().take()
            return bool(self.ready)

    class Slow(FakeSlots):
        def decode(self):
            time.sleep(0.3)
            return super().decode()

    queue = HostQueue(
        Late(Talk, patience=0), requests(1), [FakeCodec()], SHAPE, RULES, seed=3, patience=0.25
    )
    assert run_device(queue, 0, [Slow(SHAPE)]) == FINISHED
    assert told(queue) == told(play(asked=requests(1))[0])


def test_seats_that_act_at_once_share_what_their_episode_may_sample():
    for most in range(2, 20):
        rules = StopRules(action_tokens=6, capacity=400, episode_tokens=most)
        queue, _ = play(Duel, seats=(0, 0), rules=rules)
        for result in queue.results():
            assert sum(len(action.tokens) for action in result.actions) <= most
            first = [len(a.tokens) for a in result.actions if a.turn == 0 and a.truncated]
            assert all(count == min(most // 2, 6) for count in first)


def test_episodes_that_are_over_at_once_and_no_episodes():
    kind = type("Over", (Answers,), {"turn": Turn(rewards={0: 2.0}, done=True, record="over")})
    queue, codes = play(kind)
    assert codes == [FINISHED]
    assert all(result.record == "over" and not result.actions for result in queue.results())
    queue = HostQueue(ShuffledPool(Talk), [], [FakeCodec()], SHAPE, RULES, seed=0)
    assert run_device(queue, 0, [FakeSlots(SHAPE)]) == FINISHED and queue.results() == []


def test_bad_arguments():
    pool, codecs = ShuffledPool(Talk), [FakeCodec()]
    for seats in ((1,), (), 0, "0", (0.0,), (-1,)):
        with pytest.raises(ValueError, match="must name policies from 0 to 0"):
            HostQueue(pool, [], codecs, SHAPE, RULES, seed=0, seats=seats)
    with pytest.raises(ValueError, match="5 seats of one policy and a device 4 slots"):
        HostQueue(pool, [], codecs, SHAPE, RULES, seed=0, seats=(0,) * 5)
    with pytest.raises(ValueError, match="max_failed_fraction"):
        HostQueue(pool, [], codecs, SHAPE, RULES, seed=0, max_failed_fraction=1.5)
    for wrong in ({"slots": 0}, {"interval": 0}, {"rows": 0}):
        with pytest.raises(ValueError, match="must be"):
            ExchangeShape(**({"slots": 4} | wrong))
    for widths in ((8, 2), (), (0,), (2, 2), (8.5,), ("8",)):
        with pytest.raises(ValueError, match="widths must be ascending whole numbers"):
            ExchangeShape(4, widths=widths)
    words = r"report .* bytes an exchange; at most 65536 .* use up to 332 slots"
    with pytest.raises(ValueError, match=words):
        ExchangeShape(slots=333, interval=16)
    assert ExchangeShape(slots=332, interval=16).report_bytes <= 65536
    for wrong in (
        (0, 9),
        (1, 1),
        (1, 9, -1),
        (1, 9, 0, -1),
        (1, 9, 2.5),
        (1, 9, "2"),
        (1, 9, 0, 1.5),
    ):
        with pytest.raises(ValueError, match="must be a whole number from"):
            StopRules(*wrong)
