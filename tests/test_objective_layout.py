"""Every row of the table: packing, padding and sharding change nothing, masks hold.

Values and gradients to 1e-5, on a forest with everything in it and all terms of the loss on.
"""

import dataclasses
import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.algorithms import ALGORITHMS, get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import NO_PARENT, ForestBuilder, pack, paths
from sepo_jax.objective import make_objective
from sepo_jax.policy import ModelConfig, Policy, TokenScores

NAN = float("nan")
ROWS = list(ALGORITHMS)
VOCABULARY = 11


pytestmark = pytest.mark.usefixtures("compile_fast")


class ContextPolicy(NamedTuple):
    """Logits are a sum over the visible context, weighted by position: params [V, V]."""

    def log_probs(
        self, params, tokens, positions, segment, ancestors, source, target, *, temperature, **_
    ):
        # A wrong mask, position or source changes the result.
        row, known = jnp.arange(len(tokens))[:, None, None], jnp.maximum(segment, 0)
        sees = ancestors[row, known[:, :, None], known[:, None, :]]
        sees &= (segment >= 0)[:, None, :] & (positions[:, None, :] <= positions[:, :, None])
        weight = jnp.where(sees, 1 + 0.1 * positions[:, None, :], 0.0)
        weight = jnp.take_along_axis(weight, source[:, :, None], axis=1)
        logits = jnp.einsum("baj,bjv->bav", weight, params[tokens]) / temperature
        logp = jax.nn.log_softmax(logits)
        return TokenScores(
            logp=jnp.take_along_axis(logp, target[..., None], axis=-1)[..., 0],
            entropy=-(jnp.exp(logp) * logp).sum(-1),
            value=logits[..., 0],
        )


def rich_forest(seed=0):
    """Four prompts; branching, turns, two agents, events (one incomplete), a missing reward, a
    truncated path, recorded log-probabilities off the policy."""
    rng = np.random.default_rng(seed)
    builder = ForestBuilder()

    def act(above, length, **fields):
        tokens = rng.integers(0, VOCABULARY, length)
        logp = -2.4 + 0.5 * rng.normal(size=length)
        return builder.add(tokens, above, is_action=True, behavior_logp=logp, **fields)

    for group in range(4):
        first, second = builder.add([group, 1], group=group), builder.add([2, group], group=group)
        for member in range(3):
            event = {"event": 3 * group + member, "event_size": 2}
            above = act(first, 1 + member, reward=rng.normal(), **event)
            seen = builder.add([3], above, reward=0.5)
            for branch in range(1 + (member == 0)):
                missing = (group, member, branch) == (1, 1, 0)
                reward = NAN if missing else rng.normal()
                length = 3 + branch if member == 0 else 1
                act(seen, length, reward=reward, truncated=(group, member) == (2, 2))
            if (group, member) != (3, 2):
                act(second, 2, reward=rng.normal(), agent=1, **event)
    return builder.build()


def quietly(function, *arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **named)


FOREST = rich_forest()
LONGEST = 2 + 1 + 1 + 4  # both branches of a trunk do not fit: it is repeated
RNG = np.random.default_rng(5)
KNOWN = {
    "values": np.float32(RNG.normal(size=FOREST.num_tokens)),
    "reference_logp": np.float32(-2.4 + 0.4 * RNG.normal(size=FOREST.num_tokens)),
}
WIDE = {"B": 24, "T": 64, "S": 32, "A": 64, "Q": 16}
CONTEXT = ContextPolicy()
PARAMS = jnp.float32(0.4 * RNG.normal(size=(VOCABULARY, VOCABULARY)))


def full(name):
    """A row with every further term of the loss switched on."""
    length = {"constant_length": 8} if name == "dr_grpo" else {}
    return get_algorithm(name, kl_weight=0.1, entropy_weight=0.05, **length)


def gradient_of(row, cache={}):  # noqa: B006  (compiled functions are shared between tests)
    if row not in cache:
        objective = make_objective(row, CONTEXT)
        cache[row] = jax.jit(jax.value_and_grad(objective, has_aux=True))
    return cache[row]


