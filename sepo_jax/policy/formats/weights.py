"""Checkpoint tensors to parameters and back, for every family and file format.

A checkpoint is a `TensorSource`: tensors by name, not read yet. One checker compares it with the
parameters a config asks for, and one reader fills the parameter tree leaf by leaf.
"""

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sepo_jax.policy import decoder
from sepo_jax.policy.config import DTYPES, ModelConfig
from sepo_jax.policy.formats.families_tensors import Place, copy_strips, tensor_places, text_names
from sepo_jax.policy.trees import leaves_by_path, part_at, put_at

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
VALUE_HEAD_FILE = "value_head.safetensors"
SHARD_BYTES = 5_000_000_000
MAX_SHOWN = 50  # problems listed in one error
_CHECKED = 2**18  # numbers looked at together: they stay in the cache
_EXPONENT = {
    "float32": np.uint32(0x7F800000),
    "float16": np.uint16(0x7C00),
    "bfloat16": np.uint16(0x7F80),
}
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # safetensors' own names


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


def parameter_shapes(config: ModelConfig) -> dict:
    """The parameter tree as shapes and dtypes, without computing anything."""
    return jax.eval_shape(partial(decoder.init, config), jax.random.key(0))


def stored_dtype(source: TensorSource) -> str:
    """The `param_dtype` that keeps a checkpoint as it is: that of most of its numbers.

    float16 becomes float32, which holds all of its values.
    """
    sizes = dict.fromkeys(_STORED.values(), 0)
    for name in source:
        if source[name].dtype in sizes:
            sizes[source[name].dtype] += int(np.prod(source[name].shape))
    most = max(sizes, key=sizes.__getitem__)
    return most if most in DTYPES else "float32"


def read_parameters(
    config: ModelConfig, source: TensorSource, where, *, keep_dtypes: bool = False
) -> dict:
    """Parameters of a checkpoint.

    Stacked leaves are filled row by row, the largest leaf first, each turned into a device array
    before the next one begins: memory stays near one copy of the model.

    Args:
      source: tensors of text models, also below the prefixes of multimodal ones.
      where: directory or file that errors name.
      keep_dtypes: leaves stored in bfloat16 stay so and all others are float32; otherwise they
        have the dtypes of `parameter_shapes(config)`.

    Raises:
      ValueError: tensors missing, unused, given twice, of the wrong shape or of an unsupported
        dtype, all named together with their files; a tied output projection that differs; a tensor
        with a number that is infinite or none at all.
    """
    shapes = parameter_shapes(config)
    stored_names = check_tensors(config, source, shapes, where)
    _check_tied(config, source)
    parts: dict[tuple, list] = {}
    for name, place in tensor_places(config).items():
        parts.setdefault(place.path, []).append((stored_names[name], place))
    params: dict = {}
    leaves = leaves_by_path(shapes)
    for path, shape in sorted(leaves.items(), key=lambda item: -item[1].size):
        held = parts.get(path, ())
        dtype = shape.dtype
        if keep_dtypes and held:
            stored = {source[name].dtype for name, _ in held}
            dtype = DTYPES["bfloat16" if stored == {"bfloat16"} else "float32"]
        leaf = _scratch(shape.shape, dtype)
        for stored_name, place in held:
            tensor = source[stored_name].read()
            if not all_finite(tensor):
                raise ValueError(
                    f"tensor {stored_name} in {source[stored_name].file} holds infinite numbers or "
                    "NaN: fetch or write it again"
                )
            tensor = place.from_stored(tensor)
            copy_strips(leaf if place.row is None else leaf[place.row], tensor)
            del tensor
        array = jax.numpy.asarray(leaf).block_until_ready()
        del leaf
        put_at(params, path, array)
    return params


def all_finite(tensor: np.ndarray) -> bool:
    """Whether no number of a float32, float16 or bfloat16 tensor is infinite or NaN.

    Those have every bit of the exponent set; NumPy's own function is slow for bfloat16.
    """
    exponent = _EXPONENT[tensor.dtype.name]
    bits = np.ascontiguousarray(tensor).reshape(-1).view(exponent.dtype)
    parts = (bits[start : start + _CHECKED] for start in range(0, bits.size, _CHECKED))
    return not any(((part & exponent) == exponent).any() for part in parts)


