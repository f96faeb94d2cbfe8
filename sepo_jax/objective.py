"""From a row of the table to `(params, batch) -> (loss, metrics)`.

Reads the right half of the table (`algorithms`): the unit of the ratio, the clip, the reduction.
Every term of the loss is a sum and a count. With the counts of a whole batch known beforehand
(`Objective.counts`, no model needed), `Objective.loss_given_counts` adds up over micro-batches and
devices exactly, whatever the reduction.

Shapes: B rows, A action tokens, S segments, Q leaf paths (`forest.Batch`).
"""

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from sepo_jax.algorithms import Algorithm, get_algorithm
from sepo_jax.forest import Batch
from sepo_jax.losses import (
    Mean,
    clip_fraction,
    guarded_ratio,
    kl_estimate,
    masked_log_ratio,
    masked_sum,
    sequence_log_ratio,
    set_log_ratio,
    truncated_importance_weight,
    value_loss,
)


class Weighing(NamedTuple):
    """How much everything in a batch counts; no model involved.

    Attributes:
      counted: action tokens that take part, repeated copies too, bool [B, A].
      token: weight of each token in the reduction, float32 [B, A]; 0 where not counted.
      total: what the sum over tokens is divided by.
      length: counted tokens of each leaf path, float32 [B, Q].
      path: weight of each leaf path, float32 [B, Q]; 0 for one without counted tokens.
      complete: events that have all their members, bool [B * S].
    """

    counted: chex.Array
    token: chex.Array
    total: chex.Array
    length: chex.Array
    path: chex.Array
    complete: chex.Array


