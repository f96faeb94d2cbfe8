"""Episodes that go on from states of others, in one queue with them."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.fake_device import FakeCodec, ShuffledPool, sample
from sandbox.queue_games import Duel, Talk, ask, play, requests, told

from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.sandbox.exchange import FAILED, FINISHED, ExchangeShape
from sepo_jax.sandbox.protocol import SnapshotRefused, TooManyFailures, Turn

TURNS = (0, 0, 1, 2, 2)  # where forks go on


def trunks(count=4):
    """Episodes of a group each, so that none shares its prompt with another's."""
    return [dataclasses.replace(each, keep_snapshots=True) for each in requests(count, 1)]


def fork(result, turns=TURNS):
    """Forks of a trunk; members from 10 on."""
    if result.request.past is not None or result.failure is not None:
        return []
    return [result.continuation(turn, 10 + number) for number, turn in enumerate(turns)]


def forked(kind=Talk, asked=None, follow_ups=fork, **more):
    return play(kind, asked=asked or trunks(), follow_ups=follow_ups, **more)


def by_hand(trunk, request, seed=3):
    """The tokens that a fork of a `Talk` samples, without slots, queue or pool."""
    codec, turn = FakeCodec(), request.past.turn
    ids = [
        token
        for action in trunk.actions[:turn]
        for part in (action.given, action.tokens)
        for token in part.tolist()
    ]
    environment, sampled = Talk(), []
    turn_there = environment.reset(trunk.request.task, trunk.request.seed)
    for action in trunk.actions[:turn]:
        turn_there = environment.step({0: action.text})
    messages = [{"role": "assistant", "content": ""}]
    while not turn_there.done:
        prompt = turn_there.prompts[0]
        ids += codec.follow(messages, prompt, ids[-1] == 0) if ids else codec.start(prompt)
        tokens = []
        while len(tokens) < 6 and (not tokens or tokens[-1] != 0):
            key = (seed, 0, request.group, request.member)
            tokens.append(sample(ids, key, turn * 6 + len(tokens))[0])
            ids = [*ids, tokens[-1]]
        sampled.append(tokens)
        turn_there, turn = environment.step({0: codec.text(tokens)}), turn + 1
    return sampled


def test_a_result_has_the_snapshots_of_the_states_in_which_it_acted():
    queue, codes = play(asked=trunks())
    assert codes == [FINISHED]
    assert [(*r[:3], r[3]) for r in told(queue)] == told(play(asked=requests(4, 1))[0])
    for result in queue.results():
        assert sorted(result.snapshots) == [0, 1, 2]
        for turn, state in result.snapshots.items():
            restored = Talk().restore(state)
            assert restored.prompts[0] == result.actions[turn].prompt
    summary = queue.statistics.summary()
    assert summary["snapshots"] == 12 and summary["snapshot_seconds"] > 0
    # Without being asked none is taken.
    queue, _ = play()
    assert queue.statistics.summary()["snapshots"] == 0
    assert not any(result.snapshots for result in queue.results())


def test_forks_are_what_a_plain_loop_samples_after_what_their_trunk_did():
    queue, codes = forked()
    assert codes == [FINISHED]
    results = queue.results()
    assert len(results) == 4 * 6
    for first in range(0, 24, 6):
        trunk, forks = results[first], results[first + 1 : first + 6]
        assert [each.request.past.turn for each in forks] == list(TURNS)
        sampled = set()
        for number, each in enumerate(forks):
            turn = each.request.past.turn
            assert each.request.member == 10 + number and each.request.group == trunk.request.group
            # The past is the trunk's own, not a copy; what follows is the fork's.
            assert all(a is b for a, b in zip(each.actions[:turn], trunk.actions, strict=False))
            assert each.rewards[: turn + 1] == trunk.rewards[: turn + 1]
            own = [action.tokens.tolist() for action in each.actions[turn:]]
            assert own == by_hand(trunk, each.request) and each.status == "finished"
            assert each.actions[turn].given.tolist() == trunk.actions[turn].given.tolist()
            lengths = [float(len(action.text)) for action in each.actions]
            assert [reward.get(0, 0.0) for reward in each.rewards] == [0.0, *lengths]
            sampled.add(str(own))
        assert len(sampled | {str([a.tolist() for a in trunk.actions[0].tokens])}) > len(forks)
        # The hook alone gets the snapshots.
        assert trunk.snapshots == {}


