"""Ratios of sets: events of several outputs, whole or not at all (SRPO)."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.algorithms import ALGORITHMS, get_algorithm
from sepo_jax.credit import prepare
from sepo_jax.forest import ForestBuilder
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
