"""The host queue alone: what is sampled depends on seeds and contexts, on nothing else."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.fake_device import FakeCodec, FakeSlots, ShuffledPool, run_device, sample

from sepo_jax.sandbox.episodes import EpisodeRequest, StopRules
from sepo_jax.sandbox.exchange import FAILED, FINISHED, ExchangeShape
from sepo_jax.sandbox.protocol import Answer, Prompt, SandboxError, TooManyFailures, Turn
from sepo_jax.sandbox.queue import HostQueue

SHAPE = ExchangeShape(slots=4, interval=4, widths=(2, 8), calls=2)
RULES = StopRules(action_tokens=6, capacity=400)


def ask(text, continues=False):
    return Prompt(({"role": "user", "content": text},), continues=continues)


class Talk:
    """Three turns in one context; the observation depends on the reply. Payoff: reply length."""

    def reset(self, task, seed):
        self.turns, self.task = 0, task
        return Turn({0: ask(f"prompt of {task} " + "task " * 3)})

    def step(self, actions):
        self.turns += 1
        reward = {0: float(len(actions[0]))}
        if self.turns == 3:
            return Turn(rewards=reward, done=True, record=[self.task, actions[0]])
        return Turn({0: ask(f"heard {actions[0]} now go on", continues=True)}, reward)


class Duel:
    """Seats 0 and 1 move together twice, then seat 1 alone, each in fresh contexts."""

    def reset(self, task, seed):
        self.turns, self.said = 0, ""
        return Turn({0: ask("a" + task), 1: ask("b" + task)})

    def step(self, actions):
        self.turns += 1
        self.said += "".join(f"{seat}{text}" for seat, text in sorted(actions.items()))
        if self.turns == 3:
            return Turn(rewards={0: 1.0, 1: -1.0}, done=True, record=self.said)
        if self.turns == 2:
            return Turn({1: ask("alone" + self.said)})
        return Turn({seat: ask(f"{seat}{self.said}") for seat in (0, 1)})


def requests(count=12, group=4):
    return [EpisodeRequest(f"x{i // group}", i, i // group, i % group) for i in range(count)]


def play(
    make=Talk, asked=None, shape=SHAPE, pool=None, devices=1, seats=(0,), cuts=(True,), **more
):
    more = {"seed": 3, "rules": RULES} | more
    rules = more.pop("rules")
    pool = pool or ShuffledPool(make)
    codecs = [FakeCodec() for _ in cuts]
    queue = HostQueue(
        pool, asked or requests(), codecs, shape, rules,
        seats=seats, devices=devices, can_cut=cuts, **more,
    )  # fmt: skip
    tables = [[FakeSlots(shape, cut) for cut in cuts] for _ in range(devices)]
    codes = [None] * devices

    def loop(device):
        codes[device] = run_device(queue, device, tables[device])

    threads = [threading.Thread(target=loop, args=(device,)) for device in range(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    queue.computed = sum(table.computed for row in tables for table in row)
    return queue, codes


def told(queue):
    """All that was sampled and answered, comparable."""
    return [
        (
            result.status,
            result.record,
            [dict(reward) for reward in result.rewards],
            [
                (a.seat, a.turn, a.context, a.given.tolist(), a.tokens.tolist(), a.logp.tolist())
                for a in result.actions
            ],
        )
        for result in queue.results()
    ]


def by_hand(request, seed=3):
    """The tokens of a `Talk` episode, sampled without slots, queue or pool."""
    environment, codec, actions = Talk(), FakeCodec(), []
    turn, messages, ids, number = environment.reset(request.task, request.seed), [], [], 0
    while not turn.done:
        prompt = turn.prompts[0]
        ids += codec.follow(messages, prompt, ids[-1] == 0) if ids else codec.start(prompt)
        tokens = []
        while len(tokens) < 6 and (not tokens or tokens[-1] != 0):
            index = number * 6 + len(tokens)
            tokens.append(sample(ids, (seed, 0, request.group, request.member), index)[0])
            ids = [*ids, tokens[-1]]
        messages = [*messages, *prompt.messages, {"role": "assistant", "content": ""}]
        actions.append(tokens)
        turn, number = environment.step({0: codec.text(tokens)}), number + 1
    return actions


def test_episodes_are_what_a_plain_loop_samples():
    queue, codes = play()
    assert codes == [FINISHED]
    for request, result in zip(requests(), queue.results(), strict=True):
        assert [action.tokens.tolist() for action in result.actions] == by_hand(request)
        assert result.status == "finished" and result.record[0] == request.task
        lengths = [float(len(action.text)) for action in result.actions]
        assert [reward.get(0, 0.0) for reward in result.rewards] == [0.0, *lengths]


@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(2, 20),
    interval=st.integers(1, 9),
    widths=st.sampled_from([(1,), (2, 8), (4, 16, 64), (128,)]),
    calls=st.integers(1, 3),
    rows=st.integers(1, 3),
    devices=st.integers(1, 3),
    order=st.integers(0, 99),
    ahead=st.integers(0, 5),
    kind=st.sampled_from([Talk, Duel]),
    cut=st.booleans(),
)
def test_nothing_but_seeds_decides_what_is_sampled(
    slots, interval, widths, calls, rows, devices, order, ahead, kind, cut
):
    seats = (0, 0) if kind is Duel else (0,)
    base, _ = play(kind, seats=seats)
    shape = ExchangeShape(slots, interval, widths, calls, rows)
    pool = ShuffledPool(kind, order, patience=order % 7)
    other, codes = play(
        kind, shape=shape, pool=pool, devices=devices, seats=seats, ahead=ahead, cuts=(cut,)
    )
    assert set(codes) == {FINISHED}
    assert told(other) == told(base)
    assert not pool.environments  # every episode was closed


def test_seats_may_have_policies_of_their_own():
    shared, _ = play(Duel, seats=(0, 0))
    apart, codes = play(Duel, seats=(0, 1), cuts=(True, False))
    assert codes == [FINISHED] and told(apart) == told(shared)
    result = shared.results()[0]
    moves = [(action.turn, action.seat) for action in result.actions]
    assert moves == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]
    first, second = result.actions[:2]
    assert first.tokens.tolist() != second.tokens.tolist()


def test_members_of_a_group_share_their_prompt():
    queue, _ = play(shape=ExchangeShape(8, 4), asked=requests(64, 8), pool=ShuffledPool(Talk, 5))
    summary = queue.statistics.summary()
    first = [result.actions[0].given for result in queue.results()]
    prompts = {tuple(ids.tolist()) for ids in first}
    later = sum(len(a.given) for r in queue.results() for a in r.actions[1:])
    assert len(prompts) == 8
    # Each of the 8 prompts once, and the observations; the last token is pending, not prefilled.
    assert summary["prefilled_tokens"] == sum(len(ids) - 1 for ids in prompts) + later
    assert summary["forked_tokens"] == sum(len(ids) - 1 for ids in first) * 7 // 8
    assert queue.computed == summary["prefilled_tokens"]


class OneLate(ShuffledPool):
    """The reset of the third member of a group takes until the others have ended."""

    def submit(self, call):
        super().submit(call)
        if call.kind == "reset" and call.payload[1] % 8 == 2:
            self.held[-1][0] = 150


def test_a_prompt_is_kept_while_members_of_its_group_are_to_come():
    queue, _ = play(shape=ExchangeShape(12, 4), asked=requests(64, 8), pool=OneLate(Talk))
    first = [result.actions[0].given for result in queue.results()]
    prompts = {tuple(ids.tolist()) for ids in first}
    later = sum(len(a.given) for r in queue.results() for a in r.actions[1:])
    assert len(prompts) == 8
    once = sum(len(ids) - 1 for ids in prompts) + later
    assert queue.statistics.summary()["prefilled_tokens"] == once


def test_long_prompts_are_computed_in_chunks_between_decoding():
    class Long(Talk):
        def reset(self, task, seed):
            super().reset(task, seed)
            return Turn({0: ask(("q" if task == "x0" else "l" * 300) + task)})

    shape = ExchangeShape(8, 2, (4, 16), calls=2)
    queue, _ = play(Long, shape=shape, asked=requests(8, 4))
    other, _ = play(Long, shape=ExchangeShape(3, 5, (512,)), asked=requests(8, 4))
    assert told(queue) == told(other)


def test_counts_of_environments_and_calls():
    pool = ShuffledPool(Talk)
    play(pool=pool)
    kinds = [kind for kind, _ in pool.calls]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "reset": 12, "step": 36, "close": 12,
    }  # fmt: skip


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


def test_phases_of_slots_add_up():
    queue, _ = play(pool=ShuffledPool(Talk, 1, patience=6))
    summary = queue.statistics.summary()
    assert summary["actions"] == 36
    assert summary["sampled_tokens"] == sum(
        len(a.tokens) for r in queue.results() for a in r.actions
    )
    assert 0 < summary["decoding_share"] <= 1 and 0 < summary["busy_share"] <= 1
    assert summary["waiting_slot_seconds"] > 0 and summary["blocked_seconds"] > 0


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


def test_an_own_array_for_each_action():
    result = play()[0].results()[0]
    assert all(action.tokens.dtype == np.int32 for action in result.actions)
    assert all(action.logp.shape == action.tokens.shape for action in result.actions)
