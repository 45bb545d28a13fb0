"""Text as runs of words, each a number: what is compared where the same text may be set in different ways.

Words are letters and digits, without case; marks, blanks and line breaks do not count. So "Twenty @-@ two , he said" of a
corpus that was cut into words beforehand and "twenty-two, he said" are the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
_WORD = re.compile(r"[^\W_]+")
_FACTOR, _SHIFT = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(text.casefold())


def word_hashes(words: Sequence[str]) -> Hashes:
    """64 bits a word, the same in every process."""
    return np.fromiter((_word(word) for word in words), dtype=np.uint64, count=len(words))


@lru_cache(maxsize=2**20)
def _word(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def runs_of(hashes: Hashes, length: int) -> Hashes:
    """64 bits of every run of *length* words: h <- mix(h) * factor + word, over its words."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    made = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        made ^= made >> _SHIFT
        made *= _FACTOR
        made += hashes[place : place + count]
    made ^= made >> _SHIFT
    made *= _FACTOR
    return made ^ (made >> _SHIFT)
