"""Models in GGUF files: config and tensors as the Hugging Face format has them.

llama.cpp's converter (the writer of these files) renames tensors, reorders the rows of Llama's
query and key projections for its interleaved rotary positions, stores Gemma's norm scales w as
1 + w, and turns Llama 3 frequency scaling into a tensor; all of it is undone here.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from sepo_jax.names import unknown
from sepo_jax.policy.formats.gguf_config import ARCHITECTURES, Architecture, hf_config
from sepo_jax.policy.formats.gguf_header import Header, TensorRecord, gguf_library, read_header
from sepo_jax.policy.formats.gguf_tokenizer import build_tokenizer
from sepo_jax.policy.formats.weights import StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Follow from the config, or are part of it by now.
_DERIVED = ("rope_freqs.weight", "attn_rot_embd.weight")


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file; tensor data stays on disk until a tensor is read.

    Attributes:
      path: the file.
      metadata: its metadata by key.
      config: what config.json of the same model holds.
      tensors: by the names of the Hugging Face format. Quantised ones are read as float32.
      quantizations: how many tensors are stored in which type.
    """

    path: Path
    metadata: Mapping[str, Any]
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]
    quantizations: dict[str, int]

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer in the file; raises ValueError when there is none that can be built."""
        return build_tokenizer(self.path, self.metadata)


def open_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF file of a model of a known architecture.

    Raises:
      ImportError: the optional package gguf is absent.
      FileNotFoundError: no such file.
      ValueError: not a GGUF file, damaged or cut off; an unknown architecture or a setting that is
        not supported; missing metadata; a tensor in a quantisation that the gguf package does not
        decode (file, tensor and type named).
    """
    path = Path(path)
    header = read_header(path)
    name = header.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ValueError(f"{path}: {unknown('GGUF architecture', name, ARCHITECTURES)}")
    _check_quantizations(path, header)
    frequencies = header.tensors.get("rope_freqs.weight")
    config = hf_config(
        path,
        header.metadata,
        {tensor: record.shape for tensor, record in header.tensors.items()},
        None if frequencies is None else _read(header, frequencies),
    )
    tensors, quantizations = {}, {}
    for own, record in header.tensors.items():
        quantizations[record.quantization] = quantizations.get(record.quantization, 0) + 1
        if not own.endswith(_DERIVED):
            tensors[_hf_name(own, ARCHITECTURES[name])] = _stored(path, header, own, config)
    return GgufFile(path, header.metadata, config, tensors, quantizations)


def _check_quantizations(path: Path, header: Header) -> None:
    for name, record in header.tensors.items():
        if not _decodes(record.quantization):
            raise ValueError(
                f"{path}: tensor {name} is stored as {record.quantization}, which the gguf package "
                "does not decode: use a file in another quantisation, such as Q8_0 or Q4_K"
            )


@functools.cache
def _decodes(quantization: str) -> bool:
    """Whether the library has a decoder, found out on one block of zeros."""
    library = gguf_library()
    kind = library.GGMLQuantizationType[quantization]
    try:
        library.dequantize(np.zeros((1, library.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _hf_name(own: str, architecture: Architecture) -> str:
    """Name in the Hugging Face format; an unknown name is kept, so that the loader reports it."""
    parts = own.split(".")
    if len(parts) == 2 and parts[0] in _OUTER:
        return f"{_OUTER[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in architecture.layer:
        return f"model.layers.{parts[1]}.{architecture.layer[parts[2]]}.{parts[3]}"
    return own


def _stored(path: Path, header: Header, own: str, config: Mapping[str, Any]) -> StoredTensor:
    record = header.tensors[own]
    architecture = ARCHITECTURES[header.metadata["general.architecture"]]
    kind = own.split(".")[-2] if "." in own else own
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }.get(kind)
    offset = architecture.norm_offset if kind.endswith("norm") else 0.0

    def read() -> np.ndarray:
        array = _read(header, record)
        if architecture.interleaved and heads:
            array = _halves(array, heads)
        return array if not offset else array.astype(np.float32) - np.float32(offset)

    dtype = "float32" if offset else _PLAIN.get(record.quantization, "float32")
    return StoredTensor(record.shape, dtype, path, read)


def _read(header: Header, record: TensorRecord) -> np.ndarray:
    """One tensor in memory of its own; float16 and bfloat16 stay what they are."""
    raw = np.array(header.data[record.start : record.start + record.size])
    if record.quantization in _PLAIN:
        return raw.view(jnp.dtype(_PLAIN[record.quantization])).reshape(record.shape)
    library = gguf_library()
    kind = library.GGMLQuantizationType[record.quantization]
    return library.dequantize(raw, kind).astype(np.float32, copy=False).reshape(record.shape)


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pairs (2i, 2i + 1) to the halves (i, i + D/2) that rotate together."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