def read_value_head(params: dict, file: Path) -> None:
    """Fills the value head of `params` from its own file.

    Raises:
      ValueError: a damaged file, or tensors of another shape.
    """
    tensors = safetensors_source([file])
    for name, leaf in params["value_head"].items():
        if name not in tensors or tensors[name].shape != leaf.shape:
            found = tensors[name].shape if name in tensors else "absent"
            raise ValueError(f"tensor {name} in {file}: expected shape {leaf.shape}, is {found}")
        if tensors[name].dtype not in _STORED.values():
            raise ValueError(f"tensor {name} in {file} is stored as {tensors[name].dtype}")
        tensor = tensors[name].read()
        if not all_finite(tensor):
            raise ValueError(f"tensor {name} in {file} holds infinite numbers or NaN")
        params["value_head"][name] = jax.numpy.asarray(tensor, leaf.dtype)


def check_tensors(config: ModelConfig, source: TensorSource, shapes, where) -> dict[str, str]:
    """Name in `source` of every tensor of `tensor_places(config)`; errors as in `read_parameters`.

    Args:
      shapes: of `parameter_shapes(config)`.
    """
    places = tensor_places(config)
    found: dict[str, str] = {}
    problems = []
    for name, plain in text_names(config, source).items():
        stored = source[name]
        if plain not in places:
            problems.append(f"unused tensor {name} in {stored.file.name}")
        elif plain in found:
            problems.append(f"tensor {name} in {stored.file.name} is there as {found[plain]} too")
        else:
            found[plain] = name
            expected = places[plain].stored_shape(part_at(shapes, places[plain].path).shape)
            problems.extend(_tensor_problems(name, stored, expected))
    files = ", ".join(sorted({source[name].file.name for name in source})) or "no file"
    absent = [f"missing tensor {name} (looked in {files})" for name in places if name not in found]
    problems = absent + problems
    if problems:
        raise ValueError(f"{where} does not fit its config:{listed(problems)}")
    return found


def listed(problems: Sequence[str]) -> str:
    """Lines to end an error with: the first `MAX_SHOWN` problems, and how many more there are."""
    more = len(problems) - MAX_SHOWN
    shown = [*problems[:MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in shown)


def _tensor_problems(name: str, stored: StoredTensor, expected: tuple[int, ...]) -> Iterator[str]:
    if tuple(stored.shape) != expected:
        yield (
            f"tensor {name} in {stored.file.name} has shape {tuple(stored.shape)}, "
            f"the config asks for {expected}"
        )
    if stored.dtype not in _STORED.values():
        yield (
            f"tensor {name} in {stored.file.name} is stored as {stored.dtype}, only "
            f"{', '.join(_STORED.values())} are read"
        )


def _check_tied(config: ModelConfig, source: TensorSource) -> None:
    """A tied model may still carry its output projection; it must be the embedding."""
    if not config.tie_embeddings:
        return
    heads = [name for name in source if name.endswith("lm_head.weight")]
    embeddings = [name for name in source if name.endswith("embed_tokens.weight")]
    for head in heads:
        if not any(np.array_equal(source[head].read(), source[e].read()) for e in embeddings):
            raise ValueError(
                f"tensor {head} in {source[head].file} differs from the embedding, which the "
                "config says it equals (tie_word_embeddings=true)"
            )


def directory_source(directory: Path) -> dict[str, StoredTensor]:
    """Tensors of a Hugging Face directory, of one file or of the shards its index names.

    Raises:
      FileNotFoundError: no checkpoint, or a shard that the index names is absent.
      ValueError: a damaged file.
    """
    index = directory / INDEX_FILE
    if (directory / SINGLE_FILE).is_file():  # transformers too passes over an index beside it
        return safetensors_source([directory / SINGLE_FILE])
    if not index.is_file():
        raise FileNotFoundError(
            f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}; weights of other "
            "formats are not read, convert them to safetensors"
        )
    try:
        shards = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is not a safetensors index: {error!r}") from error
    for name, file in shards.items():
        if not isinstance(file, str):
            raise ValueError(f"{index} names no file for {name} but {file!r}")
        if not (directory / file).is_file():
            raise FileNotFoundError(
                f"{directory / file} is absent; {INDEX_FILE} says it holds {name}"
            )
    return safetensors_source([directory / file for file in dict.fromkeys(shards.values())])


