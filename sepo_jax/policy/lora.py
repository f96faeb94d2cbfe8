"""Low-rank adapters: y = x W + scale (x A) B, with W frozen and only A and B trained.

An adapter is a pytree of its own, nested as the parameters are, with the leaves `lora_a` [..., in,
rank] and `lora_b` [..., rank, out] where the parameters have a `kernel` [..., in, out]. `attach`
puts the two together for a forward pass; the parameters alone are the reference policy:

    loss = lambda adapter: objective(attach(params, adapter))    # gradient of the adapter alone

Agents may have an adapter each (`LoraConfig.agents`): R of them lie side by side along the rank, as
`lora_a` [..., in, R rank] and `lora_b` [..., R rank, out]. `choose` says which of them a token
takes, `apart` takes them apart, `concatenate` puts them together.

scale = alpha / rank, or alpha / sqrt(rank) when rank-stabilised. No dropout is applied.
Sources: Hu et al. 2021, "LoRA", section 4.1; Kalajdzievski 2023 for the rank-stabilised scale.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from sepo_jax.names import unknown
from sepo_jax.policy.config import LoraConfig, ModelConfig
from sepo_jax.policy.trees import join, part_at, put_at

PROJECTIONS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    "per_layer_gate",
    "per_layer_projection",
)
ALL = ("all", "all-linear")
LEAVES = ("lora_a", "lora_b")
CHOICE = "lora_choice"


def scale_of(config: ModelConfig) -> float:
    """The factor of (x A) B: alpha / rank, or alpha / sqrt(rank) when rank-stabilised."""
    return _required(config).scale


def init_adapter(config: ModelConfig, params, key) -> dict:
    """A fresh adapter for every layer that `config.lora.targets` names; it changes nothing yet.

    A is uniform in +-1 / sqrt(in) (as the peft library draws it), B is zero, both float32.

    Args:
      params: the parameters, or their shapes (`jax.ShapeDtypeStruct`).
      key: PRNG key of the draws.

    Raises:
      ValueError: no `config.lora`, an unknown target, or a target that no layer has.
    """
    rank = _required(config).rank * _required(config).adapters
    paths = adapted_paths(config, params)
    adapter: dict = {}
    for path, own in zip(paths, jax.random.split(key, len(paths)), strict=True):
        *stack, inputs, outputs = part_at(params, path)["kernel"].shape
        bound = 1 / math.sqrt(inputs)
        down = jax.random.uniform(own, (*stack, inputs, rank), jnp.float32, -bound, bound)
        up = jnp.zeros((*stack, rank, outputs), jnp.float32)
        put_at(adapter, path, dict(zip(LEAVES, (down, up), strict=True)))
    return adapter


def adapted_paths(config: ModelConfig, params) -> list[tuple[str, ...]]:
    """Where the targets of `config.lora` lie in the parameters; errors as in `init_adapter`."""
    found = list(_kernel_paths(params["layers"], ("layers",)))
    present = {path[-1] for path in found}
    wanted = set()
    for target in _required(config).targets:
        if target in ALL:
            wanted |= present
        elif target not in PROJECTIONS:
            raise unknown("LoRA target", target, (*PROJECTIONS, *ALL))
        elif target not in present:
            raise ValueError(
                f"LoRA target {target!r} matches no layer of this model; its layers have "
                f"{', '.join(sorted(present))}"
            )
        else:
            wanted.add(target)
    return [path for path in found if path[-1] in wanted]


def attach(params, adapter) -> dict:
    """Parameters and adapter as one tree; neither is changed, arrays are shared.

    Works on anything nested in dicts: arrays, tracers, shapes, shardings.

    Raises:
      ValueError: the parameters have an adapter there already, or a part of the adapter finds no
        kernel that it fits.
    """
    _check_attachable(params, adapter, ())
    return join(params, adapter)


def detach(params) -> tuple[dict, dict]:
    """(parameters without adapter leaves, the adapter); the inverse of `attach`."""
    plain, adapter = {}, {}
    for name, part in params.items():
        if name in LEAVES:
            adapter[name] = part
        elif isinstance(part, Mapping):
            plain[name], inside = detach(part)
            if inside:
                adapter[name] = inside
        else:
            plain[name] = part
    return plain, adapter


def choose(config: ModelConfig, params, agent, segment) -> dict:
    """Attached parameters that say which of several adapters each token takes: its agent's.

    Tokens of agents without an adapter take none, padding takes that of the row's first segment.

    Args:
      params: parameters with the adapters of `config.lora.agents`; without adapters they come back
        as they are.
      agent: int32 [B, S], of each segment. segment: int32 [B, T], of each token.
    """
    agents = jnp.asarray(_required(config).agents, jnp.int32)
    same = agent[..., None] == agents[None, None]
    own = jnp.where(same.any(-1), jnp.argmax(same, axis=-1), -1)
    choice = jnp.take_along_axis(own, jnp.maximum(segment, 0), axis=1)

    def with_choice(part):
        inside = {name: with_choice(x) if isinstance(x, Mapping) else x for name, x in part.items()}
        if LEAVES[0] in part:
            # A leaf a layer, as the scan over layers wants it.
            inside[CHOICE] = jnp.broadcast_to(choice, (len(part[LEAVES[0]]), *choice.shape))
        return inside

    return {**params, "layers": with_choice(params["layers"])}


def apart(config: ModelConfig, params) -> tuple[ModelConfig, list[dict]]:
    """Each of several adapters on its own; `concatenate` is the inverse.

    Args:
      params: parameters with the adapters of `config.lora.agents` attached, or the adapters alone.

    Returns:
      The config of one adapter, and for each agent `params` with its adapter alone. All other
      arrays are shared.
    """
    lora = _required(config)
    one = dataclasses.replace(config, lora=dataclasses.replace(lora, agents=()))
    if lora.adapters == 1:
        return one, [params]

    def cut(part, ranks: slice):
        ends = {"lora_a": (..., ranks), "lora_b": (..., ranks, slice(None))}
        return {
            name: cut(x, ranks) if isinstance(x, Mapping) else x[ends[name]] if name in ends else x
            for name, x in part.items()
        }

    starts = range(0, lora.rank * lora.adapters, lora.rank)
    return one, [cut(params, slice(start, start + lora.rank)) for start in starts]


def has_adapter(params) -> bool:
    """Whether any kernel of the tree has adapter leaves beside it."""
    return any(
        name in LEAVES or (isinstance(part, Mapping) and has_adapter(part))
        for name, part in params.items()
    )


def merge(config: ModelConfig, params) -> dict:
    """Parameters of the same function without adapter leaves: W + scale A B.

    Sums in float32 and rounds once to W's dtype, one layer of one kernel at a time. Parameters
    without an adapter come back as they are.

    Raises:
      ValueError: adapter leaves without `config.lora`, or of another rank than it says.
    """
    if not has_adapter(params):
        return params
    return _merge(params, _required(config).rank, scale_of(config), ())


def concatenate(config: ModelConfig, adapters) -> tuple[LoraConfig, dict]:
    """One adapter that does what several of `config.lora`, one merged after the other, do.

    s A1 B1 + s A2 B2 = s [A1 A2] [B1; B2]: ranks add up, and alpha grows so that the scale stays.
    Read with `config.lora` and its `agents` instead, the joint adapter is one adapter an agent.

    Returns:
      The settings of the joint adapter, and the adapter.

    Raises:
      ValueError: no adapter, or adapters of different targets.
    """
    adapters = list(adapters)
    if not adapters:
        raise ValueError("concatenate needs at least one adapter, got none")
    if len({jax.tree.structure(adapter) for adapter in adapters}) > 1:
        raise ValueError("adapters of different targets cannot be concatenated")
    lora = _required(config)
    rank = lora.rank * len(adapters)
    alpha = lora.scale * (rank**0.5 if lora.rank_stabilised else rank)

    def along_rank(path, *leaves):
        return jnp.concatenate(leaves, axis=-1 if path[-1].key == "lora_a" else -2)

    joint = jax.tree_util.tree_map_with_path(along_rank, *adapters)
    return dataclasses.replace(lora, rank=rank, alpha=alpha), joint


def _merge(params, rank: int, scale: float, path) -> dict:
    if "lora_a" in params:
        if params["lora_a"].shape[-1] != rank:
            raise ValueError(
                f"{_name(path)} has an adapter of rank {params['lora_a'].shape[-1]}, but "
                f"config.lora says {rank}; take adapters of several agents apart with `apart`"
            )
        kept = {name: part for name, part in params.items() if name not in LEAVES}
        return {**kept, "kernel": _merged(params["kernel"], *(params[x] for x in LEAVES), scale)}
    return {
        name: _merge(part, rank, scale, (*path, name)) if isinstance(part, Mapping) else part
        for name, part in params.items()
    }


@jax.jit  # leaves of one shape share a compiled function
def _merged(kernel, down, up, scale):
    def one(parts):
        kernel, down, up = parts
        wide = [array.astype(jnp.float32) for array in (down, up)]
        product = jnp.matmul(*wide, precision=jax.lax.Precision.HIGHEST)
        return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)

    parts = (kernel, down, up)
    # One layer at a time: the float32 copies never cover a whole stack.
    return one(parts) if kernel.ndim == 2 else jax.lax.map(one, parts)


def _check_attachable(params, adapter, path) -> None:
    if any(name in adapter for name in LEAVES):
        _check_fit(params, adapter, path)
    for name, part in adapter.items():
        if not isinstance(part, Mapping):
            continue
        below, there = params.get(name), (*path, name)
        if isinstance(below, tuple):
            raise ValueError(
                f"{_name(there)} is in decoding form: attach the adapter before `fuse`"
            )
        if not isinstance(below, Mapping):
            raise ValueError(
                f"the adapter has {_name(there)}, which the parameters lack; they have "
                f"{', '.join(sorted(map(str, params)))} there"
            )
        _check_attachable(below, part, there)


def _check_fit(params, adapter, path) -> None:
    if set(adapter) != set(LEAVES):
        raise ValueError(f"an adapter has lora_a and lora_b; {_name(path)} has {sorted(adapter)}")
    if "kernel" not in params:
        raise ValueError(f"the adapter has {_name(path)}, which has no kernel in the parameters")
    taken = sorted(set(params) & set(LEAVES))
    if taken:
        raise ValueError(
            f"{_name(path)} has {', '.join(taken)} already: `detach` or `merge` the first adapter"
        )
    arrays = (params["kernel"], adapter["lora_a"], adapter["lora_b"])
    if not all(hasattr(array, "shape") for array in arrays):
        return  # a tree of shardings or labels
    kernel, down, up = (tuple(array.shape) for array in arrays)
    rank = down[-1]
    if down != (*kernel[:-1], rank) or up != (*kernel[:-2], rank, kernel[-1]):
        raise ValueError(
            f"the adapter of {_name(path)} has shapes {down} and {up}, which do not fit the kernel "
            f"{kernel}"
        )


def _required(config: ModelConfig):
    if config.lora is None:
        raise ValueError(
            "this ModelConfig has no adapter: set lora=LoraConfig(rank, alpha, targets)"
        )
    return config.lora


def _kernel_paths(tree, path):
    for name, part in sorted(tree.items()):
        if not isinstance(part, Mapping):
            continue
        if name in PROJECTIONS and "kernel" in part:
            yield (*path, name)
        else:
            yield from _kernel_paths(part, (*path, name))


def _name(path) -> str:
    return ".".join(path)
