"""Logits of a policy in every way it computes them, held against a reference's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sepo_jax.policy import Policy, decoder

PREFILL = 20
# Rows of a call of `append`, and what each of four slots gets in three calls: the whole prefill at
# once (twice), in two chunks, in three of which two are shorter than a convolution.
CHUNKS = ((20, 20, 7, 2), (0, 0, 13, 1), (0, 0, 0, 17))


# Hundreds of programs that run once or little: compiling takes a third of the time without these.
_QUICK = {"xla_cpu_use_fusion_emitters": False}


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def row_logits(config, params, tokens, positions, segment, ancestors):
    """Logits of every column of packed rows, [B, T, V]."""
    hidden = decoder.hidden_states(config, params, tokens, positions, segment, ancestors)
    return decoder.logits(config, params, decoder.final_norm(config, params, hidden))


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def log_probs(policy, params, *row):
    """`Policy.log_probs`, compiled."""
    return policy.log_probs(params, *row)


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _prefill(policy, *rest):
    return policy.prefill(*rest)


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _step(policy, *rest):
    return policy.decode_step(*rest)


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _fuse(policy, params):
    return policy.fuse(params)


def row_gaps(policy: Policy, params, tokens, expected, prefix: int = 0, spare: int = 5) -> dict:
    """Largest differences of whole rows, by what surrounds the tokens.

    Args:
      tokens: [2, T]; expected: [2, T, V].
      prefix: tokens that both rows begin with; above 0, one row more holds them once, and the two
        continuations behind each other.
      spare: columns of padding.
    """
    rows, length = tokens.shape
    tails = length - prefix
    spare = max(spare, tails) if prefix else spare
    width = length + spare
    lefts = {"right padding": 0, "padding on both sides": spare // 2 + 1, "left padding": spare}
    count = rows * len(lefts) + (1 if prefix else 0)
    ids, positions = np.full((count, width), 7), np.zeros((count, width), np.int32)
    segment = np.full((count, width), -1, np.int32)
    places = []
    for index, left in enumerate(lefts.values()):
        for row in range(rows):
            place = (index * rows + row, slice(left, left + length))
            ids[place], positions[place], segment[place] = tokens[row], np.arange(length), 0
            places.append(place)
    ancestors = None
    if prefix:
        ids[-1, : length + tails] = [*tokens[0], *tokens[1, prefix:]]
        positions[-1, : length + tails] = [*range(length), *range(prefix, length)]
        segment[-1, : length + tails] = [0] * prefix + [1] * tails + [2] * tails
        ancestors = np.tile(np.eye(3, dtype=bool), (count, 1, 1))
        ancestors[-1, 1:, 0] = True
    arrays = [jnp.asarray(part, jnp.int32) for part in (ids, positions, segment)]
    found = np.asarray(row_logits(policy.config, params, *arrays, ancestors))
    gaps = {}
    for index, name in enumerate(lefts):
        own = [found[place] for place in places[index * rows : (index + 1) * rows]]
        gaps[name] = np.abs(np.stack(own) - expected).max()
    if prefix:
        forest = np.concatenate([expected[0], expected[1, prefix:]])
        gaps["a prefix held once"] = np.abs(found[-1, : len(forest)] - forest).max()
    return {name: float(gap) for name, gap in gaps.items()}


def decode_gaps(policy: Policy, params, tokens, expected, chunks=CHUNKS) -> dict:
    """Largest differences of prefill and single steps, by how a slot was fed.

    Four slots hold row 0, row 1, row 0 and row 1. After the calls of `chunks` (none: from the first
    token on) the first and last step to the end of their row; the second pauses in every other
    step, the third rests for ten.

    Args:
      tokens: [2, T]; expected: [2, T, V].
      chunks: tokens of every slot in each call of `prefill`.
    """
    length = tokens.shape[1]
    rows = np.array([0, 1, 0, 1])
    tokens, expected = tokens[rows], expected[rows]
    params = _fuse(policy, params)
    cache = policy.init_cache(4, length)
    done, gaps = np.zeros(4, int), {}

    def compare(logits, fed, names):
        logits = np.asarray(logits)
        for slot in np.flatnonzero(fed):
            gap = np.abs(logits[slot] - expected[slot, done[slot] - 1]).max()
            gaps[names[slot]] = max(gaps.get(names[slot], 0.0), float(gap))

    for call in chunks:
        fed = np.array(call)
        part = np.full((4, PREFILL), 7)
        for slot in range(4):
            part[slot, : fed[slot]] = tokens[slot, done[slot] : done[slot] + fed[slot]]
        cache, logits = _prefill(policy, params, cache, jnp.array(part), jnp.array(fed))
        done += fed
        compare(logits, fed, ("prefill", "prefill", "chunks", "chunks"))
    start = done.copy()
    for step in range(length - start[0]):
        active = np.array([True, step % 2 == 0, step >= 10, True])
        chosen = tokens[np.arange(4), np.minimum(done, length - 1)]
        cache, logits = _step(policy, params, cache, jnp.array(chosen), jnp.array(active))
        done += active
        compare(logits, active, ("steps", "pauses", "pauses", "steps"))
    assert done[0] == done[3] == length, f"{done} of {length} tokens compared"
    return gaps


def assert_close(gaps: dict, tolerance: float) -> None:
    """Every gap within `tolerance`; the message shows them all."""
    shown = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
    print(shown)
    assert all(gap <= tolerance for gap in gaps.values()), f"above {tolerance}: {shown}"
