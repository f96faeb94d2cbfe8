"""A run as shapes: what it holds, laid out over devices that need not be there."""

import contextlib
import dataclasses
import re
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import optax
from jax.sharding import Mesh, SingleDeviceSharding

from ..algorithms import Algorithm, get_algorithm
from ..policy import Policy
from ..policy.lora import apart
from ..policy.sharding import MESH_AXES, on_mesh, sharding_of, shardings
from ..rollout import engine
from ..rollout.weights import shared_form
from .chips import host_of
from .goals import configured_algorithm
from .parallel import Parallel
from .settings import PolicySettings, Settings
from .setup import make_domain, model_config, role_policy
from .trainable import begin_stage, reference_part, split
from .update import init_state, make_optimizer


class RunShapes(NamedTuple):
    """What a run holds, nothing of it materialised.

    Attributes:
      settings: the whole config.
      policy: its functions, with an adapter for each role where roles have their own.
      goal: the Algorithm or loss of the stage that the run ends with.
      optimizer: of that stage.
      params: whole parameters, adapters among them. frozen, trained: the same, split.
      state: of the training loop, from `init_state`.
      reference: leaves that the reference policy has beside the frozen ones; {} without KL terms.
    """

    settings: Settings
    policy: Policy
    goal: Any
    optimizer: optax.GradientTransformation
    params: chex.ArrayTree
    frozen: chex.ArrayTree
    trained: chex.ArrayTree
    state: Any
    reference: chex.ArrayTree

    @property
    def scores(self) -> bool:
        """Whether a step scores its batch beside the update: the reference policy, or a critic."""
        goal = self.goal
        return isinstance(goal, Algorithm) and bool(goal.kl_weight or goal.baseline == "critic")


def shape_policy(settings: PolicySettings) -> Policy:
    """The policy's functions without tokenizer and parameters; errors as `setup.model_config`.

    Of a directory only config.json is read.
    """
    return Policy(model_config(settings), end_ids=(0,))


def last_stage(settings: Settings) -> Any:
    """The section of the stage that a run ends with."""
    return next((part for part in (settings.rl, settings.sepo) if part.steps), settings.sft)


def run_shapes(settings: Settings, goal: Any = None) -> RunShapes:
    """The shapes of a config's last stage.

    Args:
      settings: the whole config.
      goal: an own Algorithm or loss in place of the config's algorithm.

    Raises:
      ValueError: unknown options.
    """
    policy = shape_policy(settings.policy)
    if settings.policy.adapters != "shared":
        policy = role_policy(settings, policy, make_domain(settings.domain))
    params = jax.eval_shape(
        lambda key: begin_stage(policy.config, policy.init(key), key), jax.random.key(0)
    )
    numbers = last_stage(settings)
    if goal is None:
        learns = numbers is not settings.sft
        goal = configured_algorithm(settings) if learns else get_algorithm("sft")
    optimizer = make_optimizer(
        settings.optimizer,
        numbers.learning_rate,
        numbers.warmup_steps,
        max(numbers.steps, 1),
        numbers.final_learning_rate,
    )
    frozen, trained = split(policy.config, params)
    state = jax.eval_shape(partial(init_state, optimizer=optimizer), trained)
    has_reference = isinstance(goal, Algorithm) and bool(goal.kl_weight)
    reference = reference_part(policy.config, trained) if has_reference else {}
    return RunShapes(settings, policy, goal, optimizer, params, frozen, trained, state, reference)