def once(results):
    """Tokens that prefill must compute: given tokens of every distinct beginning, and no more.

    The last token of a context is pending, so a first prompt of n tokens costs n - 1.
    """
    total = 0
    for result in results:
        past = result.request.past
        begins_at = 0 if past is None else past.turn + 1
        total += sum(len(action.given) for action in result.actions[begins_at:])
        total -= past is None
    return total


@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 20),
    interval=st.integers(1, 9),
    widths=st.sampled_from([(1,), (2, 8), (4, 16, 64), (128,)]),
    calls=st.integers(1, 3),
    devices=st.integers(1, 3),
    order=st.integers(0, 99),
    ahead=st.integers(0, 5),
    patience=st.sampled_from([0, 3, 40]),
)
def test_what_a_tree_shares_is_computed_once_whatever_the_slots(
    slots, interval, widths, calls, devices, order, ahead, patience
):
    base, _ = forked()
    shape = ExchangeShape(slots, interval, widths, calls)
    pool = ShuffledPool(Talk, order, patience=patience)
    queue, codes = forked(shape=shape, pool=pool, devices=devices, ahead=ahead)
    assert set(codes) == {FINISHED}
    assert told(queue) == told(base)
    assert not pool.environments
    summary = queue.statistics.summary()
    assert summary["prefilled_tokens"] == queue.computed == once(queue.results())
    sampled = sum(
        len(action.tokens)
        for result in queue.results()
        for action in result.actions
        if result.request.past is None or action.turn >= result.request.past.turn
    )
    assert summary["sampled_tokens"] == sampled


@settings(max_examples=12, deadline=None)
@given(
    slots=st.integers(2, 20),
    order=st.integers(0, 99),
    ahead=st.integers(0, 5),
    kind=st.sampled_from([Talk, Duel]),
    cut=st.booleans(),
)
def test_slots_that_cannot_be_cut_and_fresh_contexts_change_nothing(slots, order, ahead, kind, cut):
    seats = (0, 0) if kind is Duel else (0,)
    base, _ = forked(kind, seats=seats)
    pool = ShuffledPool(kind, order)
    shape = ExchangeShape(slots, 3, (4, 16))
    queue, codes = forked(kind, shape=shape, pool=pool, ahead=ahead, seats=seats, cuts=(cut,))
    assert codes == [FINISHED] and told(queue) == told(base)


def test_a_fork_may_be_played_without_its_trunk():
    trunk = play(asked=trunks(1))[0].results()[0]
    alone, codes = play(asked=[trunk.continuation(turn, 10 + turn) for turn in (0, 1, 2)])
    beside, _ = forked(asked=trunks(1), follow_ups=lambda result: fork(result, (0, 1, 2)))
    assert codes == [FINISHED] and told(alone) == told(beside)[1:]


def test_forks_may_fork():
    def twice(result):
        if result.request.past is None:
            first = result.continuation(0, 10)
            return [dataclasses.replace(first, keep_snapshots=True)]
        return [result.continuation(2, 20)] if result.request.member == 10 else []

    queue, codes = forked(asked=trunks(3), follow_ups=twice)
    assert codes == [FINISHED]
    results = queue.results()
    assert [result.request.member for result in results] == [0, 10, 20] * 3
    for trunk, first, second in zip(*[iter(results)] * 3, strict=True):
        assert first.actions[0] is not trunk.actions[0]
        assert second.actions[:2] == first.actions[:2]
        assert second.actions[2] is not first.actions[2]
    assert queue.statistics.summary()["prefilled_tokens"] == once(results)


def test_follow_ups_may_begin_anew():
    def again(result):
        later = dataclasses.replace(result.request, member=result.request.member + 10)
        return [later] if later.member < 20 else []

    queue, _ = play(asked=requests(2, 1), follow_ups=again)
    direct = [EpisodeRequest(f"x{i}", i, i, member) for i in range(2) for member in (0, 10)]
    assert told(queue) == told(play(asked=direct)[0])


class Refusing(Talk):
    def snapshot(self):
        if self.turns == 1:
            raise SnapshotRefused("a process runs here")
        return super().snapshot()


