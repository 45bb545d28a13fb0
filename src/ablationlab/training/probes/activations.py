"""Probes of the tapped pass: residual stream, attention, output."""

from __future__ import annotations

import torch
from torch import Tensor

from ablationlab.model.gpt import ForwardPass
from ablationlab.training.probes.embedding import LEVELS, quantiles_RQ
from ablationlab.training.probes.snapshot import Reading, Snapshot


def stream_names(layers: int) -> tuple[str, ...]:
    """Names of the places of the residual stream."""
    return ("input", *(f"block-{n}" for n in range(1, layers + 1)))


def mean_cosine(x: Tensor) -> Tensor:
    """Mean of cos(x_i, x_j) over all i ≠ j of the second-last axis: (‖Σu‖² - Σ‖u‖²) / (n (n - 1)), u = x / ‖x‖."""
    units = torch.nn.functional.normalize(x.float(), dim=-1)
    count = units.shape[-2]
    if count < 2:
        return torch.full(units.shape[:-2], float("nan"), device=x.device)
    together = units.sum(dim=-2).double().square().sum(dim=-1)
    apart = units.double().square().sum(dim=(-1, -2))
    return (together - apart) / (count * (count - 1))


def centering_share(x: Tensor) -> Tensor:
    """d · mean(x)² / ‖x‖² of vectors along the last axis, averaged over the vectors of each run; 0 for a zero vector."""
    x = x.float()
    whole = x.square().sum(dim=-1)
    share = x.shape[-1] * x.mean(dim=-1).square() / whole
    share = torch.where(whole > 0, share, torch.zeros((), device=x.device))
    return share.flatten(1).mean(dim=1)


def _stacked(snapshot: Snapshot) -> Tensor:
    """The stream at all places: (R, places, tokens, D)."""
    return torch.stack([x.flatten(1, 2) for x in snapshot.taps.stream], dim=1)


def cosine(snapshot: Snapshot) -> list[Reading]:
    """Mean pairwise cosine of the embedding's rows, and of the stream's vectors at every place."""
    names = stream_names(snapshot.model.layers)
    return [
        Reading("mean", mean_cosine(snapshot.weights["tok.weight"]), ("tokens",)),
        Reading("mean", mean_cosine(_stacked(snapshot)), names),
    ]


def residual(snapshot: Snapshot) -> list[Reading]:
    """Norms and variances of the stream's vectors at every place."""
    x = _stacked(snapshot)
    norms = torch.linalg.vector_norm(x, dim=-1)
    names = stream_names(snapshot.model.layers)
    quantiles = quantiles_RQ(norms)
    return [
        Reading("norm", norms.mean(dim=-1), names),
        Reading("variance", x.var(dim=-1, correction=0).mean(dim=-1), names),
        *(Reading("quantile", quantiles[:, place], (name,), LEVELS) for place, name in enumerate(names)),
    ]


def attention(snapshot: Snapshot) -> list[Reading]:
    """Largest logit and mean entropy of every block's attention."""
    kept = snapshot.taps.attention
    names = stream_names(snapshot.model.layers)[1:]
    entropy = torch.stack([block.entropy_RBHT for block in kept], dim=1)  # (R, blocks, B, H, T)
    tokens = entropy.shape[-1]
    visible = torch.arange(1, tokens + 1, device=entropy.device).clamp(max=snapshot.model.window or tokens)
    most = visible.log()
    heads = [float(head) for head in range(snapshot.model.heads)]
    per_head = entropy.mean(dim=(2, 4))
    readings = [
        Reading("logit_max", torch.stack([block.logit_max_R for block in kept], dim=1), names),
        Reading("entropy", entropy.mean(dim=(2, 3, 4)), names),
        *(Reading("head_entropy", per_head[:, block], (name,), heads) for block, name in enumerate(names)),
    ]
    if min(tokens, snapshot.model.window or tokens) > 1:
        share = (entropy[..., 1:] / most[1:]).mean(dim=(2, 3, 4))
        readings.append(Reading("entropy_share", share, names))
    return readings


#: Logits of a run, at most, whose quantiles are taken; of more tokens every n-th counts.
MOST_LOGITS = 1_000_000


def output(snapshot: Snapshot) -> list[Reading]:
    """Spread, size and distribution of the output logits, and log Σ exp(logit)."""
    logits = snapshot.taps.logits_RBTV.flatten(1, 2)
    partition = logits.logsumexp(dim=-1)
    chosen = logits[:, :: max(1, logits[0].numel() // MOST_LOGITS)]
    centred = (chosen - chosen.mean(dim=-1, keepdim=True)).flatten(1)
    return [
        Reading("logit_std", logits.std(dim=-1, correction=0).mean(dim=-1)),
        Reading("logit_max", logits.abs().amax(dim=(1, 2))),
        Reading("log_partition", partition.mean(dim=-1)),
        Reading("log_partition_std", partition.std(dim=-1, correction=0)),
        Reading("quantile", quantiles_RQ(centred), ("all",), LEVELS),
    ]


def centering(snapshot: Snapshot) -> list[Reading]:
    """What centering removes: of the table's rows, of E_tok + E_pos before any norm, and of what enters block 1."""
    tokens = snapshot.sample_RBT[..., :-1]
    table = snapshot.weights["tok.weight"]
    token, position = ForwardPass(snapshot.weights, snapshot.model, snapshot.fronts).look_up(tokens)
    return [
        Reading("share", centering_share(table[:, None]), ("rows",)),
        Reading("share", centering_share(token + position), ("sum",)),
        Reading("share", centering_share(snapshot.taps.stream[0]), ("input",)),
    ]
