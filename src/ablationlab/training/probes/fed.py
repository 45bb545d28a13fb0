"""Probes of the data: what the runs were really fed."""

from __future__ import annotations

import torch

from ablationlab.training.probes.snapshot import Reading, Snapshot


def data_mixture(snapshot: Snapshot) -> list[Reading]:
    """Shares of the tokens fed up to and including this step, by source and by token class."""
    feed = snapshot.feed
    shares = [
        {f"source:{name}": share for name, share in feed.sources(seed).items()}
        | {f"class:{name}": share for name, share in feed.classes(seed).items()}
        for seed in snapshot.seeds
    ]
    values = torch.tensor([list(one.values()) for one in shares], dtype=torch.float64)
    return [Reading("share", values, tuple(shares[0]))]


def duplicate_ngrams(snapshot: Snapshot) -> list[Reading]:
    """Share of the n-grams fed up to and including this step that had been fed before."""
    rates = [snapshot.feed.duplicates(seed) for seed in snapshot.seeds]
    return [Reading("rate", torch.tensor(rates, dtype=torch.float64))]
