"""What a stage of a run hands to the loop, and the supervised stage.

A stage turns a step number and the parameters into a forest to train on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from ..credit import assign_credit
from ..forest import Batch, Forest, ForestBuilder, fill
from ..objective import Objective, make_objective
from ..policy import Policy, render
from .batches import packing_of
from .settings import Settings


class StepData(NamedTuple):
    """What a stage hands to the loop.

    Attributes:
      forest: the segments of this step, with their rewards.
      metrics: averages of this step's data.
      samples: a few records for `samples.jsonl`.
      waited: seconds in which nothing could decode until a sandbox answered.
    """

    forest: Forest
    metrics: dict[str, Any]
    samples: list[dict]
    waited: float = 0.0


class SftStage:
    """Supervised fine-tuning on expert traces: negative log-likelihood of the replies.

    The order of the data is a permutation for each pass, derived from the seed and the pass, so
    the data position is a function of the step alone. One decision in five is held out. Decisions
    repeat in a small game: there the held-out loss measures the fit, not generalisation.
    """

    name = "sft"

    def __init__(self, settings: Settings, policy: Policy, domain: Any):
        self.settings = settings
        traces = domain.expert_traces(settings.sft.num_decisions, settings.sft.data_seed)
        examples = [encode_example(policy, messages, reply) for messages, reply in traces]
        held_out = max(len(examples) // 5, 1)
        order = np.random.default_rng(settings.sft.data_seed).permutation(len(examples))
        self.validation = [examples[index] for index in order[:held_out]]
        self.training = [examples[index] for index in order[held_out:]]
        self._batch = None
        self._objective = make_objective("sft", policy, temperature=settings.rollout.temperature)
        if not self.training:
            raise ValueError(
                f"sft.num_decisions={settings.sft.num_decisions} leaves no training data; "
                "give at least 2"
            )

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Loss of the held-out decisions: mean negative log-likelihood of a token, in nats."""
        if self._batch is None:
            forest = supervised_forest(self.validation)
            credit = assign_credit(self._objective.algorithm, forest)
            rows = packing_of(self._objective.policy)(
                forest, row_length=self.settings.rollout.row_length
            )
            self._batch = fill(rows, **credit.arrays())
        loss, _ = _evaluate(self._objective, params, self._batch)
        return {"validation_loss": float(loss)}

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """The decisions of one step."""
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
def _evaluate(objective: Objective, params: chex.ArrayTree, batch: Batch):
    return objective(params, batch)


def encode_example(policy: Policy, messages, reply: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of a prompt and of its reply with the end token."""
    prompt = tuple(render(policy.tokenizer, messages))
    answer = policy.tokenizer.encode(reply, add_special_tokens=False)
    return prompt, (*answer, policy.end_ids[0])


def supervised_forest(examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Forest:
    """A forest of (prompt, reply) pairs, rewards 1; pairs with the same prompt share its root."""
    builder = ForestBuilder()
    roots: dict[tuple, int] = {}
    for prompt, reply in examples:
        if prompt not in roots:
            roots[prompt] = builder.add(prompt, group=len(roots))
        builder.add(reply, parent=roots[prompt], is_action=True, reward=1.0)
    return builder.build()
