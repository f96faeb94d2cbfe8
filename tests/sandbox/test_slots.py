"""Slots alone: what is copied, what is kept for those to come, and what may not be lost."""

from collections import Counter

from sandbox.fake_device import FakeSlots

from sepo_jax.sandbox.exchange import ExchangeShape, no_report
from sepo_jax.sandbox.slots import Context, SlotTable


class Bench:
    """A table and the device that carries out its commands."""

    def __init__(self, slots, coming=None):
        shape = ExchangeShape(slots, 8, (4, 16))
        self.table, self.device = SlotTable(shape, coming=coming), FakeSlots(shape)
        self.report = no_report(shape)

    def turn(self):
        """One exchange; the contexts whose action has ended."""
        finished = self.table.absorb(self.report)
        commands, _ = self.table.commands()
        self.device.apply(commands)
        self.report = self.device.decode()
        return finished

    def act(self, *contexts):
        """Has contexts act; they keep their slots."""
        for context in contexts:
            self.table.begin(context, (0, 0, 0, 0, 0), 4)
        waiting = set(contexts)
        while waiting:
            waiting -= set(self.turn())
        for context in contexts:
            assert self.device.cache[context.slot] == context.ids[:-1]


def talk(bench):
    """A free slot that holds a context of two actions; ids at which the second began."""
    context = Context(None, [1, 2, 3, 4, 5, 6])
    bench.act(context)
    context.ids += [7, 8, 9]
    begun = list(context.ids)
    bench.act(context)
    bench.table.release(context)
    return begun, context.marks


def test_a_context_takes_over_the_middle_of_another():
    bench = Bench(2)
    begun, marks = talk(bench)
    computed = bench.table.prefilled
    fork = Context(None, list(begun))
    bench.act(fork)
    assert fork.marks == [marks[1]] and fork.slot == 0
    assert bench.table.prefilled == computed == bench.device.computed
    assert bench.table.forked == len(begun) - 1


def test_what_others_will_begin_with_is_copied_and_not_taken_over():
    coming = Counter()
    bench = Bench(2, coming)
    begun, marks = talk(bench)
    coming[marks[1]] = 1
    shallow = Context(None, begun[:6])
    bench.act(shallow)
    assert shallow.slot == 1
    computed = bench.table.prefilled
    deep = Context(None, list(begun))
    bench.act(deep)
    assert deep.slot == 0 and bench.table.prefilled == computed


def test_a_slot_that_is_copied_from_is_not_cleared_before():
    # Two that come at once, and two slots: the second takes the slot that the first copies from.
    coming = Counter()
    bench = Bench(2, coming)
    begun, marks = talk(bench)
    coming[marks[1]] = 1
    bench.act(Context(None, begun[:6]), Context(None, [30, 31, 32, 33]))
    assert bench.table.forked == 5


def test_contexts_of_one_token_begin_in_empty_slots():
    bench = Bench(1)
    talk(bench)
    bench.act(Context(None, [9]))
    assert bench.table.forked == 0