class Placed:
    """A run's shapes laid out as the training loop lays them out.

    Attributes:
      shapes, parallel: what, and over which devices.
      state, held: of the update; a pmap's state has the axis of devices first.
      kinds: bytes on a chip between steps, by `dry_run_report.KINDS`.
      reference_bytes: of the reference policy's own leaves on a chip.
      chips: that generation and scoring of a process run on: one, or those of its mesh.
      mesh: of these, or None.
      copied_bytes: of parameters on a chip, where generation and scoring have a copy.
    """

    def __init__(self, shapes: RunShapes, parallel: Parallel):
        self.shapes, self.parallel = shapes, parallel
        self.state, self.held = self._place_state(shapes.state), self.hold(shapes.frozen)
        self.reference_bytes = bytes_per_chip(self.hold(shapes.reference))
        lead = parallel.num_devices if parallel.kind == "pmap" else 1
        trained = bytes_per_chip(self.state.params) // lead
        self.kinds = {
            "parameters": trained + bytes_per_chip(self.held) + self.reference_bytes,
            "optimizer": bytes_per_chip(self.state) // lead - trained,
        }
        self.mesh = None
        if parallel.kind == "mesh":
            chips = np.array(host_of(parallel.own_devices, parallel.devices))
            self.mesh = Mesh(chips.reshape(parallel.own_mesh.devices.shape), MESH_AXES)
        self.chips = self.mesh.size if self.mesh is not None else 1
        self.copied_bytes = 0
        if parallel.kind == "pmap":
            self.copied_bytes = bytes_per_chip(shapes.trained)
        elif self.chips < parallel.num_devices:
            self.copied_bytes = bytes_per_chip(self.put(shapes.params))

    @property
    def is_split(self) -> bool:
        """Whether a chip holds less than all parameters."""
        parallel = self.parallel
        return parallel.kind == "mesh" and parallel.mesh.size > parallel.mesh.shape["data"]

    @property
    def state_bytes(self) -> int:
        """What a chip holds between steps."""
        return sum(self.kinds.values())

    @property
    def kinds_with_copy(self) -> dict[str, int]:
        """`kinds` of a chip while it generates or scores."""
        return self.kinds | {"parameters": self.kinds["parameters"] + self.copied_bytes}

    def decoder(self) -> tuple[Policy, Any, Any]:
        """(policy, parameters, function of these that gives their decoding form). Where roles have
        adapters of their own it is one role's policy."""
        policy, params = self.shapes.policy, self.shapes.params
        if policy.num_adapters == 1:
            return policy, params, policy.fuse
        config, _ = apart(policy.config, {})
        one = jax.eval_shape(lambda given: apart(policy.config, given)[1][0], params)
        policy = dataclasses.replace(policy, config=config)
        return policy, one, partial(shared_form, policy)

    def slots(self, policy: Policy, capacity: int) -> Any:
        """The state of the slots of one policy, laid out as a run makes it."""
        make = partial(engine.init_slots, policy, self.shapes.settings.rollout.slots, capacity)
        state = jax.eval_shape(make)
        if self.mesh is None:
            return self._on_first(state)

        def place(leaf, *axes):
            return with_sharding(leaf, sharding_of(leaf.shape, axes, self.mesh))

        return engine.lay_out(state, place)

    def set_mesh(self) -> contextlib.AbstractContextManager:
        """What generation and scoring are traced in; see `sharding.on_mesh`."""
        return on_mesh(self.mesh)

    def put(self, params: Any) -> Any:
        """Shapes laid out as `Parallel.put` does."""
        if self.mesh is not None:
            return jax.tree.map(with_sharding, params, shardings(params, self.mesh))
        return self._on_first(params)

    def _on_first(self, tree: Any) -> Any:
        sharding = SingleDeviceSharding(self.parallel.devices[0])
        return jax.tree.map(lambda leaf: with_sharding(leaf, sharding), tree)

    def hold(self, params: Any) -> Any:
        """Shapes laid out as `Parallel.hold` does; a pmap lays them out itself."""
        if self.parallel.kind == "pmap":
            return params
        if self.parallel.kind == "mesh":
            return jax.tree.map(with_sharding, params, shardings(params, self.parallel.mesh))
        return self._on_first(params)

    def _place_state(self, state: Any) -> Any:
        if self.parallel.kind == "pmap":
            lead = (self.parallel.num_devices,)
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), state
            )
        return self.hold(state)


def bytes_per_chip(tree: Any) -> int:
    """Bytes of arrays or shapes on each chip: their share where they have a sharding."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        if not hasattr(leaf, "dtype"):
            continue
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
        total += int(np.prod(shape)) * leaf.dtype.itemsize
    return total


def count(tree: chex.ArrayTree) -> int:
    """Numbers in all arrays together."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def with_sharding(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """The shape of a leaf, laid out."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def product_parameters(params: chex.ArrayTree) -> int:
    """Numbers in the matrices that every token is multiplied by: all but embeddings and heads, in
    training or decoding form."""
    return sum(leaf.size for leaf in product_matrices(params))


def product_matrices(params: chex.ArrayTree) -> list[Any]:
    """Those of `product_parameters`; in training form layers of a kind are stacked."""
    return [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if re.search(r"^(?!.*head\b).*(kernel|transposed|lora_[ab])", jax.tree_util.keystr(path))
    ]
