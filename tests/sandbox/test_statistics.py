"""Figures of a queue against those computed by hand."""

import numpy as np

from sepo_jax.sandbox.exchange import ExchangeShape, no_report
from sepo_jax.sandbox.protocol import Failure
from sepo_jax.sandbox.slots import Context, SlotTable
from sepo_jax.sandbox.statistics import Statistics

SHAPE = ExchangeShape(2, interval=1, widths=(8,))


def one_token(goes_on):
    """The report of a slot 0 that sampled a token."""
    report = no_report(SHAPE)
    return report._replace(count=np.array([1, 0]), decoding=np.array([goes_on, False]))


def test_every_second_of_every_slot_is_booked_once():
    now, table = [0.0], SlotTable(SHAPE)
    statistics = Statistics([[table]], lambda: now[0])

    def exchange(at, report):
        now[0] = at
        statistics.reported(0, [report])
        for context in table.absorb(report):
            statistics.acted(context)
        table.commands()

    exchange(100.0, no_report(SHAPE))  # the device was compiling
    context = Context(None, [1, 2, 3])
    statistics.ready(context, 99.0)
    table.begin(context, (0,) * 5, 2)
    table.commands()
    statistics.resumed(0)
    exchange(103.0, one_token(True))
    statistics.resumed(0)
    exchange(104.0, one_token(False))
    assert statistics.book(0) == 0.0
    now[0] = 109.0
    assert statistics.book(0) == 5.0  # for the sandbox
    table.release(context)
    statistics.ended([context], "failed", Failure("raised", "x"))
    assert statistics.seconds == {"decoding": 4.0, "preparing": 0.0, "waiting": 5.0, "free": 9.0}
    summary = statistics.summary()
    assert summary["busy_share"] == 4 / 18 and summary["decoding_share"] == 4 / 5
    counted = ("sampled_tokens", "prefilled_tokens", "forked_tokens", "actions", "exchanges")
    assert [summary[name] for name in counted] == [2, 2, 0, 1, 3]
    assert summary["episodes_failed"] == summary["failed_raised"] == 1