def safetensors_source(files: list[Path]) -> dict[str, StoredTensor]:
    """Tensors of safetensors files; raises ValueError for a damaged one, and for a name in two."""
    source = {}
    for file in files:
        with _open(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                if name in source:
                    raise ValueError(f"tensor {name} lies in {source[name].file} and in {file}")
                entry = opened.get_slice(name)
                dtype = _STORED.get(entry.get_dtype(), entry.get_dtype())
                shape = tuple(entry.get_shape())
                source[name] = StoredTensor(shape, dtype, file, partial(_read, file, name))
    return source


def write_tensors(
    directory: Path, config: ModelConfig, params, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes model.safetensors, or shards of at most `shard_bytes` and their index.

    Raises:
      ValueError: `params` are not the parameters of `config`, such as with an adapter inside.
    """
    _check_tree(config, params)
    places = tensor_places(config)
    shards, total, size = [[]], 0, 0
    for name, place in places.items():
        leaf = part_at(params, place.path)
        count = leaf.size if place.row is None else leaf.size // leaf.shape[0]
        added = count * leaf.dtype.itemsize
        if shards[-1] and size + added > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + added, total + added
    files = [SINGLE_FILE]
    if len(shards) > 1:
        files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        weight_map = {name: file for file, held in zip(files, shards, strict=True) for name in held}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for file, held in zip(files, shards, strict=True):
        tensors = {
            name: places[name].to_stored(np.asarray(part_at(params, places[name].path)))
            for name in held
        }
        save_file(tensors, str(directory / file), {"format": "pt"})  # transformers asks for it


def _check_tree(config: ModelConfig, params) -> None:
    leaves = jax.tree_util.tree_leaves_with_path
    given = {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves(params)}
    if any("lora_" in path for path in given):
        raise ValueError(
            "the parameters hold a LoRA adapter: merge or detach first (sepo_jax.policy.lora)"
        )
    asked = {
        jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves(parameter_shapes(config))
    }
    wrong = sorted(
        path for path in asked.keys() | given.keys() if asked.get(path) != given.get(path)
    )
    if wrong:
        shown = ", ".join(
            f"{path} {given.get(path, 'absent')} instead of {asked.get(path, 'nothing')}"
            for path in wrong[:5]
        )
        raise ValueError(f"these are not parameters of the policy's config: {shown}")


def _open(file: Path):
    try:
        return safe_open(str(file), framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file} is damaged or no safetensors file ({error}{_cut_tensor(file)}): "
            "fetch or write it again"
        ) from error


def _read(file: Path, name: str) -> np.ndarray:
    # Opened anew for each tensor: pages of a mapped file would count as this process's memory.
    with _open(file) as opened:
        try:
            return opened.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"tensor {name} in {file} cannot be read: {error}") from error


def _cut_tensor(file: Path) -> str:
    """Names the first tensor that lies beyond the end of a file cut off, if its header is whole."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
        present = file.stat().st_size - 8 - length
        ends = {
            entry["data_offsets"][1]: name
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, AttributeError):
        return ""
    cut = [end for end in sorted(ends) if end > present]
    return f"; tensor {ends[cut[0]]} is cut off" if cut else ""


def _scratch(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Zeros that go back to the system when dropped; malloc keeps smaller blocks for itself."""
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, count).reshape(shape)


__all__ = [
    "INDEX_FILE",
    "SHARD_BYTES",
    "SINGLE_FILE",
    "VALUE_HEAD_FILE",
    "Place",
    "StoredTensor",
    "TensorSource",
    "all_finite",
    "check_tensors",
    "directory_source",
    "listed",
    "parameter_shapes",
    "read_parameters",
    "read_value_head",
    "safetensors_source",
    "stored_dtype",
    "tensor_places",
    "write_tensors",
]
