"""The host queue alone: what is sampled depends on seeds and contexts, on nothing else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.fake_device import FakeCodec, ShuffledPool, sample
from sandbox.queue_games import RULES, Duel, Talk, ask, play, requests, told

from sepo_jax.sandbox.exchange import FINISHED, ExchangeShape, no_report
from sepo_jax.sandbox.protocol import Turn
from sepo_jax.sandbox.queue import HostQueue


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


def test_few_episodes_are_spread_over_the_devices():
    shape = ExchangeShape(8, widths=(64,))
    queue = HostQueue(
        ShuffledPool(Talk, patience=0), requests(7), [FakeCodec()], shape, RULES, seed=0, devices=3
    )
    began = [queue.exchange(device, (no_report(shape),))[0].start.sum() for device in range(3)]
    assert began == [3, 3, 1]


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


def test_phases_of_slots_add_up():
    queue, _ = play(pool=ShuffledPool(Talk, 1, patience=6))
    summary = queue.statistics.summary()
    assert summary["actions"] == 36
    assert summary["sampled_tokens"] == sum(
        len(a.tokens) for r in queue.results() for a in r.actions
    )
    assert 0 < summary["decoding_share"] <= 1 and 0 < summary["busy_share"] <= 1
    assert summary["waiting_slot_seconds"] > 0 and summary["blocked_seconds"] > 0


def test_an_own_array_for_each_action():
    result = play()[0].results()[0]
    assert all(action.tokens.dtype == np.int32 for action in result.actions)
    assert all(action.logp.shape == action.tokens.shape for action in result.actions)
