"""The host queue: the one object that the device loop talks to.

Each exchange it takes what the slots sampled, hands finished actions to the sandboxes, and returns
what comes next: observations, further episodes, copies of slots, or the end. It holds numpy arrays
only and never raises: an error becomes a code that ends the device loop, and `raise_error` raises
it afterwards. What is sampled does not depend on when which sandbox answers.
"""

import contextlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from sepo_jax.sandbox.episodes import (
    Codec,
    Conversation,
    EpisodeRequest,
    EpisodeResult,
    RunningEpisode,
    StopRules,
)
from sepo_jax.sandbox.exchange import FAILED, FINISHED, Commands, ExchangeShape, Report, no_commands
from sepo_jax.sandbox.protocol import (
    Answer,
    BadAnswer,
    Call,
    Failure,
    Pool,
    SandboxError,
    TooManyFailures,
    Turn,
)
from sepo_jax.sandbox.slots import SlotTable
from sepo_jax.sandbox.statistics import Statistics

_NUMBERS = itertools.count(1)  # calls and episodes of any queue, so that pools outlive queues
_SLICE = 0.02  # seconds that one device waits before it looks again


class HostQueue:
    """Plays episodes on the slots of one or more devices.

    Attributes:
      error: what ended the loops early, or None.
      statistics: where the time of the slots went, and how many tokens.
    """

    def __init__(
        self,
        pool: Pool,
        requests: Sequence[EpisodeRequest],
        codecs: Sequence[Codec],
        shape: ExchangeShape,
        rules: StopRules,
        *,
        seed: int,
        step: int = 0,
        seats: Sequence[int] = (0,),
        devices: int = 1,
        can_cut: Sequence[bool] | None = None,
        ahead: int | None = None,
        max_failed_fraction: float = 0.5,
        patience: float = 600.0,
        on_result: Callable[[EpisodeResult], None] | None = None,
    ):
        """A queue over fresh slots.

        Args:
          pool: where the environments are.
          requests: the episodes.
          codecs: one a policy.
          shape: sizes of an exchange, for every policy and device.
          rules: when actions and episodes are cut.
          seed, step: with group and member of a request they fix every sampled token.
          seats: index of the policy that plays each seat.
          devices: loops that exchange with this queue.
          can_cut: by policy, whether a copied slot may be cut (recurrent policies cannot).
          ahead: episodes of a device whose environment is reset before slots are free for them; by
            default a quarter of the slots.
          max_failed_fraction: share of failed episodes above which the run is given up; one where
            every episode failed always is.
          patience: seconds that a device waits with nothing to decode, and no sandbox answers,
            until it is.
          on_result: called with each result as it comes.

        Raises:
          ValueError: seats that name no policy, or more seats of a policy than slots.
        """
        self._check_seats(seats, len(codecs), shape.slots)
        if not 0 <= max_failed_fraction <= 1:
            raise ValueError(f"max_failed_fraction must be in [0, 1], got {max_failed_fraction}")
        self._pool, self._codecs, self._shape, self._rules = pool, tuple(codecs), shape, rules
        self._seed, self._step, self._seats = seed, step, tuple(seats)
        self._max_failed_fraction, self._patience = max_failed_fraction, patience
        self._ahead = max(1, shape.slots // 4) if ahead is None else ahead
        self._on_result = on_result
        cut = [True] * len(codecs) if can_cut is None else list(can_cut)
        self._coming = Counter(request.group for request in requests)
        self._tables = [
            [SlotTable(shape, cuts, self._coming) for cuts in cut] for _ in range(devices)
        ]
        self._reserved = [[0] * len(codecs) for _ in range(devices)]
        self._waiting: list[deque[RunningEpisode]] = [deque() for _ in range(devices)]
        self._requests = deque(enumerate(requests))
        self._results: list[EpisodeResult | None] = [None] * len(self._requests)
        self._running: dict[int, RunningEpisode] = {}  # by handle
        self._playing = [0] * devices
        self._share = -(-len(self._requests) // devices)
        self._failed = 0
        self._lock = threading.Lock()
        self._last_answer = time.monotonic()
        self.error: BaseException | None = None
        self.statistics = Statistics(self._tables)

    @staticmethod
    def _check_seats(seats: Sequence[int], policies: int, slots: int) -> None:
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

    def exchange(self, device: int, reports: Sequence[Report]) -> tuple[Commands, ...]:
        """Takes the report of each policy's slots on a device, returns their next commands.

        Waits while nothing on the device can decode and a sandbox has yet to answer. Never raises.
        """
        try:
            return self._exchange(device, reports)
        except BaseException as error:
            self.stop(error)
            return self._end(FAILED)

    def stop(self, error: BaseException) -> None:
        """Ends the loops of all devices at their next exchange; the first error is kept."""
        self.error = self.error or error

    def raise_error(self) -> None:
        """Raises what ended the loops early, if anything did."""
        if self.error is not None:
            raise self.error

    def results(self) -> list[EpisodeResult]:
        """One result a request, in their order.

        Raises:
          SandboxError: before all episodes have ended.
        """
        missing = sum(result is None for result in self._results)
        if missing:
            raise SandboxError(f"{missing} of {len(self._results)} episodes have not ended")
        return list(self._results)

    def close(self) -> None:
        """Gives up the episodes that still run, so that the pool can serve others."""
        with self._lock, contextlib.suppress(SandboxError):
            while self._running:
                self._send(self._running.popitem()[1], "close")

    def _exchange(self, device: int, reports: Sequence[Report]) -> tuple[Commands, ...]:
        tables, statistics = self._tables[device], self.statistics
        with self._lock:
            statistics.reported(device, reports)
            for table, report in zip(tables, reports, strict=True):
                for context in table.absorb(report):
                    self._finish_action(*context.owner)
        idle_since = None
        while True:
            with self._lock:
                if self.error is not None:
                    return self._end(FAILED)
                for answer in self._pool.take():
                    self._receive(answer)
                self._admit(device)
                made = [table.commands() for table in tables]
                if any(anything for _, anything in made) or any(t.decoding for t in tables):
                    statistics.resumed(device)
                    return tuple(commands for commands, _ in made)
                if not self._playing[device] and not self._requests:
                    return self._end(FINISHED)
                idle_since = idle_since or time.monotonic()
                self._check_patience(idle_since)
                statistics.book(device)
            self._pool.wait(_SLICE)
            with self._lock:
                statistics.blocked += statistics.book(device)

    def _end(self, code: int) -> tuple[Commands, ...]:
        commands = no_commands(self._shape)
        commands.code[...] = code
        return (commands,) * len(self._codecs)

    def _check_patience(self, idle_since: float) -> None:
        silent = time.monotonic() - max(self._last_answer, idle_since)
        if silent > self._patience:
            raise SandboxError(
                f"no sandbox has answered for {silent:.0f} s while {len(self._running)} episodes "
                "wait; raise patience, or look at the pool's own time limits"
            )

    def _admit(self, device: int) -> None:
        """Starts episodes while slots, or places among those prepared ahead, are free."""
        waiting = self._waiting[device]
        while True:
            while waiting and self._reserve(device):
                episode = waiting.popleft()
                episode.reserved = True
                if episode.pending is not None:
                    turn, episode.pending = episode.pending, None
                    self._take_turn(episode, turn, time.monotonic())  # no slot waited for it
            full = len(waiting) >= self._ahead + self._spare(device)
            # No device takes what leaves another without work.
            if not self._requests or full or self._playing[device] >= self._share:
                return
            index, request = self._requests.popleft()
            episode = RunningEpisode(index, request, device, next(_NUMBERS))
            self._running[episode.handle] = episode
            self._playing[device] += 1
            waiting.append(episode)
            if request.state is None:
                self._send(episode, "reset", (request.task, request.seed))
            else:
                self._send(episode, "restore", request.state)

    def _spare(self, device: int) -> int:
        """Episodes that the free slots of a device could take at once."""
        room = []
        for policy, reserved in enumerate(self._reserved[device]):
            if seats := self._seats.count(policy):
                room.append((self._shape.slots - reserved) // seats)
        return min(room)

    def _reserve(self, device: int) -> bool:
        """Sets a slot aside for each seat, if there are as many: no episode then ever waits for a
        slot that another one holds while that one waits for it."""
        if not self._spare(device):
            return False
        for policy in range(len(self._codecs)):
            self._reserved[device][policy] += self._seats.count(policy)
        return True

    def _send(self, episode: RunningEpisode, kind: str, payload=None) -> None:
        number, begin = next(_NUMBERS), time.monotonic()
        episode.call = 0 if kind == "close" else number
        self._pool.submit(Call(number, episode.handle, kind, payload))
        # A pool in this process performs the call here and now.
        self.statistics.blocked += time.monotonic() - begin

    def _receive(self, answer: Answer) -> None:
        episode = self._running.get(answer.episode)
        if episode is None or episode.call != answer.number:
            self.statistics.ignored_answers += 1
            return
        self._last_answer = time.monotonic()
        episode.call = 0
        if answer.failure is not None:
            self._end_episode(episode, "failed", failure=answer.failure)
        elif episode.reserved:
            self._take_turn(episode, answer.turn, answer.arrived)
        else:
            episode.pending = answer.turn

    def _take_turn(self, episode: RunningEpisode, turn: Turn, arrived: float) -> None:
        """Goes on with what an environment answered."""
        self._has_come(episode)
        episode.rewards.append(turn.rewards)
        if turn.done:
            return self._end_episode(episode, "finished", record=turn.record)
        if self._rules.turns and episode.turn + 1 >= self._rules.turns:
            return self._end_episode(episode, "turn_limit")
        if unknown := [seat for seat in turn.prompts if seat >= len(self._seats)]:
            failure = Failure(
                "bad_answer",
                f"seat {unknown[0]} was asked; the rollout has seats 0 to {len(self._seats) - 1}",
            )
            return self._end_episode(episode, "failed", failure=failure)
        try:
            began = [self._converse(episode, seat, turn) for seat in sorted(turn.prompts)]
        except BadAnswer as error:
            failure = Failure("bad_answer", str(error))
            return self._end_episode(episode, "failed", failure=failure)
        episode.turn += 1
        limits = [self._limit(episode, conversation, len(began)) for conversation in began]
        for conversation, (limit, reason) in zip(began, limits, strict=True):
            if limit < 1:
                self._refuse_first_prompt(episode, conversation)
                return self._end_episode(episode, reason)
        for conversation, (limit, _) in zip(began, limits, strict=True):
            episode.awaited.add(conversation.seat)
            first = (
                episode.turn * len(self._seats) + conversation.seat
            ) * self._rules.action_tokens
            request = episode.request
            key = (self._seed, self._step, request.group, request.member, first)
            self.statistics.ready(conversation.context, arrived)
            self._table(episode, conversation).begin(conversation.context, key, limit)

    def _converse(self, episode: RunningEpisode, seat: int, turn: Turn) -> Conversation:
        """The conversation in which a seat answers its prompt."""
        prompt, conversation = turn.prompts[seat], episode.conversations.get(seat)
        if prompt.continues:
            if conversation is None:
                raise BadAnswer(
                    f"the first prompt of seat {seat} continues a context; none exists, nor does "
                    "a snapshot bring one along"
                )
            conversation.follow(prompt)
            return conversation
        if conversation is not None:
            self._table(episode, conversation).release(conversation.context)
        codec = self._codecs[self._seats[seat]]
        conversation = Conversation(episode.contexts, seat, codec, prompt, episode)
        episode.contexts += 1
        episode.conversations[seat] = conversation
        return conversation

    def _limit(
        self, episode: RunningEpisode, conversation: Conversation, seats: int
    ) -> tuple[int, str]:
        """Most tokens of the next action, and what would be to blame if there is none.

        Of the tokens that the episode has left, each of the `seats` that act at once gets a share.
        """
        rules = self._rules
        limits = [
            (rules.capacity - len(conversation.context.ids), "context_full"),
            (rules.action_tokens, ""),
        ]
        if rules.episode_tokens:
            limits.append(((rules.episode_tokens - episode.sampled) // seats, "token_limit"))
        return min(limits)

    def _refuse_first_prompt(self, episode: RunningEpisode, conversation: Conversation) -> None:
        length = len(conversation.context.ids)
        if episode.turn == 0 and length >= self._rules.capacity:
            raise ValueError(
                f"the first prompt of episode {episode.index} has {length} tokens and a context "
                f"holds {self._rules.capacity}, reply and all; raise the capacity or shorten it"
            )

    def _table(self, episode: RunningEpisode, conversation: Conversation) -> SlotTable:
        return self._tables[episode.device][self._seats[conversation.seat]]

    def _finish_action(self, episode: RunningEpisode, conversation: Conversation) -> None:
        """Takes a finished action; the last one of a turn sends them all to the environment."""
        action = conversation.finish(episode.turn)
        episode.actions.append(action)
        episode.awaited.discard(conversation.seat)
        self.statistics.acted(conversation.context)
        if not episode.awaited:
            self._send(episode, "step", episode.replies())

    def _end_episode(self, episode, status: str, record=None, failure=None) -> None:
        self._has_come(episode)
        conversations = list(episode.conversations.values())
        for conversation in conversations:
            self._table(episode, conversation).release(conversation.context)
        self._send(episode, "close")
        del self._running[episode.handle]
        self._playing[episode.device] -= 1
        if episode.reserved:
            for policy in range(len(self._codecs)):
                self._reserved[episode.device][policy] -= self._seats.count(policy)
        else:
            self._waiting[episode.device].remove(episode)
        result = episode.result(status, record, failure)
        self._results[episode.index] = result
        self.statistics.ended([c.context for c in conversations], status, failure)
        if self._on_result is not None:
            self._on_result(result)
        if failure is not None:
            self._count_failure(failure)

    def _has_come(self, episode: RunningEpisode) -> None:
        self._coming[episode.request.group] -= episode.is_coming
        episode.is_coming = False

    def _count_failure(self, failure: Failure) -> None:
        self._failed += 1
        total, share = len(self._results), self._max_failed_fraction
        too_many = self._failed > share * total
        if too_many or self._failed == total:
            most = f", more than the allowed share of {share:g}" if too_many else ""
            raise TooManyFailures(
                f"{self._failed} of {total} episodes failed{most}; the last: {failure.kind}: "
                f"{failure.message}"
            )
