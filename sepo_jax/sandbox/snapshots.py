"""Snapshots: bytes that say what they hold and are checked before anything is restored.

A snapshot is a header and a body under one checksum. The header is JSON (kind, environment,
version, hash of the state) and may be read anywhere. The body is for the environment alone: where
it holds pickled values, only a sandbox decodes them, never the process that trains.
"""

import collections
import copyreg
import hashlib
import io
import json
import pickle
import struct
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sepo_jax.sandbox.protocol import SnapshotRefused

MAGIC = b"sepo_jax snapshot 1\n"
_CHECKSUM_BYTES = 32
_LENGTHS = struct.Struct(">QI")  # of header and body together, and of the header


@dataclass(frozen=True)
class Header:
    """What a snapshot says of itself.

    Attributes:
      kind: how the state is kept: "value", "replay" or "directory".
      name, version: of the environment that made it.
      content: `content_hash` of the state; equal states have equal hashes in every process.
    """

    kind: str
    name: str
    version: str
    content: str


def seal(header: Header, body: bytes) -> bytes:
    """A snapshot of a header and a body."""
    text = json.dumps(asdict(header)).encode()
    sealed = _LENGTHS.pack(len(text) + len(body), len(text)) + text + body
    return MAGIC + hashlib.sha256(sealed).digest() + sealed


def unseal(snapshot: bytes) -> tuple[Header, bytes]:
    """The header and body that `seal` joined; raises SnapshotRefused when anything differs."""
    if not isinstance(snapshot, bytes) or snapshot[: len(MAGIC)] != MAGIC[: len(snapshot)]:
        raise SnapshotRefused(
            f"not a snapshot: it must be bytes that begin with {MAGIC!r}, not {repr(snapshot)[:40]}"
        )
    sealed = snapshot[len(MAGIC) + _CHECKSUM_BYTES :]
    if len(sealed) < _LENGTHS.size:
        raise SnapshotRefused(f"the snapshot was cut off after {len(snapshot)} bytes")
    length, header_length = _LENGTHS.unpack_from(sealed)
    if len(sealed) != _LENGTHS.size + length:
        raise SnapshotRefused(
            f"the snapshot should hold {length} bytes of header and body and holds "
            f"{len(sealed) - _LENGTHS.size}: it was cut off or changed"
        )
    if hashlib.sha256(sealed).digest() != snapshot[len(MAGIC) :][:_CHECKSUM_BYTES]:
        raise SnapshotRefused("the snapshot does not match its checksum: it was changed")
    end = _LENGTHS.size + header_length
    try:
        header = Header(**json.loads(sealed[_LENGTHS.size : end]))
    except (TypeError, ValueError) as error:
        raise SnapshotRefused(f"the snapshot has no readable header: {error}") from error
    return header, sealed[end:]


def content_of(snapshot: bytes) -> str:
    """Hash of the state inside a snapshot; snapshots of equal states share it.

    Raises:
      SnapshotRefused: bytes that are no whole snapshot.
    """
    return unseal(snapshot)[0].content


def check_origin(header: Header, kind: str, name: str, version: str) -> None:
    """Raises SnapshotRefused unless the header is of this environment, version and kind."""
    for what, given, expected in (
        ("environment", header.name, name),
        ("version", header.version, version),
        ("kind", header.kind, kind),
    ):
        if given != expected:
            raise SnapshotRefused(
                f"the snapshot is of {what} {given!r}, and this is {what} {expected!r} of "
                f"environment {name!r}; restore it where it was made"
            )


def dump(value: Any, shared: Mapping[str, Any]) -> bytes:
    """Pickled bytes of a value; objects in `shared` are written as their names.

    Raises:
      SnapshotRefused: the value does not pickle.
    """
    buffer = io.BytesIO()
    pickler = _SharingPickler(buffer, protocol=5)
    pickler.names = {id(thing): name for name, thing in shared.items()}
    try:
        pickler.dump(value)
    except Exception as error:
        raise SnapshotRefused(f"the state does not pickle: {_said(error)}") from error
    return buffer.getvalue()


def load(data: bytes, shared: Mapping[str, Any]) -> Any:
    """The value that `dump` wrote; runs code that the bytes name, so only sandboxes call it.

    Raises:
      SnapshotRefused: the bytes do not unpickle here.
    """
    unpickler = _SharingUnpickler(io.BytesIO(data))
    unpickler.shared = shared
    try:
        return unpickler.load()
    except Exception as error:
        raise SnapshotRefused(f"the state cannot be read back here: {_said(error)}") from error


class _SharingPickler(pickle.Pickler):
    names: Mapping[int, str]

    def persistent_id(self, obj: Any) -> str | None:
        return self.names.get(id(obj))


