"""Replies restricted to a list of actions, and the exact probability of each.

An action's canonical tokens are what the tokenizer encodes its text to; a reply is those tokens
and an end token.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.policy.policy import Policy


class ActionTrie:
    """The legal action strings of one decision as a tree over token ids.

    States are small integers: `START` before the first token, -1 for an illegal prefix. `mask`
    [states, V] and `table` [states, V] are plain arrays, for use inside `jit`: `allowed =
    mask[state]`, `state = table[state, token]`.

    Attributes:
      actions: the strings, in the order given.
      sequences: per action its token ids, end token included.
      mask: bool [states, V]; a finished state allows end ids only, so that no row is empty.
      table: int32 [states, V], next state or -1.
      finished: int32 [states], index of the action that ends there, -1 elsewhere.
    """

    START = 0

    def __init__(
        self,
        tokenizer,
        actions: Sequence[str],
        *,
        end_ids: Sequence[int] | None = None,
        vocab_size: int | None = None,
    ):
        """Builds the tree; raises ValueError for empty, repeated or ambiguous actions."""
        self.actions = tuple(actions)
        ends = tuple(end_ids) if end_ids else (tokenizer.eos_token_id,)
        spelled = [action_tokens(tokenizer, action) for action in self.actions]
        _check_distinct(self.actions, spelled, ends)
        self.sequences = tuple((*tokens, ends[0]) for tokens in spelled)
        size = vocab_size or len(tokenizer)
        rows: list[dict[int, int]] = [{}]
        finished = [-1]

        def grow(state: int, token: int) -> int:
            if token not in rows[state]:
                rows[state][token] = len(rows)
                rows.append({})
                finished.append(-1)
            return rows[state][token]

        for index, tokens in enumerate(spelled):
            state = self.START
            for token in tokens:
                state = grow(state, token)
            for end in ends:
                done = grow(state, end)
                finished[done] = index
                rows[done].update(dict.fromkeys(ends, done))
        self.table = np.full((len(rows), size), -1, np.int32)
        for state, row in enumerate(rows):
            self.table[state, list(row)] = list(row.values())
        self.mask = self.table >= 0
        self.finished = np.array(finished, np.int32)

    def step(self, state: int, token: int) -> int:
        """State after `token`, -1 when that leaves the legal list."""
        return int(self.table[state, token]) if state >= 0 else -1

    def state(self, generated: Sequence[int]) -> int:
        """State after the ids generated so far, -1 when they leave the legal list."""
        state = self.START
        for token in generated:
            state = self.step(state, token)
        return state

    def allowed(self, generated: Sequence[int]) -> np.ndarray:
        """Tokens that may follow, bool [V]; raises ValueError when `generated` is illegal."""
        state = self.state(generated)
        if state < 0:
            raise ValueError(
                f"the ids {list(generated)} begin none of the actions {list(self.actions)}"
            )
        return self.mask[state]

    def action(self, generated: Sequence[int]) -> str | None:
        """The action that a finished reply spells, None for anything else."""
        state = self.state(generated)
        index = int(self.finished[state]) if state >= 0 else -1
        return self.actions[index] if index >= 0 else None


def action_tokens(tokenizer, action: str) -> tuple[int, ...]:
    """Canonical token ids of an action's text, without the end token."""
    return tuple(tokenizer.encode(action, add_special_tokens=False))


def action_log_probs(
    policy: Policy,
    params,
    prompts: Sequence[Sequence[int]],
    actions: Sequence[str] | Sequence[Sequence[str]],
    *,
    temperature: float = 1.0,
    rows: int = 16,
) -> np.ndarray:
    """Exact log-probability of answering each prompt with each action, float32 [P, A].

    log P(action) = sum over its canonical tokens of log p(token | prompt, earlier tokens)
    + log of the summed probability of the end ids after them. Other spellings of the same text do
    not count. A prompt is read once for all its actions (they are siblings under one root).

    Args:
      prompts: P lists of token ids, none empty.
      actions: A strings for all prompts, or P lists of strings (ragged lists are filled with NaN).
      temperature: of the softmax.
      rows: prompts scored at a time; sizes are rounded up, so that few programs are compiled.
    """
    if not policy.end_ids:
        raise ValueError("the policy has no end ids: give Policy(end_ids=...) or a tokenizer")
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ValueError("prompts must be a list of token id lists, none empty")
    if isinstance(actions, str):
        raise ValueError(f"actions must be a list of strings, not the string {actions!r}")
    if all(isinstance(action, str) for action in actions):
        actions = [actions] * len(prompts)
    if len(actions) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts but {len(actions)} lists of actions")
    spelled = []
    for choices in actions:
        tokens = [action_tokens(policy.tokenizer, action) for action in choices]
        _check_distinct(choices, tokens, policy.end_ids)
        spelled.append(tokens)
    if not policy.is_recurrent:
        return _score_rows(policy, params, prompts, spelled, temperature, rows)
    # A state runs along the row, so every action has a row of its own, its prompt repeated.
    pairs = [(row, tokens) for row, choices in enumerate(spelled) for tokens in choices]
    repeated = [prompts[row] for row, _ in pairs]
    alone = [[tokens] for _, tokens in pairs]
    scores = _score_rows(policy, params, repeated, alone, temperature, rows)
    counts = [len(choices) for choices in spelled]
    result = np.full((len(prompts), max(counts)), np.nan, np.float32)
    result[np.arange(max(counts)) < np.array(counts)[:, None]] = scores[:, 0]
    return result


