"""The parameters as decoding wants them: what `cache.append` makes of the training form."""

import jax
import jax.numpy as jnp

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.lora import PROJECTIONS, detach, merge
from sepo_jax.policy.sharding import constrain_params
from sepo_jax.policy.trees import join

SIDE_BY_SIDE = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_TABLES = ("embed", "lm_head", "per_layer_embed")


def fuse(config: ModelConfig, params) -> dict:
    """The parameters in decoding form: layers apart, kernels transposed, those of q/k/v and of
    gate/up below each other.

    Optional (`append` fuses on the fly when it gets the training form); do it once outside a decode
    loop, after each update. Adapters are merged into their kernels, and kernels and embeddings cast
    to the compute dtype. Fusing twice changes nothing.
    """
    if isinstance(params["layers"], tuple):
        return params
    dtype = DTYPES[config.compute_dtype]
    params = merge(config, params)

    def apart(layer):
        kind, row = config.place(layer)
        parts = jax.tree.map(lambda array: array[row], params["layers"][kind])
        cast = {name: _as_computed(name, part, dtype) for name, part in parts.items()}
        for joined, names in SIDE_BY_SIDE.items():
            if all(name in cast for name in names):
                pieces = [cast.pop(name) for name in names]
                cast[joined] = {
                    leaf: jnp.concatenate([piece[leaf] for piece in pieces]) for leaf in pieces[0]
                }
        return cast

    ends = {name: _narrowed(params[name], dtype) for name in _TABLES if name in params}
    layers = tuple(apart(layer) for layer in range(config.num_layers))
    return constrain_params({**params, **ends, "layers": layers})


def fuse_adapter(config: ModelConfig, params) -> tuple[dict, ...]:
    """The adapter of attached parameters in decoding form, a dict a layer.

    `beside` puts it to the fused parameters without adapter, which many adapters can thus share.
    Of projections that lie side by side, x [A1 A2] = [x A1, x A2] meets the block diagonal of B1
    and B2.
    """

    def apart(layer):
        kind, row = config.place(layer)
        parts = params["layers"][kind]
        found = jax.tree.map(lambda array: array[row], detach(parts)[1])
        for joined, names in SIDE_BY_SIDE.items():
            if all(name in parts for name in names) and any(name in found for name in names):
                widths = [parts[name]["kernel"].shape[-1] for name in names]
                pieces = [found.pop(name, None) for name in names]
                found[joined] = _block_diagonal(pieces, widths)
        return found

    layers = tuple(apart(layer) for layer in range(config.num_layers))
    return constrain_params({"layers": layers})["layers"]


def _block_diagonal(pieces: list[dict | None], widths: list[int]) -> dict:
    """One adapter of projections of these widths side by side; None for one without."""
    downs, ups = [], []
    for index, piece in enumerate(pieces):
        if piece is not None:
            around = (sum(widths[:index]), sum(widths[index + 1 :]))
            downs.append(piece["lora_a"])
            ups.append(jnp.pad(piece["lora_b"], ((0, 0), around)))
    return {"lora_a": jnp.concatenate(downs, axis=1), "lora_b": jnp.concatenate(ups)}


def beside(fused, adapter: tuple[dict, ...]) -> dict:
    """Parameters in decoding form with an adapter of `fuse_adapter`; arrays are shared."""
    return {**fused, "layers": tuple(map(join, fused["layers"], adapter))}


def _narrowed(part: dict, dtype) -> dict:
    """Arrays wider than `dtype` in it; narrower ones stay, a few rows of them are looked up."""
    return {
        name: x.astype(dtype) if x.dtype.itemsize > jnp.dtype(dtype).itemsize else x
        for name, x in part.items()
    }


def _as_computed(name: str, part: dict, dtype) -> dict:
    """Kernels (those of projections transposed) and biases in `dtype`; the rest as it is."""
    cast = {leaf: x.astype(dtype) if leaf in ("kernel", "bias") else x for leaf, x in part.items()}
    if name in PROJECTIONS:
        cast["transposed"] = cast.pop("kernel").T
    return cast
