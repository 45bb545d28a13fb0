"""A long sequence of tokens in pieces that may be on disk: windows are read from it without reading the rest.

A plain array is a sequence of one piece, so every function here takes either. The components of a mixture follow each other;
`Share` says how long each is and how often samples are drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.format import count

Ids = NDArray[np.int64]
#: (start, stop): tokens from start up to stop.
Span = tuple[int, int]
#: Tokens read at a time where a whole sequence is read.
_BLOCK = 2**22


class Share(NamedTuple):
    """One component of a mixture: the probability that a sample comes from it, and its training tokens."""

    weight: float
    tokens: int


class Tokens:
    """Pieces one after another; a window may cross from one to the next."""

    def __init__(self, pieces: Sequence[NDArray[Any]], shares: Sequence[Share] = ()) -> None:
        self.pieces = tuple(piece for piece in pieces if len(piece))
        self.shares = tuple(shares)
        self._ends = np.cumsum([len(piece) for piece in self.pieces], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, part: slice) -> Ids:
        """A contiguous part, in memory."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError("only contiguous parts can be read")
        return np.asarray(self.windows(np.array([start]), max(stop - start, 0))[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.int64, copy=False)

    def windows(self, starts: Ids, length: int) -> Ids:
        """tokens[start : start + length] for each start, as int64 rows."""
        starts = np.asarray(starts, dtype=np.int64)
        if len(starts) and (starts.min() < 0 or starts.max() + length > len(self)):
            raise IndexError(f"a window of {length} tokens reaches past the end of {count(len(self))} tokens")
        out = np.empty((len(starts), length), dtype=np.int64)
        firsts = np.searchsorted(self._ends, starts, side="right")
        for row, (start, piece) in enumerate(zip(starts.tolist(), firsts.tolist(), strict=True)):
            done = 0
            while done < length:
                begin = start + done - (int(self._ends[piece - 1]) if piece else 0)
                chunk = self.pieces[piece][begin : begin + length - done]
                out[row, done : done + len(chunk)] = chunk
                done += len(chunk)
                piece += 1
        return out

    def part(self, start: int, stop: int) -> Tokens:
        """The same tokens from *start* to *stop*; nothing is read."""
        pieces, begin = [], 0
        for piece in self.pieces:
            low, high = max(start - begin, 0), min(stop - begin, len(piece))
            if low < high:
                pieces.append(piece[low:high])
            begin += len(piece)
        return Tokens(pieces)

    def blocks(self) -> Iterator[Ids]:
        """All tokens, a block at a time."""
        for start in range(0, len(self), _BLOCK):
            yield self[start : start + _BLOCK]


def as_tokens(tokens: Ids | Tokens) -> Tokens:
    return tokens if isinstance(tokens, Tokens) else Tokens([tokens])


def windows(tokens: Ids | Tokens, starts: Ids, length: int) -> Ids:
    """tokens[start : start + length] for each start."""
    if isinstance(tokens, Tokens):
        return tokens.windows(starts, length)
    return np.asarray(tokens[np.asarray(starts)[:, None] + np.arange(length)])


def token_counts(tokens: Ids | Tokens, vocabulary: int) -> Ids:
    """How often each token occurs."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for block in as_tokens(tokens).blocks():
        counts += np.bincount(block, minlength=vocabulary)
    return counts


def sample(tokens: Ids | Tokens, most: int) -> Ids:
    """All tokens if there are at most *most*; else the beginning of each component, in the proportions of the mixture."""
    if len(tokens) <= most:
        return np.asarray(tokens, dtype=np.int64)
    sequence = as_tokens(tokens)
    shares = sequence.shares or (Share(1.0, len(sequence)),)
    parts, begin = [], 0
    for share in shares:
        parts.append(sequence[begin : begin + min(share.tokens, int(share.weight * most))])
        begin += share.tokens
    return np.concatenate(parts)