def close(first, second, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        first,
        second,
    )


@pytest.mark.parametrize("name", ROWS)
def test_layout_changes_nothing(name):
    """Packed = separate rows = rows permuted: value, gradient and metrics."""
    row = full(name)
    make = partial(quietly, prepare, row, FOREST, at_least=WIDE, **KNOWN)
    separate, packed = make(row_length=LONGEST)[0], make(row_length=64)[0]
    assert packed.path_mask.any(-1).sum() < separate.path_mask.any(-1).sum()
    assert (separate.action_mask & ~separate.primary).any()  # repeated trunks
    expected = gradient_of(row)(PARAMS, separate)
    assert np.isfinite(expected[0][0]) and largest(expected[1]) > 1e-3
    order = np.random.default_rng(0).permutation(WIDE["B"])
    for batch in (packed, jax.tree.map(lambda leaf: leaf[order], separate)):
        found = gradient_of(row)(PARAMS, batch)
        close(found[1], expected[1])
        close(found[0][0], expected[0][0])
        for metric, mean in found[0][1].items():
            close(mean.value, expected[0][1][metric].value)


@pytest.mark.parametrize("name", ROWS)
def test_sharding_changes_nothing(name):
    """Padding, 2 devices, and 8 micro-batches (on 8 devices): value and gradient."""
    row = full(name)
    objective = make_objective(row, CONTEXT)
    make = partial(quietly, prepare, row, FOREST, **KNOWN)
    (expected, _), gradient = gradient_of(row)(PARAMS, make(row_length=64, at_least=WIDE)[0])
    share = jax.value_and_grad(lambda *given: objective.loss_given_counts(*given)[0])

    def share_of_device(params, part, together):
        counts = jax.lax.psum(objective.counts(part), "data")
        value = share(params, part, counts)
        return jax.lax.psum(value, "data") if together else value

    for parts, together in ((2, True), (8, False)):
        batch = make(row_length=LONGEST, parts=parts, rows=24 // parts + 2)[0]
        step = jax.pmap(
            partial(share_of_device, together=together),
            axis_name="data",
            in_axes=(None, 0),
            devices=jax.devices()[:parts],
        )
        result = step(PARAMS, batch)
        # Shares that were not added up on the devices are added here, like micro-batches.
        total = jax.tree.map(lambda leaf, t=together: leaf[0] if t else leaf.sum(0), result)
        close(total, (expected, gradient))


def add(trees):
    return jax.tree.map(lambda *leaves: sum(np.asarray(leaf) for leaf in leaves), *trees)


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ["grpo", "rloo", "gspo", "tree_grpo"])
def test_a_tree_is_its_paths(name):
    """With ratio 1 a mean over sequences has the gradient of the paths in rows of their own."""
    row = full(name)
    # Path-wise copies have lost which tree they came from.
    credit_row = dataclasses.replace(row, compare="root")
    copied = np.concatenate(
        [
            KNOWN["reference_logp"][FOREST.offsets[s] : FOREST.offsets[s + 1]]
            for leaf in FOREST.leaves()
            for s in FOREST.path(int(leaf))
        ]
    )
    found = []
    for forest, reference in ((FOREST, KNOWN["reference_logp"]), (paths(FOREST), copied)):
        known = {"reference_logp": reference, "row_length": 64, "at_least": WIDE}
        batch, _ = quietly(prepare, credit_row, forest, **known)
        batch = batch.replace(behavior_logp=scores_of(CONTEXT, PARAMS, batch).logp)
        found.append(gradient_of(row)(PARAMS, batch)[1])
    close(*found)
    assert largest(found[0]) > 1e-3


def scores_of(policy, params, batch, temperature=1.0):
    return policy.log_probs(
        params,
        *(getattr(batch, n) for n in ("tokens", "positions", "segment", "ancestors")),
        batch.source,
        batch.target,
        temperature=temperature,
    )


