"""Where the time of a rollout went: what slots did between exchanges, and what was computed."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sepo_jax.sandbox.exchange import Report
from sepo_jax.sandbox.protocol import Failure
from sepo_jax.sandbox.slots import Context, SlotTable

PHASES = ("decoding", "preparing", "waiting", "free")


class Statistics:
    """Counters of a queue.

    A slot is "decoding" from the exchange that starts its action to the one that reports its end,
    "preparing" while its context is computed or copied, "waiting" for its sandbox, or "free". A
    context has work from the arrival of its prompt, or of a slot for it if that is later, to the
    end of its action.

    Attributes:
      seconds: slot seconds by phase, over all slots of all devices, from a device's first exchange
        on: a loop that is still compiled has no slots.
      blocked: seconds in which a device had nothing to do until a sandbox answered.
      work, decoding: context seconds with work, and those of them in which it decoded.
      sampled, actions, exchanges, ignored_answers, snapshots: how many.
      saving: seconds from asking for a snapshot to its arrival, over all snapshots.
      statuses, failures: episodes by status, and failed ones by kind.
    """

    def __init__(
        self, tables: Sequence[Sequence[SlotTable]], now: Callable[[], float] = time.monotonic
    ):
        """Of the slot tables of each device."""
        self._tables, self._now = tables, now
        self._since: dict[int, float] = {}  # by device, from its first exchange on
        self._phases = [self._count(device) for device in range(len(tables))]
        self._ready: dict[Context, float] = {}
        self._started: dict[Context, float] = {}
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.blocked = self.work = self.decoding = self.saving = 0.0
        self.sampled = self.actions = self.exchanges = self.ignored_answers = self.snapshots = 0
        self.statuses: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def _count(self, device: int) -> dict[str, int]:
        counts = [table.count() for table in self._tables[device]]
        return {phase: sum(count[phase] for count in counts) for phase in PHASES}

    def book(self, device: int) -> float:
        """Books the time since the last call by what the slots did; returns it, in seconds."""
        now = self._now()
        passed, self._since[device] = now - self._since.get(device, now), now
        for phase, count in self._phases[device].items():
            self.seconds[phase] += passed * count
        self._phases[device] = self._count(device)
        return passed

    def reported(self, device: int, reports: Sequence[Report]) -> None:
        """A device has come back from its work with these reports."""
        self.book(device)
        self.exchanges += 1
        self.sampled += sum(int(report.count.sum()) for report in reports)

    def resumed(self, device: int) -> None:
        """A device goes to work."""
        self.book(device)
        for table in self._tables[device]:
            for context in table.decoding.values():
                self._started.setdefault(context, self._since[device])

    def ready(self, context: Context, arrived: float) -> None:
        """A context has work since `arrived`."""
        self._ready[context] = arrived

    def acted(self, context: Context) -> None:
        """A context's action has ended."""
        now = self._now()
        self.actions += 1
        self.work += now - self._ready.pop(context)
        self.decoding += now - self._started.pop(context)

    def saved(self, seconds: float) -> None:
        """A snapshot has come, so long after it was asked for."""
        self.snapshots += 1
        self.saving += seconds

    def ended(self, contexts: Sequence[Context], status: str, failure: Failure | None) -> None:
        """An episode with these contexts has ended."""
        for context in contexts:
            self._ready.pop(context, None)
            self._started.pop(context, None)
        self.statuses[status] += 1
        if failure is not None:
            self.failures[failure.kind] += 1

    def summary(self) -> dict[str, Any]:
        """Flat figures: counts, seconds, and two shares.

        `decoding_share` is the part of the time with work in which a context decodes;
        `busy_share` the part of slot time in which a slot decodes or prepares.
        """
        tables = [table for device in self._tables for table in device]
        total = sum(self.seconds.values())
        busy = self.seconds["decoding"] + self.seconds["preparing"]
        return {
            "sampled_tokens": self.sampled,
            "prefilled_tokens": sum(table.prefilled for table in tables),
            "forked_tokens": sum(table.forked for table in tables),
            "actions": self.actions,
            "exchanges": self.exchanges,
            "ignored_answers": self.ignored_answers,
            "snapshots": self.snapshots,
            "snapshot_seconds": self.saving,
            "blocked_seconds": self.blocked,
            "decoding_share": self.decoding / self.work if self.work else 1.0,
            "busy_share": busy / total if total else 0.0,
            **{f"{phase}_slot_seconds": seconds for phase, seconds in self.seconds.items()},
            **{f"episodes_{status}": count for status, count in sorted(self.statuses.items())},
            **{f"failed_{kind}": count for kind, count in sorted(self.failures.items())},
        }
