"""What a stage of a run hands to the loop, and the supervised stage.

A stage turns a step number and the parameters into a forest to train on.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms import Algorithm
from ..credit import Credit, assign_credit
from ..forest import Batch, Forest, ForestBuilder, fill
from ..objective import Objective, make_objective
from ..policy import Policy
from .batches import packing_of
from .settings import Settings
from .supervised_data import Example, supervised_data


class StepData(NamedTuple):
    """What a stage hands to the loop.

    Attributes:
      forest: the segments of this step, with their rewards.
      metrics: averages of this step's data.
      samples: a few records for `samples.jsonl`.
      waited: seconds in which nothing could decode until a sandbox answered.
      timings: further seconds for `timings.jsonl`, of what goes on beside all else.
      tree: what `trees.jsonl` keeps of the step, from the credit it trains on and the row that
        assigned it; None where nothing branches.
    """

    forest: Forest
    metrics: dict[str, Any]
    samples: list[dict]
    waited: float = 0.0
    timings: Mapping[str, float] = MappingProxyType({})
    tree: Callable[[Credit, Algorithm], dict[str, Any]] | None = None


class SftStage:
    """Supervised fine-tuning: negative log-likelihood of the replies, reasoning included.

    The order of the data is a permutation for each pass, derived from the seed and the pass, so
    the data position is a function of the step alone. Decisions repeat in a small game: there the
    held-out loss measures the fit, not generalisation.
    """

    name = "sft"

    def __init__(self, settings: Settings, policy: Policy, domain: Any):
        self.settings, self.policy = settings, policy
        self.training, self.validation = supervised_data(settings, policy, domain)
        self._batch = None
        self._objective = make_objective("sft", policy, temperature=settings.rollout.temperature)

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Loss of the held-out decisions: mean negative log-likelihood of a token, in nats."""
        if self._batch is None:
            self._batch = self._held_out_batch()
        return {"validation_loss": float(_evaluate(self._objective, params, self._batch))}

    def _held_out_batch(self) -> Batch:
        """Held-out examples [parts, rows, ...]; a part has no more rows than one of an update."""
        forest = supervised_forest(self.validation)
        credit = assign_credit(self._objective.algorithm, forest)
        layout = partial(
            packing_of(self._objective.policy),
            forest,
            row_length=self.settings.rollout.row_length,
        )
        most = max(self.settings.sft.batch_size // self.settings.optimizer.micro_batches, 1)
        parts = -(-layout().tokens.shape[0] // most)
        return fill(layout(parts=parts), **credit.arrays())

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """The examples of one step."""
        size = self.settings.sft.batch_size
        chosen = []
        for position in range(step * size, (step + 1) * size):
            epoch, index = divmod(position, len(self.training))
            if not chosen or index == 0:
                order = np.random.default_rng([self.settings.seed, epoch]).permutation(
                    len(self.training)
                )
            chosen.append(self.training[order[index]])
        return StepData(supervised_forest(chosen), {}, [])


@partial(jax.jit, static_argnums=0)
def _evaluate(objective: Objective, params: chex.ArrayTree, batch: Batch) -> chex.Array:
    """Loss of a batch [parts, rows, ...], one part after another."""
    counts = jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(objective.counts)(batch))
    shares = jax.lax.map(
        lambda part: objective.loss_given_counts(params, part, counts)[0],
        jax.tree.map(jnp.asarray, batch),
    )
    return shares.sum()


def supervised_forest(examples: Sequence[Example]) -> Forest:
    """A forest of examples, rewards 1: each is a path of what is given and replies in turn, and
    those with the same prompt share its root."""
    builder = ForestBuilder()
    roots: dict[tuple, int] = {}
    for (prompt, reply), *later in examples:
        if prompt not in roots:
            roots[prompt] = builder.add(prompt, group=len(roots))
        last = builder.add(reply, parent=roots[prompt], is_action=True, reward=1.0)
        for given, answer in later:
            last = builder.add(given, parent=last)
            last = builder.add(answer, parent=last, is_action=True, reward=1.0)
    return builder.build()
