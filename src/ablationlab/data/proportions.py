"""What a run was fed of each component of its corpus, counted exactly from the named streams that decided it."""

from __future__ import annotations

import numpy as np

from ablationlab.data.batches import batch_offsets, shares_of
from ablationlab.data.corpus import TokenizedCorpus
from ablationlab.records.corpus import Fed


def fed(corpus: TokenizedCorpus, seed: int, *, steps: int, batch: int, context: int) -> tuple[Fed, ...]:
    """Per component; none where the corpus is one text in memory. The data-order hash says that these samples were fed."""
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
            # A document whose last token stands at e - 1 is ended inside the targets start + 1 .. start + context.
            first, last = (
                np.searchsorted(corpus.ends[number], inside + past, side="right") for past in (1, context + 1)
            )
            ends[number] += int((last - first).sum())
    counted = corpus.tokenizer.end_of_document is not None
    return tuple(
        Fed(
            name=component.name,
            samples=int(samples[number]),
            tokens=int(samples[number]) * context,
            ends_of_documents=int(ends[number]) if counted else None,
            share=float(samples[number] / max(1, samples.sum())),
        )
        for number, component in enumerate(components)
    )
