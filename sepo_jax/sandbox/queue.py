"""The host queue: the one object that the device loop talks to.

Each exchange it takes what the slots sampled, hands finished actions to the sandboxes, and returns
what comes next: observations, further episodes, copies of slots, or the end. An episode that has
ended may bring follow-ups, such as forks of it. The queue holds numpy arrays only and never raises:
an error becomes a code that ends the device loop, and `raise_error` raises it afterwards. What is
sampled does not depend on when which sandbox answers.
"""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from sepo_jax.sandbox.backlog import Backlog, Line, places
from sepo_jax.sandbox.episodes import (
    Codec,
    Conversation,
    EpisodeRequest,
    EpisodeResult,
    RunningEpisode,
    StopRules,
    coming,
)
from sepo_jax.sandbox.exchange import FAILED, FINISHED, Commands, ExchangeShape, Report, no_commands
from sepo_jax.sandbox.protocol import (
    Answer,
    BadAnswer,
    Call,
    Failure,
    Pool,
    SandboxError,
    SnapshotRefused,
    Turn,
)
from sepo_jax.sandbox.results import Results
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
        follow_ups: Callable[[EpisodeResult], Sequence[EpisodeRequest]] | None = None,
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
            every episode failed always is. Requests and follow-ups together are judged at the end.
          patience: seconds that a device waits with nothing to decode, and no sandbox answers,
            until it is.
          on_result: called with each result as it comes.
          follow_ups: called with each result, failed ones too; the episodes that it asks for are
            played next, on the same device. It alone gets the snapshots, which may be large.

        Raises:
          ValueError: seats that name no policy, or more seats of a policy than slots.
        """
        most = places(seats, len(codecs), shape.slots)
        self._pool, self._codecs, self._shape, self._rules = pool, tuple(codecs), shape, rules
        self._seed, self._step, self._seats = seed, step, tuple(seats)
        self._patience = patience
        self._ahead = max(1, shape.slots // 4) if ahead is None else ahead
        self._on_result, self._follow_ups = on_result, follow_ups
        cut = [True] * len(codecs) if can_cut is None else list(can_cut)
        self._coming = Counter(key for request in requests for key in coming(request))
        self._tables = [
            [SlotTable(shape, cuts, self._coming) for cuts in cut] for _ in range(devices)
        ]
        self._requests = deque(((number,), request) for number, request in enumerate(requests))
        self._backlogs = [Backlog(self._requests, most) for _ in range(devices)]
        self._results = Results((index for index, _ in self._requests), max_failed_fraction)
        self._running: dict[int, RunningEpisode] = {}  # by handle
        self._playing = [0] * devices
        self._share = -(-len(self._requests) // devices)
        self._lock = threading.Lock()
        self._last_answer = time.monotonic()
        self.error: BaseException | None = None
        self.statistics = Statistics(self._tables)

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
        """One result a request, in their order; see `Results.ordered`."""
        return self._results.ordered()

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
                # What a pool in this process is asked meanwhile, it has answered at once.
                while answers := self._pool.take():
                    for answer in answers:
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
        backlog = self._backlogs[device]
        while (line := backlog.next(self._may_begin(device))) is not None:
            episode = line.prepared.popleft() if line.prepared else self._start(device, line)
            backlog.reserve(episode)
            if episode.pending is not None:
                turn, episode.pending = episode.pending, None
                self._take_turn(episode, turn, time.monotonic())  # no slot waited for it
        while (line := backlog.next_to_prepare(self._ahead, self._may_begin(device))) is not None:
            line.prepared.append(self._start(device, line))

    def _may_begin(self, device: int) -> bool:
        # No device takes what leaves another without work.
        return bool(self._requests) and self._playing[device] < self._share

    def _start(self, device: int, line: Line) -> RunningEpisode:
        """Begins the next episode of a line."""
        index, request = line.requests.popleft()
        episode = RunningEpisode(index, request, device, next(_NUMBERS), line)
        self._running[episode.handle] = episode
        self._playing[device] += 1
        if request.state is None:
            self._send(episode, "reset", (request.task, request.seed))
        else:
            self._send(episode, "restore", request.state)
        return episode

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
            self._end_episode(episode, "failed", failure=_explained(episode, answer.failure))
        elif answer.state is not None:
            self._keep(episode, answer.state, answer.arrived)
        elif episode.reserved:
            self._take_turn(episode, answer.turn, answer.arrived)
        else:
            episode.pending = answer.turn

    def _take_turn(self, episode: RunningEpisode, turn: Turn, arrived: float) -> None:
        """Goes on with what an environment answered."""
        self._has_come(episode)
        try:
            if episode.is_resuming:
                turn = self._resume(episode, turn)
            episode.rewards.append(turn.rewards)
            if turn.done:
                return self._end_episode(episode, "finished", record=turn.record)
            if self._rules.turns and episode.turn + 1 >= self._rules.turns:
                return self._end_episode(episode, "turn_limit")
            began = [self._converse(episode, seat, turn) for seat in sorted(turn.prompts)]
        except (BadAnswer, SnapshotRefused) as error:
            kind = "refused" if isinstance(error, SnapshotRefused) else "bad_answer"
            return self._end_episode(episode, "failed", failure=Failure(kind, str(error)))
        episode.turn += 1
        limits = [
            self._rules.limit(len(each.context.ids), episode.sampled, len(began)) for each in began
        ]
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
        if episode.request.keep_snapshots:
            episode.saving_since = time.monotonic()
            self._send(episode, "snapshot")

    def _resume(self, episode: RunningEpisode, turn: Turn) -> Turn:
        """Takes up the past of an episode whose environment was restored; the turn, with what was
        paid then.

        Raises:
          SnapshotRefused: another turn than was pending at the snapshot.
        """
        past = episode.request.past
        if dict(turn.prompts) != {action.seat: action.prompt for action in past.asked}:
            raise SnapshotRefused(
                f"the restored environment does not ask what it asked at turn {past.turn}, where "
                "the snapshot was taken: its snapshots do not keep all of its state"
            )
        episode.recall([self._codecs[policy] for policy in self._seats])
        return dataclasses.replace(turn, rewards=past.rewards[-1])

    def _converse(self, episode: RunningEpisode, seat: int, turn: Turn) -> Conversation:
        """The conversation in which a seat answers its prompt."""
        prompt, conversation = turn.prompts[seat], episode.conversations.get(seat)
        if seat >= len(self._seats):
            raise BadAnswer(
                f"seat {seat} was asked; the rollout has seats 0 to {len(self._seats) - 1}"
            )
        if prompt.continues and conversation is None:
            raise BadAnswer(
                f"the first prompt of seat {seat} continues a context; none exists, nor does the "
                "request bring one along as its past"
            )
        if not prompt.continues:
            if conversation is not None:
                self._table(episode, conversation).release(conversation.context)
            codec = self._codecs[self._seats[seat]]
            conversation = Conversation(episode.contexts, seat, codec, episode)
            episode.contexts += 1
            episode.conversations[seat] = conversation
        conversation.ask(prompt)
        return conversation

    def _refuse_first_prompt(self, episode: RunningEpisode, conversation: Conversation) -> None:
        length = len(conversation.context.ids)
        if episode.turn == 0 and length >= self._rules.capacity:
            raise ValueError(
                f"the first prompt of episode {episode.index[0]} has {length} tokens and a context "
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
        self._step_if_due(episode)

    def _keep(self, episode: RunningEpisode, state: bytes, arrived: float) -> None:
        """Takes the snapshot of the turn under way."""
        episode.snapshots[episode.turn] = state
        self.statistics.saved(arrived - episode.saving_since)
        episode.saving_since = None
        self._step_if_due(episode)

    def _step_if_due(self, episode: RunningEpisode) -> None:
        if not episode.awaited and episode.saving_since is None:
            self._send(episode, "step", episode.replies())

    def _end_episode(self, episode, status: str, record=None, failure=None) -> None:
        self._has_come(episode)
        conversations = list(episode.conversations.values())
        for conversation in conversations:
            self._table(episode, conversation).release(conversation.context)
        self._send(episode, "close")
        del self._running[episode.handle]
        self._playing[episode.device] -= 1
        self._backlogs[episode.device].leave(episode)
        result = episode.result(status, record, failure)
        self.statistics.ended([c.context for c in conversations], status, failure)
        if self._on_result is not None:
            self._on_result(result)
        if self._follow_ups is not None:
            self._bring(episode, self._follow_ups(result))
            result = dataclasses.replace(result, snapshots={})
        self._results.put(episode.index, result)

    def _bring(self, episode: RunningEpisode, requests: Sequence[EpisodeRequest]) -> None:
        """Lines up the follow-ups of an episode."""
        numbered = [((*episode.index, number), each) for number, each in enumerate(requests)]
        for index, request in numbered:
            self._results.expect(index)
            self._coming.update(coming(request))
        self._backlogs[episode.device].add(episode.index[0], numbered)

    def _has_come(self, episode: RunningEpisode) -> None:
        self._coming.subtract(episode.coming)
        episode.coming = ()


def _explained(episode: RunningEpisode, failure: Failure) -> Failure:
    """The failure of an episode's call, with what to do about it where that is a snapshot."""
    if episode.saving_since is None:
        return failure
    return Failure(
        failure.kind,
        f"no snapshot of turn {episode.turn}, which was to be kept so that other episodes can "
        f"branch there: {failure.message}. Play it without branch points, or wrap an environment "
        "that repeats itself in sandbox.replayed",
    )