def _score_rows(policy: Policy, params, prompts, spelled, temperature, rows: int) -> np.ndarray:
    """Log-probability of each spelled action of each prompt, one row a prompt; NaN fills up."""
    layout = _Layout(prompts, spelled, policy.end_ids)
    pieces = []
    for begin in range(0, len(prompts), rows):
        piece = layout.rows(range(begin, min(begin + rows, len(prompts))), min(rows, len(prompts)))
        pieces.append(np.asarray(_score(policy, params, piece, temperature)))
    result = np.concatenate(pieces)[: len(prompts), : layout.num_actions]
    return np.where(layout.present, result, np.nan)


@partial(jax.jit, static_argnums=0)
def _score(policy: Policy, params, row, temperature):
    scores = policy.log_probs(
        params,
        row["tokens"],
        row["positions"],
        row["segment"],
        row["ancestors"],
        row["source"],
        row["target"],
        temperature=temperature,
    )
    batch, num_actions, _, num_ends = row["is_end"].shape
    logp = scores.logp.reshape(batch, num_actions, -1, num_ends)
    # A column is one token of a reply; at the end token the mass of all end ids is added up.
    ended = jax.nn.logsumexp(logp, axis=-1)
    column = jnp.where(row["is_end"][..., 0], ended, logp[..., 0])
    return jnp.sum(jnp.where(row["real"], column, 0.0), axis=-1)


class _Layout:
    """Prompts with their actions as one row each: a root and its children."""

    def __init__(self, prompts, spelled, end_ids):
        self.prompts, self.spelled, self.end_ids = prompts, spelled, end_ids
        self.num_actions = max(len(choices) for choices in spelled)
        self.longest = max(len(tokens) for choices in spelled for tokens in choices) + 1
        width = max(
            len(prompt) + sum(len(tokens) for tokens in choices)
            for prompt, choices in zip(prompts, spelled, strict=True)
        )
        self.width = -(-width // 32) * 32
        counts = np.array([len(choices) for choices in spelled])
        self.present = np.arange(self.num_actions)[None] < counts[:, None]

    def rows(self, indices, batch):
        """Arrays of the prompts `indices`, padded to `batch` rows."""
        segments, ends = self.num_actions + 1, len(self.end_ids)
        shape = (batch, self.num_actions, self.longest, ends)
        row = {
            "tokens": np.zeros((batch, self.width), np.int32),
            "positions": np.zeros((batch, self.width), np.int32),
            "segment": np.full((batch, self.width), -1, np.int32),
            "ancestors": np.zeros((batch, segments, segments), bool),
            "source": np.zeros(shape, np.int32),
            "target": np.zeros(shape, np.int32),
            "is_end": np.zeros(shape, bool),
            "real": np.zeros(shape[:3], bool),
        }
        row["ancestors"][:] = np.eye(segments, dtype=bool)
        row["ancestors"][:, :, 0] = True
        for place, index in enumerate(indices):
            self._fill(row, place, self.prompts[index], self.spelled[index])
        row["source"] = row["source"].reshape(batch, -1)
        row["target"] = row["target"].reshape(batch, -1)
        return row

    def _fill(self, row, place, prompt, choices):
        cursor = len(prompt)
        row["tokens"][place, :cursor] = prompt
        row["positions"][place, :cursor] = np.arange(cursor)
        row["segment"][place, :cursor] = 0
        for number, tokens in enumerate(choices):
            stop = cursor + len(tokens)
            row["tokens"][place, cursor:stop] = tokens
            row["positions"][place, cursor:stop] = len(prompt) + np.arange(len(tokens))
            row["segment"][place, cursor:stop] = number + 1
            # The state before each token: the prompt's last column, then the action's own.
            before = [len(prompt) - 1, *range(cursor, stop)]
            count = len(tokens)
            row["source"][place, number, : count + 1] = np.array(before)[:, None]
            row["target"][place, number, :count] = np.array(tokens)[:, None]
            row["target"][place, number, count] = self.end_ids
            row["is_end"][place, number, count] = True
            row["real"][place, number, : count + 1] = True
            cursor = stop


def _check_distinct(actions, spelled, end_ids) -> None:
    if not len(actions):
        raise ValueError("the list of legal actions is empty")
    seen: dict[tuple[int, ...], str] = {}
    for action, tokens in zip(actions, spelled, strict=True):
        if not tokens:
            raise ValueError(f"the action {action!r} encodes to no token")
        if set(tokens) & set(end_ids):
            raise ValueError(f"the action {action!r} contains an end token")
        if tokens in seen:
            raise ValueError(f"the actions {seen[tokens]!r} and {action!r} have the same tokens")
        seen[tokens] = action
