"""Named random streams: (seed, purpose, key...) -> generator.

Every draw in the program comes from a stream named after what it is for, so that nothing depends on what was drawn
before it: adding a layer, a seed or a variant changes no other draw, and step k's batch needs no replay of steps 1..k-1.

    key = first 128 bits of SHA-256(JSON [seed, purpose, key...]);  generator = Philox4x64(key)

Draws are made by numpy on the host, so they are the same on every device.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Purpose = Literal["init", "batch", "dropout", "analysis", "suite", "sweep"]


def digest(seed: int, purpose: Purpose, *key: str | int) -> bytes:
    """The 32 bytes that name a stream."""
    return hashlib.sha256(json.dumps([seed, purpose, *key], separators=(",", ":")).encode()).digest()


def stream(seed: int, purpose: Purpose, *key: str | int) -> np.random.Generator:
    """The generator of one stream, always at its beginning."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest(seed, purpose, *key)[:16], "little")))


def words(seed: int, purpose: Purpose, *key: str | int) -> tuple[int, int]:
    """Two signed 32-bit words of a stream's name, for counter-based generators that run on the device."""
    first, second = struct.unpack("<ii", digest(seed, purpose, *key)[:8])
    return first, second