def test_an_environment_that_refuses_snapshots_fails_its_episode():
    queue, codes = forked(Refusing, max_failed_fraction=1.0)
    assert codes == [FAILED]
    words = "4 of 4 episodes failed; the last: refused: no snapshot of turn 1, .* a process runs"
    with pytest.raises(TooManyFailures, match=words):
        queue.raise_error()
    # Others go on.
    kind = type("Some", (Refusing,), {"snapshot": lambda self: some_refuse(self)})
    queue, codes = forked(kind)
    assert codes == [FINISHED]
    assert [result.status for result in queue.results()] == ["failed", *["finished"] * 18]
    assert "branch_points" not in queue.results()[0].failure.message
    assert queue.results()[0].failure.kind == "refused"


def some_refuse(talk):
    return Refusing.snapshot(talk) if talk.task == "x0" else Talk.snapshot(talk)


class Forgetful(Talk):
    """What it asks after a restore is not what it asked."""

    def restore(self, state):
        super().restore(state)
        return Turn({0: ask("who are you?", continues=self.turns > 0)})


def test_an_environment_that_is_not_restored_fails_the_fork():
    asked, allowed = trunks(), {"max_failed_fraction": 0.9}
    queue, codes = forked(Forgetful, asked, **allowed)
    assert codes == [FINISHED]
    results = queue.results()
    assert [r.status for r in results] == ["finished", *["failed"] * 5] * 4
    assert {r.failure.kind for r in results if r.failure} == {"refused"}
    assert "does not ask what it asked at turn 1" in results[3].failure.message
    trunks_alone = [each for each, r in zip(told(queue), results, strict=True) if not r.failure]
    assert trunks_alone == told(play(asked=requests(4, 1))[0])


class Unrestored(Talk):
    """Fails every fork after the first turn."""

    def restore(self, state):
        turn = super().restore(state)
        if self.turns:
            raise RuntimeError("lost")
        return turn


@pytest.mark.parametrize("order", range(4))
def test_failures_are_judged_at_the_end_where_episodes_bring_others(order):
    # 12 of 24 fail: no more than half, whichever come first.
    queue, codes = forked(Unrestored, pool=ShuffledPool(Unrestored, order))
    assert codes == [FINISHED]
    assert sum(r.failure is not None for r in queue.results()) == 12
    queue, codes = forked(
        Unrestored, pool=ShuffledPool(Unrestored, order), max_failed_fraction=0.49
    )
    assert codes == [FINISHED]
    with pytest.raises(TooManyFailures, match=r"12 of 24 episodes failed, more than .* 0\.49; .*"):
        queue.results()


def test_an_error_of_the_hook_ends_the_run():
    def broken(result):
        raise ZeroDivisionError("no")

    queue, codes = forked(follow_ups=broken)
    assert codes == [FAILED]
    with pytest.raises(ZeroDivisionError):
        queue.raise_error()


def test_a_step_waits_for_the_snapshot_of_its_turn():
    class Ordered(ShuffledPool):
        def submit(self, call):
            if call.kind == "step":
                held = [answer for _, answer in self.held if answer.episode == call.episode]
                assert not held, "a call before the last one was answered"
            super().submit(call)

    pool = Ordered(Talk, 1, patience=9)
    _, codes = forked(pool=pool)
    assert codes == [FINISHED]
    kinds = [kind for kind, episode in pool.calls if episode == pool.calls[0][1]]
    assert kinds == ["reset", *["snapshot", "step"] * 3, "close"]


def test_continuations_of_states_that_were_not_kept_are_refused():
    kept = play(asked=trunks(1))[0].results()[0]
    lost = play(asked=requests(1, 1))[0].results()[0]
    for result, turn in ((kept, 3), (kept, -1), (lost, 0)):
        with pytest.raises(ValueError, match=f"no state in which it acted at turn {turn}"):
            result.continuation(turn, 1)
    past = kept.continuation(1, 1).past
    with pytest.raises(ValueError, match="goes on from a snapshot"):
        EpisodeRequest("x0", 0, past=past)


def test_states_are_those_of_the_trunk_up_to_the_branch():
    """Digests of the environment's state, as each fork was restored to and went on from."""
    digests = {}

    class Watched(Talk):
        def restore(self, state):
            turn = super().restore(state)
            digests.setdefault(json.dumps([self.task, self.turns]), set()).add(state)
            return turn

    forked(Watched, max_failed_fraction=0.0)
    kept = {}

    def keep(result):
        kept[result.request.task] = dict(result.snapshots)
        return []

    forked(follow_ups=keep)
    assert len(digests) == 4 * 3
    for task, turn in itertools.product(kept, range(3)):
        assert digests[json.dumps([task, turn])] == {kept[task][turn]}
