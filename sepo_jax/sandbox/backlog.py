"""Which episodes of a device get slots next, and which are prepared before there are any.

The requests of a run form one line, which all devices share. The follow-ups of an episode form a
line of their own on its device, and go before them: a slot of that device still holds the tokens
that they begin with. It is kept for them: as long as no episode of a line is playing, the place of
the one that has ended goes to the line's next, whose context takes the slot over. The longest
beginnings come first, so that what takes a slot over still holds those of the others.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from sepo_jax.sandbox.episodes import EpisodeRequest, RunningEpisode
from sepo_jax.sandbox.results import Index

Numbered = tuple[Index, EpisodeRequest]


class Line:
    """Episodes that wait for slots.

    Attributes:
      requests: not begun.
      prepared: begun, without slots, in order.
      playing: how many have slots.
    """

    def __init__(self, requests: deque[Numbered]):
        self.requests = requests
        self.prepared: deque[RunningEpisode] = deque()
        self.playing = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.prepared)


class Backlog:
    """The lines of a device, and the slots that are set aside for episodes."""

    def __init__(self, requests: deque[Numbered], places: int):
        """A backlog.

        Args:
          requests: of the run; other devices take from them too.
          places: episodes that have slots at once.
        """
        self._first, self._lines = Line(requests), dict[int, Line]()
        self._free_places = places

    def add(self, tree: int, requests: Iterable[Numbered]) -> None:
        """Lines up the follow-ups of an episode of the tree that request number `tree` began."""
        line = self._lines.setdefault(tree, Line(deque()))
        line.requests.extend(sorted(requests, key=_depth, reverse=True))
        self._drop_empty()

    def next(self, may_begin: bool) -> Line | None:
        """The line whose next episode gets slots now, or None.

        Args:
          may_begin: whether the device may begin another of the run's requests.
        """
        if not self._free_places:
            return None
        # Lines of which no episode plays first: each has left a place for its next.
        line = min(self._lines.values(), key=lambda line: line.playing > 0, default=None)
        if line is None and (self._first.prepared or may_begin):
            line = self._first
        return line

    def next_to_prepare(self, ahead: int, may_begin: bool) -> Line | None:
        """The line that should begin an episode before there are slots for it, or None.

        Args:
          ahead: most episodes of the device that are prepared so.
          may_begin: as in `next`.
        """
        lines = [*self._lines.values(), self._first]
        if sum(len(line.prepared) for line in lines) >= ahead:
            return None
        for line in self._lines.values():
            if line.requests and not line.prepared:
                return line
        return self._first if may_begin else None

    def reserve(self, episode: RunningEpisode) -> None:
        """Sets slots aside for all seats of an episode that has left its line: no episode then
        ever waits for a slot that another one holds while that one waits for it."""
        episode.reserved = True
        episode.line.playing += 1
        self._free_places -= 1
        self._drop_empty()

    def leave(self, episode: RunningEpisode) -> None:
        """Takes note that an episode has ended, whether it had slots or not."""
        if episode.reserved:
            episode.line.playing -= 1
            self._free_places += 1
        else:
            episode.line.prepared.remove(episode)
            self._drop_empty()

    def _drop_empty(self) -> None:
        self._lines = {tree: line for tree, line in self._lines.items() if line}


def _depth(numbered: Numbered) -> int:
    past = numbered[1].past
    return -1 if past is None else past.turn


def places(seats: Sequence[int], policies: int, slots: int) -> int:
    """Episodes that a device can play at once.

    Args:
      seats: index of the policy that plays each seat of an episode.
      policies: how many there are.
      slots: of each policy.

    Raises:
      ValueError: seats that name no policy, or more seats of a policy than slots.
    """
    named = isinstance(seats, Sequence) and all(
        isinstance(policy, int) and 0 <= policy < policies for policy in seats
    )
    if not named or not seats:
        raise ValueError(f"seats {seats!r} must name policies from 0 to {policies - 1}")
    most = max(list(seats).count(policy) for policy in seats)
    if most > slots:
        raise ValueError(
            f"an episode has {most} seats of one policy and a device {slots} slots; give at "
            f"least {most} slots"
        )
    return slots // most
