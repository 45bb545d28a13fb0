"""The wire format of protocol buffers, as far as event files need it: a message is a list of (field number, value)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

#: A whole number, eight or four raw bytes, or the bytes of a text or an inner message.
Field = tuple[int, int | bytes]


def fields(message: bytes) -> Iterator[Field]:
    """Every field of a message in its order; raises ValueError where it is cut off."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError("the message is cut off, or is none")
        yield key >> 3, message[at : at + size]
        at += size


def inner(message: bytes, number: int) -> Iterator[bytes]:
    """The inner messages, texts or raw bytes under one field number."""
    return (value for key, value in fields(message) if key == number and isinstance(value, bytes))


def first(message: bytes, number: int) -> bytes | None:
    return next(inner(message, number), None)


def text(message: bytes, number: int) -> str:
    return (first(message, number) or b"").decode(errors="replace")


def whole(message: bytes, number: int) -> int:
    """A signed whole number; 0 where it is not set, as the format has it."""
    value = next((value for key, value in fields(message) if key == number and isinstance(value, int)), 0)
    return value - (1 << 64) if value >= 1 << 63 else value


def floats(data: bytes, form: str) -> list[float]:
    """Packed numbers: form `f` or `d`."""
    return [value for (value,) in struct.iter_unpack(f"<{form}", data)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the message is cut off, or is none")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7
