"""Ratios of sets: events of several outputs, whole or not at all (SRPO)."""

import itertools
import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.algorithms import ALGORITHMS, get_algorithm
from sepo_jax.credit import assign_credit, prepare
from sepo_jax.forest import ForestBuilder, fill, pack
from sepo_jax.objective import make_objective
from sepo_jax.policy import TokenScores

SMALL = {"T": 16, "S": 8, "A": 16, "Q": 4}
LOGP = jnp.float32([-0.5, -1.0, -1.5, -2.0])


class TablePolicy(NamedTuple):
    """The log-probability of token v is params[v], whatever stands before it."""

    def log_probs(self, params, tokens, positions, segment, ancestors, source, target, **_):
        logp = params[target]
        return TokenScores(logp=logp, entropy=-logp, value=logp)


def loss_of(row, forest, params=LOGP):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch, _ = prepare(row, forest, row_length=32, at_least=SMALL)
    return make_objective(row, TablePolicy())(params, batch)


def event_forest(members, log_ratio=0.0, reward=1.0, announced=None, tokens=None):
    """An event with the given members (each a list of tokens) and a rival that earns 0."""
    builder = ForestBuilder()
    for event, (outputs, earned) in enumerate(((members, reward), ([[3]], 0.0))):
        size = announced if announced and not event else len(outputs)
        for member, output in enumerate(outputs):
            builder.add(
                output,
                builder.add([3]),
                is_action=True,
                behavior_logp=LOGP[np.array(output)] - (log_ratio if not event else 0),
                reward=earned * (member == 0),
                episode=event,
                event=event,
                event_size=size,
            )
    return builder.build()


@pytest.mark.parametrize(("scale", "power"), [("sqrt", 0.5), ("sum", 0.0), ("mean", 1.0)])
def test_gradient_of_one_event(scale, power):
    members, delta = [[0, 1], [1], [2, 2, 0]], 0.02
    row = get_algorithm("srpo", ratio_scale=scale)
    forest = event_forest(members, log_ratio=delta)
    gradient = jax.grad(lambda params: loss_of(row, forest, params)[0])(LOGP)
    # Advantages +1 and -1; the rival's ratio is 1, its gradient +1 on token 3. Six tokens of
    # log-ratio 0.02; unclipped gradient -rho A / K^power sum_j grad log q_j; mean over two events.
    ratio = np.exp(6 * delta / 3**power)
    counts = np.array([2, 2, 2, 0])
    expected = -ratio / 3**power * counts / 2 + np.array([0, 0, 0, 0.5])
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_order_of_members_does_not_matter():
    members = [[0, 1], [1], [2, 2, 0]]
    losses = []
    for order in ([0, 1, 2], [2, 0, 1]):
        forest = event_forest([members[i] for i in order], log_ratio=0.05)
        losses.append(loss_of(ALGORITHMS["srpo"], forest)[0])
    assert losses[0] == pytest.approx(float(losses[1]), abs=1e-6)


def test_events_of_one_are_sequences():
    # K = 1: the ordinary ratio of whole sequences, compared over the prompt.
    forest = event_forest([[0, 1]], log_ratio=0.02)
    sequence = get_algorithm("grpo", ratio="sequence", ratio_scale="sum")
    for scale in ("sqrt", "sum", "mean"):
        loss, _ = loss_of(get_algorithm("srpo", ratio_scale=scale), forest)
        assert loss == pytest.approx(float(loss_of(sequence, forest)[0]), abs=1e-6)


def test_a_missing_member_drops_the_event():
    whole = event_forest([[0], [1]])
    broken = event_forest([[0], [1]], announced=3)
    for forest, dropped in ((whole, 0.0), (broken, 0.5)):
        loss, metrics = loss_of(ALGORITHMS["srpo"], forest)
        assert metrics["dropped_events"].value == dropped
    # Only the rival is left, a group of one: nothing to learn.
    gradient = jax.grad(lambda params: loss_of(ALGORITHMS["srpo"], broken, params=params)[0])(LOGP)
    assert not np.asarray(gradient).any() and loss == 0.0


def test_event_ratios_with_a_token_mean():
    # Losses of the events: -rho and +1; weights are their tokens: 3 and 1.
    row = get_algorithm("srpo", reduce="token_mean")
    loss, _ = loss_of(row, event_forest([[0, 1], [2]], log_ratio=0.02))
    rho = np.exp(3 * 0.02 / np.sqrt(2))
    assert loss == pytest.approx((-3 * rho + 1) / 4, abs=1e-6)


