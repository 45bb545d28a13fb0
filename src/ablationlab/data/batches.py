"""Batches: which tokens a step trains on, as a pure function of (seed, step), the same for every variant of that seed.

    offsets_B(seed, k) ~ Uniform{0 .. train - context - 1}   from stream (seed, "batch", k)

Any step's batch is computed without replay, on any number of ranks. In a mixture the same stream first draws the component
of every sample, by its weight, then the offset inside it: no window crosses from one component into another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ablationlab.core.seeding import stream
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.data.tokens import Share
from ablationlab.records.plan import Corpus, DrawnText


def batch_offsets(
    seed: int, step: int, *, batch: int, context: int, train_tokens: int, shares: Sequence[Share] = ()
) -> NDArray[np.int64]:
    """Where in the training text each sample of a step begins; the components of a mixture follow each other in it."""
    draw = stream(seed, "batch", step)
    if len(shares) < 2:
        return draw.integers(0, train_tokens - context, size=batch, dtype=np.int64)
    edges = np.cumsum([share.weight for share in shares])[:-1]
    component = np.searchsorted(edges, draw.random(batch), side="right")
    tokens = np.array([share.tokens for share in shares], dtype=np.int64)
    starts = np.cumsum(tokens) - tokens
    return np.asarray(starts[component] + draw.integers(0, tokens[component] - context, dtype=np.int64))


def shares_of(corpus: Corpus) -> tuple[Share, ...]:
    """The weight and length of each component of a corpus."""
    return tuple(Share(component.weight, component.train_tokens) for component in corpus.components)


class DataOrderHash:
    """A running hash of the batches of a run: h_k = SHA-256(h_{k-1} ‖ offsets_k). Its state is its value,
    so a resumed run continues with it.
    """

    def __init__(self, value: str) -> None:
        self.value = value

    @classmethod
    def start(cls, corpus: Corpus, *, batch: int, context: int) -> DataOrderHash:
        """The hash before the first step, bound to the tokens and to the shape of a batch."""
        head = f"{corpus.tokens_sha256} {corpus.train_tokens} {batch}x{context}"
        return cls(hashlib.sha256(head.encode()).hexdigest())

    def update(self, offsets: NDArray[np.int64]) -> None:
        data = bytes.fromhex(self.value) + offsets.astype("<i8").tobytes()
        self.value = hashlib.sha256(data).hexdigest()


def planned_data_order(seed: int, corpus: Corpus, *, steps: int, batch: int, context: int) -> str:
    """The data-order hash that a run of *steps* steps must end with."""
    order = DataOrderHash.start(corpus, batch=batch, context=context)
    shape, shares = {"batch": batch, "context": context, "train_tokens": corpus.train_tokens}, shares_of(corpus)
    for step in range(1, steps + 1):
        order.update(batch_offsets(seed, step, **shape, shares=shares))
    return order.value


#: (start, length): where a window of the held-out text begins, and how many tokens it predicts.
Window = tuple[int, int]


def validation_windows(tokens: int, context: int) -> list[Window]:
    """Windows that predict every token of the split but the first exactly once, with stride = context."""
    return [(start, min(context, tokens - 1 - start)) for start in range(0, tokens - 1, context)]


def curve_windows(corpus: Corpus, context: int, count: int) -> list[Window]:
    """Windows of the loss curve: the first *count* of one text; of a mixture as many, evenly spaced over the held-out parts,
    so that each component has its share of them. They are the same for every run and step.
    """
    windows = validation_windows(corpus.validation_tokens, context)
    if len(corpus.components) < 2 or count >= len(windows):
        return windows[:count]
    return [windows[(2 * number + 1) * len(windows) // (2 * count)] for number in range(count)]


def drawn_samples(corpus: TokenizedCorpus, seed: int, *, steps: int, batch: int, context: int) -> tuple[DrawnText, ...]:
    """What a run draws from each component of its corpus, counted exactly; empty if the corpus is one text in memory.

    The data-order hash shows that a run trained on these samples.
    """
    components = corpus.record.components
    if not components:
        return ()
    shares = shares_of(corpus.record)
    starts = np.cumsum([0, *(share.tokens for share in shares)])
    samples, ends = np.zeros(len(shares), dtype=np.int64), np.zeros(len(shares), dtype=np.int64)
    shape = {"batch": batch, "context": context, "train_tokens": corpus.record.train_tokens}
    for step in range(1, steps + 1):
        offsets = batch_offsets(seed, step, **shape, shares=shares)
        component = np.searchsorted(starts, offsets, side="right") - 1
        for number in range(len(shares)):
            inside = offsets[component == number] - starts[number]
            samples[number] += len(inside)
            # A document whose last token is at e - 1 ends inside the targets start + 1 .. start + context.
            first, last = (
                np.searchsorted(corpus.ends[number], inside + past, side="right") for past in (1, context + 1)
            )
            ends[number] += int((last - first).sum())
    counted = corpus.tokenizer.end_of_document is not None
    return tuple(
        DrawnText(
            name=component.name,
            samples=int(samples[number]),
            tokens=int(samples[number]) * context,
            ends_of_documents=int(ends[number]) if counted else None,
            share=float(samples[number] / max(1, samples.sum())),
        )
        for number, component in enumerate(components)
    )