class Units(NamedTuple):
    """What the surrogate is applied to: tokens, sequences or events, arrays of one shape.

    Attributes:
      log_ratio: float32; the log-probability where the ratio is "none".
      advantage: float32.
      weight: float32; 0 leaves a unit out.
      total: what the sum over units is divided by.
      once: units that metrics count: each once, where weights may count repeated copies, bool.
    """

    log_ratio: chex.Array
    advantage: chex.Array
    weight: chex.Array
    total: chex.Array
    once: chex.Array


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss over packed batches [B, ...]; call it with `(params, batch)`.

    Attributes:
      algorithm: the row; give `objective.algorithm` to `credit.prepare` as well, which reads the
        other half of it.
      policy: has `log_probs`, see `policy.Policy`.
      temperature: that of sampling, above 0.
    """

    algorithm: Algorithm
    policy: Any
    temperature: float = 1.0

    def __call__(self, params: Any, batch: Batch) -> tuple[chex.Array, dict[str, Mean]]:
        """The loss of a batch on its own, and its metrics."""
        return self.loss_given_counts(params, batch, self.counts(batch))

    @property
    def weights(self) -> dict[str, float]:
        """Terms of the loss and their factors: loss = sum of factor * mean."""
        row = self.algorithm
        factors = {"policy": 1.0, "value": row.value_weight, "entropy": -row.entropy_weight}
        if row.kl_place == "loss":
            factors["kl"] = row.kl_weight
        return {name: factor for name, factor in factors.items() if factor}

    def counts(self, batch: Batch) -> dict[str, chex.Array]:
        """What each term is divided by, float32 scalars; add them over parts and devices."""
        weighing = weigh(self.algorithm, batch)
        units = _units(self.algorithm, batch, weighing, jnp.zeros_like(weighing.token))
        return {name: units.total if name == "policy" else weighing.total for name in self.weights}

    def terms(self, params: Any, batch: Batch) -> tuple[dict[str, Mean], dict[str, Mean]]:
        """Each term of the loss as a Mean, without its factor; and metrics."""
        row = self.algorithm
        weighing = weigh(row, batch)
        scores = self.policy.log_probs(
            params,
            batch.tokens,
            batch.positions,
            batch.segment,
            batch.ancestors,
            batch.source,
            batch.target,
            temperature=self.temperature,
            agent=batch.agent,
        )
        counted = weighing.counted
        behavior = batch.behavior_logp if row.ratio != "none" else jnp.zeros_like(scores.logp)
        log_ratio = masked_log_ratio(scores.logp, behavior, counted)
        units = _units(row, batch, weighing, log_ratio)
        loss = row.surrogate(
            units.log_ratio, units.advantage, clip_low=row.clip_low, clip_high=row.clip_high
        )
        if row.importance_cap is not None:
            sampled = jnp.where(counted, batch.behavior_logp, 0.0)
            loss *= truncated_importance_weight(units.log_ratio, sampled, cap=row.importance_cap)

        def over_tokens(values: chex.Array) -> Mean:
            return Mean(masked_sum(values, counted, weighing.token), weighing.total)

        terms = {"policy": Mean(masked_sum(loss, units.weight > 0, units.weight), units.total)}
        if "kl" in self.weights:
            logp = jnp.where(counted, scores.logp, 0.0)
            reference = jnp.where(counted, batch.reference_logp, 0.0)
            terms["kl"] = over_tokens(kl_estimate(logp, reference, row.kl_kind))
        if "entropy" in self.weights:
            terms["entropy"] = over_tokens(scores.entropy)
        if "value" in self.weights:
            terms["value"] = over_tokens(self._value_loss(scores.value, batch, counted))
        metrics = {f"loss/{name}": term for name, term in terms.items()}
        metrics |= _metrics(row, batch, weighing, units, scores)
        return terms, jax.lax.stop_gradient(metrics)

    def loss_given_counts(
        self, params: Any, batch: Batch, counts: dict[str, chex.Array]
    ) -> tuple[chex.Array, dict[str, Mean]]:
        """This part's share of the loss whose terms are divided by `counts`.

        Shares (and their gradients) add up over parts to those of the whole batch when `counts` is
        the sum of `self.counts` over all parts. A term with count 0 adds exactly 0.
        """
        terms, metrics = self.terms(params, batch)
        loss = jnp.float32(0.0)
        for name, factor in self.weights.items():
            loss += factor * Mean(terms[name].sum, counts[name]).value
        return loss, metrics

    def _value_loss(self, value, batch: Batch, counted: chex.Array) -> chex.Array:
        if value is None:
            raise ValueError(
                f"algorithm {self.algorithm.name!r} trains a critic (value_weight="
                f"{self.algorithm.value_weight}), but the policy has no value head"
            )
        clean = [jnp.where(counted, x, 0.0) for x in (value, batch.value, batch.value_target)]
        return value_loss(*clean, self.algorithm.value_clip)


def make_objective(
    algorithm: str | Algorithm, policy: Any, *, temperature: float = 1.0, **overrides: Any
) -> Objective:
    """The objective of a row of the table.

    Args:
      algorithm: a name of `ALGORITHMS` or an `Algorithm` of one's own.
      policy: what to train.
      temperature: that of sampling; scores are taken under the same.
      **overrides: fields of `Algorithm` to replace. Those about credit act through
        `credit.prepare(objective.algorithm, ...)`.

    Returns:
      Objective: `objective(params, batch) -> (loss, metrics)`.

    Raises:
      ValueError: an unknown name or field (with the nearest one), contradicting choices, or a
        temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; expected a number above 0")
    return Objective(get_algorithm(algorithm, **overrides), policy, float(temperature))


