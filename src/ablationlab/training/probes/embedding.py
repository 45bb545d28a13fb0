"""Probes of the token embedding and of the learned norm behind it."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablationlab.training.probes.snapshot import Reading, Snapshot, on_device

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
# Up to this many tokens each is a point of its own in frequency against norm; more are drawn together.
POINTS = 128


def quantiles_RQ(values_RN: Tensor) -> Tensor:
    """Quantiles at `LEVELS` along the last axis, by linear interpolation. One sort and a few picks: torch's takes more."""
    last = values_RN.shape[-1] - 1
    places = np.array(LEVELS) * last
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, last)
    low, high, share = (on_device(table, values_RN.device) for table in (below, above, places - below))
    ordered = values_RN.sort(dim=-1).values
    return torch.lerp(ordered[..., low], ordered[..., high], share.to(values_RN.dtype))


def embedding_norm(snapshot: Snapshot) -> list[Reading]:
    """‖E_t‖ over all rows t, and over those of each class."""
    norms_RV = torch.linalg.vector_norm(snapshot.weights["tok.weight"], dim=-1)
    readings = []
    for name, ids in {"all": None, **snapshot.vocabulary.members}.items():
        chosen = norms_RV if ids is None else norms_RV[:, on_device(ids, norms_RV.device)]
        readings.append(Reading("mean", chosen.mean(dim=-1), (name,)))
        readings.append(Reading("quantile", quantiles_RQ(chosen), (name,), LEVELS))
    return readings


def token_frequency(snapshot: Snapshot) -> list[Reading]:
    """Points (frequency, norm) by falling frequency, and their rank correlation over tokens that occur in training."""
    vocabulary = snapshot.vocabulary
    norms_RV = torch.linalg.vector_norm(snapshot.weights["tok.weight"], dim=-1)
    points = vocabulary.points(POINTS)
    texts = [vocabulary.texts[ids[0]] if len(ids) == 1 else None for ids in points]
    ranks = [float(rank) for rank in np.cumsum([1, *[len(ids) for ids in points[:-1]]])]
    share_V = vocabulary.counts_V / max(int(vocabulary.counts_V.sum()), 1)
    order = on_device(vocabulary.by_frequency, norms_RV.device)
    pieces = torch.split(norms_RV[:, order].double(), [len(ids) for ids in points], dim=1)
    means = torch.stack([piece.mean(dim=1) for piece in pieces], dim=1) if len(pieces) < norms_RV.shape[1] else None
    shares = torch.tensor([float(share_V[ids].mean()) for ids in points], dtype=torch.float64)
    return [
        Reading("frequency", shares.expand(len(norms_RV), -1), texts, ranks),
        Reading("norm", norms_RV[:, order] if means is None else means, texts, ranks),
        Reading("correlation", _spearman(norms_RV, vocabulary.counts_V)),
    ]


def _spearman(values_RV: Tensor, counts_V: NDArray[np.int64]) -> Tensor:
    """Rank correlation per run with the counts, over tokens that occur; ties share their mean rank, as in scipy."""
    occurs = np.flatnonzero(counts_V)
    if len(occurs) < 2:
        return torch.full(values_RV.shape[:1], float("nan"), device=values_RV.device)
    kept = values_RV[:, on_device(occurs, values_RV.device)].double()
    # Norms are real numbers and hardly ever tie, so their ranks are their order; counts tie often.
    ranks = kept.argsort(dim=1).argsort(dim=1).double()
    _, inverse, sizes = np.unique(counts_V[occurs], return_inverse=True, return_counts=True)
    middle = np.cumsum(sizes) - (sizes + 1) / 2
    other = on_device(middle[inverse].astype(np.float64), values_RV.device)
    ranks, other = ranks - ranks.mean(dim=1, keepdim=True), other - other.mean()
    spread: Tensor = torch.linalg.vector_norm(ranks, dim=1) * torch.linalg.vector_norm(other)
    return (ranks @ other) / spread


def effective_rank(snapshot: Snapshot) -> list[Reading]:
    """exp(-Σ p log p) with p = σ / Σσ (Roy & Vetterli 2007), and (Σσ²)² / Σσ⁴, of the token embedding's singular values."""
    table = snapshot.weights["tok.weight"].double()
    gram = table @ table.transpose(1, 2) if table.shape[1] <= table.shape[2] else table.transpose(1, 2) @ table
    # A decomposition makes a GPU wait, so it is left to the host. Σσ² is the trace of the Gram matrix, Σσ⁴ its squared norm.
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    return [
        Reading("entropy", gram.flatten(1), then=_entropies),
        Reading("participation", trace.square() / gram.square().sum(dim=(1, 2))),
    ]


def entropy_rank(singular_N: NDArray[np.float64]) -> float:
    """exp of the entropy of singular values scaled to sum 1: n for n equal ones, 1 for a single one."""
    share = singular_N / singular_N.sum()
    return float(np.exp(-np.sum(share * np.log(share, where=share > 0, out=np.zeros_like(share)))))


def _entropies(grams_RN: NDArray[np.float64]) -> NDArray[np.float64]:
    """`entropy_rank` of each run's Gram matrix; NaN for a run that has broken."""
    size = math.isqrt(grams_RN.shape[1])
    ranks = np.full((len(grams_RN), 1), np.nan)
    for row, gram in enumerate(grams_RN.reshape(-1, size, size)):
        if np.isfinite(gram).all() and gram.any():
            ranks[row] = entropy_rank(np.sqrt(np.linalg.eigvalsh(gram).clip(min=0)))
    return ranks


def embedding_gain(snapshot: Snapshot) -> list[Reading]:
    """The learned gain and bias, for the runs that have them."""
    readings = []
    for part in ("gain", "bias"):
        value = snapshot.weights.get(f"front.{part}")
        has = [f"front.{part}" in owned for owned in snapshot.owned]
        if value is None or not any(has):
            continue
        dimensions = [float(dimension) for dimension in range(value.shape[1])]
        readings += [
            Reading("mean", value.mean(dim=1), (part,), has_R=has),
            Reading("std", value.std(dim=1, correction=0), (part,), has_R=has),
            Reading("value", value, (part,), dimensions, has_R=has),
        ]
    return readings
