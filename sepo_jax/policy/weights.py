"""Checkpoint tensors to parameters and back: names, shapes, safetensors files.

A family is a map from its tensor names to places in the parameter tree. Torch linear weights are
[out, in] and turn into kernels [in, out]; layers are stacked on axis 0.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.decoder import Decoder

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
VALUE_HEAD_FILE = "value_head.safetensors"
# Written by some exporters although they follow from the config.
REDUNDANT = ("rotary_emb.inv_freq",)


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint that is not read yet.

    Attributes:
      shape: as torch has it; linear weights are [out, in].
      dtype: "float32", "float16" or "bfloat16", the dtype that `read` gives (a quantised tensor
        is read as float32); any other name is refused by `read_parameters`, with the tensor named.
      file: where it lies; errors name it.
      read: gives the array; each call reads anew, so that nothing stays in memory.
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path
    read: Callable[[], np.ndarray]


class TensorSource(Protocol):
    """Tensors by the names of the Hugging Face format; a dict of StoredTensor is one."""

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> StoredTensor: ...


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a checkpoint tensor lives: path in the parameters, layer or None, transposed or not."""

    path: tuple[str, ...]
    layer: int | None = None
    transpose: bool = False


LLAMA_LAYER = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "o_proj",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
LLAMA_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}


def tensor_places(config: ModelConfig) -> dict[str, Place]:
    """Every tensor of a checkpoint of this config, by name."""
    places = {
        "model.embed_tokens.weight": Place(("embed", "embedding")),
        "model.norm.weight": Place(("norm", "scale")),
    }
    if not config.tie_embeddings:
        places["lm_head.weight"] = Place(("lm_head", "kernel"), transpose=True)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, own in LLAMA_NORMS.items():
            places[f"{prefix}{name}.weight"] = Place(("layers", own, "scale"), layer)
        for name, own in LLAMA_LAYER.items():
            places[f"{prefix}{name}.weight"] = Place(("layers", own, "kernel"), layer, True)
            if config.attention_bias and name.startswith("self_attn"):
                places[f"{prefix}{name}.bias"] = Place(("layers", own, "bias"), layer)
    return places


def parameter_shapes(config: ModelConfig) -> dict:
    """The parameter tree as shapes and dtypes, without computing anything."""
    tokens = jax.ShapeDtypeStruct((1, 2), np.int32)
    return jax.eval_shape(Decoder(config).init, jax.random.key(0), tokens)["params"]


def read_parameters(config: ModelConfig, directory: Path) -> dict:
    """Parameters of a checkpoint directory, read tensor by tensor.

    Raises:
      FileNotFoundError: no checkpoint, or a shard that the index names is absent.
      ValueError: a damaged file; tensors missing, unused or of the wrong shape, all named together.
    """
    files = _tensor_files(directory)
    places = tensor_places(config)
    shapes = parameter_shapes(config)
    # A tied model may still carry its output projection; it is the embedding.
    ignored = {"lm_head.weight"} if config.tie_embeddings else set()
    problems = [
        f"missing tensor {name} (looked in {_names(files) or directory})"
        for name in places
        if name not in files
    ]
    for name, file in files.items():
        if name in ignored or name.endswith(REDUNDANT):
            continue
        if name not in places:
            problems.append(f"unused tensor {name} in {file.name}")
            continue
        expected = _torch_shape(shapes, places[name])
        with _open(file) as opened:
            found = tuple(opened.get_slice(name).get_shape())
        if found != expected:
            problems.append(
                f"tensor {name} in {file.name} has shape {found}, the config asks for {expected}"
            )
    if problems:
        shown = "\n  ".join(problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise ValueError(f"{directory} does not fit its config.json:\n  {shown}{more}")

    dtype = DTYPES[config.param_dtype]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype), shapes)
    for file in dict.fromkeys(files.values()):
        with _open(file) as opened:
            for name in (name for name in opened.keys() if name in places):  # noqa: SIM118
                _put(params, places[name], opened.get_tensor(name))
    if config.value_head and (directory / VALUE_HEAD_FILE).is_file():
        with _open(directory / VALUE_HEAD_FILE) as opened:
            for name in ("kernel", "bias"):
                params["value_head"][name][...] = opened.get_tensor(name)
    return jax.tree.map(jax.numpy.asarray, params)


def checkpoint_tensors(config: ModelConfig, params) -> dict[str, np.ndarray]:
    """Checkpoint tensors by name, as `save_file` of safetensors takes them."""
    tensors = {}
    for name, place in tensor_places(config).items():
        array = np.asarray(_leaf(params, place.path))
        array = array if place.layer is None else array[place.layer]
        tensors[name] = np.ascontiguousarray(array.T if place.transpose else array)
    return tensors


def _tensor_files(directory: Path) -> dict[str, Path]:
    """File of every tensor in the checkpoint."""
    index = directory / INDEX_FILE
    if index.is_file():
        try:
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{index} is not a safetensors index: {error!r}") from error
        for name, file in names.items():
            if not (directory / file).is_file():
                raise FileNotFoundError(
                    f"{directory / file} is absent; {INDEX_FILE} says it holds {name}"
                )
        return {name: directory / file for name, file in names.items()}
    single = directory / SINGLE_FILE
    if not single.is_file():
        raise FileNotFoundError(
            f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}; weights of other formats "
            "are not read, convert them to safetensors"
        )
    with _open(single) as opened:
        return {name: single for name in opened.keys()}  # noqa: C420, SIM118


def _open(file: Path):
    try:
        return safe_open(str(file), framework="numpy")
    except SafetensorError as error:
        raise ValueError(
            f"{file} is damaged or no safetensors file ({error}): fetch or write it again"
        ) from error


def _names(files) -> str:
    return ", ".join(sorted({file.name for file in files.values()}))


def _leaf(tree, path):
    for name in path:
        tree = tree[name]
    return tree


def _torch_shape(shapes, place: Place) -> tuple[int, ...]:
    shape = _leaf(shapes, place.path).shape
    shape = shape if place.layer is None else shape[1:]
    return tuple(reversed(shape)) if place.transpose else tuple(shape)


def _put(params, place: Place, tensor: np.ndarray) -> None:
    leaf = _leaf(params, place.path)
    tensor = tensor.T if place.transpose else tensor
    leaf[... if place.layer is None else place.layer] = tensor
