"""Operations of forward passes by the arithmetic of their shapes: of rows, and of generation."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from ..policy import ModelConfig
from .dry_run_shapes import product_parameters

_DELTA_CHUNK = 64  # tokens of a linear layer that are multiplied with each other
# Parts of a layer in decoding form that its keys, values or state are made of.
_KEPT_BY = r"(qkv|k|v)_proj|in_proj_(qkv|a|b)|conv"


class Products(NamedTuple):
    """Operations of one forward pass: of matrices, of attention and delta rules, of the head."""

    matrices: float
    mixing: float
    head: float


def forward_products(
    config: ModelConfig,
    params: Any,
    tokens: int,
    length: int,
    actions: int,
    *,
    reach: int | None = None,
    kinds: Sequence[str] | None = None,
) -> Products:
    """Operations, 2 for each multiply and add, of a forward pass over `tokens` in rows of `length`
    with logits at `actions` of them.

    Args:
      params: in training or decoding form; only those that are multiplied with.
      reach: positions that each token attends to; `length` when None.
      kinds: of the layers that mix tokens; all of the model when None.
    """
    mixing = 0.0
    reach = length if reach is None else reach
    for kind in config.layer_kinds if kinds is None else kinds:
        if kind == "linear":
            mixing += 2.0 * tokens * delta_products(config, length)
        else:
            mixing += 4.0 * tokens * reach * config.num_heads * config.head_size(kind)
    head = 2.0 * actions * config.vocab_size * config.hidden_size
    return Products(2.0 * tokens * product_parameters(params), mixing, head)


def delta_products(config: ModelConfig, length: int) -> float:
    """Multiplications of matrix products that a linear layer makes for a token of a row of
    `length`: those of `delta_rule.gated_delta_step`, or the chunks of `gated_delta_rule`."""
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    if length == 1:
        return 2.0 * config.linear_value_heads * keys * values
    chunk = min(_DELTA_CHUNK, length)
    of_chunk = chunk * (keys + 2 * values) + _inverse_products(chunk) / chunk
    with_keys = 2 * chunk * keys * config.linear_key_heads
    return config.linear_value_heads * (3 * keys * values + of_chunk) + with_keys


def _inverse_products(size: int) -> int:
    """Multiplications of `delta_rule.unit_lower_inverse`."""
    if size <= 16 or size % 2:
        return 2 * size**3 * max(math.ceil(math.log2(size)) - 1, 0)
    return 2 * _inverse_products(size // 2) + 2 * (size // 2) ** 3


def layer_widths(params: Any) -> list[list[int]]:
    """For each layer, the numbers a token has going into and out of each of its matrices."""
    widths = []
    for kind in params["layers"].values():
        found = jax.tree_util.tree_leaves_with_path(kind)
        kernels = [leaf for path, leaf in found if re.search("kernel", str(path[-1]))]
        widths += [[sum(leaf.shape[1:]) for leaf in kernels]] * kernels[0].shape[0]
    return widths


class Call(NamedTuple):
    """Tokens that generation appends to the slots in one go.

    Attributes:
      rows, width: of the tokens.
      params, kinds: what they are multiplied with, and the layers that mix them.
      by_slot: whether the rows are all slots in order, which get logits; else any slots.
    """

    rows: int
    width: int
    params: Any
    kinds: Sequence[str]
    by_slot: bool


def read_by_prefill(config: ModelConfig, fused: Any) -> tuple[Any, tuple[str, ...]]:
    """What a prefill call comes to of parameters in decoding form, and the layers that mix tokens.

    It is there for what layers keep: no further than the inputs of the last one's mixing, and of a
    delta rule the mixing itself, which its state comes from.
    """
    kinds = config.layer_kinds
    last = max(index for index, kind in enumerate(kinds) if not kind.endswith("_shared"))
    part = fused["layers"][last]
    inputs = {name: part[name] for name in part if re.fullmatch(_KEPT_BY, name)}
    read = {**fused, "layers": (*fused["layers"][:last], inputs)}
    return read, kinds[:last] + ("linear",) * (kinds[last] == "linear")
