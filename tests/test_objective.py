"""Objectives: worked losses, reductions, masks, and what is refused."""

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
from sepo_jax.forest import ForestBuilder, batch_sizes
from sepo_jax.losses import Mean, clipped_surrogate
from sepo_jax.objective import make_objective
from sepo_jax.policy import TokenScores

NAN = float("nan")
ROWS = list(ALGORITHMS)


pytestmark = pytest.mark.usefixtures("compile_fast")


class TablePolicy(NamedTuple):
    """The log-probability of token v is params[v], whatever stands before it."""

    def log_probs(self, params, tokens, positions, segment, ancestors, source, target, **_):
        logp = params[target]
        return TokenScores(logp=logp, entropy=-logp, value=logp)


def quietly(function, *arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **named)


SMALL = {"T": 16, "S": 8, "A": 16, "Q": 4}

# Worked losses: token v has log-probability LOGP[v], and behaviour is recorded to known ratios.
LOGP = jnp.float32([-0.5, -1.0, -1.5, -2.0])


def two_samples(**second):
    """A: tokens 0, 1, reward 1, ratio 1.1 each. B: token 2, reward 0, ratio 1.3."""
    builder = ForestBuilder()
    prompt = builder.add([3])
    first = LOGP[:2] - np.log(1.1)
    fields = {"event_size": 1}
    builder.add([0, 1], prompt, is_action=True, reward=1.0, behavior_logp=first, event=0, **fields)
    later = LOGP[2:3] - np.log(second.pop("ratio", 1.3))
    builder.add(
        [2], prompt, is_action=True, reward=0.0, behavior_logp=later, event=1, **fields, **second
    )
    return builder.build()


def loss_of(row, forest, params=LOGP, **known):
    batch, _ = quietly(prepare, row, forest, row_length=32, at_least=SMALL, **known)
    return make_objective(row, TablePolicy())(params, batch)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        # Advantages +1 and -1; A has 2 tokens of ratio 1.1, B one of ratio 1.3, unclipped below.
        ("grpo", {}, (-1.1 + 1.3) / 2),
        ("dapo", {}, (-2 * 1.1 + 1.3) / 3),
        ("dr_mas", {}, (-2 * 1.1 + 1.3) / 3),
        ("at_grpo", {}, (-2 * 1.1 + 1.3) / 3),
        ("gigpo", {"observation_weight": 0.5}, 1.5 * (-2 * 1.1 + 1.3) / 3),
        ("bpo", {}, (-2 * 1.1 + 1.3) / 3),
        ("tree_grpo", {"compare": "root"}, (-1.1 + 1.3) / 2),
        # Means without scale: +-1/2.
        ("dr_grpo", {"constant_length": 4}, (-2 * 1.1 + 1.3) / 2 / (4 * 2)),
        ("vineppo", {}, (-2 * 1.1 + 1.3) / 2 / 3),
        # Ratios of whole replies: 1.1^2 and 1.3.
        ("rloo", {}, (-1.21 + 1.3) / 2),
        ("srpo", {"clip_high": 0.25}, (-1.21 + 1.3) / 2),
        ("srpo", {}, (-1.2 + 1.3) / 2),
        # Geometric mean 1.1, clipped to 1 + 4e-4.
        ("gspo", {}, (-1.0004 + 1.3) / 2),
        ("gspo", {"clip_low": None, "clip_high": None}, (-1.1 + 1.3) / 2),
        # Log-probabilities times returns 1 and 0; the same with return 1 for all.
        ("reinforce", {}, (0.5 + 1.0) / 3),
        ("sft", {}, (0.5 + 1.0 + 1.5) / 3),
        ("reinforce", {"importance_cap": 1.05}, 1.05 * (0.5 + 1.0) / 3),
    ],
)
def test_worked_losses(name, changes, expected):
    loss, metrics = loss_of(get_algorithm(name, **changes), two_samples())
    assert loss == pytest.approx(expected, abs=1e-6)
    assert metrics["loss/policy"].value == pytest.approx(expected, abs=1e-6)


