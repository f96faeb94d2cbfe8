"""Messages on a stream of bytes: two lengths, a JSON header, raw bytes.

Nothing here trusts the other side, and nothing of it is ever unpickled.
"""

import json
import os
import select
import struct
from typing import Any

from sepo_jax.sandbox.protocol import BadAnswer

Frame = tuple[dict[str, Any], bytes]
LENGTHS = struct.Struct("!QQ")  # bytes of the header and of the body
MAX_HEADER = 1 << 12
MAX_BODY = 1 << 28
_PIECE = 1 << 18


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """The bytes of one message; raises ValueError for a body larger than `MAX_BODY`."""
    if len(body) > MAX_BODY:
        raise ValueError(
            f"a message to or from a sandbox holds at most {MAX_BODY:,} bytes, not {len(body):,}"
        )
    text = json.dumps(header).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body


class FrameReader:
    """Cuts a stream into messages as its bytes arrive."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Adds what arrived and returns the messages that are complete.

        Raises:
          BadAnswer: the stream holds something that is no message.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= LENGTHS.size:
            header_size, body_size = LENGTHS.unpack_from(self._buffer)
            if header_size > MAX_HEADER or body_size > MAX_BODY:
                raise BadAnswer(f"no message: lengths {header_size} and {body_size}")
            start, end = LENGTHS.size + header_size, LENGTHS.size + header_size + body_size
            if len(self._buffer) < end:
                break
            header = read_header(bytes(self._buffer[LENGTHS.size : start]))
            frames.append((header, bytes(self._buffer[start:end])))
            del self._buffer[:end]
        return frames


def read_header(text: bytes) -> dict[str, Any]:
    """The header of a message; raises BadAnswer for bytes that are no JSON object."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"no message: a header of {text[:40]!r}") from error
    if not isinstance(header, dict):
        raise BadAnswer(f"no message: a header of {text[:40]!r}")
    return header


def is_silent(stream: Any) -> bool:
    """Whether a stream is open and nothing has arrived; a file object, a socket or a descriptor."""
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return not poll.poll(0)


def read_frame(descriptor: int) -> Frame:
    """The next message of a blocking descriptor; raises EOFError at its end."""
    header_size, body_size = LENGTHS.unpack(_read(descriptor, LENGTHS.size))
    return read_header(_read(descriptor, header_size)), _read(descriptor, body_size)


def _read(descriptor: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(descriptor, min(size, _PIECE))
        if not piece:
            raise EOFError("the other side closed the connection")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write_frame(descriptor: int, header: dict[str, Any], body: bytes = b"") -> None:
    """Writes a message to a blocking descriptor."""
    left = memoryview(pack(header, body))
    while left:
        left = left[os.write(descriptor, left) :]
