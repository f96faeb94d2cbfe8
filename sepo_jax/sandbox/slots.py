"""Which context is in which slot of a device, and what the device must do about it.

A context is a growing list of tokens, the last of which is pending: it is fed to the policy by the
next decode step. Everything before it must be in the slot's cache when an action begins, computed
there by prefill, or copied from a slot whose tokens begin alike. Slots that are free keep what they
hold until they are needed, so a prompt is computed once as long as any slot still has it.
"""

from collections import Counter, OrderedDict
from typing import Any

import numpy as np

from sepo_jax.sandbox.exchange import Commands, ExchangeShape, Report, no_commands


class Context:
    """The tokens of one seat's conversation.

    Attributes:
      owner: whose it is, not read here.
      group: contexts of one group may begin alike.
      ids: token ids, the last one pending.
      slot: where it lies, or None.
      cached: tokens in the slot's cache once all commands handed out are done.
      tokens, logp, entropy: of the action under way or just finished.
      key, limit: of that action.
    """

    def __init__(self, owner: Any, ids: list[int], group: int = 0):
        self.owner = owner
        self.group = group
        self.ids = ids
        self.slot: int | None = None
        self.cached = 0
        self.tokens: list[int] = []
        self.logp: list[float] = []
        self.entropy: list[float] = []
        self.key: tuple[int, ...] = ()
        self.limit = 0
        self.source: Context | None = None  # whose beginning this one waits to copy
        self.must_clear = False

    @property
    def needed(self) -> int:
        """Tokens that must be in the cache when the next action begins."""
        return len(self.ids) - 1