def test_worked_loss_of_ppo():
    forest = two_samples()
    values = np.float32([0, 0.2, 0.4, 0.1])
    row = get_algorithm("ppo", gae_lambda=1.0, value_weight=0.5, value_clip=None)
    # Advantages 1 - V and 0 - V; the head says log-probabilities: -0.5, -1, -1.5.
    policy = (-1.1 * (0.8 + 0.6) - 1.3 * -0.1) / 3
    value = 0.5 * (1.5**2 + 2.0**2 + 1.5**2) / 3
    loss, metrics = loss_of(row, forest, values=values)
    assert metrics["loss/policy"].value == pytest.approx(policy, abs=1e-6)
    assert metrics["loss/value"].value == pytest.approx(value, abs=1e-6)
    assert loss == pytest.approx(policy + 0.5 * value, abs=1e-6)
    # A head that may move by 0.1 only keeps the worse of both errors.
    clipped = dataclasses.replace(row, value_clip=0.1)
    _, metrics = loss_of(clipped, forest, values=values)
    assert metrics["loss/value"].value >= value


def test_worked_metrics():
    _, metrics = loss_of(get_algorithm("grpo", kl_weight=0.5), two_samples(ratio=0.7))
    # Ratio 0.7 with advantage -1 lies beyond the lower bound 0.8.
    assert metrics["clip_fraction"].value == pytest.approx(1 / 3)
    assert metrics["ratio"].value == pytest.approx((2 * 1.1 + 0.7) / 3)
    gaps = np.log([1.1, 1.1, 0.7])
    assert metrics["log_ratio_abs"].value == pytest.approx(np.abs(gaps).mean(), abs=1e-6)
    k3 = np.exp(gaps) - 1 - gaps
    assert metrics["kl_behavior"].value == pytest.approx(k3.mean(), abs=1e-6)
    # The reference was not filled in: log-probability 0.
    d = np.array([-0.5, -1.0, -1.5])
    kl = (np.exp(-d) - 1 + d)[[0, 1]].mean(), (np.exp(-d) - 1 + d)[2]
    assert metrics["loss/kl"].value == pytest.approx(np.mean(kl), abs=1e-5)
    assert metrics["entropy"].value == pytest.approx(1.0)


def identity_surrogate(log_ratio, advantage, *, clip_low, clip_high):
    return log_ratio + 0.0 * advantage


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        ("token_mean", 0.36),
        ("sequence_mean", 0.325),
        ("constant_length", 0.30),
        ("sequence_sum_mean", 0.90),
    ],
)
def test_worked_reductions(reduce, expected):  # A13: the numbers of the conformance sheet
    builder = ForestBuilder()
    prompt = builder.add([5])
    for reward, tokens in ((0.0, [0, 1]), (1.0, [2, 3, 4])):
        builder.add(tokens, prompt, is_action=True, reward=reward)
    row = get_algorithm("dr_grpo", reduce=reduce, constant_length=3, surrogate=identity_surrogate)
    values = jnp.float32([0.1, 0.2, 0.4, 0.5, 0.6, 0.0])
    loss, _ = loss_of(row, builder.build(), params=values)
    assert loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "reduce", ["token_mean", "sequence_mean", "constant_length", "sequence_sum_mean"]
)
def test_micro_batches_of_unequal_lengths(reduce):  # A14: lengths 1, 9, 2, 8
    builder = ForestBuilder()
    for reward, length in enumerate((1, 9, 2, 8)):
        prompt = builder.add([0])
        builder.add(np.arange(length) % 4, prompt, is_action=True, reward=reward**2)
    row = get_algorithm("dr_grpo", reduce=reduce, constant_length=5)
    objective = make_objective(row, TablePolicy())
    share = jax.jit(jax.grad(lambda *given: objective.loss_given_counts(*given)[0]))
    found = []
    for parts in (1, 2, 4):
        batch, _ = prepare(row, builder.build(), row_length=10, rows=4, parts=parts, at_least=SMALL)
        counts = jax.tree.map(jnp.sum, jax.vmap(objective.counts)(batch))
        each = [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(parts)]
        found.append(sum(share(LOGP, part, counts) for part in each))
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)
    assert np.abs(found[0]).max() > 0.1


@pytest.mark.parametrize("name", ["grpo", "gspo", "srpo"])
def test_padding_columns_change_nothing(name):  # A20: 4 columns against 64
    forest, row = two_samples(), ALGORITHMS[name]
    known = {"values": np.zeros(4), "row_length": 64}
    objective = make_objective(row, TablePolicy())
    losses = [
        objective(LOGP, quietly(prepare, row, forest, at_least=sizes, **known)[0])[0]
        for sizes in (SMALL, {"T": 64, "A": 64, "S": 16, "Q": 16, "B": 4})
    ]
    assert losses[0] == pytest.approx(float(losses[1]), abs=1e-7)


