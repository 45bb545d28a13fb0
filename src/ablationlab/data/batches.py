"""Which tokens a step sees: a pure function of (seed, step), shared by every variant of that seed.

    offsets_B(seed, k) ~ Uniform{0 .. train - context - 1}   from stream (seed, "batch", k)

so any step's batch is computed without replay, on any number of ranks. In a mixture the same stream first gives the component
of every sample, by its weight, then the offset inside it: no window reaches from one component into another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.seeding import stream
from ablationlab.data.tokens import Share
from ablationlab.records.corpus import Corpus


def batch_offsets(
    seed: int, step: int, *, batch: int, context: int, train_tokens: int, shares: Sequence[Share] = ()
) -> NDArray[np.int64]:
    """Where in the training text each sample of a step begins; components of a mixture stand one behind another in it."""
    draw = stream(seed, "batch", step)
    if len(shares) < 2:
        return draw.integers(0, train_tokens - context, size=batch, dtype=np.int64)
    edges = np.cumsum([share.weight for share in shares])[:-1]
    component = np.searchsorted(edges, draw.random(batch), side="right")
    tokens = np.array([share.tokens for share in shares], dtype=np.int64)
    starts = np.cumsum(tokens) - tokens
    return np.asarray(starts[component] + draw.integers(0, tokens[component] - context, dtype=np.int64))


def shares_of(corpus: Corpus) -> tuple[Share, ...]:
    """The components of a corpus, from its record."""
    return tuple(Share(component.weight, component.train_tokens) for component in corpus.components)


class OrderHash:
    """A running hash of everything fed to a run: h_k = SHA-256(h_{k-1} ‖ offsets_k). Its state is its value,
    so a resumed run goes on with it.
    """

    def __init__(self, value: str) -> None:
        self.value = value

    @classmethod
    def start(cls, corpus: Corpus, *, batch: int, context: int) -> OrderHash:
        """The hash before the first step, bound to the tokens and to the shape of a batch."""
        head = f"{corpus.tokens_sha256} {corpus.train_tokens} {batch}x{context}"
        return cls(hashlib.sha256(head.encode()).hexdigest())

    def feed(self, offsets: NDArray[np.int64]) -> None:
        """Take one step's offsets in."""
        data = bytes.fromhex(self.value) + offsets.astype("<i8").tobytes()
        self.value = hashlib.sha256(data).hexdigest()


def planned_order(seed: int, corpus: Corpus, *, steps: int, batch: int, context: int) -> str:
    """The hash that a run of *steps* steps must end with."""
    order = OrderHash.start(corpus, batch=batch, context=context)
    shape, shares = {"batch": batch, "context": context, "train_tokens": corpus.train_tokens}, shares_of(corpus)
    for step in range(1, steps + 1):
        order.feed(batch_offsets(seed, step, **shape, shares=shares))
    return order.value


#: Where a window of the held-out text begins, and how many tokens it predicts.
Window = tuple[int, int]


def validation_windows(tokens: int, context: int) -> list[Window]:
    """(start, length) of the windows that predict every token of the split but the first exactly once, stride = context."""
    return [(start, min(context, tokens - 1 - start)) for start in range(0, tokens - 1, context)]


def curve_windows(corpus: Corpus, context: int, count: int) -> list[Window]:
    """What the loss curve looks at: of one text its first *count* windows; of a mixture as many, evenly spaced over the
    held-out parts, so that each component has its share of them. The same for every run and step.
    """
    windows = validation_windows(corpus.validation_tokens, context)
    if len(corpus.components) < 2 or count >= len(windows):
        return windows[:count]
    return [windows[(2 * number + 1) * len(windows) // (2 * count)] for number in range(count)]
