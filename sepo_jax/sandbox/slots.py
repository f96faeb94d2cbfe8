"""Which context is in which slot of a device, and what the device must do about it.

A context is a growing list of tokens, the last of which is pending: it is fed to the policy by the
next decode step. Everything before it must be in the slot's cache when an action begins, computed
there by prefill, or copied from a slot whose tokens begin alike. Slots that are free keep what they
hold until they are needed, so what several contexts share, the prompt of a group or all that forks
have in common with their trunk, is computed once as long as any slot still has it.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Set
from typing import Any

import numpy as np

from sepo_jax.sandbox.exchange import Commands, ExchangeShape, Report, no_commands

Mark = tuple[int, bytes]
"""Where an action of a context began: the number of tokens in the cache then, and their digest."""


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
      marks: of all its actions, in order.
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
        self.marks: list[Mark] = []
        self._hashed = 0  # ids in the digest so far
        self._digest = hashlib.blake2b(digest_size=16)

    def mark(self) -> Mark:
        """Notes that an action begins after the present ids; contexts that begin alike up to there
        have equal marks."""
        fresh = self.ids[self._hashed : self.needed]
        self._digest.update(np.array(fresh, np.int32).tobytes())
        self._hashed = self.needed
        self.marks.append((self.needed, self._digest.digest()))
        return self.marks[-1]

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
          coming: how many contexts are still to come, by their group, or by the mark at which they
            begin where it is known; kept up to date by the caller.
        """
        self._coming = Counter() if coming is None else coming
        self.shape, self.can_cut = shape, can_cut
        self.prefilled = self.forked = 0
        self.decoding: dict[int, Context] = {}
        self._contexts: list[Context | None] = [None] * shape.slots
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(shape.slots))
        self._cached = [0] * shape.slots  # of free slots
        self._marks: list[list[Mark]] = [[] for _ in range(shape.slots)]
        self._groups = [0] * shape.slots
        self._holders: dict[Mark, list[int]] = {}  # slots with that mark
        self._preparing: OrderedDict[Context, None] = OrderedDict()
        self._halts: set[int] = set()
        self._copies: list[tuple[int, int, int]] = []  # (source, target, length) that can be made

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
        mark = context.mark()
        if context.slot is not None:
            self._register(context.slot, mark)
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
        wanted = {context.marks[-1] for context in placeless}
        for context in placeless[: len(self._free)]:
            mark, length = context.marks[-1], context.needed
            holders = [slot for slot in self._holders.get(mark, ()) if self._serves(slot, mark)]
            slot = self._choose(length, holders, wanted)
            del self._free[slot]
            context.slot, context.source, context.cached = slot, None, 0
            context.must_clear = not holders
            if slot in holders:
                context.cached = length
                if self._cached[slot] > length:
                    self._copies.append((slot, slot, length))
            elif holders:
                self._copy(context, min(holders, key=lambda each: self._missing(each, length)))
            self.forked += context.cached
            self._forget(slot)
            self._contexts[slot], self._groups[slot] = context, context.group
            for each in context.marks:
                self._register(slot, each)

    def _serves(self, slot: int, mark: Mark) -> bool:
        """Whether a slot with this mark can be cut to it, or will be there by itself."""
        context, length = self._contexts[slot], mark[0]
        if context is None:
            return self._cached[slot] == length or (self.can_cut and self._cached[slot] > length)
        return self.can_cut or (context in self._preparing and context.needed == length)

    def _missing(self, slot: int, length: int) -> int:
        """How many of its first tokens a slot has yet to compute."""
        context = self._contexts[slot]
        return 0 if context is None else max(length - context.cached, 0)

    def _copy(self, context: Context, source: int) -> None:
        """Has a context become a copy of a slot: at once where that is free, and so at rest."""
        context.source = self._contexts[source]
        if context.source is None:
            length = context.needed if self.can_cut else -1
            self._copies.append((source, context.slot, length))
            context.cached = context.needed

    def _choose(self, length: int, holders: list[int], wanted: Set[Mark]) -> int:
        """The free slot of which least is lost when a context takes it, keeping `length` tokens of
        one of the holders; of several a holder, or the one that was freed first."""

        def loss(slot: int) -> tuple[int, bool]:
            return self._loss(slot, length if slot in holders else -1, wanted), slot not in holders

        return min(self._free, key=loss)

    def _loss(self, slot: int, kept: int, wanted: Set[Mark]) -> int:
        """What no other slot has and contexts to come begin with, beyond the first `kept` tokens:
        2 if any of them is known to, 1 if it is the prompt of a group with more to come, else 0."""
        worst = 0
        for place, mark in enumerate(self._marks[slot]):
            worth = int(place == 0 and self._coming.get(self._groups[slot], 0) > 0)
            if mark in wanted or self._coming.get(mark, 0) > 0:
                worth = 2
            if worth <= worst or mark[0] <= kept or not self._serves(slot, mark):
                continue
            others = (other for other in self._holders[mark] if other != slot)
            if not any(self._serves(other, mark) for other in others):
                worst = worth
        return worst

    def _register(self, slot: int, mark: Mark) -> None:
        if mark[0]:
            self._marks[slot].append(mark)
            self._holders.setdefault(mark, []).append(slot)

    def _forget(self, slot: int) -> None:
        for mark in self._marks[slot]:
            self._holders[mark].remove(slot)
            if not self._holders[mark]:
                del self._holders[mark]
        self._marks[slot] = []

    def _clear(self, commands: Commands) -> None:
        # What is copied this time is copied after slots are cleared and filled.
        read = {source for source, target, _ in self._copies if source != target}
        for context in self._preparing:
            if context.must_clear and context.slot not in read:
                commands.clear[context.slot] = True
                context.cached, context.must_clear = 0, False

    def _prefill(self, commands: Commands) -> None:
        used = [[] for _ in self.shape.widths]  # rows taken of each call of each width
        for context in self._preparing:
            if context.slot is None or context.source is not None or context.must_clear:
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
        for copy in self._copies:
            commands.forks[count] = copy
            count += 1
        self._copies.clear()
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
            if context.slot is None or context.source is not None or context.must_clear:
                continue
            if context.cached != context.needed:
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
