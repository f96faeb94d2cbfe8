"""The head of a GGUF file: metadata and where each tensor lies.

Layout (GGUF specification, version 3, little-endian): magic "GGUF", version, number of tensors,
number of metadata entries, the entries, the tensor records, padding to the alignment, tensor data.
"""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np

HINT = "reading GGUF files needs the gguf package: pip install 'sepo_jax[gguf]'"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless the metadata says otherwise
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type of the specification: struct format
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


def gguf_library():
    """The `gguf` package, or an ImportError that says how to get it."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError(HINT) from error
    return gguf


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """Where a tensor lies.

    Attributes:
      shape: slowest axis first, as NumPy and torch count them; linear weights are [out, in].
      quantization: name of the storage type, such as "Q8_0".
      start, size: bytes from the start of the file, and number of bytes.
    """

    shape: tuple[int, ...]
    quantization: str
    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class Header:
    """Metadata by key, tensor records by the file's own names, and the file's bytes (mapped)."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorRecord]
    data: np.memmap


class _Reader:
    """Walks through the bytes; running past the end raises `struct.error`."""

    def __init__(self, data: np.memmap):
        self.view, self.position = memoryview(data), 0

    def scalar(self, code: str):
        (value,) = struct.unpack_from("<" + code, self.view, self.position)
        self.position += struct.calcsize(code)
        return value

    def text(self) -> str:
        size = self.scalar("Q")
        if size > len(self.view) - self.position:
            raise struct.error(f"a text of {size} bytes runs past the end")
        self.position += size
        return bytes(self.view[self.position - size : self.position]).decode("utf-8")

    def value(self, kind: int):
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in _SCALARS:
                numbers = struct.unpack_from(f"<{count}{_SCALARS[inner]}", self.view, self.position)
                self.position += struct.calcsize(f"<{count}{_SCALARS[inner]}")
                return list(numbers)
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"a metadata value of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])


def read_header(path: Path) -> Header:
    """Reads the head and checks that every tensor lies inside the file.

    Raises:
      ImportError: the gguf package is absent.
      FileNotFoundError: no such file.
      ValueError: not a GGUF file, another version or byte order, a part of a split model, a damaged
        or cut head (file named), a tensor of unknown type or past the end (file, tensor named).
    """
    library = gguf_library()
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file {path}")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is no GGUF file: it starts with {magic!r} instead of b'GGUF'")
    data = np.memmap(path, mode="r")
    reader = _Reader(data)
    reader.position = 4
    try:
        version = reader.scalar("I")
        if version not in VERSIONS:
            order = " of the other byte order" if version & 0xFFFF == 0 else ""
            raise _Refused(f"is GGUF version {version}{order}; little-endian {VERSIONS} are read")
        num_tensors, num_entries = reader.scalar("Q"), reader.scalar("Q")
        metadata = {}
        for _ in range(num_entries):
            key = reader.text()
            metadata[key] = reader.value(reader.scalar("I"))
        if metadata.get("split.count", 1) > 1:
            raise _Refused(
                f"is one of {metadata['split.count']} parts: join them by llama-gguf-split --merge"
            )
        records = [_record(reader, library) for _ in range(num_tensors)]
    except _Refused as error:
        raise ValueError(f"{path} {error}") from None
    except (struct.error, UnicodeDecodeError, ValueError, MemoryError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged or cut off in its head ({error}): fetch or write it again"
        ) from error
    alignment = metadata.get("general.alignment", ALIGNMENT)
    start = -(-reader.position // alignment) * alignment
    tensors = {}
    for name, record in records:
        placed = dataclasses.replace(record, start=record.start + start)
        if placed.start + placed.size > data.size:
            raise ValueError(
                f"{path} is cut off: tensor {name} ends at byte {placed.start + placed.size}, the "
                f"file has {data.size}; fetch or write it again"
            )
        tensors[name] = placed
    return Header(metadata, tensors, data)


def _record(reader: _Reader, library) -> tuple[str, TensorRecord]:
    """Name and record of the next tensor; its start counts from the start of the tensor data."""
    name = reader.text()
    dimensions = reader.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {dimensions} axes, at most {_MAX_DIMENSIONS} exist")
    shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
    kind, offset = reader.scalar("I"), reader.scalar("Q")
    try:
        quantization = library.GGMLQuantizationType(kind)
    except ValueError:
        raise _Refused(
            f"stores tensor {name} as type {kind}, which the installed gguf package does not know"
        ) from None
    block, size = library.GGML_QUANT_SIZES[quantization]
    entries = int(np.prod(shape, dtype=object)) if shape else 1
    if (shape[-1] if shape else 1) % block:
        raise ValueError(f"rows of tensor {name} are no multiple of {block} entries")
    return name, TensorRecord(shape, quantization.name, offset, entries // block * size)


class _Refused(Exception):
    """A file that is whole but not supported; the message goes on after its name."""
