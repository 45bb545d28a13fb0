"""The probes' arithmetic by name, and how a due set of them is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ablationlab.training.probes import activations, bound, embedding, fed, optimizer
from ablationlab.training.probes.snapshot import Reading, Snapshot

Measurement = Callable[[Snapshot], list[Reading]]

MEASUREMENTS: Mapping[str, Measurement] = {
    "gradient-norm": optimizer.gradient_norm,
    "update-ratio": optimizer.update_ratio,
    "second-moment": optimizer.second_moment,
    "embedding-norm": embedding.embedding_norm,
    "token-frequency": embedding.token_frequency,
    "cosine": activations.cosine,
    "effective-rank": embedding.effective_rank,
    "residual": activations.residual,
    "embedding-gain": embedding.embedding_gain,
    "attention": activations.attention,
    "output": activations.output,
    "centering": activations.centering,
    "gradient-bound": bound.gradient_bound,
    "data-mixture": fed.data_mixture,
    "duplicate-ngrams": fed.duplicate_ngrams,
}