@pytest.mark.parametrize("reduce", ["token_mean", "sequence_mean"])
def test_truncated_tokens_leave_the_denominator_too(reduce):  # A06
    builder = ForestBuilder()
    prompt = builder.add([1])
    for length, cut in ((4, False), (12, True)):
        builder.add([0] * length, prompt, is_action=True, truncated=cut, reward=length)
    row = get_algorithm("grpo", reduce=reduce, mask_truncated=True, surrogate=identity_surrogate)
    loss, _ = loss_of(row, builder.build(), params=jnp.float32([1.0, 0.0]))
    assert loss == 1.0


@pytest.mark.parametrize("name", [n for n in ROWS if ALGORITHMS[n].compare != "none"])
def test_no_spread_moves_no_parameter(name):  # A01: bit for bit, KL weight 0
    builder = ForestBuilder()
    prompt = builder.add([3])
    for sample, tokens in enumerate(([0], [1, 2], [2, 2, 0])):
        fields = {"event": sample, "event_size": 1, "reward": 0.35}
        logp = LOGP[np.array(tokens)] - 0.1
        builder.add(tokens, prompt, is_action=True, behavior_logp=logp, **fields)
    forest, row = builder.build(), ALGORITHMS[name]
    _, metrics = quietly(prepare, row, forest, row_length=16, at_least=SMALL)
    assert metrics["no_spread_fraction"].value == 1.0
    loss, gradient = jax.value_and_grad(lambda params: loss_of(row, forest, params)[0])(LOGP)
    assert loss == 0.0 and (np.asarray(gradient) == 0).all()