def test_log_ratios_normalised_by_length_depend_on_no_length():
    # Every token's log-ratio is 0.02: so is each member's mean, whatever its length.
    row = get_algorithm("srpo", ratio_scale="length", clip_low=None, clip_high=None)
    for members in ([[0], [1]], [[0, 1, 1], [2, 2]]):
        loss, metrics = loss_of(row, event_forest(members, log_ratio=0.02))
        assert loss == pytest.approx((-np.exp(2 * 0.02 / np.sqrt(2)) + 1) / 2, abs=1e-6)
    # Mean |log-ratio| of members: five tokens and the rival's 0; of events: sqrt(2) 0.02 and 0.
    assert metrics["member_log_ratio_abs"].value == pytest.approx(5 * 0.02 / 3, abs=1e-6)
    assert metrics["unit_log_ratio_abs"].value == pytest.approx(np.sqrt(2) * 0.02 / 2, abs=1e-6)
    assert metrics["active_set"].value == 1.5
    # Of one member it is the geometric mean, as of sequences.
    forest = event_forest([[0, 1]], log_ratio=0.02)
    sequence = get_algorithm("grpo", ratio="sequence", ratio_scale="mean")
    loss, _ = loss_of(get_algorithm("srpo", ratio_scale="length"), forest)
    assert loss == pytest.approx(float(loss_of(sequence, forest)[0]), abs=1e-6)


def test_the_clip_is_one_decision_for_the_whole_event():
    # Each member's ratio is exp(0.12) < 1.2; that of the two together is exp(0.24 / sqrt 2) = 1.18
    # under sqrt and exp(0.24) = 1.27 under sum.
    forest = event_forest([[0], [1]], log_ratio=0.12)
    for scale, share in (("sqrt", 0.0), ("sum", 0.5), ("mean", 0.0)):
        _, metrics = loss_of(get_algorithm("srpo", ratio_scale=scale), forest)
        assert metrics["clip_fraction"].value == share


def many_events(seed=0, broken=()):
    """Two prompts, six events of up to three members with returns of their own; those of `broken`
    lack a member: "absent", of no known "reward", or "truncated"."""
    rng, builder = np.random.default_rng(seed), ForestBuilder()
    for number in range(6):
        size = 1 + number % 3
        lacks = dict(broken).get(number, "")
        for member in range(size):
            tokens = rng.integers(0, 4, 1 + int(rng.integers(3)))
            noise = 0.05 * rng.normal(size=len(tokens))
            earned = rng.normal() if member == 0 else 0.0
            last = member == size - 1
            if lacks == "absent" and last:
                continue
            builder.add(
                tokens,
                builder.add([3], group=number % 2),
                is_action=True,
                behavior_logp=LOGP[tokens] - noise,
                reward=np.nan if lacks == "reward" and last else earned,
                truncated=lacks == "truncated" and last,
                episode=number,
                event=number,
                event_size=size,
            )
    return builder.build()


ROWS = [
    get_algorithm("srpo", ratio_scale=scale, reduce=reduce, mask_truncated=True)
    for scale, reduce in itertools.product(
        ("sqrt", "sum", "mean", "length"), ("event_mean", "token_mean")
    )
]


def without(forest, event):
    """The forest with an event left out altogether."""
    builder = ForestBuilder()
    for segment in np.flatnonzero(forest.is_action & (forest.event != event)):
        here = slice(forest.offsets[segment], forest.offsets[segment + 1])
        builder.add(
            forest.tokens[here],
            builder.add([3], group=int(forest.group[segment])),
            is_action=True,
            behavior_logp=forest.behavior_logp[here],
            **{
                name: getattr(forest, name)[segment]
                for name in ("reward", "episode", "event", "event_size")
            },
        )
    return builder.build()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.ratio_scale} {row.reduce}")
def test_an_event_that_lacks_a_member_leaves_loss_and_gradient_as_without_it(row):
    value = jax.value_and_grad(lambda params, forest: loss_of(row, forest, params)[0])
    expected = value(LOGP, without(many_events(), 4))
    assert np.abs(expected[1]).max() > 1e-3
    for lacks in ("absent", "reward", "truncated"):
        forest = many_events(broken=[(4, lacks)])
        found = value(LOGP, forest)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            credit = assign_credit(row, forest)
        assert credit.metrics["incomplete_events"].value == 1
        assert loss_of(row, forest)[1]["dropped_events"].value == pytest.approx(1 / 6)
    assert loss_of(row, many_events())[0] != pytest.approx(float(expected[0]), abs=1e-4)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.ratio_scale} {row.reduce}")
def test_eight_devices_and_their_parts_add_up_to_the_whole(row):
    forest = many_events(broken=[(2, "absent")])
    objective = make_objective(row, TablePolicy())
    (expected, _), gradient = jax.value_and_grad(
        lambda params: loss_of(row, forest, params), has_aux=True
    )(LOGP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        credit = assign_credit(row, forest)
    parts = fill(pack(forest, row_length=32, parts=8), **credit.arrays())

    def share(params, part):
        counts = jax.lax.psum(objective.counts(part), "data")
        loss, slope = jax.value_and_grad(
            lambda params: objective.loss_given_counts(params, part, counts)[0]
        )(params)
        return jax.lax.psum((loss, slope), "data")

    found = jax.pmap(partial(share, LOGP), axis_name="data")(parts)
    np.testing.assert_allclose(found[0][0], expected, atol=1e-6)
    np.testing.assert_allclose(found[1][0], gradient, atol=1e-6)
