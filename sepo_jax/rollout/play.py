"""Episodes in; what was sampled, its forest and its statistics out.

    rollout = play(policy, params, requests, domain_environments(domain), EngineOptions(), seed=0)
    forest = rollout.forest()

The slots of the engine decode, environments in a pool answer, and the host queue keeps both busy.
"""

import contextlib
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import chex
from tqdm import tqdm

from ..forest import Forest
from ..policy import Policy, follow, render
from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.in_process import InProcessPool
from ..sandbox.protocol import BadAnswer, EnvironmentFactory, Message, Pool, Prompt
from ..sandbox.queue import HostQueue
from .driver import EngineOptions, drive
from .forests import build_forest
from .sharing import Share

DEFAULT_OPTIONS = EngineOptions()
_KEY_LIMIT = 2**31  # parts of a sampling key are int32
_BAR_DELAY = 10.0  # seconds that pass before a progress bar shows
FollowUps = Callable[[EpisodeResult], Sequence[EpisodeRequest]]
_SERVING: set[int] = set()  # ids of the pools that serve a rollout
_CLAIM = threading.Lock()


class ChatCodec:
    """Prompts to token ids and sampled ids to text, by a policy's tokenizer and chat template.

    Renderings and texts are kept: the members of a group are asked the same.

    Attributes:
      end_ids: ids that end a reply.
    """

    def __init__(self, policy: Policy):
        self.end_ids = policy.end_ids
        self._tokenizer, self._vocabulary = policy.tokenizer, policy.config.vocab_size
        self._rendered: dict[Any, list[int]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def start(self, prompt: Prompt) -> list[int]:
        """Ids of a fresh context.

        Raises:
          ValueError: messages for a policy without tokenizer or chat template.
          BadAnswer: a token id that the policy does not have.
        """
        if prompt.tokens:
            return self._known(prompt.tokens)
        key = _comparable(prompt.messages)
        if key not in self._rendered:
            self._check_tokenizer()
            self._rendered[key] = render(self._tokenizer, prompt.messages)
        return self._rendered[key]

    def follow(self, messages: Sequence[Message], prompt: Prompt, ended: bool) -> list[int]:
        """Ids between a reply and the next; see `policy.chat.follow`.

        Raises:
          TemplateNotExtending: the chat template cannot go on after a reply.
          BadAnswer: a token id that the policy does not have.
        """
        if prompt.tokens:
            return self._known(prompt.tokens)
        if not messages:
            raise BadAnswer("a prompt of messages continues a context of tokens")
        key = (_comparable(messages[:-1]), _comparable(prompt.messages), ended)
        if key not in self._rendered:
            self._check_tokenizer()
            self._rendered[key] = follow(
                self._tokenizer, messages, prompt.messages, ended, self.end_ids
            )
        return self._rendered[key]

    def text(self, tokens: Sequence[int]) -> str:
        """Text of sampled ids without end token and special tokens; "" without a tokenizer."""
        if self._tokenizer is None:
            return ""
        ended = bool(tokens) and tokens[-1] in self.end_ids
        key = tuple(tokens[:-1] if ended else tokens)
        if key not in self._texts:
            self._texts[key] = self._tokenizer.decode(key, skip_special_tokens=True)
        return self._texts[key]

    def _known(self, tokens: Sequence[int]) -> list[int]:
        check_tokens(tokens, self._vocabulary, BadAnswer)
        return list(tokens)

    def _check_tokenizer(self) -> None:
        if self._tokenizer is None:
            raise ValueError("this policy has no tokenizer; load it with one")


def check_tokens(tokens: Sequence[int], vocabulary: int, kind: type[Exception]) -> None:
    """Raises `kind` for a token id outside [0, vocabulary)."""
    wrong = [token for token in tokens if not 0 <= token < vocabulary]
    if wrong:
        raise kind(
            f"a prompt has token id {wrong[0]}; the policy's vocabulary has ids 0 to "
            f"{vocabulary - 1}: was the prompt made by another tokenizer?"
        )


def _comparable(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message["role"], message["content"]) for message in messages)


@dataclass(frozen=True, eq=False)
class Rollout:
    """What `play` returns.

    Attributes:
      results: one a request, in their order, each before those of its follow-ups.
      statistics: flat figures: tokens, seconds of slots by what they did, episodes by how they
        ended; see `sandbox.statistics`.
      step: of the run, which says how often the policy that sampled had been updated.
    """

    results: Sequence[EpisodeResult] = ()
    statistics: dict[str, Any] = field(default_factory=dict)
    step: int = 0

    def forest(self, share_prompts: bool = True) -> Forest:
        """The sampled segments; see `build_forest`."""
        return build_forest(self.results, share_prompts, policy_version=self.step)


