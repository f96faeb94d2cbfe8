"""One update step: the same function on one device, under `pmap`, and on a mesh.

`update(state, frozen, batch, axis)` sums counts, loss and gradients over the parts of the batch and
over the devices of `axis`, so that neither changes the result: every term of the loss is divided by
its count over the whole batch before it is differentiated.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
import optax.contrib

from ..losses import Mean
from ..names import check_option
from ..policy.lora import LEAVES
from .settings import OptimizerSettings
from .trainable import join

OPTIMIZERS = ("adamw", "muon")


class TrainState(NamedTuple):
    """What training carries from step to step, and all that a checkpoint holds.

    Attributes:
      params: the trained parameters: all of the policy's, or an adapter (`trainable.split`).
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
    """AdamW or Muon behind a clip of the global gradient norm; linear warm-up, then linear decay.

    The rate reaches `learning_rate` after `warmup_steps` and `final_learning_rate` after `steps`.

    Muon (Jordan et al. 2024) moves each projection of the layers by the nearest orthogonal matrix
    to its momentum, times 0.2 sqrt(max(inputs, outputs)), which is about the root mean square of an
    AdamW update (arXiv 2502.16982), so that one rate fits both; all other parameters keep AdamW.

    Raises:
      ValueError: an unknown optimizer.
    """
    check_option("optimizer.name", settings.name, OPTIMIZERS)
    warmup = optax.linear_schedule(
        0.0 if warmup_steps else learning_rate, learning_rate, warmup_steps
    )
    decay = optax.linear_schedule(learning_rate, final_learning_rate, max(steps - warmup_steps, 1))
    schedule = optax.join_schedules([warmup, decay], [warmup_steps])
    step = optax.adamw(
        schedule,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    if settings.name == "muon":
        muon = optax.contrib.muon(
            schedule,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            muon_weight_dimension_numbers=functools.partial(
                jax.tree.map, lambda leaf: optax.contrib.MuonDimensionNumbers(1, 2)
            ),
            consistent_rms=0.2,
        )
        step = optax.partition({True: muon, False: step}, _are_projections)
    return optax.chain(optax.clip_by_global_norm(settings.max_gradient_norm), step)


def _are_projections(params: chex.ArrayTree) -> chex.ArrayTree:
    """Whether each leaf is a stack [layers, inputs, outputs] of projections or of their adapters;
    the kernels of convolutions look alike and are none."""

    def is_one(path: tuple, leaf: chex.Array) -> bool:
        names = [str(getattr(part, "key", part)) for part in path]
        stacked = "layers" in names and leaf.ndim == 3 and names[-1] in ("kernel", *LEAVES)
        return stacked and not any("conv" in name for name in names)

    return jax.tree_util.tree_map_with_path(is_one, params)


def init_state(params: chex.ArrayTree, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first update, over the parameters that are trained."""
    return TrainState(params, optimizer.init(params), jnp.int32(0), jnp.int32(0))


def make_update(
    objective: Any, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[TrainState, dict[str, Mean]]]:
    """`update(state, frozen, batch, axis=None) -> (state, metrics)`.

    Args:
      objective: what `objective.make_objective` returns, or `as_objective` of an own loss.
      optimizer: turns the whole gradient into an update.

    The loss is taken at `trainable.join(frozen, state.params)`, so that every objective sees whole
    parameters, and differentiated by `state.params` alone; `frozen` is {} where all are trained.
    The batch has a leading axis of parts; parts are summed one after another, so only one part's
    activations live at a time. An update whose loss or gradient is not finite leaves parameters,
    optimizer state and step as they are, bit for bit, and adds one to `skipped`.
    """

    def update(state: TrainState, frozen: Any, batch: Any, axis: str | None = None):
        counts = _sum_devices(_sum_parts(jax.vmap(objective.counts)(batch)), axis)

        @functools.partial(jax.value_and_grad, has_aux=True)
        def differentiate(trained, part):
            return objective.loss_given_counts(join(frozen, trained), part, counts)

        def add_part(total, part):
            found = differentiate(state.params, part)
            return jax.tree.map(jnp.add, total, found), None

        first = jax.tree.map(lambda leaf: leaf[0], batch)
        shapes = jax.eval_shape(differentiate, state.params, first)
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


# What the training loop writes into every line of the log besides the objective's own metrics.
RESERVED_METRICS = ("step", "stage", "loss", "gradient_norm", "skipped_updates")


class FunctionObjective:
    """An own `loss(params, batch) -> (loss, metrics)` made additive over parts and devices.

    Each part's loss weighs by its number of action tokens, which is exact for losses that are
    means over action tokens; scalar metrics are averaged likewise. A part without action tokens
    adds exactly 0 to loss, gradient and metrics.
    """

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, params: chex.ArrayTree, batch: Any) -> tuple[chex.Array, dict[str, Mean]]:
        return self.loss_given_counts(params, batch, self.counts(batch))

    def counts(self, batch: Any) -> dict[str, chex.Array]:
        """Number of action tokens, float32 []."""
        return {"tokens": (batch.action_mask & batch.primary).sum().astype(jnp.float32)}

    def loss_given_counts(self, params: chex.ArrayTree, batch: Any, counts: dict):
        """The part's share of the loss over the whole batch, and its metrics as sums.

        Raises:
          ValueError: the function returns another form than a scalar and a dict of metrics, each
            a scalar or a Mean of scalars, or a metric has a name of `RESERVED_METRICS`.
        """
        tokens = self.counts(batch)["tokens"]

        def evaluate(params, batch):
            loss, metrics = _checked(self.function(params, batch))
            sums = {
                name: value if isinstance(value, Mean) else Mean(value * tokens, tokens)
                for name, value in metrics.items()
            }
            loss = loss * (tokens / jnp.maximum(counts["tokens"], 1.0))
            return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), (loss, sums))

        def nothing(params, batch):
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        shapes = jax.eval_shape(evaluate, params, batch)
        # A mean over nothing is 0 / 0, and 0 times its gradient NaN. Under `vmap`, which a mesh
        # uses, both branches run, and `cond` holds the gradient back at the inputs.
        return jax.lax.cond(tokens > 0, evaluate, nothing, params, batch)


def _checked(result: Any) -> tuple[Any, dict]:
    """`(loss, metrics)` as an own loss must return them; ValueError otherwise."""
    form = "an own loss returns (loss, metrics), a scalar and a dict"
    # A Mean is a tuple of two as well.
    if isinstance(result, Mean) or not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(f"{form}; it returned {_described(result)}")
    loss, metrics = result
    if not _is_scalar(loss):
        hint = "; return its .value" if isinstance(loss, Mean) else ""
        raise ValueError(f"{form}; its loss is {_described(loss)}{hint}")
    if not isinstance(metrics, dict):
        raise ValueError(
            f"{form}; its metrics are {_described(metrics)}; return {{}} where there are none"
        )
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise ValueError(f"metrics are named by strings, got the name {name!r}")
        if name in RESERVED_METRICS:
            raise ValueError(
                f"metric {name!r}: the training loop writes {', '.join(RESERVED_METRICS)} itself; "
                f"choose another name"
            )
        if not all(map(_is_scalar, value if isinstance(value, Mean) else (value,))):
            raise ValueError(
                f"metric {name!r} is {_described(value)}; a metric is a scalar, or a "
                f"Mean(sum, count) of two scalars"
            )
    return loss, metrics


def _is_scalar(value: Any) -> bool:
    """A real number, or an array of one with no axes."""
    if isinstance(value, bool | int | float):
        return True
    if getattr(value, "shape", None) != ():
        return False
    return any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _described(value: Any) -> str:
    """A value in words, by shape where it is an array: while tracing it has no numbers."""
    if isinstance(value, Mean):
        return f"a Mean of {_described(value.sum)} and {_described(value.count)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{value!r}"


def as_objective(objective: Any, policy: Any, temperature: float = 1.0) -> Any:
    """Makes `objective` usable by `make_update`.

    Args:
      objective: an Objective, or a function `(params, batch) -> (loss, metrics)`; a function that
        has a parameter named `policy` or `temperature` gets these there.
      policy: the policy that is trained.
      temperature: that of the rollouts, at which behavior_logp was recorded.

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
    parameters = inspect.signature(objective).parameters
    known = {"policy": policy, "temperature": temperature}
    wanted = {name: value for name, value in known.items() if name in parameters}
    return FunctionObjective(functools.partial(objective, **wanted))
