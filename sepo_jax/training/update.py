"""One update step: the same function on one device, under `pmap`, and on a mesh.

`update(state, batch, axis)` sums counts, loss and gradients over the parts of the batch and over
the devices of `axis`, so that neither changes the result: every term of the loss is divided by its
count over the whole batch before it is differentiated.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from ..losses import Mean
from .settings import OptimizerSettings


class TrainState(NamedTuple):
    """What training carries from step to step, and all that a checkpoint holds.

    Attributes:
      params: parameters of the policy.
      optimizer_state: state of the optimizer over `params`.
      step: int32 [], updates applied.
      skipped: int32 [], updates dropped because a gradient or the loss was not finite.
    """

    params: chex.ArrayTree
    optimizer_state: chex.ArrayTree
    step: chex.Array
    skipped: chex.Array


def make_optimizer(
    settings: OptimizerSettings,
    learning_rate: float,
    warmup_steps: int,
    steps: int,
    final_learning_rate: float,
) -> optax.GradientTransformation:
    """AdamW behind a clip of the global gradient norm; linear warm-up, then linear decay.

    The rate reaches `learning_rate` after `warmup_steps` and `final_learning_rate` after `steps`.
    """
    warmup = optax.linear_schedule(
        0.0 if warmup_steps else learning_rate, learning_rate, warmup_steps
    )
    decay = optax.linear_schedule(learning_rate, final_learning_rate, max(steps - warmup_steps, 1))
    schedule = optax.join_schedules([warmup, decay], [warmup_steps])
    return optax.chain(
        optax.clip_by_global_norm(settings.max_gradient_norm),
        optax.adamw(
            schedule,
            b1=settings.beta1,
            b2=settings.beta2,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        ),
    )


def init_state(params: chex.ArrayTree, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first update."""
    return TrainState(params, optimizer.init(params), jnp.int32(0), jnp.int32(0))


def make_update(
    objective: Any, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[TrainState, dict[str, Mean]]]:
    """`update(state, batch, axis=None) -> (state, metrics)`.

    Args:
      objective: what `objective.make_objective` returns, or `as_objective` of an own loss.
      optimizer: turns the whole gradient into an update.

    The batch has a leading axis of parts; parts are summed one after another, so only one part's
    activations live at a time. An update whose loss or gradient is not finite leaves parameters,
    optimizer state and step as they are, bit for bit, and adds one to `skipped`.
    """

    def update(state: TrainState, batch: Any, axis: str | None = None):
        counts = _sum_devices(_sum_parts(jax.vmap(objective.counts)(batch)), axis)

        def add_part(total, part):
            value, gradient = jax.value_and_grad(objective.loss_given_counts, has_aux=True)(
                state.params, part, counts
            )
            return jax.tree.map(jnp.add, total, (value, gradient)), None

        first = jax.tree.map(lambda leaf: leaf[0], batch)
        shapes = jax.eval_shape(
            jax.value_and_grad(objective.loss_given_counts, has_aux=True),
            state.params,
            first,
            counts,
        )
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        summed, _ = jax.lax.scan(add_part, zero, batch)
        (loss, metrics), gradient = _sum_devices(summed, axis)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        changes, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        updated = TrainState(
            optax.apply_updates(state.params, changes),
            optimizer_state,
            state.step + 1,
            state.skipped,
        )
        held = state._replace(skipped=state.skipped + 1)
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, held)
        one = jnp.float32(1.0)
        metrics = {**metrics, "loss": Mean(loss, one), "gradient_norm": Mean(norm, one)}
        return state, metrics

    return update


def _sum_parts(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sum(axis=0), tree)


def _sum_devices(tree: Any, axis: str | None) -> Any:
    return tree if axis is None else jax.lax.psum(tree, axis)


class FunctionObjective:
    """An own `loss(params, batch) -> (loss, metrics)` made additive over parts and devices.

    Each part's loss weighs by its number of action tokens, which is exact for losses that are
    means over action tokens; scalar metrics are averaged likewise.
    """

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, params: chex.ArrayTree, batch: Any) -> tuple[chex.Array, dict[str, Mean]]:
        return self.loss_given_counts(params, batch, self.counts(batch))

    def counts(self, batch: Any) -> dict[str, chex.Array]:
        """Number of action tokens, float32 []."""
        return {"tokens": (batch.action_mask & batch.primary).sum().astype(jnp.float32)}

    def loss_given_counts(self, params: chex.ArrayTree, batch: Any, counts: dict):
        """The part's share of the loss over the whole batch, and its metrics as sums."""
        tokens = self.counts(batch)["tokens"]
        loss, metrics = self.function(params, batch)
        share = tokens / jnp.maximum(counts["tokens"], 1.0)
        metrics = {
            name: value if isinstance(value, Mean) else Mean(value * tokens, tokens)
            for name, value in metrics.items()
        }
        return loss * share, metrics


def as_objective(objective: Any, policy: Any) -> Any:
    """Makes `objective` usable by `make_update`.

    Args:
      objective: an Objective, or a function `(params, batch) -> (loss, metrics)`; a function that
        has a parameter named `policy` gets the policy there.
      policy: the policy that is trained.

    Raises:
      ValueError: neither of these.
    """
    if hasattr(objective, "loss_given_counts"):
        return objective
    if not callable(objective):
        raise ValueError(
            f"an objective is a function (params, batch) -> (loss, metrics) or an Algorithm, "
            f"got {objective!r}"
        )
    if "policy" in inspect.signature(objective).parameters:
        return FunctionObjective(lambda params, batch: objective(params, batch, policy=policy))
    return FunctionObjective(objective)