@pytest.mark.parametrize("policy", ["context", "decoder"])
def test_packed_log_probabilities_are_path_wise_ones(policy):  # B02
    if policy == "decoder":
        config = ModelConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            head_dim=8,
            intermediate_size=24,
        )
        policy = Policy(config)
        params = policy.init(jax.random.key(0))
    else:
        policy, params = CONTEXT, PARAMS

    score = jax.jit(lambda batch: scores_of(policy, params, batch).logp)
    packed = pack(FOREST, row_length=64)
    real = packed.action_mask
    by_token = {}
    scored = np.asarray(score(packed))[real]
    for token, logp in zip(packed.token_index[real], scored, strict=True):
        by_token.setdefault(int(token), []).append(float(logp))
    alone, origin = one_path_a_row(FOREST)
    logps = np.asarray(score(alone))
    compared = 0
    for row, tokens in enumerate(origin):
        for place in np.flatnonzero(alone.action_mask[row]):
            token = tokens[alone.token_index[row, place]]
            np.testing.assert_allclose(by_token[token], logps[row, place], atol=1e-5)
            compared += 1
    assert compared > len(by_token)  # some tokens lie on several paths


def one_path_a_row(forest):
    """Each leaf path packed on its own, and the forest's tokens that it consists of."""
    rows, origin = [], []
    for leaf in forest.leaves():
        builder, above, tokens = ForestBuilder(), NO_PARENT, []
        for s in forest.path(int(leaf)):
            above = builder.add(forest.segment_tokens(s), above, is_action=forest.is_action[s])
            tokens.extend(range(forest.offsets[s], forest.offsets[s + 1]))
        sizes = {"T": LONGEST, "S": 4, "A": LONGEST}
        rows.append(pack(builder.build(), row_length=LONGEST, at_least=sizes))
        origin.append(tokens)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows), origin


@pytest.mark.parametrize("name", ROWS)
def test_an_empty_batch_is_exactly_zero(name):  # A05
    row = full(name)
    masked = dataclasses.replace(row, mask_truncated=True)
    forest = FOREST.replace(truncated=np.ones(FOREST.num_segments, bool))
    batch, _ = quietly(prepare, masked, forest, row_length=16, at_least=WIDE, **KNOWN)
    (loss, metrics), gradient = gradient_of(row)(PARAMS, batch)
    assert loss == 0.0
    assert not np.asarray(gradient).any()
    assert all(np.isfinite(mean.value) for mean in metrics.values())


@pytest.mark.parametrize("name", ROWS)
def test_nan_in_masked_slots_stays_out(name):
    row = full(name)
    batch, _ = quietly(prepare, row, FOREST, row_length=16, at_least=WIDE, **KNOWN)
    expected = gradient_of(row)(PARAMS, batch)
    counted = batch.action_mask & np.take_along_axis(
        batch.segment_weight > 0, batch.action_segment, axis=-1
    )
    dirty = {
        field: np.where(counted, batch[field], np.float32(NAN))
        for field in ("behavior_logp", "reference_logp", "advantage", "value", "value_target")
    }
    poisoned = gradient_of(row)(PARAMS, batch.replace(**dirty))
    close(poisoned[0][0], expected[0][0])
    close(poisoned[1], expected[1])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1e-4])
def test_the_same_temperature_gives_ratio_one(temperature):  # A10
    batch, _ = quietly(prepare, "dr_mas", FOREST, row_length=16)
    logp = scores_of(CONTEXT, PARAMS, batch, temperature).logp
    batch = batch.replace(behavior_logp=logp)
    objective = make_objective("dr_mas", CONTEXT, temperature=temperature)
    loss, metrics = objective(PARAMS, batch)
    assert np.isfinite(loss)
    assert metrics["ratio"].value == pytest.approx(1.0, abs=1e-5)
    assert metrics["log_ratio_abs"].value < 1e-5
    other = make_objective("dr_mas", CONTEXT, temperature=0.9)(PARAMS, batch)[1]
    assert other["log_ratio_abs"].value > 0.05  # the gap is a metric (A11)
