"""Identities of the SRPO row: what sets of one are, and what no order of members changes."""

import itertools
import warnings

import jax
import numpy as np
import pytest
from test_objective_events import LOGP, SMALL, TablePolicy

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import ForestBuilder
from sepo_jax.objective import make_objective

SCALES, REDUCTIONS = ("sqrt", "sum", "mean"), ("event_mean", "token_mean")


def value_of(row, forest):
    """Loss, gradient and metrics."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch, _ = prepare(row, forest, row_length=32, at_least=SMALL)
    loss = make_objective(row, TablePolicy())
    (value, metrics), gradient = jax.value_and_grad(
        lambda params: loss(params, batch), has_aux=True
    )(LOGP)
    return float(value), np.asarray(gradient), metrics


def events_of(sizes, seed=0, order=None):
    """Two prompts with events of these sizes, log-ratios on both sides of the clip, returns of
    their own. `order` permutes the members of every event."""
    rng, builder = np.random.default_rng(seed), ForestBuilder()
    for number, size in enumerate(sizes):
        outputs = [rng.integers(0, 4, 1 + int(rng.integers(3))) for _ in range(size)]
        gaps = [0.15 * rng.normal(size=len(tokens)) for tokens in outputs]
        earned = float(rng.normal())
        for place in range(size) if order is None else order(size):
            builder.add(
                outputs[place],
                builder.add([3], group=number % 2),
                is_action=True,
                behavior_logp=LOGP[outputs[place]] - gaps[place],
                reward=earned if place == 0 else 0.0,
                episode=number,
                event=number,
                event_size=size,
            )
    return builder.build()


# A sequence in the loss of whole episodes, by what is averaged: episodes, or their tokens.
SEQUENCE = {"event_mean": "sequence_mean", "token_mean": "token_mean"}


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_sets_of_one_are_the_sequence_row_in_loss_and_gradient(reduce):
    forest = events_of([1] * 8)
    sequence = get_algorithm("grpo", ratio="sequence", ratio_scale="sum", reduce=SEQUENCE[reduce])
    loss, gradient, metrics = value_of(sequence, forest)
    assert 0 < metrics["clip_fraction"].value < 1, "both sides of the clip must be there"
    assert np.abs(gradient).max() > 1e-3
    for scale in SCALES:
        row = get_algorithm("srpo", ratio_scale=scale, reduce=reduce)
        found = value_of(row, forest)
        np.testing.assert_allclose(found[0], loss, atol=1e-6)
        np.testing.assert_allclose(found[1], gradient, atol=1e-6)
        for name in ("clip_fraction", "unit_log_ratio_abs", "ratio"):
            np.testing.assert_allclose(found[2][name].value, metrics[name].value, atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "reduce"), list(itertools.product((*SCALES, "length"), REDUCTIONS))
)
def test_no_order_of_members_changes_loss_or_gradient(scale, reduce):
    sizes, row = (1, 3, 2, 3, 3, 1), get_algorithm("srpo", ratio_scale=scale, reduce=reduce)
    loss, gradient, _ = value_of(row, events_of(sizes))
    assert np.abs(gradient).max() > 1e-3
    for order in (lambda size: range(size)[::-1], lambda size: [*range(1, size), 0]):
        other = value_of(row, events_of(sizes, order=order))
        np.testing.assert_allclose(other[0], loss, atol=1e-6)
        np.testing.assert_allclose(other[1], gradient, atol=1e-6)
    # One member in place of another would change them.
    assert abs(value_of(row, events_of(sizes, seed=1))[0] - loss) > 1e-4


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("scale", SCALES)
def test_the_gradient_of_an_unclipped_event_of_any_size(size, scale):
    """-rho A / K^a sum_j grad log q_j, a mean over two events; the rival's advantage is -1, its
    ratio 1, and its gradient 1 on token 3."""
    gap, power = 0.1 / size, {"sqrt": 0.5, "sum": 0.0, "mean": 1.0}[scale]
    builder = ForestBuilder()
    for event, count in ((0, size), (1, 1)):
        for member in range(count):
            token = member % 3 if event == 0 else 3
            builder.add(
                [token],
                builder.add([3]),
                is_action=True,
                behavior_logp=[float(LOGP[token]) - (gap if event == 0 else 0)],
                reward=float(event == 0 and member == 0),
                episode=event,
                event=event,
                event_size=count,
            )
    _, gradient, metrics = value_of(get_algorithm("srpo", ratio_scale=scale), builder.build())
    assert metrics["clip_fraction"].value == 0.0
    ratio = np.exp(size * gap / size**power)
    counts = np.bincount([member % 3 for member in range(size)], minlength=4)
    expected = -ratio / size**power * counts / 2 + np.array([0, 0, 0, 0.5])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_parts_is_refused_by_the_row():
    row = get_algorithm("srpo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch, _ = prepare(row, events_of((1, 2)), row_length=32, parts=2)
    with pytest.raises(ValueError, match="takes one part"):
        make_objective(row, TablePolicy())(LOGP, batch)
