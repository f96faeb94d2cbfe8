"""From a forest to the batch of an update: packing, scores of other policies, credit."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms import Algorithm
from ..credit import Credit, assign_credit
from ..forest import (
    Batch,
    Forest,
    batch_sizes,
    check_events_whole,
    fill,
    pack,
    pack_sharing_prefixes,
)
from ..losses import Mean
from ..policy import Policy, TokenScores
from ..policy.sharding import MESH_AXES, constrain, current_mesh, mesh_of, on_mesh, over_shares
from .settings import Settings
from .setup import check_critic

SIZE_NAMES = ("B", "T", "S", "A", "Q")


class BatchMaker:
    """Packs forests to repeating shapes and fills in what the objective needs.

    Attributes:
      sizes: int32 [5], largest batch sizes so far in the order of `SIZE_NAMES`; later batches are
        padded up to them, so that the update compiles for few shapes. They decide the order of
        sums, hence the last bits, so a checkpoint holds them.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        algorithm: Algorithm,
        num_devices: int,
    ):
        """A maker; ValueError for an algorithm with a critic that the policy lacks."""
        check_critic(algorithm, policy)
        self.settings, self.policy, self.algorithm = settings, policy, algorithm
        self.num_devices = num_devices
        self._warned: set[str] = set()
        self.sizes = np.zeros(len(SIZE_NAMES), np.int32)

    def make(
        self, forest: Forest, params: chex.ArrayTree, reference: chex.ArrayTree | None = None
    ) -> tuple[Batch, Credit]:
        """`[devices, parts, rows, ...]` with advantages, and the credit that these are from.

        Args:
          forest: segments with rewards.
          params: current parameters, for the critic's values.
          reference: parameters that KL terms refer to; only an algorithm with such reads them.

        Raises:
          ValueError: a forest that does not fit; see `pack` and `check_agents`.
        """
        check_agents(self.policy, forest)
        micro = self.settings.optimizer.micro_batches
        batch = packing_of(self.policy)(
            forest,
            row_length=self.settings.rollout.row_length,
            parts=self.num_devices * micro,
            at_least=dict(zip(SIZE_NAMES, self.sizes.tolist(), strict=True)),
        )
        check_events_whole(forest, batch)
        sizes = batch_sizes(batch)
        self.sizes = np.array([sizes[name] for name in SIZE_NAMES], np.int32)
        known: dict[str, np.ndarray] = {}
        if self.algorithm.kl_weight:
            scores = self._score(reference, batch)
            known["reference_logp"] = to_tokens(batch, scores.logp, forest)
        if self.algorithm.baseline == "critic":
            scores = self._score(params, batch)
            known["value"] = to_tokens(batch, scores.value, forest)
        with self._each_warning_once():
            credit = assign_credit(
                self.algorithm,
                forest,
                values=known.get("value"),
                reference_logp=known.get("reference_logp"),
            )
        batch = fill(batch, **known, **credit.arrays())
        shape = (self.num_devices, micro)
        batch = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)
        return batch, credit

    @contextlib.contextmanager
    def _each_warning_once(self) -> Iterator[None]:
        """Passes a warning on once a stage, whatever numbers it names; metrics count the rest."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            kind = re.sub(r"\d+", "#", str(warning.message))
            # A prompt that came up once in a step has nothing to be compared with: expected.
            expected = "single episode" in kind and self.settings.sepo.group_by == "prompt"
            if kind not in self._warned and not expected:
                self._warned.add(kind)
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )

    def _score(self, params: chex.ArrayTree, batch: Batch) -> TokenScores:
        temperature = self.settings.rollout.temperature
        with on_mesh(mesh_of(params)):
            return jax.device_get(score_parts(self.policy, params, batch, temperature))


def packing_of(policy: Policy) -> Callable[..., Batch]:
    """`pack` as a policy wants its rows: one path in each where a state runs along them, else as
    many as fit, with the common beginnings of prompts once where one adapter reads them all."""
    if policy.is_recurrent:
        return partial(pack, one_path_per_row=True)
    return pack if policy.num_adapters > 1 else pack_sharing_prefixes


def check_agents(policy: Policy, forest: Forest) -> None:
    """Raises ValueError for a forest with agents that have no adapter where others have one."""
    if policy.num_adapters > 1:
        missing = sorted(set(forest.agent.tolist()) - set(policy.config.lora.agents))
        if missing:
            raise ValueError(
                f"the forest has segments of agents {missing}, and the policy adapters of "
                f"{list(policy.config.lora.agents)} alone: give every agent one "
                "(LoraConfig.agents), or let all share one"
            )


@partial(jax.jit, static_argnames="policy")
def score_parts(policy: Policy, params: chex.ArrayTree, batch: Batch, temperature) -> TokenScores:
    """`policy.log_probs` of a batch `[parts, rows, ...]`, one part after another; on a mesh one of
    each device at a time, which must divide the parts."""

    def score(params: chex.ArrayTree, part: Batch) -> TokenScores:
        return policy.log_probs(
            params,
            part.tokens,
            part.positions,
            part.segment,
            part.ancestors,
            part.source,
            part.target,
            temperature=temperature,
            agent=part.agent,
        )

    batch, mesh = jax.tree.map(jnp.asarray, batch), current_mesh()
    if mesh is None:
        return jax.lax.map(partial(score, params), batch)

    def shared(leaf):
        return constrain(leaf.reshape(-1, mesh.size, *leaf.shape[1:]), None, MESH_AXES)

    scores = over_shares(score, (None, 0), mesh)
    found = jax.lax.map(partial(scores, params), jax.tree.map(shared, batch))
    return jax.tree.map(lambda leaf: constrain(leaf.reshape(-1, *leaf.shape[2:])), found)


def to_tokens(batch: Batch, values: np.ndarray, forest: Forest) -> np.ndarray:
    """Brings scores of packed action tokens [..., A] back to the forest's tokens, float32 [T]."""
    tokens = np.zeros(forest.num_tokens, np.float32)
    index, real = np.asarray(batch.token_index), np.asarray(batch.primary)
    tokens[index[real]] = np.asarray(values)[real]
    return tokens


def read_value(value: Any) -> float:
    """A metric as a float, whether it came as a Mean or a number."""
    return float(value.value) if isinstance(value, Mean) else float(value)
