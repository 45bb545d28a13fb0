"""How documents are compared: by hashes of words and n-grams, exactly, and approximately by MinHash (Broder 1997).

    J(A, B) = |A ∩ B| / |A ∪ B| over the sets of n-grams of `WORDS` words; P(equal minimum) = J for each of
    `PERMUTATIONS` hashes

Candidates come from locality-sensitive hashing and count only if their estimated J reaches the threshold. Of a group of
duplicates the first is kept, in the order of the corpus, so the result does not depend on the number of processes. Memory
grows with the number of kept documents, by about 0.1 kB (exact) or a few kB (near) for each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError

PERMUTATIONS = 128
WORDS = 5
#: How MinHash values are made; explicit, so that a new default of the library changes nothing.
_SCHEME = "affine32"
# Elements hashed at a time: a table of this many rows by `PERMUTATIONS` columns is made.
_AT_ONCE = 2**14
Hashes = NDArray[np.uint64]
_WORD = re.compile(r"[^\W_]+")
_FACTOR, _SHIFT = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)


def digest(text: str) -> bytes:
    """128-bit hash of a document."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def signature(text: str) -> Hashes | None:
    """MinHash values of a document; None if it has fewer than `WORDS` words."""
    words = text.split()
    if len(words) < WORDS:
        return None
    shingles = {" ".join(words[place : place + WORDS]).encode() for place in range(len(words) - WORDS + 1)}
    return minhash_values(sorted(shingles))


def minhash_values(elements: Sequence[bytes] | Sequence[int]) -> Hashes:
    """MinHash values of a set of bytes, or of 32-bit numbers that are hashes already. Memory does not grow with it."""
    hashing = {} if isinstance(elements[0], bytes) else {"hashfunc": int}
    minhash = _datasketch().MinHash(num_perm=PERMUTATIONS, scheme=_SCHEME, **hashing)
    for start in range(0, len(elements), _AT_ONCE):
        minhash.update_batch(elements[start : start + _AT_ONCE])
    return np.asarray(minhash.hashvalues, dtype=np.uint64)


class SimilarityIndex:
    """MinHash signatures with a key each, to look up whether one is at least as similar as *near*."""

    def __init__(self, near: float) -> None:
        self.near = near
        self._keys: list[int] = []
        self._signatures: list[NDArray[np.uint32]] = []
        # Candidates are checked, so false negatives cost more than false positives: hence the weights.
        self._lsh = _datasketch().MinHashLSH(threshold=near, num_perm=PERMUTATIONS, weights=(0.1, 0.9))

    def add(self, key: int, values: Hashes) -> None:
        self._lsh.insert(len(self._signatures), _minhash(values), check_duplication=False)
        self._keys.append(key)
        self._signatures.append(values.astype(np.uint32))  # they have 32 bits

    def contains(self, values: Hashes, *, other_than: int | None = None) -> bool:
        """Whether a similar document was added, under another key than *other_than*."""
        return any(
            self._keys[place] != other_than and float(np.mean(self._signatures[place] == values)) >= self.near
            for place in self._lsh.query(_minhash(values))
        )


class DuplicateFilter:
    """The documents of a corpus kept so far."""

    def __init__(self, *, exact: bool, near: float | None) -> None:
        self.exact = exact
        self._digests: set[bytes] = set()
        self._index = None if near is None else SimilarityIndex(near)

    def check(self, text_digest: bytes | None, values: Hashes | None) -> Literal["exact", "near"] | None:
        """The kind of duplicate if the document was seen before; else it is remembered."""
        if self.exact and text_digest is not None:
            if text_digest in self._digests:
                return "exact"
            self._digests.add(text_digest)
        if self._index is None or values is None:
            return None
        if self._index.contains(values):
            return "near"
        self._index.add(0, values)
        return None


def _minhash(values: Hashes) -> Any:
    return _datasketch().MinHash(num_perm=PERMUTATIONS, hashvalues=values, scheme=_SCHEME)


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise DataError("near-duplicates need the package datasketch: pip install datasketch") from error
    return datasketch


def words_of(text: str) -> list[str]:
    """The words of a text, in order: letters and digits, without case.

    Punctuation, blanks and line breaks do not count, so "Twenty @-@ two , he said" of a corpus that was split into words
    beforehand and "twenty-two, he said" are the same.
    """
    return _WORD.findall(text.casefold())


def word_hashes(words: Sequence[str]) -> Hashes:
    """64 bits per word, the same in every process."""
    return np.fromiter((_word_hash(word) for word in words), dtype=np.uint64, count=len(words))


@lru_cache(maxsize=2**20)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def ngram_hashes(hashes: Hashes, length: int) -> Hashes:
    """64 bits for every n-gram of *length* words: h <- mix(h) * factor + word, over its words."""
    count = len(hashes) - length + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    ngrams = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        ngrams ^= ngrams >> _SHIFT
        ngrams *= _FACTOR
        ngrams += hashes[place : place + count]
    ngrams ^= ngrams >> _SHIFT
    ngrams *= _FACTOR
    return ngrams ^ (ngrams >> _SHIFT)