def weigh(row: Algorithm, batch: Batch) -> Weighing:
    """Weights of tokens and paths under the row's reduction (`Algorithm.reduce`).

    A mean over paths counts a token once for each path through it, in the row where the path lives;
    the others count the primary copy of each token once.
    """
    if batch.tokens.ndim != 2:
        raise ValueError(
            f"an objective takes one part, tokens [rows, T]; got {batch.tokens.shape}: take the "
            f"parts one by one, or pack without parts"
        )
    segment_counts = batch.segment_weight > 0
    counted = batch.action_mask & _of_segment(segment_counts, batch)
    complete = jnp.zeros(batch.segment_weight.size, bool)
    if row.ratio == "event":
        complete = _complete_events(batch, segment_counts)
        member = batch.segment_mask & (batch.event >= 0) & _of_event(complete, batch)
        counted &= batch.primary & _of_segment(member, batch)
    length = _over_paths(_per_segment(counted.astype(jnp.float32), batch), batch)
    path = jnp.where(batch.path_mask & (length > 0), batch.path_weight, 0.0)
    once = jnp.where(counted & batch.primary, _of_segment(batch.segment_weight, batch), 0.0)
    if row.reduce == "token_mean":
        token, total = once, once.sum()
    elif row.reduce == "sequence_mean":
        share = path / jnp.maximum(length, 1.0)
        through = jnp.where(batch.path, share[:, None, :], 0.0).sum(-1)
        token, total = jnp.where(counted, _of_segment(through, batch), 0.0), path.sum()
    elif row.reduce == "event_mean":
        tokens = _per_event(_per_segment(counted.astype(jnp.float32), batch), batch)
        share = _of_event(1.0 / jnp.maximum(tokens, 1.0), batch)
        token = jnp.where(counted, _of_segment(share, batch), 0.0)
        total = complete.sum(dtype=jnp.float32)
    else:
        divisor = row.constant_length if row.reduce == "constant_length" else 1
        token, total = once, path.sum() * divisor
    return Weighing(counted, token, total, length, path, complete)


def _units(row: Algorithm, batch: Batch, weighing: Weighing, log_ratio: chex.Array) -> Units:
    """Combines token log-ratios [B, A] into those of the row's unit."""
    counted = weighing.counted
    advantage = jnp.where(counted, batch.advantage, 0.0)
    if row.ratio in ("none", "token"):
        once = counted & batch.primary
        return Units(log_ratio, advantage, weighing.token, weighing.total, once)
    sums = _per_segment(log_ratio, batch)
    if row.ratio == "sequence" and row.compares_trajectories:
        acts = _per_segment(counted.astype(jnp.float32), batch) > 0
        combined = sequence_log_ratio(sums, batch.path, acts, "sum")
        if row.ratio_scale == "mean":
            combined /= jnp.maximum(weighing.length, 1.0)
        # A path weighs what its tokens weigh; shared tokens count on each of their paths.
        weight = weighing.path
        if row.reduce != "sequence_mean":
            weight = weight * weighing.length
        total = weight.sum() if row.reduce == "token_mean" else weighing.total
        return Units(combined, batch.path_advantage, weight, total, weight > 0)
    tokens = _per_segment(counted.astype(jnp.float32), batch)
    present = batch.segment_mask & (tokens > 0)
    weight = _per_segment(weighing.token, batch)
    mean_advantage = _per_segment(advantage, batch) / jnp.maximum(tokens, 1.0)
    if row.ratio == "sequence":
        if row.ratio_scale == "mean":
            sums = sums / jnp.maximum(tokens, 1.0)
        return Units(sums, mean_advantage, weight, weighing.total, present)
    combined, complete = set_log_ratio(
        sums.reshape(-1),
        batch.event.reshape(-1),
        batch.event.size,
        batch.event_size.reshape(-1),
        present.reshape(-1),
        scale=row.ratio_scale,
        lengths=tokens.reshape(-1),
    )
    members = _per_event(present.astype(jnp.float32), batch)
    mean_advantage = _per_event(mean_advantage, batch) / jnp.maximum(members, 1.0)
    return Units(combined, mean_advantage, _per_event(weight, batch), weighing.total, complete)


def _complete_events(batch: Batch, segment_counts: chex.Array) -> chex.Array:
    present = batch.segment_mask & segment_counts
    return set_log_ratio(
        jnp.zeros(batch.event.size),
        batch.event.reshape(-1),
        batch.event.size,
        batch.event_size.reshape(-1),
        present.reshape(-1),
    ).complete


