"""A queue for the drivers that plays fixed contexts: no sandbox, no text. And what to play."""

import threading
from collections import deque
from dataclasses import dataclass, field

import jax
import numpy as np

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.rollout.driver import EngineOptions, drive
from sepo_jax.sandbox.exchange import FAILED, FINISHED, no_commands

VOCABULARY, END = 61, 7
CONFIG = ModelConfig(
    vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2,
    intermediate_size=48,
)  # fmt: skip
RECURRENT = ModelConfig(
    vocab_size=VOCABULARY, hidden_size=12, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=6,
    intermediate_size=20, layer_types=("linear", "full"), linear_key_heads=2,
    linear_value_heads=4, linear_key_head_dim=3, linear_value_head_dim=5, linear_conv_width=4,
)  # fmt: skip
OPTIONS = EngineOptions(slots=8, capacity=96, prefill_widths=(4, 16), max_action_tokens=9)


@dataclass(eq=False)
class Context:
    """A prompt, and the observations that follow its actions.

    Attributes:
      prompt: token ids. key: seed, step, group, member. limit: of each action.
      observations: token ids after each action but the last.
      actions: (tokens, logp, entropy) of each action so far.
    """

    prompt: list[int]
    key: tuple[int, ...]
    limit: int
    observations: list[list[int]] = field(default_factory=list)
    policy: int = 0
    actions: list[tuple] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cached: int = 0
    source: "Context | None" = None
    slot: int = -1
    acting: bool = False


class ScriptedHost:
    """Plays contexts in their order, on as many slots as the shape has.

    With `share`, contexts with the prompt of one in a slot are copies of it: cut to the prompt, or
    with `share="whole"` only those that begin together.
    """

    def __init__(self, shape, contexts, *, policies=1, devices=1, share=False):
        self.shape, self.share, self.error = shape, share, None
        self.lock, self.exchanges = threading.Lock(), 0
        self.waiting = [
            deque(context for context in contexts if context.policy == policy)
            for policy in range(policies)
        ]
        self.slots = [[{} for _ in range(policies)] for _ in range(devices)]
        self.preparing = [[[] for _ in range(policies)] for _ in range(devices)]

    def stop(self, error):
        self.error = self.error or error

    def raise_error(self):
        if self.error is not None:
            raise self.error

    def exchange(self, device, reports):
        with self.lock:
            self.exchanges += 1
            if self.error is None:
                commands = [
                    self._turn(report, policy, self.slots[device][policy], device)
                    for policy, report in enumerate(reports)
                ]
            code = FAILED if self.error is not None else FINISHED
            if self.error is not None or not any(self.slots[device]):
                commands = [no_commands(self.shape) for _ in reports]
                for each in commands:
                    each.code[...] = code
            return tuple(commands)

    def _turn(self, report, policy, slots, device):
        preparing, commands = self.preparing[device][policy], no_commands(self.shape)
        for slot, context in list(slots.items()):
            if context not in preparing:
                self._absorb(report, slot, context, slots, preparing)
        fresh = []
        for slot in range(self.shape.slots):
            if slot not in slots and self.waiting[policy]:
                context = self.waiting[policy].popleft()
                context.ids, context.slot, slots[slot] = list(context.prompt), slot, context
                holders = fresh if self.share == "whole" else slots.values()
                if self.share:
                    same = [c for c in holders if c.prompt == context.prompt and c is not context]
                    context.source = same[0] if same else None
                commands.clear[slot] = context.source is None
                fresh.append(context)
        preparing += fresh
        calls = dict.fromkeys(self.shape.widths, 0)
        for context in preparing:
            if context.source is None:
                self._prefill(context, commands, calls)
        for context in list(preparing):
            source, needed = context.source, len(context.ids) - 1
            if source is not None and source.source is None and source.cached >= needed:
                length = -1 if self.share == "whole" else needed
                commands.forks[commands.fork_count] = source.slot, context.slot, length
                commands.fork_count[...] += 1
                context.cached, context.source = needed, None
            if context.source is None and context.cached == needed:
                self._start(context, commands)
                preparing.remove(context)
        return commands

    def _absorb(self, report, slot, context, slots, preparing):
        count = report.count[slot]
        parts = [part[slot, :count].copy() for part in report[:3]]
        if context.acting:
            before = context.actions.pop()
            parts = [np.concatenate(pair) for pair in zip(before, parts, strict=True)]
        context.actions.append(tuple(parts))
        context.cached += count
        context.ids += report.tokens[slot, :count].tolist()
        context.acting = bool(report.decoding[slot])
        if context.acting:
            return
        if len(context.actions) <= len(context.observations):
            context.ids += context.observations[len(context.actions) - 1]
            preparing.append(context)
        else:
            del slots[slot]

    def _prefill(self, context, commands, calls):
        while (missing := len(context.ids) - 1 - context.cached) > 0:
            width = self.shape.chunk(missing)
            call, count = calls[width], min(missing, width)
            if call == self.shape.calls:
                return
            calls[width] += 1
            chunks = commands.chunks[self.shape.widths.index(width)]
            chunks.tokens[call, 0, :count] = context.ids[context.cached : context.cached + count]
            chunks.lengths[call, 0], chunks.slots[call, 0] = count, context.slot
            chunks.calls[...] = calls[width]
            context.cached += count

    def _start(self, context, commands):
        slot = context.slot
        first = len(context.actions) * context.limit
        commands.start[slot] = True
        commands.pending[slot] = context.ids[-1]
        commands.keys[slot] = (*context.key, first)
        commands.limit[slot] = context.limit


def make_agent(config=CONFIG, seed=0):
    """A policy of uneven next-token distributions and its parameters."""
    policy = Policy(config, end_ids=(END,))
    params = policy.init(jax.random.key(seed))
    scale = 100 / config.hidden_size**0.5
    return policy, params | {"embed": {"embedding": params["embed"]["embedding"] * scale}}


def contexts(count=20, seed=0, groups=5, **fields):
    """Contexts of two actions; those of a group share a prompt of 1 to 40 tokens."""
    generator = np.random.default_rng(seed)
    prompts = [generator.integers(0, VOCABULARY, n).tolist() for n in (1, 5, 21, 34, 40)[:groups]]
    return [
        Context(
            prompt=prompts[index % groups],
            key=(3, 0, index % groups, index // groups),
            limit=9,
            observations=[generator.integers(0, VOCABULARY, 1 + index % 6).tolist()],
            **fields,
        )
        for index in range(count)
    ]


def play(agents, options=OPTIONS, played=None, **host):
    """The actions of `played` contexts; `agents` is one (policy, params) or a list of them."""
    agents = agents if isinstance(agents, list) else [agents]
    played = contexts() if played is None else played
    queue = ScriptedHost(
        options.exchange_shape(), played, policies=len(agents), devices=options.devices, **host
    )
    drive(agents, queue, options)
    return [context.actions for context in played]


def compare(left, right, exact=True):
    """Asserts equal tokens and equal log-probabilities and entropies, bit for bit or to 1e-5."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for (tokens, *scores), (others, *expected) in zip(one, other, strict=True):
            np.testing.assert_array_equal(tokens, others)
            np.testing.assert_allclose(scores, expected, rtol=0, atol=0 if exact else 1e-5)
