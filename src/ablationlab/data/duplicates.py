"""Which documents are seen for the second time: exactly, by a hash; nearly, by MinHash (Broder 1997).

    J(A, B) = |A ∩ B| / |A ∪ B| over the sets of runs of `WORDS` words; P(equal minimum) = J for each of `PERMUTATIONS` hashes

Candidates come from locality-sensitive hashing and are removed only if their estimated J reaches the threshold. The first of
a group is kept, in the order of the corpus, so the result does not depend on the number of processes. Memory grows with the
number of kept documents, by about 0.1 kB (exact) or a few kB (near) for each.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablationlab.errors import DataError

PERMUTATIONS = 128
WORDS = 5
#: How MinHash values are made; stated, so that a later default of the library changes nothing.
_SCHEME = "affine32"


def digest(text: str) -> bytes:
    """128 bits of a document."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def signature(text: str) -> NDArray[np.uint64] | None:
    """MinHash values of a document; None where it has fewer than `WORDS` words, so that it is like no other."""
    words = text.split()
    if len(words) < WORDS:
        return None
    shingles = {" ".join(words[place : place + WORDS]).encode() for place in range(len(words) - WORDS + 1)}
    values = _datasketch().MinHash.bulk([sorted(shingles)], num_perm=PERMUTATIONS, scheme=_SCHEME)[0].hashvalues
    return np.asarray(values, dtype=np.uint64)


class Seen:
    """The documents kept so far."""

    def __init__(self, *, exact: bool, near: float | None) -> None:
        self.exact, self.near = exact, near
        self._digests: set[bytes] = set()
        self._signatures: list[NDArray[np.uint32]] = []
        self._index: Any = None
        if near is not None:
            # Candidates are checked, so it is misses that cost: hence the weights.
            self._index = _datasketch().MinHashLSH(threshold=near, num_perm=PERMUTATIONS, weights=(0.1, 0.9))

    def again(self, text_digest: bytes | None, values: NDArray[np.uint64] | None) -> str | None:
        """``exact`` or ``near`` if the document was seen before; else it is remembered."""
        if self.exact and text_digest is not None:
            if text_digest in self._digests:
                return "exact"
            self._digests.add(text_digest)
        if self.near is None or values is None:
            return None
        made = _datasketch().MinHash(num_perm=PERMUTATIONS, hashvalues=values, scheme=_SCHEME)
        for key in self._index.query(made):
            if float(np.mean(self._signatures[key] == values)) >= self.near:
                return "near"
        self._index.insert(len(self._signatures), made, check_duplication=False)
        self._signatures.append(values.astype(np.uint32))  # they are of 32 bits
        return None


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise DataError("near-duplicates need the library datasketch: pip install datasketch") from error
    return datasketch