def play(
    policy: Policy | Sequence[Policy],
    params: chex.ArrayTree | Sequence[chex.ArrayTree],
    requests: Sequence[EpisodeRequest],
    pool: Pool | EnvironmentFactory,
    options: EngineOptions = DEFAULT_OPTIONS,
    *,
    seed: int,
    step: int = 0,
    seats: Sequence[int] = (0,),
    follow_ups: FollowUps | None = None,
    share: Share | None = None,
    progress: str = "",
) -> Rollout:
    """Plays episodes to their end.

    Args:
      policy, params: the agent; or a sequence of each, a policy's parameters at its place.
      requests: what to play.
      pool: where the environments are, for this rollout alone until it returns; or what makes one,
        and they then live in this process.
      options: sizes of the engine, sampling, limits of an episode.
      seed, step: with group and member of a request they fix its samples; slots, devices and the
        order of work do not matter.
      seats: index of the policy that plays each seat of an episode.
      follow_ups: called with the result of every episode, failed ones too, and with snapshots where
        they were kept; the episodes that it asks for are played next. It runs inside the rollout
        and must not call JAX.
      share: the part of this process where several play together, each with a pool of its own: all
        call this with the same arguments and get the same results. None plays everything here.
      progress: label of a progress bar over the episodes, shown from ten seconds on; "" for none.

    Returns:
      Rollout. Episodes that a sandbox failed are in it, with status "failed".

    Raises:
      ValueError: another number of parameters than of policies, seats that name no policy, numbers
        that are no part of a sampling key, a pool that serves another rollout, a first prompt that
        does not fit a slot, or one that the policy cannot read.
      TooManyFailures: more episodes failed than `options.max_failed_fraction`, or all.
    """
    policies, parts = ([policy], [params]) if isinstance(policy, Policy) else (policy, params)
    if len(policies) != len(parts):
        raise ValueError(f"{len(parts)} parameters for {len(policies)} policies; give one for each")
    _check_key("seed", seed)
    _check_key("step", step)
    check_requests(requests)
    if not requests:
        return Rollout()
    part = partial(_play, policies, parts, pool, options, seed, step, seats, follow_ups, progress)
    results, statistics = share.played(requests, part) if share is not None else part(requests)
    return Rollout(results, statistics, step)


def _play(
    policies, parts, pool, options, seed, step, seats, follow_ups, progress, requests
) -> tuple[list[EpisodeResult], dict[str, Any]]:
    """Results and statistics of what this process plays."""
    if not requests:
        return [], {}
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        if not hasattr(pool, "submit"):
            pool = stack.enter_context(InProcessPool(pool))
        stack.enter_context(_claim(pool))
        bar = stack.enter_context(
            tqdm(
                total=len(requests),
                desc=progress,
                disable=not progress,
                delay=_BAR_DELAY,
                leave=False,
            )
        )

        def next_of(result: EpisodeResult) -> Sequence[EpisodeRequest]:
            further = check_requests(follow_ups(result))
            bar.total += len(further)
            return further

        queue = HostQueue(
            pool,
            requests,
            [ChatCodec(each) for each in policies],
            options.exchange_shape(),
            options.stop_rules(),
            seed=seed,
            step=step,
            seats=seats,
            devices=options.devices,
            can_cut=[not each.is_recurrent for each in policies],
            max_failed_fraction=options.max_failed_fraction,
            on_result=lambda _: bar.update(),
            follow_ups=next_of if follow_ups else None,
        )
        stack.callback(queue.close)
        drive(list(zip(policies, parts, strict=True)), queue, options)
        results = queue.results()
    return results, queue.statistics.summary() | {"seconds": time.perf_counter() - begin}


@contextlib.contextmanager
def _claim(pool: Pool) -> Iterator[None]:
    """Keeps a pool from a second rollout: each would take answers that the other waits for."""
    with _CLAIM:
        if id(pool) in _SERVING:
            raise ValueError(
                "the pool serves another rollout; wait until that one returns, or make a pool for "
                "each"
            )
        _SERVING.add(id(pool))
    try:
        yield
    finally:
        _SERVING.discard(id(pool))


def check_requests(requests: Sequence[EpisodeRequest]) -> Sequence[EpisodeRequest]:
    """The requests themselves; ValueError for anything but a list of requests that have keys."""
    if not isinstance(requests, Sequence):
        raise ValueError(
            f"requests is a list of EpisodeRequest, not {type(requests).__name__}: put a single "
            "one in a list"
        )
    for request in requests:
        if not isinstance(request, EpisodeRequest):
            raise ValueError(f"requests holds {repr(request)[:80]}, which is no EpisodeRequest")
        _check_key("group", request.group)
        _check_key("member", request.member)
    return requests


def _check_key(name: str, value: int) -> None:
    try:
        fits = 0 <= operator.index(value) < _KEY_LIMIT
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} is {value!r}, and as part of a sampling key it must be a whole number from 0 "
            f"to {_KEY_LIMIT - 1}"
        )


def members(groups: Sequence[int]) -> list[int]:
    """Place of each entry among those of its group, from 0."""
    seen: Counter[int] = Counter()
    places = []
    for group in groups:
        places.append(seen[group])
        seen[group] += 1
    return places
