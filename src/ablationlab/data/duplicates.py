"""Which documents are seen for the second time: exactly, by a hash; nearly, by MinHash (Broder 1997).

    J(A, B) = |A ∩ B| / |A ∪ B| over the sets of runs of `WORDS` words; P(equal minimum) = J for each of `PERMUTATIONS` hashes

Candidates come from locality-sensitive hashing and are removed only if their estimated J reaches the threshold. The first of
a group is kept, in the order of the corpus, so the result does not depend on the number of processes. Memory grows with the
number of kept documents, by about 0.1 kB (exact) or a few kB (near) for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.errors import DataError

PERMUTATIONS = 128
WORDS = 5
#: How MinHash values are made; stated, so that a later default of the library changes nothing.
_SCHEME = "affine32"
# Members hashed in one go: a table of so many rows by `PERMUTATIONS` is made.
_AT_ONCE = 2**14


def digest(text: str) -> bytes:
    """128 bits of a document."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def signature(text: str) -> NDArray[np.uint64] | None:
    """MinHash values of a document; None where it has fewer than `WORDS` words, so that it is like no other."""
    words = text.split()
    if len(words) < WORDS:
        return None
    shingles = {" ".join(words[place : place + WORDS]).encode() for place in range(len(words) - WORDS + 1)}
    return minima(sorted(shingles))


def minima(members: Sequence[bytes] | Sequence[int]) -> NDArray[np.uint64]:
    """MinHash values of a set: of bytes, or of numbers of 32 bits that are hashes already. Memory does not grow with it."""
    hashing = {} if isinstance(members[0], bytes) else {"hashfunc": int}
    made = _datasketch().MinHash(num_perm=PERMUTATIONS, scheme=_SCHEME, **hashing)
    for start in range(0, len(members), _AT_ONCE):
        made.update_batch(members[start : start + _AT_ONCE])
    return np.asarray(made.hashvalues, dtype=np.uint64)


class Index:
    """Signatures by a key each, to find one that is at least so similar as *near*."""

    def __init__(self, near: float) -> None:
        self.near = near
        self._keys: list[int] = []
        self._signatures: list[NDArray[np.uint32]] = []
        # Candidates are checked, so it is misses that cost: hence the weights.
        self._lsh = _datasketch().MinHashLSH(threshold=near, num_perm=PERMUTATIONS, weights=(0.1, 0.9))

    def add(self, key: int, values: NDArray[np.uint64]) -> None:
        """Remember a document."""
        self._lsh.insert(len(self._signatures), _minhash(values), check_duplication=False)
        self._keys.append(key)
        self._signatures.append(values.astype(np.uint32))  # they are of 32 bits

    def holds(self, values: NDArray[np.uint64], *, but: int | None = None) -> bool:
        """Whether a document like this one is here, under another key than *but*."""
        return any(
            self._keys[place] != but and float(np.mean(self._signatures[place] == values)) >= self.near
            for place in self._lsh.query(_minhash(values))
        )


class Seen:
    """The documents kept so far."""

    def __init__(self, *, exact: bool, near: float | None) -> None:
        self.exact = exact
        self._digests: set[bytes] = set()
        self._index = None if near is None else Index(near)

    def again(self, text_digest: bytes | None, values: NDArray[np.uint64] | None) -> str | None:
        """``exact`` or ``near`` if the document was seen before; else it is remembered."""
        if self.exact and text_digest is not None:
            if text_digest in self._digests:
                return "exact"
            self._digests.add(text_digest)
        if self._index is None or values is None:
            return None
        if self._index.holds(values):
            return "near"
        self._index.add(0, values)
        return None


def _minhash(values: NDArray[np.uint64]) -> Any:
    return _datasketch().MinHash(num_perm=PERMUTATIONS, hashvalues=values, scheme=_SCHEME)


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise DataError("near-duplicates need the library datasketch: pip install datasketch") from error
    return datasketch