class _SharingUnpickler(pickle.Unpickler):
    shared: Mapping[str, Any]

    def persistent_load(self, pid: str) -> Any:
        return self.shared[pid]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def content_hash(value: Any, shared: Mapping[str, Any] | None = None) -> str:
    """Hash of a value by types and contents, the same in every process.

    Equal values have equal hashes whatever their identity, the order of their dicts and sets, or
    PYTHONHASHSEED; 1, 1.0 and True differ. Objects count by what pickling them would keep.

    Args:
      value: atoms, containers, arrays, and objects that pickle.
      shared: objects that count by their name here alone.

    Returns:
      64 hexadecimal digits.

    Raises:
      SnapshotRefused: a value that contains itself, a function or class that has no importable
        name, or an object that does not pickle.
    """
    encoder = _Encoder(shared or {})
    try:
        return hashlib.sha256(encoder.encode(value)).hexdigest()
    except RecursionError as error:
        raise SnapshotRefused("the state is nested too deeply to be hashed") from error


class _Encoder:
    """Encodes values so that no two different ones give the same bytes; keeps what it has seen."""

    def __init__(self, shared: Mapping[str, Any]):
        self._shared = {id(thing): name for name, thing in shared.items()}
        # With the values themselves, so that no id is used twice.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._open: set[int] = set()

    def encode(self, value: Any) -> bytes:
        atom = _atom(value)
        if atom is not None:
            return _piece(type(value).__name__, [atom])
        key = id(value)
        if key in self._shared:
            return _piece("shared", [self._shared[key].encode()])
        if key in self._open:
            raise SnapshotRefused(
                f"a {type(value).__name__} in the state contains itself, so it has no content "
                "hash; name things instead of pointing back, or describe the state otherwise"
            )
        if key not in self._known:
            self._open.add(key)
            tag, parts = self._parts(value)
            self._open.remove(key)
            # The digest alone is kept, so that shared parts do not multiply.
            digest = hashlib.sha256(_piece(tag, parts)).digest()
            self._known[key] = (value, _piece("content", [digest]))
        return self._known[key][1]

    def _parts(self, value: Any) -> tuple[str, list[bytes]]:
        kind = type(value)
        if kind in (list, tuple):
            return kind.__name__, self._all(value)
        if kind is dict:
            return "dict", self._pairs(value.items(), ordered=False)
        if kind in (set, frozenset):
            return kind.__name__, sorted(self._all(value))
        if isinstance(value, (type, types.FunctionType)):
            if "<" in value.__qualname__:
                raise SnapshotRefused(
                    f"{value.__qualname__} in the state has no name that another process can "
                    "import; define it at the top of a module"
                )
            return "name", [qualified_name(value).encode()]
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
            layout = f"{value.dtype.descr} {value.shape}"
            return "array", [layout.encode(), value.tobytes()]
        return "object", self._reduced(value)

    def _all(self, values: Iterable[Any]) -> list[bytes]:
        return [self.encode(value) for value in values]

    def _pairs(self, items: Iterable[tuple[Any, Any]], ordered: bool) -> list[bytes]:
        pairs = [_piece("pair", self._all(item)) for item in items]
        return pairs if ordered else sorted(pairs)

    def _reduced(self, value: Any) -> list[bytes]:
        """An object by what pickle would keep of it."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception as error:
            raise SnapshotRefused(f"the state does not pickle: {_said(error)}") from error
        if isinstance(reduced, str):
            module = getattr(value, "__module__", type(value).__module__)
            return [f"{module}.{reduced}".encode()]
        call, arguments, state, items, pairs, setter = (*reduced, *[None] * (6 - len(reduced)))
        return [
            *self._all((call, arguments, state, setter)),
            *self._all(items or ()),
            *self._pairs(pairs or (), ordered=isinstance(value, collections.OrderedDict)),
        ]


def _atom(value: Any) -> bytes | None:
    """Bytes of a value of a basic type, None for any other."""
    kind = type(value)
    if kind is str:
        return value.encode("utf-8", "surrogatepass")
    if kind in (bytes, bytearray):
        return bytes(value)
    if kind is int:
        return hex(value).encode()  # decimal digits are limited in number
    if kind is float:
        return value.hex().encode()
    if kind in (bool, type(None)):
        return repr(value).encode()
    return None


def _piece(tag: str, parts: Iterable[bytes]) -> bytes:
    """A tag and parts, each with its length before it."""
    texts = [tag.encode(), *parts]
    return b"".join(piece for text in texts for piece in (len(text).to_bytes(8, "big"), text))


def qualified_name(thing: type | types.FunctionType) -> str:
    """Module and name of a class or function, the same in every process."""
    # A spawned process calls the main module of its parent so.
    module = "__main__" if thing.__module__ == "__mp_main__" else thing.__module__
    return f"{module}.{thing.__qualname__}"