class SlotTable:
    """The slots that one policy has on one device.

    Attributes:
      prefilled: tokens computed by prefill. forked: tokens copied instead.
      decoding: contexts in the middle of an action, by slot.
    """

    def __init__(self, shape: ExchangeShape, can_cut: bool = True, coming: Counter | None = None):
        """All slots free.

        Args:
          can_cut: whether a copy may hold fewer tokens than its source (a recurrent policy's
            cannot).
          coming: contexts of each group that are still to come, kept up to date by the caller.
        """
        self._coming = Counter() if coming is None else coming
        self.shape, self.can_cut = shape, can_cut
        self.prefilled = self.forked = 0
        self.decoding: dict[int, Context] = {}
        self._contexts: list[Context | None] = [None] * shape.slots
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(shape.slots))
        self._cached = [0] * shape.slots  # of free slots
        self._beginning: list[tuple[int, ...] | None] = [None] * shape.slots
        self._groups = [0] * shape.slots
        self._holders: dict[tuple[int, ...], list[int]] = {}
        self._preparing: OrderedDict[Context, None] = OrderedDict()
        self._halts: set[int] = set()
        self._cuts: list[tuple[int, int]] = []  # (slot, length): slots taken over in place

    def count(self) -> dict[str, int]:
        """Slots by what they do: "decoding", "preparing", "waiting" (for a sandbox), "free"."""
        placed = sum(context.slot is not None for context in self._preparing)
        decoding, free = len(self.decoding), len(self._free)
        waiting = self.shape.slots - free - decoding - placed
        return {"decoding": decoding, "preparing": placed, "waiting": waiting, "free": free}

    @property
    def preparing(self) -> int:
        """Contexts that have what to decode and do not decode yet, with a slot or without."""
        return len(self._preparing)

    def begin(self, context: Context, key: tuple[int, ...], limit: int) -> None:
        """Asks for an action after the context's ids."""
        context.tokens, context.logp, context.entropy = [], [], []
        context.key, context.limit = key, limit
        self._preparing[context] = None

    def release(self, context: Context) -> None:
        """Frees the context's slot; an action under way is cut off."""
        self._preparing.pop(context, None)
        slot, context.slot = context.slot, None
        if slot is None:
            return
        if self.decoding.pop(slot, None) is not None:
            self._halts.add(slot)
        for other in self._preparing:
            if other.source is context:
                other.source, other.must_clear = None, True
        self._contexts[slot] = None
        self._cached[slot] = 0 if context.source is not None else context.cached
        if context.must_clear or context.source is not None:
            self._forget(slot)
        self._free[slot] = None

    def absorb(self, report: Report) -> list[Context]:
        """Takes in what was sampled; returns the contexts whose action has ended, by slot."""
        finished = []
        counts, goes_on = report.count.tolist(), report.decoding.tolist()
        for slot, context in sorted(self.decoding.items()):
            count = counts[slot]
            context.tokens += report.tokens[slot, :count].tolist()
            context.logp += report.logp[slot, :count].tolist()
            context.entropy += report.entropy[slot, :count].tolist()
            context.ids += report.tokens[slot, :count].tolist()
            context.cached += count
            if not goes_on[slot]:
                del self.decoding[slot]
                finished.append(context)
        return finished

    def commands(self) -> tuple[Commands, bool]:
        """What the device does next, and whether it is anything at all."""
        commands = no_commands(self.shape)
        for slot in self._halts:
            commands.halt[slot] = True
        anything = bool(self._halts or self._preparing)
        self._halts.clear()
        if self._preparing:
            self._place()
            self._clear(commands)
            self._prefill(commands)
            self._fork(commands)
            self._start(commands)
        return commands, anything

    def _place(self) -> None:
        """Gives slots to contexts without one, first come first served."""
        placeless = [context for context in self._preparing if context.slot is None]
        wanted = {tuple(context.ids[:-1]) for context in placeless}
        for context in placeless[: len(self._free)]:
            beginning = tuple(context.ids[:-1])
            holder = self._holder(beginning)
            slot = holder if holder in self._free else self._least_wanted(wanted)
            del self._free[slot]
            context.slot, self._contexts[slot] = slot, context
            context.cached, context.must_clear, context.source = 0, False, None
            if slot == holder:
                context.cached = len(beginning)
                self.forked += len(beginning)
                if self._cached[slot] > len(beginning):
                    self._cuts.append((slot, len(beginning)))
                continue
            self._forget(slot)
            self._groups[slot] = context.group
            if beginning:
                self._beginning[slot] = beginning
                self._holders.setdefault(beginning, []).append(slot)
            if holder is None:
                context.must_clear = True
            else:
                context.source = self._contexts[holder]

    def _holder(self, beginning: tuple[int, ...]) -> int | None:
        """A slot whose tokens begin so, a free one first."""
        found = None
        for slot in self._holders.get(beginning, ()):
            context, length = self._contexts[slot], len(beginning)
            if context is None:
                if self._cached[slot] == length or (self.can_cut and self._cached[slot] > length):
                    return slot
            elif self.can_cut or (context in self._preparing and context.needed == length):
                found = slot
        return found

    def _least_wanted(self, wanted: set[tuple[int, ...]]) -> int:
        """The free slot that was freed first, sparing the only holders of wanted beginnings, and of
        those of a group that has more contexts to come."""
        for slot in self._free:
            beginning = self._beginning[slot]
            needed = beginning in wanted or self._coming[self._groups[slot]] > 0
            if beginning is None or not needed or len(self._holders[beginning]) > 1:
                return slot
        return next(iter(self._free))

    def _forget(self, slot: int) -> None:
        beginning, self._beginning[slot] = self._beginning[slot], None
        if beginning is not None:
            self._holders[beginning].remove(slot)
            if not self._holders[beginning]:
                del self._holders[beginning]

    def _clear(self, commands: Commands) -> None:
        for context in self._preparing:
            if context.must_clear:
                commands.clear[context.slot] = True
                context.cached, context.must_clear = 0, False

    def _prefill(self, commands: Commands) -> None:
        used = [[] for _ in self.shape.widths]  # rows taken of each call of each width
        for context in self._preparing:
            if context.slot is None or context.source is not None:
                continue
            first_call = 0
            while (missing := context.needed - context.cached) > 0:
                kind = self.shape.widths.index(self.shape.chunk(missing))
                call = _room(used[kind], first_call, self.shape)
                if call is None:
                    break
                row, count = used[kind][call], min(missing, self.shape.widths[kind])
                used[kind][call] += 1
                chunks = commands.chunks[kind]
                chunks.tokens[call, row, :count] = context.ids[
                    context.cached : context.cached + count
                ]
                chunks.lengths[call, row] = count
                chunks.slots[call, row] = context.slot
                context.cached += count
                self.prefilled += count
                # The next chunk comes after this one: in a later call, or with a narrower width.
                same = self.shape.chunk(missing - count) == self.shape.widths[kind]
                first_call = call + 1 if same else 0
        for chunks, calls in zip(commands.chunks, used, strict=True):
            chunks.calls[...] = len(calls)

    def _fork(self, commands: Commands) -> None:
        count = 0
        for slot, length in self._cuts:
            commands.forks[count] = (slot, slot, length)
            count += 1
        self._cuts.clear()
        for context in self._preparing:
            source = context.source
            if source is None or source.source is not None or source.cached < context.needed:
                continue
            length = context.needed if self.can_cut else -1
            commands.forks[count] = (source.slot, context.slot, length)
            count += 1
            context.cached, context.source = context.needed, None
            self.forked += context.needed
        commands.fork_count[...] = count

    def _start(self, commands: Commands) -> None:
        for context in list(self._preparing):
            if context.slot is None or context.source or context.cached != context.needed:
                continue
            slot = context.slot
            commands.start[slot] = True
            commands.pending[slot] = context.ids[-1]
            commands.keys[slot] = context.key
            commands.limit[slot] = context.limit
            self.decoding[slot] = context
            del self._preparing[context]


def _room(used: list[int], first: int, shape: ExchangeShape) -> int | None:
    """The first call from `first` on with a row to spare, or None; opens one where it may."""
    for call in range(first, len(used)):
        if used[call] < shape.rows:
            return call
    if len(used) < shape.calls:
        used.append(0)
        return len(used) - 1
    return None


def action_arrays(context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens int32, log-probabilities and entropies float32 of the context's last action, [n]."""
    return (
        np.array(context.tokens, np.int32),
        np.array(context.logp, np.float32),
        np.array(context.entropy, np.float32),
    )