@pytest.mark.parametrize("kept", [True, False])
def test_divergence_of_groups_without_spread(kept):  # A02
    builder = ForestBuilder()
    for group, rewards in enumerate(([1, 1, 1, 1], [0, 1, 0, 1])):
        prompt = builder.add([3], group=group)
        for reward in rewards:  # group 0 writes token 0, group 1 token 1
            builder.add(
                [group],
                prompt,
                is_action=True,
                reward=reward,
                behavior_logp=LOGP[group : group + 1],
            )
    forest = builder.build()
    reference = np.full(forest.num_tokens, -1.2)
    row = get_algorithm("dr_grpo", reduce="token_mean", kl_weight=0.1, count_no_spread=kept)
    gradient = jax.grad(lambda params: loss_of(row, forest, params, reference_logp=reference)[0])(
        LOGP
    )
    # k3's gradient is 1 - exp(ref - logp); over 8 tokens, or the 4 of the second group.
    count = 8 if kept else 4
    slope = 0.1 * 4 * (1 - np.exp(-1.2 - np.asarray(LOGP[:2]))) / count
    np.testing.assert_allclose(gradient[:2], [slope[0] * kept, slope[1]], atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("gap", [-100.0, 100.0])
def test_extreme_ratios_stay_finite(name, gap):  # A07
    forest, row = two_samples(), ALGORITHMS[name]
    forest = forest.replace(behavior_logp=np.float32([0, gap, gap, gap]))

    def loss(params):
        return loss_of(row, forest, params, values=np.zeros(4))[0]

    value, gradient = jax.value_and_grad(loss)(LOGP)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    # NaN at a counted token is reported, not hidden.
    assert np.isnan(loss(LOGP.at[0].set(NAN)))


def test_segments_have_ratios_of_their_own_where_segments_are_compared():
    # Two turns in one context, ratios 1.1 and 1.3: not combined when turns are compared.
    builder = ForestBuilder()
    for sign in (1.0, -1.0):
        above = builder.add([3])
        for token, ratio in ((0, 1.1), (1, 1.3)):
            logp = LOGP[token : token + 1] - np.log(ratio)
            above = builder.add([token], above, is_action=True, behavior_logp=logp, reward=sign)
    changes = {"ratio": "sequence", "ratio_scale": "sum", "clip_low": None, "clip_high": None}
    _, metrics = loss_of(get_algorithm("at_grpo", **changes), builder.build())
    assert metrics["ratio"].value == pytest.approx(1.2, abs=1e-6)
    _, metrics = loss_of(get_algorithm("grpo", **changes), builder.build())
    assert metrics["ratio"].value == pytest.approx(1.43, abs=1e-6)


def test_shared_tokens_count_once_or_once_per_path():
    # Trunk token 0 under two leaves with tokens 1 and 2; one plain surrogate of log-ratios.
    builder = ForestBuilder()
    trunk = builder.add([0], builder.add([3]), is_action=True)
    for token in (1, 2):
        builder.add([token], trunk, is_action=True, reward=float(token))
    forest = builder.build()
    values = jnp.float32([1.0, 10.0, 100.0, 0.0])

    def loss(**changes):
        row = get_algorithm("dr_grpo", surrogate=identity_surrogate, **changes)
        return float(loss_of(row, forest, params=values)[0])

    assert loss(reduce="token_mean") == pytest.approx(111 / 3)
    assert loss(reduce="token_mean", segment_weight="path") == pytest.approx((1 + 55) / 2)
    assert loss(reduce="sequence_mean") == pytest.approx((11 / 2 + 101 / 2) / 2)
    # One tree: its trunk weighs 1, divided by one sample of 2 tokens at most.
    changes = {"reduce": "constant_length", "constant_length": 2}
    assert loss(segment_weight="path", **changes) == pytest.approx((1 + 55) / 2)
    assert loss(segment_weight="uniform", **changes) == pytest.approx(111 / (2 * 2))


def test_an_own_loss_in_ten_lines():
    def my_loss(log_ratio, advantage, *, clip_low, clip_high):
        """Squared log-ratio penalty instead of a clip."""
        return -advantage * log_ratio + 0.5 * log_ratio**2

    row = dataclasses.replace(ALGORITHMS["grpo"], surrogate=my_loss)
    loss, _ = loss_of(row, two_samples())
    a, b = np.log(1.1), np.log(1.3)
    assert loss == pytest.approx(((-a + a**2 / 2) + (b + b**2 / 2)) / 2, abs=1e-6)


def test_a_surrogate_with_an_option():
    row = dataclasses.replace(
        ALGORITHMS["grpo"], surrogate=partial(clipped_surrogate, dual_clip=1.25)
    )
    loss, _ = loss_of(row, two_samples())
    assert loss == pytest.approx((-1.1 + 1.25) / 2, abs=1e-6)


def test_counts_need_no_model():
    objective = make_objective("grpo", None, kl_weight=0.1)
    batch, _ = prepare("grpo", two_samples(), row_length=8)
    assert objective.counts(batch) == {"policy": 2.0, "kl": 2.0}
    terms, metrics = make_objective("grpo", TablePolicy()).terms(LOGP, batch)
    assert set(terms) == {"policy"} and all(isinstance(m, Mean) for m in metrics.values())


def test_refusals():
    with pytest.raises(ValueError, match=r"unknown algorithm 'grop'\. Did you mean 'grpo'"):
        make_objective("grop", TablePolicy())
    with pytest.raises(ValueError, match="unknown field of an algorithm 'clip'"):
        make_objective("grpo", TablePolicy(), clip=0.2)
    with pytest.raises(ValueError, match="temperature is 0; expected a number above 0"):
        make_objective("grpo", TablePolicy(), temperature=0)
    batch, _ = prepare("grpo", two_samples(), row_length=8, parts=1)
    with pytest.raises(ValueError, match=r"takes one part, tokens \[rows, T\]; got \(1, 1, 4\)"):
        make_objective("grpo", TablePolicy())(LOGP, batch)

    class NoHead(TablePolicy):
        def log_probs(self, *arguments, **named):
            return super().log_probs(*arguments, **named).replace(value=None)

    row = ALGORITHMS["ppo"]
    batch, _ = prepare(row, two_samples(), row_length=8, values=np.zeros(4))
    with pytest.raises(ValueError, match=r"'ppo' trains a critic .* has no value head"):
        make_objective(row, NoHead())(LOGP, batch)


def test_similar_forests_share_compilations():  # H01
    objective = make_objective("grpo", TablePolicy())
    step = jax.jit(objective)
    for samples in range(41, 49):
        builder = ForestBuilder()
        prompt = builder.add([1, 2])
        for sample in range(samples):
            builder.add([3] * (1 + sample % 2), prompt, is_action=True, reward=sample)
        batch, _ = prepare("grpo", builder.build(), row_length=128)
        step(LOGP, batch)
    assert step._cache_size() <= 4
    largest_so_far = batch_sizes(batch)
    batch, _ = prepare("grpo", two_samples(), row_length=128, at_least=largest_so_far)
    before = step._cache_size()
    step(LOGP, batch)
    assert step._cache_size() == before