def _of_segment(values: chex.Array, batch: Batch) -> chex.Array:
    """Values of segments [B, S] at their action tokens [B, A]."""
    return jnp.take_along_axis(values, batch.action_segment, axis=-1)


def _per_segment(values: chex.Array, batch: Batch) -> chex.Array:
    """Sum of token values [B, A], 0 where not counted, over each segment [B, S]."""
    num_segments = batch.segment_weight.shape[-1]

    def of_row(values, segment):
        return jax.ops.segment_sum(values, segment, num_segments)

    # Padding points at segment 0, with value 0.
    return jax.vmap(of_row)(values, batch.action_segment)


def _over_paths(values: chex.Array, batch: Batch) -> chex.Array:
    """Sum of segment values [B, S] along each leaf path [B, Q]."""
    return jnp.where(batch.path, values[..., None], 0.0).sum(-2)


def _per_event(values: chex.Array, batch: Batch) -> chex.Array:
    """Sum of segment values [B, S] over each event [B * S]; events span the rows of a part."""
    event = batch.event.reshape(-1)
    slot = jnp.where(event >= 0, event, event.size)
    return jax.ops.segment_sum(values.reshape(-1), slot, event.size)


def _of_event(values: chex.Array, batch: Batch) -> chex.Array:
    """Values of events [B * S] at their member segments [B, S]; of event 0 where there is none."""
    return values[jnp.maximum(batch.event, 0)]


def _metrics(row: Algorithm, batch: Batch, weighing: Weighing, units: Units, scores) -> dict:
    """Averages that say how the update goes: over units, and over tokens each once."""
    once = weighing.counted & batch.primary
    number = once.sum(dtype=jnp.float32)

    def per_token(values: chex.Array) -> Mean:
        return Mean(masked_sum(values, once), number)

    metrics = {
        "entropy": per_token(scores.entropy),
        "advantage_abs": per_token(jnp.abs(batch.advantage)),
    }
    if row.returns != "one":
        gap = masked_log_ratio(scores.logp, batch.behavior_logp, once)
        metrics["log_ratio_abs"] = per_token(jnp.abs(gap))
        metrics["kl_behavior"] = per_token(guarded_ratio(gap) - 1.0 - gap)
    if row.kl_weight:
        gap = masked_log_ratio(scores.logp, batch.reference_logp, once)
        metrics["kl_reference"] = per_token(guarded_ratio(-gap) - 1.0 + gap)
    if row.ratio != "none":
        unit_count = units.once.sum(dtype=jnp.float32)
        stopped = clip_fraction(
            units.log_ratio, units.advantage, clip_low=row.clip_low, clip_high=row.clip_high
        )
        values = {
            "ratio": guarded_ratio(units.log_ratio),
            "unit_log_ratio_abs": jnp.abs(units.log_ratio),
            "clip_fraction": stopped,
        }
        for name, value in values.items():
            metrics[name] = Mean(masked_sum(value, units.once), unit_count)
    if row.ratio == "event":
        slots = jnp.arange(batch.event.size)
        exists = jnp.isin(slots, batch.event.reshape(-1))
        dropped = (exists & ~weighing.complete).sum(dtype=jnp.float32)
        metrics["dropped_events"] = Mean(dropped, exists.sum(dtype=jnp.float32))
        metrics |= _member_metrics(batch, weighing, scores)
    return metrics


def _member_metrics(batch: Batch, weighing: Weighing, scores) -> dict[str, Mean]:
    """Members of a complete event, and the log-ratios of their whole sequences."""
    counted = weighing.counted
    sums = _per_segment(masked_log_ratio(scores.logp, batch.behavior_logp, counted), batch)
    member = _per_segment(counted.astype(jnp.float32), batch) > 0
    number = member.sum(dtype=jnp.float32)
    return {
        "active_set": Mean(number, weighing.complete.sum(dtype=jnp.float32)),
        "member_log_ratio_abs": Mean(masked_sum(jnp.abs(sums), member), number),
    }
